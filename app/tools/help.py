"""Help: the window with the method, the formulas and the keyboard shortcuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from string import Template

from PySide6.QtCore import QObject, Qt, QUrl, Slot
from PySide6.QtGui import (
    QColor,
    QImage,
    QPainter,
    QResizeEvent,
    QShowEvent,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextFormat,
    QTextFrameFormat,
    QTextLength,
    QTextTable,
)
from PySide6.QtWidgets import QDialog, QFrame, QMainWindow, QMenuBar, QTextBrowser, QWidget

from app.dialogs import Dialogs
from app.jobs import Jobs
from app.menus import Menus, key_groups
from app.run.live import LiveView
from app.run.run_view import RunView
from app.run.text.token_colors import token_formats
from app.run.text.tokens import Fate
from app.theme import RESOURCES, Theme, current_theme, scaled, ui_font
from app.tools.step_picture import MAX_SLOTS, StepPicture, draw_step, picture_of, picture_size
from app.widgets.fields import boxed, column, named
from app.widgets.labels import SidePanel
from app.window_layout import bring_forward, open_at
from core.types import Step

# --- The pages' texts ---

METHOD_FILE = RESOURCES / "help" / "method.html"
FORMULAS_FILE = RESOURCES / "docs" / "figures.md"
MISSING = "This page is missing from this installation."
PAPERS = (
    ("Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding", "2211.17192"),
    ("Chen et al.: Accelerating Large Language Model Decoding with Speculative Sampling", "2302.01318"),
    ("Zhou et al.: DistillSpec, on training a draft for its target", "2310.08461"),
    ("Daliri, Musco, Suresh: Coupling without Communication, on the shared noise of Gumbel coupling", "2408.07978"),
)
PAGE_WIDTH = 880
"""Longer lines are hard to follow."""
MEANINGS = {
    Fate.ACCEPTED: "drafted and accepted",
    Fate.RESAMPLED: "drawn by the target in place of a rejected token",
    Fate.BONUS: "drawn by the target after all drafted tokens were accepted",
    Fate.PLAIN: "drawn by the target in a step without a draft",
    Fate.REJECTED: "drafted, tested and rejected; hatched where a line through it would look like another character; "
    "shown on request",
    Fate.UNTESTED: "drafted, but never tested: a token before it was rejected, or another candidate accepted; shown on "
    "request",
}
COLUMN_SHARES = (26, 31, 9, 34)
"""Widths of the formula tables' columns, in percent."""


def page_text(path: Path) -> str:
    """The text of a page's file, or a sentence if the file is missing."""
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return MISSING


def method_html(picture: StepPicture, width: int, theme: Theme) -> str:
    """The method, with a picture that the document refers to as `step`."""
    rows = (f"<tr><td>{fate}</td><td>{meaning}</td></tr>" for fate, meaning in MEANINGS.items())
    num_hidden = len(picture.step.drafted) - MAX_SLOTS
    more = f" {num_hidden} more drafted tokens are not shown." if num_hidden > 0 else ""
    return Template(page_text(METHOD_FILE)).safe_substitute(
        picture=f'<img src="step" width="{width}" alt="{escape(picture.words)}">',
        caption=f"{picture.caption}. q: the draft's probability of its token; p: the target's. The filled part of each "
        f"track is min(1, p / q); the mark is u.{more}",
        muted=theme.muted,
        colours=f"<table cellspacing='0' cellpadding='4'>{''.join(rows)}</table>",
        papers="".join(
            f'<p>{title}. <a style="color:{theme.accent}" href="https://arxiv.org/abs/{number}">arXiv {number}</a></p>'
            for title, number in PAPERS
        ),
    )


def show_kinds(document: QTextDocument) -> None:
    """Draw the names of tokens, in the first table of the method, as the text draws such tokens."""
    formats = token_formats()
    table = next(frame for frame in document.rootFrame().childFrames() if isinstance(frame, QTextTable))
    for row, fate in enumerate(MEANINGS):
        cursor = table.cellAt(row, 0).firstCursorPosition()
        cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
        cursor.mergeCharFormat(formats[fate])


def keys_html(bar: QMenuBar) -> str:
    """All actions with their keys, as in the menus now."""
    rows: list[str] = []
    for title, actions in key_groups(bar):
        rows.append(f'<tr><td colspan="2">{"<br>" if rows else ""}<b>{escape(title)}</b></td></tr>')
        for action, keys in actions:
            value = " or ".join(f"<b>{escape(key)}</b>" for key in keys) or "–"
            rows.append(f"<tr><td>{escape(action)}</td><td>{value}</td></tr>")
    return f"<table cellspacing='0' cellpadding='3'>{''.join(rows)}</table>"


def formulas_document(theme: Theme) -> QTextDocument:
    """The formula of every figure, in tables."""
    document = QTextDocument()
    document.setDefaultFont(ui_font(13))
    document.setMarkdown(page_text(FORMULAS_FILE))
    cursor = QTextCursor(document)
    cursor.beginEditBlock()
    block = document.begin()
    while block.isValid():
        inside = QTextCursor(block)
        if inside.currentTable() is None:
            form = inside.blockFormat()
            form.setTopMargin(scaled(16 if form.headingLevel() > 1 else 0))
            form.setBottomMargin(scaled(8))
            inside.setBlockFormat(form)
            if level := form.headingLevel():
                _style_heading(inside, level)
        block = block.next()
    for frame in document.rootFrame().childFrames():
        if isinstance(frame, QTextTable):
            _style_table(frame, theme)
    cursor.endEditBlock()
    return document


