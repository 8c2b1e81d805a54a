"""Checks exactness for the settings at hand: asks the engine, shows what comes, and has the report taken away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QColor, QFontMetrics, QGuiApplication, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QScrollArea,
    QSizePolicy,
    QSpinBox,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.controller import RunController
from app.dialogs import Dialogs
from app.jobs import Jobs
from app.menus import Menus
from app.services import Services, Session
from app.setup.controls import ControlsPanel
from app.theme import LIGHT, Theme, mono_font, scaled, ui_font
from app.tools.tool_window import TaskDesk, ToolWindow, figure_table, push_button, wrapped_label
from app.widgets.fields import WheelGuard, describe, offer, scrolled, set_flag, table_card, text_label
from app.window_layout import open_at
from core.controls import RunControls
from core.draft_shape import length_of
from core.errors import OutriderError
from core.experiments.check import (
    DEFAULT_SAMPLES,
    LEAST_SAMPLES,
    CheckFinished,
    CheckProgress,
    CheckReport,
    CheckRequest,
    FirstTokens,
    IdentityResult,
    LawTest,
    TokenCount,
    Verdict,
    compared_title,
    law_remarks,
    p_text,
    parting_line,
    report_json,
    report_text,
    title_of,
    verdict_sentence,
)
from core.files import write_atomically
from core.types import Coupling, RunRequest, StageChanged

NONE_YET = "Check whether this pair, with these settings, gives exactly what the target alone would."
NO_TESTS = "Each test gets a row here: greedy text against plain decoding, sampled tokens against the target's law."
STOPPED = "Stopped before there was a verdict."
COLUMNS = (
    ("Test", "What is held against what."),
    ("Tokens", "How many tokens were compared or counted."),
    ("χ²", "Pearson's chi-squared over the cells that are expected five times or more; of the lean, its square."),
    ("df", "Degrees of freedom of χ²."),
    (
        "Result",
        "p: how often an exact engine does at least this badly by chance. Small is bad; any size above is well.",
    ),
)
MARKS = {Verdict.EXACT: "✓", Verdict.NEAR_TIES: "≈", Verdict.NOT_EXACT: "✕"}
MARK_NAMES = {Verdict.EXACT: "exact", Verdict.NEAR_TIES: "near", Verdict.NOT_EXACT: "broken"}
_TESTED = {
    "lean": "Tokens that the draft likes better than the target does, counted against what the target says of them.",
    "bonus": "Tokens after a fully accepted draft, against the target's law there; half of the blocks have K = 1.",
}


LEAST_SHOWN = 0.001


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A line of the table: its texts, an explanation, and whether it speaks against the engine."""

    texts: tuple[str, ...]
    tip: str
    is_failed: bool = False


def subject_of(run: RunRequest) -> str:
    """What will be checked, in a line."""
    sampling = run.sampling
    parts = [
        f"{run.draft} for {run.target}" if run.draft else f"{run.method} for {run.target}",
        f"K = {length_of(run)}",
        f"temperature {sampling.temperature:g}",
    ]
    if not sampling.is_unfiltered:
        parts.append(f"top-k {sampling.top_k}, top-p {sampling.top_p:g}, min-p {sampling.min_p:g}")
    if run.coupling is Coupling.GUMBEL:
        parts.append("Gumbel coupling")
    return " · ".join(parts)


def rows_of(report: CheckReport) -> list[CheckRow]:
    """All that was tested."""
    rows = [_compared(item) for item in report.identities]
    if report.law is not None:
        rows += [_tested(test) for test in report.law.tests]
    return rows


def _compared(item: IdentityResult) -> CheckRow:
    ties = sum(parting.is_near_tie for parting in item.partings)
    result = "equal"
    if item.partings:
        parts = [f"{ties} near-tie" + "s" * (ties != 1)] if ties else []
        others = len(item.partings) - ties
        result = ", ".join([*parts, *([f"{others} unexplained"] if others else [])])
    tip = "\n".join(map(parting_line, item.partings)) or "Token by token, to the end of each text."
    return CheckRow((compared_title(item), f"{item.num_tokens:,}", "", "", result), tip, not item.is_exact)


def _tested(test: LawTest) -> CheckRow:
    figures = (f"{test.statistic:.1f}", f"{test.degrees:,}") if test.degrees else ("", "")
    texts = (title_of(test), f"{test.num_samples:,}", *figures)
    result = _p_text(test.p_value)
    if test.is_failed:
        result = f"✕ {result}"
    tip = _TESTED.get(
        test.name, "Tokens at this place of a block, by what stood before them, against the target's law."
    )
    if test.p_value is not None and test.p_value < LEAST_SHOWN:
        tip = f"{tip} p = {p_text(test.p_value)}."
    return CheckRow((*texts, result), tip, test.is_failed)


