"""The Inspector's pictures of a block: their base class, and a tree as it was drafted and decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPainterPath, QPen, QResizeEvent
from PySide6.QtWidgets import QApplication, QScrollArea

from app.run.inspector.places import in_order
from app.run.text.token_colors import draw_token, token_format
from app.run.text.tokens import Fate, Span, fate_help, fate_of
from app.theme import current_theme, mono_font, scaled
from app.widgets.fields import scrolled
from app.widgets.painted import PaintedWidget, draw_box
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
        q, p: the draft's and the target's probability; NaN where unknown, as for the target's own token.
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


class BlockPicture(PaintedWidget):
    """Draws a block's tokens as boxes that can be clicked. A subclass says where they are.

    Signals:
        chosen: the slot of the token that was clicked.
    """

    chosen = Signal(int)

    def __init__(self, object_name: str, title: str) -> None:
        super().__init__(object_name, title)
        self.setMouseTracking(True)
        self._chips: tuple[Span, ...] = ()
        self._current = -1
        self._meaning: Callable[[Fate], str] = fate_help
        self._hovered: int | None = None

    def boxes(self) -> list[QRectF]:
        """The places of the tokens."""
        raise NotImplementedError

    def show_chips(
        self, chips: Sequence[Span], current: int, meaning: Callable[[Fate], str], *, depths: Sequence[int] = ()
    ) -> None:
        """Show these tokens; those at the slot `current` are marked. `meaning`: of a fate, in a sentence."""
        self._chips, self._current, self._meaning, self._hovered = tuple(chips), current, meaning, None
        places = [f" at depth {depth + 1}" for depth in depths] or [""] * len(chips)
        words = [
            f"“{chip.text}” {chip.fate.value}{place}{' (shown)' * (chip.slot == current)}"
            for chip, place in zip(chips, places, strict=True)
        ]
        self.setAccessibleDescription(", ".join(words))
        self.updateGeometry()
        self.update()

    def box_at(self, point: QPointF) -> int | None:
        """The index of the token at a point."""
        return next((index for index, box in enumerate(self.boxes()) if box.contains(point)), None)

    def tip_at(self, point: QPointF) -> str:
        """Explain a token's fate."""
        if (index := self.box_at(point)) is None:
            return ""
        chip = self._chips[index]
        return f"“{chip.text}”, {chip.fate.value}. {self._meaning(chip.fate)}"

    def _fills(self) -> list[str]:
        """The tokens' backgrounds: the current one is marked while the panel has the focus, and so the arrow keys."""
        theme, focused = current_theme(), QApplication.focusWidget()
        # Qt repaints the panel when its focus changes.
        has_focus = focused is not None and focused.isAncestorOf(self) and not focused.isWindow()
        return [
            theme.hover if index == self._hovered or (has_focus and chip.slot == self._current) else theme.surface
            for index, chip in enumerate(self._chips)
        ]

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Show that a token can be clicked."""
        self._hover(self.box_at(event.position()))

    def leaveEvent(self, event: QEvent) -> None:
        """Nothing is under the pointer any more."""
        super().leaveEvent(event)
        self._hover(None)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Choose a token."""
        index = self.box_at(event.position())
        if event.button() is Qt.MouseButton.LeftButton and index is not None:
            self.chosen.emit(self._chips[index].slot)
        event.ignore()  # The panel takes the focus.

    def _hover(self, index: int | None) -> None:
        if index != self._hovered:
            self._hovered = index
            self.setCursor(Qt.CursorShape.ArrowCursor if index is None else Qt.CursorShape.PointingHandCursor)
            self.update()


