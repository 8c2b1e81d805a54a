"""Live control of a run: K, the temperature, pause, single steps and stop.

The window's thread writes; the engine's thread reads before each forward. Every setting is a single reference, which
Python replaces atomically; only the wait between steps needs a lock.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from core.draft_length import DraftLength, check_draft_length
from core.settings import RunRequest, SamplingParams

LOOK_MS = 400.0
"""How long step mode shows a draft before its result, so that the user sees both."""


class Cancelled(Exception):  # noqa: N818 - a message to unwind, not an error
    """Unwinds work that was asked to stop; decoding and loading catch it and report it in their last event."""


class RunControls:
    """Live settings of one run, and the gate before each step.

    Temperature, K and pauses are changed by the methods, which check them and wake the engine.

    Attributes:
        sampling: temperature and filters for the next step.
        num_draft_tokens: K for the next step, or the policy that chooses it.
        is_paused: whether the run waits before its next step.
        was_stepped: whether steps were taken one by one.
        is_inspected: whether evidence is shown as the run proceeds: each step's is then sent at once; otherwise it
            follows when the run is paused or over.
        stops_at_drafts: whether a paused run steps in halves: it also waits between draft and verification, for another
            `step_once`.
    """

    def __init__(self, sampling: SamplingParams | None = None, num_draft_tokens: DraftLength = 4) -> None:
        self.sampling = sampling or SamplingParams()
        self.num_draft_tokens = check_draft_length(num_draft_tokens)
        self.is_inspected = False
        self.stops_at_drafts = False
        self.is_paused = self.was_stepped = False
        self._cancelled = threading.Event()
        self._changed = threading.Condition()
        self._num_allowed = 0

    @classmethod
    def from_request(cls, request: RunRequest) -> RunControls:
        """The controls of a run as it starts."""
        return cls(request.sampling, request.draft_length)

    def sharing_stop(self, sampling: SamplingParams, num_draft_tokens: DraftLength) -> RunControls:
        """Controls with settings of their own, no pauses, and the same way to stop."""
        controls = RunControls(sampling, num_draft_tokens)
        controls._cancelled = self._cancelled
        return controls

    # --- Settings -----------------------------------------------------------------------------------------------

    def set_temperature(self, temperature: float) -> None:
        """Applies from the next step.

        Raises:
            SettingsError: it is out of range; the run continues unchanged.
        """
        self.sampling = replace(self.sampling, temperature=temperature)

    def set_num_draft_tokens(self, num_draft_tokens: DraftLength) -> None:
        """Applies from the next step.

        Raises:
            SettingsError: it is out of range; the run continues unchanged.
        """
        self.num_draft_tokens = check_draft_length(num_draft_tokens)

    # --- Pause --------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause the run before its next step. Waiting is not timed."""
        with self._changed:
            self.is_paused, self._num_allowed = True, 0

    def resume(self) -> None:
        """Resume a paused run."""
        with self._changed:
            self.is_paused, self._num_allowed = False, 0
            self._changed.notify_all()

    def step_once(self) -> None:
        """Run one more step, then pause. Steps requested meanwhile add up."""
        with self._changed:
            self.is_paused = True
            self._num_allowed += 1
            self._changed.notify_all()

    def wait_for_step(self, *, may_block: bool = True) -> bool:
        """Return when the next step may begin; for the engine's thread.

        Args:
            may_block: if False, return at once, even if the next step may not begin yet.

        Returns:
            Whether it may begin.

        Raises:
            Cancelled: the run was asked to stop, before or during the wait.
        """
        with self._changed:
            if may_block:
                self._changed.wait_for(lambda: self.is_cancelled or self._may_begin())
            if may_begin := self._may_begin():
                self._num_allowed = max(0, self._num_allowed - 1)
                # A run that was resumed meanwhile, or is over, isn't stepped.
                self.was_stepped |= self.is_paused
        self.check_cancelled()
        return may_begin

    def _may_begin(self) -> bool:
        return not self.is_paused or self._num_allowed > 0

    def wait_to_look(self) -> None:
        """Keep a draft on screen before its result, for a moment or, in halves, until asked; for the engine's thread.

        Raises:
            Cancelled: the run was asked to stop.
        """
        if self.is_paused and self.stops_at_drafts:
            self.wait_for_step()
            return
        with self._changed:
            self._changed.wait_for(lambda: self.is_cancelled or not self.is_paused, LOOK_MS / 1000)
        self.check_cancelled()

    # --- Stop ---------------------------------------------------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was asked to stop."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask the run to stop before its next forward. May be called from any thread, and more than once."""
        self._cancelled.set()
        with self._changed:
            self._changed.notify_all()

    def check_cancelled(self) -> None:
        """Raise Cancelled if the run was asked to stop."""
        if self._cancelled.is_set():
            raise Cancelled
