"""What to change about a run, in sentences with numbers; only what its own steps bear out."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from core.analysis.expectation import expected_accepted, expected_tokens
from core.draft_shape import shown_draft_length
from core.text import percent_text
from core.types import MAX_DRAFT_TOKENS, Coupling, Step, Summary, TokenKind

LEAST_BLOCKS = 20
"""Drafted blocks below which a run says nothing that another one would not contradict."""
LEAST_TIMED = 5
"""Blocks of one length whose median scoring time counts."""
LEAST_UNDRAFTED = 0.1
"""Share of steps without a draft from which they are a limit of their own."""


class Limit(StrEnum):
    """What can hold a run's speedup back."""

    ACCEPTANCE = "acceptance"
    DRAFT = "draft"
    VERIFY = "verify"
    OVERHEAD = "overhead"
    UNDRAFTED = "undrafted"


@dataclass(frozen=True, slots=True)
class PlainStep:
    """What plain decoding takes for a token.

    Attributes:
        forward_ms: the target's forward over one position; the unit of c and v.
        total_ms: the whole step.
        is_measured: whether the baseline ran; else a forward timed before the run stands for the whole step.
    """

    forward_ms: float
    total_ms: float
    is_measured: bool

    @property
    def overhead_ms(self) -> float:
        """What a plain step takes beside its forward."""
        return max(0.0, self.total_ms - self.forward_ms)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The speedup if one limit were gone and all else as it was."""

    limit: Limit
    speedup: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A run's figures. Times are means over all steps, in milliseconds.

    Attributes:
        num_blocks: steps that drafted something.
        alpha: accepted / tested tokens, and its standard error.
        tokens_per_step: block efficiency, tau.
        drafted_per_step: mean K, plain steps included.
        overhead_ms: the step less drafting and the forward: filters, verdict, bookkeeping.
        plain: what a plain step takes.
        usual_length: the commonest K of the drafted blocks.
        cost: c, a draft step / a plain forward.
        verify_cost: v(K+1), the median forward over the commonest block / a plain forward.
        speedup: tau P / T.
        what_ifs: the highest speedup first; empty where nothing was drafted.
    """

    num_steps: int
    num_blocks: int
    num_tested: int
    alpha: float | None
    alpha_error: float | None
    tokens_per_step: float
    drafted_per_step: float
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    total_ms: float
    plain: PlainStep
    usual_length: int
    cost: float | None
    verify_cost: float | None
    speedup: float
    what_ifs: tuple[WhatIf, ...]

    @property
    def is_enough(self) -> bool:
        """Whether there are steps enough to tell."""
        return self.num_blocks >= LEAST_BLOCKS

    @property
    def main_limit(self) -> WhatIf | None:
        """What holds the speedup back most; None where nothing does, or too few steps tell."""
        if not self.is_enough or not self.what_ifs or self.what_ifs[0].speedup <= self.speedup:
            return None
        return self.what_ifs[0]

    @property
    def overhead_share(self) -> float:
        """(total - draft - verify) / total."""
        return self.overhead_ms / self.total_ms if self.total_ms else 0.0

    @property
    def verify_extra_ms(self) -> float:
        """What scoring takes beyond a plain forward."""
        return max(0.0, self.verify_ms - self.plain.forward_ms)


