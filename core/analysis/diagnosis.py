"""What limits a run's speedup: the plain step it is compared with, and the cost of each limit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from core.analysis.expectation import expected_tokens
from core.runlog.tally import Tally
from core.settings import LONGEST_CHAIN
from core.types import Summary

Array = NDArray[np.float64]

LEAST_BLOCKS = 20
"""Fewest drafted blocks for a result that another run would confirm."""
LEAST_TIMED = 5
"""Fewest blocks of one length for a median scoring time."""
LEAST_UNDRAFTED = 0.1
"""Share of steps without a draft from which they are a limit of their own."""

KS = np.arange(LONGEST_CHAIN + 1, dtype=np.float64)
"""Every K considered; 0 is plain decoding."""


class Limit(StrEnum):
    """What can limit a run's speedup."""

    ACCEPTANCE = "acceptance"
    DRAFT = "draft"
    VERIFY = "verify"
    OVERHEAD = "overhead"
    UNDRAFTED = "undrafted"


@dataclass(frozen=True, slots=True)
class PlainStep:
    """The time of a plain decoding step.

    Attributes:
        forward_ms: the target's forward over one position; the unit of c and v.
        total_ms: the whole step.
        is_measured: whether the baseline ran to its end; else a part of it, or a forward timed before the run, is the
            estimate.
    """

    forward_ms: float
    total_ms: float
    is_measured: bool

    @property
    def is_one_forward(self) -> bool:
        """Whether a forward that was timed before the run stands for the whole step."""
        return not self.is_measured and self.total_ms == self.forward_ms

    @property
    def overhead_ms(self) -> float:
        """A plain step's time outside its forward."""
        return max(0.0, self.total_ms - self.forward_ms)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The speedup if one limit were removed and all else stayed the same."""

    limit: Limit
    speedup: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A run's summary statistics. Times are means over all steps, in milliseconds; what-ifs, the highest speedup first.

    alpha is accepted / tested tokens, cost is c, verify_cost v(K+1) of the most common K, speedup tau P / T. In a tree
    K counts nodes, a level is tested once, and a draft step drafts one of its levels. overhead_ms is the step minus
    drafting and the forward: filters, verification, bookkeeping.
    """

    num_steps: int
    num_blocks: int
    num_tested: int
    alpha: float | None
    alpha_error: float | None
    tokens_per_step: float
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    total_ms: float
    plain: PlainStep
    usual_length: int
    usual_depth: int
    is_tree: bool
    cost: float | None
    verify_cost: float | None
    speedup: float
    what_ifs: tuple[WhatIf, ...]

    @property
    def is_enough(self) -> bool:
        """Whether there are enough blocks for a verdict."""
        return self.num_blocks >= LEAST_BLOCKS

    @property
    def main_limit(self) -> WhatIf | None:
        """The main limit of the speedup; None if there is none that two decimals show, or too few blocks."""
        if not self.is_enough or not self.what_ifs or round(self.what_ifs[0].speedup, 2) <= round(self.speedup, 2):
            return None
        return self.what_ifs[0]

    @property
    def overhead_share(self) -> float:
        """(total - draft - verify) / total."""
        return self.overhead_ms / self.total_ms if self.total_ms else 0.0

    @property
    def verify_extra_ms(self) -> float:
        """Scoring time beyond a plain forward."""
        return max(0.0, self.verify_ms - self.plain.forward_ms)


def plain_step(baseline: Tally, target_step_ms: float | None, summary: Summary | None = None) -> PlainStep | None:
    """The time of plain decoding, from the baseline or else from a timed forward; None if neither is known.

    The summary has the baseline's speed where its steps are missing, as in a run read from its log. A baseline that did
    not finish only gives an estimate, if it got far enough: decoding slows down as the text grows.
    """
    is_whole = summary is None or summary.has_baseline
    if baseline.total_ms > 0 and baseline.tokens >= (1 if is_whole else LEAST_BLOCKS):
        total = baseline.total_ms / baseline.tokens
        # Older logs hold only the times of whole steps.
        forward = baseline.verify_ms / baseline.tokens or min(target_step_ms or total, total)
        return PlainStep(forward, total, is_whole)
    speed = summary.baseline_tokens_per_second if summary is not None else None
    if speed:
        total = 1000.0 / speed
        return PlainStep(min(target_step_ms or total, total), total, True)
    return PlainStep(target_step_ms, target_step_ms, False) if target_step_ms else None


