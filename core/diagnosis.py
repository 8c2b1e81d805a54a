"""Why a run was as fast as it was: where a step's time went, and what each part of it costs in speedup.

Everything is a mean over the run's own steps, against what a plain step takes here. A run that emits tau tokens in a
step of T milliseconds, where a plain step takes P, is tau P / T times as fast as plain decoding. With the draft at c,
scoring at v and the rest at o, all in plain forwards, that is tau / (K c + v + o): what `core.analysis` predicts, with
what the formula leaves out. Each limit is taken away alone, the rest left as it was; what is gained is what it costs.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from core.analysis import expected_accepted
from core.types import Step, Summary, TokenKind

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
