"""The window that ranks drafts for a target: a table, a sentence, and a button that takes one."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QHBoxLayout,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.theme import scaled
from app.view_models.probing import COLUMNS, GENERATED, NO_DRAFTS, NONE_YET, DraftRow
from app.widgets.fields import describe, offer, table_card
from app.widgets.tool_parts import figure_table, push_button
from app.widgets.tool_window import ToolWindow
from app.window_layout import open_at

ROW_HEIGHT = 28
GENERATE_HELP = (
    "Acceptance is about texts that the target itself writes. Without it both models read the prompt alone, which is "
    "faster and says less."
)


class ProbeWindow(ToolWindow):
    """Asks for a probe and ranks what comes of it.

    Signals:
        probe_wanted: the button was pressed.
        draft_chosen: a `DraftProbe` to run with.
    """

    probe_wanted = Signal()
    draft_chosen = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("probe", "Probe drafts", "A probe is going", parent)
        self._rows: tuple[DraftRow, ...] = ()
        self.generate = QCheckBox(f"Let the target write {GENERATED} tokens first")
        self.generate.setObjectName("probeGenerateCheck")
        self.generate.setChecked(True)
        describe(self.generate, self.generate.text(), GENERATE_HELP)
        self.probe_button = push_button("Probe", "probeButton", "Compare the models at every place, and time them")
        self.probe_button.setProperty("role", "primary")
        self.stop_button = push_button("Stop", "stopProbeButton", "End the probe with what it has")
        self.use_button = push_button("Use this draft and K", "useDraftButton", "Put them into the settings")
        self.progress.setRange(0, 0)
        self.table = _table()
        self._lay_out()
        open_at(self, 860, 420)
        self.show_going(is_going=False)
        self.show_rows(())
        self.say(NONE_YET)
        self.probe_button.clicked.connect(self.probe_wanted)
        self.stop_button.clicked.connect(self.stop_wanted)
        self.use_button.clicked.connect(self._on_use)
        self.table.itemSelectionChanged.connect(self._on_selected)
        self.table.itemActivated.connect(self._on_use)

    def _lay_out(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(8)
        top.addWidget(self.generate)
        top.addStretch(1)
        top.addWidget(self.stop_button)
        top.addWidget(self.probe_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 14, 16, 16)
        layout.setSpacing(8)
        layout.addWidget(self.headline)
        layout.addWidget(self.subject)
        layout.addLayout(top)
        layout.addWidget(table_card(self.table), 1)
        layout.addLayout(self._foot(90, self.use_button))

    # --- For the desk ---

    def show_stage(self, text: str) -> None:
        """What is being done."""
        self.stage.setText(text)

    def show_going(self, *, is_going: bool) -> None:
        """Offer only what can be done now."""
        offer(self.probe_button, self.stop_button, is_going=is_going)
        self.generate.setEnabled(not is_going)
        self.progress.setVisible(is_going)

    def show_rows(self, rows: Sequence[DraftRow]) -> None:
        """Show drafts in this order, the first selected."""
        self._rows = tuple(rows)
        self.table.setRowCount(len(rows))
        for index, row in enumerate(rows):
            for column, text in enumerate(row.texts):
                item = QTableWidgetItem(text)
                item.setToolTip(row.tip)
                across = Qt.AlignmentFlag.AlignRight if column else Qt.AlignmentFlag.AlignLeft
                item.setTextAlignment(across | Qt.AlignmentFlag.AlignVCenter)
                if row.probe.problem:
                    item.setFlags(item.flags() & ~Qt.ItemFlag.ItemIsEnabled)
                self.table.setItem(index, column, item)
            self.table.setRowHeight(index, scaled(ROW_HEIGHT))
        if rows:
            self.table.selectRow(0)
        self._on_selected()

    def selected(self) -> DraftRow | None:
        """The row that is selected."""
        place = self.table.currentRow()
        return self._rows[place] if self._rows and 0 <= place < len(self._rows) else None

    # --- Itself ---

    @Slot()
    def _on_selected(self) -> None:
        row = self.selected()
        self.use_button.setEnabled(row is not None and row.is_usable)

    @Slot()
    def _on_use(self) -> None:
        row = self.selected()
        if row is not None and row.is_usable:
            self.draft_chosen.emit(row.probe)


def _table() -> QTableWidget:
    columns = [(meaning.title, meaning.help, place > 0) for place, meaning in enumerate(COLUMNS)]
    return figure_table("probeTable", "Drafts, the best first", columns, NO_DRAFTS)
