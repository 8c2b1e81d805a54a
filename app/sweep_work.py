"""A sweep as work for the engine's thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.services import Session
from app.view_models.sweep import SweepBegun
from core.controls import RunControls
from core.errors import RunLogError
from core.files import explain_write_error
from core.sweep.controls import SweepControls
from core.sweep.plan import ASK_ABOVE, SweepPlan
from core.sweep.results import SweepResults
from core.sweep.runner import sweep
from core.sweep.types import RunMeasured, SweepStarted


@dataclass(frozen=True, slots=True)
class SweepAsks:
    """The first run of a long sweep is over; the engine waits for an answer."""

    num_left: int
    seconds_left: float


def logs_folder(path: Path) -> Path:
    """Where the logs of a sweep's runs are: beside its file."""
    return path.with_suffix("")


class SweepWork:
    """One sitting. Its methods are for the window's thread; what is called goes through the sweep in the engine's."""

    def __init__(self, plan: SweepPlan, path: Path) -> None:
        self._plan = plan
        self._path = path
        self._controls = SweepControls()
        self._answered = threading.Event()

    def stop(self) -> None:
        """Ask it to end, the run that goes included. May be called more than once."""
        self._controls.cancel()
        self._answered.set()

    def go_on(self) -> None:
        """Have a long sweep go on after its first run."""
        self._answered.set()

    def __call__(self, session: Session, _controls: RunControls) -> Iterator[Any]:
        """Go through it.

        Raises:
            OutriderError: the target can't be loaded, or the file can't be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunLogError(explain_write_error(error, self._path)) from error
        must_ask = False
        for event in sweep(self._plan, session, out=self._path, logs=logs_folder(self._path), controls=self._controls):
            if isinstance(event, SweepStarted):
                runs = (item for result in event.results for item in result.measurements)
                yield SweepBegun(event, SweepResults(self._plan, runs))
                must_ask = event.num_runs - event.num_done > ASK_ABOVE
                continue
            yield event
            if must_ask and isinstance(event, RunMeasured):
                must_ask = False
                yield SweepAsks(event.num_runs - event.num_done, event.seconds_left)
                self._answered.wait()
