"""Step mode: what the playback bar asks for, what it shows, and how text and plots follow one selection."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, StrEnum, auto

from PySide6.QtCore import QObject, QPointF, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPen, QPixmap, QPolygonF, QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QComboBox,
    QHBoxLayout,
    QMenu,
    QSizePolicy,
    QSlider,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.controller import RunController, RunState
from app.menus import Menus
from app.run.run_view import RunView
from app.run.step_plots import StepPlot
from app.run.tokens import Place, Selection, TokenStream
from app.run.transcript import TranscriptView
from app.theme import LIGHT, Theme, hold, scaled, text_scale
from app.widgets.fields import EnumCombo, card, describe, text_label
from app.widgets.plots import FormatSample
from core.types import Coupling, TokenKind

SIDE = 16
_DENSITY = 3.0


class Sign(Enum):
    """What a button does."""

    PAUSE = auto()
    RESUME = auto()
    NEXT = auto()
    BRANCH = auto()


def playback_icon(sign: Sign, theme: Theme) -> QIcon:
    """A sign as it looks when it can be pressed, and when it can't."""
    icon = QIcon()
    icon.addPixmap(_drawn(sign, theme.text), QIcon.Mode.Normal)
    icon.addPixmap(_drawn(sign, theme.field_border), QIcon.Mode.Disabled)
    return icon


def _drawn(sign: Sign, color: str) -> QPixmap:
    pixmap = QPixmap(round(SIDE * _DENSITY), round(SIDE * _DENSITY))
    pixmap.setDevicePixelRatio(_DENSITY)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(color))
    if sign is Sign.PAUSE:
        painter.drawRoundedRect(QRectF(4, 3, 3, 10), 1, 1)
        painter.drawRoundedRect(QRectF(9, 3, 3, 10), 1, 1)
    elif sign is Sign.BRANCH:
        _draw_branch(painter, color)
    else:
        left = 4.5 if sign is Sign.RESUME else 3.0
        painter.drawPolygon(QPolygonF([QPointF(left, 3), QPointF(left + 8, 8), QPointF(left, 13)]))
        if sign is Sign.NEXT:
            painter.drawRoundedRect(QRectF(11.5, 3, 2, 10), 1, 1)
    painter.end()
    return pixmap


def _draw_branch(painter: QPainter, color: str) -> None:
    for centre in (QPointF(4.5, 3.5), QPointF(4.5, 12.5), QPointF(11.5, 5.0)):
        painter.drawEllipse(centre, 1.9, 1.9)
    path = QPainterPath(QPointF(4.5, 3.5))
    path.lineTo(4.5, 12.5)
    path.cubicTo(4.5, 8.5, 11.5, 10.5, 11.5, 5.0)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(QColor(color), 1.4))
    painter.drawPath(path)


ROOM_FOR_WORDS = 470
"""Width from which on the last button has a word beside its sign."""
NARROW_PACE = 96
"""Width of the speeds below that: the slider needs the room more."""
LEAST_SLIDER = 48
"""Width that the slider needs beside them, or it goes below."""


class Pace(StrEnum):
    """How fast a run goes on screen."""

    FULL = "full"
    TEN = "10"
    FIVE = "5"
    TWO = "2"
    ONE = "1"
    STEPWISE = "stepwise"

    @property
    def delay_ms(self) -> float:
        """How far apart steps begin; 0 is full speed."""
        return 1000 / int(self) if self.isdecimal() else 0.0


PACES = {
    Pace.FULL: "Full speed",
    Pace.TEN: "10 steps/s",
    Pace.FIVE: "5 steps/s",
    Pace.TWO: "2 steps/s",
    Pace.ONE: "1 step/s",
    Pace.STEPWISE: "Step by step",
}
PACE_HELP = (
    "How fast steps follow each other. Step by step begins a run with a pause. Waiting counts in no time shown, but a "
    "step after a wait may itself be slower: processors rest too."
)


