"""View model of the Speed page: the verdict, measured and by formula, where a step's time goes, what limits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from app.run.run_view import NamedValue, RunView
from app.run.speed.speed_figures import (
    FORMULA_NOTE,
    OWN_TOKENS,
    SAME_ALPHA,
    UNCALIBRATED,
    compared_rows,
    draft_step,
    figure_rows,
    predictor_row,
    predictors_note,
    shape_rows,
)
from core.analysis.advice import BREAK_EVEN, Advice
from core.analysis.calibration import Calibration, Study, study
from core.analysis.diagnosis import Diagnosis, Limit, WhatIf, diagnose
from core.analysis.expectation import Estimate
from core.analysis.steadiness import STEPWISE, covers_one, speedup_interval
from core.analysis.theory import SpeedupTheory, speedup_theory
from core.draft_length import lengths_of, shown_draft_length
from core.export.engines.common import local_command
from core.settings import RunRequest, SamplingParams

EMPTY = "Start a run, and this page shows whether drafting pays, and what limits it."
NO_UNIT = "There is no plain step to compare this run with."
ON_SERVER = "A server doesn't report its times for drafting and verifying."
SWEEP_IT = (
    "To measure whether drafting pays, serve the model a second time without drafting, and run this in a terminal, "
    "with that server's address for URL. It measures six chat prompts; for your own, add "
    "-\u2060-\u2060prompts FILE:"
)
"""With word joiners, so that no line ends within the option."""
UNDRAFTED = "Nothing was drafted: this was plain decoding."
LATER = "Advice and intervals come after the {}."
COMPUTING = "Computing the intervals…"
MEASURE = "Tick “Measure the baseline”, and run again."
MEASURE_WHOLE = "Run again, and let the baseline finish."
BUSY = "Busy machine. "
REPEAT = "Repeat the run first: the machine was busy."

LIMITS = {
    Limit.ACCEPTANCE: (
        "If all drafts were accepted",
        "Rejected drafts hold the speedup back most: if all were accepted, it would be {:.2f}×.",
        "(mean K + 1) P / T: every block emits as many tokens as it drafted in a row, and a bonus token, in the same "
        "time.",
    ),
    Limit.DRAFT: (
        "If drafting took no time",
        "Drafting holds the speedup back most: if it took no time, the speedup would be {:.2f}×.",
        "τ P / (T - draft time): the same tokens, proposed at no cost. c = 0 in τ / (K c + v + overhead).",
    ),
    Limit.VERIFY: (
        "If verifying cost one plain forward",
        "Verifying holds the speedup back most: if it cost one plain forward, the speedup would be {:.2f}×.",
        "τ P / (T - (verify - plain forward)): v(K+1) = 1 in τ / (K c + v + overhead).",
    ),
    Limit.OVERHEAD: (
        "If overhead were that of a plain step",
        "Overhead holds the speedup back most: with a plain step's overhead, it would be {:.2f}×.",
        "τ P / (T - (overhead - a plain step's overhead)). Plain decoding samples too, so only the additional "
        "overhead is a limit.",
    ),
    Limit.UNDRAFTED: (
        "If every step had drafted",
        "Steps without a draft hold the speedup back most: if every step had drafted, it would be {:.2f}×.",
        "τ P / T over the steps that drafted.",
    ),
}
"""For each limit: its title, the sentence about it, and the formula of the speedup without it."""
TIED = "Several parts hold the speedup back equally: if one of them were ideal, it would be {:.2f}×."
WORDS = "τ: tokens per step; P: time of a plain step; T: time of a step; all from this run."
TREE_WORDS = f"{WORDS} For a tree, K is its depth, and v counts its nodes."


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step's time. `token` names a theme colour; an extra part (`is_extra`) is hatched."""

    title: str
    milliseconds: float
    token: str
    how: str
    is_extra: bool = False


@dataclass(frozen=True, slots=True)
class Gain:
    """A speedup: as it ran, or with one thing ideal."""

    title: str
    speedup: float
    is_main: bool
    how: str


@dataclass(frozen=True, slots=True)
class SpeedReport:
    """Everything on the page; only the headline and the advice if there are no `parts`.

    Attributes:
        command: to be run in a terminal, as `basis` says.
        compared: measured values, with the formula's in place of an interval; the note says why they differ.
        parts, replaced: the parts of a step's time, and of the plain steps that it replaces.
        limit: what costs most, in a sentence.
        remarks: what else is to be said of these settings, though nothing can be done about it.
        theory: the curves over K; None where nothing was drafted.
        figures: every value with its interval and its formula.
    """

    headline: str
    basis: str = ""
    command: str = ""
    compared: tuple[NamedValue, ...] = ()
    compared_note: str = ""
    parts: tuple[Part, ...] = ()
    replaced: tuple[Part, ...] = ()
    replaced_title: str = ""
    limit: str = ""
    gains: tuple[Gain, ...] = ()
    remarks: str = ""
    advice: tuple[Advice, ...] = ()
    theory: SpeedupTheory | None = None
    shapes: tuple[NamedValue, ...] = ()
    figures: tuple[NamedValue, ...] = ()
    calibration: Calibration | None = None
    predictors: tuple[NamedValue, ...] = ()
    predictors_note: str = ""


