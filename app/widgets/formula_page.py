"""Every figure's formula: the page of the documentation, rendered."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

from PySide6.QtGui import (
    QColor,
    QShowEvent,
    QTextCursor,
    QTextDocument,
    QTextDocumentFragment,
    QTextFrameFormat,
    QTextLength,
    QTextTable,
)
from PySide6.QtWidgets import QTextBrowser, QWidget

from app.theme import LIGHT, RESOURCES, Theme, scaled, ui_font
from app.turns import Turns, frame_of, freeze, thaw

FIGURES = RESOURCES / "docs" / "figures.md"
MISSING = "The page of formulas is missing from this installation."
SHARES = (26, 31, 9, 34)
"""Widths of a table's columns, in percent."""
HEADING_GAP, GAP = 16, 8


def figures_text(path: Path = FIGURES) -> str:
    """The page as Markdown; a sentence where it is missing."""
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return MISSING


class FormulaPage(QTextBrowser):
    """Reads the page when it is first shown in a theme: in a turn of its own, and unseen until it is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("helpFormulas")
        self.setAccessibleName("Formulas")
        self.setOpenExternalLinks(True)
        self.setFrameShape(QTextBrowser.Shape.NoFrame)
        self._theme = LIGHT
        self._is_stale = True
        self._turns = Turns(self)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours, at the text's size."""
        self._theme = theme
        self._is_stale = True
        # What is on its way is in the look of before.
        self._turns.stop()
        if self.isVisible():
            for _ in self._written():
                pass

    def showEvent(self, event: QShowEvent) -> None:
        """Draw the page, unless it is still as it was drawn."""
        super().showEvent(event)
        if self._is_stale and not self._turns.is_going:
            pieces = self._pieces(frame_of(self))
            # Frozen at once, and so that whoever gives it up thaws it.
            next(pieces)
            self._turns.start(pieces)

    def _pieces(self, frame: QWidget) -> Generator[None]:
        freeze([frame], "formulas")
        try:
            yield from self._turns.rest()
            yield from self._written()
        finally:
            thaw([frame], "formulas")

    def _written(self) -> Generator[None]:
        """Section by section, each laid out as it comes: the whole page takes three times as long as the largest."""
        at = self.verticalScrollBar().value()
        self.clear()
        self.document().setDefaultFont(ui_font(13))
        self.document().setDocumentMargin(scaled(12))
        cursor = QTextCursor(self.document())
        for section in _sections(figures_text()):
            document = _document(section, self._theme)
            if not cursor.atStart():
                cursor.insertBlock(QTextCursor(document).blockFormat())
            cursor.insertFragment(QTextDocumentFragment(document))
            yield
        self._is_stale = False
        self.verticalScrollBar().setValue(at)


def _sections(markdown: str) -> list[str]:
    return re.split(r"^(?=## )", markdown, flags=re.MULTILINE)


def _document(markdown: str, theme: Theme) -> QTextDocument:
    # Not in the page yet: it would be laid out anew with every change.
    document = QTextDocument()
    document.setDefaultFont(ui_font(13))
    document.setMarkdown(markdown)
    cursor = QTextCursor(document)
    cursor.beginEditBlock()
    _space(cursor)
    for frame in document.rootFrame().childFrames():
        if isinstance(frame, QTextTable):
            _style(frame, theme)
    cursor.endEditBlock()
    return document


def _space(cursor: QTextCursor) -> None:
    """Set headings and paragraphs apart; Markdown's own blocks stand close."""
    block = cursor.document().begin()
    while block.isValid():
        inside = QTextCursor(block)
        if inside.currentTable() is None:
            form = inside.blockFormat()
            form.setTopMargin(scaled(HEADING_GAP if form.headingLevel() > 1 else 0))
            form.setBottomMargin(scaled(GAP))
            inside.setBlockFormat(form)
        block = block.next()


def _style(table: QTextTable, theme: Theme) -> None:
    form = table.format()
    form.setBorderCollapse(True)
    form.setBorder(1)
    form.setBorderBrush(QColor(theme.border))
    form.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    form.setCellPadding(scaled(5))
    form.setTopMargin(scaled(GAP))  # a table takes no notice of the margin below its heading
    form.setWidth(QTextLength(QTextLength.Type.PercentageLength, 100))
    form.setColumnWidthConstraints([QTextLength(QTextLength.Type.PercentageLength, share) for share in SHARES])
    table.setFormat(form)
