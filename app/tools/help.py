"""What helps a person along: the first hint, the Help window, the list of keys, About."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal, Slot
from PySide6.QtGui import (
    QColor,
    QShowEvent,
    QTextCursor,
    QTextDocument,
    QTextDocumentFragment,
    QTextFrameFormat,
    QTextLength,
    QTextTable,
)
from PySide6.QtWidgets import (
    QDialog,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QMainWindow,
    QMenuBar,
    QScrollArea,
    QSizePolicy,
    QTabWidget,
    QTextBrowser,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.controller import RunController
from app.dialogs import Dialogs
from app.menus import KeyRow, Menus, key_groups
from app.run.run_view import RunView
from app.run.tiles import StatusStrip
from app.theme import LIGHT, RESOURCES, Theme, scaled, ui_font
from app.tools.step_picture import StepPictureView, example, picture_of
from app.widgets.fields import card, describe, text_label
from app.window_layout import bring_forward
from core.types import Step

TEXT = (
    "New here? Press Run: this small pair of models comes with Outrider. "
    "Blue is what the draft got right, orange where the target drew again."
)


class FirstHint(QFrame):
    """Signals:
    help_clicked: the person wants to know more.
    dismissed: the line has done its work.
    """

    help_clicked = Signal()
    dismissed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("firstHint")
        self.setAccessibleName(TEXT)
        label = text_label(TEXT, "hint")
        label.setObjectName("firstHintText")
        label.setWordWrap(True)
        label.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.help_button = _button("How it works", "firstHintHelp", "How it works", "Explained with one real step (F1)")
        self.close_button = _button("Dismiss", "firstHintDismiss", "Dismiss the hint", "It does not come again")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(12, 4, 6, 4)
        layout.setSpacing(8)
        layout.addWidget(label, 1)
        # One over the other: beside each other they would leave the text no room in a narrow column.
        buttons = QVBoxLayout()
        buttons.setSpacing(0)
        buttons.addWidget(self.help_button, 0, Qt.AlignmentFlag.AlignRight)
        buttons.addWidget(self.close_button, 0, Qt.AlignmentFlag.AlignRight)
        layout.addLayout(buttons)
        self.help_button.clicked.connect(self.help_clicked)
        self.close_button.clicked.connect(self.dismissed)
        self.hide()


def _button(text: str, name: str, title: str, help_text: str) -> QToolButton:
    button = QToolButton()
    button.setText(text)
    button.setObjectName(name)
    button.setProperty("role", "quiet")
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    describe(button, title, help_text)
    return button


INTRO = """
<p>A large <b>target</b> model writes one token at a time, and each takes a whole forward through it. A small
<b>draft</b> model is quick but less good. Speculative decoding has the draft write ahead and the target check: the
text is exactly the target's, and comes sooner where the two agree.</p>
"""

STAGES = """
<p><b>1. Draft.</b> The draft proposes K tokens, one after the other, each drawn from its own distribution q.</p>
<p><b>2. Score.</b> The target reads all K in one forward, which gives its distribution p at each place and one behind
them. Where reading its weights is what takes the time, that costs little more than a single token.</p>
<p><b>3. Accept or reject.</b> From the front, each token x is kept with probability min(1, p(x) / q(x)): a number u is
drawn evenly between 0 and 1, and x is kept if u is smaller. The first rejection ends the block; what lies behind it is
not tested.</p>
<p><b>4. Resample.</b> In place of the rejected token one is drawn from the residual, max(0, p − q), normalised.</p>
<p><b>5. Bonus.</b> If all K are kept, the forward has given one more distribution, and one more token is drawn from
it for nothing. So a step gives from 1 to K + 1 tokens for one forward of the target.</p>
"""

EXACT = """
<p>A token x comes out either because it was drafted and kept, or because it was resampled. A rejection has the
probability 1 − Σ min(p, q), which is Σ max(0, p − q), so that</p>
<p align="center">q(x) · min(1, p(x) / q(x)) + Σ max(0, p − q) · max(0, p(x) − q(x)) / Σ max(0, p − q)<br>
= min(p(x), q(x)) + max(0, p(x) − q(x)) = <b>p(x)</b></p>
<p>whatever the draft is. A bad draft costs time, never quality. At temperature 0 this is simpler still: a token is
kept if it is the one that the target would have taken. With <i>Reproducible</i>, draft and target draw with the same
noise instead of u; the law is the same, and the text depends on the seed alone.</p>
"""

PLOTS = """
<p><b>Acceptance</b>: of each step's K drafted tokens, how many were kept; the lines are the running share, and the
share that the overlap of the two distributions lets expect. <b>Latency</b>: where each step's time went, beside what a
plain step takes. <b>Plots</b>: tokens over time against plain decoding, and how far into a block tokens are
kept. <b>Why</b>: what holds the speedup back, and what to change. <b>Theory</b>: what each K would bring, beside what
was measured. Every formula is under Help, Formulas.</p>
<p>The speedup is tau / (K c + v), and it is always measured too. tau: tokens a step. c: a draft step's time / a target
step's. v: time to score K + 1 positions / time to score one. Where it is below 1, drafting doesn't pay.</p>
"""

PAPERS = (
    ("Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding", "2211.17192"),
    ("Chen et al.: Accelerating Large Language Model Decoding with Speculative Sampling", "2302.01318"),
    ("Zhou et al.: DistillSpec, on training a draft for its target", "2310.08461"),
    ("Daliri, Musco, Suresh: Coupling without Communication, on Reproducible's shared noise", "2408.07978"),
)


def colours(theme: Theme) -> str:
    """What the colours mean, in the theme's own."""
    rows = (
        ("accepted", theme.accepted, "<u>solid line</u>", "drafted, tested and kept: the draft's work"),
        ("resampled", theme.correction, "wavy line, tinted", "a draft was rejected here, and this drawn in its place"),
        ("bonus", theme.bonus, "dotted line, tinted", "the target's own: behind a whole block, or with no draft"),
    )
    lines = "".join(
        f'<tr><td style="color:{color}"><b>{name}</b>&nbsp;&nbsp;</td>'
        f"<td>{line}&nbsp;&nbsp;</td><td>{meaning}</td></tr>"
        for name, color, line, meaning in rows
    )
    return f"<table cellspacing='0' cellpadding='2'>{lines}</table>"


