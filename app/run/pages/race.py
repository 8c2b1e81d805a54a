"""View model of the race: the run and its plain baseline on one clock, and the source of the speedup.

Both clocks start after the prefill and sum the steps' own times.
"""

from __future__ import annotations

from app.run.run_view import RunView
from core.settings import LOSSY, Coupling

SAME = "Same text, token for token."
SAME_DISTRIBUTION = "The texts differ because they are two random draws; both follow the target's own distribution."
MOVED = "The temperature was changed during the run; the baseline ran with the last one, so the texts may differ."


def has_race(run: RunView) -> bool:
    """Whether a run is over, and has a baseline to race against."""
    return run.summary is not None and bool(run.steps) and bool(run.baseline_steps)


def duration_ms(run: RunView) -> float:
    """Time until the slower of the two is done."""
    return max(run.counts.timeline.end_ms, run.baseline.timeline.end_ms)


def speedup_of(run: RunView) -> float | None:
    """The speedup as measured; None if the baseline was stopped."""
    return run.summary.measured_speedup if run.summary is not None else None


def source_text(run: RunView) -> str:
    """The source of a race's speedup, in one sentence with its numbers."""
    lines = run.counts.timeline, run.baseline.timeline
    (ours, plain), speedup = (line.end_ms / len(line.ends_ms) for line in lines), speedup_of(run)
    if speedup is None or not ours or not plain:
        return f"The baseline was stopped after {tokens_text(lines[1].num_tokens)}, so no speedup was measured."
    efficiency, cost = lines[0].num_tokens / len(lines[0].ends_ms), ours / plain
    between = f"95 % interval: {run.interval}." if run.interval else ""
    notes = [f" {note}" for note in (between, run.absence_note, run.busy_note) if note]
    return "".join(
        [
            f"{efficiency:.2f} tokens per forward of the target, in steps that take {cost:.2f} times as long as a "
            f"plain one ({ours:.1f} ms against {plain:.1f} ms): {efficiency:.2f} / {cost:.2f} = {speedup:.2f}×.",
            *notes,
        ]
    )


def comparison_text(run: RunView) -> str:
    """How the texts of run and baseline compare, in one sentence."""
    ours, plain = ([token for step in steps for token in step.emitted] for steps in (run.steps, run.baseline_steps))
    shared = min(len(ours), len(plain))
    differs = next((i for i in range(shared) if ours[i] != plain[i]), None)
    if differs is None and len(ours) == len(plain):
        return SAME
    if differs is None and speedup_of(run) is None:
        return f"Same text, token for token, as far as the baseline got: {tokens_text(shared)}."
    temperatures = {step.temperature for step in run.steps}
    if len(temperatures) > 1:
        return MOVED
    if run.coupling is not Coupling.GUMBEL and temperatures != {0.0}:
        return LOSSY if run.is_lossy else SAME_DISTRIBUTION
    # Such texts can differ only by rounding: a forward over K + 1 positions sums in another order.
    return f"The texts diverge at token {shared + 1 if differs is None else differs + 1}: rounding decided a near-tie."


def lead_text(run: RunView, clock_ms: float) -> str:
    """Which of the two is ahead at a time, in a few words."""
    ours, plain = run.counts.timeline, run.baseline.timeline
    if clock_ms >= duration_ms(run):
        gap = plain.end_ms - ours.end_ms
        who = "Speculative" if gap >= 0 else "The baseline"
        return f"{who} finished {seconds_text(abs(gap))} earlier"
    lead = ours.tokens_at(clock_ms) - plain.tokens_at(clock_ms)
    if not lead:
        return "Level"
    return f"{'Speculative' if lead > 0 else 'The baseline'} is {tokens_text(abs(lead))} ahead"


def tokens_text(count: int) -> str:
    """1 token, 1,200 tokens."""
    return f"{count:,} token{'' if count == 1 else 's'}"


def seconds_text(milliseconds: float) -> str:
    """A readable time: 84 ms, 1.25 s, 74.1 s."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.2f} s" if milliseconds < 59_995 else f"{milliseconds / 1000:.1f} s"


def waiting_text(run: RunView, *, is_running: bool) -> str:
    """Why there is no race, and how to get one."""
    if is_running and run.wants_baseline:
        return "When the run and its baseline are done, the two can be replayed here side by side."
    what = "This run measures no baseline to race against." if is_running else "No race yet."
    return f"{what} Run with “Measure the baseline” ticked: the two are then replayed here side by side, on one clock."
