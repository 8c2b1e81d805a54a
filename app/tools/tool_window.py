"""Base classes of the Tools menu's windows that run a long task in the engine's thread and follow it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import Qt, QTimer, Slot
from PySide6.QtGui import QCloseEvent, QColor
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QHBoxLayout,
    QHeaderView,
    QProgressBar,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from app.controller import RunController
from app.theme import current_theme, scaled
from app.widgets.fields import column, named, offer, push_button, row, set_flag, text_label, wrapped_label
from app.widgets.tables import EmptyHint, alignment
from app.window_layout import bring_forward
from app.worker import EngineTask, Work

POLL_MS = 100


class ToolWindow(QDialog):
    """Starts one task of the engine at a time, polls its events, and stops it when the window is closed."""

    task_title = "A task"

    def __init__(
        self, main: QWidget | None, controller: RunController, name: str, title: str, poll_ms: int = POLL_MS
    ) -> None:
        super().__init__(main)
        self._controller = controller
        self._task: EngineTask | None = None
        self.setObjectName(f"{name}Window")
        self.setWindowTitle(title)
        self.setModal(False)
        self.close_button = push_button("Close", f"{name}CloseButton", "Close the window, and stop what is running")
        self.close_button.clicked.connect(self.close)
        self._timer = QTimer(self)
        self._timer.setInterval(poll_ms)
        self._timer.timeout.connect(self._poll)

    # --- For subclasses ---

    def refresh(self) -> None:
        """Show the main window's settings. Called each time the window is opened."""

    def _show_stopping(self) -> None:
        """Called when the task has been asked to end."""
        raise NotImplementedError

    def _show_events(self, events: Iterator[Any]) -> None:
        """Show the events since the last call."""
        raise NotImplementedError

    def _show_failure(self, sentence: str) -> None:
        """Called when the task has failed; `_show_end` follows."""
        raise NotImplementedError

    def _show_end(self) -> None:
        """Called when the task is over, for whatever reason, and all its events have been shown."""
        raise NotImplementedError

    def _start_task(self, work: Work) -> EngineTask | None:
        """Start work in the engine's thread; None if the engine is busy."""
        task = self._controller.start_task(self.task_title, work)
        if task is not None:
            self._task = task
            task.failed.connect(self._on_failed)
            task.ended.connect(self._on_ended)
            self._timer.start()
        return task

    # --- Public ---

    @property
    def is_running(self) -> bool:
        """Whether a task of this window is running."""
        return self._task is not None

    @Slot()
    def open(self) -> None:
        """Bring the window to the front, with the main window's settings."""
        bring_forward(self)
        self.refresh()

    @Slot()
    def stop(self) -> None:
        """Ask the task to end, if there is one."""
        if self._task is not None:
            self._task.stop()
            self._show_stopping()

    def reject(self) -> None:
        """Escape stops a task, and closes the window only when none is running."""
        if self.is_running:
            self.stop()
        else:
            super().reject()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Stop the task, since its results would not be seen."""
        self.stop()
        event.accept()

    @Slot()
    def _poll(self) -> None:
        if self._task is not None:
            self._show_events(self._task.take_events())

    @Slot(str)
    def _on_failed(self, sentence: str) -> None:
        self._show_failure(sentence)

    @Slot()
    def _on_ended(self) -> None:
        self._timer.stop()
        self._poll()
        self._task = None
        self._show_end()


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A row of a `ResultTable`: its texts, a tooltip, whether it is a failure, and whether it can be selected."""

    texts: tuple[str, ...]
    tip: str
    is_bad: bool = False
    is_enabled: bool = True


