"""The Speed page's figures: measured beside the formula's, and every value with its interval and its formula."""

from __future__ import annotations

from app.run.run_view import NamedValue
from core.analysis.calibration import Calibration, Predictor, PredictorFit, PredictorStudy
from core.analysis.diagnosis import Diagnosis
from core.analysis.expectation import Estimate
from core.analysis.theory import ShapeTheory, SpeedupTheory
from core.settings import Coupling
from core.text import percent_text

UNCALIBRATED = "There is no 1 − TV beside α here: this run has no separate probability for each test."
INTERVAL = (
    "95 % intervals are percentiles over 500 resamples of the run's steps (Efron's bootstrap, 1979); that of the "
    "measured speedup is widened for its few blocks of steps."
)
TREE_TOKENS = (
    "Tokens: 1 + how many of the first K nodes of this run's trees were accepted, down to this depth. For larger "
    "shapes, run a larger tree."
)
UNKNOWN = "–"
MOST_SHAPES = 5
P_AND_Q = "p: the target's distribution; q: the draft's"

Row = tuple[str, str, str, str]
"""A `NamedValue`: title, value, interval, and how it is computed."""

SPEEDUP_HOW = (
    "This run: tokens × time of a plain step / time of all steps. Formula: τ / (K c + v(K+1)), which leaves out "
    "sampling and overhead."
)
FORMULA_NOTE = (
    "The formula leaves out overhead, in this run and in its baseline. It takes the median verify time, and {}."
)
SAME_ALPHA, OWN_TOKENS = "the same α at every position", "the τ of this run"
TREE_SPEEDUP_HOW = (
    "This run: tokens × time of a plain step / time of all steps. Formula: this run's τ / (levels × c + v(K+1)), which "
    "leaves out sampling and overhead."
)
TOKENS_HOW = "This run: new tokens / forwards of the target. Formula: what this α and K give."
TREE_TOKENS_HOW = "This run: new tokens / forwards of the target. α and K alone don't give it: it depends on the trees."
ALPHA_HOW = (
    "Accepted / tested tokens; both formulas start from it. It is higher than the acceptance rate on the Run page, "
    "which also counts the tokens after a rejection."
)
TREE_ALPHA_HOW = (
    "Levels at which a candidate was accepted / levels tested. It is higher than the acceptance rate on the Run page, "
    "which is of all nodes, though only one path can be accepted."
)


def compared_rows(found: Diagnosis, theory: SpeedupTheory | None) -> tuple[NamedValue, ...]:
    """What was measured, and what the formulas give for this run's α."""
    if theory is None:
        return ()
    k = found.usual_length
    is_own = theory.ran_k == k
    ran = "Speedup" if found.plain.is_measured else "Speedup, estimated"
    achieved, alpha = theory.ran_tokens.value, percent_text(theory.alpha.value, 1)
    if found.is_tree:
        # The curves over K have the depth that pays best, which may be another than the run's.
        cost = found.draft_ms / found.plain.forward_ms + theory.verify.values[k]
        speedup = f"{achieved / cost:.2f}×" if is_own else UNKNOWN
        return (
            NamedValue(ran, f"{found.speedup:.2f}×", speedup, TREE_SPEEDUP_HOW),
            NamedValue("τ, block efficiency", f"{achieved:.2f}", UNKNOWN, TREE_TOKENS_HOW),
            NamedValue("α, acceptance of tested levels", alpha, UNKNOWN, TREE_ALPHA_HOW),
        )
    speedup = f"{theory.measured_verify.values[k]:.2f}×" if is_own else UNKNOWN
    tokens = f"{theory.tokens.values[k]:.2f}" if is_own else UNKNOWN
    return (
        NamedValue(ran, f"{found.speedup:.2f}×", speedup, SPEEDUP_HOW),
        NamedValue("τ, block efficiency", f"{achieved:.2f}", tokens, TOKENS_HOW),
        NamedValue("α, acceptance of tested tokens", alpha, UNKNOWN, ALPHA_HOW),
    )