def study_of(run: RunView) -> Callable[[], Study] | None:
    """A function that computes a finished run's study in up to half a second: call it in a job."""
    if run.summary is None or not run.steps:
        return None
    steps, baseline_steps = tuple(run.steps), tuple(run.baseline_steps)
    return partial(study, steps, baseline_steps, target_step_ms=run.target_step_ms, summary=run.summary)


def speed_report(run: RunView, done: Study | None = None) -> SpeedReport:
    """The page for the run so far; intervals and calibration come with the study of a finished run."""
    sums, is_over = run.counts.sums, run.summary is not None
    if not sums.num_steps:
        return SpeedReport(EMPTY)
    plain = run.plain_step
    found = diagnose(sums, plain)
    measure = Advice(MEASURE, settings={"baseline": True})
    if run.wants_baseline and run.summary is not None and not run.summary.has_baseline:
        measure = Advice(MEASURE_WHOLE, repeats=True)
    if run.request is not None and run.request.engine:
        return SpeedReport(ON_SERVER, basis=SWEEP_IT, command=_sweep_command(run.request))
    if found is None:
        return SpeedReport(NO_UNIT, advice=(measure,) if is_over else ())
    theory = done.speedup if done is not None else speedup_theory(sums, plain, num_resamples=0)
    interval = speedup_interval(sums, run.baseline.sums) if is_over and found.plain.is_measured else None
    if theory is not None and interval is not None:
        # The interval of the Run page: one figure has one interval.
        theory = replace(theory, ran_speedup=Estimate(found.speedup, *interval))
    calibration = done.calibration if done is not None else None
    predictors = done.predictors if done is not None else None
    # The times of steps that were taken one by one forecast nothing.
    advice = run.advice(found, theory) if is_over and not run.was_stepped else []
    if is_over and plain is not None and not plain.is_measured:
        advice.insert(0, measure)
    is_busy = bool(run.busy_note and found.num_blocks and found.plain.is_measured)
    if is_busy:
        advice.insert(0, Advice(REPEAT, repeats=True))
    note = LATER.format("baseline" if run.wants_baseline else "run")
    if is_over:
        note = COMPUTING if done is None else UNCALIBRATED if theory is not None and calibration is None else ""
    if run.was_stepped:
        return SpeedReport(_headline(run, found, advice, interval), advice=tuple(advice))
    # Above a verdict that it is too early to give, nothing else is judged either.
    limit = found.main_limit if found.plain.is_measured or is_over or not run.wants_baseline else None
    gains = _gains(found, limit) if found.num_blocks else ()
    # With a measured speedup, the window already says it.
    busy = run.busy_note if run.measured_speedup is None else ""
    return SpeedReport(
        headline=f"{BUSY if is_busy else ''}{_headline(run, found, advice, interval)}",
        basis=" ".join(filter(None, (_basis(found, run.baseline.sums.tokens), busy, note))),
        compared=compared_rows(found, theory),
        compared_note=FORMULA_NOTE.format(OWN_TOKENS if found.is_tree else SAME_ALPHA),
        parts=_parts(found) if found.num_blocks else (),
        replaced=_replaced(found) if found.num_blocks else (),
        replaced_title=f"{found.tokens_per_step:.2f} tokens by plain decoding",
        limit=_limit(limit, gains),
        gains=gains,
        remarks=" ".join(item.text for item in advice if item.is_remark),
        advice=tuple(item for item in advice if not item.is_remark),
        theory=theory,
        shapes=shape_rows(theory),
        figures=figure_rows(found, theory, calibration, run.coupling),
        calibration=calibration,
        predictors=() if predictors is None else tuple(map(predictor_row, predictors.fits)),
        predictors_note="" if done is None or theory is None else predictors_note(predictors),
    )


def _sweep_command(request: RunRequest) -> str:
    """The sweep of a server with a run's settings, for a terminal."""
    sampling, off = request.sampling, SamplingParams()
    values = {each.name: getattr(sampling, each.name) for each in fields(sampling)}
    given = {name: value for name, value in values.items() if name == "temperature" or value != getattr(off, name)}
    words = [
        ["outrider", "sweep"],
        ["--engine", request.engine or ""],
        ["--baseline-engine", "URL"],
        ["--target", request.target],
        *([f"--{name.replace('_', '-')}", str(value)] for name, value in given.items()),
        [] if request.chat is None else ["--chat" if request.chat else "--raw"],
        [f"--system={request.system}"] if request.system else [],
        ["--max-new-tokens", str(request.max_new_tokens)],
        ["--out", "sweep.jsonl"],
    ]
    return local_command(*words).rstrip()


