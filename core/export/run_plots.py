"""Draws a run's plots for its report: acceptance, latency, tokens over time, and acceptance by position."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from core.analysis.expectation import wilson
from core.analysis.run_counts import Column, RunCounts
from core.export.charts import MAX_POINTS, Axis, Mark, Plot, Point, headroom, percent, series_mark, thinned
from core.export.run_data import RunData
from core.runlog.tally import PositionCounts
from core.text import percent_text

SHARE = Mark("of the step’s drafted tokens", "draft_bar", is_dots=True)
RUNNING = Mark("running share", "accepted")
EXPECTED = Mark("expected with rejection sampling", "correction", dash="6 4")
DRAFTING = Mark("draft", "draft_bar", is_area=True)
VERIFYING = Mark("target", "target_bar", is_area=True)
SAMPLING = Mark("sampling", "sample_bar", is_area=True)
MEAN = Mark("mean so far", "text")
PLAIN = Mark("target alone, per token", "text", dash="7 4")
SPECULATIVE = Mark("speculative", "accepted")
BASELINE = Mark("target alone", "text", dash="7 4")
KEPT = Mark("of all drafted", "draft_bar", is_area=True)
GIVEN = Mark("if all before were accepted, with its 95 % interval", "text", is_dots=True)


def run_plots(run: RunData) -> list[Markup]:
    """The run's plots, as far as there is data."""
    if not run.steps:
        return []
    positions = run.counts.sums.positions
    if len(positions):
        return [_acceptance(run.counts), _latency(run), _over_time(run), _by_position(positions)]
    return [_latency(run), _over_time(run)]


def compared_plot(names: Sequence[str], runs: Sequence[RunData]) -> Markup:
    """Tokens over time of several runs."""
    lines = [_accumulated(run.counts) for run in runs]
    ends = [line[-1] for line in lines]
    plot = Plot(
        "tokens",
        "Tokens over time",
        "New tokens against seconds of decoding. The steepest line is the fastest.",
        Axis("time, s", 0, max(end[0] for end in ends) or 1.0),
        Axis("tokens", 0, headroom([end[1] for end in ends]), is_whole=True),
    )
    marks = [series_mark(name, index) for index, name in enumerate(names)]
    for line, mark in zip(lines, marks, strict=True):
        plot.line(line, mark)
    return plot.figure(marks)


def _step_axis(counts: RunCounts) -> Axis:
    return Axis("step", 0, max(len(counts), 2), is_whole=True)


def _binned(counts: RunCounts, *columns: Column) -> tuple[int, str, list[list[float]]]:
    """The width of at most `MAX_POINTS` equal bins, a note on it, and the columns' means over them."""
    width = max(1, math.ceil(len(counts) / MAX_POINTS))
    note = "" if width == 1 else f" Each dot or bar is the mean of {width} steps."
    return width, note, [counts.binned(column, 0, len(counts), width).tolist() for column in columns]


def _acceptance(counts: RunCounts) -> Markup:
    width, note, (shares,) = _binned(counts, Column.ACCEPTED_SHARE)
    plot = Plot(
        "acceptance",
        "Acceptance per step",
        "Accepted / drafted tokens of each step, in per cent. The lines show the running share over all steps so far, "
        f"and the share expected with rejection sampling from the overlap of the two distributions.{note}",
        _step_axis(counts),
        Axis("accepted, %", 0, 1.04, percent),
    )
    tips = [
        f"step {index * width + 1}: {percent_text(share)}" if math.isfinite(share) else ""
        for index, share in enumerate(shares)
    ]
    plot.dots([((index + 0.5) * width, share) for index, share in enumerate(shares)], SHARE, tips)
    for column, mark in ((Column.PREDICTED_RATE, EXPECTED), (Column.RUNNING_RATE, RUNNING)):
        points = [(float(index), rate) for index, rate in enumerate(counts.columns[column], start=1)]
        plot.line(thinned([point for point in points if math.isfinite(point[1])]), mark)
    return plot.figure((SHARE, RUNNING, EXPECTED))


def _latency(run: RunData) -> Markup:
    width, note, columns = _binned(run.counts, Column.DRAFT_MS, Column.VERIFY_MS, Column.TOTAL_MS, Column.TOKENS)
    # Over a bin: the time of its steps / their tokens.
    draft, verify, total = (
        [ms / max(count, 1 / width) for ms, count in zip(part, columns[3], strict=True)] for part in columns[:3]
    )
    both = [first + second for first, second in zip(draft, verify, strict=True)]
    total = list(map(max, total, both))
    plain = _plain_ms_per_token(run)
    plot = Plot(
        "latency",
        "Latency per token",
        "Where each step’s time went, in milliseconds divided by the tokens that it added, stacked: drafting, the "
        "target’s forward, and sampling with verification. The solid line is the mean over all tokens so far"
        + (", the dashed one the target alone." if plain is not None else ".")
        + note,
        _step_axis(run.counts),
        Axis("ms per token", 0, headroom([*total, plain or 0.0])),
    )
    for lower, upper, mark in (
        ([0.0] * len(draft), draft, DRAFTING),
        (draft, both, VERIFYING),
        (both, total, SAMPLING),
    ):
        plot.stairs(lower, upper, width, mark)
    means = [(float(index), ms) for index, ms in enumerate(run.counts.columns[Column.RUNNING_MS_PER_TOKEN], start=1)]
    plot.line(thinned([point for point in means if math.isfinite(point[1])]), MEAN)
    if plain is None:
        return plot.figure((DRAFTING, VERIFYING, SAMPLING, MEAN))
    plot.level(plain, PLAIN)
    return plot.figure((DRAFTING, VERIFYING, SAMPLING, MEAN, PLAIN))


def _plain_ms_per_token(run: RunData) -> float | None:
    """The target alone: from its steps, or from its speed if the log kept none of them."""
    if len(run.baseline):
        return float(run.baseline.columns[Column.RUNNING_MS_PER_TOKEN][-1])
    speed = run.figure("baseline_tokens_per_second")
    return 1e3 / speed if speed else None


def _plain_over_time(run: RunData) -> list[Point]:
    """The baseline's tokens; a straight line if the log kept none of its steps."""
    if len(run.baseline):
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
    ends = [points[-1] for points in (written, plain) if points]
    plot = Plot(
        "tokens",
        "Tokens over time",
        "New tokens against seconds of decoding, without the prefill. The steeper line is the faster one."
        + ("" if plain else " The baseline did not run."),
        Axis("time, s", 0, max(end[0] for end in ends) or 1.0),
        Axis("tokens", 0, headroom([end[1] for end in ends]), is_whole=True),
    )
    plot.line(plain, BASELINE)
    plot.line(written, SPECULATIVE)
    return plot.figure((SPECULATIVE, BASELINE) if plain else (SPECULATIVE,))


def _by_position(positions: PositionCounts) -> Markup:
    longest = len(positions)
    plot = Plot(
        "positions",
        "Acceptance by draft position",
        "Bars: accepted / drafted tokens at each position of the block; they fall because a rejection ends a block. "
        "Dots: accepted / tested tokens, given that all before were accepted.",
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
