"""The window Server: follows a server's own counters while anybody uses it, and marks where our requests ran."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtGui import QHideEvent
from PySide6.QtWidgets import QDialog, QGridLayout, QWidget

from app.controller import RunController, RunState
from app.dialogs import Dialogs
from app.jobs import Job, Jobs
from app.setup.engine_form import EngineForm
from app.tools.server_plots import History, rates, server_plots
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
from app.widgets.plot_card import PlotCard, save_plots
from app.window_layout import bring_forward, open_at
from core.settings import RunRequest

if TYPE_CHECKING:
    from core.engines.metrics import Snapshot
    from core.engines.server import Server

POLL_MS = 1_500
NONE_POLL_MS = 15_000
"""While the server has no counters."""
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
FOLLOWING = "Monitoring: the counts cover all of the server's clients."
LATE = "It counts a request's tokens when the request ends."
AGAIN = "Unanswered since {}; trying again {:g} s after each failure."
LAST_SEEN = "Last seen: {}"


def _settings(server: Server) -> tuple[Server, bool]:
    """What is known of a server besides its counts."""
    return replace(server, metrics=None), server.metrics is None


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
        self._lost_at = ""
        """When reading first failed, since it last succeeded; empty while it does."""
        self._is_stale = False
        """Whether to identify it anew: it has no counters yet, or may have been restarted with other settings."""
        self._job: Job | None = None
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.poll)
        self.headline = wrapped_label("serverHeadline", "title")
        self.subject = wrapped_label("serverSubject", "hint")
        self.saved = hint_label("serverSaved")
        self.cards = [PlotCard(plot.accessibleName(), plot) for plot in server_plots(self.history)]
        add = push_button("Add server…", "serverAddButton", "Enter a server's address, and choose it", engine.add)
        add.setProperty("role", "primary")
        other_help = "Enter another address. Servers that were added are listed under Engine in the main window"
        self.other = push_button("Add server…", "serverOtherButton", other_help, engine.add)
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
        foot = row((self.saved, 1), self.other, close)
        boxed(
            column(self.headline, self.subject, (self.begin, 1), (self.plots, 1), foot), self, margins=(16, 14, 16, 16)
        )
        open_at(self, 900, 700)
        save_plots(self.cards, self, dialogs, jobs, saved=self.saved.setText, failed=self.saved.setText)
        engine.changed.connect(self._on_engine_changed)
        controller.run_requested.connect(self._on_run_requested)
        controller.run_ended.connect(self._on_run_ended)

    # --- Following ---

    @Slot()
    def open(self) -> None:
        """Bring the window to the front, and follow the chosen server."""
        was_open = self.isVisible()
        bring_forward(self)
        if not was_open:
            self._follow()
            if self._engine.url:
                self.plots.setFocus()  # The keys scroll; else the first plot's menu has them.

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
        self._is_stale = self._server is not None and self._server.metrics is None
        self._chosen = (self._engine.url, self._engine.problem())
        has_none = not self._engine.url
        self.begin.setVisible(has_none)
        self.plots.setVisible(not has_none)
        self.subject.setVisible(not has_none)
        self._show_lost("")
        self._say(self._engine.problem() or (FOLLOWING if self._server is not None else NONE_CHOSEN))
        request, is_running = self._controller.request, self._controller.state is not RunState.IDLE
        if is_running and request is not None and request.engine == self._engine.url:
            self.history.own.append((0.0, None))
        self._refresh()
        self.poll()

    @Slot()
    def poll(self) -> None:
        """Read the counters, in a job; the next reading follows when this one is here."""
        server, is_stale = self._server, self._is_stale
        if server is None:
            return

        def read(job: Job) -> tuple[float, Snapshot | Server | None]:
            from core.engines.metrics import read_metrics
            from core.engines.server import identify

            if is_stale:
                return time.perf_counter(), identify(server.address.url, server.key, job.check)
            with server.client() as client:
                counts = client.watched(lambda: read_metrics(client, server.query()), job.check)
                return time.perf_counter(), counts

        self._job = self._jobs.submit(
            read, then=self._take, failed=self._miss, what="The server's counters could not be read"
        )

    def _take(self, reading: tuple[float, Snapshot | Server | None]) -> None:
        from core.engines.metrics import difference
        from core.engines.server import Server

        at, after = reading
        if self._server is None:
            return
        if isinstance(after, Server):
            self._is_stale = after.metrics is None
            if _settings(after) != _settings(self._server):
                self._server = after
                if after.address.url == self._engine.url:
                    self._engine.learn(after)
        self._show_lost("")
        if after is None or self._is_stale:
            self._timer.start(NONE_POLL_MS)
            unloaded = UNLOADED if self._server.is_router else ""
            self._say(f"{NO_METRICS[self._server.product]}{unloaded}", is_problem=True)
            return
        if isinstance(after, Server):
            self.poll()
            return
        self._timer.start(POLL_MS)
        self._say(FOLLOWING)
        before, self._before = self._before, (at, after)
        if before is None:
            return
        now, grown = at - self._began, difference(before[1], after)
        if grown is None:
            self.history.restarts.append(now)
            self._is_stale = True
        self.history.add(now, {} if grown is None else rates(grown, max(at - before[0], 1e-3)))
        self._refresh()

    def _miss(self, sentence: str) -> None:
        # It may come back; what was read last shows whether it restarted meanwhile.
        self._is_stale = True
        pause = NONE_POLL_MS if self._server is not None and self._server.metrics is None else POLL_MS
        self._timer.start(pause)
        self._show_lost(self._lost_at or f"{datetime.now():%H:%M}")
        self._say(f"{sentence} {AGAIN.format(self._lost_at, pause / 1000)}", is_problem=True)
        self.history.add(time.perf_counter() - self._began, {})
        self._refresh()

    def _show_lost(self, since: str) -> None:
        """Say that what is known of the server is of before then, and offer another; empty: it answers."""
        self._lost_at = since
        notes = [] if self._server is None else [self._server.text]
        if self._server is not None:
            notes += [f"The counts are those of {self._server.models[0]}."] * self._server.is_router
            notes += [LATE] * (self._server.product in {"llama-server", "sglang"})
        known = " ".join(notes)
        self.subject.setText(LAST_SEEN.format(known) if since else known)
        self.other.setVisible(bool(since))

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
