"""Writes the HTML reports of one run, and of several side by side, with their plots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markupsafe import Markup

from core.analysis.expectation import wilson
from core.analysis.run_counts import Column, RunCounts
from core.export.charts import MAX_POINTS, Axis, Mark, Plot, Point, headroom, percent, series_mark, thinned
from core.export.run_data import (
    FIGURES,
    RunData,
    cut,
    differences,
    minute_text,
    numbered,
    references,
    run_data,
    verdict,
    where_differing,
    without_folders,
)
from core.export.templates import UNKNOWN, render
from core.runlog.reading import RunLog, text_of
from core.runlog.tally import PositionCounts
from core.settings import LOSSY, Coupling, is_lossy
from core.text import percent_text, significant_text
from core.types import UNKNOWN_ID, Step, TokenKind

KINDS = {
    TokenKind.ACCEPTED: ("accepted", "a"),
    TokenKind.CORRECTION: ("resampled", "r"),
    TokenKind.BONUS: ("bonus", "b"),
}
PLAIN = ("plain", "n")
"""Title and class of each kind, and of a token of a plain step."""


class Token(NamedTuple):
    """A token of the text: its style, its tooltip and its text."""

    style: str
    tip: str
    text: str


def run_page(log: RunLog) -> str:
    """A run as a complete HTML file, which also says what is missing from the log."""
    run = run_data(log)
    started = minute_text(log.run.get("started_at"))
    lossy = LOSSY if is_lossy(run.config) else ""
    settings = (
        ("K =", cut(run.draft_length)),
        ("temperature", cut(run.temperature)),
        ("method", run.setting("method")),
        ("device", run.setting("device")),
        ("", run.setting("dtype")),
    )
    return render(
        "run.html",
        title=f"Run {run.run_id}: {run.pair}",
        run=run,
        version=run.version,
        sampling=", ".join(f"{title} {value}".strip() for title, value in settings if value),
        facts=" · ".join(filter(None, (f"Run {run.run_id}", f"started {started}" if started else "", run.end, lossy))),
        error=without_folders(text_of((log.summary or {}).get("error"))),
        verdict=verdict(run),
        has_two_speedups=_has_two_speedups(run),
        figures=[(figure, text) for figure in FIGURES if (text := figure.text(run)) != UNKNOWN],
        prompt=_prompt(run),
        tokens=_tokens(run),
        plots=_plots(run),
    )


def compare_page(logs: Sequence[RunLog], titles: Sequence[str] = ()) -> str:
    """Several runs as a complete HTML file: what differs in settings and machines, the figures, and all texts.

    `titles`: a name for each run, or "" for one without.
    """
    models = numbered(ref for log in logs for ref in references(log.run["config"]))
    runs = [run_data(log, models) for log in logs]
    named = itertools.zip_longest(range(1, len(runs) + 1), titles, fillvalue="")
    names = [f"Run {number}: {cut(title, 40)}" if title else f"Run {number}" for number, title in named]
    differing, agreeing = differences([run.compared | {"outrider": run.version} | run.environment for run in runs])
    rows = [(figure.title, [figure.text(run) for run in runs]) for figure in FIGURES]
    return render(
        "compare.html",
        title=f"{len(runs)} runs compared",
        version=next((run.version for run in runs if run.version), ""),
        names=names,
        runs=[(name, run, verdict(run), _prompt(run), _tokens(run)) for name, run in zip(names, runs, strict=True)],
        differing=[(name, where_differing(texts, 100)) for name, texts in differing],
        agreeing={name: cut(texts[0]) for name, texts in agreeing},
        figures=[(title, cells) for title, cells in rows if set(cells) != {UNKNOWN}],
        has_two_speedups=any(map(_has_two_speedups, runs)),
        plot=_compared_plot(names, runs),
    )


def _has_two_speedups(run: RunData) -> bool:
    return None not in {run.figure("measured_speedup"), run.figure("predicted_speedup")}


def _prompt(run: RunData) -> str:
    """The text before the generated tokens."""
    gap = "\n\n" if run.config.get("chat") else ""
    return f"{run.setting('prompt')}{gap}{run.written}"


def _tokens(run: RunData) -> Iterator[Token]:
    is_rejection = run.config.get("coupling") != Coupling.GUMBEL
    for step in run.summary.shown(run.steps):
        for slot, kind, text in zip(step.slots, step.emitted_kinds, step.emitted_texts, strict=False):
            if text:
                title, style = KINDS[kind] if step.drafted else PLAIN
                yield Token(style, f"{title}, {_tip(step, slot, kind, is_rejection)}", text)


def _tip(step: Step, slot: int, kind: TokenKind, is_rejection: bool) -> str:
    parts = [f"step {step.index + 1}"]
    if slot < len(step.drafted) and kind is not TokenKind.BONUS:
        named = [("p", step.target_probs[slot]), ("q", step.draft_probs[slot])]
        if is_rejection and slot < len(step.uniforms):
            named.append(("u", step.uniforms[slot]))
        figures = [f"{name} {significant_text(value, 3)}" for name, value in named if math.isfinite(value)]
        if kind is TokenKind.CORRECTION:
            of_rejected = f" with {', '.join(figures)}" if figures else ""
            is_known = step.drafted[slot] != UNKNOWN_ID
            figures = [f"in place of “{step.drafted_texts[slot]}”{of_rejected}"] if is_known else []
        parts += figures
    elif step.next_uniform is not None:
        parts.append(f"u {significant_text(step.next_uniform, 3)}")
    return " · ".join(parts)


# --- Plots: acceptance, latency, tokens over time, acceptance by position -----------------------------------------

SHARE = Mark("of the step’s drafted tokens", "draft_bar", is_dots=True)
RUNNING = Mark("acceptance so far", "accepted")
DRAFTING = Mark("draft", "draft_bar", is_area=True)
VERIFYING = Mark("target", "target_bar", is_area=True)
SAMPLING = Mark("sampling", "sample_bar", is_area=True)
WHOLE_STEP = Mark("step", "target_bar", is_area=True)
MEAN = Mark("mean so far", "text")
ALONE = Mark("target alone, per token", "text", dash="7 4")
SPECULATIVE = Mark("speculative", "accepted")
BASELINE = Mark("target alone", "text", dash="7 4")
KEPT = Mark("of all drafted", "draft_bar", is_area=True)
GIVEN = Mark("if all earlier ones were accepted, with its 95 % interval", "text", is_dots=True)


def _plots(run: RunData) -> list[Markup]:
    """The run's plots, as far as there is data."""
    if not run.steps:
        return []
    positions = run.counts.sums.positions_of(run.summary)
    first = [_acceptance(run)] if run.counts.sums.num_blocks else []
    last = [_by_position(positions)] if len(positions) else []
    return [*first, _latency(run), _over_time(run), *last]


