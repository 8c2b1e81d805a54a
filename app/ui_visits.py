"""Windows and terminals in several processes, one round after the other.

Where a process happens to have its memory makes its runs up to 4 % faster or slower than another's, from its start to
its end. One window beside one process without would measure that instead of the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from app.clocked_runs import HeadlessProcess
from app.core_watch import watching_cores
from app.services import open_session_beside_window
from app.ui_bench import LiveFigures, LiveRuns, bench_live, sum_up
from app.ui_long import LongFigures, bench_long
from core.errors import GenerationError
from core.types import RunRequest

NUM_VISITS = 5
MIN_ROUNDS = 6
"""One run differs from the next by a tenth where others share the processor: thirty rounds narrow that to some 2 %."""


def bench_visits(
    requests: Sequence[RunRequest], rounds: int, on_progress: Callable[[str, int, int], None]
) -> tuple[LiveFigures, LongFigures]:
    """Run requests in windows and without, each pair in processes of its own; the last window shows a long text too.

    Args:
        requests: taken in turn.
        rounds: that count, of all pairs together; each takes `MIN_ROUNDS` or more.
        on_progress: what goes on, how many pairs are done, and how many there will be.

    Raises:
        OutriderError: a run fails.
        KeyboardInterrupt: on Ctrl-C.
    """
    each = max(MIN_ROUNDS, math.ceil(rounds / NUM_VISITS))
    found: list[LiveRuns] = []
    long: LongFigures | None = None
    for visit in range(NUM_VISITS):
        on_progress(f"Window {visit + 1} of {NUM_VISITS}, in turn with a run without it", visit, NUM_VISITS)
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as executor:
            try:
                is_last = visit + 1 == NUM_VISITS
                runs, long = executor.submit(bench_here, tuple(requests), each, with_long=is_last).result()
                found.append(runs)
            except BrokenProcessPool as error:
                raise GenerationError("The process with the window ended early. Try again.") from error
    assert long is not None, "the last one brings it"
    return sum_up(found), long


def bench_here(requests: Sequence[RunRequest], rounds: int, *, with_long: bool) -> tuple[LiveRuns, LongFigures | None]:
    """One window, in this process, beside a process without; then, where it is wanted, one with a long text.

    By then all is imported, as it is before anyone has a long text: a window that has just been opened shares the
    processors, and Python's lock, with the threads that import.
    """
    from PySide6.QtWidgets import QApplication

    application = QApplication.instance() or QApplication([])
    assert isinstance(application, QApplication)
    application.setQuitOnLastWindowClosed(False)
    with watching_cores() as watch:
        with HeadlessProcess() as headless:
            places = (open_session_beside_window, headless.run_in_terminal, headless.run)
            runs = bench_live(*places, requests, rounds, watch=watch)
        return runs, bench_long(requests[0], watch=watch) if with_long else None
