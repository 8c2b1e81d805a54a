"""Advises what to change about a run, with numbers computed from the run's own steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.analysis.diagnosis import (
    LEAST_BLOCKS,
    LEAST_UNDRAFTED,
    Diagnosis,
    Limit,
    tokens_per_block,
    verify_costs,
)
from core.analysis.theory import SpeedupTheory
from core.draft_length import shown_draft_length
from core.drafters.ngrams import Ngrams
from core.runlog.reading import ids_of, number_of
from core.runlog.tally import Tally
from core.settings import LONGEST_CHAIN, SAME_TEXT, Coupling, LengthPolicy
from core.text import percent_text

LEAST_GAIN = 1.05
"""Two runs with the same settings differ by this much; smaller gains are not promised."""
BREAK_EVEN = 1.0
DRAFT_MODEL_METHODS = ("draft-model", "draft-tree")
"""Self-draft has no draft model to choose."""
MAX_LOOKUP_TOKENS = 2048
"""Tokens that prompt lookup is tried on: enough evidence, and fast."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A sentence or two, the promised speedup, None if it can't be computed, and what it asks for.

    Attributes:
        settings: to change, named as in `core.settings`, or "pace", the window's; None is one that only the user can
            choose.
        repeats: whether the run is to be run again, with these.
    """

    text: str
    speedup: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    repeats: bool = False

    @property
    def is_remark(self) -> bool:
        """Whether there is nothing to do about it."""
        return not (self.settings or self.repeats)


@dataclass(frozen=True, slots=True)
class LengthForecast:
    """The best K, and the speedup it would have reached."""

    num_draft_tokens: int
    speedup: float
    is_within: bool
    """Whether K is no longer than what ran; beyond that the cost of scoring is extrapolated."""


def best_length(sums: Tally, diagnosis: Diagnosis) -> LengthForecast | None:
    """The best K for a chain, from 1 to twice the longest that ran; None without evidence, and for trees.

    The model's speedup is scaled so that it meets what was measured at the run's own K.
    """
    plain, own = diagnosis.plain, diagnosis.usual_length
    costs, longest = verify_costs(sums, plain.forward_ms)
    if sums.is_tree or not (diagnosis.is_enough and own and longest) or (draft_ms := sums.level_ms) is None:
        return None
    drafting = sums.num_blocks / sums.num_steps

    def speedup(k: int) -> float:
        block_ms = k * draft_ms + plain.forward_ms * costs[k]
        tokens = drafting * tokens_per_block(sums, k) + (1 - drafting)
        total_ms = drafting * block_ms + (1 - drafting) * plain.forward_ms + diagnosis.overhead_ms
        return tokens * plain.total_ms / total_ms

    speedups = {k: speedup(k) for k in range(1, min(2 * longest, LONGEST_CHAIN) + 1)}
    if own not in speedups:
        return None
    best = max(speedups, key=lambda k: (speedups[k], -k))
    return LengthForecast(best, diagnosis.speedup / speedups[own] * speedups[best], best <= longest)


def _lookup_forecast(
    prompt: Sequence[int], emitted: Sequence[int], length: int, sums: Tally, diagnosis: Diagnosis
) -> tuple[float, int, int]:
    """The speedup that prompt lookup would have reached, 0 without a text, and the tokens drafted and accepted.

    It replays the run's own text: a token is accepted where it is the one that was emitted. In expectation this is
    exact, since a looked-up token is accepted with the target's probability of it.
    """
    costs, _ = verify_costs(sums, diagnosis.plain.forward_ms)
    ids, at = [*prompt, *emitted], len(prompt)
    ngrams = Ngrams()
    drafted = accepted = 0
    total_ms = 0.0
    while at < len(ids):
        found = ngrams.look_up(ids[:at], length)
        kept = next((i for i, token in enumerate(found) if ids[at + i : at + i + 1] != [token]), len(found))
        drafted, accepted = drafted + len(found), accepted + kept
        total_ms += diagnosis.plain.forward_ms * costs[len(found)] + diagnosis.overhead_ms
        at += kept + 1
    return (len(emitted) * diagnosis.plain.total_ms / total_ms if emitted else 0.0), drafted, accepted


def advise(
    sums: Tally,
    diagnosis: Diagnosis,
    config: Mapping[str, Any],
    emitted: Sequence[int] = (),
    theory: SpeedupTheory | None = None,
) -> list[Advice]:
    """What to change, largest gain first, and remarks.

    Args:
        config: comes from `RunStarted`.
        emitted: the run's tokens, on which prompt lookup is tried.
        theory: of a run of trees, forecasts smaller ones.
    """
    if not diagnosis.is_enough:
        return list(_of_too_few(sums, diagnosis, config))
    found = [
        *_other_settings(sums, diagnosis, config, emitted),
        *_other_shape(diagnosis, config, theory),
        *_undrafted(sums, diagnosis, config),
        *_about_main_limit(sums, diagnosis, config),
    ]
    # Don't suggest what is still slower than plain decoding.
    found = [advice for advice in found if advice.speedup is None or advice.speedup > BREAK_EVEN]
    found.sort(key=lambda advice: -(advice.speedup or 0.0))
    if any(advice.speedup is not None for advice in found):
        return found
    settings: dict[str, Any] = {}
    if diagnosis.speedup < BREAK_EVEN:
        text = "Decode plainly: nothing in this run suggests a setting at which drafting would pay."
        settings = {"num_draft_tokens": 0, "length_policy": LengthPolicy.FIXED}
    else:
        text = f"These settings are good: no others promise a gain above {percent_text(LEAST_GAIN - 1)}."
    if sums.is_tree:
        text += " Nothing is predicted here for larger trees."
    return [Advice(text, settings=settings), *found]


def _of_too_few(sums: Tally, diagnosis: Diagnosis, config: Mapping[str, Any]) -> Iterator[Advice]:
    blocks, steps = sums.num_blocks, sums.num_steps
    is_auto, is_rare = config.get("num_draft_tokens") == "auto", steps >= LEAST_BLOCKS and 2 * blocks < steps
    if is_auto and is_rare and diagnosis.speedup < LEAST_GAIN:
        yield Advice(
            f"{_policy(config)} K drafted in only {blocks} of {steps} steps: drafting would not have paid. Plain "
            "decoding is best here; a fixed K shows by how much.",
            settings={"length_policy": LengthPolicy.FIXED},
        )
    elif not is_rare and config.get("num_draft_tokens") != 0:
        why = f"advice takes {LEAST_BLOCKS} steps that draft, and this run had {blocks}"
        # A step emits at most one token more than it drafts in a row.
        enough = LEAST_BLOCKS * len(sums.positions) + math.ceil(LEAST_BLOCKS * steps / max(blocks, 1))
        if enough > (number_of(config.get("max_new_tokens")) or 0):
            yield Advice(f"Generate about {enough:,} tokens: {why}.", settings={"max_new_tokens": enough})
        else:
            yield Advice(f"Let the run finish, or choose a prompt with a longer answer: {why}.")
    else:
        yield from _undrafted(sums, diagnosis, config)


def _policy(config: Mapping[str, Any]) -> str:
    return str(shown_draft_length(config)).capitalize()


def _other_settings(
    sums: Tally, diagnosis: Diagnosis, config: Mapping[str, Any], emitted: Sequence[int]
) -> Iterator[Advice]:
    """Another K, prompt lookup, rejection coupling, or a cheaper draft, if they promise a gain."""
    least = LEAST_GAIN * diagnosis.speedup
    best = best_length(sums, diagnosis) if config.get("num_draft_tokens") != "auto" else None
    if best and best.num_draft_tokens != diagnosis.usual_length and best.speedup >= least:
        basis = "from this run's acceptance at each position and its scoring times"
        if not best.is_within:
            basis = "extrapolated from this run's shorter blocks, so try it"
        text = f"Set K to {best.num_draft_tokens} instead of {diagnosis.usual_length}: about {best.speedup:.2f}× "
        text += f"(this run: {diagnosis.speedup:.2f}×)"
        k = {"num_draft_tokens": best.num_draft_tokens, "length_policy": LengthPolicy.FIXED}
        yield Advice(f"{text}, {basis}.", best.speedup, k)
    rate = sums.predicted_rate
    if config.get("coupling") == Coupling.GUMBEL and rate is not None:
        speedup = diagnosis.speedup * (sums.tokens + rate * sums.drafted - sums.accepted) / sums.tokens
        if speedup >= least:
            would, kept = percent_text(rate), percent_text(sums.accepted / sums.drafted)
            text = f"Without “{SAME_TEXT}”, {would} of the drafts would be accepted instead of {kept}"
            yield Advice(f"{text}: about {speedup:.2f}×.", speedup, {"coupling": Coupling.REJECTION})
    if config.get("method") == "prompt-lookup":
        return
    prompt = (*ids_of(config.get("prompt_token_ids")), *ids_of(config.get("continuation_token_ids")))
    length = min(diagnosis.usual_depth or 4, LONGEST_CHAIN)
    speedup, drafted, accepted = _lookup_forecast(
        prompt[-MAX_LOOKUP_TOKENS:], emitted[:MAX_LOOKUP_TOKENS], length, sums, diagnosis
    )
    if speedup >= LEAST_GAIN * max(diagnosis.speedup, BREAK_EVEN):
        yield Advice(
            f"Use prompt lookup with K = {length}: this text repeats itself. It would have drafted {drafted:,} tokens "
            f"at no cost, and {accepted:,} of them would have been accepted: about {speedup:.2f}×.",
            speedup,
            {"method": "prompt-lookup", "num_draft_tokens": length, "length_policy": LengthPolicy.FIXED},
        )
    halved = diagnosis.speedup * diagnosis.total_ms / (diagnosis.total_ms - diagnosis.draft_ms / 2)
    if config.get("method") in DRAFT_MODEL_METHODS and diagnosis.cost is not None and halved >= least:
        yield Advice(
            f"Choose a smaller draft: a step of this one takes {diagnosis.cost:.2f} of the target's. One that takes "
            f"half as long and agrees as often would give {halved:.2f}×.",
            halved,
            {"draft": None},
        )
        options = config.get("method_options") or {}
        if config.get("device") == "cpu" and options.get("int8") is False:
            text = "Tick “Draft in int8”: the draft runs faster on most processors, and the text stays exact."
            yield Advice(text, settings={"method_options": {config["method"]: {"int8": True}}})


def _other_shape(diagnosis: Diagnosis, config: Mapping[str, Any], theory: SpeedupTheory | None) -> Iterator[Advice]:
    """The fastest shape within a run's trees, scaled so that the run's own meets what was measured."""
    own = diagnosis.usual_length
    if config.get("method") != "draft-tree" or theory is None or theory.trees is None or not theory.trees.shapes:
        return
    shape, expected = theory.trees.shapes[0], theory.measured_verify.values[own]
    speedup = diagnosis.speedup * shape.speedup.value / expected if expected > 0 else 0.0
    if config.get("num_draft_tokens") == "auto" or shape.num_nodes == own or speedup < LEAST_GAIN * diagnosis.speedup:
        return
    settings: dict[str, Any] = {"num_draft_tokens": shape.num_nodes, "length_policy": LengthPolicy.FIXED}
    if shape.is_chain:
        settings["method"] = "draft-model"
    else:
        settings["method_options"] = {"draft-tree": {"depth": shape.depth}}
    text = f"Draft a {shape.title} instead of {own} nodes: about {speedup:.2f}×, estimated from this run's trees."
    yield Advice(text, speedup, settings)


def _undrafted(sums: Tally, diagnosis: Diagnosis, config: Mapping[str, Any]) -> Iterator[Advice]:
    share, settings = 1 - sums.num_blocks / sums.num_steps, {}
    if share < LEAST_UNDRAFTED or config.get("num_draft_tokens") == 0:
        return
    if config.get("num_draft_tokens") == "auto":
        text = f"{_policy(config)} K decoded plainly in {percent_text(share)} of the steps, where it expected no gain."
    elif config.get("method") == "prompt-lookup":
        text = f"{percent_text(share)} of the steps found nothing to propose"
        # Before a text can repeat itself, it has to begin.
        if diagnosis.speedup < LEAST_GAIN:
            text += ": this text rarely repeats itself. A draft model proposes in every step"
            settings = {"method": "draft-model"}
        text += "."
    else:
        text = f"{percent_text(share)} of the steps drafted nothing."
    yield Advice(text, settings=settings)


def _about_main_limit(sums: Tally, diagnosis: Diagnosis, config: Mapping[str, Any]) -> Iterator[Advice]:
    limit, alpha = diagnosis.main_limit, diagnosis.alpha
    if limit is None:
        return
    if limit.limit is Limit.ACCEPTANCE and alpha is not None and alpha <= 0.9:
        if config.get("method") in DRAFT_MODEL_METHODS:
            yield Advice(
                f"{percent_text(alpha)} of the tested {_tests(sums)} are accepted. A draft of the target's own family, "
                "or one distilled from it (outrider distill), agrees more often.",
                settings={"draft": None},
            )
        yield from _temperatures(sums)
    elif limit.limit is Limit.VERIFY and diagnosis.verify_cost is not None:
        smaller = "Smaller trees" if sums.is_tree else "Short blocks"
        yield Advice(
            f"Scoring {diagnosis.usual_length + 1} positions costs {diagnosis.verify_cost:.2f} plain forwards in the "
            "median step: the target is compute-bound here, not memory-bound. "
            f"{smaller}, a larger target or a GPU would make that cheaper."
        )
    elif limit.limit is Limit.OVERHEAD:
        extra = diagnosis.overhead_ms - diagnosis.plain.overhead_ms
        yield Advice(
            f"Filters, verification and bookkeeping take {extra:.2f} ms more than in a plain step. With a larger "
            "target that matters less."
        )


def _tests(sums: Tally) -> str:
    """What is tested: a level of a tree counts once, whatever its number of candidates."""
    return "levels" if sums.is_tree else "tokens"


def _temperatures(sums: Tally) -> Iterator[Advice]:
    """Whether temperature mattered, if the run used several."""
    tested = {t: (accepted / n, n) for t, (n, accepted) in sums.tests_by_temperature.items() if n >= LEAST_BLOCKS}
    if len(tested) < 2:
        return
    best, worst = max(tested, key=lambda t: tested[t][0]), min(tested, key=lambda t: tested[t][0])
    noise = math.sqrt(sum(share * (1 - share) / n for share, n in (tested[best], tested[worst])))
    if tested[best][0] - tested[worst][0] > 2 * noise:
        yield Advice(
            f"At temperature {best:g}, {percent_text(tested[best][0])} of the tested {_tests(sums)} were accepted; at "
            f"{worst:g}, {percent_text(tested[worst][0])}. The temperature changes what is sampled, though.",
            settings={"temperature": best},
        )
