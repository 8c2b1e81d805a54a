"""The plots of the window Server: a server's counters over time, with marks of restarts and of our own runs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyqtgraph as pg
from PySide6.QtGui import QColor

from app.theme import Theme, ui_font
from app.widgets.legend import Mark, SeriesSample, band_color
from app.widgets.pictures import Table
from app.widgets.plots import QUARTERS, TOP, Plot

if TYPE_CHECKING:
    from core.engines.metrics import Snapshot

MOST_POINTS = 2_400
"""An hour; older points are dropped."""
MOST_POSITIONS = 6
LONGEST_GAP_S = 4.5
"""Three polls; what a server did in a longer gap isn't known."""
DASHES = ((), (4, 4), (10, 4), (1, 3), (7, 3, 1, 3), (7, 3, 1, 3, 1, 3))
"""The lines of a plot, so that one shows through the gaps of another with the same values."""
RESTARTED = "restarted"
LABELS = {"drafted": "drafted tokens", "accepted": "accepted tokens", "drafts": "drafting steps"}
"""Series whose names alone, which saved figures have, leave open what is counted."""
OWN_HELP = "When this window's own runs used the server"


@dataclass
class History:
    """What the server did, poll by poll.

    Attributes:
        times: of each reading, in seconds since the window began to follow.
        values: one value a reading by series, NaN where there is none.
        restarts: the times at which a restart was seen.
        own: start and end of each of our own runs; the end is None while it runs.
    """

    times: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    restarts: list[float] = field(default_factory=list)
    own: list[tuple[float, float | None]] = field(default_factory=list)

    def add(self, at: float, values: dict[str, float]) -> None:
        """Add a reading; a series that it lacks gets a gap, as all do before a late one."""
        for name in values.keys() - self.values.keys():
            self.values[name] = [math.nan] * len(self.times)
        self.times.append(at)
        for name, known in self.values.items():
            known.append(values.get(name, math.nan))
        for each in (self.times, *self.values.values()):
            del each[:-MOST_POINTS]
        self.own[:] = [(start, end) for start, end in self.own if end is None or end > self.times[0]]
        self.restarts[:] = [restart for restart in self.restarts if restart >= self.times[0]]

    def clear(self) -> None:
        """Begin anew."""
        for item in fields(self):
            getattr(self, item.name).clear()


def rates(grown: Snapshot, seconds: float) -> dict[str, float]:
    """The values of all series from what happened within some seconds; what the server doesn't report is left out."""
    per_second = {
        "tokens": grown.generated_tokens,
        "drafts": grown.drafts,
        "drafted": grown.draft_tokens,
        "accepted": grown.accepted_tokens,
    }
    found = {name: value / seconds for name, value in per_second.items() if value is not None}
    if grown.drafts:
        positions = grown.accepted_per_position[:MOST_POSITIONS]
        found |= {f"position {place}": count / grown.drafts for place, count in enumerate(positions, 1)}
    levels = {"running": grown.running, "waiting": grown.waiting}
    return found | {name: value for name, value in levels.items() if value is not None}


