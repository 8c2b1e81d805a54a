"""About: versions, licences, and the question whether there is a newer Outrider, asked only on request."""

from __future__ import annotations

import platform
import re
import urllib.error
import urllib.request
from importlib import metadata
from typing import Any

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QWidget

from app import __version__
from app.jobs import Job, Jobs
from app.widgets.fields import column, grid, push_button, row, text_label, wrapped_label
from core.errors import OutriderError
from core.files import LARGEST_JSON, parse_json
from core.models.catalogue import embedded_models
from core.models.remote import hub

PACKAGES = {
    "PySide6-Essentials": "PySide6 (Qt)",
    "torch": "torch",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
    "accelerate": "accelerate",
    "pyqtgraph": "pyqtgraph",
    "numpy": "numpy",
}
NO_DEVICE = "not known before the first run"
OWN_LICENCE = "Apache-2.0"
"""Of Outrider and of the models that ship with it."""
LONGEST_LICENCE = 160
"""Most characters of a licence; some packages give its whole text."""
INDEX = "https://pypi.org/pypi/outrider/json"
SECONDS = 10.0
UNREACHABLE = "The package index can't be reached. Check the connection, and try again."
NOT_LISTED = "The package index lists no release of Outrider."


def versions(device: str = "") -> list[tuple[str, str, str]]:
    """Name, version and licence of Outrider, its models and packages, read without importing them."""
    found = [("Outrider", __version__, OWN_LICENCE)]
    found += [(entry.title, "included", OWN_LICENCE) for entry in embedded_models()]
    found.append(("Python", platform.python_version(), "PSF-2.0"))
    for package, title in PACKAGES.items():
        try:
            about = metadata.metadata(package)
        except metadata.PackageNotFoundError:
            continue
        found.append((title, about["Version"], _licence(about)))
    return [*found, ("System", platform.platform(), ""), ("Runs on", device or NO_DEVICE, "")]


def _licence(about: metadata.PackageMetadata) -> str:
    fields = about.json
    classifiers = [text.rpartition(" :: ")[2] for text in fields.get("classifier", ()) if text.startswith("License ::")]
    lines = str(fields.get("license_expression") or fields.get("license") or ", ".join(classifiers)).splitlines()
    first = lines[0].strip() if lines else ""
    if first.lower().startswith("apache") and not {"AND", "OR", "WITH"} & set(first.split()):
        return OWN_LICENCE
    return first if len(first) <= LONGEST_LICENCE else f"{first[: LONGEST_LICENCE - 1]}…"


# --- A newer version --------------------------------------------------------------------------------------------


def newer_version() -> str:
    """A sentence on whether the package index has a newer version. Asks it once; call outside the window's thread.

    Raises:
        OutriderError: offline mode is on, the index can't be reached, or it has no such project.
    """
    if hub.is_offline():
        raise OutriderError("Offline mode is on. Unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, and try again.")
    try:
        with urllib.request.urlopen(INDEX, timeout=SECONDS) as answer:
            info = parse_json(answer.read(LARGEST_JSON)).get("info")
    except urllib.error.HTTPError as error:
        raise OutriderError(NOT_LISTED if error.code == 404 else UNREACHABLE) from error
    except (OSError, ValueError, AttributeError) as error:
        raise OutriderError(UNREACHABLE) from error
    return version_sentence(info)


def version_sentence(info: Any) -> str:
    """What the index's answer means.

    Raises:
        OutriderError: it is about another project of this name, or about none.
    """
    latest = info.get("version") if isinstance(info, dict) else None
    if not isinstance(latest, str) or "speculative decoding" not in str(info.get("summary")):
        raise OutriderError(NOT_LISTED)
    if _numbers(latest) > _numbers(__version__):
        return f"Version {latest} is available. Install it with: pip install --upgrade outrider"
    return f"This is the latest version, {__version__}."


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


# --- The dialog -------------------------------------------------------------------------------------------------


class AboutDialog(QDialog):
    """Versions and licences, to read and to copy."""

    def __init__(self, parent: QWidget, device: str, jobs: Jobs) -> None:
        super().__init__(parent)
        self.setObjectName("aboutDialog")
        self.setWindowTitle("About Outrider")
        self._jobs = jobs
        self._job: Job | None = None
        self._versions = versions(device)
        help_text = "Asks the package index once; Outrider never does so by itself"
        title = "Check for a newer version"
        self.check_button = push_button(title, "checkVersionButton", help_text, self._on_check)
        self.answer = wrapped_label("versionAnswer", "hint")
        self.copy_button = push_button("Copy versions", "copyVersionsButton", "For a bug report", self._on_copy)
        self.close_button = push_button("Close", "closeAboutButton", "", self.accept)
        self.close_button.setDefault(True)
        table = grid(across=24, down=4)
        for line, (name, version, licence) in enumerate(self._versions):
            value = text_label(version, "plain")
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            value.setAccessibleName(f"{name} {version}")
            table.addWidget(text_label(name, "field"), line, 0)
            # The system's name is long, and has no licence beside it.
            table.addWidget(value, line, 1, 1, 1 if licence else 2)
            if licence:
                table.addWidget(wrapped_label("", "hint", licence), line, 2)
        table.setColumnStretch(2, 1)
        what = text_label("A desktop playground for speculative decoding.", "hint")
        layout = column(text_label("Outrider", "title"), what, spacing=6)
        layout.setContentsMargins(24, 20, 24, 16)
        layout.addSpacing(8)
        layout.addLayout(table)
        layout.addStretch(1)
        layout.addSpacing(12)
        layout.addWidget(self.answer)
        layout.addLayout(row(self.check_button, None, self.copy_button, self.close_button))
        self.setLayout(layout)
        self.answer.hide()
        self.close_button.setFocus()
        self.finished.connect(self._on_finished)

    @property
    def text(self) -> str:
        """The versions, one per line."""
        return "\n".join(f"{name} {version}" for name, version, _ in self._versions)

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.text)
        self.copy_button.setText("Copied")

    @Slot()
    def _on_check(self) -> None:
        self.check_button.setEnabled(False)
        self._say("Asking the package index…")
        self._job = self._jobs.submit(
            lambda _job: newer_version(), self._show_answer, failed=self._show_answer, what="The check failed"
        )

    def _show_answer(self, sentence: str) -> None:
        self.check_button.setEnabled(True)
        self._say(sentence)

    def _say(self, sentence: str) -> None:
        self.answer.setText(sentence)
        self.answer.show()

    @Slot()
    def _on_finished(self) -> None:
        if self._job is not None:
            self._job.cancel()
