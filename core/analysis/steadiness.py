"""How steady the machine was while something was measured, and how sure a measured speedup is.

Forwards that do the same work take the same time on a quiet machine. On a busy one they don't, and a run and its
baseline may each meet another machine.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

import psutil

from core.analysis.expectation import Z95, t95
from core.runlog.tally import COLUMNS, Tally
from core.text import percent_text
from core.types import Summary

BUSY = 0.5
"""A larger spread of equal forwards is no longer the engine's own: on a quiet machine it is .1 to .3."""
STEPWISE = (
    "The steps were taken one by one, so their times say nothing about speed: run again at full speed or at a slower "
    "pace."
)
REPEAT_WHEN_IDLE = "Repeat the run when the machine is idle."
BUSY_MACHINE = "The machine was busy: "
"""How a note about a busy machine begins."""
SHIFT = 1.3
"""The same for equal forwards of different moments, slow / fast."""
CEILING = 1.05
"""A speedup of more than this times the tokens per forward can't be: no step is faster than a plain one."""

_OTHERS = 0.15
"""Share of the processors' time above which other programs disturb a measurement."""
_TICKS_S = 0.05
"""Processor seconds by which the system's clocks may be wrong."""
_PROCESSOR_TIMES = ("user", "nice", "system", "irq", "softirq", "steal")
_FEWEST = 8
_BLOCKS = 16
"""Neighbouring steps are alike, so they are resampled together, in about this many blocks."""
_DRAFTED, _EMITTED, _VERIFY_MS, _TOTAL_MS = map(COLUMNS.index, ("drafted", "emitted", "verify_ms", "total_ms"))


class OtherPrograms:
    """Watches, from its creation on, how much processor time other programs use."""

    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), _seconds_of_others()

    @property
    def disturb(self) -> bool:
        """Whether they use so much that short measurements can't be trusted."""
        all_s = (time.perf_counter() - self._began) * (psutil.cpu_count() or 1)
        return _seconds_of_others() - self._used > _OTHERS * all_s + _TICKS_S


def _seconds_of_others() -> float:
    """Processor seconds since the start of the machine, of other programs and of other virtual machines."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in _PROCESSOR_TIMES) - time.process_time()


def spread_of(times: Sequence[float]) -> float | None:
    """(Ninth decile - first decile) / median of the times of equal work; None for fewer than 8.

    A text that grows slows its steps down evenly, which doesn't count.
    """
    middle = statistics.median(times) if len(times) >= _FEWEST else 0.0
    if not middle > 0:
        return None
    places = range(len(times))
    try:
        slope = statistics.linear_regression(places, times).slope
    except (OverflowError, ValueError):
        slope = math.inf  # A damaged log may hold times near the largest float.
    deciles = statistics.quantiles([time - slope * place for place, time in zip(places, times, strict=True)], n=10)
    spread = (deciles[-1] - deciles[0]) / middle
    return spread if math.isfinite(spread) else None


def unsteadiness(*runs: Tally) -> float | None:
    """The spread of the times of each run's steps with its usual number of drafted tokens; the largest of all runs."""
    spreads = []
    for run in runs:
        rows = run.table().tolist()
        lengths = [row[_DRAFTED] for row in rows]
        usual = statistics.mode(lengths) if lengths else 0
        spreads.append(spread_of([row[_TOTAL_MS] for row in rows if row[_DRAFTED] == usual]))
    return max((spread for spread in spreads if spread is not None), default=None)


def spread_text(spread: float) -> str:
    """How far equal steps were apart, and from when on the machine counts as busy, in a sentence's second half."""
    # What counts as busy must not be rounded to what doesn't.
    shown = max(spread, BUSY + 0.01) if spread > BUSY else spread
    return f"steps with the same work varied in time by {percent_text(shown)} (busy: above {percent_text(BUSY)})."


def absence_note(run: Tally, baseline: Tally) -> str:
    """A sentence about time in which the machine slept; empty if it didn't."""
    absent_s = (run.absent_ms + baseline.absent_ms) / 1e3
    note = f"The machine slept, or Outrider was suspended, for {absent_s:.1f} s; no figure includes this time."
    return note if absent_s else ""


def busy_note(run: Tally, baseline: Tally, summary: Summary) -> str:
    """A sentence about a run beside its baseline if the machine was busy; empty if not, or if there are few steps.

    The steps of a server are far from equal even if nothing else runs: others use it, and a network lies between.
    Nor are steps that were taken one by one.
    """
    if summary.source is not None or summary.was_stepped:
        return ""
    found = unsteadiness(run, baseline)
    if found is not None and found > BUSY:
        return f"{BUSY_MACHINE}{spread_text(found)} {REPEAT_WHEN_IDLE}"
    plain = [row[_VERIFY_MS] for row in baseline.table().tolist()][:_BLOCKS]
    before, after = summary.target_step_ms, statistics.median(plain) if len(plain) >= _FEWEST else None
    same_threads = summary.num_threads == summary.baseline_num_threads
    if before and after and same_threads and max(before / after, after / before) > SHIFT:
        return (
            f"{BUSY_MACHINE}one forward of the target took {before:.1f} ms in the run and {after:.1f} ms "
            f"in its baseline. {REPEAT_WHEN_IDLE}"
        )
    speedup, tokens = summary.measured_speedup, summary.block_efficiency
    return impossible_note(speedup, tokens) if speedup and tokens else ""


def impossible_note(speedup: float, tokens_per_forward: float) -> str:
    """A sentence about a speedup above its ceiling, the tokens per forward of the target; empty for any other."""
    if speedup <= CEILING * tokens_per_forward:
        return ""
    return (
        f"At {tokens_per_forward:.2f} tokens per forward of the target, {speedup:.2f}× is impossible: the machine was "
        "probably busy during the baseline."
    )


def speedup_interval(run: Tally, baseline: Tally) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of a run's tokens per second / its baseline's; None where there are few steps.

    It covers what varied within the two, and not a machine that was faster in one of them: see `busy_note`.
    """
    import numpy as np  # Late: the terminal reads no numpy before a run.

    from core.analysis.theory import INTERVAL, SEED, resampled

    rates, num_blocks = [], _BLOCKS
    for number, tally in enumerate((run, baseline)):
        if tally.num_steps < _FEWEST:
            return None
        table = tally.table()[:, [_EMITTED, _TOTAL_MS]]
        blocks = np.array([part.sum(0) for part in np.array_split(table, min(_BLOCKS, len(table)))])
        num_blocks = min(num_blocks, len(blocks))
        every = np.ones((1, len(blocks)))
        weights = np.concatenate([every, *resampled(len(blocks), np.random.default_rng(SEED + number))])
        tokens, times_ms = (weights @ blocks).T
        with np.errstate(divide="ignore", invalid="ignore"):
            rates.append(tokens / times_ms)
    # Percentiles take the variance of a few blocks for that of all, and know no Student's t.
    widening = t95(num_blocks - 1) / Z95 * math.sqrt(num_blocks / (num_blocks - 1))
    with np.errstate(all="ignore"):
        speedups = rates[0] / rates[1]
        low, high = (speedups[0] * (np.percentile(speedups[1:], INTERVAL) / speedups[0]) ** widening).tolist()
    return (low, high) if 0 < low <= high < np.inf else None


def covers_one(interval: tuple[float, float]) -> bool:
    """Whether an interval of a speedup includes 1, as it is shown."""
    return round(interval[0], 2) <= 1 <= round(interval[1], 2)


def interval_text(interval: tuple[float, float] | None) -> str:
    """An interval in words, such as "1.31 to 1.55"; empty for None."""
    return "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