def _headline(run: RunView, found: Diagnosis, advice: Sequence[Advice], interval: tuple[float, float] | None) -> str:
    if not found.num_blocks:
        return UNDRAFTED
    if run.was_stepped:
        return STEPWISE
    speed, at = f"{found.speedup:.2f}×", _setting(run, found)
    if not found.plain.is_measured:
        # Neither a single forward, timed before the run, nor a part of the baseline is enough for a verdict.
        if run.summary is None and run.wants_baseline:
            return "Too early to tell. The baseline, which is measured last, shows whether drafting pays."
        return f"An estimated {speed} {at}: only a run with its whole baseline shows whether drafting pays."
    if interval is None and not found.is_enough:
        return f"{speed}, but too few steps to tell."
    if covers_one(interval or (found.speedup, found.speedup)):
        return f"{speed} {at}: no measurable difference from plain decoding."
    if found.speedup > BREAK_EVEN:
        return f"{speed} {at}: drafting pays here."
    if not found.is_enough:  # For a word on other settings.
        return f"{speed} {at}: slower than plain decoding."
    if any((item.speedup or 0.0) > BREAK_EVEN for item in advice):
        return f"{speed} {at}: slower than plain decoding, but other settings should pay."
    return f"{speed} {at}: don't speculate here."


def _setting(run: RunView, found: Diagnosis) -> str:
    """The run's K, or its policy, within a sentence."""
    length, *others = lengths_of(run.steps) or [shown_draft_length(run.config)]
    mean = run.counts.sums.drafted / found.num_steps
    if others:
        return f"with a K that was changed during the run, {mean:.1f} on average"
    if isinstance(length, str):
        return f"with {length} K, {mean:.1f} on average"
    if found.is_tree:
        return f"with trees of {found.usual_length} nodes"
    usual = found.usual_length
    return f"at K = {usual}" if length in (None, usual) else f"at K = {length}, mostly {usual} drafted"


def _basis(found: Diagnosis, num_plain: int) -> str:
    steps = f"{found.num_steps:,} steps"
    if found.is_tree:
        steps += f", most with a tree of {found.usual_length} nodes in {found.usual_depth} levels"
    tested = f", {found.num_tested:,} tested {'levels' if found.is_tree else 'tokens'}" if found.num_blocks else ""
    plain = f"One plain forward took {found.plain.forward_ms:.2f} ms, timed before the run"
    if found.plain.is_measured:
        plain = f"The baseline took {found.plain.total_ms:.2f} ms per token"
    elif not found.plain.is_one_forward:
        plain = f"The first {num_plain:,} tokens of the baseline took {found.plain.total_ms:.2f} ms each"
    return f"{steps}{tested}. {plain}."


def _parts(found: Diagnosis) -> tuple[Part, ...]:
    extra = found.verify_extra_ms
    verify: tuple[Part, ...] = (
        Part("plain forward", found.verify_ms - extra, "target_bar", "The target's forward for one token."),
        Part(
            "extra verify time",
            extra,
            "target_bar",
            "Verify time minus a plain forward: the extra time for the drafted tokens.",
            is_extra=True,
        ),
    )
    if not extra:
        verify = (Part("verify", found.verify_ms, "target_bar", "It took no longer than a plain forward."),)
    return (
        Part("draft", found.draft_ms, "draft_bar", f"Mean draft time per step: all of its {draft_step(found)}s."),
        *verify,
        Part(
            "overhead",
            found.overhead_ms,
            "sample_bar",
            "Step minus draft and verify: filters, sampling and bookkeeping.",
        ),
    )


def _replaced(found: Diagnosis) -> tuple[Part, ...]:
    """The plain steps that one step replaces, the last one in part."""
    tokens, milliseconds = found.tokens_per_step, found.plain.total_ms
    overhead = found.plain.overhead_ms
    how = f"τ P = {tokens:.2f} × {milliseconds:.2f} ms. The speedup is the whole bar / the step's time."
    shares = [1.0] * int(tokens) + [tokens % 1.0]
    return tuple(
        Part(title, share * part, token, how)
        for share in shares
        if share > 1e-3
        for title, part, token in (
            ("plain forward", milliseconds - overhead, "target_bar"),
            ("overhead", overhead, "sample_bar"),
        )
        if part > 0
    )


def _gains(found: Diagnosis, main: WhatIf | None) -> tuple[Gain, ...]:
    ran = "Measured: τ P / T." if found.plain.is_measured else "Estimated: τ P / T, P being an estimate."
    words = TREE_WORDS if found.is_tree else WORDS
    return (
        Gain("As it ran", found.speedup, False, f"{ran} {words}"),
        *(
            Gain(LIMITS[item.limit][0], item.speedup, _are_tied(item, main), f"{LIMITS[item.limit][2]} {words}")
            for item in found.what_ifs
        ),
    )


def _are_tied(one: WhatIf, main: WhatIf | None) -> bool:
    """Whether a limit costs as much as the main one, as both are shown."""
    return main is not None and f"{one.speedup:.2f}" == f"{main.speedup:.2f}"


def _limit(main: WhatIf | None, gains: Sequence[Gain]) -> str:
    if main is None:
        return ""
    is_alone = sum(gain.is_main for gain in gains) < 2
    return (LIMITS[main.limit][1] if is_alone else TIED).format(main.speedup)