class StepSums:
    """Sums over steps, so that a run that grows is read once.

    Attributes:
        expected: accepted tokens that rejection coupling lets expect.
        reached, kept: by position of the block, how many blocks were so long, and how many kept that much.
        verify_by_length: scoring times by K, blocks that the text's end cut short left out.
        tests_by_temperature: (tested, accepted) tokens.
    """

    def __init__(self) -> None:
        self.num_steps = self.num_blocks = 0
        self.tokens = self.block_tokens = 0
        self.drafted = self.accepted = self.tested = 0
        self.expected = 0.0
        self.draft_ms = self.verify_ms = self.total_ms = self.block_ms = 0.0
        self.reached: list[int] = []
        self.kept: list[int] = []
        self.verify_by_length: defaultdict[int, list[float]] = defaultdict(list)
        self.tests_by_temperature: dict[float, tuple[int, int]] = {}

    def add(self, step: Step) -> None:
        """Take in a step."""
        count = step.num_draft_tokens
        self.num_steps += 1
        self.tokens += len(step.emitted)
        self.draft_ms += step.draft_ms
        self.verify_ms += step.verify_ms
        self.total_ms += step.total_ms
        if not count:
            return
        self.num_blocks += 1
        self.block_tokens += len(step.emitted)
        self.block_ms += step.total_ms
        self.drafted += count
        self.accepted += step.num_accepted
        expected = expected_accepted(step.acceptance_probs, step.expected_acceptance)
        # A run that was read from an old log may lack a figure.
        self.expected += expected if math.isfinite(expected) else step.num_accepted
        tested = step.num_accepted + (TokenKind.CORRECTION in step.emitted_kinds)
        self.tested += tested
        before = self.tests_by_temperature.get(step.temperature, (0, 0))
        self.tests_by_temperature[step.temperature] = (before[0] + tested, before[1] + step.num_accepted)
        if step.emitted_kinds and step.emitted_kinds[-1] is TokenKind.ACCEPTED:
            return  # The text ended within the block: neither its times nor its end are those of a block.
        missing = count - len(self.reached)
        self.reached += [0] * missing
        self.kept += [0] * missing
        for position in range(count):
            self.reached[position] += 1
            self.kept[position] += position < step.num_accepted
        self.verify_by_length[count].append(step.verify_ms)


def plain_step(baseline: StepSums, target_step_ms: float | None, summary: Summary | None = None) -> PlainStep | None:
    """What plain decoding takes: as the baseline ran, else as a forward was timed; None where neither is known.

    Args:
        baseline: the sums of its steps, perhaps none.
        target_step_ms: `PrefillDone.target_step_ms`.
        summary: tells the baseline's speed where its steps are not at hand, as in a run that was read from its log.
    """
    if baseline.tokens and baseline.total_ms > 0:
        total = baseline.total_ms / baseline.tokens
        # Older logs tell only how long its whole steps took.
        forward = baseline.verify_ms / baseline.tokens or min(target_step_ms or total, total)
        return PlainStep(forward, total, True)
    speed = summary.baseline_tokens_per_second if summary is not None else None
    if speed:
        total = 1000.0 / speed
        return PlainStep(min(target_step_ms or total, total), total, True)
    return PlainStep(target_step_ms, target_step_ms, False) if target_step_ms else None


def diagnose(sums: StepSums, plain: PlainStep | None) -> Diagnosis | None:
    """Read a run; None where there is nothing to read, or nothing to hold it against."""
    if not sums.num_steps or plain is None or not (sums.total_ms > 0 and plain.forward_ms > 0):
        return None
    n = sums.num_steps
    alpha = sums.accepted / sums.tested if sums.tested else None
    usual = max(sums.verify_by_length, key=lambda k: (len(sums.verify_by_length[k]), k), default=0)
    times = sums.verify_by_length.get(usual)
    return Diagnosis(
        num_steps=n,
        num_blocks=sums.num_blocks,
        num_tested=sums.tested,
        alpha=alpha,
        alpha_error=math.sqrt(alpha * (1 - alpha) / sums.tested) if alpha is not None else None,
        tokens_per_step=sums.tokens / n,
        drafted_per_step=sums.drafted / n,
        draft_ms=sums.draft_ms / n,
        verify_ms=sums.verify_ms / n,
        overhead_ms=max(0.0, sums.total_ms - sums.draft_ms - sums.verify_ms) / n,
        total_ms=sums.total_ms / n,
        plain=plain,
        usual_length=usual,
        cost=sums.draft_ms / sums.drafted / plain.forward_ms if sums.drafted else None,
        verify_cost=statistics.median(times) / plain.forward_ms if times else None,
        speedup=sums.tokens * plain.total_ms / sums.total_ms,
        what_ifs=_what_ifs(sums, plain),
    )


