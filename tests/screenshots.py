"""Take the README's pictures: `python -m tests.screenshots resources/screenshots`, on a machine that does nothing else.

The engine and the embedded pair at the settings that the window opens with, so that the figures are this machine's.
With `--gallery`, every page and tool instead: empty, in a run, finished, stopped, failed; in both themes and sizes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QEventLoop, QItemSelectionModel, QTimer
from PySide6.QtWidgets import QApplication, QDialog, QWidget

from app.controller import RunState
from app.introduction.guide_bar import Part
from app.main_window import MainWindow
from app.run.pacing import Pace
from app.run.text.tokens import Place
from app.theme import ThemeMode
from app.tools.about import AboutDialog
from app.widgets.labels import SidePanel
from core.controls import RunControls
from core.errors import GenerationError, OutOfMemoryError
from core.experiments.check_plan import DEFAULT_SAMPLES
from core.experiments.sweep import sweep
from core.types import Step
from tests.fake_servers import Answer, FakeServer, recorded, vllm
from tests.fakes_check import FakeCheck
from tests.fakes_sweep import FakeSweepSession, fails_at

SIZE, COMPARE_SIZE = (1280, 800), (1200, 720)
COMPARED = (4, 8)
"""K of the runs beside the one at the default settings."""
RACE_AT = 0.6
TIMEOUT_MS = 600_000
SIZES = {1.0: ((1024, 700), SIZE, (1920, 1080)), 1.5: ((1024, 700), SIZE)}
"""The sizes of the windows at each size of the text."""
FEW = {1.0: (SIZE,), 1.5: ((1024, 700),)}
"""For states that change little in the layout: the usual size and the tightest."""
HELD_AT = 40
"""Tokens of the baseline that is held for its pictures."""
LONG_PROMPT = "word " * 2_000
"""More than the embedded pair reads, for a run that fails."""


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gallery", action="store_true", help="every page in its states and in both themes")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        # A home of its own: no picture shows whose computer this is.
        os.environ.update(HOME=home, XDG_DATA_HOME=f"{home}/data", XDG_CONFIG_HOME=f"{home}/config")
        application = QApplication.instance() or QApplication(sys.argv[:1])
        window = MainWindow()
        window.resize(*SIZE)
        window.show()
        window.introduction.is_seen = True
        wait(700)
        camera = Camera(arguments.folder, window)
        (gallery if arguments.gallery else readme)(camera, window)
        window.close()
        wait(10_000, lambda: window.controller.is_closed and window.jobs.is_idle)
        del application
    return 0


def wait(milliseconds: int, until: Callable[[], bool] = lambda: False) -> None:
    """Let the window live until something holds, or for a while."""
    loop, deadline, poll = QEventLoop(), QTimer(), QTimer()
    deadline.setSingleShot(True)
    deadline.timeout.connect(loop.quit)
    poll.timeout.connect(lambda: loop.quit() if until() else None)
    deadline.start(milliseconds)
    poll.start(20)
    loop.exec()


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for something without which there is no picture."""
    wait(TIMEOUT_MS, holds)
    if not holds():
        raise SystemExit("The window has not come to where the next picture is to be taken.")


