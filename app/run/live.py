"""Passes the engine's events to the panels on timers; nothing else connects the two."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from PySide6.QtCore import QObject, QTimer, Signal, Slot
from PySide6.QtWidgets import QGraphicsOpacityEffect, QWidget

from app.controller import RunController, RunState
from app.run.run_view import RunView
from app.run.status_strip import StatusStrip
from app.run.text.transcript_panel import TranscriptPanel
from app.widgets.labels import show_share
from core.settings import RunRequest
from core.text import server_text, short_name
from core.types import BaselineStep, Event, Finished, RunStarted, StageChanged, StepsCounted

TEXT_MS = 95
PANELS_MS = 230
DIMMED, DIM_MS = 0.4, 400
"""A run that takes this long to start, since its models are loading, dims the text and the verdict of the last one."""
APPLY_S = 0.03
"""Longest time that one frame spends applying events; a kept run may have thousands."""
TEXT_SHARE = 1 / 6
"""Most of a run's time for drawing the text on its own timer; the panels' timer draws it too."""
NOT_STARTED = "The run did not start"
OLDER = "This is {}: the new one did not start."


class LivePanel(Protocol):
    """A panel that shows the run while it is running."""

    def begin(self) -> None:
        """A run starts."""

    def refresh(self, *, has_news: bool) -> None:
        """A frame: show what is new, if the panel is visible."""

    def end(self) -> None:
        """A run is over: show all of it."""


class LiveView(QObject):
    """Applies events to the `RunView`, and makes text and panels draw what is new.

    A kept run is shown in the same way, from the events of its log.

    Signals:
        run_replaced: a run's first events are here, and the one shown before is gone.
        run_begun: a run has started, and its log with it.
        baseline_begun: its baseline has.
        run_shown: a finished or kept run is completely on screen.
        previous_shown: whether the run on screen is the previous one: a new one was requested, and has not started.
    """

    run_replaced = Signal()
    run_begun = Signal()
    baseline_begun = Signal()
    run_shown = Signal()
    previous_shown = Signal(bool)

    def __init__(
        self,
        controller: RunController,
        run: RunView,
        transcript: TranscriptPanel,
        status: StatusStrip,
        panels: Sequence[LivePanel],
        dimmed: Sequence[QWidget],
        parent: QObject | None = None,
    ) -> None:
        """
        Args:
            panels: what shows the run beside the text.
            dimmed: what shows the last run while another one is on its way.
        """
        super().__init__(parent)
        self._controller, self._run, self._transcript, self._status = controller, run, transcript, status
        self._panels, self._dimmed = panels, dimmed
        self._pacing = transcript.playback.pacing
        self._has_news = False
        self._is_ending = False
        self.is_refused = False
        """Whether the last run ended before it started."""
        self.upcoming: RunRequest | None = None
        """A run on its way, which replaces the one on screen once it has started: it may turn out to be invalid."""
        self._kept: Iterator[Event] | None = None
        self.kept_title = ""
        """The name of the run on screen, if it is a kept run."""
        self.place = ""
        """Where this window's last own run was: its device and precision, or its server."""
        self._is_paced = False
        """Whether the kept run is shown at a pace, as in the introduction."""
        self._text_timer = QTimer(self)
        self._text_timer.timeout.connect(self._on_text_due)
        self._panels_timer = QTimer(self, interval=PANELS_MS)
        self._panels_timer.timeout.connect(self._on_panels_due)
        self._dim_timer = QTimer(self, singleShot=True, interval=DIM_MS)
        self._dim_timer.timeout.connect(self._dim)
        controller.run_requested.connect(self._on_run_requested)
        controller.run_ended.connect(self._on_run_ended)
        controller.engine_ready.connect(self._on_engine_ready)
        controller.state_changed.connect(self._on_state_changed)
        self._show_status()

    @Slot()
    def watch_warm_up(self) -> None:
        """Show the engine's stages before the first run."""
        if self._run.request is None:
            self._start_timers()

    def show_kept(self, request: RunRequest, events: Iterable[Event], title: str, *, paced: bool = False) -> None:
        """Show a kept run, all at once or at the chosen pace. Not while another one is running."""
        self._finish_last()
        self._pacing.begin()
        self._is_paced = paced
        if not paced:
            self._pacing.hurry()
        self.is_refused, self._kept, self.kept_title = False, iter(events), title
        self._replace(request)
        self._show_status()
        self._start_timers()

    @property
    def is_slowed(self) -> bool:
        """Whether steps that have arrived are waiting to be shown, although the engine may be done."""
        waits = self._kept is not None or self._pacing.is_behind or self._controller.has_events
        return waits and self._pacing.is_slow

    def forget_refusal(self) -> None:
        """Clear the refusal from the status, since its cause has changed."""
        if self.is_refused:
            self.is_refused = False
            self._show_status()

    def finish(self) -> None:
        """Show the rest of a run immediately, as far as the engine has got. Call it before another run begins."""
        self._pacing.hurry()
        if self._is_ending:
            self._end_if_whole(math.inf)

    @Slot(object)
    def _on_run_requested(self, request: RunRequest) -> None:
        self._finish_last()
        self._pacing.begin(is_measured=True)
        self.is_refused, self.upcoming = False, request
        self._show_whose()
        self._dim_timer.start()
        self._show_status()
        self._start_timers()

    def _finish_last(self) -> None:
        self._kept = None
        self.finish()
        self._take_events()

    def _replace(self, request: RunRequest) -> None:
        self.upcoming = None
        self._undim()
        self._run.begin(request)
        self._transcript.begin(self._run.tokens)
        self._show_whose()
        for panel in self._panels:
            panel.begin()
        self.run_replaced.emit()

    @Slot()
    def _dim(self) -> None:
        for widget in self._dimmed:
            effect = QGraphicsOpacityEffect(widget)
            effect.setOpacity(DIMMED)
            widget.setGraphicsEffect(effect)

    def _undim(self) -> None:
        self._dim_timer.stop()
        for widget in self._dimmed:
            widget.setGraphicsEffect(None)  # type: ignore[arg-type]  # None removes it.

    def _start_timers(self) -> None:
        self._text_timer.start(TEXT_MS)
        self._panels_timer.start()

    def _stop_timers(self) -> None:
        self._text_timer.stop()
        self._panels_timer.stop()

    @Slot()
    def _on_text_due(self) -> None:
        if not self._is_ending and self._take_events(APPLY_S):
            begun_s = time.thread_time()
            self._show_news()
            # Without line breaks, all of a text is laid out again in each frame.
            wait_ms = round(1000 * (time.thread_time() - begun_s) / TEXT_SHARE) if self._kept is None else 0
            if (interval := max(TEXT_MS, wait_ms)) != self._text_timer.interval():
                self._text_timer.setInterval(interval)
        if self._is_ending:
            self._end_if_whole(APPLY_S)

    def _show_news(self) -> None:
        self._has_news = True
        self._transcript.view.refresh()
        self._show_stage()

    @Slot()
    def _on_panels_due(self) -> None:
        # The text first, so that text, tiles, plots and counts all show the same steps.
        self._on_text_due()
        for panel in self._panels:
            panel.refresh(has_news=self._has_news)
        if self._has_news:
            self._show_status()
        self._has_news = False

    @Slot()
    def _on_run_ended(self) -> None:
        self._is_ending = True
        self._pacing.engine_ended()
        self._end_if_whole(APPLY_S)

    def _end_if_whole(self, most_s: float) -> None:
        """Show that the run is over once all its events are applied; the last ones may be thousands."""
        if self._take_events(most_s):
            self._show_news()
        if self._controller.has_events or self._pacing.is_behind:
            return
        self._is_ending = False
        self.is_refused, self.upcoming = self.upcoming is not None, None
        self._show_whose()
        self._undim()
        self._stop_timers()
        for panel in self._panels:
            panel.end()
        self._show_status()
        self._has_news = False  # Otherwise the panels' timer would show the status again, over the run's outcome.
        self.run_shown.emit()

    @Slot()
    def _on_engine_ready(self) -> None:
        if self._controller.state is RunState.IDLE and self._kept is None and not self._is_ending:
            self._stop_timers()
            self._take_events()
            self._show_status()

    @Slot(object)
    def _on_state_changed(self, state: RunState) -> None:
        # The end of a run shows its own status.
        if state is not RunState.IDLE:
            self._show_status()

    def _take_events(self, most_s: float = math.inf) -> bool:
        """Apply new events for this long at most; the rest waits for the next frame. True if there were any."""
        is_any, deadline = False, time.perf_counter() + most_s
        for event in self._pacing.due(self._controller.take_events() if self._kept is None else self._kept):
            if self.upcoming is not None:
                if isinstance(event, RunStarted):
                    self.kept_title, self._is_paced = "", False
                    self._replace(self.upcoming)
                elif not isinstance(event, StageChanged):
                    continue  # The end of a run that never started: the one on screen stays as it is.
            self._run.apply(event)
            is_any = True
            if isinstance(event, StepsCounted):  # The kinds of tokens change: redraw everything.
                self._transcript.playback.selection.clear()
                self._transcript.begin(self._run.tokens)
                for panel in self._panels:
                    panel.begin()
            if isinstance(event, Finished) and self._run.tokens.steps is not self._run.steps:
                self._transcript.view.restyle()  # A stop text was cut from what is shown.
            if isinstance(event, RunStarted) and self._kept is None:
                self.place = _place(self._run)
                self.run_begun.emit()
            if isinstance(event, BaselineStep) and len(self._run.baseline_steps) == 1:
                self.baseline_begun.emit()
            if time.perf_counter() > deadline:
                return is_any
        if self._kept is not None and not self._pacing.is_behind:
            self._kept, self._is_ending = None, True
        return is_any

    def _show_whose(self) -> None:
        """Say above the text whose it is, if it could be taken for that of the user's last run."""
        run, whose = self._run, ""
        # While it is shown at its pace, the introduction's bar and settings say so.
        if self._is_paced and self._kept is None and run.request is not None:
            whose = f"{self.kept_title} run: {short_name(run.request.target)}, on another machine."
        elif self.is_refused and run.started is not None:
            whose = OLDER.format(f"the kept run '{self.kept_title}'" if self.kept_title else "the previous run")
        self._transcript.show_whose(whose)
        self.previous_shown.emit((self.upcoming is not None or self.is_refused) and not self.kept_title)

    def _show_stage(self) -> None:
        run, state = self._run, self._controller.state
        (whole, short), is_idle = run.outcome, state is RunState.IDLE and not self._is_ending
        if state is RunState.STOPPING:
            stage = "Stopping…"
        elif state is RunState.PAUSED and run.prefill is not None and self.upcoming is None:
            number = len(run.steps) + 1
            stage = f"Step {number} drafted, not verified" if run.tokens.pending else f"Paused before step {number}"
        elif self._pacing.is_behind and self.upcoming is None:
            pace = f"Shown at {self._pacing.tokens_per_second:g} tokens/s, measured at full speed"
            if state is RunState.IDLE and not self.kept_title:
                pace = f"The run is done; its text is shown at {self._pacing.tokens_per_second:g} tokens/s"
            stage = "Paused" if self._pacing.is_paused else f"{self.kept_title} · {pace}" if self.kept_title else pace
        elif is_idle:
            outcome = NOT_STARTED if self.is_refused else " · ".join(filter(None, (whole, _advice(run))))
            stage = run.stage or outcome or ("Not run" if run.request is not None else "Ready")
            if self.kept_title and not self.is_refused:
                name = self.kept_title if self._is_paced else f"Kept run '{self.kept_title}'"
                stage = f"Opening '{self.kept_title}'…" if self._kept else f"{name} · {stage}"
        else:
            is_generating = run.started is not None and self.upcoming is None
            stage = run.stage or ("Generating…" if is_generating else "Preparing…")
        self._status.stage.setText(stage)
        if self.is_refused:
            short = NOT_STARTED
        if not is_idle or self.kept_title or run.stage:
            short = ""
        # The bar of the introduction also says that its run is recorded.
        self._status.stage.set_short(stage.removeprefix(f"{self.kept_title} · ") if self._is_paced else short)

    def _show_status(self) -> None:
        self._show_stage()
        run, is_idle = self._run, self._controller.state is RunState.IDLE and not self._is_ending
        self._status.place.setText(_place(run))
        self._status.lossy.setVisible(run.is_lossy)
        is_counted = run.request is not None and self.upcoming is None and not self.is_refused
        wanted = run.request.max_new_tokens if run.request is not None and is_counted else 0
        is_baseline = bool(run.baseline_steps) and run.summary is None
        tokens = run.baseline.sums.tokens if is_baseline else run.num_tokens
        count = f"{'baseline: ' if is_baseline else ''}{tokens:,} of {wanted:,} tokens"
        self._status.count.setText(count if wanted else "")
        if self.upcoming is not None:
            show_share(self._status.bar, None)
        elif self.is_refused or (is_idle and run.summary is None and self._kept is None):
            show_share(self._status.bar, None if run.stage else 0.0)
        else:
            # What the count beside it says, also after an early end; nothing can be counted before a run has started.
            has_count = run.started is not None or run.summary is not None
            show_share(self._status.bar, min(1.0, tokens / max(1, wanted)) if has_count else None)


def _advice(run: RunView) -> str:
    if run.summary is None or run.summary.source is None or run.started is None:
        return ""
    from core.engines.session import advice  # Late: most runs need no HTTP.

    return advice(run.started.config, run.summary, run.counts.sums.sources)


def _place(run: RunView) -> str:
    if run.started is None:
        return ""
    environment, config = run.started.environment, run.started.config
    if isinstance(engine := config.get("engine"), dict):
        return " · ".join(filter(None, (server_text(engine), run.source_text)))
    device = environment.get("device_name") or config.get("device")
    return " · ".join(str(part) for part in (device, config.get("dtype")) if part)
