"""What to change about a run, in sentences with numbers; only what its own steps bear out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.diagnosis import LEAST_BLOCKS, LEAST_UNDRAFTED, Diagnosis, Limit, StepSums
from core.draft_length import shown_draft_length
from core.figures import percent_text
from core.forecast import LookupForecast, best_length, forecast_lookup
from core.types import Coupling

LEAST_GAIN = 1.05
"""A promise below this is within what two runs of the same settings differ by."""
BREAK_EVEN = 1.0
MAX_LOOKUP_TOKENS = 2048
"""Tokens of a text that prompt lookup is tried on: enough to tell, and quick."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A sentence or two, and the speedup that is promised; None where nothing can be said of it."""

    text: str
    speedup: float | None = None


def advise(
    sums: StepSums, diagnosis: Diagnosis, config: Mapping[str, Any], emitted: Sequence[int] = ()
) -> list[Advice]:
    """What to change, the greatest promise first.

    Args:
        config: `RunStarted.config`.
        emitted: the run's tokens.
    """
    if not diagnosis.is_enough:
        return _of_too_few(sums, diagnosis, config)
    found = [
        *_other_length(sums, diagnosis, config),
        *_lookup(sums, diagnosis, config, emitted),
        *_coupling(sums, diagnosis, config),
        *_cheaper_draft(diagnosis, config),
        *_undrafted(sums, config),
        *_acceptance(sums, diagnosis, config),
        *_scoring(diagnosis),
        *_overhead(diagnosis),
    ]
    # What stays slower than plain decoding is nothing to change to.
    found = [advice for advice in found if advice.speedup is None or advice.speedup > BREAK_EVEN]
    found.sort(key=lambda advice: -(advice.speedup or 0.0))
    promised = max((advice.speedup for advice in found if advice.speedup is not None), default=0.0)
    if diagnosis.speedup < BREAK_EVEN and not promised:
        return [_dont(diagnosis), *found]
    if not promised:
        least = percent_text(LEAST_GAIN - 1)
        well_set = f"No setting that this run can tell of promises more than {least}: it is well set."
        return [Advice(well_set), *found]
    return found


def _policy(config: Mapping[str, Any]) -> str:
    return str(shown_draft_length(config)).capitalize()


def _of_too_few(sums: StepSums, diagnosis: Diagnosis, config: Mapping[str, Any]) -> list[Advice]:
    if sums.num_steps < LEAST_BLOCKS:
        return [Advice(f"Run at least {LEAST_BLOCKS} steps: raise the number of new tokens.")]
    if config.get("num_draft_tokens") == "auto":
        return [
            Advice(
                f"{_policy(config)} K drafted in only {sums.num_blocks} of {sums.num_steps} steps: it saw that "
                "drafting would not pay. Plain decoding is the answer here; a fixed K shows by how much."
            )
        ]
    return _undrafted(sums, config)


def _dont(diagnosis: Diagnosis) -> Advice:
    measured = "measured" if diagnosis.plain.is_measured else "estimated"
    return Advice(
        f"Don't speculate here. At {diagnosis.speedup:.2f}×, {measured}, plain decoding is faster, and nothing that "
        "this run shows would change that."
    )


def _other_length(sums: StepSums, diagnosis: Diagnosis, config: Mapping[str, Any]) -> list[Advice]:
    if config.get("num_draft_tokens") == "auto":
        return []
    best = best_length(sums, diagnosis)
    if best is None or best.num_draft_tokens == diagnosis.usual_length:
        return []
    if best.speedup < LEAST_GAIN * diagnosis.speedup:
        return []
    own, basis = diagnosis.usual_length, "from how far this run's blocks were accepted and what scoring them took"
    if not best.is_within:
        basis += "; longer than what ran, so try it"
    return [
        Advice(f"Set K to {best.num_draft_tokens} instead of {own}: about {best.speedup:.2f}×, {basis}.", best.speedup)
    ]


def _lookup(sums: StepSums, diagnosis: Diagnosis, config: Mapping[str, Any], emitted: Sequence[int]) -> list[Advice]:
    if config.get("method") == "prompt-lookup":
        return []
    # What a branch continues from is as good to look in as the prompt.
    before = (*(config.get("prompt_token_ids") or ()), *(config.get("continuation_token_ids") or ()))
    prompt = [token for token in before if isinstance(token, int)]
    found: LookupForecast | None = forecast_lookup(
        prompt[-MAX_LOOKUP_TOKENS:], emitted[:MAX_LOOKUP_TOKENS], sums, diagnosis
    )
    if found is None or found.speedup < LEAST_GAIN * max(diagnosis.speedup, BREAK_EVEN):
        return []
    return [
        Advice(
            f"Use prompt lookup: this text repeats itself. It would have kept {found.num_accepted:,} of "
            f"{found.num_drafted:,} tokens, drafted for nothing: about {found.speedup:.2f}×.",
            found.speedup,
        )
    ]


