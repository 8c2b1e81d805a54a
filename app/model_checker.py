"""Answers questions about model files in a thread of its own: what is this, and do these two fit together?

Small files only, but disks and network folders are slow, and the engine's thread may be in a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from PySide6.QtCore import QObject, QThread, Signal, Slot

from app.services import Services
from core.errors import OutriderError
from core.models.catalogue import ModelEntry


class ModelRole(StrEnum):
    """What a model is opened as."""

    TARGET = "target"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class PairVerdicts:
    """Which drafts can't work with a target: by reference, a sentence why, or None."""

    target: str
    problems: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A reference that names a model. `role` None: remembered from an earlier time."""

    entry: ModelEntry
    role: ModelRole | None


class ModelChecker(QObject):
    """Lives in its own thread."""

    opened = Signal(object)
    open_failed = Signal(str, object)
    pairs_checked = Signal(object)

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services

    @Slot(str, object)
    def open(self, ref: str, role: ModelRole | None) -> None:
        """Find out what a reference names."""
        try:
            entry = self._services.resolve(ref)
        except (OutriderError, OSError) as error:
            self.open_failed.emit(str(error), role)
        else:
            self.opened.emit(OpenedModel(entry, role))

    @Slot(str, object)
    def check_pairs(self, target: str, drafts: tuple[str, ...]) -> None:
        """Find out which drafts fit a target."""
        self.pairs_checked.emit(PairVerdicts(target, {draft: self._problem(draft, target) for draft in drafts}))

    def _problem(self, draft: str, target: str) -> str | None:
        try:
            return self._services.pair_problem(draft, target)
        except OutriderError as error:
            return str(error)
        except Exception:
            # A file that can't be read here may still be read by the engine, which says better what is wrong with it.
            return None


class ModelCheckerThread(QObject):
    """The window's handle on the checker: owns the thread and hands questions over."""

    opened = Signal(object)
    open_failed = Signal(str, object)
    pairs_checked = Signal(object)

    _open_wanted = Signal(str, object)
    _check_wanted = Signal(str, object)

    def __init__(self, services: Services, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._checker = ModelChecker(services)
        self._thread = QThread()
        self._thread.setObjectName("model checker")
        self._checker.moveToThread(self._thread)
        self._open_wanted.connect(self._checker.open)
        self._check_wanted.connect(self._checker.check_pairs)
        self._checker.opened.connect(self.opened)
        self._checker.open_failed.connect(self.open_failed)
        self._checker.pairs_checked.connect(self.pairs_checked)
        self._thread.start()

    def open(self, ref: str, role: ModelRole | None) -> None:
        """Ask what a reference names; answered by `opened` or `open_failed`."""
        self._open_wanted.emit(ref, role)

    def check_pairs(self, target: str, drafts: tuple[str, ...]) -> None:
        """Ask which drafts fit; answered by `pairs_checked`."""
        self._check_wanted.emit(target, drafts)

    def close(self, milliseconds: int) -> bool:
        """End the thread after the question at hand; true when it has ended."""
        self._thread.quit()
        return self._thread.wait(milliseconds)
