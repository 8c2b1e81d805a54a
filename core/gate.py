"""Where a run waits between its steps: paused, step by step, or in slow motion. At full speed nothing waits."""

from __future__ import annotations

import threading
import time

LOOK_MS = 400.0
"""How long a draft stays without its verdict in step mode, so that a person sees both."""


class StepGate:
    """Passed by the engine's thread before each step; opened and closed from any other."""

    def __init__(self, cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._changed = threading.Condition()
        self._is_paused = False
        self._num_allowed = 0
        self._delay_s = 0.0
        self._passed_at = -float("inf")

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def is_watched(self) -> bool:
        """Whether a person follows the single steps: paused, or slowed down."""
        return self._is_paused or self._delay_s > 0

    def pause(self) -> None:
        """Hold the run before its next step."""
        with self._changed:
            self._is_paused, self._num_allowed = True, 0

    def resume(self) -> None:
        """Let the run go on."""
        with self._changed:
            self._is_paused, self._num_allowed = False, 0
            self._changed.notify_all()

    def step_once(self) -> None:
        """Let one more step pass, and hold the run after it. Steps asked for meanwhile add up."""
        with self._changed:
            self._is_paused = True
            self._num_allowed += 1
            self._changed.notify_all()

    def set_delay(self, milliseconds: float) -> None:
        """Begin steps at least this far apart; 0 is full speed."""
        with self._changed:
            self._delay_s = max(0.0, milliseconds / 1000)
            self._changed.notify_all()

    def wake(self) -> None:
        """Have whoever waits look again, such as after a cancel."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_step(self, *, may_block: bool = True) -> bool:
        """Return when the next step may begin, or when the run was cancelled.

        Args:
            may_block: otherwise, return at once.

        Returns:
            False where the next step may not begin yet, which takes a call that may not block.
        """
        if not self.is_watched:
            return True
        with self._changed:
            while not self._cancelled.is_set():
                if self._is_paused:
                    if self._num_allowed:
                        self._num_allowed -= 1
                        break
                    if not may_block:
                        return False
                    self._changed.wait()
                else:
                    left = self._passed_at + self._delay_s - time.monotonic()
                    if left <= 0:
                        break
                    if not may_block:
                        return False
                    self._changed.wait(left)
            self._passed_at = time.monotonic()
        return True

    def wait_to_look(self) -> None:
        """Return when a draft was seen for long enough; at once when nobody follows any more, or after a cancel."""
        with self._changed:
            look_s = LOOK_MS / 1000
            if not self._is_paused:
                look_s = min(look_s, self._delay_s / 2)
            self._changed.wait_for(lambda: self._cancelled.is_set() or not self.is_watched, look_s)