class PlaybackBar(QWidget):
    """Always in its place; what does nothing at the moment is disabled.

    Signals:
        pause_clicked: pause, or go on.
        step_clicked: one more step.
        pace_chosen: a `Pace`.
        scrubbed: how many steps are to be shown.
    """

    pause_clicked = Signal()
    step_clicked = Signal()
    pace_chosen = Signal(object)
    scrubbed = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("playbackBar")
        self._theme = LIGHT
        self._is_paused = False
        self.pause_button = _button("pauseButton")
        self.step_button = _button("nextStepButton")
        self.pace = EnumCombo(PACES, "paceCombo")
        self.pace.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.pace.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.pace.setMinimumWidth(72)
        self.pace.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setObjectName("scrubSlider")
        self.slider.setMinimumWidth(28)
        self.slider.setRange(0, 0)
        self.place = text_label("", "hint")
        self.place.setObjectName("scrubPlace")
        self.place.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        hold(self.place, least_width=56)
        self.branch_menu = QMenu(self)
        self.branch_button = _button("branchButton")
        self.branch_button.setText("Branch")
        self.branch_button.setMenu(self.branch_menu)
        self.branch_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        describe(self.pause_button, "Pause", "Pause before the next step, or go on (Space)")
        describe(self.step_button, "Next step", "One more draft-verify step, then pause again (F8)")
        describe(self.pace, "Speed", PACE_HELP)
        describe(self.slider, "Steps shown", "Drag to see the text as it was after any step")
        describe(
            self.branch_button,
            "Branch from here",
            "Select a token first: go back to before it, draw again or force another, and continue from there (Ctrl+B)",
        )
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        self._row, self._second_row = QHBoxLayout(), QHBoxLayout()
        for row in (self._row, self._second_row):
            row.setSpacing(4)
            layout.addLayout(row)
        for widget in (self.pause_button, self.step_button, self.pace, self.slider, self.place):
            self._row.addWidget(widget, 1 if widget is self.slider else 0)
        # With large text the slider goes below, and the button stays at the end.
        self._row.addStretch()
        self._row.addWidget(self.branch_button)
        self.pause_button.clicked.connect(self.pause_clicked)
        self.step_button.clicked.connect(self.step_clicked)
        self.pace.activated.connect(self._on_pace_activated)
        self.slider.valueChanged.connect(self._on_slider_moved)
        self.show_steps(0, can_scrub=False)
        self.show_actions(can_pause=False, is_paused=False)
        self.set_branchable(False)
        self.set_theme(LIGHT)

    def show_actions(self, *, can_pause: bool, is_paused: bool) -> None:
        """Enable what can be pressed; Pause turns into Resume in its place."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self.pause_button.setAccessibleName("Resume" if is_paused else "Pause")
            self._draw_icons()
        self.pause_button.setEnabled(can_pause)
        self.step_button.setEnabled(can_pause and is_paused)

    def show_steps(self, num_steps: int, *, can_scrub: bool) -> None:
        """There are so many steps, and all of them are shown."""
        self.slider.blockSignals(True)
        self.slider.setRange(0, num_steps)
        self.slider.setValue(num_steps)
        self.slider.setPageStep(max(1, num_steps // 10))
        self.slider.blockSignals(False)
        self.slider.setEnabled(can_scrub and num_steps > 0)
        self._show_place()

    def set_branchable(self, can_branch: bool) -> None:
        """Whether a token is selected that the run can be gone back to."""
        self.branch_button.setEnabled(can_branch)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self._draw_icons()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Have what is in it fit."""
        super().resizeEvent(event)
        self._fit()

    def rescale(self) -> None:
        """The text has another size."""
        self._fit()

    def _fit(self) -> None:
        """Spell the last button out where there is room; where there is little, the slider has a row of its own."""
        with_words = self.width() >= ROOM_FOR_WORDS * text_scale()
        style = Qt.ToolButtonStyle.ToolButtonTextBesideIcon if with_words else Qt.ToolButtonStyle.ToolButtonIconOnly
        self.branch_button.setToolButtonStyle(style)
        others = (self.pause_button, self.step_button, self.place, self.branch_button)
        needed = sum(widget.sizeHint().width() + self._row.spacing() for widget in others)
        has_room = self.width() >= needed + scaled(NARROW_PACE + LEAST_SLIDER)
        self.pace.setMaximumWidth(self.pace.sizeHint().width() if with_words or not has_room else scaled(NARROW_PACE))
        row = self._row if has_room else self._second_row
        if row.indexOf(self.slider) < 0:
            places = (3, 4) if has_room else (0, 1)
            for place, widget in zip(places, (self.slider, self.place), strict=True):
                row.insertWidget(place, widget, 1 if widget is self.slider else 0)

    def _draw_icons(self) -> None:
        self.pause_button.setIcon(playback_icon(Sign.RESUME if self._is_paused else Sign.PAUSE, self._theme))
        self.step_button.setIcon(playback_icon(Sign.NEXT, self._theme))
        self.branch_button.setIcon(playback_icon(Sign.BRANCH, self._theme))

    def _show_place(self) -> None:
        shown, count = self.slider.value(), self.slider.maximum()
        self.place.setText(f"{shown:,} / {count:,}" if count else "no steps")
        self.place.setToolTip(f"Steps shown, of {count:,}")

    @Slot(int)
    def _on_slider_moved(self, num_steps: int) -> None:
        self._show_place()
        self.scrubbed.emit(num_steps)

    @Slot(int)
    def _on_pace_activated(self, _index: int) -> None:
        self.pace_chosen.emit(self.pace.member())


