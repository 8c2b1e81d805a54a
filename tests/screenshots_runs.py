"""The main window with each of its pages, the kept runs, the help: empty, running, finished and failed."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QApplication, QWidget

from app.controller import RunState
from app.dialogs import AboutDialog
from app.main_window import MainWindow
from app.run.playback import Pace
from app.run.tokens import Place
from app.worker import open_session
from tests.fakes_app import FakeSession
from tests.fakes_models import FakeHub
from tests.screenshots_camera import TIMEOUT_MS, Camera, opened, wait

PAGES = ("Live", "Plots", "Inspector", "Why", "Theory")


def photograph_runs(folder: Path, only: str, *, real: bool) -> None:
    """From the first start to three kept runs."""
    with tempfile.TemporaryDirectory() as scratch:
        session = FakeSession(gate=threading.Semaphore(0), step_ms=11.0)
        place = Path(scratch)
        with opened(open_session if real else lambda: session, place, None if real else FakeHub()) as window:
            camera = Camera(folder, window, only)
            _pages(camera, window, "empty")
            window.prompt.run_button.click()
            _come_far(window, session, real=real)
            _pages(camera, window, "running")
            _race(camera, window, "running")
            _finish(window, session)
            _finished(camera, window)
            _branch(camera, window)
            _help(camera, window)
            if real:
                _probe(camera, window)
            photograph_production(camera, window)
            for num_draft_tokens in (2, 8):
                window.controls.draft_length.number.set_value(num_draft_tokens)
                window.prompt.run_button.click()
                _finish(window, session)
            _kept(camera, window)
            _stepwise(camera, window, session)


def photograph_errors(folder: Path, only: str) -> None:
    """A run that fails on its way, and one that can't start."""
    with tempfile.TemporaryDirectory() as scratch:
        sentence = "The model returned numbers that can't be sampled (NaN). Try float32."
        session = FakeSession(fail_after=(9, sentence))
        with opened(lambda: session, Path(scratch), FakeHub()) as window:
            camera = Camera(folder, window, only)
            window.prompt.run_button.click()
            _finish(window, session)
            _pages(camera, window, "failed")
            _race(camera, window, "failed")
            window.prompt.set_text("")
            camera.shoot("failed-no-prompt")


def _pages(camera: Camera, window: MainWindow, state: str) -> None:
    for title in PAGES:
        window.side.show_title(title)
        camera.shoot(f"{state}-{title.lower()}")
    window.side.show_title(PAGES[0])


def _race(camera: Camera, window: MainWindow, state: str) -> None:
    window.text_pages.show_title("Race")
    camera.shoot(f"{state}-race")
    window.text_pages.show_title("Transcript")


def _come_far(window: MainWindow, session: FakeSession, *, real: bool) -> None:
    if real:
        wait(TIMEOUT_MS, lambda: window.run_view.tokens.num_tokens > 40)
        # The pictures are to show one moment of it.
        window.transcript.playback.pause_button.click()
    else:
        session.gate.release(22) if session.gate is not None else None
        wait(2000, lambda: window.run_view.metrics.totals.steps >= 22)


def _finish(window: MainWindow, session: FakeSession) -> None:
    if window.controller.state is RunState.PAUSED:
        window.transcript.playback.pause_button.click()
    if session.gate is not None:
        session.gate.release(10_000)
    wait(200)
    wait(TIMEOUT_MS, lambda: window.controller.state is RunState.IDLE)
    wait(200)


def _finished(camera: Camera, window: MainWindow) -> None:
    _pages(camera, window, "finished")
    rejected = next((step for step in window.run_view.steps[4:] if 0 < step.num_accepted < len(step.drafted)), None)
    if rejected is not None:
        window.selection.select(Place(rejected.index, rejected.num_accepted))
    for title in PAGES:
        window.side.show_title(title)
        camera.shoot(f"selected-{title.lower()}")
    window.side.show_title(PAGES[0])
    window.menus.show_ghosts.setChecked(True)
    camera.shoot("rejected")
    window.menus.show_ghosts.setChecked(False)
    window.text_pages.show_title("Race")
    for share in (0.4, 1.0):
        window.race.clock.seek(window.race.clock.end_ms * share)
        camera.shoot(f"race-{share:.0%}".rstrip("%"))
    window.text_pages.show_title("Transcript")