def _coupling(sums: StepSums, diagnosis: Diagnosis, config: Mapping[str, Any]) -> list[Advice]:
    if config.get("coupling") != Coupling.GUMBEL or not sums.drafted:
        return []
    more = sums.expected - sums.accepted
    speedup = diagnosis.speedup * (sums.tokens + more) / sums.tokens
    if speedup < LEAST_GAIN * diagnosis.speedup:
        return []
    kept, would = sums.accepted / sums.drafted, sums.expected / sums.drafted
    text = (
        f"Without Reproducible, {percent_text(would)} of the drafts would be kept instead of {percent_text(kept)}: "
        f"about {speedup:.2f}×."
    )
    return [Advice(text, speedup)]


def _cheaper_draft(diagnosis: Diagnosis, config: Mapping[str, Any]) -> list[Advice]:
    cost = diagnosis.cost
    if cost is None or config.get("method") == "prompt-lookup":
        return []
    halved = diagnosis.speedup * diagnosis.total_ms / (diagnosis.total_ms - diagnosis.draft_ms / 2)
    if halved < LEAST_GAIN * diagnosis.speedup:
        return []
    found = [
        Advice(
            f"Choose a smaller draft: a step of this one takes {cost:.2f} of the target's. One that takes half as long "
            f"and agrees as often would give {halved:.2f}×.",
            halved,
        )
    ]
    options = config.get("method_options") or {}
    if config.get("device") == "cpu" and options.get("int8") is False:
        found.append(Advice("Tick Draft in int8: the draft runs faster on most processors, and the text stays exact."))
    return found


def _undrafted(sums: StepSums, config: Mapping[str, Any]) -> list[Advice]:
    share = 1 - sums.num_blocks / sums.num_steps
    if share < LEAST_UNDRAFTED:
        return []
    if config.get("num_draft_tokens") == "auto":
        return [
            Advice(
                f"{_policy(config)} K decoded plainly in {percent_text(share)} of the steps, where it saw that "
                "drafting would not pay."
            )
        ]
    if config.get("method") == "prompt-lookup":
        return [
            Advice(
                f"{percent_text(share)} of the steps found nothing to propose: this text repeats little of itself. A "
                "draft model proposes in every step."
            )
        ]
    return [Advice(f"{percent_text(share)} of the steps drafted nothing.")]


def _acceptance(sums: StepSums, diagnosis: Diagnosis, config: Mapping[str, Any]) -> list[Advice]:
    limit = diagnosis.main_limit
    if limit is None or limit.limit is not Limit.ACCEPTANCE or diagnosis.alpha is None or diagnosis.alpha > 0.9:
        return []
    found = []
    if config.get("method") == "draft-model":
        found.append(
            Advice(
                f"{percent_text(diagnosis.alpha)} of the tested tokens are accepted. A draft of the target's own "
                "family, or one distilled from it (outrider distill), agrees more often."
            )
        )
    if said := _temperatures(sums):
        found.append(Advice(said))
    return found


def _temperatures(sums: StepSums) -> str:
    """Whether temperature mattered, where the run was at two of them."""
    tested = {t: (accepted / n, n) for t, (n, accepted) in sums.tests_by_temperature.items() if n >= LEAST_BLOCKS}
    if len(tested) < 2:
        return ""
    best, worst = max(tested, key=lambda t: tested[t][0]), min(tested, key=lambda t: tested[t][0])
    noise = math.sqrt(sum(share * (1 - share) / n for share, n in (tested[best], tested[worst])))
    if tested[best][0] - tested[worst][0] <= 2 * noise:
        return ""
    return (
        f"At temperature {best:g}, {percent_text(tested[best][0])} of the tested tokens were accepted; at {worst:g}, "
        f"{percent_text(tested[worst][0])}. The temperature changes what is sampled, though."
    )


def _scoring(diagnosis: Diagnosis) -> list[Advice]:
    limit, cost = diagnosis.main_limit, diagnosis.verify_cost
    if limit is None or limit.limit is not Limit.VERIFY or cost is None:
        return []
    return [
        Advice(
            f"Scoring {diagnosis.usual_length + 1} positions takes {cost:.2f} plain forwards: the target is bound by "
            "arithmetic here, not by memory. Short blocks, a larger target or a GPU make that cheaper."
        )
    ]


def _overhead(diagnosis: Diagnosis) -> list[Advice]:
    limit = diagnosis.main_limit
    if limit is None or limit.limit is not Limit.OVERHEAD:
        return []
    extra = diagnosis.overhead_ms - diagnosis.plain.overhead_ms
    return [
        Advice(
            f"Filters, verdict and bookkeeping take {extra:.2f} ms more than in a plain step. With a larger target "
            "that matters less."
        )
    ]
