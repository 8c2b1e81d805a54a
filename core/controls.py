"""What may change while a run goes: K, the temperature, its pace, and whether to go on.

The window's thread writes, the engine's thread reads before each forward. Every field is a single reference, which
Python replaces atomically, so no lock is needed; only the gate between steps, where a thread may wait, has one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from core.draft_shape import DraftLength
from core.errors import SettingsError
from core.types import MAX_DRAFT_TOKENS, LengthPolicy, RunRequest, SamplingParams

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


class Cancelled(Exception):  # noqa: N818 - a message to unwind, not an error
    """Unwinds work that was asked to stop; what decodes or loads catches it, and says so in its last event."""


class RunControls:
    """Live settings of one run."""

    def __init__(
        self,
        sampling: SamplingParams | None = None,
        num_draft_tokens: int | None = 4,
        length_policy: LengthPolicy = LengthPolicy.AUTO,
    ) -> None:
        """Args: num_draft_tokens: K; None lets the engine choose it, by `length_policy`."""
        self._sampling = sampling or SamplingParams()
        self._draft_length: DraftLength = length_policy if num_draft_tokens is None else num_draft_tokens
        self._is_inspected = False
        self._cancelled = threading.Event()
        self._gate = StepGate(self._cancelled)

    @classmethod
    def from_request(cls, request: RunRequest) -> RunControls:
        return cls(request.sampling, request.num_draft_tokens, request.length_policy)

    @property
    def sampling(self) -> SamplingParams:
        return self._sampling

    @property
    def num_draft_tokens(self) -> int | None:
        """K for the next step; None lets the engine choose."""
        length = self._draft_length
        return None if isinstance(length, LengthPolicy) else length

    @property
    def draft_length(self) -> DraftLength:
        """K for the next step, or the policy that chooses it."""
        return self._draft_length

    def plain(self) -> RunControls:
        """Controls for a baseline: the sampling in force now, no drafts, no pauses, and the same way to stop."""
        return self.sharing_stop(self._sampling, 0)

    def sharing_stop(self, sampling: SamplingParams, length: DraftLength) -> RunControls:
        """Controls with settings of their own, no pauses, and the same way to stop."""
        controls = RunControls(sampling)
        controls.set_num_draft_tokens(length)
        controls._cancelled = self._cancelled
        return controls

    def set_temperature(self, temperature: float) -> None:
        """Applies from the next step.

        Raises:
            SettingsError: if it is out of range; the run goes on as it was.
        """
        self._sampling = replace(self._sampling, temperature=temperature)

    def set_num_draft_tokens(self, num_draft_tokens: DraftLength | None) -> None:
        """Applies from the next step.

        Args:
            num_draft_tokens: K, or the policy that is to choose it; None is AUTO.

        Raises:
            SettingsError: if it is out of range; the run goes on as it was.
        """
        length = LengthPolicy.AUTO if num_draft_tokens is None else num_draft_tokens
        if not isinstance(length, LengthPolicy) and not 0 <= length <= MAX_DRAFT_TOKENS:
            raise SettingsError(f"K must be a whole number from 0 to {MAX_DRAFT_TOKENS}, not {length!r}.")
        if length is LengthPolicy.FIXED:
            raise SettingsError("A fixed draft length needs a K.")
        self._draft_length = length

    def pause(self) -> None:
        """Hold the run before its next step. Nothing of a wait counts in any time."""
        self._gate.pause()

    def resume(self) -> None:
        """Let a paused run go on."""
        self._gate.resume()

    def step_once(self) -> None:
        """Let a run take one more step, and hold it there."""
        self._gate.step_once()

    def set_delay(self, milliseconds: float) -> None:
        """Slow motion: begin steps at least this far apart; 0 is full speed."""
        self._gate.set_delay(milliseconds)

    @property
    def is_paused(self) -> bool:
        return self._gate.is_paused

    @property
    def is_watched(self) -> bool:
        """Whether a person follows the single steps: paused, or slowed down."""
        return self._gate.is_watched

    @property
    def is_inspected(self) -> bool:
        """Whether a person looks at what the models say, and each step's evidence is wanted with it."""
        return self._is_inspected

    def set_inspected(self, inspected: bool) -> None:
        """Have each step's evidence sent at once; otherwise it comes when the run is held, or over."""
        self._is_inspected = inspected

    def wait_for_step(self, *, may_block: bool = True) -> bool:
        """Return when the next step may begin. For the engine's thread.

        Args:
            may_block: otherwise, return at once, also where the next step may not begin yet.

        Returns:
            Whether it may begin.

        Raises:
            Cancelled: if the run was asked to stop, while it waited or before.
        """
        may_begin = self._gate.wait_for_step(may_block=may_block)
        self.check_cancelled()
        return may_begin

    def wait_to_look(self) -> None:
        """Leave a draft on screen for a moment before its verdict. For the engine's thread.

        Raises:
            Cancelled: if the run was asked to stop.
        """
        self._gate.wait_to_look()
        self.check_cancelled()

    def cancel(self) -> None:
        """Asks the run to stop before its next forward. May be called from any thread, and more than once."""
        self._cancelled.set()
        self._gate.wake()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check_cancelled(self) -> None:
        """Raises:
        Cancelled: if the run was asked to stop.
        """
        if self._cancelled.is_set():
            raise Cancelled
