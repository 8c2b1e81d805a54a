"""Fields made of several widgets: a slider with a number, a row of buttons, a list of check boxes, a fold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, Qt, Signal, Slot
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QValidator
from PySide6.QtWidgets import QAbstractButton, QButtonGroup, QCheckBox, QDoubleSpinBox, QSizePolicy, QSlider, QWidget

from app.theme import hold
from app.widgets.fields import (
    FOLD,
    UNFOLD,
    boxed,
    column,
    describe,
    grid,
    guard_wheel,
    plain_tip,
    quiet_button,
    row,
    text_label,
)

T = TypeVar("T")
SPIN_WIDTH = 96
MOST_DECIMALS = 4


class NumberSpin(QDoubleSpinBox):
    """A field for a number, which can also be typed with a decimal comma."""

    def validate(self, text: str, position: int) -> tuple[QValidator.State, str, int]:
        """Make a comma the point of the field's locale; Qt would drop it, and 0,7 would become 0."""
        return super().validate(text.replace(",", self.locale().decimalPoint()), position)


class SliderSpin(QWidget):
    """A labelled number as a slider and a spin box that follow each other.

    With `decimals` 0 the value is a whole number; else one that needs more is shown and kept with up to four. A number
    outside the range, NaN included, is refused.

    Signals:
        value_changed: each new value, once.
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
        self._low, self._high, self._scale, self._decimals = low, high, 10**decimals, decimals
        self._value = low
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setObjectName(f"{name}Slider")
        self.slider.setSingleStep(round(step * self._scale))
        self.slider.setPageStep(round(step * self._scale) * (2 if decimals else 1))
        self.spin = NumberSpin()
        self.spin.setDecimals(decimals)
        self.spin.setSingleStep(step)
        self.spin.setObjectName(f"{name}Spin")
        # A number counts once it is typed: on the way to .5, 0 would make a run greedy.
        self.spin.setKeyboardTracking(False)
        self.spin.installEventFilter(self)
        hold(self.spin, width=SPIN_WIDTH)
        self._label = label = text_label("", "field", buddy=self.spin)
        self.set_meaning(title, help_text, high)
        self._layout = layout = grid(self, down=4)
        layout.addWidget(label, 0, 0)
        layout.addWidget(self.slider, 1, 0)
        layout.addWidget(self.spin, 1, 1)
        guard_wheel(self.slider, self.spin)
        self.slider.valueChanged.connect(self._on_slider_moved)
        self.spin.valueChanged.connect(self._take)

    def set_meaning(self, title: str, help_text: str, high: float) -> None:
        """Say what the number is, and how high it goes; a higher one becomes the highest."""
        self._high = high
        self.slider.setRange(round(self._low * self._scale), round(high * self._scale))
        self.spin.setRange(self._low, high)
        self._label.setText(title)
        self._label.setToolTip(plain_tip(help_text))
        for part in (self.slider, self.spin):
            describe(part, title, help_text)

    def add_above_number(self, widget: QWidget) -> None:
        """Add a widget that belongs to the number at the end of the label's line."""
        self._layout.addWidget(widget, 0, 1)

    def value(self) -> float:
        """The number that both show; without what is being typed."""
        return self._value

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Take what is typed before a shortcut acts on it: the field keeps the focus then."""
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.ShortcutOverride:
            keys, actions = QKeySequence(event.keyCombination()), self.window().findChildren(QAction)
            if any(action.isEnabled() and keys in action.shortcuts() for action in actions):
                self.spin.interpretText()
        return super().eventFilter(watched, event)

    def set_value(self, value: float) -> bool:
        """Show a number; False, and no change, if it is out of range."""
        if not math.isfinite(value) or not self._low <= value <= self._high:
            return False
        self._take(value)
        return True

    @Slot(int)
    def _on_slider_moved(self, position: int) -> None:
        self._take(position / self._scale)

    @Slot(float)
    def _take(self, value: float) -> None:
        least = 10.0**-MOST_DECIMALS  # A temperature above 0 doesn't become 0.
        value = max(least, round(value, MOST_DECIMALS)) if value > 0 else value
        needed = len(f"{value:.{MOST_DECIMALS}f}".rstrip("0").partition(".")[2])
        with QSignalBlocker(self.slider), QSignalBlocker(self.spin):
            self.slider.setValue(round(value * self._scale))
            if self.spin.decimals() != (decimals := max(self._decimals, needed)):
                self.spin.setDecimals(decimals)
            if self.spin.value() != value:  # Else it would rewrite what is being typed.
                self.spin.setValue(value)
        if value != self._value:
            self._value = value
            self.value_changed.emit(value)


class ChoiceRow(QWidget, Generic[T]):
    """A row of buttons, exactly one of which is checked.

    Signals:
        chosen: the user's choice.
    """

    chosen = Signal(object)

    def __init__(self, titles: dict[T, str], object_name: str, title: str) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self._members = list(titles)
        self.group = QButtonGroup(self)
        for index, text in enumerate(titles.values()):
            button = quiet_button(text, f"{object_name}{index}", f"{title}: {text}", "")
            button.setCheckable(True)
            self.group.addButton(button, index)
        boxed(row(*self.group.buttons(), None, spacing=2), self)
        self.group.button(0).setChecked(True)
        self.group.buttonClicked.connect(self._on_clicked)

    def choice(self) -> T:
        """What is chosen."""
        return self._members[self.group.checkedId()]

    @Slot(QAbstractButton)
    def _on_clicked(self, _button: QAbstractButton) -> None:
        self.chosen.emit(self.choice())


class TickList(QWidget):
    """Check boxes for a list of names.

    Signals:
        changed: the user checked or unchecked one.

    Attributes:
        boxes: the check boxes by name.
    """

    changed = Signal()

    def __init__(self, object_name: str, title: str, *, columns: int = 1) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self._title = title
        self._num_columns = columns
        self.boxes: dict[str, QCheckBox] = {}
        self._layout = grid(self, down=2)
        for index in range(columns):
            self._layout.setColumnStretch(index, 1)

    def show_items(self, items: Mapping[str, tuple[str, str]]) -> None:
        """Offer these names, with title and help; checked ones stay checked."""
        if {name: (box.text(), box.toolTip()) for name, box in self.boxes.items()} == dict(items):
            return
        ticked = set(self.ticked())
        for box in self.boxes.values():
            self._layout.removeWidget(box)
            box.deleteLater()
        self.boxes = {}
        for index, (name, (title, help_text)) in enumerate(items.items()):
            box = QCheckBox(title)
            box.setObjectName(f"{self.objectName()}{index}")
            describe(box, f"{self._title}: {title}", help_text)
            # A long name is cut off rather than widening the form.
            box.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
            box.setChecked(name in ticked)
            box.toggled.connect(self.changed)
            self.boxes[name] = box
            line, place = divmod(index, self._num_columns)
            # A last one alone on its line has all of its width.
            span = self._num_columns if place == 0 and index == len(items) - 1 else 1
            self._layout.addWidget(box, line, place, 1, span)
        before = self.previousInFocusChain() or self
        while before is not self and before.focusPolicy() is Qt.FocusPolicy.NoFocus:
            before = before.previousInFocusChain() or self
        for box in self.boxes.values():  # Tab would reach new boxes last.
            QWidget.setTabOrder(before, box)
            before = box

    def tick(self, names: Iterable[str]) -> None:
        """Check only these, without a signal."""
        wanted = set(names)
        for name, box in self.boxes.items():
            with QSignalBlocker(box):
                box.setChecked(name in wanted)

    def ticked(self) -> tuple[str, ...]:
        """The names that are checked, in order."""
        return tuple(name for name, box in self.boxes.items() if box.isChecked())


class Fold(QWidget):
    """A title that shows or hides what is below it."""

    def __init__(self, title: str, object_name: str, *parts: QWidget) -> None:
        super().__init__()
        self._title, self._note = title, ""
        self.button = quiet_button("", object_name, title, "", role="fold")
        self.button.setCheckable(True)
        self._body = boxed(column(*parts))
        boxed(column(self.button, self._body), self)
        self.button.toggled.connect(self.set_open)
        self.set_open(False)

    @Slot(bool)
    def set_open(self, is_open: bool) -> None:
        """Show or hide the parts."""
        self.button.setChecked(is_open)
        self._body.setVisible(is_open)
        self.show_note(self._note)

    def show_note(self, note: str) -> None:
        """Add a few words to the title."""
        self._note = note
        title = f"{self._title} · {note}" if note else self._title
        self.button.setText(f"{UNFOLD if self._body.isHidden() else FOLD} {title}")
