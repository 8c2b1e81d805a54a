"""The window of kept runs: lists, searches, renames, deletes, compares and exports them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QUrl, Signal, Slot
from PySide6.QtGui import QDesktopServices, QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QHBoxLayout, QLineEdit, QStackedWidget, QToolButton, QVBoxLayout, QWidget

from app.dialogs import Dialogs
from app.jobs import Job, Jobs
from app.run.run_view import RunView
from app.setup.model_library import bytes_text
from app.tools.runs.compare import ComparePage
from app.tools.runs.comparison import MAX_RUNS, Comparison, compare
from app.tools.runs.table import RunsTable
from app.widgets.fields import describe, push_button, table_card, text_label
from app.widgets.labels import Banner
from app.widgets.plot_card import PlotDesk
from core.export.files import export_run
from core.runlog.store import KeptRun, KeptState, RunStore

LIST, COMPARE = 0, 1
LANE = "runs"
"""Jobs that use the store of kept runs run one at a time."""
BATCH_S = 0.2
SIDE = 16
"""Pixels at the left and at the right."""
NO_MATCH = "No kept run matches."
NO_RUN = "No runs yet. Every run you start is saved here as it proceeds."
RUNNING = "This run has not ended yet. Stop it or wait until it ends before you delete it."
SEARCH_HELP = (
    "Words in the name, the prompt or the models, and settings such as K=4, temperature=0, target=llama, "
    "speedup>1.5 or state=failed (Ctrl+F)"
)


class RunsWindow(QDialog):
    """Args:
        store: the runs to list.
        running_id: returns the id of the run that this process is writing; empty if none.

    Signals:
        open_requested, replay_requested: a `KeptRun`.
        reported: one sentence about a file that was written.
        failed: one sentence, if this window is not visible; otherwise its own banner shows it.
    """

    open_requested = Signal(object)
    replay_requested = Signal(object)
    reported = Signal(str)
    failed = Signal(str)

    def __init__(
        self,
        store: RunStore,
        jobs: Jobs,
        dialogs: Dialogs,
        running_id: Callable[[], str],
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._store, self._jobs, self._dialogs, self._running_id = store, jobs, dialogs, running_id
        self._runs: tuple[KeptRun, ...] = ()
        self._is_complete = False
        self._listing: Job | None = None
        self._deleted: list[Sequence[str]] = []
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
            "Compare", "runCompareButton", f"Compare 2 to {MAX_RUNS} selected runs side by side"
        )
        self.rename_button = push_button("Rename", "runRenameButton", "Give this run a name (F2)")
        self.export_button = push_button("Export…", "runExportButton", "Save this run as a log, a table or a report")
        self.folder_button = push_button("Show in folder", "runFolderButton", "Open the folder that holds the runs")
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
        describe(self.undo_button, "Undo", "Restore the deleted runs (Ctrl+Z)")
        self.undo_line.hide()
        self.foot = text_label("", "hint")
        self.foot.setObjectName("runsFoot")
        self.foot.setMinimumWidth(1)  # otherwise a long sentence would widen the window
        self.compare_page = ComparePage()
        self._plots = PlotDesk(self, dialogs, RunView(), jobs, self.compare_page.cards)
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
        self.table.rename_requested.connect(self.rename)
        self.open_button.clicked.connect(self._on_open)
        self.replay_button.clicked.connect(self._on_replay)
        self.compare_button.clicked.connect(self._on_compare)
        self.rename_button.clicked.connect(self._on_rename)
        self.export_button.clicked.connect(self._on_export)
        self.folder_button.clicked.connect(self._on_folder)
        self.delete_button.clicked.connect(self._on_delete)
        self.undo_button.clicked.connect(self.undo)
        self.compare_page.back_requested.connect(self.show_list)
        self.compare_page.export_requested.connect(self._on_export_comparison)
        self._plots.saved.connect(self._show_saved)
        self._plots.failed.connect(self.show_problem)
        QShortcut(QKeySequence.StandardKey.Find, self).activated.connect(self._on_find)
        for keys, widget, button in (
            (QKeySequence.StandardKey.Delete, self.table, self.delete_button),
            (QKeySequence.StandardKey.Undo, self.table, self.undo_button),
            (QKeySequence("F2"), self.table, self.rename_button),
        ):
            shortcut = QShortcut(keys, widget)
            shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(button.click)

    # --- The list ---

    @Slot()
    def refresh(self) -> None:
        """Read the list of runs again, if the window is visible."""
        if not self.isVisible():
            return
        if self._listing is not None:
            self._listing.cancel()
        running_id = self._running_id()

        def find(job: Job) -> tuple[KeptRun, ...]:
            runs: list[KeptRun] = []
            reported_at = time.monotonic()
            for run in self._store.runs(running_id):
                job.check()
                runs.append(run)
                if time.monotonic() - reported_at >= BATCH_S:
                    job.report(tuple(runs))
                    reported_at = time.monotonic()
            return tuple(runs)

        what = "The kept runs could not be listed"
        self._listing = self._submit(
            find, self._show_all, what, failed=self._on_not_listed, progress=self._show_first_runs
        )

    def _show_first_runs(self, runs: tuple[KeptRun, ...]) -> None:
        # When the list is read again, it replaces the old one once complete.
        if not self._is_complete:
            self._show_runs(runs)

    def _show_all(self, runs: tuple[KeptRun, ...]) -> None:
        self._listing, self._is_complete = None, True
        self._show_runs(runs)

    def _on_not_listed(self, sentence: str) -> None:
        self.show_problem(sentence)
        self._show_all(self._runs)

    def _show_runs(self, runs: tuple[KeptRun, ...]) -> None:
        is_first = bool(runs) and not self._runs
        self._runs = runs
        self.table.show_runs(runs)
        self._show_list()
        if is_first and not self.search.text() and self.pages.currentIndex() == LIST:
            self.table.setFocus()
        self._show_actions()

    @Slot()
    def show_list(self) -> None:
        """Leave the comparison."""
        self.pages.setCurrentIndex(LIST)
        self.setWindowTitle("Runs")
        self._show_list()
        self.table.setFocus()

    def _show_list(self) -> None:
        if not self._runs and not self._is_complete:
            self.empty.setText("Reading the kept runs…")
        else:
            self.empty.setText(NO_MATCH if self._runs else NO_RUN)
        self._list.setCurrentIndex(0 if self.table.count() else 1)
        count, shown = len(self._runs), self.table.count()
        total = f"{count:,} run{'' if count == 1 else 's'}, {bytes_text(sum(run.num_bytes for run in self._runs))}"
        found = f"{shown:,} of {total}" if shown != count else total
        self._say(f"{found}{'' if self._is_complete else ', reading…'} · in {_short_path(self._store.folder)}")

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

    @Slot()
    def _show_actions(self) -> None:
        runs = self.table.selected_runs()
        only = runs[0] if len(runs) == 1 else None
        is_running = any(run.state is KeptState.RUNNING for run in runs)
        self.open_button.setEnabled(only is not None and only.is_readable and not is_running)
        self.replay_button.setEnabled(only is not None and only.is_readable)
        self.rename_button.setEnabled(only is not None)
        self.export_button.setEnabled(only is not None and only.is_readable)
        self.compare_button.setEnabled(2 <= len(runs) <= MAX_RUNS and all(run.is_readable for run in runs))
        self.delete_button.setEnabled(bool(runs) and not is_running)

    # --- Messages ---

    @Slot(str)
    def show_problem(self, sentence: str) -> None:
        """Show a sentence in the banner, or pass it on if the window is not visible."""
        if self.isVisible():
            self.banner.show_sentence(sentence)
        else:
            self.failed.emit(sentence)

    @Slot(str)
    def _show_saved(self, sentence: str) -> None:
        self._say(sentence)
        self.reported.emit(sentence)

    def _say(self, sentence: str) -> None:
        room = self.width() - self.undo_line.sizeHint().width() - 2 * SIDE
        self.foot.setText(self.foot.fontMetrics().elidedText(sentence, Qt.TextElideMode.ElideMiddle, room))
        self.foot.setToolTip(sentence)

    def reject(self) -> None:
        """Escape leaves the comparison first, then closes the window."""
        if self.pages.currentIndex() == COMPARE:
            self.show_list()
        else:
            super().reject()

    # --- Actions ---

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
        runs = tuple(self.table.selected_runs())
        self._submit(
            lambda job: compare([(run, self._store.load(run.id)) for run in runs]),
            self._show_comparison,
            "These runs could not be compared",
        )

    def _show_comparison(self, comparison: Comparison) -> None:
        self.compare_page.show_comparison(comparison)
        self.pages.setCurrentIndex(COMPARE)
        self.setWindowTitle(f"Runs: {len(comparison.runs)} compared")
        self.compare_page.table.setFocus()

    @Slot()
    def _on_rename(self) -> None:
        self.table.setFocus()
        self.table.begin_rename()

    @Slot(str, str)
    def rename(self, run_id: str, name: str) -> None:
        """Save a run's name."""
        self._change(lambda: self._store.rename(run_id, name), "The name could not be saved")

    @Slot()
    def _on_delete(self) -> None:
        self.delete(tuple(run.id for run in self.table.selected_runs()))

    def delete(self, run_ids: Sequence[str]) -> None:
        """Delete runs; `undo` restores them."""

        def keep_for_undo(deleted: Sequence[str]) -> None:
            self._deleted.append(deleted)
            self._show_undo()

        if self._running_id() in run_ids:
            self.show_problem(RUNNING)
        elif run_ids:
            self._change(lambda: self._store.delete(run_ids), "The runs could not be deleted", keep_for_undo)

    @Slot()
    def undo(self) -> None:
        """Restore the last deleted runs."""
        if self._deleted:
            run_ids = self._deleted.pop()
            self._change(lambda: self._store.restore(run_ids), "The runs could not be restored")
            self._show_undo()

    def _show_undo(self) -> None:
        count = len(self._deleted[-1]) if self._deleted else 0
        self.undo_text.setText(f"Deleted {count:,} run{'' if count == 1 else 's'}.")
        self.undo_line.setVisible(count > 0)

    @Slot()
    def _on_export(self) -> None:
        if (run := self._only()) is not None:
            self._export((run.id,), self._dialogs.ask_export_path(self, f"{run.id}.jsonl"))

    @Slot(object)
    def _on_export_comparison(self, run_ids: Sequence[str]) -> None:
        self._export(run_ids, self._dialogs.ask_comparison_path(self, "comparison.html"))

    def _export(self, run_ids: Sequence[str], path: Path | None) -> None:
        if path is None:
            return

        def write(job: Job) -> None:
            self._store.refuse_own(path, run_ids)
            export_run(path, *(self._store.load(run_id) for run_id in run_ids))

        what = f"The run{'' if len(run_ids) == 1 else 's'} could not be exported"
        self._submit(write, lambda _: self._show_saved(f"Exported to {path}"), what, must_finish=True)

    @Slot()
    def _on_folder(self) -> None:
        folder = self._store.folder
        if not folder.is_dir():
            self.show_problem(f"The folder {str(folder)!r} doesn't exist yet.")
        elif not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
            self.show_problem(f"The desktop can't show folders. The runs are in {str(folder)!r}.")

    def _change(self, work: Callable[[], Any], what: str, then: Callable[[Any], None] | None = None) -> None:
        """Change the store, then read the list again, even after an error."""

        def changed(result: Any) -> None:
            if then is not None:
                then(result)
            self.refresh()

        def failed(sentence: str) -> None:
            self.show_problem(sentence)
            self.refresh()

        self._submit(lambda job: work(), changed, what, failed=failed)

    def _submit(
        self,
        work: Callable[[Job], Any],
        then: Callable[[Any], None],
        what: str,
        failed: Callable[[str], None] | None = None,
        **settings: Any,
    ) -> Job:
        return self._jobs.submit(work, then, failed=failed or self.show_problem, what=what, lane=LANE, **settings)


def _short_path(folder: Path) -> str:
    try:
        return str(Path("~") / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(folder)
