"""Work in the engine's thread that a window of the menu Tools follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QProgressBar,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from app.controller import RunController
from app.widgets.fields import describe, set_flag, text_label
from app.widgets.tables import EmptyHint
from app.window_layout import bring_forward
from app.worker import EngineTask, Work


def figure_table(name: str, title: str, columns: Iterable[tuple[str, str, bool]], empty: str) -> QTableWidget:
    """An empty table of rows to look at and choose from.

    Args:
        name, title: of the widget, and for those who hear it.
        columns: heading, its explanation, and whether figures stand there, at the right.
        empty: what will stand there, said as long as nothing does.
    """
    headings = [_heading(*column) for column in columns]
    table = QTableWidget(0, len(headings))
    table.setObjectName(name)
    table.setAccessibleName(title)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    table.setTabKeyNavigation(False)
    table.setShowGrid(False)
    table.verticalHeader().hide()
    for column, heading in enumerate(headings):
        table.setHorizontalHeaderItem(column, heading)
    header = table.horizontalHeader()
    header.setHighlightSections(False)
    header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
    header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
    EmptyHint(table, empty)
    return table


def _heading(title: str, help_text: str, is_figure: bool) -> QTableWidgetItem:
    heading = QTableWidgetItem(title)
    heading.setToolTip(help_text)
    across = Qt.AlignmentFlag.AlignRight if is_figure else Qt.AlignmentFlag.AlignLeft
    heading.setTextAlignment(across | Qt.AlignmentFlag.AlignVCenter)
    return heading


def push_button(title: str, name: str, help_text: str) -> QPushButton:
    """A button that Enter elsewhere in the window does not press."""
    button = QPushButton(title)
    button.setObjectName(name)
    button.setAutoDefault(False)
    describe(button, title.rstrip("…"), help_text)
    return button


def wrapped_label(name: str, role: str) -> QLabel:
    """A text of several lines, to be selected, and never read as markup."""
    label = text_label("", role)
    label.setObjectName(name)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return label


class ToolWindow(QDialog):
    """Base of both. Stays open beside the main window.

    Signals:
        stop_wanted: the button was pressed, or the window was closed while something goes.
    """

    stop_wanted = Signal()

    def __init__(self, name: str, title: str, progress_title: str, parent: QWidget | None = None) -> None:
        """
        Args:
            name: what its widgets' names begin with.
            title: of the window.
            progress_title: of the progress bar, for those who hear it.
            parent: the main window.
        """
        super().__init__(parent)
        self.setObjectName(f"{name}Window")
        self.setWindowTitle(title)
        self.setModal(False)
        self.headline = wrapped_label(f"{name}Headline", "title")
        self.subject = wrapped_label(f"{name}Subject", "hint")
        self.progress = QProgressBar()
        self.progress.setObjectName(f"{name}Progress")
        self.progress.setAccessibleName(progress_title)
        self.progress.setTextVisible(False)
        self.stage = text_label("", "hint")
        self.stage.setObjectName(f"{name}Stage")
        self.close_button = push_button("Close", f"close{name.capitalize()}Button", "")
        self.close_button.clicked.connect(self.close)

    def _foot(self, progress_width: int, *buttons: QPushButton) -> QHBoxLayout:
        """How far it is, and what can be done with what came of it."""
        foot = QHBoxLayout()
        foot.setSpacing(8)
        foot.addWidget(self.progress)
        foot.addWidget(self.stage, 1)
        for button in (*buttons, self.close_button):
            foot.addWidget(button)
        self.progress.setFixedWidth(progress_width)
        return foot

    def open(self) -> None:
        """Come to the front."""
        bring_forward(self)

    def say(self, sentence: str, *, is_problem: bool = False) -> None:
        """The one sentence above everything else."""
        set_flag(self.headline, "role", "problem" if is_problem else "title")
        self.headline.setText(sentence)

    def show_subject(self, text: str) -> None:
        """What it is about."""
        self.subject.setText(text)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Work whose window is gone is of no use."""
        self.stop_wanted.emit()
        super().closeEvent(event)


FRAME_MS = 100


class TaskDesk(QObject):
    """Base of what starts such work and shows what comes of it: one task at a time, looked at now and then."""

    def __init__(self, parent: QObject, controller: RunController, frame_ms: int = FRAME_MS) -> None:
        super().__init__(parent)
        self._controller = controller
        self._task: EngineTask | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(frame_ms)
        self._timer.timeout.connect(self._on_frame)

    # --- For a desk ---

    def _start_task(self, title: str, work: Work) -> EngineTask | None:
        """As `RunController.start_task`; what comes of it is shown from now on."""
        task = self._controller.start_task(title, work)
        if task is not None:
            self._task = task
            task.failed.connect(self._on_failed)
            task.ended.connect(self._on_ended)
            self._timer.start()
        return task

    def _show_stopping(self) -> None:
        """The task was asked to end."""
        raise NotImplementedError

    def _show_events(self, events: Iterator[Any]) -> None:
        """Take what has come, if anyone looks."""
        raise NotImplementedError

    def _show_failure(self, sentence: str) -> None:
        """The task failed; `_show_end` follows."""
        raise NotImplementedError

    def _show_end(self) -> None:
        """The task is over, however it ended, and all its events were shown."""
        raise NotImplementedError

    # --- Itself ---

    @Slot()
    def stop(self) -> None:
        """End what goes, if anything does."""
        if self._task is not None:
            self._task.stop()
            self._show_stopping()

    @Slot()
    def _on_frame(self) -> None:
        if self._task is not None:
            self._show_events(self._task.take_events())

    @Slot(str)
    def _on_failed(self, sentence: str) -> None:
        self._show_failure(sentence)

    @Slot()
    def _on_ended(self) -> None:
        self._timer.stop()
        self._on_frame()
        self._task = None
        self._show_end()