def _p_text(p_value: float | None) -> str:
    """A p-value without powers of ten; how small a small one is stands in the tooltip and in the report."""
    if p_value is None:
        return p_text(p_value)
    return f"p < {LEAST_SHOWN:g}" if p_value < LEAST_SHOWN else f"p = {p_value:.3f}"


def remarks_of(report: CheckReport) -> str:
    """What else there is to say: of the samples, and of what the settings do to the law."""
    remarks = [] if report.law is None else law_remarks(report.law)
    return "\n".join([*remarks, *report.notes])


def headline_of(report: CheckReport) -> str:
    """The verdict in a sentence."""
    return verdict_sentence(report)


def is_checked_as(run: RunRequest, request: CheckRequest) -> bool:
    """Whether a report's settings are still those that are chosen."""
    return subject_of(run) == subject_of(request.run)


_ROW, _BAR = 26, 7
_TEXT_WIDTH, _FIGURE_WIDTH, _GAP = 110, 150, 10
_NUM_ROWS = 9
OTHERS = "all others"
LEAST_EXPECTED = 0.05
"""What would be written as 0.0."""


def is_worth_a_row(item: TokenCount) -> bool:
    """Whether more than nothing was expected of a token, or drawn."""
    return bool(item.observed) or item.expected >= LEAST_EXPECTED


class CheckBars(QWidget):
    """The target's expectation as an outline, what came as a filled bar under it."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("checkBars")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._theme = LIGHT
        self._counts: tuple[TokenCount, ...] = ()
        self.show_tokens(None)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        self.updateGeometry()
        self.update()

    def show_tokens(self, found: FirstTokens | None) -> None:
        """Show the first tokens after a prompt; None: nothing yet."""
        self._counts = tuple(filter(is_worth_a_row, found.counts)) if found is not None else ()
        self.setAccessibleName(f"First tokens after {found.prompt}" if found else "First tokens: nothing yet")
        self.setAccessibleDescription("; ".join(map(spoken, self._counts)))
        self.setToolTip("Outlined: expected of the target. Filled: observed." if found else "")
        self.update()

    def sizeHint(self) -> QSize:
        """A row for each token that there may be, so that nothing moves when they come."""
        return QSize(420, _NUM_ROWS * scaled(_ROW))

    def paintEvent(self, _event: QPaintEvent) -> None:
        """Draw a row a token."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        most = max((max(item.observed, item.expected) for item in self._counts), default=1.0) or 1.0
        left, right = scaled(_TEXT_WIDTH), self.width() - scaled(_FIGURE_WIDTH)
        for index, item in enumerate(self._counts[:_NUM_ROWS]):
            row = QRectF(0, index * scaled(_ROW), self.width(), scaled(_ROW))
            self._draw_words(painter, row, item)
            room = max(right - left - scaled(_GAP), 1)
            self._draw_bars(painter, row, item, left, room / most)
        painter.end()

    def _draw_words(self, painter: QPainter, row: QRectF, item: TokenCount) -> None:
        vertical = Qt.AlignmentFlag.AlignVCenter
        font = mono_font() if item.text else ui_font(12)
        painter.setFont(font)
        painter.setPen(QColor(self._theme.text if item.text else self._theme.muted))
        width = scaled(_TEXT_WIDTH - _GAP)
        shown = QFontMetrics(font).elidedText(shown_text(item), Qt.TextElideMode.ElideRight, width)
        painter.drawText(QRectF(0, row.top(), width, row.height()), vertical | Qt.AlignmentFlag.AlignLeft, shown)
        painter.setFont(ui_font(12))
        painter.setPen(QColor(self._theme.muted))
        painter.drawText(
            row, vertical | Qt.AlignmentFlag.AlignRight, f"{item.observed:,}, expected {item.expected:,.1f}"
        )

    def _draw_bars(self, painter: QPainter, row: QRectF, item: TokenCount, left: float, scale: float) -> None:
        height, middle = scaled(_BAR), row.center().y()
        painter.setPen(QPen(QColor(self._theme.bonus), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(QRectF(left + 0.5, middle - height + 0.5, max(item.expected * scale, 1), height - 2))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.draft_bar))
        painter.drawRect(QRectF(left, middle + 1, item.observed * scale + 1, height - 1))


def shown_text(item: TokenCount) -> str:
    """A token as it can be seen."""
    return repr(item.text)[1:-1].replace(" ", "·") if item.text else OTHERS


def spoken(item: TokenCount) -> str:
    """A row in words."""
    return f"{shown_text(item)}: {item.observed:,} observed, {item.expected:,.1f} expected"


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
        offer(self.check_button, self.stop_button, is_running=is_going)
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


TITLE = "A check"
_ANY_PROMPT = "any"
"""A request needs a prompt; a check has its own."""


