"""The dialogs that ask for a path, and About. In one object, so that a test can answer in their place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QInputDialog, QLineEdit, QMessageBox, QWidget

from app.view_models.model_text import bytes_text
from app.widgets.about import AboutDialog
from app.widgets.model_picker import OPEN_TITLES, OpenKind

if TYPE_CHECKING:
    from core.models.downloads import Removal

EXPORT_FILTERS = {
    "Run log, JSON Lines (*.jsonl)": ".jsonl",
    "Table of steps, CSV (*.csv)": ".csv",
    "Report to read, HTML (*.html)": ".html",
}


class Dialogs:
    """Asks a person."""

    def ask_export_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where a run is to be written; the suffix tells the format. None: the person thought better of it."""
        dialog = QFileDialog(parent, "Export run", suggestion)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters(list(EXPORT_FILTERS))
        dialog.setDefaultSuffix("jsonl")
        # The dialog itself adds the suffix, so that it asks before it replaces the file that is really meant.
        dialog.filterSelected.connect(lambda chosen: dialog.setDefaultSuffix(EXPORT_FILTERS[chosen][1:]))
        chosen = dialog.selectedFiles() if dialog.exec() else []
        dialog.deleteLater()
        return Path(chosen[0]) if chosen else None

    def ask_comparison_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where the report of several runs is to be written; None: nowhere after all."""
        return _ask_path(parent, "Export comparison", suggestion)

    def ask_plot_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where a plot is to be written, in the format that the suggestion's suffix tells; None: nowhere after all."""
        return _ask_path(parent, "Save plot", suggestion)

    def ask_configuration_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where a configuration is to be written; None: nowhere after all."""
        return _ask_path(parent, "Save configuration", suggestion)

    def ask_report_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where a report is to be written, as text or as JSON by its suffix; None: nowhere after all."""
        return _ask_path(parent, "Save report", suggestion, "json")

    def ask_sweep_export_path(self, parent: QWidget, suggestion: str) -> Path | None:
        """Where a sweep is to be written, in the format that the suggestion's suffix tells; None: nowhere after all."""
        return _ask_path(parent, "Export sweep", suggestion)

    def ask_sweep_path(self, parent: QWidget, folder: Path) -> Path | None:
        """A sweep's file; None: the person thought better of it."""
        path, _ = QFileDialog.getOpenFileName(parent, "Open sweep", str(folder), "Sweeps (*.jsonl)")
        return Path(path) if path else None

    def ask_prompts_path(self, parent: QWidget) -> Path | None:
        """A file of prompts; None: the person thought better of it."""
        path, _ = QFileDialog.getOpenFileName(parent, "Prompts", "", "Prompts (*.jsonl *.ndjson *.txt);;All files (*)")
        return Path(path) if path else None

    def ask_model_path(self, parent: QWidget, kind: OpenKind) -> str | None:
        """A model's folder or .gguf file; None: the person thought better of it."""
        title = OPEN_TITLES[kind].rstrip("…")
        if kind is OpenKind.FOLDER:
            path = QFileDialog.getExistingDirectory(parent, title)
        else:
            path, _ = QFileDialog.getOpenFileName(parent, title, "", "GGUF models (*.gguf)")
        return path or None

    def ask_removal(self, parent: QWidget, removal: Removal) -> bool:
        """Whether a model is to be deleted, after what that means."""
        question = f"Delete {removal.entry.title}?"
        details = f"This frees {bytes_text(removal.frees_bytes)}. {removal.note}\n\n{removal.entry.path}"
        return _confirm(parent, question, details, "Delete")

    def ask_too_large(self, parent: QWidget, forecast: str) -> bool:
        """Whether models that won't fit by the forecast are to be loaded all the same."""
        details = f"{forecast}.\n\nLoading may take long, slow the computer down, or fail."
        return _confirm(parent, "This pair may not fit in memory. Load it?", details, "Load it")

    def ask_forced_text(self, parent: QWidget, replaced: str) -> str | None:
        """A text to put in a token's place, spaces included; None: the person thought better of it."""
        question = "The text to continue from. A space at its beginning counts:"
        text, is_given = QInputDialog.getText(parent, "Force a text", question, QLineEdit.EchoMode.Normal, replaced)
        return text if is_given and text else None

    def show_about(self, parent: QWidget, device: str = "") -> None:
        """Versions, for a bug report; `device` is what the last run was on."""
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
    # The safe answer is the one that a slip of the Enter key gives.
    box.setDefaultButton(no)
    box.setEscapeButton(no)
    box.exec()
    box.deleteLater()
    return box.clickedButton() is yes
