"""What moves the race's clock: play, restart, pace, and a slider over its time."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt, Slot
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QPushButton, QSlider, QWidget

from app.view_models.race import seconds_text
from app.widgets.fields import WheelGuard, describe, text_label
from app.widgets.race_clock import RaceClock

PACES = {"× ¼": 0.25, "× 1": 1.0, "× 4": 4.0}
STOPS = 100
"""Into how many steps the arrow keys cut the race."""

CLOCK_HELP = (
    "Time since the prompt was read. Reading it costs both the same and is left out; the rest is the steps' own time "
    "as it was measured."
)


class RaceControls(QWidget):
    """Shows and moves a `RaceClock`. `time`, its reading, is for the page to put where it is looked for."""

    def __init__(self, clock: RaceClock) -> None:
        super().__init__()
        self._clock = clock
        self._guard = WheelGuard(self)
        self.play = QPushButton("Play")
        self.play.setObjectName("racePlay")
        self.restart = QPushButton("Restart")
        self.restart.setObjectName("raceRestart")
        self.pace = QComboBox()
        self.pace.setObjectName("racePace")
        self.pace.addItems(list(PACES))
        self.pace.setCurrentText("× 1")
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setObjectName("raceSlider")
        self.time = text_label("", "hint")
        self.time.setObjectName("raceTime")
        describe(self.play, "Play or pause the race", "Replay both runs on one clock")
        describe(self.restart, "Restart the race", "Go back to the start and play")
        describe(self.pace, "Pace of the race", "× 1 is the time that was measured")
        describe(self.slider, "Clock of the race, in milliseconds", CLOCK_HELP)
        self.time.setToolTip(CLOCK_HELP)
        self._guard.watch(self.pace, self.slider)
        buttons = QHBoxLayout(self)
        buttons.setContentsMargins(0, 0, 0, 0)
        buttons.setSpacing(8)
        for widget in (self.play, self.restart, self.pace):
            buttons.addWidget(widget)
        buttons.addWidget(self.slider, 1)
        self.play.clicked.connect(self._on_play)
        self.restart.clicked.connect(self._on_restart)
        self.pace.currentTextChanged.connect(self._on_pace)
        self.slider.valueChanged.connect(self._on_slid)
        clock.moved.connect(self._on_moved)
        clock.playing_changed.connect(self._on_playing_changed)

    @Slot()
    def _on_play(self) -> None:
        if self._clock.is_playing:
            self._clock.pause()
        else:
            self._clock.play()

    @Slot()
    def _on_restart(self) -> None:
        self._clock.seek(0.0)
        self._clock.play()

    @Slot(str)
    def _on_pace(self, name: str) -> None:
        self._clock.set_pace(PACES[name])

    @Slot(int)
    def _on_slid(self, milliseconds: int) -> None:
        # The last stop is the end, of which the slider knows whole milliseconds only.
        self._clock.seek(self._clock.end_ms if milliseconds == self.slider.maximum() else float(milliseconds))

    @Slot(float)
    def _on_moved(self, clock_ms: float) -> None:
        end = self._clock.end_ms
        with QSignalBlocker(self.slider):
            if self.slider.maximum() != round(end):
                self.slider.setRange(0, round(end))
                self.slider.setSingleStep(max(1, round(end / STOPS)))
                self.slider.setPageStep(max(1, round(end / 10)))
            self.slider.setValue(round(clock_ms))
        self.time.setText(seconds_text(clock_ms))

    @Slot(bool)
    def _on_playing_changed(self, is_playing: bool) -> None:
        self.play.setText("Pause" if is_playing else "Play")
