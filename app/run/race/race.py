"""View model of the race: the run and its plain baseline on one clock, and the source of the speedup.

Both clocks start after the prefill and sum the steps' own times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.run.run_view import RunView
from core.analysis.run_counts import Timeline
from core.analysis.steadiness import STEPWISE
from core.drafters.registry import METHODS
from core.settings import LOSSY, Coupling, LengthPolicy
from core.text import count_text

HOW = "Run with “Measure the baseline” ticked: the run and its baseline are then replayed here side by side."
ON_A_SERVER = "A race needs the models on this machine: a server can't switch off drafting for one request."
SAME = "Same text, token for token."
SAME_DISTRIBUTION = "The texts differ because they are two random draws; both follow the target's own distribution."
SECONDS_FROM_MS = 999.5
"""Shorter times are shown in milliseconds."""
MOVED = "The temperature was changed during the run; the baseline ran with the last one, so the texts may differ."


@dataclass(frozen=True, slots=True)
class Race:
    """A run and its baseline, both up to the same number of tokens: the largest at which a step of each ended.

    Attributes:
        is_whole: whether neither has more tokens.
    """

    ours: Timeline
    plain: Timeline
    is_whole: bool

    @property
    def duration_ms(self) -> float:
        """Time until the slower of the two is done."""
        return max(self.ours.end_ms, self.plain.end_ms)


def race_of(run: RunView) -> Race | None:
    """The race of a run that is over; None if it has no baseline, or if its steps were taken one by one."""
    ours, plain = run.counts.timeline, run.baseline.timeline
    num_tokens = max(set(ours.counts) & set(plain.counts), default=0)
    if run.summary is None or run.was_stepped or not num_tokens:
        return None
    is_whole = ours.num_tokens == plain.num_tokens == num_tokens
    return Race(ours.up_to(num_tokens), plain.up_to(num_tokens), is_whole)


def speedup_of(run: RunView, race: Race) -> float | None:
    """The speedup over the tokens that are raced; None if the baseline was stopped."""
    if run.measured_speedup is None or race.is_whole or not race.ours.end_ms:
        return run.measured_speedup
    return race.plain.end_ms / race.ours.end_ms


def length_text(run: RunView, race: Race) -> str:
    """Over how many tokens the two are compared, in one sentence."""
    tokens = count_text(race.ours.num_tokens, "token")
    if race.is_whole:
        return f"Both texts have {tokens}."
    ours, plain = run.num_tokens, run.baseline.timeline.num_tokens
    measured = run.measured_speedup
    between = f" (95 %: {interval})" if (interval := run.interval) else ""
    over_all = f" Over all tokens, the measured speedup is {measured:.2f}×{between}." if measured is not None else ""
    return f"Both are compared up to {tokens}: the run wrote {ours:,}, the baseline {plain:,}.{over_all}"


def subject_text(run: RunView) -> str:
    """What raced: the settings and the state of the machine, on one line."""
    if run.request is None:
        return ""
    request = run.request
    # A third-party method may be missing here.
    method = METHODS[request.method].title if request.method in METHODS else request.method
    length, *others = run.lengths
    k = f"{length} K" if isinstance(length, LengthPolicy) else f"K = {length}"
    if others:
        k = "K varied"
    elif run.counts.sums.is_tree and not isinstance(length, LengthPolicy):
        k += " nodes"
    sampling, temperatures = request.sampling, run.temperatures
    changed = "temperature varied" if len(temperatures) > 1 else ""
    if len(temperatures) == 1:  # It may have been changed while the models were loaded.
        sampling = replace(sampling, temperature=min(temperatures))
    busy = "measured on a busy machine" if run.busy_note else ""
    return " · ".join(filter(None, (method, k, sampling.text, changed, busy)))


def source_text(run: RunView, race: Race) -> str:
    """The source of a race's speedup, in one sentence with its numbers."""
    speedup = speedup_of(run, race)
    ours, plain = (line.end_ms / len(line.ends_ms) for line in (race.ours, race.plain))
    if speedup is None or not ours or not plain:
        stopped = count_text(run.baseline.timeline.num_tokens, "token")
        return f"The baseline was stopped after {stopped}, so no speedup was measured."
    efficiency, cost = race.ours.num_tokens / len(race.ours.ends_ms), ours / plain
    found = (
        f"{efficiency:.2f} tokens per forward of the target, in steps that take {cost:.2f} times as long as a "
        f"plain one ({ours:.2f} ms against {plain:.2f} ms): {efficiency:.2f} / {cost:.2f} ≈ {speedup:.2f}×."
    )
    return " ".join(filter(None, (found, run.absence_note, run.busy_note)))


def comparison_text(run: RunView) -> str:
    """How the whole texts of run and baseline compare, in one sentence."""
    ours, plain = ([token for step in steps for token in step.emitted] for steps in (run.steps, run.baseline_steps))
    shared = min(len(ours), len(plain))
    differs = next((i for i in range(shared) if ours[i] != plain[i]), None)
    if differs is None and len(ours) == len(plain):
        return SAME
    if differs is None and run.measured_speedup is None:
        return f"Same text, token for token, as far as the baseline got: {count_text(shared, 'token')}."
    if len(run.temperatures) > 1:
        return MOVED
    if run.coupling is not Coupling.GUMBEL and run.temperatures != {0.0}:
        return LOSSY if run.is_lossy else SAME_DISTRIBUTION
    # Such texts can differ only by rounding: a forward over K + 1 positions sums in another order.
    return f"The texts diverge at token {shared + 1 if differs is None else differs + 1}: rounding decided a near-tie."


def lead_text(race: Race, clock_ms: float) -> str:
    """Which of the two is ahead at a time, in a few words."""
    ours, plain = race.ours, race.plain
    if clock_ms >= race.duration_ms:
        finished = "finished" if race.is_whole else f"reached {count_text(ours.num_tokens, 'token')}"
        digit = _last_digit_ms(race.duration_ms)
        gap = (round(plain.end_ms / digit) - round(ours.end_ms / digit)) * digit  # The difference of what is shown.
        if not gap:
            return f"Both {finished} at the same time"
        who = "The speculative run" if gap > 0 else "The baseline"
        return f"{who} {finished} {seconds_text(abs(gap), race.duration_ms)} earlier"
    lead = ours.tokens_at(clock_ms) - plain.tokens_at(clock_ms)
    if not lead:
        return "Level"
    return f"{'The speculative run' if lead > 0 else 'The baseline'} is {count_text(abs(lead), 'token')} ahead"


def _last_digit_ms(milliseconds: float) -> int:
    return 1 if milliseconds < SECONDS_FROM_MS else 10 if milliseconds < 59_995 else 100


def seconds_text(milliseconds: float, beside_ms: float = 0.0) -> str:
    """A readable time, with the digits of the longer one beside it, if any: 84 ms, 1.25 s, 74.1 s."""
    digit = _last_digit_ms(max(milliseconds, beside_ms))
    return f"{milliseconds:.0f} ms" if digit == 1 else f"{milliseconds / 1000:.{2 if digit == 10 else 1}f} s"


def waiting_text(run: RunView, *, is_running: bool) -> str:
    """Why there is no race, and how to get one."""
    if run.is_on_server:
        return ON_A_SERVER
    if is_running and run.wants_baseline:
        return "When the run and its baseline are done, the two can be replayed here side by side."
    if run.was_stepped and run.baseline_steps:
        return STEPWISE
    if run.wants_baseline and run.summary is not None:
        return "No race: there is too little of the run or of its baseline to compare. The main window says why."
    what = "This run measures no baseline to race against." if is_running else "No race yet."
    return f"{what} {HOW}"
