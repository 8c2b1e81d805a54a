"""View model of the page Why: what limits the speedup, where a step's time goes, what to change."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from app.run.run_view import NamedValue, RunView
from core.analysis.advice import MAX_LOOKUP_TOKENS, Advice, advise
from core.analysis.diagnosis import LEAST_BLOCKS, Diagnosis, Limit, diagnose
from core.text import percent_text

MOST_UNSTEADY = 1.4
"""From this ratio of the baseline's plain forward to the one before the run, the machine counts as unsteady."""

EMPTY = "Start a run, and this page shows what limits its speedup."
NO_UNIT = "There is no plain step to compare this run with. Tick “Measure the baseline” and run again."
LATER = "Advice appears when the run is over."

LIMITS = {
    Limit.ACCEPTANCE: (
        "If each draft were accepted to its end",
        "Rejected drafts cost most: if each were accepted to its end, the speedup would be {:.2f}×.",
        "(mean K + 1) P / T: every block emits as many tokens as it drafted in a row, and a bonus token, in the same "
        "time.",
    ),
    Limit.DRAFT: (
        "If drafting took no time",
        "Drafting costs most: with a free draft, the speedup would be {:.2f}×.",
        "tau P / (T - draft time): the same tokens, proposed at no cost. c = 0 in tau / (K c + v + overhead).",
    ),
    Limit.VERIFY: (
        "If scoring cost one plain forward",
        "Scoring the block costs most: if it cost one plain forward, the speedup would be {:.2f}×.",
        "tau P / (T - (verify - plain forward)): v(K+1) = 1 in tau / (K c + v + overhead).",
    ),
    Limit.OVERHEAD: (
        "If overhead were a plain step's",
        "Overhead costs most: with a plain step's overhead, the speedup would be {:.2f}×.",
        "tau P / (T - (overhead - a plain step's overhead)). Plain decoding samples too, so only the additional "
        "overhead is a limit.",
    ),
    Limit.UNDRAFTED: (
        "If every step had drafted",
        "Steps without a draft cost most: if every step had drafted, the speedup would be {:.2f}×.",
        "tau P / T over the steps that drafted.",
    ),
}
"""For each limit: its title, what it costs, and the formula of the speedup without it."""
WORDS = "tau: tokens per step; P: time of a plain step; T: time of a step; all from this run."
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
class WhyReport:
    """All that the page shows; only the headline if there are no `parts`."""

    headline: str
    basis: str = ""
    figures: tuple[NamedValue, ...] = ()
    parts: tuple[Part, ...] = ()
    replaced: tuple[Part, ...] = ()
    gains: tuple[Gain, ...] = ()
    advice: tuple[Advice, ...] = ()
    replaced_title: str = ""


def why_report(run: RunView) -> WhyReport:
    """The page for the run so far."""
    sums = run.counts.sums
    if not sums.num_steps:
        return WhyReport(EMPTY)
    is_over = run.summary is not None
    found = diagnose(sums, run.plain_step)
    if found is None:
        return WhyReport(NO_UNIT)
    advice: tuple[Advice, ...] = (Advice(LATER),)
    if is_over:
        config = run.started.config if run.started is not None else {}
        emitted = list(islice((token for step in run.steps for token in step.emitted), MAX_LOOKUP_TOKENS))
        advice = tuple(advise(sums, found, config, emitted))
    return WhyReport(
        headline=_headline(found),
        basis=_basis(found, run.target_step_ms, is_missed=is_over and not run.wants_baseline),
        figures=_figures(found),
        parts=_parts(found),
        replaced=_replaced(found),
        replaced_title=f"The {found.tokens_per_step:.2f} plain tokens it replaces",
        gains=_gains(found),
        advice=advice,
    )


def _headline(found: Diagnosis) -> str:
    speed = f"{'' if found.plain.is_measured else 'An estimated '}{found.speedup:.2f}×"
    if not found.num_blocks:
        return "Nothing was drafted: this was plain decoding."
    if not found.is_enough:
        return f"{speed}, but too few steps to say why: {found.num_blocks} drafted, {LEAST_BLOCKS} are needed."
    limit = found.main_limit
    if limit is None:
        return f"{speed} here, and no measurable limit."
    shown = round(found.speedup, 2)
    verdict = " here."
    if shown <= 1:
        verdict = ": slower than plain decoding." if shown < 1 else ": as fast as plain decoding."
    return f"{speed}{verdict} {LIMITS[limit.limit][1].format(limit.speedup)}"


