"""What the window costs: the same runs with and without it, and how long its thread is ever kept from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from PySide6.QtCore import QEventLoop, QTimer

from app.cli.interrupts import handle_interrupt
from app.clocked_runs import ClockedSession, Speeds
from app.heartbeat import Heartbeat, Stalls
from app.main_window import FINAL_WAIT_MS, MainWindow
from app.scripted_run import ScriptedRun
from app.services import Services, Session
from app.settings import SettingsStore
from app.theme import ThemeMode
from core.bench.statistics import Spread, ratios, spread
from core.collector import short_pauses
from core.errors import GenerationError
from core.types import RunRequest

SCROLL_MS = 16
SCROLL_STOPS = 200
SETTLE_MS = 800
"""Until a window that was just shown, or told to draw itself anew, has done all of it."""


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """Real runs in one window and in one process without, in turn.

    Attributes:
        window, headless: of each round.
        stalls, memory_growth_mb, environment: as in `LiveFigures`.
    """

    window: tuple[Speeds, ...]
    headless: tuple[Speeds, ...]
    stalls: Stalls
    memory_growth_mb: float
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Real runs in several windows and processes without.

    Attributes:
        window, headless: tokens per second as a run tells it: over the sum of its steps' times.
        ratio: window / headless, round by round.
        wall_ratio: the same by the clock on the wall, from the run's start to its last token, with what the engine's
            thread does between the steps: in the window it also keeps every token's laws and writes the log.
        stalls: of the window's thread during its runs; the worst of all windows.
        memory_growth_mb: resident memory after a window's last run less that after its first; the most of all.
        environment: the machine and versions, as the run's log names them.
    """

    window: Spread
    headless: Spread
    ratio: Spread
    wall_ratio: Spread
    stalls: Stalls
    memory_growth_mb: float
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LongFigures:
    """A long transcript: as it comes, scrolled from end to end, drawn anew at once, and in other looks.

    Attributes:
        dressed: while the theme and the size of the text are changed.
    """

    num_steps: int
    num_tokens: int
    shown: Stalls
    scrolled: Stalls
    redrawn: Stalls
    dressed: Stalls