def _what_ifs(sums: StepSums, plain: PlainStep) -> tuple[WhatIf, ...]:
    if not sums.num_blocks:
        return ()
    n, tokens, total = sums.num_steps, sums.tokens, sums.total_ms
    overhead = total - sums.draft_ms - sums.verify_ms

    def speedup(tokens: float, milliseconds: float) -> float:
        return tokens * plain.total_ms / milliseconds if milliseconds > 0 else math.inf

    found = [
        WhatIf(Limit.ACCEPTANCE, speedup(max(tokens, n + sums.drafted), total)),
        WhatIf(Limit.DRAFT, speedup(tokens, total - sums.draft_ms)),
        WhatIf(Limit.VERIFY, speedup(tokens, total - max(0.0, sums.verify_ms - n * plain.forward_ms))),
        # Plain decoding samples and keeps books as well: what counts is what a step takes beyond that.
        WhatIf(Limit.OVERHEAD, speedup(tokens, total - max(0.0, overhead - n * plain.overhead_ms))),
    ]
    if 1 - sums.num_blocks / n >= LEAST_UNDRAFTED:
        found.append(WhatIf(Limit.UNDRAFTED, speedup(sums.block_tokens, sums.block_ms)))
    return tuple(sorted(found, key=lambda what_if: -what_if.speedup))


LONGEST_LOOKUP = 3
"""Tokens that are looked up first, as prompt lookup does unless told otherwise."""


