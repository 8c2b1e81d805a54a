"""Several things of which each may be ticked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, Qt, Signal, Slot
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractSpinBox,
    QButtonGroup,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QScrollArea,
    QSizePolicy,
    QSlider,
    QSpinBox,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.theme import hold

E = TypeVar("E", bound=StrEnum)


def text_label(text: str, role: str, *, buddy: QWidget | None = None) -> QLabel:
    """A label in one of the style sheet's roles: section, field, hint, problem."""
    label = QLabel(text)
    label.setProperty("role", role)
    if buddy is not None:
        label.setBuddy(buddy)
    return label


def labelled(title: str, widget: QWidget, help_text: str = "") -> QWidget:
    """A field under its label. The help goes to tooltip and to assistive technology."""
    describe(widget, title, help_text)
    box = QWidget()
    layout = QVBoxLayout(box)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(4)
    label = text_label(title, "field", buddy=widget)
    label.setToolTip(help_text)
    layout.addWidget(label)
    layout.addWidget(widget)
    return box


def describe(widget: QWidget, name: str, help_text: str = "") -> None:
    """Name a widget for assistive technology and explain it in a tooltip."""
    widget.setAccessibleName(name)
    widget.setAccessibleDescription(help_text)
    widget.setToolTip(help_text)


def card() -> tuple[QFrame, QVBoxLayout]:
    """A panel on the window's ground, and the layout inside it."""
    frame = QFrame()
    frame.setObjectName("card")
    layout = QVBoxLayout(frame)
    layout.setContentsMargins(12, 10, 12, 12)
    layout.setSpacing(8)
    return frame, layout


def table_card(table: QWidget) -> QFrame:
    """A table on a panel of its own."""
    frame = QFrame()
    frame.setObjectName("tableCard")
    inside = QVBoxLayout(frame)
    inside.setContentsMargins(1, 1, 1, 1)
    inside.addWidget(table)
    return frame


def offer(start: QWidget, stop: QWidget, *, is_going: bool) -> None:
    """Offer one of two buttons; it gets the keys where the other had them, or a table would."""
    left, taker = (start, stop) if is_going else (stop, start)
    taker.setEnabled(True)
    if left.hasFocus():
        taker.setFocus()
    left.setEnabled(False)


def scrolled(body: QWidget, object_name: str) -> QScrollArea:
    """A body that can be scrolled up and down where there is no room for all of it."""
    body.setObjectName(f"{object_name}Body")
    area = QScrollArea()
    area.setObjectName(object_name)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidgetResizable(True)
    area.setWidget(body)
    area.viewport().setAutoFillBackground(False)
    return area


def set_flag(widget: QWidget, name: str, value: object) -> None:
    """Set a property that the style sheet looks at, and have it look again."""
    if widget.property(name) != value:
        widget.setProperty(name, value)
        widget.style().unpolish(widget)
        widget.style().polish(widget)


def inset(spin: QAbstractSpinBox) -> None:
    """Indent a spin box's text as far as other fields' text; the style sheet's padding does not reach it."""
    editor = spin.findChild(QLineEdit)
    if editor is not None:
        editor.setTextMargins(6, 0, 0, 0)


class WheelGuard(QObject):
    """Prepares a form's fields, and keeps the wheel from changing one that the pointer only passes in a scroll."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Let the wheel through to a field only if it has the focus."""
        if event.type() is QEvent.Type.Wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return super().eventFilter(watched, event)

    def watch(self, *widgets: QWidget) -> None:
        """Guard these fields, and bring them into line with each other."""
        for widget in widgets:
            widget.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
            widget.installEventFilter(self)
            if isinstance(widget, QAbstractSpinBox):
                inset(widget)


class EnumCombo(QComboBox, Generic[E]):
    """A choice between an enum's members."""

    def __init__(self, titles: dict[E, str], object_name: str) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._members = list(titles)
        self.addItems(list(titles.values()))

    def member(self) -> E:
        """The chosen member."""
        return self._members[max(0, self.currentIndex())]

    def choose(self, member: E) -> None:
        """Choose a member."""
        self.setCurrentIndex(self._members.index(member))


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


T = TypeVar("T")


class ChoiceRow(QWidget, Generic[T]):
    """One of the buttons is always down; arrow keys and Tab reach all of them.

    Signals:
        chosen: what was chosen by hand.
    """

    chosen = Signal(object)

    def __init__(self, titles: dict[T, str], object_name: str, title: str) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self._members = list(titles)
        self.group = QButtonGroup(self)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        for index, text in enumerate(titles.values()):
            button = QToolButton()
            button.setText(text)
            button.setObjectName(f"{object_name}{index}")
            button.setAccessibleName(f"{title}: {text}")
            button.setCheckable(True)
            button.setProperty("role", "quiet")
            button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
            self.group.addButton(button, index)
            layout.addWidget(button)
        layout.addStretch(1)
        self.group.button(0).setChecked(True)
        self.group.buttonClicked.connect(self._on_clicked)

    def choice(self) -> T:
        """What is chosen."""
        return self._members[self.group.checkedId()]

    @Slot(QAbstractButton)
    def _on_clicked(self, _button: QAbstractButton) -> None:
        self.chosen.emit(self.choice())


class TickList(QWidget):
    """Tick boxes, each for a name.

    Signals:
        changed: another one is ticked.
    """

    changed = Signal()

    def __init__(self, object_name: str, title: str, *, columns: int = 1) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self._title = title
        self._num_columns = columns
        self._boxes: dict[str, QCheckBox] = {}
        self._layout = QGridLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setHorizontalSpacing(12)
        self._layout.setVerticalSpacing(2)
        for column in range(columns):
            self._layout.setColumnStretch(column, 1)

    def show_items(self, items: Mapping[str, tuple[str, str]]) -> None:
        """Offer these names, each with its title and its help; what is ticked stays so where it is still offered."""
        if {name: (box.text(), box.toolTip()) for name, box in self._boxes.items()} == dict(items):
            return
        ticked = set(self.ticked())
        for box in self._boxes.values():
            self._layout.removeWidget(box)
            box.deleteLater()
        self._boxes = {}
        for index, (name, (title, help_text)) in enumerate(items.items()):
            box = QCheckBox(title)
            box.setObjectName(f"{self.objectName()}{index}")
            describe(box, f"{self._title}: {title}", help_text)
            # A long name is cut off rather than taking the form apart.
            box.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
            box.setChecked(name in ticked)
            box.toggled.connect(self._on_toggled)
            self._boxes[name] = box
            self._layout.addWidget(box, index // self._num_columns, index % self._num_columns)

    def tick(self, names: Iterable[str]) -> None:
        """Tick these, and no others; tells nobody."""
        wanted = set(names)
        for name, box in self._boxes.items():
            with QSignalBlocker(box):
                box.setChecked(name in wanted)

    def ticked(self) -> tuple[str, ...]:
        """The names that are ticked, in their order."""
        return tuple(name for name, box in self._boxes.items() if box.isChecked())

    def names(self) -> tuple[str, ...]:
        """All names, in their order."""
        return tuple(self._boxes)

    def box(self, name: str) -> QCheckBox:
        """The tick box of a name."""
        return self._boxes[name]

    @Slot()
    def _on_toggled(self) -> None:
        self.changed.emit()
