"""A window whose engine answers a sweep with known speeds, and a sweep's file to open in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.main_window import MainWindow
from app.tools.sweep.window import SweepWindow
from core.errors import GenerationError
from core.experiments.sweep import sweep
from core.experiments.sweep_plan import SweepPlan
from tests.fakes_sweep import FakeSweepSession, plan_of


@dataclass
class FakeSweepEngine(FakeSweepSession):
    """What the window's worker needs beside runs."""

    def held_bytes(self, _device: str) -> int:
        """None are held."""
        return 0

    def close(self) -> None:
        """Nothing is to be dropped."""


def choose_small(window: MainWindow, *, lengths: str = "1, 2", temperatures: str = "0") -> SweepWindow:
    """Open the window of sweeps and choose a small one: one prompt, two repeats."""
    window.menus.sweep.trigger()
    sweeps = window.tools.sweep
    sweeps.form.lengths.setText(lengths)
    sweeps.form.temperatures.setText(temperatures)
    sweeps.form.repeats.setValue(2)
    sweeps.form.length.setValue(16)
    return sweeps


def keep_sweep(path: Path, plan: SweepPlan | None = None, engine: FakeSweepSession | None = None) -> Path:
    """Write a whole sweep's file, with the logs of its runs beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in sweep(plan or plan_of(), engine or FakeSweepSession(), out=path, logs=path.with_suffix("")):
        pass
    return path


def fails_at(k: int):
    """For `on_run`: runs with this K fail."""

    def on_run(request, controls):
        if controls.num_draft_tokens == k:
            raise GenerationError("The draft ran out of memory.")

    return on_run
