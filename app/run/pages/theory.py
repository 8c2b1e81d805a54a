"""View model of the page Theory: a verdict, the curves, and every value with its interval and its formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from app.run.run_view import NamedValue, RunView
from core.analysis.calibration import Calibration, Predictor, PredictorFit, PredictorStudy, Study, study, verdict
from core.analysis.expectation import Estimate
from core.analysis.theory import ShapeTheory, SpeedupTheory, speedup_theory
from core.settings import Coupling
from core.text import percent_text

EMPTY = "Start a run, and this page compares theory with measurement."
NO_UNIT = "There is no plain step to compare this run with. Tick “Measure the baseline” and run again."
UNDRAFTED = "Nothing was drafted: the theory doesn't apply to plain decoding."
LATER = "Intervals and calibration follow when the run is over."
COMPUTING = "Computing the intervals…"
UNCALIBRATED = "Predicted acceptance isn't compared here: this run has no separate probability for each test."

INTERVAL = "95 % interval: percentiles over 500 resamples of the run's steps (Efron's bootstrap, 1979)"
TREE_TOKENS = (
    "Tokens: 1 + how many of the first K nodes of this run's trees were accepted, down to this depth. For larger "
    "shapes, run a larger tree."
)
MOST_SHAPES = 5
P_AND_Q = "p: the target's distribution; q: the draft's"


@dataclass(frozen=True, slots=True)
class TheoryReport:
    """All that the page shows; only the headline if there is no `speedup`."""

    headline: str
    basis: str = ""
    speedup: SpeedupTheory | None = None
    calibration: Calibration | None = None
    rows: tuple[NamedValue, ...] = ()
    predictors: tuple[NamedValue, ...] = ()
    predictors_note: str = ""


def live_report(run: RunView) -> TheoryReport:
    """The page for the run so far, without intervals and calibration."""
    if not run.steps:
        return TheoryReport(EMPTY)
    plain = run.plain_step
    theory = speedup_theory(run.counts.sums, plain, num_resamples=0)
    if theory is None:
        return TheoryReport(NO_UNIT if plain is None else UNDRAFTED)
    basis = _basis(theory, LATER if run.summary is None else COMPUTING)
    return TheoryReport(verdict(theory), basis, theory, rows=_rows(theory, None, run.coupling))


def study_of(run: RunView) -> Callable[[], Study] | None:
    """A function that computes a finished run's study in up to half a second: call it in a job."""
    if run.summary is None or not run.steps:
        return None
    steps, baseline_steps = tuple(run.steps), tuple(run.baseline_steps)
    return partial(study, steps, baseline_steps, target_step_ms=run.target_step_ms, summary=run.summary)


def whole_report(run: RunView, found: Study) -> TheoryReport:
    """The page of a finished run, with its study."""
    theory = found.speedup
    if theory is None:
        drafted = any(step.num_draft_tokens for step in run.steps)
        return TheoryReport(NO_UNIT if drafted else UNDRAFTED)
    return TheoryReport(
        headline=verdict(theory),
        basis=_basis(theory, "" if found.calibration is not None else UNCALIBRATED),
        speedup=theory,
        calibration=found.calibration,
        rows=_rows(theory, found.calibration, run.coupling),
        predictors=tuple(map(_predictor_row, found.predictors.fits)) if found.predictors is not None else (),
        predictors_note=_predictors_note(found.predictors),
    )


def _basis(theory: SpeedupTheory, note: str) -> str:
    unit = "the baseline's plain step" if theory.is_plain_measured else "one plain forward, timed before the run"
    said = f"From {theory.num_tested:,} tested tokens of {theory.num_blocks:,} blocks, against {unit}."
    return f"{said} {note}".rstrip()


def _rows(theory: SpeedupTheory, calibration: Calibration | None, coupling: Coupling) -> tuple[NamedValue, ...]:
    k = theory.usual_k
    # If K changed during the run, the run's point lies between the curves' points.
    own = theory.ran_k == k
    ran = f"K = {theory.ran_k:.1f}" if not own else f"K = {k}"
    predicted_tokens = _figure(theory.tokens.at(k)) if own else ("–", "")
    predicted = _figure(theory.measured_verify.at(k), "×") if own else ("–", "")
    trees = theory.trees
    rows = [
        _row("α, acceptance", *_figure(theory.alpha), f"accepted / tested tokens; those after a rejection are not "
            f"tested. {theory.num_tested:,} were. {INTERVAL}."),
        _row("c, draft cost", *_figure(theory.cost, digits=3), f"time of one draft step / time of a plain forward of "
            f"the target. {INTERVAL}."),
        _row(f"v({k + 1}), verify cost", *_figure(theory.verify.at(k)), f"median time to score {k + 1} "
        "positions / time "
            f"of a plain forward. {INTERVAL}."),
        _row("τ, block efficiency", *_figure(theory.ran_tokens), f"new tokens / steps, at {ran}. {INTERVAL}."),
        _row("τ expected", *predicted_tokens, "(1 − α^(K+1)) / (1 − α) at the same K: Leviathan et al., equation 1, "
            "which assumes that every position is accepted independently with the same probability."
            if trees is None else TREE_TOKENS),
        _row("Speedup as it ran", *_figure(theory.ran_speedup, "×"), f"tokens × time of a plain step / time of all "
            f"steps, at {ran}. {INTERVAL}."),
        _row("Speedup expected", *predicted, f"τ / (K c + v(K+1)) at the same K. It leaves out sampling and "
        f"overhead, which the page Why shows. {INTERVAL}."),
        *(_best_k_rows(theory) if trees is None else map(_shape_row, trees.shapes[:MOST_SHAPES])),
    ]  # fmt: skip
    return (*rows, *(_calibration_rows(calibration, coupling) if calibration is not None else ()))


