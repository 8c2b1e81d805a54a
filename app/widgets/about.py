"""About Outrider: what it is, and the versions that a bug report needs."""

from __future__ import annotations

import platform
from importlib import metadata

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from app import __version__
from app.dress import dress
from app.widgets.fields import describe, text_label

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
    """What Outrider stands on, read from the packages' own records: nothing is imported for it."""
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
        dress(self)
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
        """The versions, one a line."""
        return "\n".join(f"{title} {version}" for title, version in self._versions)

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text)
        self.copy_button.setText("Copied")