def _style_heading(cursor: QTextCursor, level: int) -> None:
    form = QTextCharFormat()
    form.setProperty(QTextFormat.Property.FontSizeAdjustment, max(0, 3 - level))
    cursor.select(QTextCursor.SelectionType.BlockUnderCursor)
    cursor.mergeCharFormat(form)


def _style_table(table: QTextTable, theme: Theme) -> None:
    form = table.format()
    form.setBorderCollapse(True)
    form.setBorder(1)
    form.setBorderBrush(QColor(theme.border))
    form.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    form.setCellPadding(scaled(5))
    form.setTopMargin(scaled(8))
    form.setWidth(QTextLength(QTextLength.Type.PercentageLength, 100))
    form.setColumnWidthConstraints([QTextLength(QTextLength.Type.PercentageLength, share) for share in COLUMN_SHARES])
    table.setFormat(form)


# --- The window ---


class Page(QTextBrowser):
    """A page of the help, built when it is shown.

    Args:
        make: builds the document from the width, if the page depends on it, and the theme.
    """

    def __init__(
        self, name: str, title: str, make: Callable[[int, Theme], QTextDocument], *, fits_width: bool = False
    ) -> None:
        super().__init__()
        named(self, name, title)
        self.setOpenExternalLinks(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setLineWrapMode(QTextBrowser.LineWrapMode.FixedPixelWidth)
        self._make, self._fits_width = make, fits_width
        self._made_for: tuple[int, Theme] | None = None

    def restyle(self) -> None:
        """Rebuild the page now, or when it is next shown."""
        self._made_for = None
        if self.isVisible():
            self._show()

    def showEvent(self, event: QShowEvent) -> None:
        """Rebuild the page if it has changed."""
        super().showEvent(event)
        self._show()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit the page to another width."""
        super().resizeEvent(event)
        if self.isVisible():
            self._show()

    def _show(self) -> None:
        margin = scaled(12)
        width = min(self.viewport().width(), scaled(PAGE_WIDTH))
        made_for = (width - 2 * margin if self._fits_width else 0, current_theme())
        if made_for != self._made_for:
            self._made_for = made_for
            at = self.verticalScrollBar().value()
            document = self._make(*made_for)
            document.setParent(self)
            document.setDefaultFont(ui_font(13))
            document.setDocumentMargin(margin)
            document.setTextWidth(width)  # Else Qt may keep a scroll bar for the width that the tables had without it.
            self.setDocument(document)
            self.verticalScrollBar().setValue(at)
        self.setLineWrapColumnOrWidth(width)


class HelpWindow(QDialog):
    """The pages of the help under tabs; stays open beside the main window."""

    def __init__(self, bar: QMenuBar, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bar = bar
        self.picture = picture_of(())
        self.setObjectName("helpPage")
        self.setWindowTitle("Help")
        self.method = Page("helpMethod", "How it works", self._method, fits_width=True)
        self.formulas = Page("helpFormulas", "Formulas", lambda _width, theme: formulas_document(theme))
        self.keys = Page("helpKeys", "Keyboard shortcuts", self._keys)
        self.pages = (self.method, self.formulas, self.keys)
        self.tabs = SidePanel("help", "Help")
        for page in self.pages:
            self.tabs.add_page(page.accessibleName(), page, "")
        boxed(column(self.tabs), self, margins=(16, 12, 16, 16))
        open_at(self, 760, 740)

    def open_page(self, page: Page, steps: Sequence[Step]) -> None:
        """Bring a page to the front; the method is explained with the step that shows most of it."""
        self.picture = picture_of(steps)
        self.method.setAccessibleDescription(self.picture.words)
        # Both may have changed since the last time.
        self.method.restyle()
        self.keys.restyle()
        self.tabs.setCurrentWidget(page)
        bring_forward(self)
        page.setFocus()  # So that the keys scroll it.

    def _method(self, width: int, theme: Theme) -> QTextDocument:
        size, ratio = picture_size(self.picture, width), self.devicePixelRatioF()
        image = QImage(size * ratio, QImage.Format.Format_ARGB32_Premultiplied)
        image.setDevicePixelRatio(ratio)
        image.fill(Qt.GlobalColor.transparent)
        painter = QPainter(image)
        draw_step(painter, self.picture, size.width())
        painter.end()
        document = QTextDocument()
        document.addResource(QTextDocument.ResourceType.ImageResource.value, QUrl("step"), image)
        document.setHtml(method_html(self.picture, size.width(), theme))
        show_kinds(document)
        return document

    def _keys(self, _width: int, _theme: Theme) -> QTextDocument:
        document = QTextDocument()
        document.setHtml(keys_html(self._bar))
        return document


class Help(QObject):
    """Opens the Help window and About."""

    def __init__(
        self,
        window: QMainWindow,
        menus: Menus,
        run: RunView,
        live: LiveView,
        dialogs: Dialogs,
        jobs: Jobs,
    ) -> None:
        super().__init__(window)
        self._window, self._run, self._live = window, run, live
        self._dialogs, self._jobs = dialogs, jobs
        self.page: HelpWindow | None = None
        for name, action in (("method", menus.help), ("formulas", menus.formulas), ("keys", menus.keys)):
            action.triggered.connect(partial(self._open, name))
        menus.about.triggered.connect(self._on_about)

    def _open(self, name: str, _checked: bool = False) -> None:
        self.page = self.page or HelpWindow(self._window.menuBar(), self._window)
        self.page.open_page(getattr(self.page, name), self._run.steps)

    @Slot()
    def _on_about(self) -> None:
        self._dialogs.show_about(self._window, self._live.place, self._jobs)
