"""Everything about kept runs that goes on behind the panels: the list, what is opened, replayed, compared, deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, Qt, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLineEdit, QStackedWidget, QToolButton, QVBoxLayout, QWidget

from app.controller import RunController, RunState
from app.dialogs import Dialogs
from app.jobs import Jobs
from app.run.live import LiveView
from app.run.run_view import COMPLETE, RunView
from app.services import Services
from app.setup.model_library import bytes_text
from app.theme import LIGHT, Theme
from app.tools.runs.compare import ComparePage
from app.tools.runs.comparison import MAX_RUNS, Comparison
from app.tools.runs.reader import OpenedRun, Replay, RunReaderThread, RunsFound
from app.tools.runs.table import RunsTable
from app.tools.tool_window import push_button
from app.widgets.fields import describe, table_card, text_label
from app.widgets.labels import Banner
from app.widgets.plot_card import PlotDesk
from app.window_layout import bring_forward
from core.runlog.store import KeptRun, KeptState
from core.types import RunRequest

LIST, COMPARE = 0, 1
SIDE = 16
"""Pixels at the left and at the right."""
NO_MATCH = "No kept run has these words."
NO_RUN = "No run is kept yet. Every run that you start is kept here by itself, as it goes."
SEARCH_HELP = (
    "Words in the name, the prompt or the models, and settings such as K=4, temperature=0, target=llama, "
    "speedup>1.5 or state=failed (Ctrl+F)"
)


class RunsWindow(QDialog):
    """Signals:
    open_requested, replay_requested, export_requested, folder_requested: a `KeptRun`.
    compare_requested: several.
    rename_requested: an id and a name.
    delete_requested: ids; restore_requested: the deletion is to be undone.
    """

    open_requested = Signal(object)
    replay_requested = Signal(object)
    export_requested = Signal(object)
    folder_requested = Signal(object)
    compare_requested = Signal(object)
    rename_requested = Signal(str, str)
    delete_requested = Signal(object)
    restore_requested = Signal()

    def __init__(self, place: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._place = place
        self._runs: tuple[KeptRun, ...] = ()
        self._is_complete = False
        self.setObjectName("runsWindow")
        self.setWindowTitle("Runs")
        self.setModal(False)
        self.search = QLineEdit()
        self.search.setObjectName("runsSearch")
        self.search.setPlaceholderText("Search: words, K=4, temperature=0, speedup>1.5")
        self.search.setClearButtonEnabled(True)
        describe(self.search, "Search the runs", SEARCH_HELP)
        self.banner = Banner()
        self.table = RunsTable()
        self.empty = text_label("", "hint")
        self.empty.setObjectName("runsEmpty")
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.open_button = push_button("Open", "runOpenButton", "Show this run in the main window (Enter)")
        self.replay_button = push_button("Replay", "runReplayButton", "Run it again: same models, settings and seed")
        self.compare_button = push_button(
            "Compare", "runCompareButton", f"Hold 2 to {MAX_RUNS} selected runs side by side"
        )
        self.rename_button = push_button("Rename", "runRenameButton", "Give this run a name (F2)")
        self.export_button = push_button("Export…", "runExportButton", "Write this run elsewhere, as a log or a table")
        self.folder_button = push_button(
            "Show in folder", "runFolderButton", "Open the folder that the runs are kept in"
        )
        self.delete_button = push_button(
            "Delete", "runDeleteButton", "Delete the selected runs (Del); this can be undone"
        )
        self.undo_line = QWidget()
        self.undo_line.setObjectName("undoLine")
        self.undo_text = text_label("", "hint")
        self.undo_button = QToolButton()
        self.undo_button.setObjectName("runUndoButton")
        self.undo_button.setText("Undo")
        self.undo_button.setProperty("role", "link")
        self.undo_button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        describe(self.undo_button, "Undo", "Bring the deleted runs back (Ctrl+Z)")
        self.undo_line.hide()
        self.foot = text_label("", "hint")
        self.foot.setObjectName("runsFoot")
        self.foot.setMinimumWidth(1)  # or a long sentence would keep the window from being made smaller
        self.compare_page = ComparePage()
        self._lay_out()
        self._connect()
        self._show_list()
        self._show_actions()

    def _lay_out(self) -> None:
        self._list = QStackedWidget()
        self._list.addWidget(self.table)
        self._list.addWidget(self.empty)
        undo = QHBoxLayout(self.undo_line)
        undo.setContentsMargins(0, 0, 0, 0)
        undo.setSpacing(2)
        undo.addWidget(self.undo_text)
        undo.addWidget(self.undo_button)
        # In a row that is there anyway, so that the list keeps its height.
        last = QHBoxLayout()
        last.addWidget(self.foot, 1)
        last.addWidget(self.undo_line)
        actions = QHBoxLayout()
        actions.setSpacing(8)
        for button in (self.open_button, self.replay_button, self.compare_button):
            actions.addWidget(button)
        actions.addStretch(1)
        for button in (self.rename_button, self.export_button, self.folder_button, self.delete_button):
            actions.addWidget(button)
        page = QWidget()
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(8)
        column.addWidget(self.search)
        column.addWidget(table_card(self._list), 1)
        column.addLayout(actions)
        self.pages = QStackedWidget()
        self.pages.addWidget(page)
        self.pages.addWidget(self.compare_page)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SIDE, 12, SIDE, 12)
        layout.setSpacing(8)
        layout.addWidget(self.banner)
        layout.addWidget(self.pages, 1)
        layout.addLayout(last)
        self.setMinimumSize(980, 520)
        self.resize(1200, 720)

    def _connect(self) -> None:
        self.search.textChanged.connect(self._on_searched)
        self.table.selected.connect(self._show_actions)
        self.table.activated.connect(self._on_open)
        self.table.rename_requested.connect(self.rename_requested)
        self.open_button.clicked.connect(self._on_open)
        self.replay_button.clicked.connect(self._on_replay)
        self.compare_button.clicked.connect(self._on_compare)
        self.rename_button.clicked.connect(self._on_rename)
        self.export_button.clicked.connect(self._on_export)
        self.folder_button.clicked.connect(self._on_folder)
        self.delete_button.clicked.connect(self._on_delete)
        self.undo_button.clicked.connect(self.restore_requested)
        self.compare_page.back_requested.connect(self.show_list)
        QShortcut(QKeySequence.StandardKey.Find, self).activated.connect(self._on_find)
        for keys, widget, button in (
            (QKeySequence.StandardKey.Delete, self.table, self.delete_button),
            (QKeySequence.StandardKey.Undo, self.table, self.undo_button),
            (QKeySequence("F2"), self.table, self.rename_button),
        ):
            shortcut = QShortcut(keys, widget)
            shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(button.click)

    def showEvent(self, event: QShowEvent) -> None:
        """Make what nobody sees at first once that is there that everybody does."""
        super().showEvent(event)
        self.compare_page.make_plots_soon()

    # --- What is shown ---

    def show_runs(self, runs: tuple[KeptRun, ...], *, is_complete: bool) -> None:
        """Show these runs; more may come."""
        is_first = bool(runs) and not self._runs
        self._runs, self._is_complete = runs, is_complete
        self.table.show_runs(runs)
        self._show_list()
        if is_first and not self.search.text() and self.pages.currentIndex() == LIST:
            self.table.setFocus()
        self._show_actions()

    def show_comparison(self, comparison: Comparison) -> None:
        """Show runs side by side."""
        self.compare_page.show_comparison(comparison)
        self.pages.setCurrentIndex(COMPARE)
        self.setWindowTitle(f"Runs: {len(comparison.runs)} compared")
        self.compare_page.table.setFocus()

    @Slot()
    def show_list(self) -> None:
        """Show the list again."""
        self.pages.setCurrentIndex(LIST)
        self.setWindowTitle("Runs")
        self._show_list()
        self.table.setFocus()

    def show_undo(self, count: int) -> None:
        """Offer to bring back what was deleted; 0: there is nothing to bring back."""
        self.undo_text.setText(f"Deleted {count:,} run{'' if count == 1 else 's'}.")
        self.undo_line.setVisible(count > 0)

    @Slot(str)
    def say(self, sentence: str) -> None:
        """Say at the foot what came of something, until there is something else to say."""
        room = self.width() - self.undo_line.sizeHint().width() - 2 * SIDE
        self.foot.setText(self.foot.fontMetrics().elidedText(sentence, Qt.TextElideMode.ElideMiddle, room))
        self.foot.setToolTip(sentence)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.compare_page.set_theme(theme)

    def reject(self) -> None:
        """Escape leaves the comparison first, and the window then."""
        if self.pages.currentIndex() == COMPARE:
            self.show_list()
        else:
            super().reject()

    def _show_list(self) -> None:
        if not self._runs and not self._is_complete:
            self.empty.setText("Reading the kept runs…")
        else:
            self.empty.setText(NO_MATCH if self._runs else NO_RUN)
        self._list.setCurrentIndex(0 if self.table.count() else 1)
        count, shown = len(self._runs), self.table.count()
        total = f"{count:,} run{'' if count == 1 else 's'}, {bytes_text(sum(run.num_bytes for run in self._runs))}"
        found = f"{shown:,} of {total}" if shown != count else total
        self.say(f"{found}{'' if self._is_complete else ', reading…'} · kept in {self._place}")

    @Slot()
    def _show_actions(self) -> None:
        runs = self.table.selected_runs()
        only = runs[0] if len(runs) == 1 else None
        is_going = any(run.state is KeptState.GOING for run in runs)
        self.open_button.setEnabled(only is not None and only.is_readable and not is_going)
        self.replay_button.setEnabled(only is not None and only.is_readable)
        self.rename_button.setEnabled(only is not None)
        self.export_button.setEnabled(only is not None and only.is_readable)
        self.compare_button.setEnabled(2 <= len(runs) <= MAX_RUNS and all(run.is_readable for run in runs))
        self.delete_button.setEnabled(bool(runs) and not is_going)

    # --- What is asked for ---

    def _only(self) -> KeptRun | None:
        runs = self.table.selected_runs()
        return runs[0] if len(runs) == 1 else None

    @Slot()
    def _on_open(self) -> None:
        run = self._only()
        if run is not None and not run.is_readable:
            self.banner.show_sentence(run.problem)
        elif run is not None:
            self.open_requested.emit(run)

    @Slot()
    def _on_replay(self) -> None:
        if (run := self._only()) is not None:
            self.replay_requested.emit(run)

    @Slot()
    def _on_compare(self) -> None:
        self.compare_requested.emit(tuple(self.table.selected_runs()))

    @Slot()
    def _on_rename(self) -> None:
        self.table.setFocus()
        self.table.begin_rename()

    @Slot()
    def _on_export(self) -> None:
        if (run := self._only()) is not None:
            self.export_requested.emit(run)

    @Slot()
    def _on_folder(self) -> None:
        self.folder_requested.emit(self._only())

    @Slot()
    def _on_delete(self) -> None:
        self.delete_requested.emit(tuple(run.id for run in self.table.selected_runs()))

    @Slot(str)
    def _on_searched(self, words: str) -> None:
        self.table.filter(words)
        self._show_list()
        self._show_actions()

    @Slot()
    def _on_find(self) -> None:
        self.show_list()
        self.search.setFocus()
        self.search.selectAll()


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
        jobs: Jobs,
        controller: RunController,
        live: LiveView,
        run: RunView,
        dialogs: Dialogs,
        parent: QWidget,
    ) -> None:
        super().__init__(parent)
        self._services = services
        self._jobs = jobs
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
        self._plots = PlotDesk(self.window, self._dialogs, RunView(), self._jobs, self.window.compare_page.cards)
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
