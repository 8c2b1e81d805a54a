"""Where in a plot the selected step is, and the one that the pointer is on, here or in the text."""

from __future__ import annotations

import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPen

from app.theme import LIGHT, Theme

MARKS_Z = 50
"""In front of bars and lines: a mark is thin, and the bars of a long run are thinner still."""


class StepMarks:
    """Two thin upright lines: solid for what is selected, dotted for what is pointed at."""

    def __init__(self, item: pg.PlotItem) -> None:
        self.selected = pg.InfiniteLine(angle=90)
        self.hovered = pg.InfiniteLine(angle=90)
        for line in (self.selected, self.hovered):
            line.setZValue(MARKS_Z)
            line.hide()
            # A mark has no say in what the view shows.
            item.addItem(line, ignoreBounds=True)
        self.set_theme(LIGHT)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.selected.setPen(_pen(theme.accent, 2.0, Qt.PenStyle.SolidLine))
        self.hovered.setPen(_pen(theme.muted, 1.5, Qt.PenStyle.DotLine))

    def select(self, step: int) -> None:
        """Mark what is selected; -1: nothing."""
        _put(self.selected, step)

    def hover(self, step: int) -> None:
        """Mark what is pointed at; -1: nothing."""
        _put(self.hovered, step)


def _put(line: pg.InfiniteLine, step: int) -> None:
    if step >= 0:
        line.setPos(step)
    line.setVisible(step >= 0)


def _pen(color: str, width: float, style: Qt.PenStyle) -> QPen:
    pen = QPen(QColor(color), width, style)
    pen.setCosmetic(True)
    return pen
