"""The models window in its states, and what the main window shows of it."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from app.setup.models_form import ModelRole
from app.tools.models.downloads import DownloadRow
from tests.fakes_app import FakeSession
from tests.fakes_models import FakeHub, hub_entry, make_details
from tests.screenshots_camera import Camera, opened, wait

SIZE = (1140, 700)


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


def photograph_models(folder: Path, only: str) -> None:
    """Models that are here, that can be had, and that come."""
    with tempfile.TemporaryDirectory() as scratch:
        hub = scripted_hub()
        with opened(FakeSession, Path(scratch), hub) as window:
            camera = Camera(folder, window, only)
            desk = window.models
            desk.open()
            panel = desk.window
            wait(300)

            def shoot(state: str) -> None:
                camera.shoot_other(f"models-{state}", lambda: panel, SIZE)

            shoot("first")
            panel.table.select("HuggingFaceTB/SmolLM2-1.7B-Instruct")
            shoot("details")
            panel.table.select("broken/half-a-model")
            shoot("damaged")
            panel.filter.setText("no such model")
            shoot("none")
            panel.filter.clear()
            desk.browse()
            shoot("get")
            for ref in ("HuggingFaceTB/SmolLM2-360M-Instruct", "Qwen/Qwen3-0.6B"):
                panel.get_requested.emit(ref, False)
            for _ in range(4):
                hub.gate.release()
            wait(3000, lambda: any("290" in row.note.text() for row in panel.downloads.findChildren(DownloadRow)))
            shoot("downloading")
            camera.shoot("window-downloading")
            hub.fail_after = (0, "The connection to the Hub broke. What came is kept; resume when the network is back.")
            desk.downloads.cancel("HuggingFaceTB/SmolLM2-360M-Instruct")
            wait(3000, lambda: not any(download.state.is_active for download in desk.downloads.all()))
            shoot("failed")
            panel.suggestions.set_offline(True)
            shoot("offline")
            panel.close()
            hub.warnings = ("A step of the draft is expected to cost .62 of the target's. Choose a smaller draft.",)
            window.controls.models.choose(ModelRole.TARGET, "HuggingFaceTB/SmolLM2-1.7B-Instruct")
            window.prompt.reading_button.setChecked(True)
            wait(600)
            camera.shoot("window-verdict")
            combo = window.controls.draft.combo
            combo.showPopup()
            camera.shoot_other("window-drafts", lambda: combo.view().window())
            combo.hidePopup()
