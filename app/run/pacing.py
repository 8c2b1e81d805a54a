"""The pace at which a run is shown. Only the display is slowed: the engine runs at full speed, which is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import Enum

from core.types import Drafted, Event, RunStarted, Step

QUIET_S = 1.0
"""The longest that a slowed run's start is held back: painting takes time from the engine, which is being measured."""


class Pace(Enum):
    """How fast a run is shown: its title, and the tokens shown per second; 0 if they are shown as they come."""

    FULL = "Full speed", 0.0
    SLOWED = "8 tokens/s", 8.0
    SLOWER = "2 tokens/s", 2.0
    STEPWISE = "Step by step", 0.0
    HALVES = "Draft, verify", 0.0

    def __init__(self, title: str, tokens_per_second: float) -> None:
        self.title, self.tokens_per_second = title, tokens_per_second

    @property
    def is_stepwise(self) -> bool:
        """Whether the user asks for each step, or half of one."""
        return self in {Pace.STEPWISE, Pace.HALVES}


class Pacing:
    """Passes a run's events on when they are due: a slowed step follows its draft, and both follow the step before.

    Attributes:
        tokens_per_second: the pace; 0 is full speed.
        is_paused: whether steps wait for `step_once`.
    """

    def __init__(self) -> None:
        self.tokens_per_second = 0.0
        self.begin()

    def begin(self, *, is_measured: bool = False) -> None:
        """Another run starts: forget the last one.

        Args:
            is_measured: whether the engine runs it now; a slowed one is then shown once `engine_ended` was called, or
                after `QUIET_S`.
        """
        self.is_paused = self._is_hurried = False
        self._is_measured = is_measured
        self._num_allowed = 0
        self._held: Step | RunStarted | None = None
        """The step whose draft is on screen, or the start of a run that is being measured."""
        self._due_s = 0.0

    @property
    def is_slow(self) -> bool:
        """Whether steps are held back."""
        return (self.tokens_per_second > 0 or self.is_paused) and not self._is_hurried

    @property
    def is_behind(self) -> bool:
        """Whether an event waits to be shown."""
        return self._held is not None

    def pause(self) -> None:
        """Hold the next step back."""
        self.is_paused, self._num_allowed = True, 0

    def resume(self) -> None:
        """Continue at the pace."""
        self.is_paused = False

    def step_once(self) -> None:
        """Pass one more step on, then pause. Steps requested meanwhile add up."""
        self.is_paused = True
        self._num_allowed += 1

    def hurry(self) -> None:
        """Pass the rest of this run on at once."""
        self.is_paused, self._is_hurried = False, True

    def engine_ended(self) -> None:
        """The engine is done with this run, so its start need not wait any longer."""
        self._is_measured = False
        if isinstance(self._held, RunStarted):
            self._due_s = 0.0

    def due(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events that are due now; the others stay in the iterator. It may be closed early."""
        while True:
            if self._held is None:
                event = next(events, None)
                if event is None:
                    return
                may_wait = self.is_slow and (self._is_measured or not isinstance(event, RunStarted))
                if not may_wait or not isinstance(event, Step | RunStarted):
                    yield event
                    continue
                self._hold(event)
                if isinstance(event, Step) and event.drafted:
                    yield Drafted(event.index, event.position, event.drafted, event.drafted_texts, event.parents)
            if not self._may_pass():
                return
            event, self._held = self._held, None
            assert event is not None, "held above"
            yield event

    def _hold(self, event: Step | RunStarted) -> None:
        seconds = QUIET_S
        if isinstance(event, Step):
            seconds = len(event.emitted) / self.tokens_per_second if self.tokens_per_second else 0.0
        self._held, self._due_s = event, max(self._due_s, time.monotonic()) + seconds

    def _may_pass(self) -> bool:
        if not self.is_slow:
            return True
        if self.is_paused and isinstance(self._held, Step):
            self._num_allowed, is_allowed = max(0, self._num_allowed - 1), self._num_allowed > 0
            return is_allowed
        return time.monotonic() >= self._due_s
