"""The Help window: the method, explained with one real step, all keys in one list, and every figure's formula."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from PySide6.QtCore import QEvent, QSize, Qt, Slot
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

from app.dress import dress_in_parts
from app.shortcuts import KeyRow, key_groups
from app.theme import LIGHT, Theme, scaled
from app.view_models.step_picture import example, picture_of
from app.widgets import help_text
from app.widgets.fields import card, text_label
from app.widgets.formula_page import FormulaPage
from app.widgets.step_picture import StepPictureView
from app.window_layout import bring_forward
from core.types import Step

METHOD, FORMULAS, KEYS = range(3)
PROSE_WIDTH = 240
_RESIZING = {QEvent.Type.Polish, QEvent.Type.FontChange, QEvent.Type.StyleChange, QEvent.Type.ContentsRectChange}


class HelpPage(QDialog):
    """Stays open beside the window. What it shows is read anew each time that it is opened.

    It is made without the method's long texts, which come one by one through `making`.
    """

    def __init__(self, bar: QMenuBar, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bar = bar
        self.setObjectName("helpPage")
        self.setWindowTitle("How Outrider works")
        self.setModal(False)
        self.picture = StepPictureView()
        self.caption = text_label("", "hint")
        self.caption.setWordWrap(True)
        self.colours, self.papers = Prose(""), Prose("")
        self.tabs = QTabWidget()
        self.tabs.setObjectName("helpTabs")
        self.tabs.setProperty("role", "pages")
        self.tabs.setAccessibleName("Help")
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setAccessibleName("Pages of the help")
        method = QWidget()
        self._making = self._method(method)
        self._method_area = _scrolled(method, "helpMethod", "How it works")
        self.tabs.addTab(self._method_area, "How it works")
        self.formulas = FormulaPage()
        self.tabs.addTab(self.formulas, "Formulas")
        self._keys = QGridLayout()
        self.tabs.addTab(_scrolled(self._keys_page(), "helpKeys", "Keyboard shortcuts"), "Keyboard shortcuts")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 12, 16, 16)
        layout.addWidget(self.tabs)
        self.resize(760, 780)
        dress_in_parts(self)
        self.set_theme(LIGHT)
        self.show_step(())
        self.tabs.currentChanged.connect(self._on_tab_changed)

    def making(self) -> Generator[None]:
        """Make what is not made yet of the method's page, a text at a time."""
        # Whoever stops here can go on later: the loop, unlike `yield from`, leaves the rest as it is.
        for label in self._making:
            # Now, and not with all others when the page is shown.
            label.ensurePolished()
            yield

    def show_step(self, steps: Sequence[Step]) -> None:
        """Have the latest step that shows most of the method explain it."""
        picture = picture_of(steps) if steps else example()
        self.picture.show_picture(picture)
        more = f" {picture.num_hidden} more drafted tokens are not in the picture." if picture.num_hidden else ""
        self.caption.setText(
            f"{picture.caption}. q: the draft's probability of its token; p: the target's. The filled part of each "
            f"track is min(1, p / q), the mark is u.{more}"
        )

    def open_method(self, steps: Sequence[Step]) -> None:
        """Explain the method."""
        self.show_step(steps)
        self._open(METHOD)
        self._method_area.verticalScrollBar().setValue(0)

    def open_keys(self) -> None:
        """List the keys, as the menus have them now."""
        self._list_keys()
        self._open(KEYS)

    def open_formulas(self) -> None:
        """Show every figure's formula."""
        self._open(FORMULAS)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.formulas.set_theme(theme)
        self.picture.set_theme(theme)
        self.colours.setText(help_text.colours(theme))
        self.papers.setText(help_text.papers(theme))

    def _open(self, page: int) -> None:
        self.tabs.setCurrentIndex(page)
        self._on_tab_changed(page)
        bring_forward(self)

    @Slot(int)
    def _on_tab_changed(self, page: int) -> None:
        if page == METHOD:
            for _ in self.making():
                pass
        elif page == KEYS and not self._keys.count():
            self._list_keys()

    def _method(self, body: QWidget) -> Generator[QWidget]:
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 4, 8, 0)
        layout.setSpacing(8)
        frame, inside = card()
        inside.addWidget(text_label("One step", "section"))
        inside.addWidget(self.picture)
        inside.addWidget(self.caption)
        intro = Prose(help_text.INTRO)
        layout.addWidget(intro)
        yield intro
        layout.addWidget(frame)
        yield self.caption
        for title, prose in (
            ("", Prose(help_text.STAGES)),
            ("Why the text is exactly the target's", Prose(help_text.EXACT)),
            ("What the colours mean", self.colours),
            ("What the figures show", Prose(help_text.PLOTS)),
            ("Papers", self.papers),
        ):
            if title:
                layout.addSpacing(4)
                layout.addWidget(text_label(title, "section"))
            layout.addWidget(prose)
            yield prose
        layout.addStretch(1)

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


class Prose(QLabel):
    """A long text that takes the width it gets.

    A layout asks for its height a dozen times before it is shown, and each time Qt would set all of it anew.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text.strip())
        self.setProperty("role", "plain")
        self.setTextFormat(Qt.TextFormat.RichText)
        self.setWordWrap(True)
        flags = Qt.TextInteractionFlag
        self.setTextInteractionFlags(flags.LinksAccessibleByMouse | flags.LinksAccessibleByKeyboard)
        self.setOpenExternalLinks(True)
        self._heights: dict[int, int] = {}

    def event(self, event: QEvent) -> bool:
        """Forget the heights of another text, font or style."""
        if event.type() in _RESIZING:
            self._heights.clear()
        return super().event(event)

    def setText(self, text: str) -> None:
        """Show another text."""
        self._heights.clear()
        super().setText(text)

    def heightForWidth(self, width: int) -> int:
        """As QLabel has it."""
        if width not in self._heights:
            self._heights[width] = super().heightForWidth(width)
        return self._heights[width]

    def sizeHint(self) -> QSize:
        """A narrow column; the height follows from the width."""
        return self.minimumSizeHint()

    def minimumSizeHint(self) -> QSize:
        """The same."""
        return QSize(scaled(PROSE_WIDTH), self.fontMetrics().height())


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