def diagnose(sums: Tally, plain: PlainStep | None) -> Diagnosis | None:
    """Diagnose a run; None where it has no steps, or nothing to compare it with."""
    if not sums.num_steps or plain is None or not (sums.total_ms > 0 and plain.forward_ms > 0):
        return None
    n = sums.num_steps
    alpha = sums.alpha
    times = sums.verify_by_length.get(sums.usual_length)
    return Diagnosis(
        num_steps=n,
        num_blocks=sums.num_blocks,
        num_tested=sums.tested,
        alpha=alpha,
        alpha_error=math.sqrt(alpha * (1 - alpha) / sums.tested) if alpha is not None else None,
        tokens_per_step=sums.tokens / n,
        draft_ms=sums.draft_ms / n,
        verify_ms=sums.verify_ms / n,
        overhead_ms=max(0.0, sums.total_ms - sums.draft_ms - sums.verify_ms) / n,
        total_ms=sums.total_ms / n,
        plain=plain,
        usual_length=sums.usual_length,
        usual_depth=sums.usual_depth,
        is_tree=sums.is_tree,
        cost=None if sums.level_ms is None else sums.level_ms / plain.forward_ms,
        verify_cost=statistics.median(times) / plain.forward_ms if times else None,
        speedup=sums.tokens * plain.total_ms / sums.total_ms,
        what_ifs=_what_ifs(sums, plain),
    )


def _what_ifs(sums: Tally, plain: PlainStep) -> tuple[WhatIf, ...]:
    if not sums.num_blocks:
        return ()
    n, tokens, total = sums.num_steps, sums.tokens, sums.total_ms
    overhead = total - sums.draft_ms - sums.verify_ms

    def speedup(tokens: float, milliseconds: float) -> float:
        return tokens * plain.total_ms / milliseconds if milliseconds > 0 else math.inf

    found = [
        WhatIf(Limit.ACCEPTANCE, speedup(max(tokens, n + sums.levels), total)),
        WhatIf(Limit.DRAFT, speedup(tokens, total - sums.draft_ms)),
        WhatIf(Limit.VERIFY, speedup(tokens, total - max(0.0, sums.verify_ms - n * plain.forward_ms))),
        # Plain decoding has overhead too: only the excess counts.
        WhatIf(Limit.OVERHEAD, speedup(tokens, total - max(0.0, overhead - n * plain.overhead_ms))),
    ]
    if 1 - sums.num_blocks / n >= LEAST_UNDRAFTED:
        found.append(WhatIf(Limit.UNDRAFTED, speedup(sums.block_tokens, sums.block_ms)))
    return tuple(sorted(found, key=lambda what_if: -what_if.speedup))


def verify_over_k(lengths: Sequence[int], costs: Array, ks: Array = KS) -> Array:
    """(b, 17) v(K+1) from (b, m) costs measured at m lengths K, or for other `ks`.

    Linear between the measured lengths and v(1) = 1, and beyond the longest; more positions never cost less.
    """
    xs = np.array([0.0, *lengths])
    ys = np.maximum.accumulate(np.concatenate((np.ones((len(costs), 1)), costs), 1), 1)
    if len(xs) == 1:
        return np.ones((len(costs), len(ks)))
    beyond = ys[:, -1:] + (ys[:, -1:] - 1.0) / xs[-1] * (ks - xs[-1])
    return np.where(xs[-1] < ks, beyond, [np.interp(ks, xs, row) for row in ys])


def verify_costs(sums: Tally, forward_ms: float) -> tuple[list[float], int]:
    """v(K+1) for K from 0 to 16 as a run's blocks were scored, and the longest K that was measured; 0 if none was."""
    measured = {k: times for k, times in sorted(sums.verify_by_length.items()) if len(times) >= LEAST_TIMED}
    costs = np.array([[statistics.median(times) / forward_ms for times in measured.values()]]).reshape(1, -1)
    return verify_over_k(list(measured), costs)[0].tolist(), max(measured, default=0)


def tokens_per_block(sums: Tally, num_draft_tokens: int) -> float:
    """Tokens that a block of K is expected to emit, from the acceptance of the tokens tested at each position.

    Beyond the positions that were drafted often enough, each further token is accepted with alpha.
    """
    positions = sums.positions
    total = survival = 1.0
    for position in range(num_draft_tokens):
        if position >= len(positions) or positions.drafted[position] < LEAST_BLOCKS:
            # 1 + alpha + … + alpha^m, less the 1 that is counted already.
            return total + survival * (expected_tokens(sums.alpha or 0.0, num_draft_tokens - position) - 1.0)
        survival *= positions.of_tested(position) or 0.0
        total += survival
    return total