def _compared_plot(names: Sequence[str], runs: Sequence[RunData]) -> Markup:
    """Tokens over time of several runs."""
    marks = [series_mark(name, index) for index, name in enumerate(names)]
    meaning = "New tokens against seconds of decoding. The steepest line is the fastest."
    return _tokens_plot(meaning, [_accumulated(run.counts) for run in runs], marks)


def _tokens_plot(meaning: str, lines: Sequence[Sequence[Point]], marks: Sequence[Mark]) -> Markup:
    seconds, tokens = zip(*(line[-1] for line in lines), strict=True)
    x, y = Axis("time, s", 0, max(seconds) or 1.0), Axis("tokens", 0, headroom(tokens), is_whole=True)
    plot = Plot("tokens", "Tokens over time", meaning, x, y)
    for line, mark in reversed(list(zip(lines, marks, strict=True))):  # The first is on top.
        plot.line(line, mark)
    return plot.figure(marks)


def _step_axis(counts: RunCounts) -> Axis:
    return Axis("step", 0, max(len(counts), 2), is_whole=True)


def _binned(counts: RunCounts, *columns: Column) -> tuple[int, str, list[list[float]]]:
    """The width of at most `MAX_POINTS` equal bins, a note on it, and the columns' means over them."""
    width = max(1, math.ceil(len(counts) / MAX_POINTS))
    note = "" if width == 1 else f" Each dot or bar is the mean of {width} steps."
    return width, note, [counts.binned(column, 0, len(counts), width).tolist() for column in columns]


def _by_step(counts: RunCounts, column: Column) -> list[Point]:
    """A column over the steps, from 1, thinned out."""
    points = ((float(index), value) for index, value in enumerate(counts.columns[column], start=1))
    return thinned([point for point in points if math.isfinite(point[1])])


def _acceptance(run: RunData) -> Markup:
    counts = run.counts
    width, note, (shares,) = _binned(counts, Column.ACCEPTED_SHARE)
    note += "" if counts.sums.knows_drafts else " Steps whose drafts aren’t known are left out."
    rule = " for rejection sampling" if run.config.get("coupling") == Coupling.GUMBEL else ""
    lines = {RUNNING: _by_step(counts, Column.RUNNING_RATE)}
    if points := _by_step(counts, Column.PREDICTED_RATE):  # None under typical acceptance.
        lines[Mark(f"predicted{rule} from the two distributions", "correction", dash="6 4")] = points
    plot = Plot(
        "acceptance",
        "Acceptance per step",
        f"Accepted / drafted tokens of each step, in per cent. The lines show all steps so far.{note}",
        _step_axis(counts),
        Axis("accepted, %", 0, 1.04, percent),
    )
    tips = [
        f"step {index * width + 1}: {percent_text(share)}" if math.isfinite(share) else ""
        for index, share in enumerate(shares)
    ]
    plot.dots([((index + 0.5) * width, share) for index, share in enumerate(shares)], SHARE, tips)
    for mark, points in reversed(lines.items()):  # The first is on top.
        plot.line(points, mark)
    return plot.figure((SHARE, *lines))