class ResultTable(QTableWidget):
    """A read-only table with selectable rows; figures are right-aligned, texts left-aligned."""

    def __init__(
        self, name: str, title: str, columns: Iterable[tuple[str, str, bool]], empty: str, stretched: int = 0
    ) -> None:
        """
        Args:
            name, title: the object name, and the name for assistive technology.
            columns: heading, its explanation, and whether the column holds figures.
            empty: the text shown while there are no rows.
            stretched: the column that takes the remaining width.
        """
        columns = list(columns)
        super().__init__(0, len(columns))
        self._is_figure = [is_figure for _, _, is_figure in columns]
        self._rows: tuple[ResultRow, ...] = ()
        self.setObjectName(name)
        self.setAccessibleName(title)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setTabKeyNavigation(False)
        self.setShowGrid(False)
        self.verticalHeader().hide()
        for index, (text, help_text, is_figure) in enumerate(columns):
            self.setHorizontalHeaderItem(index, _item(text, help_text, is_figure=is_figure))
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(stretched, QHeaderView.ResizeMode.Stretch)
        EmptyHint(self, empty)

    def show_rows(self, rows: Sequence[ResultRow]) -> None:
        """Show these rows and no others."""
        self._rows = tuple(rows)
        self.setRowCount(len(rows))
        for index, line in enumerate(rows):
            for place, text in enumerate(line.texts):
                item = _item(text, line.tip, is_figure=self._is_figure[place])
                if line.is_bad:
                    item.setForeground(QColor(current_theme().danger))
                if not line.is_enabled:
                    item.setFlags(item.flags() & ~Qt.ItemFlag.ItemIsEnabled)
                self.setItem(index, place, item)
            self.setRowHeight(index, scaled(26))

    def restyle(self) -> None:
        """Draw in the theme's colours, at the text's scale."""
        place = self.currentRow()
        self.show_rows(self._rows)
        if place >= 0:
            self.selectRow(place)


def _item(text: str, tip: str, *, is_figure: bool) -> QTableWidgetItem:
    item = QTableWidgetItem(text)
    item.setToolTip(tip)
    item.setTextAlignment(alignment(is_figure=is_figure))
    return item


class ReportWindow(ToolWindow):
    """A tool window with one sentence at the top, a table in the middle, and progress at the bottom."""

    table: ResultTable

    def __init__(
        self,
        main: QWidget | None,
        controller: RunController,
        name: str,
        title: str,
        *,
        start_help: str,
        stop_help: str,
        progress_title: str,
    ) -> None:
        super().__init__(main, controller, name, title)
        self.start_button = push_button(name.capitalize(), f"{name}Button", start_help)
        self.start_button.setProperty("role", "primary")
        self.start_button.clicked.connect(self.start)
        self.stop_button = push_button("Stop", f"stop{name.capitalize()}Button", stop_help)
        self.stop_button.clicked.connect(self.stop)
        self.headline = wrapped_label(f"{name}Headline", "title")
        self.subject = wrapped_label(f"{name}Subject", "hint")
        self.progress = named(QProgressBar(), f"{name}Progress", progress_title)
        self.progress.setTextVisible(False)
        self.progress.setFixedWidth(110)
        self.stage = text_label("", "hint")
        self.stage.setObjectName(f"{name}Stage")

    def _lay_out(
        self, head: QHBoxLayout | None, options: Sequence[QWidget], body: QWidget, *buttons: QPushButton
    ) -> None:
        self._options = options
        asked = row(*options, None, self.stop_button, self.start_button)
        foot = row(self.progress, (self.stage, 1), *buttons, self.close_button)
        words = head or column(self.headline, self.subject)
        layout = column(words, asked, (body, 1), foot)
        layout.setContentsMargins(16, 14, 16, 16)
        self.setLayout(layout)

    @Slot()
    def start(self) -> None:
        """Start the task, with the main window's settings."""
        raise NotImplementedError

    def _show_running(self, *, is_running: bool) -> None:
        offer(self.start_button, self.stop_button, is_running=is_running)
        for option in self._options:
            option.setEnabled(not is_running)
        self.progress.setVisible(is_running)

    def say(self, sentence: str, *, role: str = "title") -> None:
        """Show the sentence at the top, in a role of the style sheet: title, problem, verdict."""
        set_flag(self.headline, "role", role)
        self.headline.setText(sentence)

    def _show_stopping(self) -> None:
        self.stage.setText("Stopping…")