def figure_rows(
    found: Diagnosis, theory: SpeedupTheory | None, calibration: Calibration | None, coupling: Coupling
) -> tuple[NamedValue, ...]:
    """Every value, its interval, and its formula."""
    overhead = (
        "Overhead",
        percent_text(found.overhead_share),
        "",
        f"(step − draft − verify) / step: filters, sampling and bookkeeping, {found.overhead_ms:.2f} ms per step.",
    )
    if theory is None:
        return (NamedValue(*overhead),)
    k = found.usual_length
    # If K changed during the run, the run's point lies between the curves' points.
    own = theory.ran_k == k
    ran = f"K = {theory.ran_k:.1f}" if not own else f"K = {k}"
    tokens = _figure(theory.tokens.at(k)) if own else (UNKNOWN, "")
    speedup = _figure(theory.measured_verify.at(k), "×") if own else (UNKNOWN, "")
    tested = (
        f"levels at which a candidate was accepted / levels tested ({found.num_tested:,} here); those after a "
        "rejection are not tested"
        if found.is_tree
        else f"accepted / tested tokens ({found.num_tested:,} here); those after a rejection are not tested"
    )
    error = "" if found.alpha_error is None else f" Standard error {percent_text(found.alpha_error, 1)}."
    deep = f", depth {theory.trees.depths[k]}" if theory.trees is not None and own and k else ""
    unit = f"A plain forward takes {found.plain.forward_ms:.2f} ms here."
    rows: tuple[Row, ...] = (
        ("α, acceptance", *_percent(theory.alpha), f"{tested}.{error}"),
        ("c, draft cost", *_figure(theory.cost, digits=3), f"time of one {draft_step(found)} / time of a plain "
            f"forward of the target. {unit}"),
        (f"v({k + 1}), verify cost", *_figure(theory.verify.at(k)), f"median time to score {k + 1} positions / "
            f"time of a plain forward, at least 1 and never less than for fewer positions. {unit} 1 if the target is "
            "memory-bound."),
        overhead,
        ("τ, block efficiency", *_figure(theory.ran_tokens), f"new tokens / steps, at {ran}."),
        (f"τ by formula{deep}", *tokens, "(1 − α^(K+1)) / (1 − α) at the same K: Leviathan et al., equation 1, "
            "which assumes that every position is accepted independently with the same probability."
            if theory.trees is None else TREE_TOKENS),
        ("Speedup as it ran", *_figure(theory.ran_speedup, "×"), f"tokens × time of a plain step / time of all "
            f"steps, at {ran}."),
        (f"Speedup by formula{deep}", *speedup, "τ / (K c + v(K+1)) at the same K. It leaves out sampling and overhead."
            if theory.trees is None else "the same τ / (levels × c + v(K+1)), at the depth that pays best."),
        *(() if theory.trees is not None else _best_k_rows(theory)),
        *(() if calibration is None else _calibration_rows(calibration, coupling, is_tree=found.is_tree)),
    )  # fmt: skip
    return tuple(NamedValue(*row) for row in rows)


def _best_k_rows(theory: SpeedupTheory) -> tuple[Row, ...]:
    best, wins = str(theory.best_k) if theory.best_k else "none", theory.share_wins
    agreeing = wins if wins is None or theory.best_k else 1 - wins
    return (
        ("Best K", best, _sure(theory.share_best), "the K from 0 to 16 with the largest τ / (K c + v(K+1)); 0 is "
            "plain decoding. After it: the share of resamples with the same best K."),
        ("Some K beats plain decoding", "yes" if theory.best_k else "no", _sure(agreeing),
            "whether this formula gives any K a speedup above 1, and the share of resamples that agree."),
        ("Best K if v = 1", str(theory.leviathan.best), "", "the same by τ / (K c + 1), Leviathan et al., theorem "
            "3.8, which assumes that scoring more positions costs nothing."),
    )  # fmt: skip


