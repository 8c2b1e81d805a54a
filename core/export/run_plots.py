"""Draws a run's plots for its report: acceptance, latency, tokens over time, and acceptance by position."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from markupsafe import Markup

from core.analysis.expectation import expected_accepted, wilson
from core.export.charts import Axis, Mark, Plot, Point, binned, headroom, percent, series_mark, thinned
from core.export.run_data import RunData
from core.runlog.tally import PositionCounts
from core.text import percent_text
from core.types import Step

SHARE = Mark("of the step’s drafted tokens", "draft_bar", is_dots=True)
RUNNING = Mark("running share", "accepted")
EXPECTED = Mark("expected with rejection sampling", "correction", dash="6 4")
DRAFTING = Mark("draft", "draft_bar", is_area=True)
VERIFYING = Mark("target", "target_bar", is_area=True)
SAMPLING = Mark("sampling", "sample_bar", is_area=True)
PLAIN = Mark("a plain step of the baseline", "text", dash="7 4")
SPECULATIVE = Mark("speculative", "accepted")
BASELINE = Mark("target alone", "text", dash="7 4")
KEPT = Mark("of all drafted", "draft_bar", is_area=True)
GIVEN = Mark("if all before were accepted, with its 95 % interval", "text", is_dots=True)


def run_plots(run: RunData) -> list[Markup]:
    """The run's plots, as far as there is data."""
    if not run.steps:
        return []
    if any(step.num_draft_tokens for step in run.steps):
        return [_acceptance(run.steps), _latency(run), _over_time(run), _by_position(run.tally.positions)]
    return [_latency(run), _over_time(run)]


def compared_plot(names: Sequence[str], runs: Sequence[RunData]) -> Markup:
    """Tokens over time of several runs."""
    lines = [_accumulated_steps(run.steps) for run in runs]
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


def _step_axis(count: int) -> Axis:
    return Axis("step", 0, max(count, 2), is_whole=True)


def _bin_words(width: int) -> str:
    return "" if width == 1 else f" Each dot or bar is the mean of {width} steps."


def _acceptance(steps: Sequence[Step]) -> Markup:
    shares = [step.num_accepted / step.num_draft_tokens if step.num_draft_tokens else math.nan for step in steps]
    width, means = binned(shares)
    plot = Plot(
        "acceptance",
        "Acceptance per step",
        "Accepted / drafted tokens of each step, in per cent. The lines show the running share over all steps so far, "
        "and the share expected with rejection sampling from the overlap of the two distributions." + _bin_words(width),
        _step_axis(len(steps)),
        Axis("accepted, %", 0, 1.04, percent),
    )
    tips = [
        f"step {index * width}: {percent_text(share)}" if math.isfinite(share) else ""
        for index, share in enumerate(means)
    ]
    plot.dots([((index + 0.5) * width, share) for index, share in enumerate(means)], SHARE, tips)
    found, expected, drafted, accepted, hoped = [], [], 0, 0, 0.0
    for index, step in enumerate(steps, start=1):
        drafted += step.num_draft_tokens
        accepted += step.num_accepted
        likely = expected_accepted(step.acceptance_probs, step.expected_acceptance)
        # A step of a damaged log may lack its figures.
        hoped += likely if math.isfinite(likely) else step.num_accepted
        if drafted:
            found.append((float(index), accepted / drafted))
            expected.append((float(index), hoped / drafted))
    plot.line(thinned(expected), EXPECTED)
    plot.line(thinned(found), RUNNING)
    return plot.figure((SHARE, RUNNING, EXPECTED))


def _latency(run: RunData) -> Markup:
    steps = run.steps
    width, draft = binned([step.draft_ms for step in steps])
    _, verify = binned([step.verify_ms for step in steps])
    _, total = binned([max(step.total_ms, step.draft_ms + step.verify_ms) for step in steps])
    plain = _plain_step_ms(run)
    plot = Plot(
        "latency",
        "Latency per step",
        "Where each step’s time went, in milliseconds, stacked: drafting, the target’s forward, and sampling with "
        "verification."
        + (" The dashed line is a plain step of the baseline." if plain is not None else "")
        + _bin_words(width),
        _step_axis(len(steps)),
        Axis("time, ms", 0, headroom([*total, plain or 0.0])),
    )
    both = [first + second for first, second in zip(draft, verify, strict=True)]
    for lower, upper, mark in (
        ([0.0] * len(draft), draft, DRAFTING),
        (draft, both, VERIFYING),
        (both, total, SAMPLING),
    ):
        plot.stairs(lower, upper, width, mark)
    if plain is None:
        return plot.figure((DRAFTING, VERIFYING, SAMPLING))
    plot.level(plain, PLAIN)
    return plot.figure((DRAFTING, VERIFYING, SAMPLING, PLAIN))


def _plain_step_ms(run: RunData) -> float | None:
    """The median plain step; the mean if the log kept none of them."""
    if run.baseline_ms:
        return statistics.median(run.baseline_ms)
    speed = run.figure("baseline_tokens_per_second")
    return 1e3 / speed if speed else None


def _plain_over_time(run: RunData) -> list[Point]:
    """The baseline's tokens; a straight line if the log kept none of its steps."""
    if run.baseline_ms:
        return _accumulated(run.baseline_ms, run.baseline_tokens)
    speed = run.figure("baseline_tokens_per_second")
    count = float(sum(len(step.emitted) for step in run.steps))
    return [(0.0, 0.0), (count / speed, count)] if speed else []


def _accumulated_steps(steps: Sequence[Step]) -> list[Point]:
    return _accumulated([step.total_ms for step in steps], [len(step.emitted) for step in steps])


def _accumulated(times_ms: Sequence[float], tokens: Sequence[int]) -> list[Point]:
    """Seconds and tokens after each step, thinned out."""
    points, seconds, count = [(0.0, 0.0)], 0.0, 0
    for time_ms, emitted in zip(times_ms, tokens, strict=True):
        seconds += time_ms / 1e3
        count += emitted
        points.append((seconds, float(count)))
    return thinned(points)


def _over_time(run: RunData) -> Markup:
    written, plain = _accumulated_steps(run.steps), _plain_over_time(run)
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
