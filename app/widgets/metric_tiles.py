"""The four figures that a run is about, each with a word on how it is computed."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from app.theme import ui_font
from app.view_models.run_view import Figures
from app.widgets.fields import text_label
from app.widgets.models_labels import ElidedLabel
from core.figures import percent_text

UNKNOWN = "–"


class Tile(QFrame):
    """A title, a figure, a note. Its size doesn't depend on what it shows."""

    def __init__(self, title: str, object_name: str, how: str) -> None:
        super().__init__()
        self.setObjectName("card")
        self.setToolTip(how)
        self.setAccessibleDescription(how)
        self._title = title
        self.value = QLabel(UNKNOWN)
        self.value.setObjectName(object_name)
        self.value.setFont(ui_font(22, weight=QFont.Weight.DemiBold))
        self.note = ElidedLabel("", "tileNote", takes_all=True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 8, 8)
        layout.setSpacing(1)
        layout.addWidget(text_label(title, "tileTitle"))
        layout.addWidget(self.value)
        layout.addWidget(self.note)
        for label in self.findChildren(QLabel):
            label.setTextInteractionFlags(Qt.TextInteractionFlag.NoTextInteraction)

    def show_figure(self, value: str, note: str, short: str = "") -> None:
        """Show a figure and its note, or a shorter one where that fits; costs nothing if they are shown already."""
        if self.value.text() != value:
            self.value.setText(value)
            self.setAccessibleName(f"{self._title}: {value}")
        if self.note.text() != note:
            self.note.setText(note)
            self.note.set_short(short)
            self.note.setToolTip(f"{note}\n\n{self.toolTip()}")


class MetricTiles(QWidget):
    """Tokens per second, measured speedup, acceptance, block efficiency."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = Tile(
            "Tokens per second",
            "speedValue",
            "New tokens / the sum of the steps' times. The prefill of the prompt is not part of it.",
        )
        self.speedup = Tile(
            "Measured speedup",
            "speedupValue",
            "Tokens per second of this run / those of the target alone, run here right afterwards with the same "
            "sampling. Wall clock, never an estimate; below 1 means that drafting doesn't pay here.",
        )
        self.acceptance = Tile(
            "Acceptance",
            "acceptanceValue",
            "Accepted / drafted tokens. Tokens behind a rejected one count as drafted, so this is lower than the "
            "chance of a tested token. Predicted: from sum(min(p, q)), the overlap of the two distributions, at each "
            "drafted position, weighted by the chance that the tokens before it are kept. On average a reproducible "
            "run keeps a little less than this, which is what rejection would have kept of its drafts.",
        )
        self.efficiency = Tile(
            "Block efficiency",
            "efficiencyValue",
            "New tokens / forwards of the target, resampled and bonus tokens included. Plain decoding has 1.",
        )
        layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for index, tile in enumerate((self.speed, self.speedup, self.acceptance, self.efficiency)):
            layout.addWidget(tile, index // 2, index % 2)
        layout.setColumnStretch(0, 1)
        layout.setColumnStretch(1, 1)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.show_figures(Figures(), baseline_ticked=True)

    def show_figures(self, figures: Figures, *, baseline_ticked: bool) -> None:
        """Show a run's figures as far as they are known."""
        speed, note, short = UNKNOWN, "decoding only", ""
        if figures.tokens_per_second is not None:
            speed, taken = f"{figures.tokens_per_second:,.1f}", f"in {figures.seconds:.2f} s"
            note, short = f"{figures.tokens:,} tokens {taken}", f"{figures.tokens:,} {taken}"
        self.speed.show_figure(speed, note, short)
        self.speedup.show_figure(*_speedup(figures, baseline_ticked))
        self.acceptance.show_figure(
            UNKNOWN if figures.acceptance is None else percent_text(figures.acceptance),
            *_predicted(figures),
        )
        efficiency = figures.block_efficiency
        shown = UNKNOWN if efficiency is None else f"{efficiency:.2f}"
        self.efficiency.show_figure(shown, "tokens per target forward", "tokens per forward")


def _predicted(figures: Figures) -> tuple[str, str]:
    if figures.predicted_acceptance is None:
        return "accepted of drafted", "of drafted"
    share = percent_text(figures.predicted_acceptance)
    if figures.is_reproducible:
        return f"rejection would be {share}", f"by rejection {share}"
    return f"predicted {share}", ""


def _speedup(figures: Figures, baseline_ticked: bool) -> tuple[str, str, str]:
    speedup, plain = figures.speedup, figures.baseline_tokens_per_second
    measured = ("", "") if plain is None else (f"baseline {plain:,.1f} tokens/s", f"baseline {plain:,.1f}/s")
    if speedup is not None and plain is not None:
        return f"{speedup:.2f}×", *measured
    if figures.is_over and figures.baseline_wanted:
        return UNKNOWN, "the baseline did not run", "no baseline ran"
    if not (figures.baseline_wanted or (baseline_ticked and not figures.tokens)):
        return UNKNOWN, "tick Measure the baseline", "tick the baseline"
    if plain is not None:
        return UNKNOWN, *measured
    return UNKNOWN, "baseline runs after the run", "baseline comes last"
