"""A long text in the window, and all that opens out of it: how long its thread is kept from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import psutil
from PySide6.QtCore import QEventLoop, QObject, QTimer

from app.bench_window import interruptible, opened_window, wait, wait_for
from app.core_watch import CoreWatch
from app.heartbeat import Heartbeat, Stalls
from app.main_window import MainWindow
from app.scripted_run import ScriptedRun
from app.theme import ThemeMode
from app.view_models.selection import Place
from core.errors import GenerationError
from core.types import RunRequest

STOP_MS = 16
NUM_STOPS = 200
SETTLE_MS = 800
"""Until a window that was just shown, or told to draw itself anew, has done all of it."""


@dataclass(frozen=True, slots=True)
class LongFigures:
    """A long transcript: as it comes, scrolled, drawn anew at once, in other looks, beside windows, and kept.

    Attributes:
        dressed: while the theme and the size of the text are changed.
        opened: while each page and each window is opened for the first time, by its title.
        all_dressed: as `dressed`, with all those windows open.
        memory_mb: what the process grows by while the text comes, its evidence and baseline included.
        kept: while the same run, of which the window has kept a log, is opened again, its evidence and baseline too.
        inspected: while tokens all over its text are selected, one after the other, with the inspector in front.
        scrubbed: while its text goes back to where it was after any step.
    """

    num_steps: int
    num_tokens: int
    shown: Stalls
    scrolled: Stalls
    redrawn: Stalls
    dressed: Stalls
    opened: dict[str, Stalls]
    all_dressed: Stalls
    memory_mb: float
    kept: Stalls
    inspected: Stalls
    scrubbed: Stalls


def bench_long(
    request: RunRequest,
    *,
    num_steps: int = 5_000,
    steps_per_second: float = 1_000.0,
    watch: CoreWatch | None = None,
) -> LongFigures:
    """Feed a window a long run that needs no model, scroll through it, and open all there is beside it.

    Raises:
        GenerationError: its log can't be opened again.
        KeyboardInterrupt: on Ctrl-C, when the window is closed.
    """
    script = ScriptedRun(num_steps, steps_per_second)
    whole = replace(request, inspect=True, baseline=True)
    heart = Heartbeat(watch)

    def during(work: Callable[[], None]) -> Stalls:
        with heart.beating():
            work()
        return heart.take()

    with opened_window(lambda: script) as (window, run_in_window):
        wait(SETTLE_MS)  # What opening it takes is measured elsewhere.
        before_mb = _resident_mb()
        return LongFigures(
            num_steps,
            shown=during(lambda: run_in_window(window, whole)),
            memory_mb=_resident_mb() - before_mb,
            num_tokens=window.run_view.tokens.num_tokens,
            scrolled=during(lambda: _scroll(window)),
            redrawn=during(lambda: _redraw(window)),
            dressed=during(lambda: _change_look(window)),
            opened={title: during(partial(_open, show)) for title, show in _first_openings(window)},
            all_dressed=during(lambda: _change_look(window)),
            kept=during(lambda: _open_kept(window)),
            inspected=during(lambda: _inspect(window)),
            scrubbed=during(lambda: _scrub(window)),
        )


def _resident_mb() -> float:
    return float(psutil.Process().memory_info().rss / 1e6)


def _stop_at(stops: Iterable[float], go: Callable[[float], None]) -> None:
    """Go from one share of the way to the next, one in every frame."""
    left = iter(stops)
    loop, timer = QEventLoop(), QTimer()

    def to_next_stop() -> None:
        share = next(left, None)
        if share is None:
            loop.quit()
        else:
            go(share)

    timer.timeout.connect(to_next_stop)
    timer.start(STOP_MS)
    with interruptible(loop):
        loop.exec()


def _backwards() -> Iterator[float]:
    return (1 - stop / NUM_STOPS for stop in range(NUM_STOPS + 1))


def _all_over() -> Iterator[float]:
    """Far from each other, and nowhere twice: multiples of the golden ratio."""
    return (stop * 0.618034 % 1 for stop in range(NUM_STOPS + 1))


def _scroll(window: MainWindow) -> None:
    bar = window.transcript.view.verticalScrollBar()
    _stop_at(_backwards(), lambda share: bar.setValue(round(bar.maximum() * share)))


def _open_kept(window: MainWindow) -> None:
    assert window.runs.window is not None, "it was among the first openings"
    (kept,) = window.runs.window.table.runs()
    loop, failed = QEventLoop(), window.runs.reader.failed
    sentences: list[str] = []
    connections = [signal.connect(loop.quit) for signal in (window.live.run_shown, failed)]
    connections.append(failed.connect(sentences.append))
    with interruptible(loop):
        window.runs.open_run(kept)
        loop.exec()
    for connection in connections:
        QObject.disconnect(connection)
    if sentences:
        raise GenerationError(sentences[0])
    wait(SETTLE_MS)


def _inspect(window: MainWindow) -> None:
    window.side.show_page(window.inspector)
    steps = window.run_view.steps
    _stop_at(_all_over(), lambda share: window.selection.select(Place(int(share * len(steps)), 0)))
    wait(SETTLE_MS)


def _scrub(window: MainWindow) -> None:
    slider = window.transcript.playback.slider
    for stops in (_backwards(), _all_over(), (1.0,)):
        _stop_at(stops, lambda share: slider.setValue(round(slider.maximum() * share)))
    wait(SETTLE_MS)


def _redraw(window: MainWindow) -> None:
    window.transcript.view.set_ghosts_shown(True)
    wait(SETTLE_MS)


def _change_look(window: MainWindow) -> None:
    menus = window.menus
    for action in (
        menus.theme_actions[ThemeMode.DARK],
        menus.larger,
        menus.theme_actions[ThemeMode.LIGHT],
        menus.default_size,
    ):
        action.trigger()
        wait_for(window.look.settled, unless=window.look.is_settled)
        wait(SETTLE_MS)


def _first_openings(window: MainWindow) -> Iterator[tuple[str, Callable[[], None]]]:
    """What to open, and how: the pages of both columns, then the windows."""
    for column in (window.side, window.text_pages):
        for index in range(column.count()):
            if index != column.currentIndex():
                yield column.tabText(index), partial(column.setCurrentIndex, index)
    menus = window.menus
    tools = (menus.probe, menus.sweep, menus.check, menus.production)
    for action in (menus.help, menus.formulas, menus.keys, menus.runs, menus.models, menus.get_models, *tools):
        yield action.text().removesuffix("…"), action.trigger


def _open(show: Callable[[], None]) -> None:
    show()
    wait(SETTLE_MS)