class CheckDesk(TaskDesk):
    """Its window is made when it is first wanted."""

    def __init__(
        self,
        window: QWidget,
        menus: Menus,
        services: Services,
        controller: RunController,
        controls: ControlsPanel,
        jobs: Jobs,
        dialogs: Dialogs,
    ) -> None:
        super().__init__(window, controller)
        self._main, self._services = window, services
        self._controls, self._jobs, self._dialogs = controls, jobs, dialogs
        self._in_titles = controls.models.library.in_titles
        self._theme = LIGHT
        self._report: CheckReport | None = None
        self._has_failed = False
        self.window: CheckWindow | None = None
        menus.check.triggered.connect(self.open)
        controls.changed.connect(self._show_subject)

    def set_theme(self, theme: Theme) -> None:
        """Draw in a theme's colours."""
        self._theme = theme
        if self.window is not None:
            self.window.set_theme(theme)

    @Slot()
    def open(self) -> None:
        """Show the window."""
        if self.window is None:
            self.window = CheckWindow(self._main)
            self.window.set_theme(self._theme)
            self.window.check_wanted.connect(self.start)
            self.window.stop_wanted.connect(self.stop)
            self.window.copy_wanted.connect(self._on_copy)
            self.window.save_wanted.connect(self._on_save)
        self.window.open()
        self._show_subject()

    @Slot()
    def start(self) -> None:
        """Check the settings as they stand."""
        window = self.window
        if window is None or self._task is not None:
            return
        try:
            request = CheckRequest(
                self._run(),
                num_samples=window.blocks.value(),
                with_transformers=window.with_transformers.isChecked(),
            )
        except OutriderError as error:
            window.show_nothing(str(error), is_problem=True)
            return
        services = self._services

        def work(session: Session, controls: RunControls) -> Iterator[Any]:
            return services.check(session, request, controls)

        if self._start_task(TITLE, work) is None:
            window.show_stage(self._controller.busy_sentence())
            return
        self._report, self._has_failed = None, False
        window.show_nothing("Checking…")
        window.show_subject(self._in_titles(subject_of(request.run)))
        window.show_stage("")
        window.show_going(is_going=True)

    def _run(self) -> RunRequest:
        return self._controls.request(_ANY_PROMPT)

    @Slot()
    def _show_subject(self) -> None:
        """What is chosen now; and where a verdict is shown, whether it is about that."""
        window = self.window
        if window is None or not window.isVisible() or self._task is not None:
            return
        try:
            run = self._run()
        except OutriderError as error:
            window.show_subject(str(error))
            return
        if self._report is None:
            window.show_subject(self._in_titles(subject_of(run)))
        else:
            now = "" if is_checked_as(run, self._report.request) else "\nThe settings are others by now."
            window.show_subject(f"{self._in_titles(subject_of(self._report.request.run))}{now}")

    def _show_stopping(self) -> None:
        if self.window is not None:
            self.window.show_stage("Stopping…")

    def _show_events(self, events: Iterator[Any]) -> None:
        window, task = self.window, self._task
        if task is None or window is None:
            return
        last: CheckProgress | StageChanged | None = None
        for event in events:
            if isinstance(event, CheckFinished):
                self._report = event.report
            else:
                last = event
        if task.controls.is_cancelled or last is None:
            return
        if isinstance(last, StageChanged):
            window.show_stage(last.text)
        else:
            window.show_stage(last.text, last.done, last.total)

    def _show_failure(self, sentence: str) -> None:
        self._has_failed = True
        if self.window is not None:
            self.window.show_nothing(sentence, is_problem=True)

    def _show_end(self) -> None:
        window, report = self.window, self._report
        if window is None:
            return
        window.show_going(is_going=False)
        window.show_stage("" if report is None else f"{report.seconds:.0f} s")
        if report is not None:
            window.show_verdict(MARKS[report.verdict], MARK_NAMES[report.verdict], headline_of(report))
            first_tokens = () if report.law is None else report.law.first_tokens
            window.show_results(rows_of(report), remarks_of(report), first_tokens)
        elif not self._has_failed:
            window.show_nothing(STOPPED)
        self._show_subject()

    # --- Taking away ---

    @Slot()
    def _on_copy(self) -> None:
        if self._report is not None and self.window is not None:
            QGuiApplication.clipboard().setText(report_text(self._report))
            self.window.show_stage("The report is on the clipboard.")

    @Slot()
    def _on_save(self) -> None:
        if self._report is None or self.window is None:
            return
        path = self._dialogs.ask_report_path(self.window, "exactness.txt")
        if path is not None:
            text = (report_json if path.suffix.lower() == ".json" else report_text)(self._report)
            self._jobs.submit(
                lambda job: write_atomically(path, text),
                lambda _: self._show_saved(f"Saved to {path}"),
                failed=self._show_saved,
                what="The text could not be saved",
                must_finish=True,
            )

    def _show_saved(self, sentence: str) -> None:
        if self.window is not None:
            self.window.show_stage(sentence)