class Camera:
    """Takes pictures of the main window and of others."""

    def __init__(self, folder: Path, window: MainWindow) -> None:
        self._folder, self._window = folder, window

    def take(self, name: str, widget: QWidget | None = None) -> None:
        """Take one picture, once the window stands still."""
        wait(200)
        path = self._folder / f"{name}.png"
        (widget or self._window).grab().save(str(path))
        print(path, flush=True)

    def turn(self, mode: ThemeMode) -> None:
        """Change the theme."""
        self._window.menus.theme_actions[mode].trigger()

    def take_all(
        self,
        name: str,
        widget: QWidget | None = None,
        *,
        pages: SidePanel | None = None,
        sizes: dict[float, tuple[tuple[int, int], ...]] = SIZES,
    ) -> None:
        """Take a window, or each of its pages, in both themes at some sizes. A change of style takes longest."""
        main = self._window
        for mode in (ThemeMode.DARK, ThemeMode.LIGHT):
            for scale, windows in sizes.items():
                main.appearance.set(mode, scale)
                main.columns.fit()
                for width, height in windows:
                    (widget or main).resize(width, height)
                    size = f"{width}{'-large' * (scale > 1)}-{mode.value}"
                    # A narrow window has one page more.
                    for index in range(pages.count() if pages is not None else 1):
                        title = ""
                        if pages is not None:
                            pages.setCurrentIndex(index)
                            title = f"-{pages.title().lower()}"
                        self.take(f"{name}{title}-{size}", widget)

    def take_pages(self, state: str) -> None:
        """Take every page of the main window."""
        side = self._window.side
        self.take_all(state, pages=side)
        side.show_title("Run")
        self._window.race.open()
        self.take_all(f"{state}-race", self._window.race)
        self._window.race.close()


def run_once(window: MainWindow) -> None:
    """Run with the settings as they are."""
    window.prompt.run_button.click()
    wait(1_000, lambda: window.controller.state is not RunState.IDLE)
    wait_until(lambda: window.controller.state is RunState.IDLE)
    window.live.finish()
    wait(1_000)


def select_rejection(window: MainWindow) -> None:
    """Select the rejected token that the draft held most likely, after a token that was accepted."""
    step = max(window.run_view.steps, key=_shows_much)
    window.selection.select(Place(step.index, step.num_accepted))


def _shows_much(step: Step) -> float:
    at = step.num_accepted
    is_telling = 0 < at < len(step.drafted) and step.drafted_texts[at].strip() and step.emitted_texts[at].strip()
    return step.draft_probs[at] if is_telling else 0.0


def readme(camera: Camera, window: MainWindow) -> None:
    """The README's pictures."""
    camera.turn(ThemeMode.LIGHT)
    window.playback.set_pace(Pace.SLOWED)  # Drawing at full speed disturbs the embedded pair's short steps.
    for _ in range(2):  # The first run loads the models, the second is like all others.
        run_once(window)
    camera.take("window-light")
    camera.turn(ThemeMode.DARK)
    camera.take("window-dark")
    camera.turn(ThemeMode.LIGHT)
    window.side.show_title("Speed")
    wait(2_000)
    camera.take("speed")
    select_rejection(window)
    window.side.show_title("Inspector")
    camera.take("inspector")
    window.side.show_title("Run")
    window.race.open()
    window.race.clock.seek(window.race.clock.end_ms * RACE_AT)
    camera.take("race", window.race)
    window.race.close()
    for num_draft_tokens in COMPARED:
        window.controls.fields["num_draft_tokens"].set_value(num_draft_tokens)
        run_once(window)
    take_comparison(camera, window)


def take_comparison(camera: Camera, window: MainWindow) -> None:
    """The latest runs side by side."""
    count = 1 + len(COMPARED)
    window.menus.runs.trigger()
    wait_until(lambda: window.runs.window is not None and window.runs.window.table.count() >= count)
    runs = window.runs.window
    assert runs is not None
    runs.resize(*COMPARE_SIZE)
    wait(500)
    flag = QItemSelectionModel.SelectionFlag
    for row in range(count):
        runs.table.selectionModel().select(runs.table.model().index(row, 0), flag.Select | flag.Rows)
    runs.compare_button.click()
    wait_until(lambda: runs.pages.currentWidget() is runs.compare_page)
    camera.take("compare", runs)
    runs.close()


