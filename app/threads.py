"""The window's threads, ended together: engine, questions about models, downloads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from PySide6.QtCore import QObject, Signal, Slot


class OwnsThread(Protocol):
    """What owns one thread."""

    closed: Any
    """A signal: the thread has ended."""

    @property
    def is_closed(self) -> bool:
        """Whether the thread has ended."""
        ...

    def begin_close(self) -> None:
        """Have it end, and return at once."""
        ...

    def join(self, milliseconds: int) -> bool:
        """Wait for its end; true when it has ended."""
        ...


class Threads(QObject):
    """Ends several threads as one.

    Signals:
        closed: the last of them has ended.
    """

    closed = Signal()

    def __init__(self, owners: Sequence[OwnsThread], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._owners = tuple(owners)
        for owner in self._owners:
            owner.closed.connect(self._on_closed)

    @property
    def is_closed(self) -> bool:
        """Whether all have ended."""
        return all(owner.is_closed for owner in self._owners)

    def begin_close(self) -> None:
        """Have all end. Returns at once; `closed` says when it is done. Asking twice does nothing."""
        for owner in self._owners:
            owner.begin_close()

    def join(self, milliseconds: int) -> bool:
        """Wait for all, and for no longer than this; true when they have ended."""
        deadline = time.monotonic() + milliseconds / 1000
        ended = [owner.join(max(0, round(1000 * (deadline - time.monotonic())))) for owner in self._owners]
        return all(ended)

    @Slot()
    def _on_closed(self) -> None:
        if self.is_closed:
            self.closed.emit()
