"""A run's plots: acceptance, latency, tokens over time, and acceptance by position."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from core.analysis.expectation import expected_accepted, wilson
from core.export.charts import MAX_POINTS, Axis, Mark, Plot, Point, Words, binned, figure, headroom, percent, thinned
from core.export.run_data import RunData
from core.text import percent_text
from core.types import Step

SHARE = Mark("of the step’s drafted tokens", "draft_bar", is_dots=True)
RUNNING = Mark("running share", "accepted")
EXPECTED = Mark("expected by rejection sampling", "correction", dash="6 4")
DRAFTING = Mark("draft", "draft_bar", is_area=True)
VERIFYING = Mark("target", "target_bar", is_area=True)
SAMPLING = Mark("sampling", "sample_bar", is_area=True)
PLAIN = Mark("a plain step of the baseline", "text", dash="7 4")
SPECULATIVE = Mark("speculative", "accepted")
BASELINE = Mark("target alone", "text", dash="7 4")
KEPT = Mark("of all drafted", "draft_bar", is_area=True)
GIVEN = Mark("where all before were kept, with its 95 % interval", "text", is_dots=True)


def plots(run: RunData) -> str:
    """All four, as far as there is something to draw."""
    steps = run.steps
    if not steps:
        return ""
    drafting = any(step.num_draft_tokens for step in steps)
    parts = [_acceptance(steps) if drafting else "", _latency(run), _over_time(run)]
    parts.append(_by_position(steps) if drafting else "")
    return "\n".join(part for part in parts if part)


def _step_axis(count: int) -> Axis:
    return Axis("step", 0, max(count, 2), is_whole=True)


def _bin_words(width: int) -> str:
    return "" if width == 1 else f" Each dot or step of the picture is the mean of {width} steps."


def _acceptance(steps: Sequence[Step]) -> str:
    shares = [step.num_accepted / step.num_draft_tokens if step.num_draft_tokens else math.nan for step in steps]
    width, means = binned(shares)
    words = Words(
        "acceptance",
        "Acceptance per step",
        "Accepted / drafted tokens of each step, in percent; the lines are the running share over all steps so far, "
        "and the share that the overlap of the two distributions lets expect of rejection sampling."
        + _bin_words(width),
    )
    plot = Plot(words, _step_axis(len(steps)), Axis("accepted, %", 0, 1.04, percent))
    tips = [
        f"step {place * width}: {percent_text(share)}" if math.isfinite(share) else ""
        for place, share in enumerate(means)
    ]
    plot.dots([((place + 0.5) * width, share) for place, share in enumerate(means)], SHARE, tips)
    found, expected = _running(steps)
    plot.line(thinned(expected), EXPECTED)
    plot.line(thinned(found), RUNNING)
    return figure(plot, words, (SHARE, RUNNING, EXPECTED))


def _running(steps: Sequence[Step]) -> tuple[list[Point], list[Point]]:
    """The shares accepted, and to be expected, after each step."""
    found, expected, drafted, accepted, hoped = [], [], 0, 0, 0.0
    for place, step in enumerate(steps):
        drafted += step.num_draft_tokens
        accepted += step.num_accepted
        likely = expected_accepted(step.acceptance_probs, step.expected_acceptance)
        # A step of a damaged log may lack its figures.
        hoped += likely if math.isfinite(likely) else step.num_accepted
        if drafted:
            found.append((place + 1.0, accepted / drafted))
            expected.append((place + 1.0, hoped / drafted))
    return found, expected


def _latency(run: RunData) -> str:
    steps = run.steps
    width, draft = binned([step.draft_ms for step in steps])
    _, verify = binned([step.verify_ms for step in steps])
    _, total = binned([max(step.total_ms, step.draft_ms + step.verify_ms) for step in steps])
    plain = _plain_step_ms(run)
    words = Words(
        "latency",
        "Latency per step",
        "Where each step’s time went, in milliseconds, stacked: drafting, the target’s forward, and the rest: sampling "
        "and the verdict."
        + (" The dashed line is a plain step of the baseline." if plain is not None else "")
        + _bin_words(width),
    )
    high = headroom([*total, plain or 0.0])
    plot = Plot(words, _step_axis(len(steps)), Axis("time, ms", 0, high))
    both = [first + second for first, second in zip(draft, verify, strict=True)]
    floor = [0.0] * len(draft)
    for lower, upper, mark in ((floor, draft, DRAFTING), (draft, both, VERIFYING), (both, total, SAMPLING)):
        plot.stairs(lower, upper, width, mark)
    if plain is not None:
        plot.level(plain, PLAIN)
    marks = (DRAFTING, VERIFYING, SAMPLING)
    return figure(plot, words, (*marks, PLAIN) if plain is not None else marks)


def _plain_step_ms(run: RunData) -> float | None:
    """The median plain step; the mean, where the log kept none of them."""
    if run.baseline_ms:
        return statistics.median(run.baseline_ms)
    speed = run.figure("baseline_tokens_per_second")
    return 1e3 / speed if speed else None


def _plain_over_time(run: RunData) -> list[Point]:
    """The baseline's tokens; a straight line, where the log kept none of its steps."""
    if run.baseline_ms:
        return thinned(_accumulated(run.baseline_ms, run.baseline_tokens))
    speed = run.figure("baseline_tokens_per_second")
    count = float(sum(len(step.emitted) for step in run.steps))
    return [(0.0, 0.0), (count / speed, count)] if speed else []


