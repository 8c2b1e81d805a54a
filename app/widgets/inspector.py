"""The inspector: how the selected token came about, from the draft's block to the draw that decided."""

from __future__ import annotations

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QFocusEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QScrollArea,
    QStackedLayout,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.theme import Theme, ui_font
from app.view_models.inspection import Fact, Inspection, inspect
from app.view_models.laws import shorten
from app.view_models.places import next_slot, next_step
from app.view_models.run_view import RunView
from app.view_models.selection import Place, Selection
from app.widgets.fields import card, describe, text_label
from app.widgets.inspector_bars import DistributionBars
from app.widgets.inspector_chips import BlockRow
from core.types import Coupling

FEW_ROWS = 12
EMPTY = (
    "Click a token in the text, or arrow to one, to see how it came about: the block it was drafted in, how it was "
    "tested, and what both models said at its place."
)
KEYS_HELP = "Left and Right go from token to token, Up and Down from step to step."


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
        self.facts = _FactTable()
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
        body.setObjectName("inspectorBody")
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        for frame in (self._block_card(), self._laws_card()):
            layout.addWidget(frame)
        layout.addStretch(1)
        self.scroll_area = QScrollArea()
        self.scroll_area.setObjectName("inspectorScroll")
        self.scroll_area.setWidget(body)
        self.scroll_area.setWidgetResizable(True)
        self.scroll_area.setFrameShape(QFrame.Shape.NoFrame)
        self.scroll_area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        # The keys are the panel's.
        self.scroll_area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.scroll_area.viewport().setAutoFillBackground(False)
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

    def _laws_card(self) -> QFrame:
        frame, layout = card()
        layout.setSpacing(4)
        layout.addWidget(text_label("Probabilities", "section"))
        layout.addWidget(self.note)
        layout.addWidget(self.bars)
        layout.addWidget(self.more, 0, Qt.AlignmentFlag.AlignLeft)
        return frame

    # --- For the window ---

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.block.set_theme(theme)
        self.bars.set_theme(theme)
        self.facts.set_theme(theme)

    # --- As a run goes ---

    def begin(self) -> None:
        """A run starts; what was selected is cleared with it."""

    def refresh(self, *, has_news: bool) -> None:
        """Show the evidence of the selected place, should it have come."""
        if has_news and self._lacks_evidence:
            self._show_or_wait()

    def end(self) -> None:
        """A run is over, and all its evidence has come."""
        if self._lacks_evidence:
            self._show_or_wait()

    @property
    def _lacks_evidence(self) -> bool:
        return self._shown is not None and not self._shown.shares

    def _show_or_wait(self) -> None:
        if self.isVisible():
            self._show(self._selection.place)
        else:
            self._is_stale = True

    def showEvent(self, event: QShowEvent) -> None:
        """What was selected while the page was hidden is shown now."""
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

    # --- Showing ---

    @Slot(object)
    def _on_selection_changed(self, _place: Place | None) -> None:
        self._show_or_wait()

    def _show(self, place: Place | None) -> None:
        self._is_stale = False
        request = self._run.request
        coupling = request.coupling if request is not None else Coupling.REJECTION
        is_coming = request is not None and request.inspect and self._run.summary is None
        self._shown = None if place is None else inspect(self._run.steps, place, coupling, is_coming=is_coming)
        self._pages.setCurrentIndex(0 if self._shown is None else 1)
        if self._shown is None:
            return
        self.title.setText(self._shown.title)
        self.subtitle.setText(self._shown.subtitle)
        self.block.show_chips(self._shown.chips)
        self.verdict.setText(self._shown.verdict)
        self.facts.show_facts(self._shown.facts)
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

    # --- Intents ---

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


class _FactTable(QWidget):
    """Names and figures. Rows are made once and used again."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("inspectorFacts")
        self._rows: list[tuple[QLabel, QLabel]] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 2, 0, 0)
        self._grid.setHorizontalSpacing(16)
        self._grid.setVerticalSpacing(3)
        self._grid.setColumnStretch(2, 1)

    def set_theme(self, _theme: Theme) -> None:
        """The colours are the style sheet's; text may be larger since the last time."""
        for _, value in self._rows:
            value.setFont(ui_font(13))

    def show_facts(self, facts: tuple[Fact, ...]) -> None:
        """Show these figures."""
        while len(self._rows) < len(facts):
            self._add_row()
        for index, (name, value) in enumerate(self._rows):
            is_used = index < len(facts)
            name.setVisible(is_used)
            value.setVisible(is_used)
            if is_used:
                fact = facts[index]
                name.setText(fact.name)
                value.setText(fact.value)
                name.setToolTip(fact.help)
                describe(value, f"{fact.name}: {fact.value}", fact.help)

    def _add_row(self) -> None:
        name, value = text_label("", "field"), text_label("", "plain")
        value.setFont(ui_font(13))
        value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        row = len(self._rows)
        self._grid.addWidget(name, row, 0)
        self._grid.addWidget(value, row, 1, Qt.AlignmentFlag.AlignRight)
        self._rows.append((name, value))


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
