"""Which step, and which place in its block, a person points at: the one thing that text, plots and inspector share."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal, Slot


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a step's block.

    Attributes:
        step: number of the step, from 0, among those that are there.
        slot: place in the block, from 0. The rejected token and the one that was drawn instead share a slot, as do
            discarded tokens and nothing; the bonus token's slot is the number of drafted tokens.
    """

    step: int
    slot: int


class Selection(QObject):
    """Says what is selected, and what the pointer is over. Setting the same again says nothing.

    Signals:
        changed: the selected `Place`, or None.
        hovered: the step under the pointer, or -1.
    """

    changed = Signal(object)
    hovered = Signal(int)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._place: Place | None = None
        self._hovered_step = -1

    @property
    def place(self) -> Place | None:
        """What is selected."""
        return self._place

    @property
    def hovered_step(self) -> int:
        """The step under the pointer, or -1."""
        return self._hovered_step

    @Slot(object)
    def select(self, place: Place | None) -> None:
        """Select a place, or nothing."""
        if place != self._place:
            self._place = place
            self.changed.emit(place)

    @Slot(int)
    def hover(self, step: int) -> None:
        """The pointer is over a step, or over none: -1."""
        if step != self._hovered_step:
            self._hovered_step = step
            self.hovered.emit(step)

    def clear(self) -> None:
        """Select and hover nothing, as when another run begins."""
        self.select(None)
        self.hover(-1)
