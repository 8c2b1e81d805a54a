"""The dialogs that ask for a path or a confirmation, and About."""

from __future__ import annotations

import platform
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QGridLayout,
    QHBoxLayout,
    QInputDialog,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app import __version__
from app.setup.model_library import bytes_text
from app.widgets.fields import describe, text_label


class OpenKind(StrEnum):
    """What to open: safetensors are in a folder, GGUF is a file."""

    FOLDER = "folder"
    GGUF = "gguf"


OPEN_TITLES = {OpenKind.FOLDER: "Open model folder…", OpenKind.GGUF: "Open .gguf file…"}

if TYPE_CHECKING:
    from core.models.downloads import Removal


PACKAGES = {
    "PySide6-Essentials": "PySide6 (Qt)",
    "torch": "torch",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "accelerate": "accelerate",
    "pyqtgraph": "pyqtgraph",
    "numpy": "numpy",
}
NO_DEVICE = "known once a run has started"


def versions(device: str = "") -> list[tuple[str, str]]:
    """Versions of Outrider and its packages, read from their metadata without importing them."""
    found = [("Outrider", __version__), ("Python", platform.python_version())]
    for package, title in PACKAGES.items():
        try:
            found.append((title, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return [*found, ("System", platform.platform()), ("Device", device or NO_DEVICE)]


class AboutDialog(QDialog):
    """Versions, to read and to copy."""

    def __init__(self, parent: QWidget, device: str) -> None:
        super().__init__(parent)
        self.setObjectName("aboutDialog")
        self.setWindowTitle("About Outrider")
        self._versions = versions(device)
        self.copy_button = QPushButton("Copy")
        self.copy_button.setObjectName("copyVersionsButton")
        describe(self.copy_button, "Copy the versions", "For a bug report")
        self.close_button = QPushButton("Close")
        self.close_button.setObjectName("closeAboutButton")
        self.close_button.setDefault(True)
        describe(self.close_button, "Close")
        grid = QGridLayout()
        grid.setHorizontalSpacing(24)
        grid.setVerticalSpacing(4)
        for row, (title, version) in enumerate(self._versions):
            value = text_label(version, "plain")
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            value.setAccessibleName(f"{title} {version}")
            grid.addWidget(text_label(title, "field"), row, 0)
            grid.addWidget(value, row, 1)
        grid.setColumnStretch(1, 1)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        buttons.addWidget(self.copy_button)
        buttons.addWidget(self.close_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(24, 20, 24, 16)
        layout.setSpacing(6)
        layout.addWidget(text_label("Outrider", "title"))
        layout.addWidget(text_label("A desktop playground for speculative decoding.", "hint"))
        layout.addSpacing(8)
        layout.addLayout(grid)
        layout.addSpacing(12)
        layout.addLayout(buttons)
        self.close_button.setFocus()
        self.copy_button.clicked.connect(self._on_copy)
        self.close_button.clicked.connect(self.accept)

    @property
    def text(self) -> str:
        """The versions, one per line."""
        return "\n".join(f"{title} {version}" for title, version in self._versions)

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text)
        self.copy_button.setText("Copied")


EXPORT_FILTERS = {
    "Run log, JSON Lines (*.jsonl)": ".jsonl",
    "Table of steps, CSV (*.csv)": ".csv",
    "Report to read, HTML (*.html)": ".html",
}


class Dialogs:
    """Dialogs that ask the user; one object, so that tests can answer instead. None: the dialog was cancelled."""

    def ask_export_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where to write a run; the suffix sets the format."""
        dialog = QFileDialog(parent, "Export run", suggestion)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters(list(EXPORT_FILTERS))
        dialog.setDefaultSuffix("jsonl")
        # The dialog adds the suffix itself, so that it asks before it replaces the file that is actually written.
        dialog.filterSelected.connect(lambda chosen: dialog.setDefaultSuffix(EXPORT_FILTERS[chosen][1:]))
        chosen = dialog.selectedFiles() if dialog.exec() else []
        dialog.deleteLater()
        return Path(chosen[0]) if chosen else None

    def ask_comparison_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where to write the report of several runs."""
        return _ask_path(parent, "Export comparison", suggestion)

    def ask_plot_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where to write a plot, in the format given by the suggestion's suffix."""
        return _ask_path(parent, "Save plot", suggestion)

    def ask_configuration_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where to write a configuration."""
        return _ask_path(parent, "Save configuration", suggestion)

    def ask_report_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where to write a report, as text or JSON depending on its suffix."""
        return _ask_path(parent, "Save report", suggestion, "json")

    def ask_sweep_export_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where to write a sweep, in the format given by the suggestion's suffix."""
        return _ask_path(parent, "Export sweep", suggestion)

    def ask_sweep_path(self, parent: QWidget, folder: Path) -> Path | None:
        """A sweep file to open."""
        path, _ = QFileDialog.getOpenFileName(parent, "Open sweep", str(folder), "Sweeps (*.jsonl)")
        return Path(path) if path else None

    def ask_prompts_path(self, parent: QWidget) -> Path | None:
        """A file of prompts to open."""
        path, _ = QFileDialog.getOpenFileName(parent, "Prompts", "", "Prompts (*.jsonl *.ndjson *.txt);;All files (*)")
        return Path(path) if path else None

    def ask_model_path(self, parent: QWidget, kind: OpenKind) -> str | None:
        """A model's folder or .gguf file."""
        title = OPEN_TITLES[kind].rstrip("…")
        if kind is OpenKind.FOLDER:
            path = QFileDialog.getExistingDirectory(parent, title)
        else:
            path, _ = QFileDialog.getOpenFileName(parent, title, "", "GGUF models (*.gguf)")
        return path or None

    def ask_removal(self, parent: QWidget, removal: Removal) -> bool:
        """Ask whether to delete a model, and say what that means."""
        question = f"Delete {removal.entry.title}?"
        details = f"This frees {bytes_text(removal.frees_bytes)}. {removal.note}\n\n{removal.entry.path}"
        return _confirm(parent, question, details, "Delete")

    def ask_too_large(self, parent: QWidget, forecast: str) -> bool:
        """Ask whether to load models that are not expected to fit in memory."""
        details = f"{forecast}.\n\nLoading may take a long time, slow the computer down, or fail."
        return _confirm(parent, "This pair may not fit in memory. Load it?", details, "Load it")

    def ask_forced_text(self, parent: QWidget, replaced: str) -> str | None:
        """A text to replace a token with, spaces included."""
        question = "The text to continue from. A space at its beginning counts:"
        text, is_given = QInputDialog.getText(parent, "Force a text", question, QLineEdit.EchoMode.Normal, replaced)
        return text if is_given and text else None

    def show_about(self, parent: QWidget, device: str = "") -> None:
        """Show the versions, for a bug report; `device` is that of the last run."""
        dialog = AboutDialog(parent, device)
        dialog.exec()
        dialog.deleteLater()


def _ask_path(parent: QWidget, title: str, suggestion: str, *others: str) -> Path | None:
    suffix = suggestion.rpartition(".")[2]
    dialog = QFileDialog(parent, title, suggestion)
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    filters = {f"{item.upper()} (*.{item})": item for item in (suffix, *others)}
    dialog.setNameFilters(list(filters))
    dialog.setDefaultSuffix(suffix)
    dialog.filterSelected.connect(lambda wanted: dialog.setDefaultSuffix(filters[wanted]))
    chosen = dialog.selectedFiles() if dialog.exec() else []
    dialog.deleteLater()
    return Path(chosen[0]) if chosen else None


def _confirm(parent: QWidget, question: str, details: str, verb: str) -> bool:
    box = QMessageBox(parent)
    box.setIcon(QMessageBox.Icon.NoIcon)
    box.setWindowTitle("Outrider")
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setText(question)
    box.setInformativeText(details)
    yes = box.addButton(verb, QMessageBox.ButtonRole.AcceptRole)
    no = box.addButton(QMessageBox.StandardButton.Cancel)
    # Enter chooses the safe answer.
    box.setDefaultButton(no)
    box.setEscapeButton(no)
    box.exec()
    box.deleteLater()
    return box.clickedButton() is yes