def over_time(steps: Sequence[Step]) -> list[Point]:
    """Seconds and tokens, after each step."""
    return _accumulated([step.total_ms for step in steps], [len(step.emitted) for step in steps])


def _accumulated(times_ms: Sequence[float], tokens: Sequence[int]) -> list[Point]:
    points, seconds, count = [(0.0, 0.0)], 0.0, 0
    for time_ms, emitted in zip(times_ms, tokens, strict=True):
        seconds += time_ms / 1e3
        count += emitted
        points.append((seconds, float(count)))
    return points


def _over_time(run: RunData) -> str:
    written = thinned(over_time(run.steps))
    plain = _plain_over_time(run)
    words = Words(
        "tokens",
        "Tokens over time",
        "New tokens against seconds of decoding, without the prefill. The steeper line is the faster one."
        + ("" if plain else " The baseline did not run."),
    )
    ends = [points[-1] for points in (written, plain) if points]
    x = Axis("time, s", 0, max((end[0] for end in ends), default=0.0) or 1.0)
    plot = Plot(words, x, Axis("tokens", 0, headroom([end[1] for end in ends]), is_whole=True))
    plot.line(plain, BASELINE)
    plot.line(written, SPECULATIVE)
    return figure(plot, words, (SPECULATIVE, BASELINE) if plain else (SPECULATIVE,))


def _by_position(steps: Sequence[Step]) -> str:
    longest = max(step.num_draft_tokens for step in steps)
    drafted, tested, accepted = ([0] * longest for _ in range(3))
    for step in steps:
        for place in range(step.num_draft_tokens):
            drafted[place] += 1
            accepted[place] += place < step.num_accepted
            tested[place] += place <= step.num_accepted and not _ended(step, place)
    words = Words(
        "positions",
        "Acceptance by draft position",
        "Bars: accepted / drafted tokens at each position of the block, which falls as a rejection ends a block. Dots: "
        "accepted / tested, where all before were accepted.",
    )
    plot = Plot(
        words, Axis("position in the draft", 0.4, longest + 0.6, is_whole=True), Axis("accepted, %", 0, 1.04, percent)
    )
    for place in range(longest):
        share = accepted[place] / drafted[place]
        tip = f"position {place + 1}: {percent_text(share, 1)} of {drafted[place]:,} drafted"
        plot.bar(place + 1, share, 0.62, KEPT, tip)
    for place in range(longest):
        if tested[place]:
            rate = accepted[place] / tested[place]
            plot.whisker(place + 1, *wilson(rate, tested[place]))
            tip = f"position {place + 1}: {percent_text(rate, 1)} of {tested[place]:,} tested"
            plot.dots([(place + 1.0, rate)], GIVEN, [tip])
    return figure(plot, words, (KEPT, GIVEN))


def _ended(step: Step, place: int) -> bool:
    """Whether the text ended within the block, before the token at this place was tested."""
    return place == step.num_accepted and len(step.emitted) == step.num_accepted


__all__ = ["MAX_POINTS", "over_time", "plots"]
