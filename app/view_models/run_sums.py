"""The sums that the pages Why and Theory are made of, kept up with a run."""

from __future__ import annotations

from app.view_models.run_view import RunView
from core.diagnosis import PlainStep, StepSums, plain_step


class RunSums:
    """Reads a `RunView`, each step once.

    Attributes:
        steps, baseline: sums over the run's own steps, and over its baseline's.
    """

    def __init__(self, run: RunView) -> None:
        self._run = run
        self._steps, self.steps = run.steps, StepSums()
        self._baseline_steps, self.baseline = run.baseline_steps, StepSums()

    def forget_old(self) -> None:
        """Let go of the steps of a run that is no longer at hand."""
        run = self._run
        if self._steps is not run.steps:  # Another run.
            self._steps, self.steps = run.steps, StepSums()
        if self._baseline_steps is not run.baseline_steps:
            self._baseline_steps, self.baseline = run.baseline_steps, StepSums()

    def read(self) -> None:
        """Take in what has come."""
        self.forget_old()
        for sums, steps in ((self.steps, self._steps), (self.baseline, self._baseline_steps)):
            for step in steps[sums.num_steps :]:
                sums.add(step)

    @property
    def target_step_ms(self) -> float | None:
        """A plain forward of the target, timed before the run."""
        return self._run.prefill.target_step_ms if self._run.prefill is not None else None

    def plain(self) -> PlainStep | None:
        """What the run is held against, as far as is known."""
        return plain_step(self.baseline, self.target_step_ms, self._run.summary)
