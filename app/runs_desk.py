"""Everything about kept runs that goes on behind the panels: the list, what is opened, replayed, compared, deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QWidget

from app.controller import RunController, RunState
from app.dialogs import Dialogs
from app.live_view import LiveView
from app.plot_desk import PlotDesk
from app.run_questions import OpenedRun, Replay, RunsFound
from app.run_reader_thread import RunReaderThread
from app.services import Services
from app.theme import LIGHT, Theme
from app.view_models.comparison import Comparison
from app.view_models.run_view import COMPLETE, RunView
from app.widgets.runs_panel import RunsWindow
from app.window_layout import bring_forward
from core.runs import KeptRun, KeptState
from core.types import RunRequest

BUSY = "A run is going. Stop it, or wait for its end, before you open or replay another."


class RunsDesk(QObject):
    """Connects the reader's thread, the window of kept runs, and the view of the run at hand.

    Signals:
        failed: one sentence for a person, where no window of runs shows it.
        told: one line about what came of something.
        opened: a kept run is about to be shown in the main window; with any sentences about its log.
        replay_wanted: a `RunRequest` to start.
    """

    failed = Signal(str)
    told = Signal(str)
    opened = Signal()
    replay_wanted = Signal(object)

    def __init__(
        self,
        services: Services,
        controller: RunController,
        live: LiveView,
        run: RunView,
        dialogs: Dialogs,
        parent: QWidget,
    ) -> None:
        super().__init__(parent)
        self._services = services
        self._controller = controller
        self._live = live
        self._run = run
        self._dialogs = dialogs
        self._parent = parent
        self._theme = LIGHT
        self._found = RunsFound((), is_complete=False)
        self._deleted: list[tuple[str, ...]] = []
        self._replaying: Replay | None = None
        self.window: RunsWindow | None = None
        self._plots: PlotDesk | None = None
        self.reader = RunReaderThread(services, self)
        self._connect()

    def _connect(self) -> None:
        self.reader.found.connect(self._on_found)
        self.reader.opened.connect(self._on_opened)
        self.reader.replay_ready.connect(self._on_replay_ready)
        self.reader.compared.connect(self._on_compared)
        self.reader.changed.connect(self.refresh)
        self.reader.deleted.connect(self._on_deleted)
        self.reader.restored.connect(self._on_restored)
        self.reader.exported.connect(self._on_saved)
        self.reader.failed.connect(self._tell)
        self._controller.engine_ready.connect(self.reader.look_back)
        self.reader.cut_off.connect(self._on_cut_off)
        self._live.run_shown.connect(self._on_run_shown)
        self._live.run_begun.connect(self.refresh)

    # --- The window ---

    @Slot()
    def open(self) -> None:
        """Show the kept runs."""
        if self.window is None:
            self.window = self._make_window()
            self.set_theme(self._theme)
        bring_forward(self.window)
        self.window.table.setFocus()
        self.refresh()

    def close(self) -> None:
        """Close the window."""
        if self.window is not None:
            self.window.close()

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        if self.window is not None:
            self.window.set_theme(theme)
        if self._plots is not None:
            self._plots.set_theme(theme)

    @Slot(str)
    def _on_saved(self, sentence: str) -> None:
        # Where it was asked for, and in the main window, since this one may be closed by now.
        if self.window is not None:
            self.window.say(sentence)
        self.told.emit(sentence)

    @Slot()
    def refresh(self) -> None:
        """List the runs anew, if anyone looks."""
        if self.window is not None and self.window.isVisible():
            is_going = self._controller.state is not RunState.IDLE and self._run.started is not None
            self.reader.find(self._run.started.run_id if is_going and self._run.started is not None else "")

    def _make_window(self) -> RunsWindow:
        window = RunsWindow(_shown(self._services.runs_folder()), self._parent)
        window.compare_page.plots_made.connect(self._on_plots_made)
        window.open_requested.connect(self.open_run)
        window.replay_requested.connect(self._on_replay_requested)
        window.export_requested.connect(self._on_export_requested)
        window.compare_page.export_requested.connect(self._on_comparison_wanted)
        window.folder_requested.connect(self._on_folder_requested)
        window.compare_requested.connect(self.reader.compare)
        window.rename_requested.connect(self.reader.rename)
        window.delete_requested.connect(self._on_delete_requested)
        window.restore_requested.connect(self._on_restore_requested)
        return window

    @Slot()
    def _on_plots_made(self) -> None:
        assert self.window is not None
        self._plots = PlotDesk(self.window, self._dialogs, RunView(), self.reader, self.window.compare_page.cards)
        self._plots.set_theme(self._theme)
        self._plots.failed.connect(self.window.banner.show_sentence)
        self._plots.saved.connect(self._on_saved)

    @Slot(object)
    def _on_found(self, found: RunsFound) -> None:
        # A list that comes anew replaces the one on screen when it is complete, not bit by bit.
        if found.is_complete or not self._found.is_complete:
            self._found = found
            if self.window is not None:
                self.window.show_runs(found.runs, is_complete=found.is_complete)

    @Slot(str)
    def _tell(self, sentence: str) -> None:
        if self.window is not None and self.window.isVisible():
            self.window.banner.show_sentence(sentence)
        else:
            self.failed.emit(sentence)

    @Slot(object)
    def _on_compared(self, comparison: Comparison) -> None:
        if self.window is not None:
            self.window.show_comparison(comparison)

    @Slot(object)
    def _on_cut_off(self, run: KeptRun) -> None:
        if self._run.request is None:
            self.told.emit(f"The last run, {run.title!r}, was cut off. It is kept under File, Runs (Ctrl+O)")

    # --- Opening ---

    def busy_sentence(self) -> str:
        """What keeps a run from being opened; empty where nothing does."""
        return BUSY if self._controller.state is not RunState.IDLE else ""

    def _is_busy(self) -> bool:
        if sentence := self.busy_sentence():
            self._tell(sentence)
            return True
        if self.window is not None:
            self.window.banner.dismiss()
        return False

    @Slot(object)
    def open_run(self, run: KeptRun) -> None:
        """Show a run in the main window, wherever its log is kept."""
        if not self._is_busy():
            self.reader.open(run)

    @Slot(object)
    def _on_opened(self, opened: OpenedRun) -> None:
        self._live.finish()
        if self._is_busy():
            return
        self.opened.emit()
        self._live.show_kept(opened.request, opened.events, opened.run.title)
        # That a run was cut off is told by its state already.
        if opened.problems and (opened.run.state is not KeptState.CUT_OFF or len(opened.problems) > 1):
            self._tell(opened.problems[0])

    # --- Replaying ---

    @Slot(object)
    def _on_replay_requested(self, run: KeptRun) -> None:
        if not self._is_busy():
            self.reader.prepare_replay(run)

    @Slot(object)
    def _on_replay_ready(self, replay: Replay) -> None:
        if self._is_busy():
            return
        # The window keeps the evidence of all its runs; it stands outside everything timed and changes no text.
        self.replay_wanted.emit(replace(replay.request, inspect=True))
        # The run has begun if nothing was in its way.
        self._replaying = replay if self._controller.state is not RunState.IDLE else None

    @Slot()
    def _on_run_shown(self) -> None:
        replay, self._replaying = self._replaying, None
        if replay is not None and (sentence := self._verdict(replay)):
            self.told.emit(sentence)
        self.refresh()

    def _verdict(self, replay: Replay) -> str:
        """How the text of a replay compares with that of the run; empty where there is nothing to compare."""
        summary, title = self._run.summary, replay.run.title
        if summary is None or summary.finish_reason not in COMPLETE or replay.text is None:
            return ""
        if summary.text == replay.text:
            return f"Replayed {title!r}: the same text, character for character"
        return f"Replayed {title!r}: the text differs{_reason(replay.request)}"

    # --- Deleting ---

    @Slot(object)
    def _on_delete_requested(self, run_ids: tuple[str, ...]) -> None:
        started = self._run.started
        if self._controller.state is not RunState.IDLE and started is not None and started.run_id in run_ids:
            self._tell("This run is going. Stop it, or wait for its end, before you delete it.")
        elif run_ids:
            self.reader.delete(run_ids)

    @Slot(object)
    def _on_deleted(self, run_ids: tuple[str, ...]) -> None:
        self._deleted.append(run_ids)
        self._show_undo()

    @Slot()
    def _on_restore_requested(self) -> None:
        if self._deleted:
            self.reader.restore(self._deleted.pop())
            self._show_undo()

    @Slot(object)
    def _on_restored(self, _run_ids: tuple[str, ...]) -> None:
        self._show_undo()

    def _show_undo(self) -> None:
        if self.window is not None:
            self.window.show_undo(len(self._deleted[-1]) if self._deleted else 0)

    # --- Taking away ---

    @Slot(object)
    def _on_export_requested(self, run: KeptRun) -> None:
        if path := self._dialogs.ask_export_path(self.window or self._parent, f"{run.id}.jsonl"):
            self.reader.export((run.id,), path)

    @Slot(object)
    def _on_comparison_wanted(self, run_ids: tuple[str, ...]) -> None:
        if path := self._dialogs.ask_comparison_path(self.window or self._parent, "comparison.html"):
            self.reader.export(run_ids, path)

    @Slot(object)
    def _on_folder_requested(self, _run: KeptRun | None) -> None:
        folder = self._services.runs_folder()
        if not folder.is_dir():
            self._tell(f"There is no folder yet. It will be {str(folder)!r}.")
        elif not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
            self._tell(f"This desktop opens no folders. It is {str(folder)!r}.")


def _reason(request: RunRequest) -> str:
    if request.num_draft_tokens is None:
        policy = str(request.length_policy).capitalize()
        return f". With {policy}, K follows this machine's timing, and the text with it"
    return ". A model, a version, or a setting that was moved during the run is not the same"


def _shown(folder: Path) -> str:
    try:
        return str(Path("~") / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(folder)
