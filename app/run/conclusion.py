"""The verdict above the text of a finished run: was it faster than plain decoding, and is the text the same?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtWidgets import QFrame

from app.run.pacing import Pace
from app.run.run_view import RunView
from app.run.speed.speed import MEASURE_WHOLE
from app.run.speed.speed_page import AdviceRow
from app.widgets.fields import boxed, column, set_flag, wrapped_label
from core.analysis.advice import Advice
from core.analysis.diagnosis import diagnose
from core.analysis.steadiness import (
    BUSY_MACHINE,
    REPEAT_WHEN_IDLE,
    STEPWISE,
    covers_one,
    interval_text,
    speedup_interval,
    spread_text,
    unsteadiness,
)
from core.settings import Coupling

QUALIFIED = "Measured on a busy machine: "
SHORT_MS = 20.0
"""Steps shorter than this are disturbed by the window's own drawing."""
DRAWING = "Drawing the window disturbs steps this short: choose a slower Pace."


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a run showed.

    Attributes:
        headline: whether it was faster than plain decoding, and whether its text is the target's.
        basis: the interval of the speedup, and how steady the machine was.
        kind: "doubtful" if the machine was too busy for the headline to be trusted, "lossy", "faster", "slower", or
            empty if there is no clear difference.
        advice: what to try where it wasn't faster, or can't be trusted; otherwise None.
    """

    headline: str
    basis: str
    kind: str = ""
    advice: Advice | None = None


def conclusion_of(run: RunView, *, is_slowed: bool = False) -> Conclusion | None:
    """What a run showed; None before its end, and without a baseline.

    Args:
        is_slowed: whether it was shown at a slower pace.
    """
    summary = run.summary
    if summary is not None and run.was_stepped and summary.baseline_tokens_per_second is not None:
        again = Advice(STEPWISE, settings={"pace": Pace.FULL}, repeats=True)
        return Conclusion(f"No speed comparison, {_sameness(run)}", STEPWISE, advice=again)
    speedup = run.measured_speedup
    is_stopped = summary is not None and not summary.error and not summary.has_baseline and bool(run.baseline_steps)
    if is_stopped and speedup is None:
        settings = {"pace": Pace.FULL} if run.was_stepped else {}
        again = Advice(MEASURE_WHOLE, settings=settings, repeats=True)
        return Conclusion("No speedup measured: the baseline is not complete", MEASURE_WHOLE, advice=again)
    if speedup is None:
        return None
    interval = speedup_interval(run.counts.sums, run.baseline.sums)
    if interval is None:
        headline, verdict = f"Too few steps to tell: {speedup:.2f} times the speed of plain decoding", ""
    elif covers_one(interval):
        headline, verdict = f"No measurable difference from plain decoding ({speedup:.2f}×)", ""
    elif speedup > 1:
        headline, verdict = f"{speedup:.2f} times as fast as plain decoding", "faster"
    else:
        headline, verdict = f"Slower than plain decoding, at {speedup:.2f} times its speed", "slower"
    busy, spread = run.busy_note.removeprefix(BUSY_MACHINE), unsteadiness(run.counts.sums, run.baseline.sums)
    steady = "" if spread is None else f"The machine was steady: {spread_text(spread)}"
    sums = run.counts.sums
    # Neither a busy machine's times nor those of a few steps are grounds for other settings.
    advice = Advice(REPEAT_WHEN_IDLE, repeats=True) if busy else None
    if busy and not is_slowed and sums.total_ms < SHORT_MS * sums.num_steps:
        busy = busy.replace(REPEAT_WHEN_IDLE, DRAWING)
        advice = Advice(DRAWING, settings={"pace": Pace.SLOWED}, repeats=True)
    elif not busy and verdict != "faster" and interval is not None:
        advice = _advice(run)
    notes = [f"95 % interval {interval_text(interval)}." if interval else "Generate more tokens to get an interval."]
    notes += [note for note in (run.absence_note, busy[:1].upper() + busy[1:] or steady) if note]
    return Conclusion(
        headline=f"{QUALIFIED + headline[0].lower() + headline[1:] if busy else headline}, {_sameness(run)}",
        basis=" ".join(notes),
        kind="doubtful" if busy else "lossy" if run.is_lossy else verdict,
        advice=advice,
    )


def _sameness(run: RunView) -> str:
    """How the text relates to the target's own."""
    if run.is_lossy:
        return "different distribution (lossy)"
    ours, plain = ([token for step in steps for token in step.emitted] for steps in (run.steps, run.baseline_steps))
    if (run.coupling is Coupling.GUMBEL or run.temperatures == {0.0}) and ours == plain:
        return "same text"
    # The baseline ran with the last temperature.
    return "temperature changed during the run" if len(run.temperatures) > 1 else "same distribution"


def _advice(run: RunView) -> Advice | None:
    found = diagnose(run.counts.sums, run.plain_step)
    return next((item for item in run.advice(found) if not item.is_remark), None) if found is not None else None


class ConclusionBar(QFrame):
    """Shows a run's `Conclusion`, until another one begins. A panel of the `LiveView`."""

    def __init__(self, run: RunView, is_slowed: Callable[[], bool]) -> None:
        """`is_slowed`: see `conclusion_of`."""
        super().__init__()
        self.setObjectName("conclusion")
        self._run, self._is_slowed = run, is_slowed
        self.headline = wrapped_label("conclusionHeadline", "title")
        self.basis = wrapped_label("conclusionBasis", "hint")
        self.advice = AdviceRow(self.headline, self.basis)
        boxed(column(self.advice), self, margins=(12, 6, 12, 6))
        self.hide()

    def begin(self) -> None:
        """A run starts."""
        self.hide()

    def refresh(self, *, has_news: bool) -> None:
        """Nothing to do before the end."""

    def end(self) -> None:
        """A run is over: show what it showed."""
        found = conclusion_of(self._run, is_slowed=self._is_slowed())
        if found is not None:
            self.headline.setText(found.headline)
            self.basis.setText(found.basis)
            set_flag(self.basis, "role", "warning" if found.kind == "doubtful" else "hint")
            set_flag(self, "kind", found.kind)
            self.advice.text.setVisible(found.advice is not None and found.advice.text not in found.basis)
            self.advice.button.setVisible(found.advice is not None)
            if found.advice is not None:
                self.advice.show_advice(found.advice, lead="Try this: ")
            self.setAccessibleName(f"{found.headline}. {found.basis}")
        self.setVisible(found is not None)
