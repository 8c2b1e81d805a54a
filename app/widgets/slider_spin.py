"""A slider and a spin box that show one value."""

from __future__ import annotations

import math

from PySide6.QtCore import QSignalBlocker, Qt, Signal, Slot
from PySide6.QtWidgets import QDoubleSpinBox, QGridLayout, QSlider, QSpinBox, QWidget

from app.text_size import hold
from app.widgets.fields import WheelGuard, describe, text_label

SPIN_WIDTH = 96


class SliderSpin(QWidget):
    """A labelled number. Slider and spin box follow each other; `value_changed` tells each new value once.

    With `decimals` 0 the value is a whole number. A number outside the range, NaN included, is not taken over.
    """

    value_changed = Signal(float)

    def __init__(
        self,
        title: str,
        help_text: str,
        *,
        name: str,
        low: float,
        high: float,
        step: float = 1.0,
        decimals: int = 0,
    ) -> None:
        super().__init__()
        self._low, self._high, self._scale = low, high, 10**decimals
        self._value = low
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setObjectName(f"{name}Slider")
        self.slider.setRange(round(low * self._scale), round(high * self._scale))
        self.slider.setSingleStep(round(step * self._scale))
        self.slider.setPageStep(round(step * self._scale) * (2 if decimals else 1))
        self.spin: QSpinBox | QDoubleSpinBox
        if decimals:
            self.spin = QDoubleSpinBox()
            self.spin.setDecimals(decimals)
            self.spin.setRange(low, high)
            self.spin.setSingleStep(step)
        else:
            self.spin = QSpinBox()
            self.spin.setRange(int(low), int(high))
        self.spin.setObjectName(f"{name}Spin")
        hold(self.spin, width=SPIN_WIDTH)
        describe(self.slider, title, help_text)
        describe(self.spin, title, help_text)
        label = text_label(title, "field", buddy=self.spin)
        label.setToolTip(help_text)
        self._layout = layout = QGridLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setHorizontalSpacing(12)
        layout.setVerticalSpacing(0)
        layout.addWidget(label, 0, 0)
        layout.addWidget(self.slider, 1, 0)
        # The number is higher than the slider: as much room below it puts both on one line.
        layout.setRowMinimumHeight(2, 4)
        layout.addWidget(self.spin, 0, 1, 3, 1, Qt.AlignmentFlag.AlignBottom)
        self._guard = WheelGuard(self)
        self._guard.watch(self.slider, self.spin)
        self.slider.valueChanged.connect(self._on_slider_moved)
        self.spin.valueChanged.connect(self._on_spin_changed)

    def add_above_number(self, widget: QWidget) -> None:
        """Put something that belongs to the number at the end of its label's line."""
        layout = self._layout
        layout.removeWidget(self.spin)
        # With a row of its own the number is as high as that row, and the slider in the middle of it.
        layout.setRowMinimumHeight(2, 0)
        layout.addWidget(self.spin, 1, 1)
        layout.addWidget(widget, 0, 1)
        layout.setVerticalSpacing(4)

    def value(self) -> float:
        """The number that both show."""
        return self._value

    def set_value(self, value: float) -> bool:
        """Show a number; false, and no change, if it is not one of the range."""
        if not math.isfinite(value) or not self._low <= value <= self._high:
            return False
        self._take(value)
        return True

    @Slot(int)
    def _on_slider_moved(self, position: int) -> None:
        self._take(position / self._scale)

    @Slot(int)
    @Slot(float)
    def _on_spin_changed(self, value: float) -> None:
        self._take(value)

    def _take(self, value: float) -> None:
        with QSignalBlocker(self.slider), QSignalBlocker(self.spin):
            self.slider.setValue(round(value * self._scale))
            if isinstance(self.spin, QDoubleSpinBox):
                self.spin.setValue(value)
            else:
                self.spin.setValue(int(value))
        if value != self._value:
            self._value = value
            self.value_changed.emit(value)
