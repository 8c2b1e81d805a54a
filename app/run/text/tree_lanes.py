"""A drafted tree as lanes: columns are positions, lanes are paths, the accepted one first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPainterPath, QPen, QTextCharFormat

from app.run.inspector.shares import show
from app.run.text.token_colors import draw_token, token_format
from app.run.text.tokens import GHOSTS, Fate, Place, Span, TokenStream, drafted_spans, emitted_spans, first_path
from app.theme import current_theme, mixed, mono_font, scaled, ui_font
from app.widgets.painted import LEFT, RIGHT, draw_box, draw_text
from core.text import count_text
from core.types import depths_of

MOST_OTHERS = 3
"""Lanes shown below the first; the others are counted."""
LINES = 6
"""Lines of text that the strip takes."""
HEAD, FOOT = 17, 6
"""Room for the positions above the lanes, and below them."""
FONT = 12
GAP, LEAST_GAP, MOST_GAPS = 20, 11, 0.4
"""Space between two columns, for the branches; that in a narrow strip; and the largest share of the width for all."""
MARGIN = 16
LEAST_COLUMN = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """A token in its lane.

    Attributes:
        node: its index in the tree; the number of nodes for the token that the target added.
        parent: the node before it, -1 at the root.
    """

    span: Span
    node: int
    parent: int
    lane: int
    column: int


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The paths of one step's tree.

    Attributes:
        step: its number.
        is_pending: whether the block awaits verification.
        cells: the tokens of the lanes shown.
        num_hidden: the number of further lanes.
        caption: the block in a few words.
    """

    step: int
    is_pending: bool
    cells: tuple[Cell, ...]
    num_hidden: int
    caption: str


def paths_of(parents: Sequence[int], first: Sequence[int]) -> list[list[int]]:
    """A tree's paths, each without the nodes that it shares with an earlier one; `first` is the first of them."""
    following = {parent: node for node, parent in reversed([*enumerate(parents)])}
    taken, paths = set(first), [list(first)]
    for node in range(len(parents)):
        path: list[int] = []
        at: int | None = node
        while at is not None and at not in taken:
            path.append(at)
            taken.add(at)
            at = following.get(at)
        if path:
            paths.append(path)
    return paths


def chosen_paths(parents: Sequence[int], first: Sequence[int], tested: Sequence[int]) -> tuple[list[list[int]], int]:
    """The paths to show, and how many more there are: those that lost a test before those never reached.

    Ordered so that branches cross no lane: below each path, those that leave it, the latest first.
    """
    head, *others = paths_of(parents, first)
    others.sort(key=lambda path: path[0] not in tested)
    depths, shown = depths_of(parents), others[:MOST_OTHERS]

    def below(path: Sequence[int], is_head: bool = False) -> Iterator[list[int]]:
        leaving = [other for other in shown if parents[other[0]] in path or (is_head and parents[other[0]] < 0)]
        for other in sorted(leaving, key=lambda other: -depths[other[0]]):
            yield other
            yield from below(other)

    return [head, *below(head, is_head=True)], len(others) - len(shown)


def lanes_of(stream: TokenStream, number: int) -> Lanes | None:
    """The lanes of a step, or of the pending block after all steps; None if it drafted no tree."""
    is_pending = number == len(stream.steps)
    parents = stream.pending_parents if is_pending else stream.steps[number].parents
    if not parents:
        return None
    if is_pending:
        first, spans = first_path(parents), [*stream.pending]
        tested: Sequence[int] = ()
        caption = f"{len(parents)} nodes drafted"
    else:
        step = stream.steps[number]
        first, tested, spans = [*step.path], step.tested, drafted_spans(step, number)
        caption = f"{len(first)} of {len(parents)} nodes accepted"
    paths, num_hidden = chosen_paths(parents, first, tested)
    depths = depths_of(parents)
    cells = [
        Cell(spans[node], node, parents[node], lane, depths[node]) for lane, path in enumerate(paths) for node in path
    ]
    if not is_pending:
        # What the target added to the path, unless the text ended before it.
        added = [span for span in emitted_spans(step, number) if span.fate is not Fate.ACCEPTED]
        cells += [Cell(span, len(parents), first[-1] if first else -1, 0, len(first)) for span in added]
    cells.sort(key=lambda cell: (cell.lane, cell.column))
    return Lanes(number, is_pending, tuple(cells), num_hidden, caption)


