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
    QInputDialog,
    QLineEdit,
    QMessageBox,
    QWidget,
)

from app import __version__
from app.widgets.fields import column, push_button, row, text_label
from core.text import bytes_text


class OpenKind(StrEnum):
    """What to open: safetensors are in a folder, GGUF is a file."""

    FOLDER = "folder"
    GGUF = "gguf"


OPEN_TITLES = {OpenKind.FOLDER: "Open model folder…", OpenKind.GGUF: "Open .gguf file…"}

if TYPE_CHECKING:
    from core.models.remote.downloads import Removal


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
        self.copy_button = push_button("Copy", "copyVersionsButton", "For a bug report")
        self.close_button = push_button("Close", "closeAboutButton", "")
        self.close_button.setDefault(True)
        grid = QGridLayout()
        grid.setHorizontalSpacing(24)
        grid.setVerticalSpacing(4)
        for line, (title, version) in enumerate(self._versions):
            value = text_label(version, "plain")
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            value.setAccessibleName(f"{title} {version}")
            grid.addWidget(text_label(title, "field"), line, 0)
            grid.addWidget(value, line, 1)
        grid.setColumnStretch(1, 1)
        what = text_label("A desktop playground for speculative decoding.", "hint")
        layout = column(text_label("Outrider", "title"), what, spacing=6)
        layout.setContentsMargins(24, 20, 24, 16)
        layout.addSpacing(8)
        layout.addLayout(grid)
        layout.addSpacing(12)
        layout.addLayout(row(None, self.copy_button, self.close_button))
        self.setLayout(layout)
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
    "Report, HTML (*.html)": "html",
    "Table of steps, CSV (*.csv)": "csv",
    "Run log, JSON Lines (*.jsonl)": "jsonl",
}
REPORT_FILTERS = {"TXT (*.txt)": "txt", "JSON (*.json)": "json"}


class Dialogs:
    """Dialogs that ask the user; one object, so that tests can answer instead. None: the dialog was cancelled."""

    def ask_save_path(
        self, parent: QWidget, suggestion: str, *, title: str, filters: dict[str, str] | None = None
    ) -> Path | None:
        """Where to write a file.

        Args:
            filters: the suffix of each format that can be chosen (default: that of the suggestion); it sets the format.
        """
        suffix = suggestion.rpartition(".")[2]
        offered = filters or {f"{suffix.upper()} (*.{suffix})": suffix}
        dialog = QFileDialog(parent, title, suggestion)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters(list(offered))
        dialog.setDefaultSuffix(suffix)
        # The dialog adds the suffix itself, so that it asks before it replaces the file that is actually written.
        dialog.filterSelected.connect(lambda chosen: dialog.setDefaultSuffix(offered[chosen]))
        chosen = dialog.selectedFiles() if dialog.exec() else []
        dialog.deleteLater()
        return Path(chosen[0]) if chosen else None

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
        question = "The text to continue from. Leading spaces count:"
        text, is_given = QInputDialog.getText(parent, "Force a text", question, QLineEdit.EchoMode.Normal, replaced)
        return text if is_given and text else None

    def show_about(self, parent: QWidget, device: str = "") -> None:
        """Show the versions, for a bug report; `device` is that of the last run."""
        dialog = AboutDialog(parent, device)
        dialog.exec()
        dialog.deleteLater()


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
