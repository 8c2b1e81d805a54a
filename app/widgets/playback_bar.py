"""The row under the transcript: pause, next step, how fast, which step is shown, and a way back into the run."""

from __future__ import annotations

from enum import StrEnum

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QMenu, QSizePolicy, QSlider, QToolButton, QVBoxLayout, QWidget

from app.text_size import hold
from app.theme import LIGHT, Theme, scaled, text_scale
from app.widgets.fields import EnumCombo, describe, text_label
from app.widgets.playback_icons import SIDE, Sign, playback_icon

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
