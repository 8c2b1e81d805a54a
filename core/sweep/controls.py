"""The way to stop a sweep from another thread."""

from __future__ import annotations

import threading

from core.controls import RunControls
from core.types import RunRequest


class SweepControls:
    """Made by whoever may stop the sweep; read by the thread that runs it."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._run: RunControls | None = None

    def cancel(self) -> None:
        """Ask the sweep to stop, the run that goes included. May be called from any thread, and more than once."""
        self._cancelled.set()
        run = self._run
        if run is not None:
            run.cancel()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def for_run(self, request: RunRequest, *, is_plain: bool) -> RunControls:
        """The controls of the next run; cancelled already if the sweep is."""
        controls = RunControls(request.sampling, 0) if is_plain else RunControls.from_request(request)
        self._run = controls
        if self.is_cancelled:
            controls.cancel()
        return controls
