"""A long text in the window, and all that opens out of it: how long its thread is kept from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QEventLoop, QTimer

from app.bench_window import interruptible, opened_window, wait, wait_for
from app.heartbeat import Heartbeat, Stalls
from app.main_window import MainWindow
from app.scripted_run import ScriptedRun
from app.theme import ThemeMode
from core.types import RunRequest

SCROLL_MS = 16
SCROLL_STOPS = 200
SETTLE_MS = 800
"""Until a window that was just shown, or told to draw itself anew, has done all of it."""


@dataclass(frozen=True, slots=True)
class LongFigures:
    """A long transcript: as it comes, scrolled from end to end, drawn anew at once, in other looks, beside windows.

    Attributes:
        dressed: while the theme and the size of the text are changed.
        opened: while each page and each window is opened for the first time, by its title.
        all_dressed: as `dressed`, with all those windows open.
    """

    num_steps: int
    num_tokens: int
    shown: Stalls
    scrolled: Stalls
    redrawn: Stalls
    dressed: Stalls
    opened: dict[str, Stalls]
    all_dressed: Stalls


def bench_long(request: RunRequest, *, num_steps: int = 5_000, steps_per_second: float = 1_000.0) -> LongFigures:
    """Feed a window a long run that needs no model, scroll through it, and open all there is beside it.

    Raises:
        KeyboardInterrupt: on Ctrl-C, when the window is closed.
    """
    script = ScriptedRun(num_steps, steps_per_second)
    heart = Heartbeat()

    def during(work: Callable[[], None]) -> Stalls:
        with heart.beating():
            work()
        return heart.take()

    with opened_window(lambda: script) as (window, run_in_window):
        wait(SETTLE_MS)  # What opening it takes is measured elsewhere.
        return LongFigures(
            num_steps,
            shown=during(lambda: run_in_window(window, request)),
            num_tokens=window.run_view.tokens.num_tokens,
            scrolled=during(lambda: _scroll(window)),
            redrawn=during(lambda: _redraw(window)),
            dressed=during(lambda: _change_look(window)),
            opened={title: during(partial(_open, show)) for title, show in _first_openings(window)},
            all_dressed=during(lambda: _change_look(window)),
        )


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
    with interruptible(loop):
        loop.exec()


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