def papers(theme: Theme) -> str:
    """Where the method is from."""
    link = '<a style="color:{color}" href="https://arxiv.org/abs/{id}">arXiv {id}</a>'
    lines = (f"<p>{title}. {link.format(color=theme.accent, id=number)}</p>" for title, number in PAPERS)
    return "".join(lines)


FIGURES = RESOURCES / "docs" / "figures.md"
MISSING = "The page of formulas is missing from this installation."
SHARES = (26, 31, 9, 34)
"""Widths of a table's columns, in percent."""
HEADING_GAP, GAP = 16, 8


def figures_text(path: Path = FIGURES) -> str:
    """The page as Markdown; a sentence where it is missing."""
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return MISSING


class FormulaPage(QTextBrowser):
    """Reads the page when it is first shown in a theme: in a turn of its own, and unseen until it is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("helpFormulas")
        self.setAccessibleName("Formulas")
        self.setOpenExternalLinks(True)
        self.setFrameShape(QTextBrowser.Shape.NoFrame)
        self._theme = LIGHT
        self._is_stale = True

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours, at the text's size."""
        self._theme = theme
        self._is_stale = True
        if self.isVisible():
            self._write()

    def showEvent(self, event: QShowEvent) -> None:
        """Draw the page, unless it is still as it was drawn."""
        super().showEvent(event)
        if self._is_stale:
            self._write()

    def _write(self) -> None:
        at = self.verticalScrollBar().value()
        self.clear()
        self.document().setDefaultFont(ui_font(13))
        self.document().setDocumentMargin(scaled(12))
        cursor = QTextCursor(self.document())
        for section in _sections(figures_text()):
            document = _document(section, self._theme)
            if not cursor.atStart():
                cursor.insertBlock(QTextCursor(document).blockFormat())
            cursor.insertFragment(QTextDocumentFragment(document))
        self._is_stale = False
        self.verticalScrollBar().setValue(at)


def _sections(markdown: str) -> list[str]:
    return re.split(r"^(?=## )", markdown, flags=re.MULTILINE)


def _document(markdown: str, theme: Theme) -> QTextDocument:
    # Not in the page yet: it would be laid out anew with every change.
    document = QTextDocument()
    document.setDefaultFont(ui_font(13))
    document.setMarkdown(markdown)
    cursor = QTextCursor(document)
    cursor.beginEditBlock()
    _space(cursor)
    for frame in document.rootFrame().childFrames():
        if isinstance(frame, QTextTable):
            _style(frame, theme)
    cursor.endEditBlock()
    return document


def _space(cursor: QTextCursor) -> None:
    """Set headings and paragraphs apart; Markdown's own blocks stand close."""
    block = cursor.document().begin()
    while block.isValid():
        inside = QTextCursor(block)
        if inside.currentTable() is None:
            form = inside.blockFormat()
            form.setTopMargin(scaled(HEADING_GAP if form.headingLevel() > 1 else 0))
            form.setBottomMargin(scaled(GAP))
            inside.setBlockFormat(form)
        block = block.next()