def gallery(camera: Camera, window: MainWindow) -> None:
    """Every page and tool window: empty, in a run, finished, with a selection, failed."""
    camera.take_pages("empty")
    take_tools(camera, window, "empty")
    window.prompt.run_button.click()
    wait_until(lambda: window.run_view.num_tokens > 40)
    window.transcript.playback.pause_button.click()
    camera.take_pages("paused")
    window.transcript.playback.pause_button.click()
    wait_until(lambda: window.controller.state is RunState.IDLE)
    wait(1_000)
    camera.take_pages("finished")
    select_rejection(window)
    window.menus.show_ghosts.setChecked(True)
    camera.take_pages("selected")
    window.race.clock.seek(window.race.clock.end_ms * RACE_AT)
    take_tools(camera, window, "finished")
    take_running_tools(camera, window)
    window.transcript.playback.pace.choose(Pace.STEPWISE)
    window.transcript.playback.pace.activated.emit(0)
    window.prompt.run_button.click()
    wait_until(lambda: window.controller.state is RunState.PAUSED and window.run_view.prefill is not None)
    camera.take_all("stepwise")
    window.controller.stop()
    wait_until(lambda: window.controller.state is RunState.IDLE)
    take_phases(camera, window)
    take_ends(camera, window)
    take_server(camera, window)
    take_introduction(camera, window)
    take_failure(camera, window)
    take_trees(camera, window)
    take_rare(camera, window)


def take_tools(camera: Camera, window: MainWindow, state: str) -> None:
    """The windows that the menus open."""
    menus = window.menus
    for action in (menus.models, menus.runs, menus.server, menus.check, menus.sweep, menus.production, menus.help,
                   menus.formulas, menus.keys, menus.commands):  # fmt: skip
        action.trigger()
        wait(1_000)
        for opened in window.findChildren(QDialog):
            if opened.isVisible():
                camera.take_all(f"{state}-{action.objectName().removesuffix('Action')}", opened)
                opened.close()
    about = AboutDialog(window, window.status.place.text(), window.jobs)
    about.show()
    camera.take_all(f"{state}-about", about)
    about.close()


def take_running_tools(camera: Camera, window: MainWindow) -> None:
    """Check and Sweep in the middle of their work, and with their results; runs side by side, and as a mean."""
    for seed in (1, 2, 3):
        settings = replace(window.controls.settings(window.prompt.text()), seed=seed)
        window.controls.apply(settings)
        run_once(window)
    window.menus.runs.trigger()
    wait_until(lambda: window.runs.window is not None and window.runs.window.table.count() >= 3)
    runs = window.runs.window
    assert runs is not None
    runs.table.selectAll()
    runs.compare_button.click()
    wait_until(lambda: runs.pages.currentWidget() is runs.compare_page)
    camera.take_all("finished-compare", runs)
    runs.compare_page.grouping.click()
    wait(1_000)
    camera.take_all("finished-compare-grouped", runs)
    runs.close()
    window.menus.check.trigger()
    check = window.check
    check.blocks.setValue(check.blocks.minimum())
    check.start_button.click()
    wait_until(lambda: check.progress.value() > 0)
    camera.take_all("running-check", check)
    wait_until(check.start_button.isEnabled)
    camera.take_all("done-check", check)
    check.close()
    window.menus.sweep.trigger()
    sweeps = window.sweep
    sweeps.form.lengths.setText("2, 4")
    sweeps.form.temperatures.setText("0, 1")
    sweeps.form.length.setValue(32)
    sweeps.form.start_button.click()
    wait(4_000)
    camera.take_all("running-sweep", sweeps)
    wait_until(sweeps.form.start_button.isEnabled)
    camera.take_all("done-sweep", sweeps)
    sweeps.form.quick_button.click()
    wait_until(lambda: not sweeps.is_running)
    camera.take_all("done-estimate", sweeps)
    sweeps.close()


