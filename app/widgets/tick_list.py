"""Several things of which each may be ticked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from PySide6.QtCore import QSignalBlocker, Signal, Slot
from PySide6.QtWidgets import QCheckBox, QGridLayout, QSizePolicy, QWidget

from app.widgets.fields import describe


class TickList(QWidget):
    """Tick boxes, each for a name.

    Signals:
        changed: another one is ticked.
    """

    changed = Signal()

    def __init__(self, object_name: str, title: str, *, columns: int = 1) -> None:
        super().__init__()
        self.setObjectName(object_name)
        self.setAccessibleName(title)
        self._title = title
        self._num_columns = columns
        self._boxes: dict[str, QCheckBox] = {}
        self._layout = QGridLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setHorizontalSpacing(12)
        self._layout.setVerticalSpacing(2)
        for column in range(columns):
            self._layout.setColumnStretch(column, 1)

    def show_items(self, items: Mapping[str, tuple[str, str]]) -> None:
        """Offer these names, each with its title and its help; what is ticked stays so where it is still offered."""
        if {name: (box.text(), box.toolTip()) for name, box in self._boxes.items()} == dict(items):
            return
        ticked = set(self.ticked())
        for box in self._boxes.values():
            self._layout.removeWidget(box)
            box.deleteLater()
        self._boxes = {}
        for index, (name, (title, help_text)) in enumerate(items.items()):
            box = QCheckBox(title)
            box.setObjectName(f"{self.objectName()}{index}")
            describe(box, f"{self._title}: {title}", help_text)
            # A long name is cut off rather than taking the form apart.
            box.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
            box.setChecked(name in ticked)
            box.toggled.connect(self._on_toggled)
            self._boxes[name] = box
            self._layout.addWidget(box, index // self._num_columns, index % self._num_columns)

    def tick(self, names: Iterable[str]) -> None:
        """Tick these, and no others; tells nobody."""
        wanted = set(names)
        for name, box in self._boxes.items():
            with QSignalBlocker(box):
                box.setChecked(name in wanted)

    def ticked(self) -> tuple[str, ...]:
        """The names that are ticked, in their order."""
        return tuple(name for name, box in self._boxes.items() if box.isChecked())

    def names(self) -> tuple[str, ...]:
        """All names, in their order."""
        return tuple(self._boxes)

    def box(self, name: str) -> QCheckBox:
        """The tick box of a name."""
        return self._boxes[name]

    @Slot()
    def _on_toggled(self) -> None:
        self.changed.emit()
