"""Fields, labels, buttons and layouts shared by all forms and panels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import Any, Generic, TypeVar

from PySide6 import QtGui
from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QBoxLayout,
    QComboBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QMenu,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QStyledItemDelegate,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from core.text import visible

T = TypeVar("T")
L = TypeVar("L", bound=QBoxLayout)
W = TypeVar("W", bound=QWidget)
NO_LIMIT = 2**24 - 1
"""Maximum height of a widget without one: Qt's QWIDGETSIZE_MAX."""
UNFOLD, FOLD = "▸", "▾"
"""Before the title of what is hidden or shown: Qt's own arrows don't grow with the text."""

# --- Layouts ---

Part = QWidget | QLayout | tuple[QWidget | QLayout, int] | None
"""A part of a row or column, optionally with its stretch; None adds an empty stretch."""


def column(*parts: Part, spacing: int = 8) -> QVBoxLayout:
    """Parts from top to bottom."""
    return _filled(QVBoxLayout(), parts, spacing)


def row(*parts: Part, spacing: int = 8) -> QHBoxLayout:
    """Parts from left to right."""
    return _filled(QHBoxLayout(), parts, spacing)


def boxed(layout: QLayout, box: QWidget | None = None, *, margins: tuple[int, int, int, int] = (0, 0, 0, 0)) -> QWidget:
    """A widget around a layout: a new one, or the one given."""
    box = box or QWidget()
    layout.setContentsMargins(*margins)
    box.setLayout(layout)
    return box


def _filled(layout: L, parts: Iterable[Part], spacing: int) -> L:
    layout.setSpacing(spacing)
    for part in parts:
        item, stretch = part if isinstance(part, tuple) else (part, 0)
        if item is None:
            layout.addStretch(1)
        elif isinstance(item, QLayout):
            layout.addLayout(item, stretch)
        else:
            layout.addWidget(item, stretch)
    return layout


def grid(box: QWidget | None = None, *, across: int = 12, down: int = 0) -> QGridLayout:
    """An empty grid without margins, with these gaps between its columns and rows."""
    layout = QGridLayout(box)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setHorizontalSpacing(across)
    layout.setVerticalSpacing(down)
    return layout


def card(*parts: Part) -> tuple[QFrame, QVBoxLayout]:
    """A panel on the window's background, and the layout inside it."""
    frame, layout = QFrame(), column(*parts)
    frame.setObjectName("card")
    boxed(layout, frame, margins=(12, 10, 12, 12))
    return frame, layout


def table_card(table: QWidget) -> QFrame:
    """A table on its own panel."""
    frame = QFrame()
    frame.setObjectName("tableCard")
    boxed(column(table), frame, margins=(1, 1, 1, 1))
    return frame


def scrolled(body: QWidget, object_name: str, area: QScrollArea | None = None) -> QScrollArea:
    """A body that scrolls vertically if it doesn't fit, in a new area unless one is given; both are transparent."""
    area = area or QScrollArea()
    area.setObjectName(object_name)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidgetResizable(True)
    area.setWidget(body)
    for part in (area.viewport(), body):
        part.setAutoFillBackground(False)
    return area


# --- Labels and buttons ---


LONGEST_LINE = 80
"""Most characters of a tooltip's line; Qt wraps only rich text."""


def plain_tip(text: str) -> str:
    """A tooltip that shows this text, wrapped, even if it looks like markup, which could have Qt read files."""
    text = visible(text.replace("\r\n", "\n").replace("\t", " "))
    is_wide = any(len(line) > LONGEST_LINE for line in text.splitlines())
    if not is_wide and not QtGui.Qt.mightBeRichText(text):
        return text
    return f"<p style='white-space: pre-wrap; margin: 0'>{escape(text)}</p>"


def text_label(text: str, role: str, *, name: str = "", buddy: QWidget | None = None) -> QLabel:
    """A label in one of the style sheet's roles: section, field, hint, problem."""
    label = QLabel(text)
    label.setObjectName(name)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setProperty("role", role)
    if buddy is not None:
        label.setBuddy(buddy)
    return label


def wrapped_label(name: str, role: str, text: str = "", *, takes_all: bool = False) -> QLabel:
    """A label of several lines of plain text that can be selected; its words need no room, if it takes all there is."""
    label = text_label(text, role, name=name)
    label.setWordWrap(True)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    if takes_all:
        policy = label.sizePolicy()
        policy.setHorizontalPolicy(QSizePolicy.Policy.Ignored)
        label.setSizePolicy(policy)
    return label


def held(text: str) -> str:
    """Text in which a number stays on the line of its sign, or of the word temperature."""
    for part in (" = ", " ≈ ", "temperature "):
        text = text.replace(part, part.replace(" ", "\u00a0"))
    return text


