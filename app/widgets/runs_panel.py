"""The window of kept runs: a list to search, name, open, replay and compare. Runs go on behind it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QLineEdit,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.dress import dress
from app.theme import Theme
from app.view_models.comparison import MAX_RUNS, Comparison
from app.view_models.model_text import bytes_text
from app.widgets.banner import Banner
from app.widgets.compare_page import ComparePage
from app.widgets.fields import describe, table_card, text_label
from app.widgets.runs_table import RunsTable
from app.widgets.tool_parts import push_button
from core.runs import KeptRun, KeptState

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
        dress(self)
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
