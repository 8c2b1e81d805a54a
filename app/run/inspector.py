"""The inspector: how the selected token came about, from the drafted block to the draw that decided."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFont,
    QFontMetrics,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QShowEvent,
    QTextCharFormat,
    QTextLayout,
)
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QSizePolicy,
    QStackedLayout,
    QToolButton,
    QToolTip,
    QVBoxLayout,
    QWidget,
)

from app.run.inspection import (
    Chip,
    Fate,
    Inspection,
    Share,
    inspect,
    next_slot,
    next_step,
    number,
    percent,
    shorten,
)
from app.run.run_view import RunView
from app.run.tokens import Place, Selection
from app.theme import LIGHT, Theme, mono_font, scaled, ui_font
from app.widgets.fields import card, describe, scrolled, text_label
from app.widgets.tables import FigureTable
from core.types import TokenKind

CHIP_PX = 40
GAP_PX = 5
PADDING_PX = 6
MOST_TEXT_PX = 120

KINDS = {Fate.ACCEPTED: TokenKind.ACCEPTED, Fate.RESAMPLED: TokenKind.CORRECTION, Fate.BONUS: TokenKind.BONUS}

HELP = {
    Fate.ACCEPTED: "Drafted, tested and kept.",
    Fate.REJECTED: "Drafted, tested and rejected.",
    Fate.DISCARDED: "Drafted behind the rejected token: never tested.",
    Fate.RESAMPLED: "The target's own, in place of the rejected token.",
    Fate.BONUS: "The target's own, behind a fully accepted block, or where nothing was drafted.",
}


def format_of(theme: Theme, fate: Fate | None, *, is_sum: bool = False) -> QTextCharFormat:
    """The text format of a token of this fate, as the transcript has it."""
    if fate in KINDS:
        return theme.token_format(KINDS[fate])
    if fate is not None:
        return theme.ghost_format()
    text_format = QTextCharFormat()
    text_format.setForeground(QColor(theme.muted if is_sum else theme.text))
    return text_format


def draw_text(painter: QPainter, text: str, font: QFont, x: float, y: float, text_format: QTextCharFormat) -> None:
    """Draw a line of text in a format, line style included."""
    layout = QTextLayout(text, font)
    span = QTextLayout.FormatRange()
    span.start, span.length, span.format = 0, len(text.encode("utf-16-le", "surrogatepass")) // 2, text_format
    layout.setFormats([span])
    layout.beginLayout()
    layout.createLine()
    layout.endLayout()
    layout.draw(painter, QPointF(x, y))


class BlockRow(QWidget):
    """Draws `Chip`s, in as many lines as needed.

    Signals:
        chosen: the slot of the chip that was clicked.
    """

    chosen = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("inspectorBlock")
        self.setAccessibleName("Drafted block")
        self.setMouseTracking(True)
        self._theme = LIGHT
        self._chips: tuple[Chip, ...] = ()
        self._boxes: list[QRectF] = []
        self._hovered: int | None = None
        self._has_focus = False
        self._mono, self._small, self._height = mono_font(12), ui_font(11), scaled(CHIP_PX)
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self._mono, self._small, self._height = mono_font(12), ui_font(11), scaled(CHIP_PX)
        self.show_chips(self._chips)

    def show_chips(self, chips: Sequence[Chip]) -> None:
        """Show these tokens."""
        self._chips = tuple(chips)
        self._hovered = None
        self._boxes = self._lay_out(self.width())
        words = ", ".join(f"“{chip.text}” {chip.fate.value}{' (shown)' * chip.is_current}" for chip in chips)
        self.setAccessibleDescription(words)
        self.updateGeometry()
        self.update()

    def set_focus_shown(self, shown: bool) -> None:
        """Fill the current chip while the arrow keys move from it."""
        self._has_focus = shown
        self.update()

    def chip_at(self, point: QPointF) -> int | None:
        """The index of the chip under a point."""
        return next((index for index, box in enumerate(self._boxes) if box.contains(point)), None)

    def box_of(self, index: int) -> QRectF:
        """Where a chip stands."""
        return self._boxes[index]

    def hasHeightForWidth(self) -> bool:
        """Chips wrap."""
        return True

    def heightForWidth(self, width: int) -> int:
        """The height of all lines."""
        boxes = self._lay_out(width)
        return int(boxes[-1].bottom()) + 2 if boxes else self._height + 2

    def sizeHint(self) -> QSize:
        """As it is now."""
        return QSize(280, self.heightForWidth(max(self.width(), 200)))

    def minimumSizeHint(self) -> QSize:
        """One chip a line, at worst."""
        return QSize(MOST_TEXT_PX + 2 * PADDING_PX, self.heightForWidth(max(self.width(), 200)))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Wrap anew, and ask for the height of the lines that there are now."""
        super().resizeEvent(event)
        self._boxes = self._lay_out(self.width())
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()

    def _lay_out(self, width: int) -> list[QRectF]:
        boxes, x, y = [], 1.0, 1.0
        for chip in self._chips:
            wide = self._width_of(chip)
            if x > 1 and x + wide > width - 1:
                x, y = 1.0, y + self._height + GAP_PX
            boxes.append(QRectF(x, y, wide, self._height))
            x += wide + GAP_PX
        return boxes

    def _width_of(self, chip: Chip) -> float:
        text = min(scaled(MOST_TEXT_PX), QFontMetrics(self._mono).horizontalAdvance(chip.text))
        return max(text, QFontMetrics(self._small).horizontalAdvance(chip.fate.value)) + 2 * PADDING_PX + 2

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the chips."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for index, (chip, box) in enumerate(zip(self._chips, self._boxes, strict=True)):
            self._paint_chip(painter, chip, box, is_hovered=index == self._hovered)
        painter.end()

    def _paint_chip(self, painter: QPainter, chip: Chip, box: QRectF, *, is_hovered: bool) -> None:
        theme = self._theme
        painter.setPen(QPen(QColor(theme.accent), 2) if chip.is_current else QPen(QColor(theme.field_border), 1))
        is_filled = is_hovered or (chip.is_current and self._has_focus)
        painter.setBrush(QColor(theme.hover if is_filled else theme.surface))
        painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), 6, 6)
        room = int(box.width() - 2 * PADDING_PX)
        text = QFontMetrics(self._mono).elidedText(chip.text, Qt.TextElideMode.ElideRight, room + 1)
        draw_text(painter, text, self._mono, box.left() + PADDING_PX, box.top() + 3, format_of(theme, chip.fate))
        painter.setFont(self._small)
        painter.setPen(QColor(theme.kind(KINDS[chip.fate]).color if chip.fate in KINDS else theme.muted))
        below = QRectF(box.left() + PADDING_PX, box.top() + scaled(20), room + 2, scaled(17))
        painter.drawText(below, Qt.AlignmentFlag.AlignVCenter, chip.fate.value)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Show that a chip can be clicked."""
        self._hover(self.chip_at(event.position()))

    def leaveEvent(self, event: QEvent) -> None:
        """Nothing is hovered any more."""
        super().leaveEvent(event)
        self._hover(None)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Choose a chip."""
        index = self.chip_at(event.position())
        if event.button() is Qt.MouseButton.LeftButton and index is not None:
            self.chosen.emit(self._chips[index].slot)
        event.ignore()  # The panel takes the focus.

    def event(self, event: QEvent) -> bool:
        """A chip's tooltip says what its fate means."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            index = self.chip_at(QPointF(event.pos()))
            chip = None if index is None else self._chips[index]
            text = "" if chip is None else f"<span>“{escape(chip.text)}”, {chip.fate.value}. {HELP[chip.fate]}</span>"
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)

    def _hover(self, index: int | None) -> None:
        if index != self._hovered:
            self._hovered = index
            self.setCursor(Qt.CursorShape.ArrowCursor if index is None else Qt.CursorShape.PointingHandCursor)
            self.update()


HEADER_PX = 24
ROW_PX = 20
COLUMN_GAP_PX = 10
NUMBER_PX = 44
LEAST_BAR_PX = 1.5
"""A bar above 0 stays visible."""


class DistributionBars(QWidget):
    """Draws `Share`s. All columns share one scale, so that lengths can be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("distributionBars")
        self.setAccessibleName("Probabilities at this place")
        self._shares: tuple[Share, ...] = ()
        self._columns: list[tuple[str, str, list[float | None]]] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.set_theme(LIGHT)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self._header, self._row, self._number = scaled(HEADER_PX), scaled(ROW_PX), scaled(NUMBER_PX)
        self.updateGeometry()
        self.update()

    def show_shares(self, shares: Sequence[Share]) -> None:
        """Show these rows."""
        self._shares = tuple(shares)
        columns: list[tuple[str, str, list[float | None]]] = [
            ("draft q", "draft_bar", [share.draft for share in shares]),
            ("target p", "target_bar", [share.target for share in shares]),
            ("residual", "sample_bar", [share.residual for share in shares]),
        ]
        self._columns = [column for column in columns if any(value is not None for value in column[2])]
        self.setAccessibleDescription("; ".join(_spoken(share) for share in shares))
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        """As high as its rows."""
        return QSize(280, self._header + self._row * len(self._shares) + 2)

    def minimumSizeHint(self) -> QSize:
        """Rows are never cut."""
        return QSize(200, self.sizeHint().height())

    def row_at(self, y: float) -> int | None:
        """The row at a height."""
        row = int((y - self._header) // self._row)
        return row if y >= self._header and row < len(self._shares) else None

    def event(self, event: QEvent) -> bool:
        """A row's tooltip has its figures in full."""
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip:
            row = self.row_at(event.pos().y())
            text = "" if row is None else f"<span>{escape(_spoken(self._shares[row]))}</span>"
            QToolTip.showText(event.globalPos(), text, self)
            return True
        return super().event(event)

    def _text_width(self) -> float:
        return min(scaled(180), max(scaled(72), 0.26 * self.width()))

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw the columns' names, then the rows."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        first = self._text_width() + COLUMN_GAP_PX
        count = max(1, len(self._columns))
        width = (self.width() - first - COLUMN_GAP_PX * (count - 1)) / count
        most = max((value or 0.0 for *_, values in self._columns for value in values), default=0.0) or 1.0
        self._paint_texts(painter)
        for index, (title, token, values) in enumerate(self._columns):
            left = first + index * (width + COLUMN_GAP_PX)
            self._paint_column(painter, title, QColor(getattr(self._theme, token)), values, left, width, most)
        painter.end()

    def _paint_texts(self, painter: QPainter) -> None:
        mono, plain = mono_font(12), ui_font(12)
        for row, share in enumerate(self._shares):
            top = self._header + row * self._row
            if share.fate is not None:
                painter.fillRect(QRectF(0, top, self.width(), self._row), QColor(self._theme.hover))
            font = plain if share.token is None else mono
            text = QFontMetrics(font).elidedText(share.text, Qt.TextElideMode.ElideRight, int(self._text_width()) - 4)
            draw_text(painter, text, font, 4, top + 2, format_of(self._theme, share.fate, is_sum=share.token is None))

    def _paint_column(
        self,
        painter: QPainter,
        title: str,
        color: QColor,
        values: list[float | None],
        left: float,
        width: float,
        most: float,
    ) -> None:
        painter.setFont(ui_font(11))
        painter.setPen(QColor(self._theme.muted))
        align = Qt.AlignmentFlag.AlignVCenter
        painter.fillRect(QRectF(left, self._header / 2 - 5, 8, 8), color)
        painter.drawText(QRectF(left + 12, 0, width - 12, self._header - 2), align, title)
        room = max(8.0, width - self._number)
        for row, value in enumerate(values):
            if value is None:
                continue
            top = self._header + row * self._row
            length = room * value / most
            if value > 0:
                painter.fillRect(QRectF(left, top + 5, max(LEAST_BAR_PX, length), self._row - 10), color)
            painter.setPen(QColor(self._theme.text if value > 0 else self._theme.faint))
            place = QRectF(left + max(LEAST_BAR_PX, length) + 4, top, self._number, self._row)
            painter.drawText(place, align, percent(value))


def _spoken(share: Share) -> str:
    name = share.text if share.token is None else f"“{share.text}” (id {share.token})"
    parts = [f"target {number(share.target)}"]
    if share.draft is not None:
        parts.append(f"draft {number(share.draft)}")
    if share.residual is not None:
        parts.append(f"residual {number(share.residual)}")
    fate = f", {share.fate.value} here" if share.fate is not None else ""
    return f"{name}{fate}: {', '.join(parts)}"


FEW_ROWS = 12
EMPTY = (
    "Click a token in the text, or arrow to one, to see how it came about: the block it was drafted in, how it was "
    "tested, and what both models said at its place."
)
KEYS_HELP = "Left and Right move from token to token, Up and Down from step to step."


class InspectorPanel(QWidget):
    """Shows the selected place of a `RunView`'s steps, and moves the selection by keyboard."""

    def __init__(self, run: RunView, selection: Selection) -> None:
        super().__init__()
        self.setObjectName("inspector")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName("Inspector")
        self.setAccessibleDescription(KEYS_HELP)
        self._run = run
        self._selection = selection
        self._is_stale = True
        self._shown: Inspection | None = None
        self._shows_all = False
        self.title = text_label("", "title")
        self.subtitle = text_label("", "hint")
        self.before = _step_button("‹", "stepBefore", "The step before (Up)")
        self.behind = _step_button("›", "stepBehind", "The next step (Down)")
        self.block = BlockRow()
        self.verdict = _wrapped("plain")
        self.facts = FigureTable("inspectorFacts")
        self.bars = DistributionBars()
        self.note = _wrapped("hint")
        self.more = QToolButton()
        self.more.setObjectName("showAllTokens")
        self.more.setProperty("role", "link")
        self._empty = _wrapped("hint")
        self._empty.setText(EMPTY)
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._lay_out()
        self.block.chosen.connect(self._on_chip_chosen)
        self.before.clicked.connect(self._on_before)
        self.behind.clicked.connect(self._on_behind)
        self.more.clicked.connect(self._on_more)
        selection.changed.connect(self._on_selection_changed)

    def _lay_out(self) -> None:
        body = QWidget()
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(self._block_card())
        layout.addWidget(self._probabilities_card())
        layout.addStretch(1)
        self.scroll_area = scrolled(body, "inspectorScroll")
        empty, empty_layout = card()
        empty_layout.addWidget(self._empty, 1)
        self._pages = QStackedLayout(self)
        self._pages.addWidget(empty)
        self._pages.addWidget(self.scroll_area)

    def _block_card(self) -> QFrame:
        frame, layout = card()
        header = QHBoxLayout()
        header.setSpacing(2)
        titles = QVBoxLayout()
        titles.setSpacing(0)
        titles.addWidget(self.title)
        titles.addWidget(self.subtitle)
        header.addLayout(titles, 1)
        header.addWidget(self.before)
        header.addWidget(self.behind)
        layout.addLayout(header)
        layout.addWidget(self.block)
        layout.addWidget(self.verdict)
        layout.addWidget(self.facts)
        return frame

    def _probabilities_card(self) -> QFrame:
        frame, layout = card()
        layout.setSpacing(4)
        layout.addWidget(text_label("Probabilities", "section"))
        layout.addWidget(self.note)
        layout.addWidget(self.bars)
        layout.addWidget(self.more, 0, Qt.AlignmentFlag.AlignLeft)
        return frame

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.block.set_theme(theme)
        self.bars.set_theme(theme)

    def begin(self) -> None:
        """A run starts; what was selected is cleared with it."""

    def refresh(self, *, has_news: bool) -> None:
        """Show the evidence of the selected place once it has arrived."""
        if has_news and self._shown is not None and not self._shown.shares:
            self._on_selection_changed()

    def end(self) -> None:
        """A run is over, and all its evidence has arrived."""
        self.refresh(has_news=True)

    def showEvent(self, event: QShowEvent) -> None:
        """Show what was selected while the page was hidden."""
        super().showEvent(event)
        if self._is_stale:
            self._show(self._selection.place)

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Show that the keys work here."""
        super().focusInEvent(event)
        self.block.set_focus_shown(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """The keys are elsewhere."""
        super().focusOutEvent(event)
        self.block.set_focus_shown(False)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Go from token to token and from step to step."""
        moves = {
            Qt.Key.Key_Left: (next_slot, -1),
            Qt.Key.Key_Right: (next_slot, 1),
            Qt.Key.Key_Up: (next_step, -1),
            Qt.Key.Key_Down: (next_step, 1),
        }
        key = Qt.Key(event.key())
        if key in moves and not event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            move, by = moves[key]
            self._selection.select(move(self._run.steps, self._selection.place, by))
        elif key in (Qt.Key.Key_PageUp, Qt.Key.Key_PageDown):
            bar = self.scroll_area.verticalScrollBar()
            bar.setValue(bar.value() + (1 if key == Qt.Key.Key_PageDown else -1) * bar.pageStep())
        else:
            super().keyPressEvent(event)

    @Slot()
    def _on_selection_changed(self) -> None:
        self._is_stale = not self.isVisible()
        if not self._is_stale:
            self._show(self._selection.place)

    def _show(self, place: Place | None) -> None:
        self._is_stale = False
        run = self._run
        is_coming = run.request is not None and run.request.inspect and run.summary is None
        self._shown = None if place is None else inspect(run.steps, place, run.coupling, is_coming=is_coming)
        self._pages.setCurrentIndex(0 if self._shown is None else 1)
        if self._shown is None:
            return
        self.title.setText(self._shown.title)
        self.subtitle.setText(self._shown.subtitle)
        self.block.show_chips(self._shown.chips)
        self.verdict.setText(self._shown.verdict)
        self.facts.show_rows(self._shown.facts)
        self.note.setText(self._shown.note)
        self.note.setVisible(bool(self._shown.note))
        self._show_shares()

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

    @Slot()
    def _on_before(self) -> None:
        self._selection.select(next_step(self._run.steps, self._selection.place, -1))

    @Slot()
    def _on_behind(self) -> None:
        self._selection.select(next_step(self._run.steps, self._selection.place, 1))

    @Slot()
    def _on_more(self) -> None:
        self._shows_all = not self._shows_all
        self._show_shares()


def _step_button(text: str, object_name: str, help_text: str) -> QToolButton:
    button = QToolButton()
    button.setText(text)
    button.setObjectName(object_name)
    button.setProperty("role", "quiet")
    button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    describe(button, help_text.partition(" (")[0], help_text)
    return button


def _wrapped(role: str) -> QLabel:
    label = text_label("", role)
    label.setWordWrap(True)
    # What models say is text, not markup.
    label.setTextFormat(Qt.TextFormat.PlainText)
    return label
