"""The transcript's panel: what its colours mean, the text, and the playback bar."""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QWidget

from app.controller import RunController
from app.menus import Menus
from app.run.playback import PlaybackBar
from app.run.run_view import RunView
from app.run.text.token_colors import ColorScale, LegendWord
from app.run.text.tokens import GHOSTS, KINDS, Fate, Selection, TokenStream
from app.run.text.transcript import TranscriptView
from app.theme import ColorBy, hold, scaled
from app.widgets.fields import EnumCombo, boxed, card, column, describe, named, quiet_button, row, text_label
from app.widgets.labels import ElidedLabel
from app.widgets.legend import Legend
from core.drafters.registry import METHODS

HEADER_SPACING = 8
HEADER_MARGINS = 26
LEAST_HEIGHT, LEAST_TEXT = 180, 32
FORKS = "other candidates for the next token"
FORKS_HELP = "The small number before a token: how many other candidates the drafted tree had for its position."
COLORS_HELP = "What the text's colours show: each token's kind, or how sure the target was of it"


class TranscriptPanel(QWidget):
    """Legend, text and playback bar.

    Signals:
        colors_chosen: the `ColorBy` was chosen.
    """

    colors_chosen = Signal()

    def __init__(self, controller: RunController, run: RunView, selection: Selection, menus: Menus) -> None:
        super().__init__()
        self.view = TranscriptView()
        hold(self.view, least_height=LEAST_TEXT)
        self.playback = PlaybackBar(controller, run, selection, self.view, menus)
        self._words = {fate: LegendWord(fate) for fate in (*KINDS, Fate.DRAFTED, Fate.REJECTED, Fate.UNTESTED)}
        self._ghosts = [self._words[fate] for fate in GHOSTS]
        self._fork_sample = named(text_label(f"ⁿ {FORKS}", "hint"), "forkSample", FORKS, FORKS_HELP)
        self._legend = Legend((*self._words.values(), self._fork_sample), gap=HEADER_SPACING)
        self._run = run
        help_text = (
            "Show drafted tokens that were not accepted; for a tree, its paths in a strip below the line. They are "
            "never copied"
        )
        self.ghosts_button = quiet_button("Rejected", "ghostsButton", "Show rejected drafts", help_text)
        self.ghosts_button.setCheckable(True)
        self.colors = EnumCombo({by: f"Colour by {by.value}" for by in ColorBy}, "colorCombo", is_compact=True)
        describe(self.colors, "Colours", COLORS_HELP)
        self._scale = ColorScale()
        self._header = row((self._legend, 1), row(self.colors, self.ghosts_button, None), spacing=HEADER_SPACING // 2)
        self.whose = ElidedLabel("", "hint", takes_all=True, name="whoseLabel")
        self.whose.hide()
        frame, layout = card(self._header, self._scale, self.whose, (self.view, 1), self.playback)
        layout.setContentsMargins(12, 10, 12, 8)
        boxed(column(frame), self)
        self.restyle()
        self.ghosts_button.toggled.connect(self.set_ghosts_shown)
        self.colors.currentIndexChanged.connect(self._on_colors_chosen)
        self.playback.pace.currentIndexChanged.connect(self.restyle)
        self._on_colors_chosen()

    def begin(self, stream: TokenStream) -> None:
        """Show a stream from its start."""
        for word in self._words.values():
            word.explain(stream.coupling)
        self.restyle()
        self.view.set_stream(stream)

    def show_whose(self, text: str) -> None:
        """Say above the text whose it is; empty if it is that of the last run."""
        self.whose.setText(text)
        self.whose.setVisible(bool(text))
        self.restyle()

    def set_ghosts_shown(self, shown: bool) -> None:
        """Show or hide rejected drafts, in the text and in the legend."""
        self.ghosts_button.setChecked(shown)
        self.restyle()
        self.view.set_ghosts_shown(shown)

    @Slot()
    def _on_colors_chosen(self) -> None:
        by = self.colors.member()
        for word in self._words.values():
            word.color_by(by)
        self._scale.color_by(by)
        self.view.color_by(by)
        self.colors_chosen.emit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit the header to the width."""
        super().resizeEvent(event)
        self.restyle()

    def restyle(self) -> None:
        """Show the samples that the text needs; in a narrow panel the buttons have their own line."""
        request = self._run.request
        method = METHODS.get(request.method) if request is not None and not request.engine else None
        self._fork_sample.setVisible(method is not None and method.proposes_trees)
        # At full speed nobody sees a draft before its verdict.
        self._words[Fate.DRAFTED].setVisible(self.playback.is_slowed)
        buttons = sum(button.sizeHint().width() + HEADER_SPACING for button in (self.colors, self.ghosts_button))
        # Counted even when hidden: otherwise the button that shows them would move away from the pointer.
        for word in self._ghosts:
            word.setVisible(True)
        is_wide = self._legend.width_on_one_line() + buttons <= self.width() - HEADER_MARGINS
        for word in self._ghosts:
            word.setVisible(self.ghosts_button.isChecked())
        # Below two messages at the top of a small window there is no room for both lines.
        is_low = not is_wide and self.height() < scaled(LEAST_HEIGHT)
        self._legend.setHidden(is_low and not self.whose.isHidden())
        self._header.setDirection(QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom)
