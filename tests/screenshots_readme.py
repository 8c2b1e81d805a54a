"""Take the README's pictures anew: `python -m tests.screenshots_readme resources/screenshots`.

The engine and the embedded pair, at the settings that the window opens with, so that the figures in the pictures are
this machine's. To be called on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QItemSelectionModel
from PySide6.QtWidgets import QApplication, QWidget

from app.controller import RunState
from app.main_window import MainWindow
from app.run.tokens import Place
from app.theme import ThemeMode
from app.worker import open_session
from core.types import Step
from tests.screenshots_camera import TIMEOUT_MS, opened, wait

SIZE = (1280, 800)
COMPARE_SIZE = (1200, 720)
COMPARED = (2, 8)
"""K of the runs beside the one at the default settings."""
RACE_AT = 0.6


class _Album:
    def __init__(self, folder: Path, window: MainWindow) -> None:
        self._folder, self._window = folder, window

    def take(self, name: str, widget: QWidget | None = None) -> None:
        """A picture of a widget, by default of the main window, once it stands still."""
        wait(400)
        path = self._folder / f"{name}.png"
        (widget or self._window).grab().save(str(path))
        print(path, flush=True)

    def turn(self, mode: ThemeMode) -> None:
        """Another theme."""
        self._window.menus.theme_actions[mode].trigger()


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    _application = QApplication.instance() or QApplication(sys.argv[:1])
    with tempfile.TemporaryDirectory() as scratch:
        # A home of its own: no picture tells whose computer this is.
        os.environ["HOME"] = scratch
        place = Path(scratch) / ".local" / "share" / "outrider"
        with opened(open_session, place) as window:
            window.resize(*SIZE)
            album = _Album(folder, window)
            album.turn(ThemeMode.LIGHT)
            # The first run loads the models, the second is like all others.
            for _ in range(2):
                _run(window)
            _photograph_run(album, window)
            for num_draft_tokens in COMPARED:
                window.controls.draft_length.number.set_value(num_draft_tokens)
                _run(window)
            _photograph_comparison(album, window)
            window.controls.draft_length.number.set_value(4)
            _photograph_check(album, window)
            _photograph_sweep(album, window)
    return 0


def _until(holds: Callable[[], bool]) -> None:
    wait(2 * TIMEOUT_MS, holds)
    if not holds():
        # Better no picture than one of something else.
        raise SystemExit("The window has not come to where the next picture is to be taken.")


def _run(window: MainWindow) -> None:
    window.prompt.run_button.click()
    wait(1_000, lambda: window.controller.state is not RunState.IDLE)
    _until(lambda: window.controller.state is RunState.IDLE)
    wait(1_000)


def _photograph_run(album: _Album, window: MainWindow) -> None:
    album.take("window-light")
    album.turn(ThemeMode.DARK)
    album.take("window-dark")
    album.turn(ThemeMode.LIGHT)
    for title in ("Why", "Theory"):
        window.side.show_title(title)
        wait(2_000)
        album.take(title.lower())
    rejected = max(window.run_view.steps, key=_shows_much)
    window.selection.select(Place(rejected.index, rejected.num_accepted))
    window.side.show_title("Inspector")
    album.take("inspector")
    window.side.show_title("Live")
    window.text_pages.show_title("Race")
    window.race.clock.seek(window.race.clock.end_ms * RACE_AT)
    album.take("race")
    window.text_pages.show_title("Transcript")


def _shows_much(step: Step) -> float:
    """Of a rejection behind a token that was kept, how likely the draft held the rejected one: a bar to be seen."""
    at = step.num_accepted
    is_telling = 0 < at < len(step.drafted) and step.drafted_texts[at].strip() and step.emitted_texts[at].strip()
    return step.draft_probs[at] if is_telling and step.draft_probs is not None else 0.0


def _photograph_comparison(album: _Album, window: MainWindow) -> None:
    window.menus.runs.trigger()
    _until(lambda: window.runs.window is not None and window.runs.window.table.count() >= 1 + len(COMPARED))
    runs = window.runs.window
    assert runs is not None
    runs.resize(*COMPARE_SIZE)
    wait(500)
    selection, flag = runs.table.selectionModel(), QItemSelectionModel.SelectionFlag
    for row in range(1 + len(COMPARED)):
        selection.select(runs.table.model().index(row, 0), flag.Select | flag.Rows)
    runs.compare_button.click()
    _until(lambda: runs.pages.currentWidget() is runs.compare_page)
    album.take("compare", runs)
    runs.close()


def _photograph_check(album: _Album, window: MainWindow) -> None:
    window.menus.check.trigger()
    panel = window.tools.check
    assert panel is not None
    panel.check_button.click()
    _until(panel.check_button.isEnabled)
    # The prompt with most to see: the one whose first tokens are most various.
    panel.prompts.setCurrentIndex(panel.prompts.count() - 1)
    album.take("check", panel)
    panel.close()


def _photograph_sweep(album: _Album, window: MainWindow) -> None:
    window.menus.sweep.trigger()
    sweeps = window.tools.sweep
    assert sweeps is not None
    sweeps.resize(*SIZE)
    sweeps.form.methods.box("prompt-lookup").setChecked(True)
    sweeps.form.lengths.setText("1-6, 8")
    sweeps.form.temperatures.setText("0, 0.8, 1.2")
    sweeps.form.length.setValue(96)
    sweeps.form.start_button.click()
    wait(1_000, lambda: window.tools.sweep.is_running)
    _until(lambda: not window.tools.sweep.is_running)
    sweeps.heatmap.choose(2, 3)
    album.take("sweep", sweeps)
    sweeps.close()


if __name__ == "__main__":
    sys.exit(main())