class VerifyCurve:
    """v(n), the time to score n positions / the time to score one: 1 at n = 1, measured where blocks of that length
    ran, on the line between two such, and beyond the longest as steep as from the first to it."""

    def __init__(self, sums: StepSums, forward_ms: float) -> None:
        self._points = [(1, 1.0)]
        for length in sorted(sums.verify_by_length):
            times = sums.verify_by_length[length]
            if len(times) >= LEAST_TIMED:
                # Scoring more never takes less: where it seems to, a slow moment is to blame.
                cost = max(self._points[-1][1], statistics.median(times) / forward_ms)
                self._points.append((length + 1, cost))

    @property
    def longest(self) -> int:
        """The longest K that was measured; 0 if none was."""
        return self._points[-1][0] - 1

    def __call__(self, positions: int) -> float:
        """v(positions)."""
        for left, right in itertools.pairwise(self._points):
            if positions <= right[0]:
                return left[1] + (right[1] - left[1]) * (positions - left[0]) / (right[0] - left[0])
        first, last = self._points[0], self._points[-1]
        slope = (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0
        return last[1] + slope * (positions - last[0])


def tokens_per_block(sums: StepSums, num_draft_tokens: int) -> float:
    """Tokens that a block of this length emits: as blocks at least so long did, place by place.

    Acceptance differs from place to place and from text to text, so that the shares of the blocks that were kept so
    far say more than alpha^i; beyond the places that were seen often enough, each further token stands with alpha.
    """
    alpha = sums.accepted / sums.tested if sums.tested else 0.0
    total = survival = 1.0
    for position in range(num_draft_tokens):
        if position >= len(sums.reached) or sums.reached[position] < LEAST_BLOCKS:
            # 1 + alpha + … + alpha^m, less the 1 that is counted already.
            return total + survival * (expected_tokens(alpha, num_draft_tokens - position) - 1.0)
        survival = sums.kept[position] / sums.reached[position]
        total += survival
    return total


@dataclass(frozen=True, slots=True)
class LengthForecast:
    """The K that pays most, and what it would have reached; both in the run's own measure."""

    num_draft_tokens: int
    speedup: float
    is_within: bool
    """Whether K is no longer than what ran; behind that, the cost of scoring is a line drawn on."""


def best_length(sums: StepSums, diagnosis: Diagnosis) -> LengthForecast | None:
    """The best K from 1 to twice the longest that ran; None where nothing tells.

    The model's speedup is scaled so that it meets what was measured at the run's own K.
    """
    own = diagnosis.usual_length
    curve = VerifyCurve(sums, diagnosis.plain.forward_ms)
    if not (diagnosis.is_enough and own and curve.longest and sums.reached):
        return None
    speedups = {k: _model(sums, diagnosis, curve, k) for k in range(1, min(2 * curve.longest, MAX_DRAFT_TOKENS) + 1)}
    if own not in speedups:
        return None
    best = max(speedups, key=lambda k: (speedups[k], -k))
    scale = diagnosis.speedup / speedups[own]
    return LengthForecast(best, scale * speedups[best], best <= curve.longest)


def _model(sums: StepSums, diagnosis: Diagnosis, curve: VerifyCurve, num_draft_tokens: int) -> float:
    drafting = sums.num_blocks / sums.num_steps
    plain = diagnosis.plain
    draft_ms = num_draft_tokens * sums.draft_ms / sums.drafted
    block_ms = draft_ms + plain.forward_ms * curve(num_draft_tokens + 1)
    tokens = drafting * tokens_per_block(sums, num_draft_tokens) + (1 - drafting)
    total_ms = drafting * block_ms + (1 - drafting) * plain.forward_ms + diagnosis.overhead_ms
    return tokens * plain.total_ms / total_ms


@dataclass(frozen=True, slots=True)
class LookupForecast:
    """What prompt lookup would have kept of a text: in `num_steps` steps, `num_accepted` of `num_drafted` tokens."""

    num_steps: int
    num_drafted: int
    num_accepted: int
    speedup: float


def forecast_lookup(
    prompt: Sequence[int], emitted: Sequence[int], sums: StepSums, diagnosis: Diagnosis
) -> LookupForecast | None:
    """Replay the run's own text with prompt lookup: a token that it would have proposed there, and that was emitted.

    That is no guess at the law: prompt lookup is accepted with the target's probability of its token, which is how
    often the text has it.
    """
    if not emitted:
        return None
    length = diagnosis.usual_length or 4
    curve = VerifyCurve(sums, diagnosis.plain.forward_ms)
    ids, place = [*prompt, *emitted], len(prompt)
    index = _LookupIndex(ids)
    steps = drafted = accepted = 0
    total_ms = 0.0
    while place < len(ids):
        found = index.continuation(place, length)
        kept = next((i for i, token in enumerate(found) if ids[place + i : place + i + 1] != [token]), len(found))
        steps, drafted, accepted = steps + 1, drafted + len(found), accepted + kept
        total_ms += diagnosis.plain.forward_ms * curve(len(found) + 1) + diagnosis.overhead_ms
        place += kept + 1
    return LookupForecast(steps, drafted, accepted, len(emitted) * diagnosis.plain.total_ms / total_ms)


class _LookupIndex:
    """Where each n-gram of a text continued the last time; knows no more of the text than it is asked to go on from."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._continuations: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def continuation(self, place: int, length: int) -> Sequence[int]:
        """What followed the tokens before `place`, up to `length` of it; empty where they are new."""
        for end in range(self._num_indexed, place - 1):
            for size in range(1, min(LONGEST_LOOKUP, end + 1) + 1):
                self._continuations[tuple(self._ids[end + 1 - size : end + 1])] = end + 1
        self._num_indexed = max(self._num_indexed, place - 1)
        for size in range(min(LONGEST_LOOKUP, place), 0, -1):
            begin = self._continuations.get(tuple(self._ids[place - size : place]))
            if begin is not None:
                return self._ids[begin : min(begin + length, place)]
        return ()


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