# --- Drawing ----------------------------------------------------------------------------------------------------


class LanePicture:
    """Draws lanes into an area, and knows which token is where.

    Attributes:
        progress: from 0, at the verdict, to 1, when the paths that lost have faded.
    """

    def __init__(self, lanes: Lanes, before: LanePicture | None = None) -> None:
        """`before` drew the same block while it was pending; its tokens move from there to their place."""
        self.lanes, self._before = lanes, before
        self.progress = 1.0

    def span_at(self, point: QPointF, area: QRectF) -> Span | None:
        """The token at a point."""
        found = self._places(area)
        return next((cell.span for cell in self.lanes.cells if found[cell.node].contains(point)), None)

    def paint(self, painter: QPainter, area: QRectF, marked: Place | None, pointed: Span | None) -> None:
        """Draw the lanes; `marked` is framed, `pointed` highlighted."""
        theme, found, gap = current_theme(), self._moving_places(area), self._gap(area)
        draw_box(painter, area.adjusted(0, 1, 0, -1), 6, fill=QColor(theme.window))
        self._draw_head(painter, area, found)
        first = self._row(area, 0)
        root = QRectF(first.left() + scaled(MARGIN) - 3, first.top(), 3, first.height())
        # The accepted lane covers the beginnings of the others.
        for cell in reversed(self.lanes.cells):
            painter.setOpacity(self._presence(cell))
            painter.setPen(self._pen(cell))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawPath(_edge(found.get(cell.parent, root), found[cell.node], gap))
        painter.setOpacity(1.0)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(theme.accepted))
        painter.drawEllipse(root.center(), 2.5, 2.5)
        for cell in self.lanes.cells:
            self._draw_token(painter, cell, found[cell.node], pointed)
        framed = [found[cell.node] for cell in self.lanes.cells if cell.span.place == marked][-1:]
        for place in framed:
            draw_box(painter, place.adjusted(-2.5, 0.5, 1.5, -0.5), 2.5, line=QPen(QColor(theme.accent), 1.5))

    @staticmethod
    def _row(area: QRectF, lane: int) -> QRectF:
        height = (area.height() - scaled(HEAD + FOOT)) / (1 + MOST_OTHERS)
        return QRectF(area.left(), area.top() + scaled(HEAD) + height * lane, area.width() - scaled(MARGIN), height)

    def _widths(self) -> tuple[dict[int, float], dict[int, float]]:
        """The width of each node's text, and of each column."""
        metrics = QFontMetricsF(mono_font(FONT))
        own = {cell.node: metrics.horizontalAdvance(show(cell.span.text)) + 1 for cell in self.lanes.cells}
        columns: dict[int, float] = {}
        for cell in self.lanes.cells:
            columns[cell.column] = max(columns.get(cell.column, LEAST_COLUMN), own[cell.node])
        return own, columns

    def _gap(self, area: QRectF) -> float:
        """The space between two columns, which shrinks before a text is cut."""
        _, widths = self._widths()
        free = (area.width() - 2 * scaled(MARGIN) - sum(widths.values())) / len(widths)
        return min(scaled(GAP), MOST_GAPS * area.width() / len(widths), max(LEAST_GAP, free))

    def _places(self, area: QRectF) -> dict[int, QRectF]:
        """The rectangle of each node; columns that don't fit are narrowed, the widest first."""
        own, widths = self._widths()
        gap, most = self._gap(area), max(widths.values())
        room = area.width() - 2 * scaled(MARGIN) - len(widths) * gap
        while most > LEAST_COLUMN and sum(min(width, most) for width in widths.values()) > room:
            most -= 1
        lefts = [area.left() + scaled(MARGIN) + gap]
        for column in range(len(widths)):
            lefts.append(lefts[-1] + min(widths[column], most) + gap)
        found = {}
        for cell in self.lanes.cells:
            row = self._row(area, cell.lane)
            found[cell.node] = QRectF(lefts[cell.column], row.top(), min(own[cell.node], most), row.height())
        return found

    def _moving_places(self, area: QRectF) -> dict[int, QRectF]:
        found = self._places(area)
        if self._before is None or self.progress >= 1.0:
            return found
        start = self._before._places(area)
        for node in start.keys() & found.keys():
            found[node].translate((start[node].topLeft() - found[node].topLeft()) * (1.0 - self.progress))
        return found

    def _draw_head(self, painter: QPainter, area: QRectF, found: dict[int, QRectF]) -> None:
        theme, width = current_theme(), area.width() - scaled(MARGIN)
        head = QRectF(area.left(), area.top() + 2, width, scaled(HEAD) - 2)
        lefts = {cell.column: found[cell.node].left() for cell in self.lanes.cells}
        for column, left in lefts.items():
            above = head.adjusted(left - head.left(), 0, 0, 0)
            draw_text(painter, above, str(column + 1), theme.faint, LEFT, pixels=10)
        metrics = QFontMetricsF(ui_font(10))
        before = QRectF(head.left(), head.top(), min(lefts.values()) - head.left() - scaled(4), head.height())
        if metrics.horizontalAdvance("depth") <= before.width():
            draw_text(painter, before, "depth", theme.faint, RIGHT, pixels=10)
        text, place = self.caption_at(area)
        if text:
            painter.fillRect(place, QColor(theme.window))
            draw_text(painter, place, text, theme.muted, RIGHT, pixels=10)

    def caption_at(self, area: QRectF) -> tuple[str, QRectF]:
        """The block in a few words, with how many paths are not shown, and where: at the end of the upper edge.

        Where not all fits, the number of paths alone, which may cover the last positions.
        """
        metrics, right = QFontMetricsF(ui_font(10)), area.right() - scaled(MARGIN)
        hidden = count_text(self.lanes.num_hidden, "more path") if self.lanes.num_hidden else ""
        text = " · ".join(filter(None, (self.lanes.caption, hidden)))
        left = max(place.left() for place in self._places(area).values()) + scaled(24)
        if right - metrics.horizontalAdvance(text) - 2 < left:
            text = hidden
        start = right - metrics.horizontalAdvance(text) - scaled(6)
        return text, QRectF(start, area.top() + 2, right - start, scaled(HEAD) - 2)

    def _pen(self, cell: Cell) -> QPen:
        """Dashed while the block is pending; then solid on the accepted lane, and thin where a path lost."""
        theme = current_theme()
        if self.lanes.is_pending:
            pen = QPen(QColor(theme.accepted), 1.2)
            pen.setDashPattern([3, 2.5])
            return pen
        if cell.span.fate not in GHOSTS:
            return QPen(QColor(theme.accepted), 2.0)
        return QPen(mixed(theme.accepted, theme.field_border, self.progress), 1.2)

    def _draw_token(self, painter: QPainter, cell: Cell, place: QRectF, pointed: Span | None) -> None:
        theme, shown = current_theme(), QTextCharFormat(token_format(cell.span.fate, cell.span.text))
        if cell.span is pointed:
            painter.fillRect(place.adjusted(-2, 1, 1, -1), QColor(theme.selection))
        if self.lanes.is_pending:
            shown.setForeground(QColor(theme.text))
        elif cell.span.fate in GHOSTS:
            shown.setForeground(mixed(theme.text, theme.faint, self.progress))
        font = mono_font(FONT)
        inset = (place.height() - QFontMetricsF(font).height()) / 2
        painter.setOpacity(self._presence(cell))
        draw_token(painter, show(cell.span.text), shown, place.adjusted(0, inset, 0, 0), font)
        painter.setOpacity(1.0)

    def _presence(self, cell: Cell) -> float:
        """The opacity of a token, which grows if it was not there while the block was pending."""
        is_new = self._before is not None and all(cell.node != other.node for other in self._before.lanes.cells)
        return self.progress if is_new else 1.0


def _edge(start: QRectF, end: QRectF, gap: float) -> QPainterPath:
    """The line to a token from the one before it; into another lane around a corner."""
    y, to, bend = start.center().y(), end.center().y(), end.left() - gap / 2
    path, corner = QPainterPath(QPointF(start.right() + 2, y)), min(gap / 4, abs(to - y))
    if corner:
        path.lineTo(bend, y)
        path.lineTo(bend, to - corner if to > y else to + corner)
        path.quadTo(bend, to, bend + corner, to)
    path.lineTo(end.left() - 3, to)
    return path