def _style(table: QTextTable, theme: Theme) -> None:
    form = table.format()
    form.setBorderCollapse(True)
    form.setBorder(1)
    form.setBorderBrush(QColor(theme.border))
    form.setBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    form.setCellPadding(scaled(5))
    form.setTopMargin(scaled(GAP))  # a table takes no notice of the margin below its heading
    form.setWidth(QTextLength(QTextLength.Type.PercentageLength, 100))
    form.setColumnWidthConstraints([QTextLength(QTextLength.Type.PercentageLength, share) for share in SHARES])
    table.setFormat(form)


METHOD, FORMULAS, KEYS = range(3)
PROSE_WIDTH = 240
_RESIZING = {QEvent.Type.Polish, QEvent.Type.FontChange, QEvent.Type.StyleChange, QEvent.Type.ContentsRectChange}


class HelpPage(QDialog):
    """Stays open beside the window. What it shows is read anew each time that it is opened.

    It is made without the method's long texts, which come one by one through `making`.
    """

    def __init__(self, bar: QMenuBar, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bar = bar
        self.setObjectName("helpPage")
        self.setWindowTitle("How Outrider works")
        self.setModal(False)
        self.picture = StepPictureView()
        self.caption = text_label("", "hint")
        self.caption.setWordWrap(True)
        self.colours, self.papers = Prose(""), Prose("")
        self.tabs = QTabWidget()
        self.tabs.setObjectName("helpTabs")
        self.tabs.setProperty("role", "pages")
        self.tabs.setAccessibleName("Help")
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self.tabs.tabBar().setAccessibleName("Pages of the help")
        method = QWidget()
        self._making = self._method(method)
        self._method_area = _scrolled(method, "helpMethod", "How it works")
        self.tabs.addTab(self._method_area, "How it works")
        self.formulas = FormulaPage()
        self.tabs.addTab(self.formulas, "Formulas")
        self._keys = QGridLayout()
        self.tabs.addTab(_scrolled(self._keys_page(), "helpKeys", "Keyboard shortcuts"), "Keyboard shortcuts")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 12, 16, 16)
        layout.addWidget(self.tabs)
        self.resize(760, 780)
        self.set_theme(LIGHT)
        self.show_step(())
        for _ in self.making():
            pass
        self.tabs.currentChanged.connect(self._on_tab_changed)

    def making(self) -> Generator[None]:
        """Make what is not made yet of the method's page, a text at a time."""
        # Whoever stops here can go on later: the loop, unlike `yield from`, leaves the rest as it is.
        for label in self._making:
            # Now, and not with all others when the page is shown.
            label.ensurePolished()
            yield

    def show_step(self, steps: Sequence[Step]) -> None:
        """Have the latest step that shows most of the method explain it."""
        picture = picture_of(steps) if steps else example()
        self.picture.show_picture(picture)
        more = f" {picture.num_hidden} more drafted tokens are not in the picture." if picture.num_hidden else ""
        self.caption.setText(
            f"{picture.caption}. q: the draft's probability of its token; p: the target's. The filled part of each "
            f"track is min(1, p / q), the mark is u.{more}"
        )

    def open_method(self, steps: Sequence[Step]) -> None:
        """Explain the method."""
        self.show_step(steps)
        self._open(METHOD)
        self._method_area.verticalScrollBar().setValue(0)

    def open_keys(self) -> None:
        """List the keys, as the menus have them now."""
        self._list_keys()
        self._open(KEYS)

    def open_formulas(self) -> None:
        """Show every figure's formula."""
        self._open(FORMULAS)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self.formulas.set_theme(theme)
        self.picture.set_theme(theme)
        self.colours.setText(colours(theme))
        self.papers.setText(papers(theme))

    def _open(self, page: int) -> None:
        self.tabs.setCurrentIndex(page)
        self._on_tab_changed(page)
        bring_forward(self)

    @Slot(int)
    def _on_tab_changed(self, page: int) -> None:
        if page == METHOD:
            for _ in self.making():
                pass
        elif page == KEYS and not self._keys.count():
            self._list_keys()

    def _method(self, body: QWidget) -> Generator[QWidget]:
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 4, 8, 0)
        layout.setSpacing(8)
        frame, inside = card()
        inside.addWidget(text_label("One step", "section"))
        inside.addWidget(self.picture)
        inside.addWidget(self.caption)
        intro = Prose(INTRO)
        layout.addWidget(intro)
        yield intro
        layout.addWidget(frame)
        yield self.caption
        for title, prose in (
            ("", Prose(STAGES)),
            ("Why the text is exactly the target's", Prose(EXACT)),
            ("What the colours mean", self.colours),
            ("What the figures show", Prose(PLOTS)),
            ("Papers", self.papers),
        ):
            if title:
                layout.addSpacing(4)
                layout.addWidget(text_label(title, "section"))
            layout.addWidget(prose)
            yield prose
        layout.addStretch(1)

    def _keys_page(self) -> QWidget:
        body = QWidget()
        layout = QVBoxLayout(body)
        layout.setContentsMargins(0, 4, 8, 0)
        self._keys.setHorizontalSpacing(24)
        self._keys.setVerticalSpacing(5)
        self._keys.setColumnStretch(1, 1)
        layout.addLayout(self._keys)
        layout.addStretch(1)
        return body

    def _list_keys(self) -> None:
        while (item := self._keys.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        row = 0
        for title, rows in key_groups(self._bar):
            heading = text_label(title, "section")
            heading.setContentsMargins(0, 10 if row else 0, 0, 2)
            self._keys.addWidget(heading, row, 0, 1, 2)
            for index, key_row in enumerate(rows, start=row + 1):
                self._add_key(key_row, index)
            row += 1 + len(rows)

    def _add_key(self, key_row: KeyRow, row: int) -> None:
        keys = "  or  ".join(key_row.keys) or "menu only"
        title, value = text_label(key_row.title, "plain"), text_label(keys, "strong" if key_row.keys else "hint")
        value.setAccessibleName(f"{key_row.title}: {keys}")
        self._keys.addWidget(title, row, 0)
        self._keys.addWidget(value, row, 1)


class Prose(QLabel):
    """A long text that takes the width it gets.

    A layout asks for its height a dozen times before it is shown, and each time Qt would set all of it anew.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text.strip())
        self.setProperty("role", "plain")
        self.setTextFormat(Qt.TextFormat.RichText)
        self.setWordWrap(True)
        flags = Qt.TextInteractionFlag
        self.setTextInteractionFlags(flags.LinksAccessibleByMouse | flags.LinksAccessibleByKeyboard)
        self.setOpenExternalLinks(True)
        self._heights: dict[int, int] = {}

    def event(self, event: QEvent) -> bool:
        """Forget the heights of another text, font or style."""
        if event.type() in _RESIZING:
            self._heights.clear()
        return super().event(event)

    def setText(self, text: str) -> None:
        """Show another text."""
        self._heights.clear()
        super().setText(text)

    def heightForWidth(self, width: int) -> int:
        """As QLabel has it."""
        if width not in self._heights:
            self._heights[width] = super().heightForWidth(width)
        return self._heights[width]

    def sizeHint(self) -> QSize:
        """A narrow column; the height follows from the width."""
        return self.minimumSizeHint()

    def minimumSizeHint(self) -> QSize:
        """The same."""
        return QSize(scaled(PROSE_WIDTH), self.fontMetrics().height())


def _scrolled(body: QWidget, name: str, title: str) -> QScrollArea:
    area = QScrollArea()
    area.setObjectName(name)
    area.setAccessibleName(title)
    area.setWidget(body)
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.viewport().setAutoFillBackground(False)
    body.setAutoFillBackground(False)
    return area


class HelpDesk(QObject):
    """Opens what is asked for; the Help window is made when it is first wanted."""

    def __init__(
        self,
        window: QMainWindow,
        menus: Menus,
        run: RunView,
        controller: RunController,
        status: StatusStrip,
        dialogs: Dialogs,
    ) -> None:
        super().__init__(window)
        self._window, self._run, self._status, self._dialogs = window, run, status, dialogs
        self._theme = LIGHT
        self.hint = FirstHint()
        self.hint_seen = False
        self.page: HelpPage | None = None
        menus.help.triggered.connect(self.open_method)
        menus.formulas.triggered.connect(self._on_formulas)
        menus.keys.triggered.connect(self._on_keys)
        menus.about.triggered.connect(self._on_about)
        self.hint.help_clicked.connect(self.open_method)
        self.hint.dismissed.connect(self._on_hint_done)
        controller.run_requested.connect(self._on_hint_done)

    def restore(self, *, hint_seen: bool) -> None:
        """Give the hint to who has not seen it."""
        self.hint_seen = hint_seen
        self.hint.setVisible(not hint_seen)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        if self.page is not None:
            self.page.set_theme(theme)

    @Slot()
    def open_method(self) -> None:
        """Explain the method."""
        self._open(lambda page: page.open_method(self._run.steps))

    @Slot()
    def _on_formulas(self) -> None:
        self._open(HelpPage.open_formulas)

    @Slot()
    def _on_keys(self) -> None:
        self._open(HelpPage.open_keys)

    @Slot()
    def _on_about(self) -> None:
        self._dialogs.show_about(self._window, self._status.place.text())

    @Slot()
    def _on_hint_done(self) -> None:
        self.hint_seen = True
        self.hint.hide()

    def close(self) -> None:
        """Close the Help window."""
        if self.page is not None:
            self.page.close()

    def _open(self, show: Callable[[HelpPage], None]) -> None:
        if self.page is None:
            self.page = HelpPage(self._window.menuBar(), self._window)
            self.page.set_theme(self._theme)
        self.page.show_step(self._run.steps)
        show(self.page)
