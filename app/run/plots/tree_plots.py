"""Plots of a run that drafts trees: acceptance by depth and rank, and the time to verify a tree by its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QColor

from app.run.plots.position_plot import TOKENS
from app.run.run_view import RunView
from app.theme import Theme, contrast, current_theme, mixed, ui_font
from app.widgets.legend import Mark, SeriesSample
from app.widgets.pictures import Table, table_of
from app.widgets.plots import DASHED, THIN, Plot, set_whiskers, ticks
from core.analysis.diagnosis import LEAST_TIMED
from core.analysis.run_counts import MOST_RANKS, Column
from core.text import percent_text

CELL = 0.94
LEAST_CELLS = 4, 3
"""Depths and ranks that always get room, so that a small tree has no huge cells."""
RANK_HELP = (
    "Each cell: accepted / tested candidates at this depth that have this rank among their siblings, in per cent. "
    "A candidate is tested if those before it were rejected, so later ranks show what more branching adds; typical "
    "acceptance tests them in any case. In an empty cell, candidates were drafted, but never tested."
)


class RankPlot(Plot):
    """A cell for each depth and rank among siblings: how many of the candidates tested there were accepted."""

    def __init__(self, run: RunView) -> None:
        super().__init__(object_name="rankPlot", title="Acceptance by depth and rank", x_label="depth", y_label="rank")
        self._run = run
        self._texts: list[Any] = []
        self.bars = pg.BarGraphItem(x=[], y0=[], height=[], width=CELL)
        sample = SeriesSample("accepted of tested, %", Mark.BAR, "draft_bar", RANK_HELP)
        self.add_item(self.bars, lambda theme: self.bars.setOpts(pen=pg.mkPen(theme.field_border, width=1)), sample)
        self.untested_sample = SeriesSample("never tested", Mark.HOLLOW, "field_border", RANK_HELP)
        self.samples.append(self.untested_sample)
        self.getPlotItem().setMouseEnabled(x=False, y=False)
        self.getViewBox().invertY(True)
        self.set_hint("How often each candidate of a tree is accepted")

    @property
    def cells(self) -> list[tuple[int, int]]:
        """Depth and rank of each cell, from 0."""
        return sorted(self._run.counts.ranks)

    def rate(self, cell: tuple[int, int]) -> float | None:
        """Accepted / tested; None if none was tested."""
        counts = self._run.counts.ranks[cell]
        return counts.accepted / counts.tested if counts.tested else None

    def details(self, place: int) -> list[tuple[str, str]]:
        """A cell in figures."""
        depth, rank = self.cells[place]
        counts, rate = self._run.counts.ranks[depth, rank], self.rate((depth, rank))
        return [
            (f"Depth {depth + 1}, rank {rank + 1}{' or later' if rank + 1 == MOST_RANKS else ''}", ""),
            ("accepted of tested", "never tested" if rate is None else percent_text(rate)),
            ("drafted", f"{counts.drafted:,}"),
            ("tested", f"{counts.tested:,}"),
            ("accepted", f"{counts.accepted:,}"),
        ]

    def table(self) -> Table:
        """One row per cell."""
        found = [(*cell, self._run.counts.ranks[cell]) for cell in self.cells]
        rows = [
            (depth + 1, rank + 1, counts.drafted, counts.tested, counts.accepted, self.rate((depth, rank)))
            for depth, rank, counts in found
        ]
        return table_of(("depth", "rank", *TOKENS, "acceptance_of_tested"), rows)

    def _extent(self) -> tuple[float, float]:
        depths, ranks = zip((-1, -1), *self.cells, strict=True)
        return max(depths) + 1.0, max(ranks) + 1.0

    def _fit(self, extent: tuple[float, float]) -> None:
        depth, rank = (max(int(found), least) for found, least in zip(extent, LEAST_CELLS, strict=True))
        marked = {"bottom": ticks(range(1, int(extent[0]) + 1)), "left": ticks(range(1, int(extent[1]) + 1))}
        self._frame((0.5, depth + 0.5), (0.5, rank + 0.5), marked)

    def _place_under(self, point: QPointF) -> int:
        box = self.getViewBox()
        at, cells = box.mapSceneToView(point), self.cells
        cell = (round(at.x()) - 1, round(at.y()) - 1)
        return cells.index(cell) if box.sceneBoundingRect().contains(point) and cell in cells else -1

    def _draw(self) -> None:
        theme, cells = current_theme(), self.cells
        rates = [self.rate(cell) for cell in cells]
        colors = [
            QColor(Qt.GlobalColor.transparent) if rate is None else mixed(theme.track, theme.draft_bar, rate)
            for rate in rates
        ]
        self.untested_sample.setVisible(None in rates)
        x, y = np.array(cells, dtype=np.float64).reshape(-1, 2).T + 1.0
        self.bars.setOpts(x=x, y0=y - CELL / 2, height=CELL, brushes=colors)
        while len(self._texts) < len(cells):
            self._texts.append(pg.TextItem(anchor=(0.5, 0.5)))
            self.getPlotItem().addItem(self._texts[-1])
        for index, text in enumerate(self._texts):
            rate = rates[index] if index < len(cells) else None
            text.setVisible(rate is not None)
            if rate is not None:
                text.setPlainText(f"{100 * rate:.0f}")
                text.setFont(ui_font(11))
                text.setColor(_on(colors[index], theme))
                text.setPos(x[index], y[index])


def _on(color: QColor, theme: Theme) -> QColor:
    """The text's or the surface's colour, whichever is more readable on this one."""
    return QColor(max((theme.text, theme.surface), key=lambda ink: contrast(ink, color.name())))


COST_HELP = "Median time of the target's forward over a tree with this many nodes; 0 is a plain step."
SPREAD_HELP = "From the 10th to the 90th percentile of the steps."
PLAIN_HELP = (
    "Time of the target's forward over one token: the mean of the baseline's or, without one, timed before the run or "
    "in its first plain step."
)
HEADROOM = 1.15


class CostPlot(Plot):
    """Time to verify a tree, by its number of nodes: what more nodes cost on this machine."""

    def __init__(self, run: RunView) -> None:
        super().__init__(object_name="costPlot", title="Verify time by nodes", x_label="nodes scored", y_label="ms")
        self._run = run
        self._points: dict[int, tuple[float, float, float, int]] = {}
        """By nodes: median, 10th and 90th percentile, number of steps."""
        self.plain_line = self.add_line("text", "plain forward", PLAIN_HELP, dashes=DASHED, width=THIN, angle=0)
        self.whiskers = self.add_whiskers("text", beam=0.3)
        self.line = self.add_line("target_bar")
        self.points = self.add_points("target_bar", 7, "median step", f"{COST_HELP} Whiskers: {SPREAD_HELP.lower()}")
        self.samples.reverse()
        self.getViewBox().setLimits(xMin=-1, yMin=0, minXRange=2)
        self.set_hint("What each further node costs to verify")

    @property
    def _plain_ms(self) -> float | None:
        plain = self._run.plain_step
        return None if plain is None else plain.forward_ms

    def details(self, place: int) -> list[tuple[str, str]]:
        """A number of nodes in figures."""
        median, low, high, count = self._points[place]
        rows = [(f"{place} nodes", ""), ("median", f"{median:.2f} ms"), ("10 to 90 %", f"{low:.2f} to {high:.2f} ms")]
        rows.append(("steps", f"{count:,}"))
        if plain := self._plain_ms:
            rows.append(("of one token's time", f"{median / plain:.2f} ×"))
        return rows

    def table(self) -> Table:
        """One row per number of nodes."""
        rows = [(nodes, count, *times) for nodes, (*times, count) in sorted(self._points.items())]
        return table_of(("nodes", "steps", "verify_ms_median", "verify_ms_p10", "verify_ms_p90"), rows)

    def refresh(self) -> None:
        """Show what is new since the last call."""
        columns, times = self._run.counts.columns, dict(self._run.counts.sums.verify_by_length)
        steps = zip(columns[Column.NUM_DRAFTED], columns[Column.VERIFY_MS], strict=True)
        if plain := [ms for drafted, ms in steps if not drafted]:
            times[0] = plain
        self._points = {}
        for nodes, found in sorted(times.items()):
            low, median, high = np.percentile(found, (10, 50, 90))
            self._points[nodes] = (float(median), float(low), float(high), len(found))
        super().refresh()

    def _extent(self) -> tuple[float, float]:
        if not self._points:
            return 0.0, 0.0
        top = max(high for _, _, high, _ in self._points.values())
        return max(self._points) + 1.0, HEADROOM * max(top, self._plain_ms or 0.0)

    def _fit(self, extent: tuple[float, float]) -> None:
        self._frame((-0.6, max(extent[0], 4.0) - 0.4), (0, extent[1] or 1))

    def _place_at(self, x: float) -> int:
        nearest = min(self._points, key=lambda nodes: abs(nodes - x), default=-1)
        return nearest if abs(nearest - x) <= 0.5 else -1

    def _draw(self) -> None:
        plain = self._plain_ms
        self.plain_line.setVisible(plain is not None)
        self.plain_line.setValue(plain or 0.0)
        x = np.array([*self._points], dtype=np.float64)
        median, low, high, counts = np.array([*self._points.values()], dtype=np.float64).reshape(-1, 4).T
        # Medians of few steps don't support a trend line.
        is_sure = counts >= LEAST_TIMED
        self.line.setData(x, median, connect=np.append(is_sure[:-1] & is_sure[1:], False) if len(x) else "all")
        self.points.setData(x, median)
        set_whiskers(self.whiskers, x, median, low, high)