class HistoryPlot(Plot):
    """Some series of a `History` over time, with bands where our own runs were and a line at each restart."""

    def __init__(
        self, history: History, series: dict[str, tuple[str, str]], *, title: str, y_label: str, is_share: bool = False
    ) -> None:
        """
        Args:
            series: by name, the colour's token and a sentence.
            is_share: whether the values are shares, shown in percent.
        """
        super().__init__(
            object_name=f"server{title.title().replace(' ', '')}",
            title=title,
            x_label="seconds since monitoring began",
            y_label=y_label,
        )
        self._history, self._is_share = history, is_share
        self._lines = {
            name: self.add_line(token, LABELS.get(name, name.removeprefix("position ")), text, dashes=dashes)
            for (name, (token, text)), dashes in zip(series.items(), DASHES, strict=False)
        }
        self.samples.append(SeriesSample("this window's runs", Mark.REGION, "muted", OWN_HELP))
        self._bands: list[pg.LinearRegionItem] = []
        self._marks: list[pg.InfiniteLine] = []
        self.getPlotItem().setMouseEnabled(x=True, y=False)
        if is_share:
            self.getPlotItem().getAxis("left").setTicks([QUARTERS])

    def refresh(self) -> None:
        """Show what is new since the last call; an empty plot says why it is empty."""
        is_missing = self._is_share and any(count > 0 for count in self._history.values.get("drafts", ()))
        self.set_hint("Not reported by this server" if is_missing else "No data yet")
        super().refresh()

    def _columns(self) -> dict[str, list[float]]:
        return {name: self._history.values.get(name, []) for name in self._lines}

    def _extent(self) -> tuple[float, float]:
        known = [value for values in self._columns().values() for value in values if math.isfinite(value)]
        if not known or not self._history.times:
            return 0.0, 0.0
        # Low counts get whole numbers on their axis.
        return max(self._history.times[-1], 1.0), 1.0 if self._is_share else max(*known, 4.0)

    def _fit(self, extent: tuple[float, float]) -> None:
        super()._fit(extent)
        if self._is_share:  # It can't grow, and needs no spare room.
            self.getViewBox().setYRange(0, TOP, padding=0)
        if len(self._history.times) == MOST_POINTS:
            self.getViewBox().setXRange(self._history.times[0], extent[0], padding=0)

    def _draw(self) -> None:
        history = self._history
        gaps = np.flatnonzero(np.diff(history.times) > LONGEST_GAP_S) + 1
        times = np.insert(history.times, gaps, np.take(history.times, gaps))
        for name, readings in self._columns().items():
            line = self._lines[name]
            if not readings:
                line.setData([], [])
                continue
            values, color = np.insert(readings, gaps, math.nan), line.opts["pen"].color()
            # A value between two gaps, which would be no line, gets a dot.
            known = np.pad(np.isfinite(values), 1)
            sizes = np.where(known[1:-1] & ~known[:-2] & ~known[2:], 4, 0)
            line.setData(times, values, symbol="o", symbolSize=sizes, symbolPen=None, symbolBrush=color)
        while len(self._bands) < len(history.own):
            band = pg.LinearRegionItem(movable=False)
            band.setZValue(-50)
            self._bands.append(self.add_item(band, partial(_paint_band, band)))
        while len(self._marks) < len(history.restarts):
            mark = pg.InfiniteLine(angle=90, label=RESTARTED, labelOpts={"position": 0.9, "anchors": [(0, 0), (0, 0)]})
            self._marks.append(self.add_item(mark, partial(_paint_mark, mark)))
        for items, wanted in ((self._bands, history.own), (self._marks, history.restarts)):
            for item in items[len(wanted) :]:
                item.hide()
        now = history.times[-1] if history.times else 0.0
        for band, (start, end) in zip(self._bands, history.own, strict=False):
            band.setRegion((start, max(now, start) if end is None else end))
            band.show()
        for mark, at in zip(self._marks, history.restarts, strict=False):
            mark.setValue(at)
            mark.show()
        for sample, name in zip(self.samples, self._lines, strict=False):
            sample.setVisible(name in history.values)
        self.samples[-1].setVisible(bool(history.own))

    def _place_at(self, x: float) -> int:
        times = self._history.times
        return min(bisect_left(times, x), len(times) - 1)

    def _text(self, value: float) -> str:
        if math.isnan(value):
            return "not reported"
        return f"{value:.0%}" if self._is_share else f"{value:,.1f}".removesuffix(".0")

    def readout(self, place: int) -> str:
        """The series at a reading."""
        return " · ".join(f"{name} {value}" for name, value in self.details(place)[1:])

    def details(self, place: int) -> list[tuple[str, str]]:
        """The series at a reading, one a row."""
        shown = {name: values[place] for name, values in self._columns().items() if place < len(values)}
        return [
            (f"{self._history.times[place]:.0f} s", ""),
            *((LABELS.get(name, name), self._text(value)) for name, value in shown.items()),
        ]

    def table(self) -> Table:
        """All readings."""
        return {"seconds": self._history.times, **{name: values for name, values in self._columns().items() if values}}


def _paint_band(band: pg.LinearRegionItem, theme: Theme) -> None:
    band.setBrush(band_color(QColor(theme.muted)))
    for edge in band.lines:
        edge.setPen(pg.mkPen(theme.muted, width=1))  # A short run is hardly more than its edges.


def _paint_mark(mark: pg.InfiniteLine, theme: Theme) -> None:
    mark.setPen(pg.mkPen(theme.muted, width=1))
    mark.label.setColor(theme.muted)
    mark.label.setFont(ui_font(11))


def server_plots(history: History) -> Sequence[HistoryPlot]:
    """The plots of the window, from left to right and downwards."""
    positions = {
        f"position {place}": (f"run_{place}", "Tokens accepted at this position / steps that drafted")
        for place in range(1, MOST_POSITIONS + 1)
    }
    drafts = {
        "drafted": ("draft_bar", "Drafted tokens per second"),
        "accepted": ("target_bar", "Accepted tokens per second"),
        "drafts": ("sample_bar", "Drafting steps per second"),
    }
    tokens = {"tokens": ("accent", "Generated tokens per second")}
    levels = {"running": ("accent", "Requests being processed"), "waiting": ("sample_bar", "Requests waiting")}
    return (
        HistoryPlot(history, positions, title="Acceptance by position", y_label="of drafting steps, %", is_share=True),
        HistoryPlot(history, drafts, title="Drafts", y_label="per second"),
        HistoryPlot(history, tokens, title="Tokens", y_label="per second"),
        HistoryPlot(history, levels, title="Requests", y_label="requests"),
    )
