"""The Inspector: shows how the selected token was chosen, from the drafted block to the deciding draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QObject, QRectF, QSize, Qt, Slot
from PySide6.QtGui import QColor, QFontMetrics, QKeyEvent, QPainter, QPen, QResizeEvent
from PySide6.QtWidgets import QStackedLayout, QToolButton

from app.menus import key_text
from app.run.inspector.distribution_bars import DistributionBars
from app.run.inspector.inspection import NOT_REPORTED, Inspection, inspect
from app.run.inspector.places import next_candidate, next_slot, next_step
from app.run.inspector.shares import shorten
from app.run.inspector.step_tree import BlockPicture, StepTree, lay_out
from app.run.run_page import RunPage, column_label
from app.run.run_view import RunView
from app.run.text.token_colors import draw_token, token_format
from app.run.text.tokens import KINDS, Place, Selection, fate_help
from app.theme import current_theme, mono_font, scaled, ui_font
from app.widgets.fields import boxed, card, column, held, quiet_button, row, scrolled, text_label, wrapped_label
from app.widgets.painted import LEFT, draw_box, draw_text
from app.widgets.tables import FigureTable
from core.types import Step

CHIP_PX, GAP_PX, PADDING_PX, MOST_TEXT_PX = 40, 5, 6, 120


class BlockRow(BlockPicture):
    """Draws a block's tokens, in as many lines as needed."""

    def __init__(self) -> None:
        super().__init__("inspectorBlock", "Drafted block")
        policy = self.sizePolicy()
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def heightForWidth(self, width: int) -> int:
        """The height of all lines."""
        boxes = self.boxes(width)
        return int(boxes[-1].bottom() if boxes else scaled(CHIP_PX)) + 2

    def sizeHint(self) -> QSize:
        """The current size."""
        return QSize(280, self.heightForWidth(max(self.width(), 200)))

    def minimumSizeHint(self) -> QSize:
        """At worst one chip per line."""
        return QSize(MOST_TEXT_PX + 2 * PADDING_PX, self.sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Request the height of the current lines."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()

    def boxes(self, width: int = 0) -> list[QRectF]:
        """Positions of the chips, at a given width or its own."""
        boxes, x, y, height = [], 1.0, 1.0, scaled(CHIP_PX)
        mono, small = QFontMetrics(mono_font(12)), QFontMetrics(ui_font(11))
        for chip in self._chips:
            text = min(scaled(MOST_TEXT_PX), mono.horizontalAdvance(chip.text))
            wide = max(text, small.horizontalAdvance(chip.fate.value)) + 2 * PADDING_PX + 2
            if x > 1 and x + wide > (width or self.width()) - 1:
                x, y = 1.0, y + height + GAP_PX
            boxes.append(QRectF(x, y, wide, height))
            x += wide + GAP_PX
        return boxes

    def _paint(self, painter: QPainter) -> None:
        theme, mono = current_theme(), mono_font(12)
        for chip, box, fill in zip(self._chips, self.boxes(), self._fills(), strict=True):
            is_current = chip.slot == self._current
            pen = QPen(QColor(theme.accent), 2) if is_current else QPen(QColor(theme.field_border), 1)
            draw_box(painter, box.adjusted(0.5, 0.5, -0.5, -0.5), 6, fill=QColor(fill), line=pen)
            inside = box.adjusted(PADDING_PX, scaled(4), 1 - PADDING_PX, 0)
            draw_token(painter, chip.text, token_format(chip.fate, chip.text), inside, mono)
            color = theme.kind(KINDS[chip.fate]).color if chip.fate in KINDS else theme.muted
            below = QRectF(inside.left(), box.top() + scaled(22), inside.width() + 1, scaled(17))
            draw_text(painter, below, chip.fate.value, color, LEFT, pixels=11)


FEW_ROWS = 12
RUN_FIRST = f"Run the prompt first ({key_text('Ctrl+Enter')}), then click a token in the text to see how it was chosen."
EMPTY = (
    "Click a token in the text, or move to one with the arrow keys, to see how it was chosen: the block it was drafted "
    "in, its test, and both models' distributions at its position."
)
EMPTY_SERVED = (
    "Click a token in the text, or move to one with the arrow keys, to see the block it was drafted in. " + NOT_REPORTED
)
KEYS_HELP = (
    "Left and Right move from token to token, Up and Down from step to step. In a tree, Left and Right move in "
    "depth, Up and Down between the candidates for a position."
)
MOVES = {
    Qt.Key.Key_Left: (next_slot, -1),
    Qt.Key.Key_Right: (next_slot, 1),
    Qt.Key.Key_Up: (next_candidate, -1),
    Qt.Key.Key_Down: (next_candidate, 1),
}
"""What the arrow keys do."""
TREE_HINT = "Width of an edge: q. Tick: p. Dashed: never tested. Round: added by the target."


class InspectorPanel(RunPage):
    """Shows the selected place of a `RunView`'s steps, and moves the selection by keyboard."""

    def __init__(self, run: RunView, selection: Selection) -> None:
        super().__init__()
        self.setObjectName("inspector")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName("Inspector")
        self.setAccessibleDescription(KEYS_HELP)
        self._run = run
        self._selection = selection
        self._shown: Inspection | None = None
        self._shows_all = False
        self.title = column_label("inspectorTitle", "title")
        self.subtitle = column_label("inspectorSubtitle", "hint")
        self.before = quiet_button("‹", "stepBefore", "Previous step", "Previous step (Up)")
        self.behind = quiet_button("›", "stepAfter", "Next step", "Next step (Down)")
        for button in (self.before, self.behind):
            button.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # A click leaves the focus to the panel.
            button.installEventFilter(self)
        self.block = BlockRow()
        self.tree = StepTree()
        self.tree_hint = wrapped_label("inspectorTreeHint", "hint", TREE_HINT)
        self.verdict = wrapped_label("inspectorVerdict", "plain")
        self.tests = wrapped_label("inspectorTests", "plain")
        self.facts = FigureTable("inspectorFacts")
        self.bars = DistributionBars()
        self.note = wrapped_label("inspectorNote", "hint")
        self.more = QToolButton()
        self.more.setObjectName("showAllTokens")
        self.more.setProperty("role", "link")
        self._empty = wrapped_label("inspectorEmpty", "hint", RUN_FIRST)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty.setContentsMargins(20, 0, 20, 0)
        self._lay_out()
        self.block.chosen.connect(self._on_chip_chosen)
        self.tree.chosen.connect(self._on_chip_chosen)
        self.before.clicked.connect(lambda: self._move(next_step, -1))
        self.behind.clicked.connect(lambda: self._move(next_step, 1))
        self.more.clicked.connect(self._on_more)
        selection.changed.connect(self._show_if_seen)

    def _lay_out(self) -> None:
        titles = column(self.title, self.subtitle, spacing=0)
        header = row((titles, 1), self.before, self.behind, spacing=2)
        block_card, _ = card(header, self.block, self.tree.area, self.tree_hint, self.verdict, self.tests, self.facts)
        more = row(self.more, None)
        bars_card, bars_layout = card(text_label("Probabilities", "section"), self.note, self.bars, more)
        bars_layout.setSpacing(4)
        self.scroll_area = scrolled(boxed(column(block_card, bars_card, None)), "inspectorScroll")
        empty_card, _ = card((self._empty, 1))
        self._pages = QStackedLayout(self)
        self._pages.addWidget(empty_card)
        self._pages.addWidget(self.scroll_area)

    def refresh(self, *, has_news: bool) -> None:
        """Show the evidence of the selected place once it has arrived."""
        super().refresh(has_news=has_news and (self._shown is None or not self._shown.shares))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Go from token to token and from step to step."""
        key = Qt.Key(event.key())
        if key in MOVES and not event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self._move(*MOVES[key])
        elif key in (Qt.Key.Key_PageUp, Qt.Key.Key_PageDown):
            bar = self.scroll_area.verticalScrollBar()
            bar.setValue(bar.value() + (1 if key == Qt.Key.Key_PageDown else -1) * bar.pageStep())
        else:
            super().keyPressEvent(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """On the buttons, too, the arrow keys move the selection, not the focus."""
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress and event.key() in MOVES:
            self.keyPressEvent(event)
            return True
        return super().eventFilter(watched, event)

    def _show_run(self, *, has_turned: bool) -> None:
        run, place = self._run, self._selection.place
        is_coming = run.request is not None and run.request.inspect and run.summary is None
        self._shown = None
        if place is not None:
            self._shown = inspect(
                run.steps, place, run.coupling, is_typical=run.is_lossy, typical=run.typical, is_coming=is_coming
            )
        self._pages.setCurrentIndex(0 if self._shown is None else 1)
        if self._shown is None or place is None:
            self._empty.setText((EMPTY_SERVED if run.is_on_server else EMPTY) if run.num_tokens else RUN_FIRST)
            return
        self.title.setText(self._shown.title)
        self.subtitle.setText(self._shown.subtitle)
        self._show_block(self._shown, place)
        self.verdict.setText(held(self._shown.verdict))
        self.tests.setVisible(bool(self._shown.tests))
        self.tests.setText("\n".join(self._shown.tests))
        self.facts.show_rows(self._shown.facts)
        self.note.setText(self._shown.note)
        self.note.setVisible(bool(self._shown.note))
        self._show_shares()

    def _show_block(self, shown: Inspection, place: Place) -> None:
        step = self._run.steps[place.step]
        meaning = partial(fate_help, coupling=self._run.coupling, is_greedy=step.temperature == 0)
        is_tree = bool(step.parents)
        self.block.setHidden(is_tree)
        self.tree.area.setVisible(is_tree)
        self.tree_hint.setVisible(is_tree)
        if is_tree:
            nodes = lay_out(step, shown.chips, shown.draft_shares, shown.target_shares)
            self.tree.show_nodes(nodes, place.slot, meaning)
        else:
            self.block.show_chips(shown.chips, place.slot, meaning)

    def _show_shares(self) -> None:
        shares = self._shown.shares if self._shown is not None else ()
        few = shorten(shares, FEW_ROWS) if shares else ()
        self.bars.setVisible(bool(shares))
        self.bars.show_shares(shares if self._shows_all else few)
        self.more.setVisible(len(few) < len(shares))
        self.more.setText(f"Show the first {FEW_ROWS}" if self._shows_all else f"Show all {len(shares) - 1}")

    @Slot(int)
    def _on_chip_chosen(self, slot: int) -> None:
        self.setFocus(Qt.FocusReason.MouseFocusReason)
        if (place := self._selection.place) is not None:
            self._selection.select(Place(place.step, slot))

    def _move(self, move: Callable[[Sequence[Step], Place | None, int], Place | None], by: int) -> None:
        self._selection.select(move(self._run.steps, self._selection.place, by))

    @Slot()
    def _on_more(self) -> None:
        self._shows_all = not self._shows_all
        self._show_shares()