class StepTree(BlockPicture):
    """Draws a tree. An edge is as wide as q, and a tick below a token is at p.

    Attributes:
        area: shows it, and scrolls where it doesn't fit.
    """

    def __init__(self) -> None:
        super().__init__("inspectorTree", "Drafted tree")
        self._nodes: tuple[Node, ...] = ()
        self.area = scrolled(self, "inspectorTreeArea", _Area())
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)

    def show_nodes(self, nodes: Sequence[Node], current: int, meaning: Callable[[Fate], str]) -> None:
        """Show a tree; the tokens at the slot `current` are marked, and brought into view."""
        self._nodes = tuple(nodes)
        self.show_chips([node.chip for node in nodes], current, meaning, depths=[node.level for node in nodes])
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
        lines = max((node.row for node in self._nodes), default=0) + 1
        self.setMinimumSize(scaled(ROOT_PX) + self._num_levels * scaled(COLUMN_PX), lines * scaled(ROW_PX) + 4)
        bar = self.area.horizontalScrollBar().sizeHint().height()
        self.area.setFixedHeight(min(self.minimumHeight() + bar, MOST_HEIGHT_PX))
        self.update()

    def sizeHint(self) -> QSize:
        """The minimum size."""
        return self.minimumSize()

    def tip_at(self, point: QPointF) -> str:
        """A token's fate and its probabilities."""
        if (index := self.box_at(point)) is None:
            return ""
        probs = ("q", self._nodes[index].q), ("p", self._nodes[index].p)
        known = (f" {name} = {value:.4f}." for name, value in probs if not math.isnan(value))
        return super().tip_at(point) + "".join(known)

    def boxes(self) -> list[QRectF]:
        """The places of the tokens."""
        root, row, height = scaled(ROOT_PX), scaled(ROW_PX), scaled(CHIP_PX)
        column = min(scaled(MOST_COLUMN_PX), (self.width() - root - 2) / self._num_levels)
        width = column - EDGES_PX
        return [
            QRectF(root + node.level * column + EDGES_PX, 2 + node.row * row, width, height) for node in self._nodes
        ]

    @property
    def _num_levels(self) -> int:
        return max((node.level for node in self._nodes), default=0) + 1

    def _paint(self, painter: QPainter) -> None:
        theme, boxes = current_theme(), self.boxes()
        root = QPointF(scaled(ROOT_PX) / 2, 2 + scaled(CHIP_PX) / 2)
        for node, box in zip(self._nodes, boxes, strict=True):
            start = root if node.parent < 0 else QPointF(boxes[node.parent].right(), boxes[node.parent].center().y())
            self._paint_edge(painter, node, start, QPointF(box.left(), box.center().y()))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.muted))
        painter.drawEllipse(root, 3, 3)
        for node, box, fill in zip(self._nodes, boxes, self._fills(), strict=True):
            self._paint_node(painter, node, box, fill)

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

    def _paint_node(self, painter: QPainter, node: Node, box: QRectF, fill: str) -> None:
        theme, fate = current_theme(), node.chip.fate
        color, style = _ink(fate)
        is_current = node.chip.slot == self._current
        tint = {Fate.BONUS: theme.bonus_tint, Fate.RESAMPLED: theme.correction_tint}.get(fate)
        pen = QPen(color, 2.0 if fate is Fate.ACCEPTED else 1.0, style)
        # The target's own token is round; drafted tokens are not.
        radius = box.height() / 2 if fate in ADDED else 4.0
        draw_box(painter, box.adjusted(0.5, 0.5, -0.5, -0.5), radius, fill=QColor(tint or fill), line=pen)
        if is_current:
            draw_box(painter, box.adjusted(-1.5, -1.5, 1.5, 1.5), radius + 2, line=QPen(QColor(theme.accent), 2))
        inset = radius / 2 + 2
        chosen = token_format(fate, node.chip.text)
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
    if fate is Fate.UNTESTED:
        return QColor(theme.field_border), Qt.PenStyle.DashLine
    colors = {Fate.ACCEPTED: theme.accepted, Fate.REJECTED: theme.correction, Fate.RESAMPLED: theme.correction}
    return QColor(colors.get(fate, theme.bonus)), Qt.PenStyle.SolidLine
