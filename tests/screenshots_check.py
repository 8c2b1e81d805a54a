"""The window of the check: empty, going, and with each of its verdicts."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest

from tests.fakes_app import FakeSession
from tests.fakes_check import FakeCheck
from tests.fakes_models import FakeHub
from tests.screenshots_camera import TIMEOUT_MS, Camera, opened, wait


def photograph_check(folder: Path, only: str) -> None:
    """Take its pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        fake = FakeCheck()
        patches = pytest.MonkeyPatch()
        patches.setattr("core.experiments.checking.check", fake)
        with opened(FakeSession, Path(scratch), FakeHub()) as window:
            camera = Camera(folder, window, only)
            window.menus.check.trigger()
            panel = window.tools.check
            assert panel is not None
            camera.shoot_other("check-empty", lambda: panel)
            fake.gate = threading.Semaphore(1)
            panel.check_button.click()
            wait(TIMEOUT_MS, lambda: panel.progress.value() > 0)
            camera.shoot_other("check-going", lambda: panel)
            panel.stop_button.click()
            wait(TIMEOUT_MS, panel.check_button.isEnabled)
            fake.gate = None
            for name, report in (("exact", {}), ("near", {"near": True}), ("broken", {"broken": True})):
                fake.report = report
                panel.check_button.click()
                wait(TIMEOUT_MS, panel.check_button.isEnabled)
                camera.shoot_other(f"check-{name}", lambda: panel)