def labelled(title: str, widget: QWidget, help_text: str = "", *, spacing: int = 4) -> QWidget:
    """A field below its label. The help is used for the tooltip and assistive technology."""
    describe(widget, title, help_text)
    label = text_label(title, "field", buddy=widget)
    label.setToolTip(plain_tip(help_text))
    return boxed(column(label, widget, spacing=spacing))


def describe(widget: QWidget, name: str, help_text: str = "") -> None:
    """Name a widget for assistive technology and explain it in a tooltip."""
    widget.setAccessibleName(name)
    widget.setAccessibleDescription(help_text)
    widget.setToolTip(plain_tip(help_text))


def named(widget: W, object_name: str, name: str, help_text: str = "") -> W:
    """A widget with an object name, a name for assistive technology, and a tooltip."""
    widget.setObjectName(object_name)
    describe(widget, name, help_text)
    return widget


def push_button(title: str, name: str, help_text: str, clicked: Callable[[], Any] | None = None) -> QPushButton:
    """A button that Enter presses only if it has the focus."""
    button = named(QPushButton(title), name, title.rstrip("…"), help_text)
    button.setAutoDefault(False)
    if clicked is not None:
        button.clicked.connect(clicked)
    return button


def quiet_button(
    title: str,
    name: str,
    accessible_name: str,
    help_text: str,
    clicked: Callable[[], Any] | None = None,
    *,
    role: str = "quiet",
) -> QToolButton:
    """A frameless button, or a link, that can be reached with Tab."""
    button = named(QToolButton(), name, accessible_name, help_text)
    button.setText(title)
    button.setProperty("role", role)
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    if clicked is not None:
        button.clicked.connect(clicked)
    return button


def menu_button(title: str, name: str, help_text: str, *, accessible_name: str = "", role: str = "") -> QToolButton:
    """A button that opens its menu."""
    button = quiet_button(title, name, accessible_name or title, help_text, role=role)
    button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
    button.setMenu(QMenu(button))
    button.menu().setToolTipsVisible(True)
    return button


def line_edit(name: str, placeholder: str, title: str = "", help_text: str = "") -> QLineEdit:
    """A line of text, which can be cleared with a click."""
    line = named(QLineEdit(), name, title, help_text)
    line.setPlaceholderText(placeholder)
    line.setClearButtonEnabled(bool(title))
    return line


def hint_label(name: str, text: str = "") -> QLabel:
    """One line of secondary text."""
    return text_label(text, "hint", name=name)


def offer(start: QWidget, stop: QWidget, *, is_running: bool) -> None:
    """Show one of two buttons in the same place, with the focus if the other had it."""
    gone, shown = (start, stop) if is_running else (stop, start)
    had_focus = gone.hasFocus()
    shown.setEnabled(True)
    shown.show()
    if had_focus:
        shown.setFocus()
    gone.setEnabled(False)
    gone.hide()


def set_flag(widget: QWidget, name: str, value: object) -> None:
    """Set a property that the style sheet depends on, and reapply the style."""
    if widget.property(name) != value:
        widget.setProperty(name, value)
        widget.style().unpolish(widget)
        widget.style().polish(widget)


def tip_table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and figures, which are HTML, as a tooltip's table."""
    row = "<tr><td>{}&nbsp;&nbsp;</td><td align='right'>{}</td></tr>"
    return f"<table>{''.join(row.format(*cells) for cells in rows)}</table>"


# --- Fields ---


class _WheelGuard(QObject):
    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return super().eventFilter(watched, event)


def guard_wheel(*fields: QWidget) -> None:
    """Let the wheel change these only while they have the focus, not when they pass under the pointer while scrolling.

    Also indents spin boxes like other fields, since the style sheet's padding can't.
    """
    for field in fields:
        field.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        field.installEventFilter(_WheelGuard(field))
        if isinstance(field, QAbstractSpinBox) and (editor := field.findChild(QLineEdit)) is not None:
            editor.setTextMargins(6, 0, 0, 0)


class EnumCombo(QComboBox, Generic[T]):
    """A choice among values, an enum's members or others, by their titles."""

    def __init__(self, titles: dict[T, str], object_name: str, *, is_compact: bool = False) -> None:
        """`is_compact`: as wide as its longest title, instead of all the room."""
        super().__init__()
        self.setObjectName(object_name)
        adjust, across = self.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon, QSizePolicy.Policy.Expanding
        if is_compact:
            adjust, across = self.SizeAdjustPolicy.AdjustToContents, QSizePolicy.Policy.Maximum
            self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizeAdjustPolicy(adjust)
        self.setSizePolicy(across, QSizePolicy.Policy.Fixed)
        self.setItemDelegate(QStyledItemDelegate(self))  # The default one ignores most of the style sheet.
        self._members = list(titles)
        self.addItems(list(titles.values()))

    def member(self) -> T:
        """The chosen member."""
        return self._members[max(0, self.currentIndex())]

    def choose(self, member: T) -> None:
        """Choose a member."""
        self.setCurrentIndex(self._members.index(member))