def bench_live(
    open_session: Callable[[], Session],
    run_headless: Callable[[RunRequest], Speeds],
    requests: Sequence[RunRequest],
    rounds: int,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> LiveRuns:
    """Run requests in the window and without it, in turn, after a run of each that does not count.

    Args:
        open_session: called in the thread of the window's engine.
        run_headless: runs a request without the window.
        requests: taken in turn, those whose text ends early left out if there are others.
        rounds: that count, one at least.
        on_progress: what goes on, how many runs are done, and how many there will be.

    Raises:
        OutriderError: a run fails.
        KeyboardInterrupt: on Ctrl-C, when the window is closed.
    """
    opened: list[ClockedSession] = []

    def open_clocked() -> ClockedSession:
        opened.append(ClockedSession(open_session()))
        return opened[-1]

    heart = Heartbeat()
    pairs: list[tuple[Speeds, Speeds]] = []
    with _window(open_clocked) as (window, run_in_window):

        def run_both(turn: int, request: RunRequest) -> tuple[Speeds, Speeds]:
            found: dict[bool, Speeds] = {}
            # Who comes first changes with every round.
            for in_window in (True, False) if turn % 2 else (False, True):
                place = "in the window" if in_window else "without it"
                on_progress(f"Round {turn} of {rounds}, {place}", 2 * turn, 2 * rounds + 2)
                if in_window:
                    run_in_window(window, replace(request, inspect=True))  # As the window asks for its runs.
                    found[True] = opened[-1].speeds[-1]
                else:
                    found[False] = run_headless(request)
            return found[True], found[False]

        warm_up = [run_both(0, request)[1].num_tokens for request in requests]
        # A text that ends early is over before anything can be told of its speed.
        whole = [asked for asked, count in zip(requests, warm_up, strict=True) if count > asked.max_new_tokens / 2]
        timed = whole or requests
        first_mb = psutil.Process().memory_info().rss / 1e6
        pairs.extend(run_both(turn, timed[turn % len(timed)]) for turn in range(1, rounds + 1))
        last_mb = psutil.Process().memory_info().rss / 1e6
        # In runs of their own, since 200 beats a second take time as well.
        for request in requests:
            on_progress("Looking for stalls in the window", 2 * rounds + 2, 2 * rounds + 2)
            with heart.beating():
                run_in_window(window, replace(request, inspect=True))
    inside, outside = zip(*pairs, strict=True)
    return LiveRuns(inside, outside, heart.take(), last_mb - first_mb, opened[-1].environment)


def sum_up(windows: Sequence[LiveRuns]) -> LiveFigures:
    """The figures of one window or more."""
    pairs = [pair for runs in windows for pair in zip(runs.window, runs.headless, strict=True)]
    told, wall = ([(inside[kind], outside[kind]) for inside, outside in pairs] for kind in (0, 1))
    return LiveFigures(
        window=spread([inside for inside, _ in told]),
        headless=spread([outside for _, outside in told]),
        ratio=ratios(*zip(*told, strict=True)),
        wall_ratio=ratios(*zip(*wall, strict=True)),
        stalls=Stalls(
            max(runs.stalls.longest_ms for runs in windows),
            max(runs.stalls.p99_ms for runs in windows),
            sum(runs.stalls.num_beats for runs in windows),
        ),
        memory_growth_mb=max(runs.memory_growth_mb for runs in windows),
        environment=windows[-1].environment,
    )


def bench_long(request: RunRequest, *, num_steps: int = 5_000, steps_per_second: float = 1_000.0) -> LongFigures:
    """Feed a window a long run that needs no model, and scroll through it.

    Raises:
        KeyboardInterrupt: on Ctrl-C, when the window is closed.
    """
    script = ScriptedRun(num_steps, steps_per_second)
    heart = Heartbeat()
    with _window(lambda: script) as (window, run_in_window):
        _wait(SETTLE_MS)  # What opening it takes is not what is asked.
        with heart.beating():
            run_in_window(window, request)
        shown = heart.take()
        with heart.beating():
            _scroll(window)
        scrolled = heart.take()
        with heart.beating():
            window.transcript.view.set_ghosts_shown(True)
            _wait(SETTLE_MS)
        redrawn = heart.take()
        with heart.beating():
            _change_look(window)
        dressed = heart.take()
        num_tokens = window.run_view.tokens.num_tokens
    return LongFigures(num_steps, num_tokens, shown, scrolled, redrawn, dressed)


def _scroll(window: MainWindow) -> None:
    bar = window.transcript.view.verticalScrollBar()
    stops = iter(range(SCROLL_STOPS + 1))
    loop, timer = QEventLoop(), QTimer()

    def to_next_stop() -> None:
        stop = next(stops, None)
        if stop is None:
            loop.quit()
        else:
            bar.setValue(round(bar.maximum() * (1 - stop / SCROLL_STOPS)))

    timer.timeout.connect(to_next_stop)
    timer.start(SCROLL_MS)
    with _interruptible(loop):
        loop.exec()


def _change_look(window: MainWindow) -> None:
    menus = window.menus
    for action in (menus.theme_actions[ThemeMode.DARK], menus.larger, menus.theme_actions[ThemeMode.LIGHT]):
        action.trigger()
        _wait(SETTLE_MS)


def _wait(milliseconds: int) -> None:
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    with _interruptible(loop):
        loop.exec()


RunInWindow = Callable[[MainWindow, RunRequest], None]


@contextmanager
def _window(open_session: Callable[[], Any]) -> Iterator[tuple[MainWindow, RunInWindow]]:
    """The real window around a session of its own, on screen, with settings and logs that nobody else sees."""
    with TemporaryDirectory(prefix="outrider-") as folder, short_pauses():
        services = Services(
            open_session=open_session,
            store=SettingsStore(Path(folder) / "settings.json"),
            runs_folder=lambda: Path(folder) / "runs",
        )
        window = MainWindow(services=services)
        sentences: list[str] = []
        window.controller.failed.connect(sentences.append)

        def run(window: MainWindow, request: RunRequest) -> None:
            loop = QEventLoop()
            window.live.run_shown.connect(loop.quit)
            with _interruptible(loop, window.controller.stop):
                window.controller.start(request)
                loop.exec()
            window.live.run_shown.disconnect(loop.quit)
            if sentences:
                raise GenerationError(sentences[0])

        try:
            window.show()
            yield window, run
        finally:
            window.close()
            window.threads.join(FINAL_WAIT_MS)
            window.deleteLater()


@contextmanager
def _interruptible(loop: QEventLoop, stop: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let Ctrl-C end a loop, and be raised behind it: Qt swallows what is raised within."""
    is_interrupted = False

    def on_interrupt() -> None:
        nonlocal is_interrupted
        is_interrupted = True
        stop()
        loop.quit()

    with handle_interrupt(on_interrupt):
        yield
    if is_interrupted:
        raise KeyboardInterrupt
