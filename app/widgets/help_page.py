"""The Help window: the method, explained with one real step, all keys in one list, and every figure's formula."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QDialog,
    QFrame,
    QGridLayout,
    QLabel,
    QMenuBar,
    QScrollArea,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from app.dress import dress
from app.shortcuts import KeyRow, key_groups
from app.theme import LIGHT, Theme
from app.view_models.step_picture import example, picture_of
from app.widgets import help_text
from app.widgets.fields import card, text_label
from app.widgets.formula_page import FormulaPage
from app.widgets.step_picture import StepPictureView
from app.window_layout import bring_forward
from core.types import Step


class HelpPage(QDialog):
    """Stays open beside the window. What it shows is read anew each time that it is opened."""

    def __init__(self, bar: QMenuBar, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        dress(self)
        self._bar = bar
        self.setObjectName("helpPage")
        self.setWindowTitle("How Outrider works")
        self.setModal(False)
        self.picture = StepPictureView()
        self.caption = text_label("", "hint")
        self.caption.setWordWrap(True)
        self.colours, self.papers = _prose(""), _prose("")
        self.tabs = QTabWidget()
        self.tabs.setObjectName("helpTabs")
        self.tabs.setProperty("role", "pages")
        self.tabs.setAccessibleName("Help")
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setAccessibleName("Pages of the help")
        self._method_area = _scrolled(self._method(), "helpMethod", "How it works")
        self.tabs.addTab(self._method_area, "How it works")
        self.formulas = FormulaPage()
        self.tabs.addTab(self.formulas, "Formulas")
        self._keys = QGridLayout()
        self.tabs.addTab(_scrolled(self._keys_page(), "helpKeys", "Keyboard shortcuts"), "Keyboard shortcuts")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 12, 16, 16)
        layout.addWidget(self.tabs)
        self.resize(760, 780)
        self.set_theme(LIGHT)

    def open_method(self, steps: Sequence[Step]) -> None:
        """Explain the method, with the latest step that shows most of it."""
        picture = picture_of(steps) if steps else example()
        self.picture.show_picture(picture)
        more = f" {picture.num_hidden} more drafted tokens are not in the picture." if picture.num_hidden else ""
        self.caption.setText(
            f"{picture.caption}. q: the draft's probability of its token; p: the target's. The filled part of each "
            f"track is min(1, p / q), the mark is u.{more}"
        )
        self._open(0)
        self._method_area.verticalScrollBar().setValue(0)

    def open_keys(self) -> None:
        """List the keys, as the menus have them now."""
        self._list_keys()
        self._open(2)

    def open_formulas(self) -> None:
        """Show every figure's formula."""
        self._open(1)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.formulas.set_theme(theme)
        self.picture.set_theme(theme)
        self.colours.setText(help_text.colours(theme))
        self.papers.setText(help_text.papers(theme))

    def _open(self, page: int) -> None:
        self.tabs.setCurrentIndex(page)
        bring_forward(self)

    def _method(self) -> QWidget:
        body = QWidget()
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 4, 8, 0)
        layout.setSpacing(8)
        frame, inside = card()
        inside.addWidget(text_label("One step", "section"))
        inside.addWidget(self.picture)
        inside.addWidget(self.caption)
        layout.addWidget(_prose(help_text.INTRO))
        layout.addWidget(frame)
        for title, prose in (
            ("", _prose(help_text.STAGES)),
            ("Why the text is exactly the target's", _prose(help_text.EXACT)),
            ("What the colours mean", self.colours),
            ("What the figures show", _prose(help_text.PLOTS)),
            ("Papers", self.papers),
        ):
            if title:
                layout.addSpacing(4)
                layout.addWidget(text_label(title, "section"))
            layout.addWidget(prose)
        layout.addStretch(1)
        return body

    def _keys_page(self) -> QWidget:
        body = QWidget()
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 4, 8, 0)
        self._keys.setHorizontalSpacing(24)
        self._keys.setVerticalSpacing(5)
        self._keys.setColumnStretch(1, 1)
        layout.addLayout(self._keys)
        layout.addStretch(1)
        return body

    def _list_keys(self) -> None:
        while (item := self._keys.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        row = 0
        for title, rows in key_groups(self._bar):
            heading = text_label(title, "section")
            heading.setContentsMargins(0, 10 if row else 0, 0, 2)
            self._keys.addWidget(heading, row, 0, 1, 2)
            for index, key_row in enumerate(rows, start=row + 1):
                self._add_key(key_row, index)
            row += 1 + len(rows)

    def _add_key(self, key_row: KeyRow, row: int) -> None:
        keys = "  or  ".join(key_row.keys) or "menu only"
        title, value = text_label(key_row.title, "plain"), text_label(keys, "strong" if key_row.keys else "hint")
        value.setAccessibleName(f"{key_row.title}: {keys}")
        self._keys.addWidget(title, row, 0)
        self._keys.addWidget(value, row, 1)


def _prose(text: str) -> QLabel:
    label = text_label(text.strip(), "plain")
    label.setTextFormat(Qt.TextFormat.RichText)
    label.setWordWrap(True)
    flags = Qt.TextInteractionFlag
    label.setTextInteractionFlags(flags.LinksAccessibleByMouse | flags.LinksAccessibleByKeyboard)
    label.setOpenExternalLinks(True)
    return label


def _scrolled(body: QWidget, name: str, title: str) -> QScrollArea:
    area = QScrollArea()
    area.setObjectName(name)
    area.setAccessibleName(title)
    area.setWidget(body)
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.viewport().setAutoFillBackground(False)
    body.setAutoFillBackground(False)
    return area