def take_phases(camera: Camera, window: MainWindow) -> None:
    """A run with a pending draft, shown slowly and in halves, and one that measures its baseline."""
    for pace, name in ((Pace.HALVES, "drafted"), (Pace.SLOWER, "drafting")):
        window.playback.set_pace(pace)
        window.prompt.run_button.click()
        for _ in range(7 if pace is Pace.HALVES else 0):
            window.playback.step_button.click()
        wait_until(lambda: bool(window.run_view.tokens.pending) and len(window.run_view.steps) > 2)
        camera.take_all(name, pages=window.side, sizes=FEW)
        window.menus.stop.trigger()
        wait_until(lambda: window.controller.state is RunState.IDLE)
        wait(1_000)
    window.playback.set_pace(Pace.FULL)
    share, waiting = RunControls.sharing_stop, []

    def held(self: RunControls, *settings: Any) -> RunControls:
        """A baseline's controls: it ends too soon for pictures, so it waits after some steps."""
        controls = share(self, *settings)
        for _ in range(HELD_AT):
            controls.step_once()
        waiting.append(controls)
        return controls

    with patch.object(RunControls, "sharing_stop", held):
        window.prompt.run_button.click()
        run = window.run_view
        wait_until(lambda: run.summary is None and len(run.baseline_steps) >= HELD_AT)
        camera.take_all("baseline", pages=window.side, sizes=FEW)
    window.menus.stop.trigger()
    waiting[-1].resume()
    wait_until(lambda: window.controller.state is RunState.IDLE)
    wait(1_000)
    camera.take_all("stopped", pages=window.side, sizes=FEW)
    window.side.show_title("Run")


def take_ends(camera: Camera, window: MainWindow) -> None:
    """Checks and sweeps that were stopped, that failed, and that found an error."""
    window.menus.check.trigger()
    check = window.check
    check.start_button.click()
    wait_until(lambda: check.progress.value() > 0)
    check.stop()
    wait_until(check.start_button.isEnabled)
    camera.take_all("stopped-check", check, sizes=FEW)
    fails, finds = FakeCheck(), FakeCheck(broken=True)
    fails.error = GenerationError(
        "The target's logits hold NaN. In half precision, try float32; otherwise choose another target model."
    )
    check.blocks.setValue(DEFAULT_SAMPLES)  # As in the fakes' reports.
    for fake, name in ((finds, "inexact-check"), (fails, "failed-check")):
        with patch("core.experiments.check.check", fake):
            check.start_button.click()
            wait_until(check.start_button.isEnabled)
        camera.take_all(name, check, sizes=FEW)
    check.close()
    window.menus.sweep.trigger()
    sweeps = window.sweep
    sweeps.form.start_button.click()
    wait_until(lambda: sweeps.view.num_done > 2)
    sweeps.stop()
    wait_until(sweeps.form.start_button.isEnabled)
    camera.take_all("stopped-sweep", sweeps, sizes=FEW)
    cells, whole = FakeSweepSession(on_run=fails_at(4), length=32), Mock()
    whole.run.side_effect = OutOfMemoryError("Outrider Code target doesn't fit on cpu.")
    for engine, name in ((cells, "failed-cells"), (whole, "failed-sweep")):
        faked = partial(lambda engine, plan, _run, **more: sweep(plan, engine.run, **more), engine)
        with patch("app.tools.sweep.window.sweep", faked):
            sweeps.form.start_button.click()
            wait_until(sweeps.form.start_button.isEnabled)
        sweeps.heatmap.setCurrentCell(0, 2)
        camera.take_all(name, sweeps, sizes=FEW)
    sweeps.close()


def take_server(camera: Camera, window: MainWindow) -> None:
    """A server: the main window after a run on it, its counters, and what is said once it is gone."""
    polls, view, engine = itertools.count(), window.server, window.controls.engine
    with patch("app.tools.server.POLL_MS", 100), FakeServer(vllm(metrics=lambda _: counters(next(polls)))) as fake:
        engine.choose(fake.url, "vllm.example")
        wait_until(lambda: not engine.problem())
        window.menus.server.trigger()
        wait_until(lambda: len(view.history.times) > 20)
        run_once(window)
        camera.take_all("connected", pages=window.side, sizes=FEW)
        wait_until(lambda: len(view.history.times) > 60)
        camera.take_all("connected-server", view)
    wait_until(lambda: view.headline.property("role") == "problem")
    camera.take_all("lost-server", view, sizes=FEW)
    view.close()
    engine.choose("")
    engine.changed.emit()
    window.side.show_title("Run")