def _branch(camera: Camera, window: MainWindow) -> None:
    menu = window.transcript.playback.branch_menu

    def shown() -> QWidget:
        menu.popup(QPoint(20, 20))
        return menu

    camera.shoot_other("branch-menu", shown)
    menu.close()
    for title in ("&File", "&Run", "&View", "&Tools", "&Help"):
        found = next(action.menu() for action in window.menuBar().actions() if action.text() == title)
        found.popup(QPoint(20, 20))
        camera.shoot_other(f"menu-{title[1:].lower()}", lambda found=found: found)
        found.close()


def _probe(camera: Camera, window: MainWindow) -> None:
    window.menus.probe.trigger()
    panel = window.tools.probe
    if panel is not None:
        camera.shoot_other("probe-empty", lambda: panel)
        panel.probe_button.click()
        wait(TIMEOUT_MS, panel.probe_button.isEnabled)
        camera.shoot_other("probe-finished", lambda: panel)
        panel.close()


def _help(camera: Camera, window: MainWindow) -> None:
    window.help.open_method()
    page = window.help.page
    if page is not None:
        camera.shoot_other("help-method", lambda: page)
        bar = page.findChild(QWidget, "helpMethod").verticalScrollBar()
        bar.setValue(bar.maximum())
        camera.shoot_other("help-method-end", lambda: page)
        window.menus.keys.trigger()
        camera.shoot_other("help-keys", lambda: page)
        window.menus.formulas.trigger()
        camera.shoot_other("help-formulas", lambda: page)
        page.close()
    about = AboutDialog(window, window.status.place.text())
    about.show()
    camera.shoot_other("about", lambda: about)
    about.close()


def _kept(camera: Camera, window: MainWindow) -> None:
    window.runs.open()
    runs = window.runs.window
    if runs is None:
        return
    wait(2000, lambda: runs.table.count() == 3)
    for size in ((1200, 720), (980, 520)):
        camera.shoot_other(f"runs-list-{size[0]}", lambda: runs, size)
    runs.table.selectAll()
    runs.compare_button.click()
    wait(3000, lambda: runs.pages.currentIndex() == 1)
    for size in ((1200, 720), (980, 520), (1800, 1000)):
        camera.shoot_other(f"runs-compare-{size[0]}", lambda: runs, size)
    runs.show_list()
    runs.search.setText("no such run")
    camera.shoot_other("runs-none", lambda: runs, (1200, 720))
    runs.search.clear()
    runs.close()
    QApplication.processEvents()


def _stepwise(camera: Camera, window: MainWindow, session: FakeSession) -> None:
    bar = window.transcript.playback
    bar.pace.choose(Pace.STEPWISE)
    bar.pace_chosen.emit(Pace.STEPWISE)
    window.prompt.run_button.click()
    wait(TIMEOUT_MS, lambda: window.run_view.prefill is not None and window.controller.state is RunState.PAUSED)
    for count in range(1, 7):
        bar.step_button.click()
        wait(10_000, lambda count=count: len(window.run_view.steps) == count)
        wait(100)
    camera.shoot("paused")
    window.controller.stop()
    _finish(window, session)


def photograph_production(camera: Camera, window: MainWindow) -> None:
    """The configurations for other engines, of the run at hand."""
    window.menus.production.trigger()
    page = window.exports.production.page
    if page is not None:
        for index in range(page.tabs.count()):
            page.tabs.setCurrentIndex(index)
            camera.shoot_other(f"production-{page.tabs.tabText(index).lower()}", lambda: page)
        page.close()
