"""The sums that the pages Why and Theory are made of, kept up with a run."""

from __future__ import annotations

from collections.abc import Generator

from app.view_models.run_view import RunView
from core.diagnosis import PlainStep, StepSums, plain_step
from core.theory.columns import GrowingColumns

PIECE = 1000
"""Steps that are read without a pause: a few milliseconds."""


class RunSums:
    """Reads a `RunView`, each step once.

    Attributes:
        steps, baseline: sums over the run's own steps, and over its baseline's.
        columns: the run's own steps one by one, for who wants them.
    """

    def __init__(self, run: RunView, *, with_columns: bool = False) -> None:
        self._run = run
        self._steps, self.steps = run.steps, StepSums()
        self._baseline_steps, self.baseline = run.baseline_steps, StepSums()
        self.columns = GrowingColumns() if with_columns else None

    def forget_old(self) -> None:
        """Let go of the steps of a run that is no longer at hand."""
        run = self._run
        if self._steps is not run.steps:  # Another run.
            self._steps, self.steps = run.steps, StepSums()
            self.columns = GrowingColumns() if self.columns is not None else None
        if self._baseline_steps is not run.baseline_steps:
            self._baseline_steps, self.baseline = run.baseline_steps, StepSums()

    def read(self) -> None:
        """Take in what has come."""
        for _ in self.pieces():
            pass

    def pieces(self) -> Generator[None]:
        """Take in what has come, so many steps at a time. Who stops in between loses nothing."""
        self.forget_old()
        for sums, columns, steps in (
            (self.steps, self.columns, self._steps),
            (self.baseline, None, self._baseline_steps),
        ):
            while new := steps[sums.num_steps : sums.num_steps + PIECE]:
                for step in new:
                    sums.add(step)
                    if columns is not None:
                        columns.add(step)
                yield

    @property
    def has_much(self) -> bool:
        """Whether more has come than is to be read without a pause."""
        run = self._run
        read = self.steps.num_steps if self._steps is run.steps else 0
        baseline_read = self.baseline.num_steps if self._baseline_steps is run.baseline_steps else 0
        return len(run.steps) - read + len(run.baseline_steps) - baseline_read > PIECE

    @property
    def target_step_ms(self) -> float | None:
        """A plain forward of the target, timed before the run."""
        return self._run.prefill.target_step_ms if self._run.prefill is not None else None

    def plain(self) -> PlainStep | None:
        """What the run is held against, as far as is known."""
        return plain_step(self.baseline, self.target_step_ms, self._run.summary)
