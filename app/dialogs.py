"""The dialogs that ask for a path, and About. In one object, so that a test can answer in their place."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget

from app import __version__
from app.widgets.model_picker import OPEN_TITLES, OpenKind

EXPORT_FILTERS = {"Run log, JSON Lines (*.jsonl)": ".jsonl", "Table of steps, CSV (*.csv)": ".csv"}
PACKAGES = ("PySide6-Essentials", "pyqtgraph", "numpy", "torch", "transformers")


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

    def ask_model_path(self, parent: QWidget, kind: OpenKind) -> str | None:
        """A model's folder or .gguf file; None: the person thought better of it."""
        title = OPEN_TITLES[kind].rstrip("…")
        if kind is OpenKind.FOLDER:
            path = QFileDialog.getExistingDirectory(parent, title)
        else:
            path, _ = QFileDialog.getOpenFileName(parent, title, "", "GGUF models (*.gguf)")
        return path or None

    def show_about(self, parent: QWidget) -> None:
        """Versions, for a bug report."""
        box = QMessageBox(parent)
        box.setWindowTitle("About Outrider")
        box.setTextFormat(Qt.TextFormat.RichText)
        box.setText(f"<b>Outrider {__version__}</b><br>A desktop playground for speculative decoding.")
        box.setInformativeText("<br>".join(versions()))
        box.exec()
        box.deleteLater()


def versions() -> list[str]:
    """What Outrider stands on, read from the packages' own records: nothing is imported for it."""
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return found
