"""The run and its plain baseline on one clock: who has written how much at any moment, and where the speedup is from.

Both clocks start when the prompt has been read, which costs either run the same, and count the steps' own times as
they were measured, one run after the other.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from app.run.run_view import RunView
from core.types import Coupling, Step, TokenKind

STEPS_PER_PIECE = 500
"""About a millisecond's work."""

SAME = "Same text, token for token."
SAME_LAW = "The texts differ, as two draws do; both follow the target's own distribution."
MOVED = "The temperature was moved during the run; the baseline ran with the last one, so that the texts may differ."


@dataclass(slots=True)
class Timeline:
    """When a run had written how many tokens. Grows by `extend`; a step's tokens are there when it ends.

    Attributes:
        ends_ms: when each step ended.
        counts: tokens written by then.
    """

    ends_ms: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def extend(self, steps: Sequence[Step]) -> None:
        """Add steps behind those that are there."""
        end, count = self.end_ms, self.num_tokens
        for step in steps:
            # A damaged log may lack a time; a step without one takes none.
            end += step.total_ms if 0.0 <= step.total_ms < math.inf else 0.0
            count += len(step.emitted)
            self.ends_ms.append(end)
            self.counts.append(count)

    @property
    def end_ms(self) -> float:
        """When the last step ended; 0 before the first."""
        return self.ends_ms[-1] if self.ends_ms else 0.0

    @property
    def num_tokens(self) -> int:
        """All tokens so far."""
        return self.counts[-1] if self.counts else 0

    def tokens_at(self, clock_ms: float) -> int:
        """How many tokens were written by then."""
        steps = bisect_right(self.ends_ms, clock_ms)
        return self.counts[steps - 1] if steps else 0


@dataclass(slots=True)
class Runner:
    """One of the two: its tokens, and when they came. Grows by `extend`.

    Attributes:
        temperatures: all that its steps had.
    """

    timeline: Timeline = field(default_factory=Timeline)
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    temperatures: set[float] = field(default_factory=set)

    def extend(self, steps: Sequence[Step]) -> None:
        """Add steps behind those that are there."""
        self.timeline.extend(steps)
        for step in steps:
            self.ids.extend(step.emitted)
            self.texts.extend(step.emitted_texts)
            self.kinds.extend(step.emitted_kinds)
            self.temperatures.add(step.temperature)

    @property
    def step_ms(self) -> float:
        """What its steps took on average; there must be some."""
        return self.timeline.end_ms / len(self.timeline.ends_ms)


@dataclass(frozen=True, slots=True)
class Standing:
    """Both at one moment of the clock: tokens written, and whether all are."""

    ours: int
    plain: int
    ours_finished: bool
    plain_finished: bool

    @property
    def lead(self) -> int:
        """Tokens that the speculative run is ahead; negative where it is behind."""
        return self.ours - self.plain


