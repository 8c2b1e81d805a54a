"""The transcript under its legend and the switch for ghosts; the tab above it is its title."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QToolButton, QVBoxLayout, QWidget

from app.theme import LIGHT, Theme
from app.view_models.token_stream import TokenStream
from app.widgets.fields import card, describe
from app.widgets.legend import FormatSample
from app.widgets.playback_bar import PlaybackBar
from app.widgets.transcript import TranscriptView
from core.types import Coupling, TokenKind

HEADER_SPACING = 12
HEADER_MARGINS = 26
GHOST_HELP = "A drafted token that was not kept. It is shown, but never copied."

BONUS_MEANING = "Drawn from the target itself, after a block that was accepted whole, or where nothing was drafted."
MEANINGS = {
    Coupling.REJECTION: {
        TokenKind.ACCEPTED: "Drafted, tested by the target, and kept.",
        TokenKind.CORRECTION: "The draft's token was rejected; this one was drawn from the residual instead.",
        TokenKind.BONUS: BONUS_MEANING,
    },
    Coupling.GUMBEL: {
        TokenKind.ACCEPTED: "Drafted, and kept: the target's own draw under the shared noise equals it.",
        TokenKind.CORRECTION: "The target's own draw under the shared noise, which differs from the draft's.",
        TokenKind.BONUS: BONUS_MEANING,
    },
}


class TranscriptPanel(QWidget):
    """Signals:
    ghosts_toggled: whether ghosts are to be shown.
    """

    ghosts_toggled = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self.view = TranscriptView()
        self.playback = PlaybackBar()
        self._samples = {
            kind: FormatSample(LIGHT.kind(kind).label, MEANINGS[Coupling.REJECTION][kind])
            for kind in (TokenKind.ACCEPTED, TokenKind.CORRECTION, TokenKind.BONUS)
        }
        self._ghost_sample = FormatSample("rejected", GHOST_HELP)
        self.ghosts_button = QToolButton()
        self.ghosts_button.setObjectName("ghostsButton")
        self.ghosts_button.setText("Show rejected")
        self.ghosts_button.setCheckable(True)
        self.ghosts_button.setProperty("role", "quiet")
        self.ghosts_button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        describe(self.ghosts_button, "Show rejected drafts", "Show the draft's tokens that were not kept")
        frame, layout = card()
        layout.setContentsMargins(12, 10, 12, 8)
        legend = QHBoxLayout()
        legend.setSpacing(HEADER_SPACING)
        for sample in (*self._samples.values(), self._ghost_sample):
            legend.addWidget(sample)
        legend.addStretch(1)
        self._header = header = QBoxLayout(QBoxLayout.Direction.LeftToRight)
        header.setSpacing(HEADER_SPACING // 2)
        header.addLayout(legend, 1)
        header.addWidget(self.ghosts_button)
        layout.addLayout(header)
        layout.addWidget(self.view, 1)
        layout.addWidget(self.playback)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(frame)
        self._shows_ghosts = False
        self._fit_header()
        self.ghosts_button.toggled.connect(self.set_ghosts_shown)
        self.ghosts_button.toggled.connect(self.ghosts_toggled)

    def begin(self, stream: TokenStream) -> None:
        """Show a stream from its start."""
        for kind, sample in self._samples.items():
            sample.set_meaning(MEANINGS[stream.coupling][kind])
        self.view.set_stream(stream)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.view.set_theme(theme)
        self.playback.set_theme(theme)
        for kind, sample in self._samples.items():
            sample.set_format(theme.token_format(kind))
        self._ghost_sample.set_format(theme.ghost_format())

    def set_ghosts_shown(self, shown: bool) -> None:
        """Show or hide ghosts, here and in the legend."""
        self.ghosts_button.setChecked(shown)
        self._shows_ghosts = shown
        self._fit_header()
        self.view.set_ghosts_shown(shown)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Have the header fit."""
        super().resizeEvent(event)
        self._fit_header()

    def rescale(self) -> None:
        """The text has another size."""
        self._fit_header()

    def _fit_header(self) -> None:
        """Leave out what a narrow panel has no room for: what the pressed button says as well.

        With large text the button itself has a line of its own.
        """
        samples: list[QWidget] = [*self._samples.values(), self.ghosts_button]
        room = self.width() - HEADER_MARGINS - sum(_room_of(widget) for widget in samples)
        is_wide = room + HEADER_SPACING >= 0
        self._header.setDirection(QBoxLayout.Direction.LeftToRight if is_wide else QBoxLayout.Direction.TopToBottom)
        self._ghost_sample.setVisible(self._shows_ghosts and room >= _room_of(self._ghost_sample))


def _room_of(widget: QWidget) -> int:
    return widget.sizeHint().width() + HEADER_SPACING
