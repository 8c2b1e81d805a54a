"""The window of kept runs: lists, searches, renames, deletes, compares and exports them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Qt, QUrl, Slot
from PySide6.QtGui import QCloseEvent, QDesktopServices, QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QStackedWidget, QWidget

from app.dialogs import EXPORT_FILTERS, Dialogs
from app.jobs import Job, Jobs
from app.menus import key_text
from app.tools.runs.compare_page import ComparePage
from app.tools.runs.comparison import MAX_RUNS, MOST_GROUPED, Comparison, compare
from app.tools.runs.table import COLUMNS, RunNameDelegate, run_row
from app.widgets.fields import (
    boxed,
    column,
    hint_label,
    line_edit,
    plain_tip,
    push_button,
    quiet_button,
    row,
    table_card,
    text_label,
)
from app.widgets.labels import Banner, ElidedLabel
from app.widgets.plot_card import save_plots
from app.widgets.rows import Row
from app.widgets.tables import Table
from app.window_layout import open_at
from core.export.files import export_run, readable_name
from core.files import short_path
from core.runlog.search import matches
from core.runlog.store import MAX_LABEL, KeptRun, KeptState, Label
from core.text import bytes_text, count_text

if TYPE_CHECKING:
    from app.tools.runs.kept import KeptRuns

LIST, COMPARE = 0, 1
NO_MATCH = "No kept run matches."
SELECT_MORE = "Select two or more runs to compare them"
NO_RUN = "No runs yet. Press Run in the main window: every run is kept here."
RUNNING = "This run has not ended yet. Stop it or wait until it ends before you delete it."
LABELS = {
    Label.TAGS: ("Tags", "greedy, laptop", "Words to find the selected runs by, separated by commas."),
    Label.NOTE: ("Note", "What you want to remember about this run", "A note on the selected runs."),
}
"""The title, placeholder and help of each field below the list."""
DIFFERENT = "(different)"
SEARCH_HELP = (
    "Words in the name, note, tags, prompt or models, and settings such as K=4, temperature=0, target=llama, "
    f"speedup>1.5, state=failed or tag=laptop ({key_text('Ctrl+F')})"
)


class RunsWindow(QDialog):
    """The list of kept runs, and the comparison of some."""

    def __init__(self, kept: KeptRuns, jobs: Jobs, dialogs: Dialogs, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._kept, self._store, self._jobs, self._dialogs = kept, kept.store, jobs, dialogs
        self._runs: tuple[KeptRun, ...] = ()
        self._is_complete = False
        self._listing: Job | None = None
        self._deleted: list[Sequence[str]] = []
        self._compared: Sequence[KeptRun] = ()
        self.setObjectName("runsWindow")
        self.setWindowTitle("Runs")
        placeholder = "Search: words, K=4, temperature=0, speedup>1.5, tag=laptop"
        self.search = line_edit("runsSearch", placeholder, "Search the runs", SEARCH_HELP)
        self.banner = Banner()
        self.table: Table[KeptRun] = Table(
            "runsTable", "Kept runs", COLUMNS, NO_RUN, delegate=RunNameDelegate(), keeps_one=True
        )
        self.table.setSelectionMode(Table.SelectionMode.ExtendedSelection)
        self.open_button = push_button(
            "Open", "runOpenButton", "Show this run in the main window (Enter)", self._on_open
        )
        replay_help = "Run it with the same models, settings and seed"
        self.replay_button = push_button("Run again", "runReplayButton", replay_help, self._on_replay)
        compare_help = (
            f"Compare 2 to {MAX_RUNS} selected runs side by side; more, up to {MOST_GROUPED}, as the means of runs "
            "with the same settings"
        )
        self.compare_button = push_button("Compare", "runCompareButton", compare_help, self._on_compare)
        self.rename_button = push_button("Rename", "runRenameButton", "Give this run a name (F2)", self._on_rename)
        export_help = "Save this run as a log, a table or a report"
        self.export_button = push_button("Export…", "runExportButton", export_help, self._on_export)
        folder_help = "Open the folder that holds the runs"
        self.folder_button = push_button("Open folder", "runFolderButton", folder_help, self._on_folder)
        delete_help = "Delete the selected runs (Del); this can be undone"
        self.delete_button = push_button("Delete", "runDeleteButton", delete_help, self._on_delete)
        self.labels = {
            label: line_edit(f"run{title}Edit", placeholder, title, f"{help_text} Enter saves it.")
            for label, (title, placeholder, help_text) in LABELS.items()
        }
        self._labelled: tuple[KeptRun, ...] = ()
        """The runs whose note and tags are in the fields."""
        self.undo_text = hint_label("runUndoText")
        undo_help = f"Restore the deleted runs ({key_text('Ctrl+Z')})"
        self.undo_button = quiet_button("Undo", "runUndoButton", "Undo", undo_help, self.undo, role="link")
        self.undo_line = boxed(row(self.undo_text, self.undo_button, spacing=2))
        self.undo_line.hide()
        self.foot = ElidedLabel("", "hint", takes_all=True, name="runsFoot", elided=Qt.TextElideMode.ElideMiddle)
        self.compare_page = ComparePage(self.show_list, self._compare, self._export_comparison)
        self._lay_out()
        self._connect()
        self._show_list()
        self._show_actions()

    def _lay_out(self) -> None:
        first = (self.open_button, self.replay_button, self.compare_button)
        others = (self.rename_button, self.export_button, self.folder_button, self.delete_button)
        self.pages = QStackedWidget()
        fields = [(text_label(LABELS[label][0], "field", buddy=edit), edit) for label, edit in self.labels.items()]
        (tags, tags_edit), (note, note_edit) = fields
        given = row(tags, (tags_edit, 1), note, (note_edit, 3))
        table = table_card(self.table)
        self.pages.addWidget(boxed(column(self.search, (table, 1), given, row(*first, None, *others))))
        self.pages.addWidget(self.compare_page)
        foot = row((self.foot, 1), self.undo_line)
        boxed(column(self.banner, (self.pages, 1), foot), self, margins=(16, 12, 16, 12))
        self.setMinimumSize(900, 480)
        open_at(self, 1200, 720)

    def _connect(self) -> None:
        self.search.textChanged.connect(self._on_searched)
        self.table.chosen.connect(self._show_actions)
        self.table.activated.connect(self._on_open)
        self.table.renamed.connect(self._on_renamed)
        for label, edit in self.labels.items():
            edit.setMaxLength(MAX_LABEL[label])
            edit.editingFinished.connect(partial(self._save_label, label))
        save_plots(
            self.compare_page.cards,
            self,
            self._dialogs,
            self._jobs,
            saved=self._show_saved,
            failed=self._kept.show_problem,
        )
        QShortcut(QKeySequence.StandardKey.Find, self).activated.connect(self._on_find)
        for keys, button in (
            (QKeySequence.StandardKey.Delete, self.delete_button),
            (QKeySequence("Backspace"), self.delete_button),  # The delete key of a Mac.
            (QKeySequence.StandardKey.Undo, self.undo_button),
            (QKeySequence("F2"), self.rename_button),
        ):
            shortcut = QShortcut(keys, self.table, context=Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(button.click)

    # --- The list ---

    @Slot()
    def refresh(self) -> None:
        """Read the list of runs again, if the window is visible."""
        if not self.isVisible():
            return
        if self._listing is not None:
            self._listing.cancel()
        running_id = self._kept.running_id()

        def find(job: Job) -> list[Row[KeptRun]]:
            rows: list[Row[KeptRun]] = []
            for run in self._store.runs(running_id):
                job.check()
                rows.append(run_row(run))
            return rows

        what = "The kept runs could not be listed"
        self._listing = self._kept.submit(find, self._show_all, what=what, failed=self._on_not_listed)

    def _show_all(self, rows: Sequence[Row[KeptRun]]) -> None:
        self._listing, self._is_complete = None, True
        is_first = bool(rows) and not self._runs
        self._runs = tuple(row.item for row in rows)
        self.table.show_rows(rows)
        self._show_list()
        if is_first and not self.search.text() and self.pages.currentIndex() == LIST:
            self.table.setFocus()
        self._show_actions()
        if self._store.problem:
            self._kept.show_problem(self._store.problem)
            self._store.problem = ""

    def _on_not_listed(self, sentence: str) -> None:
        self._listing, self._is_complete = None, True
        self._kept.show_problem(sentence)
        self._show_list()

    @Slot()
    def show_list(self) -> None:
        """Leave the comparison."""
        self.pages.setCurrentIndex(LIST)
        self.setWindowTitle("Runs")
        self._show_list()
        self.table.setFocus()

    def _show_list(self) -> None:
        is_reading = not self._runs and not self._is_complete
        self.table.hint.setText("Reading the kept runs…" if is_reading else NO_MATCH if self._runs else NO_RUN)
        count, shown = len(self._runs), self.table.count()
        total = f"{count_text(count, 'run')}, {bytes_text(sum(run.num_bytes for run in self._runs))}"
        found = f"{shown:,} of {total}" if shown != count else total
        self.foot.setText(f"{found}{'' if self._is_complete else ', reading…'} · in {short_path(self._store.folder)}")

    @Slot(str)
    def _on_searched(self, words: str) -> None:
        self.table.filter(lambda row: not words or matches(row.item, words, row.words))
        self._show_list()
        self._show_actions()

    @Slot()
    def _on_find(self) -> None:
        self.show_list()
        self.search.setFocus()
        self.search.selectAll()

    @Slot()
    def _show_actions(self) -> None:
        runs, only = self.table.selected(), self._only()
        is_running = any(run.state is KeptState.RUNNING for run in runs)
        is_readable = only is not None and only.is_readable
        self.open_button.setEnabled(is_readable and not is_running)
        self.replay_button.setEnabled(is_readable)
        self.rename_button.setEnabled(only is not None)
        self.export_button.setEnabled(is_readable)
        refusal = _compare_refusal(runs)
        self.compare_button.setEnabled(not refusal)
        self.compare_button.setToolTip(plain_tip(refusal) or self.compare_button.accessibleDescription())
        self.delete_button.setEnabled(bool(runs) and not is_running)
        self._show_labels(tuple(runs))

    def _show_labels(self, runs: tuple[KeptRun, ...]) -> None:
        is_same = [run.id for run in runs] == [run.id for run in self._labelled]
        for label, edit in self.labels.items():
            if not is_same:
                self._save_label(label)
            texts = {run.tags if label is Label.TAGS else run.note for run in runs}
            if not (is_same and edit.isModified()):
                edit.setText(texts.pop() if len(texts) == 1 else "")
            edit.setPlaceholderText(DIFFERENT if len(texts) > 1 else LABELS[label][1])
            edit.setEnabled(bool(runs))
        self._labelled = runs

    def _save_label(self, label: Label) -> None:
        edit, runs = self.labels[label], self._labelled
        if edit.isModified():
            edit.setModified(False)
            text, ids = edit.text(), [run.id for run in runs]
            self._change(lambda: self._store.label(label, text, *ids), f"The {label} could not be saved")

    # --- Messages ---

    def _show_saved(self, sentence: str) -> None:
        self.foot.setText(sentence)
        self._kept.reported.emit(sentence)

    def reject(self) -> None:
        """Escape leaves the comparison first, then closes the window."""
        if self.pages.currentIndex() == COMPARE:
            self.show_list()
        else:
            super().reject()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Close, also from a comparison."""
        self.show_list()
        super().closeEvent(event)

    # --- Actions ---

    def _only(self) -> KeptRun | None:
        runs = self.table.selected()
        return runs[0] if len(runs) == 1 else None

    @Slot()
    def _on_open(self) -> None:
        run = self._only()
        if run is not None and not run.is_readable:
            self.banner.show_sentence(run.problem)
        elif run is not None:
            self._kept.open_run(run)

    @Slot()
    def _on_replay(self) -> None:
        if (run := self._only()) is not None:
            self._kept.replay(run)

    @Slot()
    def _on_compare(self) -> None:
        self._compared = self.table.selected()
        self._compare(is_grouped=len(self._compared) > MAX_RUNS)

    def _compare(self, is_grouped: bool) -> None:
        runs = self._compared

        def work(job: Job) -> Comparison:
            return compare(((run, self._store.load(run.id)) for run in runs), grouped=is_grouped)

        self._kept.submit(work, self._show_comparison, what="These runs could not be compared")

    def _show_comparison(self, comparison: Comparison) -> None:
        self.compare_page.show_comparison(comparison)
        self.pages.setCurrentIndex(COMPARE)
        self.setWindowTitle(f"Runs: {len(comparison.runs)} compared")
        self.compare_page.table.setFocus()

    @Slot()
    def _on_rename(self) -> None:
        if (run := self._only()) is not None:
            self.table.select([run.id])  # The current row may be another one.
            self.table.setFocus()
            self.table.begin_rename()

    @Slot(object, str)
    def _on_renamed(self, run: KeptRun, name: str) -> None:
        self._change(lambda: self._store.label(Label.NAME, name, run.id), "The name could not be saved")

    @Slot()
    def _on_delete(self) -> None:
        self.delete(tuple(run.id for run in self.table.selected()))

    def delete(self, run_ids: Sequence[str]) -> None:
        """Delete runs; `undo` restores them."""
        if self._kept.running_id() in run_ids:
            self._kept.show_problem(RUNNING)
        elif run_ids:
            self._change(lambda: self._store.delete(run_ids), "The runs could not be deleted", self._keep_for_undo)

    @Slot()
    def undo(self) -> None:
        """Restore the last deleted runs."""
        if self._deleted:
            run_ids = self._deleted.pop()

            def put_back() -> None:
                self._keep_for_undo([run_id for run_id in run_ids if self._store.is_in_trash(run_id)])

            what = "The runs could not be restored"
            self._change(lambda: self._store.restore(run_ids), what, otherwise=put_back)
            self._show_undo()

    def _keep_for_undo(self, deleted: Sequence[str]) -> None:
        if deleted:  # Else another window has deleted them all.
            self._deleted.append(deleted)
            self._show_undo()

    def _show_undo(self) -> None:
        count = len(self._deleted[-1]) if self._deleted else 0
        self.undo_text.setText(f"Deleted {count_text(count, 'run')}.")
        self.undo_line.setVisible(count > 0)

    @Slot()
    def _on_export(self) -> None:
        if (run := self._only()) is not None:
            name = readable_name(run.config, run.started_at, run.name)
            path = self._dialogs.ask_save_path(self, name, title="Export run", filters=EXPORT_FILTERS)
            self._export((run.id,), path)

    def _export_comparison(self, run_ids: Sequence[str]) -> None:
        path = self._dialogs.ask_save_path(self, "comparison.html", title="Export comparison")
        self._export(run_ids, path)

    def _export(self, run_ids: Sequence[str], path: Path | None) -> None:
        if path is None:
            return
        names = {run.id: run.name for run in self._runs}

        def write(job: Job) -> None:
            self._store.refuse_own(path, run_ids)
            is_compared = len(run_ids) > 1
            logs = (self._store.load(run_id, packs_evidence=is_compared) for run_id in run_ids)
            export_run(path, *logs, titles=[names.get(run_id, "") for run_id in run_ids])

        what = f"The run{'' if len(run_ids) == 1 else 's'} could not be exported"
        self._kept.submit(write, lambda _: self._show_saved(f"Exported to {path}"), what=what, must_finish=True)

    @Slot()
    def _on_folder(self) -> None:
        folder = self._store.folder
        if not folder.is_dir():
            self._kept.show_problem(f"The folder {str(folder)!r} doesn't exist yet.")
        elif not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
            self._kept.show_problem(f"The desktop can't show folders. The runs are in {str(folder)!r}.")

    def _change(
        self,
        work: Callable[[], Any],
        what: str,
        then: Callable[[Any], None] | None = None,
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        """Change the store, then read the list again, even after an error."""

        def changed(result: Any) -> None:
            if then is not None:
                then(result)
            self.refresh()

        def failed(sentence: str) -> None:
            otherwise()
            self._kept.show_problem(sentence)
            self.refresh()

        self._kept.submit(lambda job: work(), changed, what=what, failed=failed, must_finish=True)


def _compare_refusal(runs: Sequence[KeptRun]) -> str:
    """Why these runs can't be compared; empty if they can."""
    unreadable = [run.title for run in runs if not run.is_readable]
    if len(runs) < 2:
        return SELECT_MORE
    if len(runs) > MOST_GROUPED:
        return f"Select at most {MOST_GROUPED} runs to compare them"
    return f"Can't be read, so can't be compared: {', '.join(unreadable)}" if unreadable else ""
