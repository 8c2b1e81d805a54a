"""How often the window draws a run that goes, by what drawing takes and what the engine has to spare."""

from __future__ import annotations

import time
from collections.abc import Callable

FRAME_MS = 33
MAX_SHARE = 0.15
"""Most of one processor that drawing may take; beyond it frames come more rarely, since the engine needs it more."""
TEXT_SHARE, PANELS_SHARE = 0.008, 0.010
"""The same, for the text and for all else, where the engine computes on all processors: what drawing takes of one of
them, the others wait for."""

SLOWEST_FRAME_MS = 500
SLOWEST_PANELS_MS = 1000


class FramePace:
    """Says before each frame whether all is drawn or the text alone, and how long to wait for the next one.

    The text comes often, since it is what a person reads and costs little; where the engine needs every processor, the
    plots and figures beside it come more rarely.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, worked: Callable[[], float] = time.thread_time
    ) -> None:
        """
        Args:
            clock: seconds.
            worked: processor seconds that the window's thread has taken.
        """
        self._clock, self._worked = clock, worked
        self.begin()

    def begin(self) -> None:
        """A run starts: nothing is known yet of what its frames take. Clearing the window is none of them."""
        self._last_worked: float | None = None
        self._was_full: bool | None = None
        self._text_ms: float | None = None
        self._panels_due: float | None = None
        self._is_unfinished = False
        self.interval_ms = FRAME_MS

    def go_on(self) -> None:
        """The frame that has begun draws only some of what it should: the next one comes at once, and draws all."""
        self._is_unfinished = True
        self.interval_ms = FRAME_MS

    def frame(self, *, is_contended: bool) -> bool:
        """A frame begins: whether it draws everything.

        Args:
            is_contended: the engine computes on all processors.
        """
        now, worked = self._clock(), self._worked()
        # What the frame before took to apply, to draw and, behind it, to paint.
        spent_ms = 0.0 if self._last_worked is None else 1e3 * (worked - self._last_worked)
        self._last_worked = worked
        is_unfinished, self._is_unfinished = self._is_unfinished, False
        if not is_contended:
            self._was_full, self._text_ms, self._panels_due = None, None, None
            self.interval_ms = _within(spent_ms / MAX_SHARE, SLOWEST_FRAME_MS)
            return True
        if is_unfinished:
            self._panels_due = now
        elif self._panels_due is None:
            # The panels have just been drawn empty, and a few steps are no plot.
            self._panels_due = now + SLOWEST_PANELS_MS / 1e3
        elif self._was_full:
            self._panels_due = now + _within(spent_ms / PANELS_SHARE, SLOWEST_PANELS_MS) / 1e3
        else:
            self._text_ms = spent_ms
        self._was_full = now >= self._panels_due
        text_ms = self._text_ms
        self.interval_ms = SLOWEST_FRAME_MS if text_ms is None else _within(text_ms / TEXT_SHARE, SLOWEST_FRAME_MS)
        return self._was_full


def _within(milliseconds: float, most: int) -> int:
    return min(most, max(FRAME_MS, round(milliseconds)))