def _basis(found: Diagnosis, timed_before_ms: float | None, *, is_missed: bool) -> str:
    steps = f"{found.num_steps:,} steps"
    if found.is_tree:
        steps += f", most with a tree of {found.usual_length} nodes in {found.usual_depth} levels"
    if found.plain.is_measured:
        said = f"Means over {steps}, against the baseline's {found.plain.total_ms:.2f} ms per token."
        return f"{said}{_unsteadiness(found.plain.forward_ms, timed_before_ms)}"
    hint = "" if not is_missed else " Tick “Measure the baseline” to be sure."
    return f"Means over {steps}, against one plain forward of {found.plain.forward_ms:.2f} ms, timed before.{hint}"


def _unsteadiness(baseline_ms: float, timed_before_ms: float | None) -> str:
    """A warning where other programs may have slowed down the run or the baseline; otherwise empty."""
    if not timed_before_ms or 1 / MOST_UNSTEADY < baseline_ms / timed_before_ms < MOST_UNSTEADY:
        return ""
    return (
        f" The machine was not steady: a plain forward took {timed_before_ms:.2f} ms before the run and "
        f"{baseline_ms:.2f} ms in the baseline. Close other busy programs and run again."
    )


def _figures(found: Diagnosis) -> tuple[NamedValue, ...]:
    unit = f"A plain forward takes {found.plain.forward_ms:.2f} ms here."
    positions = found.usual_length + 1
    error = "" if found.alpha_error is None else f" Standard error {found.alpha_error:.3f}."
    tested = (
        f"levels at which a candidate was accepted / levels tested. {found.num_tested:,} were tested; those after a "
        "rejection are not."
        if found.is_tree
        else f"accepted / tested tokens. {found.num_tested:,} were tested; tokens after a rejected one are not."
    )
    return (
        NamedValue(
            "α",
            _number(found.alpha),
            f"Acceptance: {tested}{error}",
        ),
        NamedValue("τ", _number(found.tokens_per_step), "Block efficiency: new tokens / forwards of the target."),
        NamedValue(
            "c", _number(found.cost), f"Draft cost: time of one {_draft_step(found)} / time of a plain forward. {unit}"
        ),
        NamedValue(
            f"v({positions})" if found.usual_length else "v",
            _number(found.verify_cost),
            f"Verify cost: median time to score {positions} positions / time of a plain forward. {unit} "
            "1 if the target is memory-bound.",
        ),
        NamedValue(
            "overhead",
            percent_text(found.overhead_share),
            f"(Step - draft - verify) / step: filters, sampling and bookkeeping, {found.overhead_ms:.2f} ms per step.",
        ),
    )


def _parts(found: Diagnosis) -> tuple[Part, ...]:
    extra = found.verify_extra_ms
    return (
        Part("draft", found.draft_ms, "draft_bar", f"Mean draft time per step: all of its {_draft_step(found)}s."),
        Part("plain forward", found.verify_ms - extra, "target_bar", "The target's forward for one token."),
        Part(
            "scoring more",
            extra,
            "target_bar",
            "Verify time minus a plain forward: the extra time for scoring the drafted tokens as well.",
            is_extra=True,
        ),
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
    how = f"tau P = {tokens:.2f} × {milliseconds:.2f} ms. The speedup is the whole bar / the step's time."
    shares = [1.0] * int(tokens) + [tokens % 1.0]
    return tuple(Part("a plain token", share * milliseconds, "target_bar", how) for share in shares if share > 1e-3)


def _gains(found: Diagnosis) -> tuple[Gain, ...]:
    ran = "Measured: tau P / T." if found.plain.is_measured else "Estimated: tau P / T, P being one forward."
    main, words = found.main_limit, TREE_WORDS if found.is_tree else WORDS
    return (
        Gain("As it ran", found.speedup, False, f"{ran} {words}"),
        *(
            Gain(LIMITS[item.limit][0], item.speedup, item is main, f"{LIMITS[item.limit][2]} {words}")
            for item in found.what_ifs
        ),
    )


def _draft_step(found: Diagnosis) -> str:
    return "drafted level" if found.is_tree else "draft step"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
