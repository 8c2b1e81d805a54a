"""What a check found: a row for each test, remarks, and how often each first token was drawn."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt, Slot
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QComboBox, QStyle, QStyleOptionComboBox, QStylePainter, QWidget

from app.run.inspector.shares import VISIBLE
from app.theme import current_theme, hold, scaled
from app.widgets.fields import (
    boxed,
    card,
    column,
    guard_wheel,
    hint_label,
    named,
    row,
    table_card,
    text_label,
    wrapped_label,
)
from app.widgets.painted import LEFT, RIGHT, PaintedWidget, draw_box, draw_text
from app.widgets.rows import Column, Row
from app.widgets.tables import Table
from core.experiments.check_plan import (
    CheckReport,
    DistributionTest,
    FirstTokens,
    IdentityResult,
    TokenCount,
)
from core.experiments.check_report import COMPARED, distribution_remarks, divergence_line, p_text, title_of
from core.text import count_text

# --- Rows ---

COLUMNS = (
    Column("Test", "What is compared."),
    Column("Tokens", "How many tokens were compared or counted.", is_figure=True),
    Column(
        "χ²",
        "Pearson's chi-squared over the cells with an expected count of five or more; for the tokens that the draft "
        "overrates, the squared deviation.",
        is_figure=True,
    ),
    Column("df", "Degrees of freedom of χ².", is_figure=True),
    Column(
        "Result",
        "p: how often an exact engine does at least this badly by chance. A small p is evidence against exactness.",
    ),
)
TESTED = {
    "bias": "Tokens to which the draft gives a higher probability than the target does: their count against the "
    "target's probabilities.",
    "bonus": "Tokens after a fully accepted draft, against the target's distribution.",
}
TESTED_PLACE = "Tokens at this position of a block, by the tokens before them, against the target's distribution."
SMALLEST_SHOWN_P = 0.001


def rows_of(report: CheckReport) -> list[Row[None]]:
    """A row for each test."""
    tests = () if report.distribution is None else report.distribution.tests
    return [*map(_compared, report.identities), *map(_tested, tests)]


def _compared(item: IdentityResult) -> Row[None]:
    ties = sum(divergence.is_near_tie for divergence in item.divergences)
    others = len(item.divergences) - ties
    parts = [count_text(ties, "near-tie")] * bool(ties) + [f"{others} unexplained"] * bool(others)
    tip = "\n".join(map(divergence_line, item.divergences)) or "Token by token, to the end of each text."
    mark = "✕" if not item.is_exact else "≈" if ties else "✓"
    texts = (COMPARED[item.comparison], f"{item.num_tokens:,}", "", "", f"{mark} {', '.join(parts) or 'equal'}")
    return Row(None, texts[0], texts, tip, is_bad=not item.is_exact)


def _tested(test: DistributionTest) -> Row[None]:
    figures = (f"{test.statistic:.1f}", f"{test.degrees:,}") if test.degrees else ("", "")
    result, tip = p_text(test.p_value), TESTED.get(test.name, TESTED_PLACE)
    if test.p_value is not None:
        is_small = test.p_value < SMALLEST_SHOWN_P
        tip = f"{tip} p = {result}." if is_small else tip
        result = f"p < {SMALLEST_SHOWN_P:g}" if is_small else f"p = {test.p_value:.3f}"
        result = f"{'✕' if test.is_failed else '✓'} {result}"
    texts = (title_of(test), f"{test.num_samples:,}", *figures, result)
    return Row(None, test.name, texts, tip, is_bad=test.is_failed)


def _top_share(found: FirstTokens) -> float:
    """The share of the most likely token."""
    total = sum(item.expected for item in found.counts)
    return max((item.expected for item in found.counts if item.text), default=0.0) / total if total else 1.0


def token_text(item: TokenCount) -> str:
    """A token's text, with visible spaces."""
    return repr(item.text)[1:-1].translate(VISIBLE) if item.text else "all others"


# --- Widgets ---

ROW, BAR = 26, 7
TEXT_WIDTH, FIGURE_WIDTH, GAP = 110, 150, 10
NUM_ROWS = 9
LEAST_EXPECTED = 0.05
"""A token that was never drawn gets a row only if its expected count is above this, which would be shown as 0.0."""
LEGEND = "{}; outlined: expected, filled: drawn"
SHOWN = "The bars show only token 1 of a block, which {}."
MIN_ROWS, MAX_ROWS = 4, 9


