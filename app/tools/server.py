"""The window Server: follows a server's own counters while anybody uses it, and marks where our requests ran."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING

import pyqtgraph as pg
from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtGui import QColor, QHideEvent
from PySide6.QtWidgets import QDialog, QGridLayout, QWidget

from app.controller import RunController, RunState
from app.dialogs import Dialogs
from app.jobs import Job, Jobs
from app.setup.engine_form import EngineForm
from app.theme import Theme, ui_font
from app.widgets.fields import (
    boxed,
    card,
    column,
    hint_label,
    push_button,
    row,
    scrolled,
    set_flag,
    text_label,
    wrapped_label,
)
from app.widgets.legend import Mark, SeriesSample, band_color
from app.widgets.pictures import Table
from app.widgets.plot_card import PlotCard, save_plots
from app.widgets.plots import QUARTERS, TOP, Plot
from app.window_layout import bring_forward, open_at
from core.settings import RunRequest

if TYPE_CHECKING:
    from core.engines import Server, Snapshot

POLL_MS = 1_500
NONE_POLL_MS = 15_000
"""While the server has no counters."""
MOST_POINTS = 2_400
"""An hour; older points are dropped."""
MOST_POSITIONS = 6
NONE_CHOSEN = "Monitor a server's acceptance and throughput"
BEGIN = (
    "Start a server with speculative decoding. Tools > Deploy has the command for the pair of the run on screen, "
    "or, before a run, for the chosen pair.",
    "Add its address, such as http://127.0.0.1:8000. If it is already listed under Engine in the main window, "
    "choose it there.",
    "Keep this window open. It plots the server's counters for the requests of all clients.",
)
NO_METRICS = {
    "vllm": "This vLLM server exposes no counters at /metrics. Start it without --disable-log-stats, and check "
    "that no proxy hides the page.",
    "sglang": "This SGLang server exposes no counters at /metrics. Start it with --enable-metrics.",
    "llama-server": "This llama-server exposes no counters at /metrics. Start it with --metrics.",
}
UNLOADED = " A model that isn't loaded has none."
FOLLOWING = "The counts cover all of the server's clients."
LATE = "It counts a request's tokens when the request ends."
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
        """Add a reading; a series that it lacks gets a gap."""
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
            object_name=f"server{title.title().replace(' ', '')}", title=title, x_label="seconds", y_label=y_label
        )
        self._history, self._is_share = history, is_share
        self._lines = {
            name: self.add_line(token, LABELS.get(name, name.removeprefix("position ")), text)
            for name, (token, text) in series.items()
        }
        self.samples.append(SeriesSample("own runs", Mark.BAND, "accent", OWN_HELP))
        self._bands: list[pg.LinearRegionItem] = []
        self._marks: list[pg.InfiniteLine] = []
        self.getPlotItem().setMouseEnabled(x=True, y=False)
        if is_share:
            self.getPlotItem().getAxis("left").setTicks([QUARTERS])
        self.set_hint("No data yet")

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
        for name, values in self._columns().items():
            line = self._lines[name]
            times, color = history.times[-len(values) :] if values else [], line.opts["pen"].color()
            # With symbols, since a value between two gaps would be no line.
            line.setData(times, values, symbol="o", symbolSize=4, symbolPen=None, symbolBrush=color)
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
    band.setBrush(band_color(QColor(theme.accent)))
    for edge in band.lines:
        edge.setPen(None)


def _paint_mark(mark: pg.InfiniteLine, theme: Theme) -> None:
    mark.setPen(pg.mkPen(theme.muted, width=1))
    mark.label.setColor(theme.muted)
    mark.label.setFont(ui_font(11))


class ServerWindow(QDialog):
    """Reads the chosen server's /metrics in jobs, as long as the window is open."""

    def __init__(
        self, main: QWidget | None, controller: RunController, engine: EngineForm, jobs: Jobs, dialogs: Dialogs
    ) -> None:
        super().__init__(main)
        self.setObjectName("serverWindow")
        self.setWindowTitle("Server")
        self._controller, self._engine, self._jobs = controller, engine, jobs
        self.history = History()
        self._server: Server | None = None
        self._before: tuple[float, Snapshot] | None = None
        self._chosen = ("", "")
        """The address that was last followed, and why it couldn't be."""
        self._began = 0.0
        self._job: Job | None = None
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.poll)
        self.headline = wrapped_label("serverHeadline", "title")
        self.subject = wrapped_label("serverSubject", "hint")
        self.saved = hint_label("serverSaved")
        self.cards = [PlotCard(plot.accessibleName(), plot) for plot in self._plots()]
        add = push_button("Add server…", "serverAddButton", "Enter a server's address, and choose it", engine.add)
        add.setProperty("role", "primary")
        steps = QGridLayout()
        steps.setColumnStretch(1, 1)
        for number, (line, step) in enumerate(zip((0, 1, 3), BEGIN, strict=True), 1):
            steps.addWidget(text_label(f"{number}.", "plain"), line, 0, Qt.AlignmentFlag.AlignTop)
            steps.addWidget(wrapped_label(f"serverStep{number}", "plain", step), line, 1)
        steps.addWidget(add, 2, 1, Qt.AlignmentFlag.AlignLeft)
        self.begin = boxed(column(card(steps)[0], None))
        grid = QGridLayout()
        grid.setSpacing(8)
        for index, each in enumerate(self.cards):
            each.setMinimumHeight(200)
            grid.addWidget(each, index // 2, index % 2)
        close = push_button("Close", "serverCloseButton", "Close the window, and stop monitoring", self.close)
        self.plots = scrolled(boxed(grid), "serverPlots")
        foot = row((self.saved, 1), close)
        boxed(
            column(self.headline, self.subject, (self.begin, 1), (self.plots, 1), foot), self, margins=(16, 14, 16, 16)
        )
        open_at(self, 900, 700)
        save_plots(self.cards, self, dialogs, jobs, saved=self.saved.setText, failed=self.saved.setText)
        engine.changed.connect(self._on_engine_changed)
        controller.run_requested.connect(self._on_run_requested)
        controller.run_ended.connect(self._on_run_ended)

    def _plots(self) -> Sequence[HistoryPlot]:
        positions = {
            f"position {place}": (f"run_{place}", "Tokens accepted at this position / steps that drafted")
            for place in range(1, MOST_POSITIONS + 1)
        }
        drafts = {
            "drafted": ("draft_bar", "Drafted tokens per second"),
            "accepted": ("target_bar", "Accepted tokens per second"),
            "drafts": ("sample_bar", "Drafting steps per second"),
        }
        levels = {
            "running": ("accent", "Requests being processed"),
            "waiting": ("sample_bar", "Requests waiting"),
        }
        return (
            HistoryPlot(
                self.history, positions, title="Acceptance by position", y_label="of drafting steps, %", is_share=True
            ),
            HistoryPlot(self.history, drafts, title="Drafts", y_label="per second"),
            HistoryPlot(
                self.history,
                {"tokens": ("accent", "Generated tokens per second")},
                title="Tokens",
                y_label="per second",
            ),
            HistoryPlot(self.history, levels, title="Requests", y_label="requests"),
        )

    # --- Following ---

    @Slot()
    def open(self) -> None:
        """Bring the window to the front, and follow the chosen server."""
        was_open = self.isVisible()
        bring_forward(self)
        if not was_open:
            self._follow()

    def hideEvent(self, event: QHideEvent) -> None:
        """Stop following, unless the window is only minimised."""
        if not event.spontaneous():
            self._leave()
        super().hideEvent(event)

    def _leave(self) -> None:
        self._timer.stop()
        self._server = self._before = None
        if self._job is not None:
            self._job.cancel()
            self._job = None

    def _follow(self) -> None:
        """Begin anew with the chosen server."""
        self._leave()
        self.history.clear()
        for each in self.cards:
            each.plot.follow()
        self._began = time.perf_counter()
        self._server = self._engine.server
        self._chosen = (self._engine.url, self._engine.problem())
        has_none = not self._engine.url
        self.begin.setVisible(has_none)
        self.plots.setVisible(not has_none)
        self.subject.setVisible(not has_none)
        notes = [] if self._server is None else [self._server.text]
        if self._server is not None and self._server.product == "llama-server":
            notes += [f"The counts are those of {self._server.models[0]}."] * self._server.is_router + [LATE]
        self.subject.setText(" ".join(notes))
        self._say(self._engine.problem() or (FOLLOWING if self._server is not None else NONE_CHOSEN))
        request, is_running = self._controller.request, self._controller.state is not RunState.IDLE
        if is_running and request is not None and request.engine == self._engine.url:
            self.history.own.append((0.0, None))
        self._refresh()
        self.poll()

    @Slot()
    def poll(self) -> None:
        """Read the counters, in a job; the next reading follows when this one is here."""
        server = self._server
        if server is None:
            return

        def read(_job: Job) -> tuple[float, Snapshot | Server | None]:
            from core.engines import identify, read_metrics

            if server.metrics is None:
                found = identify(server.address.url, server.key)
                return time.perf_counter(), found if found.metrics is not None else None
            with server.client() as client:
                return time.perf_counter(), read_metrics(client, server.query())

        self._job = self._jobs.submit(
            read, then=self._take, failed=self._miss, what="The server's counters could not be read"
        )

    def _take(self, reading: tuple[float, Snapshot | Server | None]) -> None:
        from core.engines import Server, difference

        at, after = reading
        if self._server is None:
            return
        if after is None:
            self._timer.start(NONE_POLL_MS)
            unloaded = UNLOADED if self._server.is_router else ""
            self._say(f"{NO_METRICS[self._server.product]}{unloaded}", is_problem=True)
            return
        if isinstance(after, Server):
            if after.address.url == self._engine.url:
                self._engine.learn(after)  # It is then followed anew.
            return
        self._timer.start(POLL_MS)
        self._say(FOLLOWING)
        before, self._before = self._before, (at, after)
        if before is None:
            return
        now, grown = at - self._began, difference(before[1], after)
        if grown is None:
            self.history.restarts.append(now)
        self.history.add(now, {} if grown is None else rates(grown, max(at - before[0], 1e-3)))
        self._refresh()

    def _miss(self, sentence: str) -> None:
        # It may come back; what was read last shows whether it restarted meanwhile.
        self._timer.start(NONE_POLL_MS if self._server is not None and self._server.metrics is None else POLL_MS)
        self._say(sentence, is_problem=True)
        self.history.add(time.perf_counter() - self._began, {})
        self._refresh()

    def _say(self, sentence: str, *, is_problem: bool = False) -> None:
        self.headline.setText(sentence)
        set_flag(self.headline, "role", "problem" if is_problem else "title")

    def _refresh(self) -> None:
        for each in self.cards:
            each.plot.refresh()

    @Slot()
    def _on_engine_changed(self) -> None:
        chosen = (self._engine.url, self._engine.problem())
        if self.isVisible() and (self._engine.server is not self._server or chosen != self._chosen):
            self._follow()

    # --- Our own runs ---

    @Slot(object)
    def _on_run_requested(self, request: RunRequest) -> None:
        if self._server is not None and request.engine == self._server.address.url:
            self.history.own.append((time.perf_counter() - self._began, None))

    @Slot()
    def _on_run_ended(self) -> None:
        if self.history.own and self.history.own[-1][1] is None:
            self.history.own[-1] = (self.history.own[-1][0], time.perf_counter() - self._began)
            self._refresh()
