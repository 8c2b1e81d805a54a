"""Small pieces that every form is made of."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QComboBox,
    QFrame,
    QLabel,
    QLineEdit,
    QScrollArea,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

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
