"""Photograph the window in each of its states: `python -m tests.screenshots FOLDER`.

The session is the tests' scripted one, so that the pictures are the same every time and need no weights; `--real`
uses the engine and the embedded pair instead.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from app.controller import RunState
from app.main_window import MainWindow
from app.model_questions import ModelRole
from app.services import Services
from app.settings import SettingsStore
from app.theme import ThemeMode
from app.widgets.models_downloads import DownloadRow
from tests.fakes_app import FakeSession, fake_services
from tests.fakes_models import FakeHub, hub_entry, make_details

SIZES = ((1280, 800), (1920, 1080))
TIMEOUT_MS = 300_000


def wait(milliseconds: int, until: Callable[[], bool] = lambda: False) -> None:
    """Let the window live until something holds, or for a while."""
    loop = QEventLoop()
    deadline, poll = QTimer(), QTimer()
    deadline.setSingleShot(True)
    deadline.timeout.connect(loop.quit)
    poll.timeout.connect(lambda: loop.quit() if until() else None)
    deadline.start(milliseconds)
    poll.start(20)
    loop.exec()


def photograph(folder: Path, mode: ThemeMode, size: tuple[int, int], *, real: bool) -> None:
    """All states in one theme and size."""
    with tempfile.TemporaryDirectory() as scratch:
        session = FakeSession(gate=threading.Semaphore(0), step_ms=11.0)
        services = (
            Services(runs_folder=lambda: Path(scratch) / "runs", store=SettingsStore(Path(scratch) / "settings.json"))
            if real
            else fake_services(session, Path(scratch))
        )
        window = MainWindow(services=services)
        window.menus.theme_actions[mode].trigger()
        window.resize(*size)
        window.show()
        wait(700)

        def shoot(state: str) -> None:
            wait(200)
            path = folder / f"{state}-{mode.value}-{size[0]}x{size[1]}.png"
            window.grab().save(str(path))
            print(path)

        def is_idle() -> bool:
            return window.controller.state is RunState.IDLE

        shoot("empty")
        window.prompt.run_button.click()
        if real:
            wait(TIMEOUT_MS, lambda: window.run_view.tokens.num_tokens > 40 or is_idle())
        else:
            for _ in range(22):
                session.gate.release()
            wait(2000, lambda: window.run_view.metrics.totals.steps >= 22)
        shoot("running")
        session.gate.release(10_000)
        wait(TIMEOUT_MS, is_idle)
        shoot("finished")
        window.menus.show_ghosts.setChecked(True)
        shoot("rejected")
        window.menus.show_ghosts.setChecked(False)
        if not real:
            session.fail_after = (9, "The model returned numbers that can't be sampled (NaN). Try float32.")
            window.prompt.run_button.click()
            wait(2000, is_idle)
            shoot("failed")
        window.close()
        wait(2000, lambda: window.threads.is_closed)
        window.deleteLater()


def scripted_hub() -> FakeHub:
    """Models as a person may have them."""
    hub = FakeHub(gate=threading.Semaphore(0), total_bytes=724_000_000)
    big = {"num_layers": 28, "hidden_size": 3072, "vocab_size": 151_643, "architecture": "qwen2"}
    for ref, size, days, changes in (
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 269_060_552, 0, {"is_instruct": True, "has_chat_template": True}),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", 3_422_777_952, 1, {"num_parameters": 1_711_376_384}),
        ("Qwen/Qwen2.5-0.5B", 988_097_824, 12, {**big, "num_parameters": 494_032_768, "context_length": 32_768}),
        ("Qwen/Qwen2.5-7B-Instruct", 15_231_233_024, 40, {**big, "num_parameters": 7_615_616_512, "is_instruct": True}),
        ("openai-community/gpt2", 548_105_171, 400, {"architecture": "gpt2", "precision": "float32"}),
    ):
        hub.entries.append(hub_entry(ref, size, days=days))
        hub.details[ref] = make_details(ref.rpartition("/")[2], **changes)
    hub.entries.append(hub_entry("broken/half-a-model", 12_000_000, days=90))
    hub.details["broken/half-a-model"] = "The file model.safetensors of broken/half-a-model is cut off. Get it again."
    return hub


def photograph_models(folder: Path, mode: ThemeMode, size: tuple[int, int]) -> None:
    """The models window in its states, and what the main window shows of it."""
    with tempfile.TemporaryDirectory() as scratch:
        hub = scripted_hub()
        window = MainWindow(services=fake_services(FakeSession(), Path(scratch), hub))
        window.menus.theme_actions[mode].trigger()
        window.resize(*size)
        window.show()
        wait(700)
        desk = window.models

        def shoot(state: str, widget: QWidget) -> None:
            wait(250)
            path = folder / f"{state}-{mode.value}-{size[0]}x{size[1]}.png"
            widget.grab().save(str(path))
            print(path)

        desk.open()
        panel = desk.window
        panel.resize(min(size[0] - 140, 1400), size[1] - 100)
        wait(300)
        shoot("models-first", panel)
        panel.table.select("HuggingFaceTB/SmolLM2-1.7B-Instruct")
        shoot("models-details", panel)
        panel.table.select("broken/half-a-model")
        shoot("models-damaged", panel)
        panel.filter.setText("no such model")
        shoot("models-none", panel)
        panel.filter.clear()
        desk.browse()
        shoot("models-get", panel)
        for ref in ("HuggingFaceTB/SmolLM2-360M-Instruct", "Qwen/Qwen3-0.6B"):
            panel.get_requested.emit(ref, False)
        for _ in range(4):
            hub.gate.release()
        wait(3000, lambda: any("290" in row.note.text() for row in panel.shelf.findChildren(DownloadRow)))
        shoot("models-downloading", panel)
        shoot("window-downloading", window)
        hub.fail_after = (0, "The connection to the Hub broke. What came is kept; resume when the network is back.")
        desk.store.cancel("HuggingFaceTB/SmolLM2-360M-Instruct")
        wait(3000, lambda: not any(download.state.is_active for download in desk.store.downloads))
        shoot("models-failed", panel)
        panel.suggestions.set_offline(True)
        shoot("models-offline", panel)
        panel.close()
        hub.warnings = ("A step of the draft is expected to cost .62 of the target's. Choose a smaller draft.",)
        window.controls.models.choose(ModelRole.TARGET, "HuggingFaceTB/SmolLM2-1.7B-Instruct")
        window.prompt.reading_button.setChecked(True)
        wait(600)
        shoot("window-verdict", window)
        window.controls.draft.combo.showPopup()
        wait(300)
        shoot("window-drafts", window.controls.draft.combo.view().window())
        window.controls.draft.combo.hidePopup()
        window.close()
        wait(5000, lambda: window.threads.is_closed)
        window.deleteLater()


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--real", action="store_true", help="the engine and the embedded pair")
    parser.add_argument("--models", action="store_true", help="only the models window")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    application = QApplication.instance() or QApplication(sys.argv[:1])
    for mode in (ThemeMode.LIGHT, ThemeMode.DARK):
        for size in SIZES:
            if not arguments.models:
                photograph(arguments.folder, mode, size, real=arguments.real)
            if not arguments.real:
                photograph_models(arguments.folder, mode, size)
    del application
    return 0


if __name__ == "__main__":
    sys.exit(main())