def _button(name: str) -> QToolButton:
    button = QToolButton()
    button.setObjectName(name)
    button.setProperty("role", "quiet")
    button.setIconSize(QSize(SIDE, SIDE))
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    return button


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


class PlaybackDesk(QObject):
    """Connects the playback bar with the controller, and the transcript with the plots. A panel of the `LiveView`."""

    def __init__(
        self,
        controller: RunController,
        run: RunView,
        selection: Selection,
        transcript: TranscriptPanel,
        menus: Menus,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self.controller = controller
        self.run = run
        self.selection = selection
        self.view = transcript.view
        self.bar = transcript.playback
        self.menus = menus
        self._num_shown = -1
        self.bar.pause_clicked.connect(self._on_pause_wanted)
        self.bar.step_clicked.connect(self._on_step_wanted)
        self.bar.pace_chosen.connect(self._on_pace_chosen)
        self.bar.scrubbed.connect(self._on_scrubbed)
        menus.pause.triggered.connect(self._on_pause_wanted)
        menus.next_step.triggered.connect(self._on_step_wanted)
        controller.state_changed.connect(self._on_state_changed)
        self.view.place_chosen.connect(selection.select)
        self.view.step_pointed.connect(selection.hover)
        selection.changed.connect(self.view.mark)
        selection.hovered.connect(self.view.mark_step)

    def link(self, plots: Iterable[StepPlot]) -> None:
        """Have plots over steps share the selection with the text."""
        for plot in plots:
            plot.pointed.connect(self.selection.hover)
            plot.step_clicked.connect(self._on_step_clicked)
            self.selection.changed.connect(plot.mark_place)
            self.selection.hovered.connect(plot.mark_step)

    # --- A panel of the live view ---

    def begin(self) -> None:
        """A run starts."""
        self._show()

    def refresh(self, *, has_news: bool) -> None:
        """A frame: count the steps that have come."""
        if has_news:
            if self.run.baseline_steps and self.controller.state is RunState.PAUSED:
                # The run was stepped to its end. What is measured now is not to be looked at step by step.
                self.controller.resume()
            self._show()

    def end(self) -> None:
        """A run is over, and can be gone through."""
        self._show()

    # --- Intents ---

    @Slot()
    def _on_pause_wanted(self) -> None:
        if not self._can_pause:
            return
        if self.controller.state is RunState.PAUSED:
            self._show_all()
            self.controller.resume()
        else:
            self.controller.pause()

    @Slot()
    def _on_step_wanted(self) -> None:
        if self._can_pause:
            self._show_all()
            self.controller.step_once()

    @Slot(object)
    def _on_pace_chosen(self, pace: Pace) -> None:
        self.controller.set_pace(pace.delay_ms, starts_paused=pace is Pace.STEPWISE)
        if pace is Pace.STEPWISE and self._can_pause:
            self.controller.pause()

    @Slot(int)
    def _on_scrubbed(self, num_steps: int) -> None:
        steps = self.run.steps
        self.view.set_limit(num_steps if num_steps < len(steps) else None)
        self.selection.select(Place(num_steps - 1, 0) if 0 < num_steps <= len(steps) else None)

    @Slot(int)
    def _on_step_clicked(self, step: int) -> None:
        self.selection.select(Place(step, 0))

    @Slot(object)
    def _on_state_changed(self, _state: RunState) -> None:
        self._show()

    # --- Showing ---

    @property
    def _can_pause(self) -> bool:
        return self.controller.state in {RunState.RUNNING, RunState.PAUSED} and not self.run.baseline_steps

    def _show_all(self) -> None:
        """The text as it stands, should a person have gone back in it."""
        self.view.set_limit(None)
        self._num_shown = -1
        self._show()

    def _show(self) -> None:
        state, can_pause = self.controller.state, self._can_pause
        is_paused = state is RunState.PAUSED
        self.bar.show_actions(can_pause=can_pause, is_paused=is_paused)
        self.menus.pause.setText("Resume" if is_paused else "Pause")
        self.menus.pause.setEnabled(can_pause)
        self.menus.next_step.setEnabled(can_pause and is_paused)
        count = len(self.run.steps)
        can_scrub = state in {RunState.IDLE, RunState.PAUSED}
        if count != self._num_shown or not can_scrub:
            # News are shown at the end of the text, wherever a person was in it.
            self.view.set_limit(None)
            self._num_shown = count
            self.bar.show_steps(count, can_scrub=can_scrub)
        else:
            self.bar.slider.setEnabled(can_scrub and count > 0)
