"""The dialogs that ask for a path or a confirmation."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QInputDialog, QLineEdit, QMessageBox, QWidget

from app.jobs import Jobs
from app.tools.about import AboutDialog
from core.text import bytes_text

if TYPE_CHECKING:
    from core.models.remote.removal import Removal


class OpenKind(StrEnum):
    """What to open: safetensors are in a folder, GGUF is a file."""

    FOLDER = "folder"
    GGUF = "gguf"


OPEN_TITLES = {OpenKind.FOLDER: "Open model folder…", OpenKind.GGUF: "Open .gguf file…"}
EXPORT_FILTERS = {
    "Report, HTML (*.html)": "html",
    "Table of steps, CSV (*.csv)": "csv",
    "Run log, JSON Lines (*.jsonl)": "jsonl",
}
REPORT_FILTERS = {"TXT (*.txt)": "txt", "JSON (*.json)": "json"}


def with_suffix(parent: QWidget | None, path: Path, wanted: str, offered: Iterable[str]) -> Path | None:
    """A path that ends with the format's suffix, which Qt adds to no name with a dot; None to leave a file as it is."""
    if path.suffix.lower() in {".htm", ".md", ".ndjson", *(f".{suffix}" for suffix in offered)}:
        return path
    path = path.with_name(f"{path.name}.{wanted}")
    question = f"{path.name} exists already. Replace it?"
    if path.exists() and QMessageBox.question(parent, "Replace file", question) != QMessageBox.StandardButton.Yes:
        return None
    return path


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
        wanted = offered[dialog.selectedNameFilter()]
        dialog.deleteLater()
        return with_suffix(parent, Path(chosen[0]), wanted, offered.values()) if chosen else None

    def ask_sweep_path(self, parent: QWidget, folder: Path) -> Path | None:
        """A sweep file to open."""
        path, _ = QFileDialog.getOpenFileName(parent, "Open sweep", str(folder), "Sweeps (*.jsonl)")
        return Path(path) if path else None

    def ask_prompts_path(self, parent: QWidget) -> Path | None:
        """A file of prompts to open."""
        kinds = "Prompts (*.jsonl *.ndjson *.json *.txt);;All files (*)"
        path, _ = QFileDialog.getOpenFileName(parent, "Prompts", "", kinds)
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
        text, is_given = QInputDialog.getText(parent, "Force text", question, QLineEdit.EchoMode.Normal, replaced)
        return text if is_given and text else None

    def show_about(self, parent: QWidget, device: str, jobs: Jobs) -> None:
        """Show versions and licences; `device` is that of the last run."""
        dialog = AboutDialog(parent, device, jobs)
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
