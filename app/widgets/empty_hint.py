"""What a table says as long as nothing stands in it."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, Qt, Slot
from PySide6.QtWidgets import QLabel, QTableView, QVBoxLayout


class EmptyHint(QLabel):
    """A sentence in the middle of a table, gone with the first row and back with the last."""

    def __init__(self, table: QTableView, sentence: str) -> None:
        super().__init__(sentence, table.viewport())
        self._model = table.model()
        self.setObjectName("emptyHint")
        self.setProperty("role", "hint")
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        layout = QVBoxLayout(table.viewport())
        layout.setContentsMargins(24, 8, 24, 8)
        layout.addWidget(self)
        table.setAccessibleDescription(sentence)
        self._model.rowsInserted.connect(self._show_or_hide)
        self._model.rowsRemoved.connect(self._show_or_hide)
        self._model.modelReset.connect(self._show_or_hide)
        self._show_or_hide()

    @Slot()
    @Slot(QModelIndex, int, int)
    def _show_or_hide(self) -> None:
        self.setVisible(self._model.rowCount() == 0)
