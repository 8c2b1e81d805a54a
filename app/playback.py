"""Step mode: what the playback bar asks for, what it shows, and how text and plots follow one selection."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, Slot

from app.controller import RunController, RunState
from app.menus import Menus
from app.view_models.run_view import RunView
from app.view_models.selection import Place, Selection
from app.widgets.playback_bar import Pace
from app.widgets.step_plot import StepPlot
from app.widgets.transcript_panel import TranscriptPanel


class PlaybackDesk(QObject):
    """Connects the playback bar with the controller, and the transcript with the plots. A panel of the `LiveView`."""

    def __init__(
        self,
        controller: RunController,
        run: RunView,
        selection: Selection,
        transcript: TranscriptPanel,
        menus: Menus,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self.controller = controller
        self.run = run
        self.selection = selection
        self.view = transcript.view
        self.bar = transcript.playback
        self.menus = menus
        self._num_shown = -1
        self.bar.pause_clicked.connect(self._on_pause_wanted)
        self.bar.step_clicked.connect(self._on_step_wanted)
        self.bar.pace_chosen.connect(self._on_pace_chosen)
        self.bar.scrubbed.connect(self._on_scrubbed)
        menus.pause.triggered.connect(self._on_pause_wanted)
        menus.next_step.triggered.connect(self._on_step_wanted)
        controller.state_changed.connect(self._on_state_changed)
        self.view.place_chosen.connect(selection.select)
        self.view.step_pointed.connect(selection.hover)
        selection.changed.connect(self.view.mark)
        selection.hovered.connect(self.view.mark_step)

    def link(self, plots: Iterable[StepPlot]) -> None:
        """Have plots over steps share the selection with the text."""
        for plot in plots:
            plot.step_hovered.connect(self.selection.hover)
            plot.step_clicked.connect(self._on_step_clicked)
            self.selection.changed.connect(plot.mark_place)
            self.selection.hovered.connect(plot.mark_step)

    # --- A panel of the live view ---

    def begin(self) -> None:
        """A run starts."""
        self._show()

    def refresh(self, *, has_news: bool) -> None:
        """A frame: count the steps that have come."""
        if has_news:
            if self.run.baseline_steps and self.controller.state is RunState.PAUSED:
                # The run was stepped to its end. What is measured now is not to be looked at step by step.
                self.controller.resume()
            self._show()

    def end(self) -> None:
        """A run is over, and can be gone through."""
        self._show()

    # --- Intents ---

    @Slot()
    def _on_pause_wanted(self) -> None:
        if not self._can_pause:
            return
        if self.controller.state is RunState.PAUSED:
            self._show_all()
            self.controller.resume()
        else:
            self.controller.pause()

    @Slot()
    def _on_step_wanted(self) -> None:
        if self._can_pause:
            self._show_all()
            self.controller.step_once()

    @Slot(object)
    def _on_pace_chosen(self, pace: Pace) -> None:
        self.controller.set_pace(pace.delay_ms, starts_paused=pace is Pace.STEPWISE)
        if pace is Pace.STEPWISE and self._can_pause:
            self.controller.pause()

    @Slot(int)
    def _on_scrubbed(self, num_steps: int) -> None:
        steps = self.run.steps
        self.view.set_limit(num_steps if num_steps < len(steps) else None)
        self.selection.select(Place(num_steps - 1, 0) if 0 < num_steps <= len(steps) else None)

    @Slot(int)
    def _on_step_clicked(self, step: int) -> None:
        self.selection.select(Place(step, 0))

    @Slot(object)
    def _on_state_changed(self, _state: RunState) -> None:
        self._show()

    # --- Showing ---

    @property
    def _can_pause(self) -> bool:
        return self.controller.state in {RunState.RUNNING, RunState.PAUSED} and not self.run.baseline_steps

    def _show_all(self) -> None:
        """The text as it stands, should a person have gone back in it."""
        self.view.set_limit(None)
        self._num_shown = -1
        self._show()

    def _show(self) -> None:
        state, can_pause = self.controller.state, self._can_pause
        is_paused = state is RunState.PAUSED
        self.bar.show_actions(can_pause=can_pause, is_paused=is_paused)
        self.menus.pause.setText("Resume" if is_paused else "Pause")
        self.menus.pause.setEnabled(can_pause)
        self.menus.next_step.setEnabled(can_pause and is_paused)
        count = len(self.run.steps)
        can_scrub = state in {RunState.IDLE, RunState.PAUSED}
        if count != self._num_shown or not can_scrub:
            # News are shown at the end of the text, wherever a person was in it.
            self.view.set_limit(None)
            self._num_shown = count
            self.bar.show_steps(count, can_scrub=can_scrub)
        else:
            self.bar.slider.setEnabled(can_scrub and count > 0)