class CheckBars(PaintedWidget):
    """First tokens after a prompt: expected counts as outlines, and observed counts as filled bars below them."""

    def __init__(self) -> None:
        super().__init__("checkBars")
        self.show_tokens(None)

    def show_tokens(self, found: FirstTokens | None) -> None:
        """Show the first tokens after a prompt; None if there are none yet."""
        counts = found.counts if found is not None else ()
        self._counts = [item for item in counts if item.observed or item.expected >= LEAST_EXPECTED]
        self.setAccessibleName(f"First tokens after {found.prompt}" if found else "First tokens: nothing yet")
        said = (f"{token_text(i)}: {i.observed:,} observed, {i.expected:,.1f} expected" for i in self._counts)
        self.setAccessibleDescription("; ".join(said))
        self.setToolTip("Outlined: expected from the target. Filled: observed." if found else "")
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """Room for all rows."""
        return QSize(420, min(len(self._counts), NUM_ROWS) * scaled(ROW))

    def _paint(self, painter: QPainter) -> None:
        most = max((max(item.observed, item.expected) for item in self._counts), default=1.0) or 1.0
        left, room = scaled(TEXT_WIDTH), self.width() - scaled(TEXT_WIDTH + FIGURE_WIDTH + GAP)
        for index, item in enumerate(self._counts[:NUM_ROWS]):
            place = QRectF(0, index * scaled(ROW), self.width(), scaled(ROW))
            self._draw_texts(painter, place, item)
            self._draw_bars(painter, place.center().y(), item, left, max(room, 1) / most)

    def _draw_texts(self, painter: QPainter, place: QRectF, item: TokenCount) -> None:
        theme, is_token = current_theme(), bool(item.text)
        text, color, size = token_text(item), theme.text if is_token else theme.muted, 13 if is_token else 12
        left = QRectF(place.left(), place.top(), scaled(TEXT_WIDTH - GAP), place.height())
        end = Qt.TextElideMode.ElideRight
        draw_text(painter, left, text, color, LEFT, pixels=size, is_mono=is_token, elided=end)
        figures = f"{item.observed:,}, expected {item.expected:,.1f}"
        draw_text(painter, place, figures, theme.muted, RIGHT)

    def _draw_bars(self, painter: QPainter, middle: float, item: TokenCount, left: float, scale: float) -> None:
        height = scaled(BAR)
        expected = QRectF(left + 0.5, middle - height + 0.5, max(item.expected * scale, 1), height - 2)
        draw_box(painter, expected, line=QColor(current_theme().bonus))
        observed = QRectF(left, middle + 1, item.observed * scale + 1, height - 1)
        draw_box(painter, observed, fill=QColor(current_theme().draft_bar))


class ElidedCombo(QComboBox):
    """A dropdown that shows with an ellipsis that its text is cut, which Qt's own doesn't."""

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw it with as much of the text as fits."""
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        part = QStyle.SubControl.SC_ComboBoxEditField
        room = self.style().subControlRect(QStyle.ComplexControl.CC_ComboBox, option, part, self).width()
        option.currentText = self.fontMetrics().elidedText(self.currentText(), Qt.TextElideMode.ElideRight, room)
        painter = QStylePainter(self)
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)
        painter.end()


class CheckResults(QWidget):
    """The tests and their results in a table, and below it the first tokens after one of the prompts."""

    def __init__(self) -> None:
        super().__init__()
        last = len(COLUMNS) - 1
        self.table: Table[None] = Table("checkTable", "Tests and their results", COLUMNS, stretched=last)
        self.remarks = wrapped_label("checkRemarks", "hint")
        prompts_help = "The prompts for which blocks were drawn"
        self.prompts = named(ElidedCombo(), "checkPromptsCombo", "First tokens after", prompts_help)
        self.prompts.setMinimumContentsLength(12)
        self.prompts.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        guard_wheel(self.prompts)
        self.legend = hint_label("checkLegend")
        self.shown = wrapped_label("checkShown", "hint")
        self.bars = CheckBars()
        after = text_label("First tokens after", "field", buddy=self.prompts)
        self._tokens, _ = card(row(after, (self.prompts, 1), self.legend), self.shown, self.bars)
        self._layout = column(table_card(self.table), self.remarks, self._tokens, None)
        boxed(self._layout, self)
        self.first_tokens: tuple[FirstTokens, ...] = ()
        self.prompts.currentIndexChanged.connect(self._on_prompt_chosen)

    def show_report(self, report: CheckReport | None) -> None:
        """Show what a check found; None: nothing yet."""
        found = report.distribution if report is not None else None
        rows = rows_of(report) if report is not None else []
        self.table.show_rows(rows)
        # As high as its rows, and all there is before there are any.
        hold(self.table, least_height=round((min(max(len(rows), MIN_ROWS), MAX_ROWS) + 1.7) * ROW))
        self._layout.setStretch(0, 0 if rows else 1)
        self._layout.setStretch(self._layout.count() - 1, 1 if rows else 0)
        fails = report is not None and report.is_unexplained
        # The first stands below the verdict.
        notes = report.notes[fails:] if report is not None else ()
        remarks = "\n".join((*(distribution_remarks(found) if found is not None else ()), *notes))
        self.remarks.setText(remarks)
        self.remarks.setVisible(bool(remarks))
        self.first_tokens = found.first_tokens if found is not None else ()
        first = next((test for test in found.tests if test.position == 1), None) if found is not None else None
        if fails and first is not None:
            result = "failed" if first.is_failed else "was not tested" if first.p_value is None else "passed"
            self.shown.setText(SHOWN.format(result))
        self.shown.setVisible(fails and first is not None)
        self.prompts.clear()
        self.prompts.addItems([tokens.prompt for tokens in self.first_tokens])
        # First the prompt after which the most tokens are likely: where one takes all, there is little to compare.
        shares = [_top_share(tokens) for tokens in self.first_tokens]
        self.prompts.setCurrentIndex(shares.index(min(shares)) if shares else -1)
        self._tokens.setVisible(bool(self.first_tokens))
        self._on_prompt_chosen()

    @Slot()
    def _on_prompt_chosen(self) -> None:
        place = self.prompts.currentIndex()
        found = self.first_tokens[place] if 0 <= place < len(self.first_tokens) else None
        self.bars.show_tokens(found)
        blocks = count_text(sum(item.observed for item in found.counts) if found is not None else 0, "block")
        self.legend.setText(LEGEND.format(blocks))
