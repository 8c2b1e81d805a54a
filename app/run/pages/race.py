"""View model of the race: the run and its plain baseline on one clock, and the source of the speedup.

Both clocks start after the prefill and sum the steps' own times.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.run.run_counts import Timeline
from app.run.run_view import RunView
from core.settings import Coupling
from core.types import Step

SAME = "Same text, token for token."
SAME_DISTRIBUTION = "The texts differ because they are two random draws; both follow the target's own distribution."
MOVED = "The temperature was changed during the run; the baseline ran with the last one, so the texts may differ."


class Race:
    """A finished run and its baseline, each with at least one step.

    Attributes:
        timeline, baseline_timeline: tokens over time.
        speedup: as measured; None if the baseline was stopped.
        duration_ms: time until the slower one is done.
    """

    def __init__(
        self, steps: Sequence[Step], baseline_steps: Sequence[Step], *, coupling: Coupling, speedup: float | None
    ) -> None:
        self.timeline, self.baseline_timeline = Timeline(), Timeline()
        for timeline, run_steps in ((self.timeline, steps), (self.baseline_timeline, baseline_steps)):
            for step in run_steps:
                timeline.add(step)
        self.speedup = speedup
        self.duration_ms = max(self.timeline.end_ms, self.baseline_timeline.end_ms)
        temperatures = {step.temperature for step in steps}
        self._is_moved = len(temperatures) > 1
        self._is_repeatable = coupling is Coupling.GUMBEL or temperatures == {0.0}
        self._ids = [token for step in steps for token in step.emitted]
        self._baseline_ids = [token for step in baseline_steps for token in step.emitted]

    @property
    def source(self) -> str:
        """The source of the speedup, in one sentence with its numbers."""
        ours, plain = (line.end_ms / len(line.ends_ms) for line in (self.timeline, self.baseline_timeline))
        if self.speedup is None or not ours or not plain:
            count = self.baseline_timeline.num_tokens
            return f"The baseline was stopped after {tokens_text(count)}, so no speedup was measured."
        efficiency, cost = self.timeline.num_tokens / len(self.timeline.ends_ms), ours / plain
        return (
            f"{efficiency:.2f} tokens per forward of the target, in steps that take {cost:.2f} times as long as a "
            f"plain one ({ours:.1f} ms against {plain:.1f} ms): {efficiency:.2f} / {cost:.2f} = {self.speedup:.2f}×."
        )

    @property
    def texts(self) -> str:
        """How the two texts compare, in one sentence."""
        ours, plain = self._ids, self._baseline_ids
        shared = min(len(ours), len(plain))
        differs = next((i for i in range(shared) if ours[i] != plain[i]), None)
        if differs is None and len(ours) == len(plain):
            return SAME
        if differs is None and self.speedup is None:
            return f"Same text, token for token, as far as the baseline got: {tokens_text(shared)}."
        if self._is_moved:
            return MOVED
        if not self._is_repeatable:
            return SAME_DISTRIBUTION
        # Such texts can differ only by rounding: a forward over K + 1 positions sums in another order.
        return f"The texts part at token {shared + 1 if differs is None else differs + 1}: rounding decided a near-tie."

    def lead_text(self, clock_ms: float) -> str:
        """Which run is ahead at a time, in a few words."""
        ours, plain = self.timeline, self.baseline_timeline
        if clock_ms >= self.duration_ms:
            gap = plain.end_ms - ours.end_ms
            who = "Speculative" if gap >= 0 else "The baseline"
            return f"{who} finished {seconds_text(abs(gap))} earlier"
        lead = ours.tokens_at(clock_ms) - plain.tokens_at(clock_ms)
        if not lead:
            return "Level"
        return f"{'Speculative' if lead > 0 else 'The baseline'} is {tokens_text(abs(lead))} ahead"


def tokens_text(count: int) -> str:
    """1 token, 1,200 tokens."""
    return f"{count:,} token{'' if count == 1 else 's'}"


def seconds_text(milliseconds: float) -> str:
    """A readable time: 84 ms, 1.25 s, 74.1 s."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.2f} s" if milliseconds < 59_995 else f"{milliseconds / 1000:.1f} s"


def race_of(run: RunView) -> Race | None:
    """The race of a finished run; None if it has no baseline."""
    if run.summary is None or not run.steps or not run.baseline_steps:
        return None
    return Race(run.steps, run.baseline_steps, coupling=run.coupling, speedup=run.summary.measured_speedup)


def waiting_text(run: RunView, *, is_running: bool) -> str:
    """Why there is no race, and how to get one."""
    if is_running and run.wants_baseline:
        return "When the run and its baseline are done, the two can be replayed here side by side."
    what = "This run measures no baseline to race against." if is_running else "No race yet."
    return f"{what} Run with “Measure the baseline” ticked: the two are then replayed here side by side, on one clock."