class Race:
    """A run that is over, beside its baseline. Never changes."""

    def __init__(self, ours: Runner, plain: Runner, *, coupling: Coupling, speedup: float | None) -> None:
        """Take both; each must have some steps.

        Args:
            coupling: how the run's draft and target shared their randomness.
            speedup: what was measured; None where the baseline did not come to its end.
        """
        self.ours = ours
        self.plain = plain
        self.speedup = speedup
        self.duration_ms = max(ours.timeline.end_ms, plain.timeline.end_ms)
        self._is_moved = len(ours.temperatures) > 1
        self._is_repeatable = coupling is Coupling.GUMBEL or ours.temperatures == {0.0}

    def at(self, clock_ms: float) -> Standing:
        """Where both are."""
        ours, plain = self.ours.timeline, self.plain.timeline
        return Standing(
            ours.tokens_at(clock_ms),
            plain.tokens_at(clock_ms),
            clock_ms >= ours.end_ms,
            clock_ms >= plain.end_ms,
        )

    @property
    def block_efficiency(self) -> float:
        """Tokens of the speculative run for each forward of the target."""
        return self.ours.timeline.num_tokens / len(self.ours.timeline.ends_ms)

    @property
    def step_cost(self) -> float | None:
        """How many times a plain step a step of the speculative run took, on average."""
        return self.ours.step_ms / self.plain.step_ms if self.plain.step_ms else None

    @property
    def source(self) -> str:
        """Where the speedup is from, in one sentence with its numbers."""
        cost = self.step_cost
        if self.speedup is None or not cost:
            count = self.plain.timeline.num_tokens
            return f"The baseline was stopped after {tokens_text(count)}, so that no speedup was measured."
        times = f"{self.ours.step_ms:.1f} ms against {self.plain.step_ms:.1f} ms"
        return (
            f"{self.block_efficiency:.2f} tokens for each forward of the target, in steps that take {cost:.2f} times "
            f"as long as a plain one ({times}): {self.block_efficiency:.2f} / {cost:.2f} = {self.speedup:.2f}×."
        )

    @property
    def texts(self) -> str:
        """How the two texts compare, in one sentence."""
        ours, plain = self.ours.ids, self.plain.ids
        shared = min(len(ours), len(plain))
        differs = next((i for i in range(shared) if ours[i] != plain[i]), None)
        if differs is None and len(ours) == len(plain):
            return SAME
        if differs is None and self.speedup is None:
            return f"Same text, token for token, as far as the baseline came: {tokens_text(shared)}."
        if self._is_moved:
            return MOVED
        if not self._is_repeatable:
            return SAME_LAW
        # What must be equal differs by rounding alone: one forward over K + 1 places adds up in another order.
        return f"The texts part at token {shared + 1 if differs is None else differs + 1}: rounding decided a near-tie."

    def lead_text(self, clock_ms: float) -> str:
        """Who is ahead at a moment, in a few words."""
        standing = self.at(clock_ms)
        if standing.ours_finished and standing.plain_finished:
            gap = self.plain.timeline.end_ms - self.ours.timeline.end_ms
            who = "Speculative" if gap >= 0 else "The baseline"
            return f"{who} was done {seconds_text(abs(gap))} earlier"
        if not standing.lead:
            return "Level"
        who = "Speculative" if standing.lead > 0 else "The baseline"
        return f"{who} is {tokens_text(abs(standing.lead))} ahead"


def tokens_text(count: int) -> str:
    """1 token, 1,200 tokens."""
    return f"{count:,} token{'' if count == 1 else 's'}"


def seconds_text(milliseconds: float) -> str:
    """A time as a person reads it: 84 ms, 1.25 s, 74.1 s."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.2f} s" if milliseconds < 59_995 else f"{milliseconds / 1000:.1f} s"


def making_race(run: RunView) -> Generator[None, None, Race | None]:
    """The race of a run that is over, made in pieces; None where it has no baseline to run against."""
    if run.summary is None or not run.steps or not run.baseline_steps:
        return None
    coupling = Coupling.REJECTION if run.request is None else run.request.coupling
    speedup = run.summary.measured_speedup
    # Of their own: the view may be given another run before all of this one is taken.
    ours, plain = tuple(run.steps), tuple(run.baseline_steps)
    return Race(
        (yield from _making_runner(ours)), (yield from _making_runner(plain)), coupling=coupling, speedup=speedup
    )


def _making_runner(steps: Sequence[Step]) -> Generator[None, None, Runner]:
    runner = Runner()
    for begin in range(0, len(steps), STEPS_PER_PIECE):
        runner.extend(steps[begin : begin + STEPS_PER_PIECE])
        yield
    return runner


def waiting_text(run: RunView, *, is_running: bool) -> str:
    """Why there is no race, and what to do for one."""
    wants_baseline = run.request is not None and run.request.baseline
    if is_running and wants_baseline:
        return "The run is on its way. When its baseline is measured, the two can be replayed here side by side."
    what = "This run measures no baseline to race against." if is_running else "No race yet."
    return f"{what} Run with “Measure the baseline” ticked: the two are then replayed here side by side, on one clock."
