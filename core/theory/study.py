"""All that theory says of a run, and the one sentence that it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.diagnosis import LEAST_BLOCKS, StepSums, plain_step
from core.figures import percent_text
from core.theory.calibration import Calibration, calibrate
from core.theory.columns import NUM_RESAMPLES
from core.theory.predictors import PredictorStudy, study_predictors
from core.theory.speedup import SpeedupTheory, speedup_theory
from core.types import Step, Summary

SURE = 0.95
"""Share of the resamples that must agree before something is said without a doubt."""


@dataclass(frozen=True, slots=True)
class Study:
    """Each part is None where the run lacks what it takes."""

    speedup: SpeedupTheory | None
    calibration: Calibration | None
    predictors: PredictorStudy | None
    num_steps: int


def study(
    steps: Sequence[Step],
    baseline_steps: Sequence[Step] = (),
    *,
    target_step_ms: float | None = None,
    summary: Summary | None = None,
    num_resamples: int = NUM_RESAMPLES,
) -> Study:
    """Work out a run, of which all steps are here. A second or less for 5,000 steps: not for the window's thread.

    Args:
        steps, baseline_steps: as they came.
        target_step_ms: `PrefillDone.target_step_ms`.
        summary: tells the baseline's speed where its steps are not at hand.
        num_resamples: for the intervals.
    """
    baseline = StepSums()
    for step in baseline_steps:
        baseline.add(step)
    plain = plain_step(baseline, target_step_ms, summary)
    return Study(
        speedup=speedup_theory(steps, plain, baseline_steps, num_resamples=num_resamples),
        calibration=calibrate(steps),
        predictors=study_predictors(steps),
        num_steps=len(steps),
    )


def verdict(theory: SpeedupTheory) -> str:
    """What to do, in one sentence."""
    if not theory.is_enough:
        return f"Too few blocks to tell: {theory.num_blocks} were drafted, {LEAST_BLOCKS} are needed."
    best = theory.best_k
    if not best:
        doubt = theory.share_wins
        sure = "" if doubt is None or doubt <= 1 - SURE else f" ({percent_text(1 - doubt)} sure)"
        return f"Don't speculate with this pair here{sure}: no K from 1 to 16 is predicted to win."
    found = theory.measured_verify.at(best)
    interval = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    drawn_on = "" if best <= theory.longest else f", on a v drawn on beyond K = {theory.longest}"
    said = f"K = {best} is predicted to pay most: {found.value:.2f}×{interval}{drawn_on}"
    if theory.share_wins is not None and theory.share_wins < SURE:
        return f"{said}; only {percent_text(theory.share_wins)} sure to beat plain decoding at all."
    return f"{said}."