def counters(count: int) -> Answer:
    """The counters of a server at a poll: as recorded, and grown by more or less each time."""
    before, after = (str(recorded("vllm-draft", f"metrics-{when}").chunks[0]) for when in ("before", "after"))
    share, lines = sum(3 + place % 5 for place in range(count)) / 50, []
    for one, other in zip(before.splitlines(), after.splitlines(), strict=True):
        name, _, value = other.rpartition(" ")
        old = one.rpartition(" ")[2]
        lines.append(other if old == value else f"{name} {float(old) + share * (float(value) - float(old))}")
    return replace(recorded("vllm-draft", "metrics-after"), chunks=["\n".join(lines) + "\n"])


def take_failure(camera: Camera, window: MainWindow) -> None:
    """A run that can't start: its prompt is longer than the target reads."""
    prompt = window.prompt.text()
    window.prompt.set_text(LONG_PROMPT)
    window.prompt.run_button.click()
    wait_until(lambda: bool(window.banner.sentence()))
    camera.take_pages("failed")
    window.prompt.set_text(prompt)


def take_trees(camera: Camera, window: MainWindow) -> None:
    """A run of trees, with the strip of one of them: a pending one first."""
    window.playback.set_pace(Pace.STEPWISE)
    window.controls.method.choose("draft-tree")
    window.controls.fields["num_draft_tokens"].set_value(12)
    window.prompt.run_button.click()
    wait_until(lambda: window.controller.state is RunState.PAUSED and window.run_view.prefill is not None)
    window.transcript.playback.step_button.click()
    wait_until(lambda: bool(window.run_view.tokens.pending))
    camera.take("tree-pending")
    window.controller.stop()
    wait_until(lambda: window.controller.state is RunState.IDLE)
    window.transcript.playback.pace.choose(Pace.FULL)
    window.transcript.playback.pace.activated.emit(0)
    run_once(window)
    camera.take_pages("tree")


def take_rare(camera: Camera, window: MainWindow) -> None:
    """The models that can be downloaded, and the advanced settings."""
    window.models.browse()
    assert window.models.window is not None
    camera.take_all("models-get", window.models.window)
    window.models.window.close()
    window.controls.advanced.set_open(True)
    window.controls.fields["verification"].setFocus()
    camera.take_all("advanced")
    window.side.show_title("Settings")  # With large text, the settings are a page.
    bar = window.controls.verticalScrollBar()
    bar.rangeChanged.connect(lambda _, most: bar.setValue(most))
    bar.setValue(bar.maximum())
    camera.take_all("advanced-settings", sizes={1.5: SIZES[1.5]})


def take_introduction(camera: Camera, window: MainWindow) -> None:
    """The first minute: its callouts, and what its bar offers after each run."""
    introduction = window.introduction
    window.side.show_title("Run")
    window.menus.introduction.trigger()
    for number in (1, 2, 3):
        wait_until(lambda: not introduction.callout.isHidden())
        introduction._timer.stop()  # A callout stays for its pictures.
        camera.take_all(f"callout-{number}", sizes=FEW)
        introduction.callout.next_button.click()
    introduction.bar.leave_button.click()
    for part in (Part.LIVE, Part.RACE):
        wait_until(lambda part=part: introduction._part is part and introduction.bar.isVisible())
        camera.take_all(f"introduction-{part.name.lower()}", sizes=FEW)
        if part is Part.LIVE:
            introduction.bar.go_button.click()
            window.playback.set_pace(Pace.FULL)
    introduction.bar.leave_button.click()


if __name__ == "__main__":
    sys.exit(main())
