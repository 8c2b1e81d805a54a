"""The window that checks exactness: a verdict, the tests that it rests on, and the first tokens for a look."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QScrollArea,
    QSpinBox,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.theme import LIGHT, Theme, scaled
from app.view_models.checking import COLUMNS, NO_TESTS, NONE_YET, CheckRow
from app.widgets.check_bars import CheckBars
from app.widgets.fields import WheelGuard, describe, offer, scrolled, set_flag, table_card, text_label
from app.widgets.tool_parts import figure_table, push_button, wrapped_label
from app.widgets.tool_window import ToolWindow
from app.window_layout import open_at
from core.check.types import DEFAULT_SAMPLES, LEAST_SAMPLES, FirstTokens

ROW_HEIGHT = 26
LEAST_ROWS, MOST_ROWS = 4, 9
MOST_BLOCKS = 200_000
BLOCKS_HELP = "Blocks that are drawn for the test of the sampled law. Four times as many find half as large a mistake."
TRANSFORMERS_HELP = "Also hold plain greedy text against transformers' own generate, which is slower."


class CheckWindow(ToolWindow):
    """Asks for a check and shows its report.

    Signals:
        check_wanted: the button was pressed.
        copy_wanted, save_wanted: the report is to be taken away.
    """

    check_wanted = Signal()
    copy_wanted = Signal()
    save_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("check", "Check exactness", "How far this part of the check is", parent)
        self._theme = LIGHT
        self._rows: tuple[CheckRow, ...] = ()
        self._first_tokens: tuple[FirstTokens, ...] = ()
        self.mark = text_label("", "verdictMark")
        self.mark.setObjectName("checkMark")
        self.mark.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.blocks = QSpinBox()
        self.blocks.setObjectName("checkBlocksSpin")
        self.blocks.setRange(LEAST_SAMPLES, MOST_BLOCKS)
        self.blocks.setSingleStep(1_000)
        self.blocks.setGroupSeparatorShown(True)
        self.blocks.setValue(DEFAULT_SAMPLES)
        describe(self.blocks, "Blocks", BLOCKS_HELP)
        self.with_transformers = QCheckBox("Also against transformers")
        self.with_transformers.setObjectName("checkTransformersCheck")
        describe(self.with_transformers, self.with_transformers.text(), TRANSFORMERS_HELP)
        self.check_button = push_button("Check", "checkButton", "Compare texts, and test the sampled law")
        self.check_button.setProperty("role", "primary")
        self.stop_button = push_button("Stop", "stopCheckButton", "End the check; there is no verdict then")
        self.copy_button = push_button("Copy report", "copyCheckButton", "The whole report as text")
        self.save_button = push_button("Save…", "saveCheckButton", "The report as text or JSON")
        self.table = _table()
        self.remarks = wrapped_label("checkRemarks", "hint")
        self.prompts = QComboBox()
        self.prompts.setObjectName("checkPromptsCombo")
        describe(self.prompts, "First tokens after", "The prompts that blocks were drawn for")
        self.bars = CheckBars()
        self._guard = WheelGuard(self)
        self._guard.watch(self.blocks, self.prompts)
        self._lay_out()
        open_at(self, 860, 740)
        self.show_going(is_going=False)
        self.show_nothing(NONE_YET)
        self.check_button.clicked.connect(self.check_wanted)
        self.stop_button.clicked.connect(self.stop_wanted)
        self.copy_button.clicked.connect(self.copy_wanted)
        self.save_button.clicked.connect(self.save_wanted)
        self.prompts.currentIndexChanged.connect(self._on_prompt)

    def _lay_out(self) -> None:
        words = QVBoxLayout()
        words.setSpacing(2)
        words.addWidget(self.headline)
        words.addWidget(self.subject)
        head = QHBoxLayout()
        head.setSpacing(12)
        head.addWidget(self.mark, 0, Qt.AlignmentFlag.AlignTop)
        head.addLayout(words, 1)
        asked = QHBoxLayout()
        asked.setSpacing(8)
        asked.addWidget(text_label("Blocks", "field", buddy=self.blocks))
        asked.addWidget(self.blocks)
        asked.addWidget(self.with_transformers)
        asked.addStretch(1)
        asked.addWidget(self.stop_button)
        asked.addWidget(self.check_button)
        self._tokens = QWidget()
        tokens = QHBoxLayout(self._tokens)
        tokens.setContentsMargins(0, 0, 0, 0)
        tokens.setSpacing(8)
        tokens.addWidget(text_label("First tokens after", "field", buddy=self.prompts))
        tokens.addWidget(self.prompts, 1)
        tokens.addWidget(text_label("outlined: expected · filled: drawn", "hint"))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 14, 16, 16)
        layout.setSpacing(8)
        layout.addLayout(head)
        layout.addLayout(asked)
        layout.addWidget(self._results(), 1)
        layout.addLayout(self._foot(120, self.copy_button, self.save_button))

    def _results(self) -> QScrollArea:
        """What does not fit, with large text, is a turn of the wheel away."""
        body = QWidget()
        inside = QVBoxLayout(body)
        inside.setContentsMargins(0, 0, 0, 0)
        inside.setSpacing(8)
        inside.addWidget(table_card(self.table), 1)
        for widget in (self.remarks, self._tokens, self.bars):
            inside.addWidget(widget)
        return scrolled(body, "checkResults")

    def rescale(self) -> None:
        """The text has another size."""
        self._fill_table()

    # --- For the desk ---

    def show_nothing(self, sentence: str, *, is_problem: bool = False) -> None:
        """A sentence, and no verdict."""
        set_flag(self.mark, "kind", "none")
        self.mark.setText("?")
        self.mark.setAccessibleName("No verdict yet")
        self.say(sentence, is_problem=is_problem)
        self.show_results((), "", ())

    def show_verdict(self, mark: str, name: str, sentence: str) -> None:
        """The verdict: a sign, its kind for the style sheet, and a sentence."""
        set_flag(self.mark, "kind", name)
        self.mark.setText(mark)
        self.mark.setAccessibleName(sentence)
        set_flag(self.headline, "role", "verdict")
        self.headline.setText(sentence)

    def show_results(self, rows: Sequence[CheckRow], remarks: str, first_tokens: Sequence[FirstTokens]) -> None:
        """What the verdict rests on; empty for nothing."""
        self._rows = tuple(rows)
        self._fill_table()
        self.remarks.setText(remarks)
        self.remarks.setVisible(bool(remarks))
        self._first_tokens = tuple(first_tokens)
        self.prompts.clear()
        self.prompts.addItems([found.prompt for found in self._first_tokens])
        for widget in (self._tokens, self.bars):
            widget.setVisible(bool(self._first_tokens))
        self.copy_button.setEnabled(bool(rows))
        self.save_button.setEnabled(bool(rows))
        self._on_prompt()

    def show_stage(self, text: str, done: int = 0, total: int = 0) -> None:
        """What is being done, and how far it is; without a total, nobody knows."""
        self.stage.setText(f"{text}: {done:,} of {total:,}" if total else text)
        self.progress.setRange(0, total)
        self.progress.setValue(done)

    def show_going(self, *, is_going: bool) -> None:
        """Offer only what can be done now."""
        offer(self.check_button, self.stop_button, is_going=is_going)
        for widget in (self.blocks, self.with_transformers):
            widget.setEnabled(not is_going)
        self.progress.setVisible(is_going)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.bars.set_theme(theme)
        self._fill_table()

    # --- Itself ---

    def _fill_table(self) -> None:
        self.table.setRowCount(len(self._rows))
        for index, row in enumerate(self._rows):
            for column, text in enumerate(row.texts):
                item = QTableWidgetItem(text)
                item.setToolTip(row.tip)
                is_figure = 0 < column < len(row.texts) - 1
                across = Qt.AlignmentFlag.AlignRight if is_figure else Qt.AlignmentFlag.AlignLeft
                item.setTextAlignment(across | Qt.AlignmentFlag.AlignVCenter)
                if row.is_failed:
                    item.setForeground(QColor(self._theme.danger))
                self.table.setItem(index, column, item)
            self.table.setRowHeight(index, scaled(ROW_HEIGHT))
        rows = min(max(len(self._rows), LEAST_ROWS), MOST_ROWS)
        self.table.setMinimumHeight((rows + 1) * scaled(ROW_HEIGHT) + scaled(ROW_HEIGHT) // 2)

    @Slot()
    def _on_prompt(self) -> None:
        place = self.prompts.currentIndex()
        self.bars.show_tokens(self._first_tokens[place] if 0 <= place < len(self._first_tokens) else None)


def _table() -> QTableWidget:
    last = len(COLUMNS) - 1
    columns = [(title, help_text, 0 < place < last) for place, (title, help_text) in enumerate(COLUMNS)]
    return figure_table("checkTable", "Tests and what came of them", columns, NO_TESTS)
