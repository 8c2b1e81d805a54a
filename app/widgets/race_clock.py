"""The race's clock: it runs at a chosen pace against the time that was measured, and can be set."""

from __future__ import annotations

from PySide6.QtCore import QElapsedTimer, QObject, Qt, QTimer, Signal, Slot

FRAME_MS = 33


class RaceClock(QObject):
    """Signals:
    moved: the clock shows another time, in milliseconds.
    playing_changed: whether it goes.
    """

    moved = Signal(float)
    playing_changed = Signal(bool)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.now_ms = 0.0
        self.end_ms = 0.0
        self._pace = 1.0
        self._stopwatch = QElapsedTimer()
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(FRAME_MS)
        self._timer.timeout.connect(self._on_frame)

    @property
    def is_playing(self) -> bool:
        """Whether it goes."""
        return self._timer.isActive()

    def set_end(self, end_ms: float) -> None:
        """Stand still at the end of another race."""
        self.pause()
        self.end_ms = end_ms
        self.seek(end_ms)

    def set_pace(self, pace: float) -> None:
        """How many seconds of the race pass in a second."""
        self._pace = pace

    @Slot()
    def play(self) -> None:
        """Go on; from the start where the end was reached."""
        if self.is_playing or self.end_ms <= 0:
            return
        if self.now_ms >= self.end_ms:
            self.seek(0.0)
        self._stopwatch.start()
        self._timer.start()
        self.playing_changed.emit(True)

    @Slot()
    def pause(self) -> None:
        """Stand still."""
        if self.is_playing:
            self._timer.stop()
            self.playing_changed.emit(False)

    def seek(self, clock_ms: float) -> None:
        """Show a time between the start and the end."""
        self.now_ms = min(max(0.0, clock_ms), self.end_ms)
        self.moved.emit(self.now_ms)

    def advance(self, elapsed_ms: float) -> None:
        """Go on by a time that passed outside, at the pace in force; stop at the end."""
        self.seek(self.now_ms + elapsed_ms * self._pace)
        if self.now_ms >= self.end_ms:
            self.pause()

    @Slot()
    def _on_frame(self) -> None:
        self.advance(self._stopwatch.restart())