def _latency(run: RunData) -> Markup:
    width, note, columns = _binned(run.counts, Column.DRAFT_MS, Column.VERIFY_MS, Column.TOTAL_MS, Column.TIMED_TOKENS)
    # Over a bin: the time of its steps / their tokens.
    draft, verify, total = (
        [ms / max(count, 1 / width) for ms, count in zip(part, columns[3], strict=True)] for part in columns[:3]
    )
    both = [first + second for first, second in zip(draft, verify, strict=True)]
    has_parts = any(map(math.isfinite, both))  # A server reports no parts.
    total = list(map(max, total, both)) if has_parts else total
    plain = _plain_ms_per_token(run)
    plot = Plot(
        "latency",
        "Latency per token",
        "Where each step’s time went, in milliseconds divided by the tokens that it added"
        + (", stacked: drafting, the target’s forward, and sampling with verification" if has_parts else "")
        + ". The solid line is the mean over all tokens so far"
        + (", the dashed one the target alone." if plain is not None else ".")
        + note,
        _step_axis(run.counts),
        Axis("ms per token", 0, headroom([*total, plain or 0.0])),
    )
    zero = [0.0] * len(draft)
    areas = ((zero, draft, DRAFTING), (draft, both, VERIFYING), (both, total, SAMPLING))
    for lower, upper, mark in areas if has_parts else ((zero, total, WHOLE_STEP),):
        plot.stairs(lower, upper, width, mark)
    plot.line(_by_step(run.counts, Column.RUNNING_MS_PER_TOKEN), MEAN)
    marks = (*((DRAFTING, VERIFYING, SAMPLING) if has_parts else (WHOLE_STEP,)), MEAN)
    if plain is None:
        return plot.figure(marks)
    plot.level(plain, ALONE)
    return plot.figure((*marks, ALONE))


def _plain_ms_per_token(run: RunData) -> float | None:
    """The target alone: from its steps, or from its speed if the log kept none of them."""
    if len(run.baseline) and run.summary.has_baseline:
        return float(run.baseline.columns[Column.RUNNING_MS_PER_TOKEN][-1])
    speed = run.figure("baseline_tokens_per_second")
    return 1e3 / speed if speed else None


def _plain_over_time(run: RunData) -> list[Point]:
    """The baseline's tokens; a straight line if the log kept none of its steps."""
    if len(run.baseline) and run.summary.has_baseline:
        return _accumulated(run.baseline)
    speed, count = run.figure("baseline_tokens_per_second"), float(run.counts.sums.tokens)
    return [(0.0, 0.0), (count / speed, count)] if speed else []


def _accumulated(counts: RunCounts) -> list[Point]:
    """Seconds and tokens after each step, thinned out."""
    line = counts.timeline
    points = [(end / 1e3, float(count)) for end, count in zip(line.ends_ms, line.counts, strict=True)]
    return thinned([(0.0, 0.0), *points])


def _over_time(run: RunData) -> Markup:
    written, plain = _accumulated(run.counts), _plain_over_time(run)
    meaning = "New tokens against seconds of decoding, without the prefill. The steeper line is the faster one."
    if not plain:
        return _tokens_plot(f"{meaning} The baseline {run.baseline_problem}.", [written], [SPECULATIVE])
    return _tokens_plot(meaning, [written, plain], [SPECULATIVE, BASELINE])


def _by_position(positions: PositionCounts) -> Markup:
    longest = len(positions)
    plot = Plot(
        "positions",
        "Acceptance by draft position",
        "Bars: accepted / drafted tokens at each position of the block; they fall because a rejection ends a block. "
        "Dots: accepted / tested tokens, given that all earlier ones were accepted.",
        Axis("position in the draft", 0.4, longest + 0.6, is_whole=True),
        Axis("accepted, %", 0, 1.04, percent),
    )
    for place in range(longest):
        share = positions.of_drafted(place)
        tip = f"position {place + 1}: {percent_text(share, 1)} of {positions.drafted[place]:,} drafted"
        plot.bar(place + 1, share, 0.62, KEPT, tip)
    for place in range(longest):
        rate, tested = positions.of_tested(place), positions.tested[place]
        if rate is not None:
            plot.whisker(place + 1, *wilson(rate, tested))
            plot.dots(
                [(place + 1.0, rate)], GIVEN, [f"position {place + 1}: {percent_text(rate, 1)} of {tested:,} tested"]
            )
    return plot.figure((KEPT, GIVEN))
