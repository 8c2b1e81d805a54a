"""The window: composes the panels and connects their signals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

from PySide6.QtCore import Qt, QTimer, Signal, Slot
from PySide6.QtGui import QCloseEvent, QFont, QGuiApplication, QIcon, QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QApplication, QDialog, QMainWindow

from app.controller import RunController
from app.dialogs import Dialogs
from app.introduction.guide_bar import RECORDED
from app.introduction.introduction import Introduction
from app.jobs import Jobs
from app.menus import Menus, menu_actions
from app.run.conclusion import ConclusionBar
from app.run.inspector.inspector import InspectorPanel
from app.run.live import LiveView
from app.run.measurements import MeasurementsPanel
from app.run.pacing import Pace
from app.run.plots.step_plot import StepPlot
from app.run.race.race_window import RaceWindow
from app.run.run_view import RunView
from app.run.speed.speed_page import SpeedPage
from app.run.status_strip import StatusStrip
from app.run.text.branches import Branching
from app.run.text.tokens import Selection
from app.run.text.transcript_panel import TranscriptPanel
from app.settings import PAGES, runs_folder
from app.setup.model_library import ModelLibrary
from app.setup.pair import PairForecast
from app.setup.prompt import PromptEditor
from app.setup.run_starter import RunStarter
from app.setup.settings_panel import SettingsPanel
from app.theme import DEFAULT_SCALE, RESOURCES, Appearance, ThemeMode, next_scale, text_scale
from app.tools.check import CheckWindow
from app.tools.commands import CommandPalette
from app.tools.export import Exports
from app.tools.help import Help
from app.tools.models.models import Models
from app.tools.runs.kept import KeptRuns
from app.tools.server import ServerWindow
from app.tools.sweep.window import SweepWindow
from app.widgets.fields import boxed, column
from app.widgets.labels import Banner, SidePanel
from app.widgets.plot_card import save_plots
from app.window_layout import Columns, PageWindow, splitter
from app.window_state import WindowState
from app.worker import OpenSession, open_session
from core.models import catalogue
from core.settings import RunRequest
from core.types import Event

WARM_UP_DELAY_MS = 250
CLOSE_WAIT_MS = 200
PATIENCE_MS = 5_000
"""How long a closed window waits for a library that does not return, such as a forward that hangs."""


class MainWindow(QMainWindow):
    """Outrider's window. Building it loads no model and imports no torch.

    Signals:
        lingers: the window was closed, and is hidden, but a forward, a load or a job has not ended yet.
    """

    lingers = Signal()

    def __init__(self, *, open_session: OpenSession = open_session, dialogs: Dialogs | None = None) -> None:
        super().__init__()
        self._dialogs = dialogs or Dialogs()
        self.state = WindowState(self)
        self._was_shown = False
        self._is_leaving = False
        self.jobs = Jobs(self)
        self.appearance = Appearance(self.state.settings.theme, self.state.settings.text_scale, self)
        self.setFont(QFont())  # Resolved anew: else this window, and all in it, keeps the font from before.
        self.run_view = RunView()
        self.controller = RunController(open_session, self)
        library = ModelLibrary(catalogue.embedded_models())
        self.controls = SettingsPanel(library, self.jobs)
        self.models = Models(self.jobs, self.controls.models, self.controller, self._dialogs, self)
        self.forecast = PairForecast(self.jobs, self.controller, self.controls.models.verdict, self)
        self.prompt = PromptEditor(self.controls, self.jobs)
        self.menus = Menus(self)
        self.selection = Selection(self)
        self.transcript = TranscriptPanel(self.controller, self.run_view, self.selection, self.menus)
        self.playback = self.transcript.playback
        self.measurements = MeasurementsPanel(self.run_view)
        self.inspector = InspectorPanel(self.run_view, self.selection)
        self.speed = SpeedPage(self.run_view, self.jobs)
        self.race = RaceWindow(self.run_view, self)
        self.side = SidePanel()
        self.banner = Banner()
        self.status = StatusStrip()
        self.conclusion = ConclusionBar(self.run_view, lambda: self.playback.is_slowed)
        self.introduction = Introduction(
            self.controller,
            self.run_view,
            self.playback,
            self.models,
            self.controls,
            self.prompt,
            self.menus,
            self.jobs,
            self,
        )
        pages = (self.measurements, self.inspector, self.speed, self.race)
        self.live = LiveView(
            self.controller,
            self.run_view,
            self.transcript,
            self.status,
            (*pages, self.playback, self.conclusion, self.introduction),
            dimmed=(self.transcript.view, self.conclusion),
            parent=self,
        )
        self.help = Help(self, self.menus, self.run_view, self.live, self._dialogs, self.jobs)
        self.runs = KeptRuns(runs_folder(), self.jobs, self.controller, self.live, self.run_view, self._dialogs, self)
        self.exports = Exports(
            self,
            self.menus,
            self.run_view,
            self.controls,
            self.runs.store,
            self.jobs,
            self._dialogs,
            self.banner,
            self.status,
        )
        cards = (*self.measurements.cards, *self.speed.cards, *self.race.cards)
        paces = {f"Pace: {pace.title}": partial(self.playback.set_pace, pace) for pace in Pace}
        menus, stop = self.menus, self.prompt.stop_button
        self.commands = CommandPalette(
            self,
            self.prompt.presets_button.menu(),
            lambda action: action is menus.commands or (action is menus.stop and not stop.isEnabled()),
            paces,
        )
        save_plots(
            cards,
            self,
            self._dialogs,
            self.jobs,
            saved=self.status.stage.setText,
            failed=self.banner.show_sentence,
            prefix=self.run_view.file_prefix,
        )
        self.starter = RunStarter(self, self._dialogs)
        self.branches = Branching(self, self.playback, self.live, self._dialogs, self.starter.start)
        self._lay_out()
        self.playback.link(self.findChildren(StepPlot))
        self._connect()
        self.state.restore()
        self._on_previous_toggled()
        self._on_page_chosen()
        self.state.saving.stop()  # Nothing is the user's change yet.
        self._on_settings_changed()

    @cached_property
    def check(self) -> CheckWindow:
        """Checks exactness; made when it is first opened, as the two below."""
        return CheckWindow(self, self.controller, self.controls, self.jobs, self._dialogs)

    @cached_property
    def sweep(self) -> SweepWindow:
        """Measures a grid of settings."""
        return SweepWindow(self, self.controller, self.controls, self.prompt, self.runs, self.jobs, self._dialogs)

    @cached_property
    def server(self) -> ServerWindow:
        """Follows the chosen server."""
        return ServerWindow(self, self.controller, self.controls.engine, self.jobs, self._dialogs)

    def _open_tool(self, name: str, _checked: bool = False) -> None:
        getattr(self, name).open()

    def _lay_out(self) -> None:
        self.setWindowTitle("Outrider")
        self.setObjectName("mainWindow")
        self.setWindowIcon(QIcon(str(RESOURCES / "icons" / "outrider.svg")))
        # Also where a folded prompt has no room for its button.
        presets = self.prompt.presets_button.menu()
        presets.setTitle("Presets")
        self.menus.file.insertMenu(self.menus.models, presets)
        self.text_splitter = splitter(Qt.Orientation.Vertical, "textSplitter", (self.prompt, 0), (self.transcript, 1))
        self.main_splitter = splitter(
            Qt.Orientation.Horizontal, "mainSplitter", (self.controls, 0), (self.text_splitter, 3), (self.side, 2)
        )
        for title, page, help_text in zip(
            PAGES,
            (self.measurements, self.inspector, self.speed),
            (
                "Key numbers, acceptance and latency of the current run.",
                "How the selected token was chosen.",
                "Whether drafting pays here, what limits it, and what to change.",
            ),
            strict=True,
        ):
            self.side.add_page(title, page, f"{help_text} A double click opens it in its own window.")
        body = column(self.banner, self.introduction.bar, self.conclusion, (self.main_splitter, 1))
        body.setContentsMargins(16, 12, 16, 12)
        self.setCentralWidget(boxed(column((body, 1), self.status, spacing=0)))
        self.columns = Columns(self, self.main_splitter, self.controls, self.text_splitter, self.side)
        for own in self.columns.windows.values():
            own.addActions([action for _, actions in menu_actions(self.menuBar()) for action in actions])

    def _connect(self) -> None:
        menus, status = self.menus, self.status
        controller = self.controller
        for held in (controller.state_changed, controller.task_began, controller.freed):
            held.connect(self._on_settings_changed)
        for changed in (self.controls.changed, self.prompt.edit.textChanged):
            changed.connect(self._on_settings_changed)
            changed.connect(self.state.saving.start)
        self.controls.advanced.button.toggled.connect(self.state.saving.start)
        self.runs.failed.connect(self.banner.show_sentence)
        self.banner.close_button.clicked.connect(self._on_settings_changed)
        bar = self.introduction.bar
        # The text, where Space pauses, gets their focus. Qt would choose the next control.
        for hidden in (bar.go_button, bar.leave_button, self.playback.full_button):
            hidden.clicked.connect(self.transcript.view.setFocus)
        for mended in (self.controller.freed, self.models.mended):
            mended.connect(self.banner.retract)
        for wanted in (self.prompt.stop_button.clicked, menus.stop.triggered):
            wanted.connect(self.controller.stop)
            # The engine is ahead of a slowed text, so there may be nothing left to stop.
            wanted.connect(self.live.finish)
        status.download.clicked.connect(self.models.browse)
        self.models.model_opened.connect(self.state.remember_model)
        self.models.line_changed.connect(status.show_download)
        menus.models.triggered.connect(self.models.open)
        menus.show_reading.toggled.connect(self.prompt.reading_button.setChecked)
        self.prompt.reading_button.toggled.connect(menus.show_reading.setChecked)
        self.transcript.ghosts_button.toggled.connect(menus.show_ghosts.setChecked)
        menus.show_ghosts.toggled.connect(self.transcript.set_ghosts_shown)
        self.transcript.colors_chosen.connect(self.state.saving.start)
        menus.show_previous.toggled.connect(self._on_previous_toggled)
        self.side.currentChanged.connect(self._on_page_chosen)
        # Only on a click: moving by keys, or along a plot, keeps the current page beside the text.
        self.transcript.view.place_clicked.connect(self._on_place_clicked)
        self.live.run_replaced.connect(self._on_run_begun)
        self.live.run_shown.connect(self._on_run_shown)
        for changed in (self.live.baseline_begun, self.controller.run_requested, self.playback.pace_changed):
            changed.connect(self._on_settings_changed)
        self.live.previous_shown.connect(self.race.note_previous)
        for wanted in (menus.race.triggered, self.speed.race_button.clicked):
            wanted.connect(self.race.open)
        for action, page in zip(menus.pages, (self.measurements, self.inspector, self.speed), strict=True):
            action.triggered.connect(partial(self.columns.show_page, page))
        menus.apart.triggered.connect(self._on_apart_wanted)
        self.side.tabBarDoubleClicked.connect(lambda index: self.columns.take_out(self.side.widget(index)))
        menus.runs.triggered.connect(self.runs.open)
        self.branches.undone.connect(self.starter.show_live_settings)
        self.introduction.failed.connect(self.banner.show_sentence)
        self.introduction.replay_wanted.connect(self._on_introduction_read)
        self.introduction.race_wanted.connect(self.race.open)
        self.introduction.race_wanted.connect(self.race.clock.play_slowed)
        menus.commands.triggered.connect(self.commands.open)
        for name in ("check", "sweep", "server"):
            getattr(menus, name).triggered.connect(partial(self._open_tool, name))
        self.runs.reported.connect(status.stage.setText)
        self.runs.opened.connect(self.banner.dismiss)
        menus.themes.triggered.connect(lambda action: self.appearance.set(ThemeMode(action.data()), text_scale()))
        menus.larger.triggered.connect(lambda: self._scale_text(next_scale(text_scale(), 1)))
        menus.smaller.triggered.connect(lambda: self._scale_text(next_scale(text_scale(), -1)))
        menus.default_size.triggered.connect(lambda: self._scale_text(DEFAULT_SCALE))
        for closed in (menus.quit.triggered, self.controller.closed):
            closed.connect(self.close)
        self.jobs.became_idle.connect(self._on_jobs_done)
        application = QGuiApplication.instance()
        if application is not None:
            application.aboutToQuit.connect(self._on_about_to_quit)

    # --- Runs ---

    @Slot()
    def _on_run_begun(self) -> None:
        self.selection.clear()
        self.menus.export.setEnabled(False)
        self.prompt.set_folded(is_folded=True)
        self._on_settings_changed()

    @Slot(object, object)
    def _on_introduction_read(self, request: RunRequest, events: Iterator[Event]) -> None:
        # What a first start has to say about the settings file is not about a run.
        self.banner.dismiss_if_changed()
        self.live.show_kept(request, events, RECORDED, paced=True)
        self.state.saving.start()

    @property
    def _shows_refusal(self) -> bool:
        """Whether the last run was refused, and the banner says why: Run again would repeat the one before."""
        return self.live.is_refused and self.banner.isVisibleTo(self)

    @Slot()
    def _on_run_shown(self) -> None:
        if not self.live.kept_title:
            self.forecast.note_run(self.run_view)
        self.menus.export.setEnabled(self.run_view.started is not None)
        self._on_settings_changed()

    @Slot()
    def _on_settings_changed(self) -> None:
        problem, focused = self.controls.problem(self.prompt.text()), self.focusWidget()
        # While another run is on its way, the baseline on screen is the previous one's.
        is_baseline = bool(self.run_view.baseline_steps) and self.live.upcoming is None
        request = self.controller.request
        self.prompt.show_state(
            self.controller.state,
            problem,
            is_slowed=self.live.is_slowed,
            is_ahead=self.playback.pacing.tokens_per_second > 0,
            is_baseline=is_baseline,
            is_served=request is not None and bool(request.engine),
            takes_k=self.starter.takes_k,
            busy=self.controller.busy_sentence(),
        )
        for advice in (self.speed, self.conclusion.advice):
            advice.allow_repeat(is_allowed=not self._shows_refusal)
        if focused in {self.prompt.run_button, self.prompt.stop_button} and not focused.isEnabled():
            self.transcript.view.setFocus()
        self.forecast.want(self.controls.pair_question(self.prompt.text()))

    @Slot()
    def _on_page_chosen(self) -> None:
        is_chosen = self.side.currentWidget() is self.inspector
        self.controller.set_inspected(is_chosen or self.columns.is_apart(self.inspector))
        self.state.saving.start()

    @Slot()
    def _on_place_clicked(self) -> None:
        # In its own window it is on screen already, and the text keeps the keyboard.
        if not self.columns.is_apart(self.inspector):
            self.side.setCurrentWidget(self.inspector)

    @Slot()
    def _on_apart_wanted(self) -> None:
        # The keys are heard in a page's own window, too, which they close.
        active = QApplication.activeWindow()
        if isinstance(active, PageWindow):
            active.close()
        elif (page := self.side.currentWidget()) is not None:
            self.columns.take_out(page)

    @Slot()
    def _on_previous_toggled(self) -> None:
        for plot in self.findChildren(StepPlot):
            plot.show_previous(self.menus.show_previous.isChecked())

    def _scale_text(self, scale: float) -> None:
        self.menus.show_scale(scale)
        self.appearance.set(self.appearance.mode, scale)
        self.columns.fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show as many columns, and lines of a folded prompt, as fit."""
        super().resizeEvent(event)
        self.columns.arrange()
        self.prompt.restyle()

    # --- Opening and closing ---

    def setVisible(self, visible: bool) -> None:
        """Apply the style sheet before the window is laid out for the first time."""
        if visible and not self._was_shown:
            self.appearance.set(self.appearance.mode, text_scale())
        super().setVisible(visible)

    def showEvent(self, event: QShowEvent) -> None:
        """Import the engine once the window has been drawn."""
        super().showEvent(event)
        for page, own in self.columns.windows.items():
            own.setVisible(self.columns.is_apart(page))
        if not self._was_shown:
            self._was_shown = True
            self.columns.remember()
            QTimer.singleShot(WARM_UP_DELAY_MS, self, self._on_first_shown)

    @Slot()
    def _on_first_shown(self) -> None:
        self.introduction.start_if_new()
        self.live.watch_warm_up()
        self.controller.warm_up()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Space pauses or resumes the run if no field or button uses it."""
        is_plain = event.modifiers() == Qt.KeyboardModifier.NoModifier and not event.isAutoRepeat()
        if is_plain and event.key() == Qt.Key.Key_Space:
            self.menus.pause.trigger()
        else:
            super().keyPressEvent(event)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Hide at once, and close when the threads have ended."""
        if not self._is_leaving:
            self._is_leaving = True
            self.state.save()
            for dialog in self.findChildren(QDialog):
                dialog.close()
            self.runs.close()
            self.race.close()
            for own in self.columns.windows.values():
                own.hide()
            self.controller.begin_close()
            self.jobs.close()
        if (self.controller.is_closed or self.controller.join(CLOSE_WAIT_MS)) and self.jobs.is_idle:
            event.accept()
        else:
            # A forward or a load is still running; `closed` calls again when it is over.
            self.hide()
            event.ignore()
            self.lingers.emit()

    @Slot()
    def _on_jobs_done(self) -> None:
        if self._is_leaving:
            self.close()

    @Slot()
    def _on_about_to_quit(self) -> None:
        # The event loop may end without asking the window, such as at the end of a desktop session.
        if not self._is_leaving:
            self.state.save()
        self.controller.begin_close()
        self.controller.join(PATIENCE_MS)
        self.jobs.finish(PATIENCE_MS)