def shape_rows(theory: SpeedupTheory | None) -> tuple[NamedValue, ...]:
    """The best shapes within a run's trees, the fastest first; none for chains."""
    if theory is None or theory.trees is None:
        return ()
    return tuple(map(_shape_row, theory.trees.shapes[:MOST_SHAPES]))


def _shape_row(shape: ShapeTheory) -> NamedValue:
    what = "the chain of this run's first candidates" if shape.is_chain else "the best K at this depth"
    how = f"{what}: {shape.tokens:.2f} tokens per forward / (levels × c + v(K+1)). {TREE_TOKENS}"
    return NamedValue(f"{shape.title[0].upper()}{shape.title[1:]}", *_figure(shape.speedup, "×"), how)


def _calibration_rows(found: Calibration, coupling: Coupling, *, is_tree: bool) -> tuple[Row, ...]:
    overall = found.overall
    name, tested = ("Candidates accepted", "candidates") if is_tree else ("α observed", "tokens")
    z = UNKNOWN if found.z is None else f"{found.z:+.1f}".replace("-", "−")
    note = (
        " This run shares its noise: acceptance is lower by design, between (1 − TV) / (1 + TV) and 1 − TV."
        if coupling is Coupling.GUMBEL
        else " Beyond ±2 the difference is unlikely to be chance."
    )
    return (
        (f"1 − TV, tested {tested}", percent_text(overall.predicted, 1), "", "mean of Σ min(p, q) = 1 − TV over the "
            f"positions of the {overall.num_tested:,} tested {tested}. {P_AND_Q}."),
        (name, *_percent(Estimate(overall.observed, overall.low, overall.high)), f"accepted / tested {tested} at the "
            "same positions, with Wilson's 95 % interval."),
        ("z of the difference", z, "", "(accepted − Σ a) / √Σ a (1 − a), a = 1 − TV at each tested position: a "
            f"standard normal under rejection sampling, whatever the text.{note}"),
    )  # fmt: skip


def draft_step(found: Diagnosis) -> str:
    """What c is the time of."""
    return "drafted level" if found.is_tree else "draft step"


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


def predictor_row(fit: PredictorFit) -> NamedValue:
    """A predictor's two correlations."""
    infinite = f" Infinite at {fit.num_infinite:,} positions, which rank highest." if fit.num_infinite else ""
    mean = "" if fit.mean is None else f" Mean {fit.mean:.3f}."
    how = (
        f"{PREDICTOR_HELP[fit.predictor]}{mean}{infinite} Spearman's rank correlation: with 1 − TV over "
        f"{fit.num_positions:,} drafted positions; with accepted or rejected over {fit.num_outcomes:,} tested tokens. "
        f"{P_AND_Q}."
    )
    return NamedValue(
        PREDICTOR_TITLES.get(fit.predictor, fit.predictor.value),
        _correlation(fit.with_overlap),
        _correlation(fit.with_outcome),
        how,
    )


def predictors_note(found: PredictorStudy | None) -> str:
    """What the correlations are based on."""
    if found is None:
        return "This run's distributions were not kept: its log holds no evidence."
    said = f"Rank correlations over {found.num_positions:,} positions."
    if found.most_tail < 1e-3:
        return f"{said} The kept tokens hold more than 99.9 % of each distribution."
    return (
        f"{said} Distributions keep up to 64 tokens; others hold {percent_text(found.mean_tail, 1)} of the mass "
        "on average, so each KL is a lower bound."
    )


def _sure(share: float | None) -> str:
    return "" if share is None else f"{percent_text(share)} sure"


def _correlation(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:+.2f}".replace("-", "−")


def _figure(estimate: Estimate, unit: str = "", digits: int = 2) -> tuple[str, str]:
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f"{estimate.low:.{digits}f} – {estimate.high:.{digits}f}"
    return f"{estimate.value:.{digits}f}{unit}", interval


def _percent(share: Estimate) -> tuple[str, str]:
    bounds = [percent_text(bound, 1) for bound in (share.low, share.high) if bound is not None]
    return percent_text(share.value, 1), " – ".join(bounds)
