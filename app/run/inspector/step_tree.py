"""The Inspector's picture of a tree: one step's candidates from left to right, as they were drafted and decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen, QResizeEvent
from PySide6.QtWidgets import QScrollArea

from app.run.inspector.places import in_order
from app.run.text.token_colors import draw_token, text_format, token_formats
from app.run.text.tokens import Fate, Span, fate_help, fate_of
from app.theme import current_theme, mono_font, scaled
from app.widgets.fields import scrolled
from app.widgets.painted import PaintedBoxes
from core.types import Step

COLUMN_PX, MOST_COLUMN_PX, ROW_PX, CHIP_PX, EDGES_PX, ROOT_PX = 62, 132, 27, 20, 18, 10
MOST_HEIGHT_PX = 300
"""Of the picture; a larger tree scrolls in it."""
EDGE_PX, TICK_PX = 3.0, 3
"""The width of an edge whose q is 1, and half the height of a tick."""
ADDED = frozenset({Fate.BONUS, Fate.RESAMPLED})


@dataclass(frozen=True, slots=True)
class Node:
    """A token of the picture.

    Attributes:
        chip: its text, slot and fate.
        parent: index in the picture; -1 for the last committed token.
        level, row: its place: depth, and lines from the top.
        q, p: the draft's and the target's probability; NaN where unknown, as of what the target added.
    """

    chip: Span
    parent: int
    level: int
    row: int
    q: float = math.nan
    p: float = math.nan


def lay_out(step: Step, chips: Sequence[Span], q: Sequence[float], p: Sequence[float]) -> tuple[Node, ...]:
    """A tree's drafted tokens in index order, then what the target added, which stands below its siblings.

    Args:
        chips: the step's tokens, as `app.run.text.tokens.block` gives them.
        q, p: of each drafted token.
    """
    by_slot = {chip.slot: chip for chip in chips if chip.fate not in ADDED}
    drafted = [by_slot.get(node, Span(fate_of(step, node), "", -1, node)) for node in range(len(step.drafted))]
    added = [chip for chip in chips if chip.fate in ADDED][-1:]
    parents = [*step.parents, *((step.path or (-1,))[-1] for _ in added)]
    levels = [*step.depths, *(step.num_accepted for _ in added)]
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    rows, line, waiting = [0] * len(parents), 0, [-1]
    while waiting:
        node = waiting.pop()
        # A first child is drawn beside its parent, the others on lines of their own.
        line += node >= 0 and node != children[parents[node]][0]
        if node >= 0:
            rows[node] = line
        below = children[node] = in_order(step, children.get(node, []), [*q, *(-1.0 for _ in added)])
        waiting += reversed(below)
    nodes = zip((*drafted, *added), parents, levels, rows, strict=True)
    known = [*zip(q, p, strict=True), *((math.nan, math.nan) for _ in added)]
    return tuple(Node(*node, *probs) for node, probs in zip(nodes, known, strict=True))


class StepTree(PaintedBoxes):
    """Draws a tree. An edge is as wide as q, and a tick below a token is at p.

    Attributes:
        area: shows it, and scrolls where it doesn't fit.
    """

    def __init__(self) -> None:
        super().__init__("inspectorTree", "Drafted tree")
        self._nodes: tuple[Node, ...] = ()
        self._current = -1
        self._meaning: Callable[[Fate], str] = fate_help
        self.area = scrolled(self, "inspectorTreeArea", _Area())
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)

    def show_nodes(self, nodes: Sequence[Node], current: int, meaning: Callable[[Fate], str]) -> None:
        """Show a tree; the tokens at the slot `current` are marked, and brought into view."""
        self._nodes, self._current, self._meaning, self._hovered = tuple(nodes), current, meaning, None
        said = [
            f"“{node.chip.text}” {node.chip.fate.value} at depth {node.level + 1}"
            f"{' (shown)' * (node.chip.slot == current)}"
            for node in nodes
        ]
        self.setAccessibleDescription(", ".join(said))
        self.restyle()
        self.bring_into_view()

    def bring_into_view(self) -> None:
        """Scroll to the current token."""
        for box, node in zip(self.boxes(), self._nodes, strict=True):
            if node.chip.slot == self._current:
                centre = box.center().toPoint()
                self.area.ensureVisible(centre.x(), centre.y(), scaled(COLUMN_PX), scaled(ROW_PX))

    def restyle(self) -> None:
        """Fit the picture and its area to the tree and the size of the text."""
        levels = max((node.level for node in self._nodes), default=0) + 1
        lines = max((node.row for node in self._nodes), default=0) + 1
        self.setMinimumSize(scaled(ROOT_PX) + levels * scaled(COLUMN_PX), lines * scaled(ROW_PX) + 4)
        bar = self.area.horizontalScrollBar().sizeHint().height()
        self.area.setFixedHeight(min(self.minimumHeight() + bar, MOST_HEIGHT_PX))
        self.update()

    def sizeHint(self) -> QSize:
        """The least size."""
        return self.minimumSize()

    def slot_of(self, index: int) -> int:
        """A token's slot."""
        return self._nodes[index].chip.slot

    def tip_at(self, point: QPointF) -> str:
        """A token's fate and its probabilities."""
        if (index := self.box_at(point)) is None:
            return ""
        node = self._nodes[index]
        probs = ("q", node.q), ("p", node.p)
        known = "".join(f" {name} = {value:.4f}." for name, value in probs if not math.isnan(value))
        chip = node.chip
        return f"“{chip.text}”, {chip.fate.value}. {self._meaning(chip.fate)}{known}"

    def boxes(self) -> list[QRectF]:
        """The places of the tokens."""
        levels = max((node.level for node in self._nodes), default=0) + 1
        column = min(scaled(MOST_COLUMN_PX), (self.width() - scaled(ROOT_PX) - 2) / levels)
        return [
            QRectF(
                scaled(ROOT_PX) + node.level * column + EDGES_PX,
                2 + node.row * scaled(ROW_PX),
                column - EDGES_PX,
                scaled(CHIP_PX),
            )
            for node in self._nodes
        ]

    def _paint(self, painter: QPainter) -> None:
        theme, boxes = current_theme(), self.boxes()
        root = QPointF(scaled(ROOT_PX) / 2, 2 + scaled(CHIP_PX) / 2)
        for node, box in zip(self._nodes, boxes, strict=True):
            start = root if node.parent < 0 else QPointF(boxes[node.parent].right(), boxes[node.parent].center().y())
            self._paint_edge(painter, node, start, QPointF(box.left(), box.center().y()))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.muted))
        painter.drawEllipse(root, 3, 3)
        for index, (node, box) in enumerate(zip(self._nodes, boxes, strict=True)):
            self._paint_node(painter, node, box, is_hovered=index == self._hovered)

    def _paint_edge(self, painter: QPainter, node: Node, start: QPointF, end: QPointF) -> None:
        color, style = _ink(node.chip.fate)
        width = 1.0 if math.isnan(node.q) else 0.8 + (EDGE_PX - 0.8) * node.q
        pen = QPen(color, width, style, Qt.PenCapStyle.FlatCap)
        if style is Qt.PenStyle.DashLine:
            pen.setDashPattern([4 / width, 3 / width])
        painter.setPen(pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        bend = QPointF((end.x() - start.x()) / 2, 0)
        path = QPainterPath(start)
        path.cubicTo(start + bend, end - bend, end)
        painter.drawPath(path)

    def _paint_node(self, painter: QPainter, node: Node, box: QRectF, *, is_hovered: bool) -> None:
        theme, fate = current_theme(), node.chip.fate
        color, style = _ink(fate)
        is_current = node.chip.slot == self._current
        fill = theme.hover if is_hovered or (is_current and self._has_focus) else theme.surface
        tint = {Fate.BONUS: theme.bonus_tint, Fate.RESAMPLED: theme.correction_tint}.get(fate)
        painter.setBrush(QColor(tint or fill))
        painter.setPen(QPen(color, 2.0 if fate is Fate.ACCEPTED else 1.0, style))
        # What the target added is round, what was drafted is not.
        radius = box.height() / 2 if fate in ADDED else 4.0
        painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), radius, radius)
        if is_current:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(QColor(theme.accent), 2))
            painter.drawRoundedRect(box.adjusted(-1.5, -1.5, 1.5, 1.5), radius + 2, radius + 2)
        inset = radius / 2 + 2
        chosen = text_format(theme.faint) if fate is Fate.DISCARDED else token_formats()[fate]
        draw_token(painter, node.chip.text, chosen, box.adjusted(inset, 2, -inset, 0), mono_font(11))
        if not math.isnan(node.p):
            x = box.left() + 1 + (box.width() - 2) * min(1.0, node.p)
            tick = QRectF(x - 1, box.bottom() - TICK_PX, 2, 2 * TICK_PX)
            painter.fillRect(tick, QColor(theme.target_bar))


class _Area(QScrollArea):
    """Keeps the current token in view when its size changes."""

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Scroll to it."""
        super().resizeEvent(event)
        if isinstance(tree := self.widget(), StepTree):
            tree.bring_into_view()


def _ink(fate: Fate) -> tuple[QColor, Qt.PenStyle]:
    """The colour and line of a token's outline and of the edge to it."""
    theme = current_theme()
    if fate is Fate.DISCARDED:
        return QColor(theme.field_border), Qt.PenStyle.DashLine
    colors = {Fate.ACCEPTED: theme.accepted, Fate.REJECTED: theme.correction, Fate.RESAMPLED: theme.correction}
    return QColor(colors.get(fate, theme.bonus)), Qt.PenStyle.SolidLine
