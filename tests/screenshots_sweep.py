"""The window of sweeps: before one, while it goes, with failed cells, and finished."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from app.main_window import MainWindow
from tests.fakes_models import FakeHub
from tests.fakes_sweep_window import FakeSweepEngine, choose_small, fails_at
from tests.screenshots_camera import Camera, opened, wait

SIZE = (1280, 800)


class _Engine(FakeSweepEngine):
    """Speeds that rise and fall with K, as real ones do; below plain decoding at a high temperature."""

    def __init__(self) -> None:
        super().__init__(speed=_speed)


def _speed(request: object, is_plain: bool) -> float:
    k = getattr(request, "num_draft_tokens", None) or 4
    temperature = request.sampling.temperature  # type: ignore[attr-defined]
    rate = 0.85 - 0.45 * temperature
    share = sum(rate**n for n in range(k + 1)) / (1 + 0.16 * k)
    method = 1.0 if request.method == "draft-model" else 0.8  # type: ignore[attr-defined]
    return 31.0 if is_plain else 31.0 * share * method


def photograph_sweeps(folder: Path, only: str) -> None:
    """Take the pictures."""
    with tempfile.TemporaryDirectory() as scratch:
        engine = _Engine()
        with opened(lambda: engine, Path(scratch), FakeHub()) as window:
            camera = Camera(folder, window, only)
            window.menus.sweep.trigger()
            _shoot(camera, window, "empty")
            sweeps = choose_small(window, lengths="", temperatures="0, 0.5, 1.5")
            _shoot(camera, window, "problem")
            sweeps.form.lengths.setText("1-6, 8")
            sweeps.form.methods.box("prompt-lookup").setChecked(True)
            gate = threading.Semaphore(60)
            engine.on_run = lambda request, controls: _wait(gate, controls)
            sweeps.form.start_button.click()
            wait(20_000, lambda: window.tools.sweep.view.num_done == 60)
            _shoot(camera, window, "running")
            gate.release(10_000)
            _finish(window)
            sweeps.heatmap.choose(1, 4)
            _shoot(camera, window, "finished")
            sweeps.figures.group.button(2).click()
            _shoot(camera, window, "tokens")
            sweeps.figures.group.button(0).click()
            engine.on_run = fails_at(3)
            sweeps.form.repeats.setValue(1)
            sweeps.form.start_button.click()
            _finish(window)
            sweeps.heatmap.choose(0, 3)
            _shoot(camera, window, "failed")
            sweeps.question.ask(1_240, 12_000)
            _shoot(camera, window, "asks")


def _wait(gate: threading.Semaphore, controls: object) -> None:
    while not gate.acquire(timeout=0.05):
        if controls.is_cancelled:  # type: ignore[attr-defined]
            return


def _finish(window: MainWindow) -> None:
    wait(60_000, lambda: not window.tools.sweep.is_running)


def _shoot(camera: Camera, window: MainWindow, state: str) -> None:
    camera.shoot_other(f"sweep-{state}", lambda: window.tools.sweep, SIZE)  # type: ignore[arg-type, return-value]
