"""The window "Take to production": the chosen pair, method and K in the words of each engine, to copy or to save."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QPlainTextEdit,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from app.dress import dress
from app.theme import mono_font
from app.widgets.tool_parts import push_button, wrapped_label
from app.window_layout import bring_forward, open_at
from core.production import Choice, Configuration

COPY, COPY_ALL, COPIED = "Copy command", "Copy with comments", "Copied"
NO_COMMAND = "This engine can't do it; the text says why."


class ProductionPage(QDialog):
    """Stays open beside the window. What it shows is made anew each time that it is opened.

    Signals:
        save_requested: a `Configuration`, to be written to a file.
    """

    save_requested = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        dress(self)
        self.setObjectName("productionPage")
        self.setWindowTitle("Take to production")
        self.setModal(False)
        self._found: Sequence[Configuration] = ()
        self.heading = wrapped_label("productionHeading", "title")
        self.verdict = wrapped_label("productionVerdict", "problem")
        self.note = wrapped_label("productionNote", "hint")
        self.saved = wrapped_label("productionSaved", "hint")
        self.tabs = QTabWidget()
        self.tabs.setObjectName("productionTabs")
        self.tabs.setProperty("role", "pages")
        self.tabs.setAccessibleName("Engines")
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setAccessibleName("Engines")
        self.copy_button = push_button(COPY, "copyCommandButton", "The command or program alone, as a shell takes it")
        self.copy_all_button = push_button(COPY_ALL, "copyConfigurationButton", "All of the text, to keep in a file")
        self.save_button = push_button("Save…", "saveConfigurationButton", "Write all of the text to a file")
        self.close_button = push_button("Close", "closeProductionButton", "")
        self._lay_out()
        open_at(self, 860, 640)
        self.tabs.currentChanged.connect(self._on_turned)
        self.copy_button.clicked.connect(self._on_copy)
        self.copy_all_button.clicked.connect(self._on_copy_all)
        self.save_button.clicked.connect(self._on_save)
        self.close_button.clicked.connect(self.close)

    def _lay_out(self) -> None:
        buttons = QHBoxLayout()
        buttons.setSpacing(8)
        buttons.addWidget(self.saved, 1)
        for button in (self.copy_button, self.copy_all_button, self.save_button, self.close_button):
            buttons.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 14, 16, 16)
        layout.setSpacing(8)
        for label in (self.heading, self.verdict, self.note):
            layout.addWidget(label)
        layout.addSpacing(4)
        layout.addWidget(self.tabs, 1)
        layout.addLayout(buttons)

    def open_choice(self, choice: Choice, found: Sequence[Configuration]) -> None:
        """Show a choice; the engine that was looked at last stays in front."""
        place = max(self.tabs.currentIndex(), 0)
        self._found = found
        draft = f" with {choice.draft}" if choice.draft else f", {choice.method}"
        self.heading.setText(f"{choice.target}{draft}, K = {choice.num_draft_tokens}")
        origin = "From the run at hand" if choice.run_id else "From the settings; no run has finished yet"
        self.note.setText(f"{origin}. {choice.k_note}".strip())
        self.verdict.setText(choice.verdict)
        self.verdict.setVisible(bool(choice.verdict))
        self._show_pages(place)
        bring_forward(self)

    def current(self) -> Configuration:
        """What is in front."""
        return self._found[self.tabs.currentIndex()]

    @Slot(str)
    def show_saved(self, sentence: str) -> None:
        """Say what came of a file."""
        self.saved.setText(sentence)

    def _show_pages(self, place: int) -> None:
        if self.tabs.count() != len(self._found):
            self.tabs.clear()
            for one in self._found:
                self.tabs.addTab(_page(one.project.title), one.project.title)
        for index, one in enumerate(self._found):
            page = self.tabs.widget(index)
            assert isinstance(page, QPlainTextEdit)
            page.setPlainText(one.text)
            self.tabs.setTabToolTip(index, one.problem or one.project.title)
        self.tabs.setCurrentIndex(min(place, len(self._found) - 1))
        self._on_turned()

    @Slot()
    def _on_turned(self) -> None:
        self.saved.clear()
        self.copy_button.setText(COPY)
        self.copy_all_button.setText(COPY_ALL)
        if self._found:
            can = bool(self.current().program)
            self.copy_button.setEnabled(can)
            self.copy_button.setToolTip(self.copy_button.accessibleDescription() if can else NO_COMMAND)

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.current().program)
        self.copy_all_button.setText(COPY_ALL)
        self.copy_button.setText(COPIED)

    @Slot()
    def _on_copy_all(self) -> None:
        QGuiApplication.clipboard().setText(self.current().text)
        self.copy_button.setText(COPY)
        self.copy_all_button.setText(COPIED)

    @Slot()
    def _on_save(self) -> None:
        self.save_requested.emit(self.current())


def _page(title: str) -> QPlainTextEdit:
    page = QPlainTextEdit()
    page.setFont(mono_font())
    page.setReadOnly(True)
    page.setTabChangesFocus(True)
    page.setAccessibleName(f"Configuration for {title}")
    return page