def _best_k_rows(theory: SpeedupTheory) -> tuple[NamedValue, ...]:
    return (
        _row("Best K", str(theory.best_k) if theory.best_k else "none", _agreement(theory), "the K from 0 to 16 with "
            "the largest τ / (K c + v(K+1)); 0 is plain decoding. After it: the share of resamples with the same "
        "best K."),
        _row("Best K if v = 1", str(theory.leviathan.best), "", "the same by τ / (K c + 1), Leviathan et al., theorem "
            "3.8, which assumes that scoring more positions costs nothing."),
    )  # fmt: skip


def _shape_row(shape: ShapeTheory) -> NamedValue:
    what = "the chain of this run's first candidates" if shape.is_chain else "the best K at this depth"
    how = f"{what}: {shape.tokens:.2f} tokens per forward / (levels × c + v(K+1)). {TREE_TOKENS} {INTERVAL}."
    return _row(f"{shape.title[0].upper()}{shape.title[1:]}", *_figure(shape.speedup, "×"), how)


def _calibration_rows(found: Calibration, coupling: Coupling) -> tuple[NamedValue, ...]:
    overall = found.overall
    interval = f"{percent_text(overall.low, 1)} – {percent_text(overall.high, 1)}"
    z = "–" if found.z is None else f"{found.z:+.1f}".replace("-", "−")
    note = (
        " This run shares its noise: acceptance is lower by design, between (1 − TV) / (1 + TV) and 1 − TV."
        if coupling is Coupling.GUMBEL
        else " Beyond ±2 the difference is unlikely to be chance."
    )
    return (
        _row("Predicted acceptance", percent_text(overall.predicted, 1), "", f"mean of Σ min(p, q) = 1 − TV over the "
            f"positions of the {overall.num_tested:,} tested tokens. {P_AND_Q}."),
        _row("Observed acceptance", percent_text(overall.observed, 1), interval, "accepted / "
            "tested tokens at the same positions, with Wilson's 95 % interval."),
        _row("z of the difference", z, "", "(accepted − Σ a) / √Σ a (1 − a), a = 1 − TV at each tested position: a "
            f"standard normal under rejection sampling, whatever the text.{note}"),
    )  # fmt: skip


PREDICTOR_TITLES = {
    Predictor.TARGET_ENTROPY: "H(p), target",
    Predictor.DRAFT_ENTROPY: "H(q), draft",
    Predictor.DRAFT_TOP: "max q, draft",
    Predictor.TOP_1: "Top-1 agreement",
}
PREDICTOR_HELP = {
    Predictor.KL_TARGET_DRAFT: "Σ p ln(p / q), in nats: what the draft fails to cover. Infinite where q excludes a "
    "token that p allows.",
    Predictor.KL_DRAFT_TARGET: "Σ q ln(q / p), in nats: what the draft proposes but the target would not.",
    Predictor.TARGET_ENTROPY: "−Σ p ln p, in nats: how uncertain the next token is.",
    Predictor.DRAFT_ENTROPY: "−Σ q ln q, in nats: known before the target runs.",
    Predictor.DRAFT_TOP: "the draft's largest probability: known before the target runs.",
    Predictor.TOP_1: "1 where both distributions have the same most likely token, else 0.",
}


def _predictor_row(fit: PredictorFit) -> NamedValue:
    infinite = f" Infinite at {fit.num_infinite:,} positions, which rank highest." if fit.num_infinite else ""
    mean = "" if fit.mean is None else f" Mean {fit.mean:.3f}."
    how = (
        f"{PREDICTOR_HELP[fit.predictor]}{mean}{infinite} Spearman's rank correlation: with 1 − TV over "
        f"{fit.num_positions:,} drafted positions; with accepted or rejected over {fit.num_outcomes:,} tested tokens. "
        f"{P_AND_Q}."
    )
    return _row(
        PREDICTOR_TITLES.get(fit.predictor, fit.predictor.value),
        _correlation(fit.with_overlap),
        _correlation(fit.with_outcome),
        how,
    )


def _predictors_note(found: PredictorStudy | None) -> str:
    if found is None:
        return "This run's distributions were not kept: its log holds no evidence."
    said = f"Rank correlations over {found.num_positions:,} positions."
    if found.most_tail < 1e-3:
        return f"{said} The kept tokens hold more than 99.9 % of each distribution."
    return (
        f"{said} Each keeps at most 64 tokens; all others hold {percent_text(found.mean_tail, 1)} of the mass "
        "on average, so each KL is a lower bound."
    )


def _row(title: str, value: str, interval: str, how: str) -> NamedValue:
    return NamedValue(title, value, how, interval)


def _agreement(theory: SpeedupTheory) -> str:
    return "" if theory.share_best is None else f"{percent_text(theory.share_best)} sure"


def _correlation(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")


def _figure(estimate: Estimate, unit: str = "", digits: int = 2) -> tuple[str, str]:
    """A value and its interval."""
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f"{estimate.low:.{digits}f} – {estimate.high:.{digits}f}"
    return f"{estimate.value:.{digits}f}{unit}", interval
