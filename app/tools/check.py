"""The window that checks whether a pair, with these settings, gives exactly what the target alone would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QRectF, QSize, Qt, Slot
from PySide6.QtGui import QColor, QGuiApplication, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QProgressBar,
    QSpinBox,
    QStyle,
    QStyleOptionComboBox,
    QStylePainter,
    QWidget,
)

from app.controller import RunController
from app.dialogs import REPORT_FILTERS, Dialogs
from app.jobs import Jobs
from app.setup.settings_panel import SettingsPanel
from app.theme import current_theme, hold, scaled
from app.tools.tool_window import ToolWindow
from app.widgets.fields import (
    boxed,
    card,
    column,
    guard_wheel,
    hint_label,
    named,
    offer,
    push_button,
    row,
    scrolled,
    set_flag,
    table_card,
    text_label,
    wrapped_label,
)
from app.widgets.labels import Banner, ElidedLabel
from app.widgets.painted import LEFT, RIGHT, PaintedWidget, draw_box, draw_text
from app.widgets.rows import Column, Row
from app.widgets.tables import Table
from app.window_layout import open_at
from core.controls import RunControls
from core.drafters.registry import METHODS
from core.errors import OutriderError
from core.experiments.check_plan import (
    DEFAULT_SAMPLES,
    LEAST_SAMPLES,
    MAX_BLOCKS,
    CheckFinished,
    CheckProgress,
    CheckReport,
    CheckRequest,
    DistributionTest,
    FirstTokens,
    IdentityResult,
    TokenCount,
    Verdict,
)
from core.experiments.check_report import (
    COMPARED,
    distribution_remarks,
    divergence_line,
    drafting_text,
    is_loose,
    p_text,
    report_json,
    report_text,
    title_of,
    verdict_sentence,
)
from core.files import write_atomically
from core.settings import Coupling, RunRequest
from core.text import count_text, duration_text
from core.types import StageChanged

# --- What is shown ---

NONE_YET = "Check whether this pair, with these settings, gives exactly what the target alone would."
NO_TESTS = (
    "Each test gets a row here: greedy text against plain decoding, and sampled tokens against the target's "
    "distribution."
)
NO_RESULTS = "No results: they appear together, with the verdict, when all tests are done."
STOPPED = "Stopped before there was a verdict."
FAILED = "The check failed; there is no verdict."
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
MARKS = {Verdict.EXACT: ("✓", "exact"), Verdict.NEAR_TIES: ("≈", "near"), Verdict.NOT_EXACT: ("✕", "broken")}
LOOSE_MARK = ("✓", "loose")
"""Of a check that finds no difference, and would miss even a large bias."""
TESTED = {
    "bias": "Tokens to which the draft gives a higher probability than the target does: their count against the "
    "target's probabilities.",
    "bonus": "Tokens after a fully accepted draft, against the target's distribution.",
}
TESTED_PLACE = "Tokens at this position of a block, by the tokens before them, against the target's distribution."
SMALLEST_SHOWN_P = 0.001


def subject_of(run: RunRequest) -> str:
    """The settings that are checked, in a line."""
    title = METHODS[run.method].title if run.method in METHODS else run.method
    parts = [
        f"{run.draft} for {run.target}" if run.draft else run.target,
        drafting_text(run).replace(run.method, title, 1),
        run.sampling.text,
    ]
    if run.coupling is Coupling.GUMBEL:
        parts.append("Gumbel coupling")
    return " · ".join(parts)


def _checked(run: RunRequest) -> RunRequest:
    """A run without the settings that a check doesn't use, and without the seed: any seed checks the same."""
    return replace(run, seed=0, baseline=False, max_new_tokens=1, system="")


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
    return repr(item.text)[1:-1].replace(" ", "·") if item.text else "all others"


# --- Widgets ---

ROW, BAR = 26, 7
TEXT_WIDTH, FIGURE_WIDTH, GAP = 110, 150, 10
NUM_ROWS = 9
LEAST_EXPECTED = 0.05
"""A token that was never drawn gets a row only if its expected count is above this, which would be shown as 0.0."""


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


LEGEND = "{}; outlined: expected, filled: drawn"
MIN_ROWS, MAX_ROWS = 4, 9
BUTTON_WIDTH = 94
BLOCKS_HELP = "Blocks drawn to test the sampled distribution. Four times as many detect an error half as large."
TRANSFORMERS_HELP = "Also compare plain greedy text with transformers' own generate, which is slower."
ANY_PROMPT = "any"
"""Placeholder: a run's request needs a prompt, but a check has its own."""


class CheckWindow(ToolWindow):
    """Starts a check, and shows, copies and saves its report."""

    def __init__(
        self, main: QWidget | None, controller: RunController, controls: SettingsPanel, jobs: Jobs, dialogs: Dialogs
    ) -> None:
        super().__init__(main, controller, "check", "Check exactness")
        self._controls, self._jobs, self._dialogs = controls, jobs, dialogs
        self._in_titles = controls.models.library.in_titles
        self._report: CheckReport | None = None
        self._ending = STOPPED
        self._first_tokens: tuple[FirstTokens, ...] = ()
        self._part = ("", 0.0, 0)
        """The part of the check that is running, when it began, and how much was done then."""
        start_help = "Compare texts, and test the sampled distribution"
        self.start_button = push_button("Check", "checkButton", start_help, self.start)
        self.start_button.setProperty("role", "primary")
        self.stop_button = push_button("Stop", "stopCheckButton", "End the check without a verdict", self.stop)
        for button in (self.start_button, self.stop_button):
            hold(button, least_width=BUTTON_WIDTH)
        close_help = "Close the window, and stop what is running"
        self.close_button = push_button("Close", "checkCloseButton", close_help, self.close)
        self.banner = Banner()
        self.headline = wrapped_label("checkHeadline", "title")
        self.subject = wrapped_label("checkSubject", "hint")
        self.progress = named(QProgressBar(), "checkProgress", "Progress of this part of the check")
        self.progress.setTextVisible(False)
        self.progress.setFixedWidth(110)
        self.stage = ElidedLabel("", "hint", takes_all=True, name="checkStage", elided=Qt.TextElideMode.ElideMiddle)
        self.mark = text_label("", "verdictMark", name="checkMark")
        self.mark.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.blocks = named(QSpinBox(), "checkBlocksSpin", "Blocks", BLOCKS_HELP)
        self.blocks.setRange(LEAST_SAMPLES, MAX_BLOCKS)
        self.blocks.setSingleStep(1_000)
        self.blocks.setGroupSeparatorShown(True)
        self.blocks.setValue(DEFAULT_SAMPLES)
        title = "Also against transformers"
        self.with_transformers = named(QCheckBox(title), "checkTransformersCheck", title, TRANSFORMERS_HELP)
        copy_help = "The whole report as text"
        self.copy_button = push_button("Copy report", "copyCheckButton", copy_help, self._on_copy)
        self.save_button = push_button("Save…", "saveCheckButton", "The report as text or JSON", self._on_save)
        last = len(COLUMNS) - 1
        self.table: Table[None] = Table("checkTable", "Tests and their results", COLUMNS, NO_TESTS, stretched=last)
        self.remarks = wrapped_label("checkRemarks", "hint")
        prompts_help = "The prompts for which blocks were drawn"
        self.prompts = named(ElidedCombo(), "checkPromptsCombo", "First tokens after", prompts_help)
        self.prompts.setMinimumContentsLength(12)
        self.prompts.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.legend = hint_label("checkLegend")
        self.bars = CheckBars()
        guard_wheel(self.blocks, self.prompts)
        head = row(self.mark, (column(self.headline, self.subject, spacing=2), 1), spacing=12)
        head.setAlignment(self.mark, Qt.AlignmentFlag.AlignTop)
        blocks = text_label("Blocks to sample", "field", buddy=self.blocks)
        after = text_label("First tokens after", "field", buddy=self.prompts)
        self._tokens, _ = card(row(after, (self.prompts, 1), self.legend), self.bars)
        self._results = column(table_card(self.table), self.remarks, self._tokens, None)
        results = boxed(self._results)
        self._options = (blocks, self.blocks, self.with_transformers)
        asked = row(*self._options, self.progress, (self.stage, 1), self.start_button, self.stop_button)
        foot = row(None, self.copy_button, self.save_button, self.close_button)
        parts = (self.banner, head, asked, (scrolled(results, "checkResults"), 1), foot)
        boxed(column(*parts), self, margins=(16, 14, 16, 16))
        open_at(self, 860, 740)
        self._show_running(is_running=False)
        self._clear()
        self.say(NONE_YET)
        self.prompts.currentIndexChanged.connect(self._on_prompt_chosen)
        controls.changed.connect(self.refresh)
        controller.freed.connect(self.banner.retract)

    def _request(self) -> CheckRequest:
        run = self._controls.request_here(ANY_PROMPT, "Check", ", or run outrider check --engine URL")
        return CheckRequest(run, num_samples=self.blocks.value(), with_transformers=self.with_transformers.isChecked())

    # --- Running ---

    @Slot()
    def start(self) -> None:
        """Start the check, with the main window's settings."""
        if self.is_running:
            return
        try:
            request = self._request()
        except OutriderError as error:
            self.banner.show_until_changed(str(error))
            return

        def work(session: Any, controls: RunControls) -> Iterator[Any]:
            from core.experiments.check import check

            return check(session, request, controls)

        if self._start_task("A check", work) is None:
            self.banner.show_sentence(self._controller.busy_sentence())
            return
        self.banner.dismiss()
        self._clear()
        self._ending = STOPPED
        self.say("Checking…")
        self.subject.setText(self._in_titles(subject_of(request.run)))
        self.stage.clear()
        self.progress.setRange(0, 0)
        self._show_running(is_running=True)

    def _show_running(self, *, is_running: bool) -> None:
        offer(self.start_button, self.stop_button, is_running=is_running)
        for option in self._options:  # The progress takes their room.
            option.setVisible(not is_running)
        self.progress.setVisible(is_running)

    def say(self, sentence: str, *, role: str = "title") -> None:
        """Show the sentence at the top, in a role of the style sheet: title, verdict."""
        set_flag(self.headline, "role", role)
        self.headline.setText(sentence)

    def _show_stopping(self) -> None:
        self.stage.setText("Stopping…")

    def _show_events(self, events: Iterator[Any]) -> None:
        for event in events:
            if isinstance(event, StageChanged):
                self._show_progress(event.text)
            elif isinstance(event, CheckProgress):
                self._show_progress(event.text, event.done, event.total)
            elif isinstance(event, CheckFinished) and event.report is not None:
                self.show_report(event.report)

    def _show_progress(self, text: str, done: int = 0, total: int = 0) -> None:
        if self._task is not None and not self._task.controls.is_cancelled:
            counted = f"{text}: {done:,} of {total:,}" if total and " of " not in text else text
            self.stage.setText(" · ".join(filter(None, (counted, self._time_left(text, done, total)))))
            self.progress.setRange(0, total)
            self.progress.setValue(done)

    def _time_left(self, text: str, done: int, total: int) -> str:
        """The time left in this part of the check, at its speed so far."""
        part, now = text.partition(",")[0], time.monotonic()
        if part != self._part[0] or done <= self._part[2]:
            self._part = (part, now, done)
        _, began, first = self._part
        seconds = (now - began) / (done - first) * (total - done) if done > first else 0.0
        return f"about {duration_text(seconds)} left in this part" if seconds >= 1 else ""

    def _show_failure(self, sentence: str) -> None:
        self._ending = FAILED
        self.banner.show_sentence(sentence)

    def _show_end(self) -> None:
        self._show_running(is_running=False)
        self.stage.clear()
        if self._report is None:
            self.say(self._ending)
            self.table.hint.setText(NO_RESULTS)
        self.refresh()

    # --- What is shown ---

    @Slot()
    def refresh(self) -> None:
        """Show the chosen settings, and whether they still match the verdict that is shown."""
        if not self.isVisible() or self.is_running:
            return
        shown = chosen = None
        try:
            shown = chosen = self._request().run
            self.banner.dismiss_if_changed()
        except OutriderError as error:
            # A failure stays until it is dismissed: nothing else tells of it.
            if self.banner.is_until_changed or not self.banner.sentence():
                self.banner.show_until_changed(str(error))
        took = ""
        if self._report is not None:
            shown, took = self._report.request.run, f" · took {duration_text(self._report.seconds)}"
        if shown is None:
            self.subject.clear()
            return
        is_same = chosen is not None and _checked(shown) == _checked(chosen)
        has_changed = "" if is_same else "\nThe settings have changed since."
        self.subject.setText(f"{self._in_titles(subject_of(shown))}{took}{has_changed}")

    def _clear(self) -> None:
        self._report = None
        self._show_mark("?", "none", "No verdict yet")
        self.table.hint.setText(NO_TESTS)
        self._show_results([], "", ())

    def show_report(self, report: CheckReport) -> None:
        """Show a verdict and its reasons."""
        self._report = report
        sentence, distribution = verdict_sentence(report), report.distribution
        is_weak = report.verdict is Verdict.EXACT and distribution is not None and is_loose(distribution)
        self._show_mark(*(LOOSE_MARK if is_weak else MARKS[report.verdict]), sentence)
        self.say(sentence, role="verdict")
        remarks = [*(distribution_remarks(distribution) if distribution is not None else []), *report.notes]
        first_tokens = distribution.first_tokens if distribution is not None else ()
        self._show_results(rows_of(report), "\n".join(remarks), first_tokens)

    def _show_mark(self, text: str, kind: str, meaning: str) -> None:
        set_flag(self.mark, "kind", kind)
        self.mark.setText(text)
        self.mark.setAccessibleName(meaning)

    def _show_results(self, rows: list[Row[None]], remarks: str, first_tokens: tuple[FirstTokens, ...]) -> None:
        self.table.show_rows(rows)
        # As high as its rows, and all there is before there are any.
        hold(self.table, least_height=round((min(max(len(rows), MIN_ROWS), MAX_ROWS) + 1.7) * ROW))
        for place in (0, self._results.count() - 1):
            self._results.setStretch(place, int(bool(rows) == (place > 0)))
        self.remarks.setText(remarks)
        self.remarks.setVisible(bool(remarks))
        self._first_tokens = first_tokens
        self.prompts.clear()
        self.prompts.addItems([found.prompt for found in first_tokens])
        # First the prompt after which the most tokens are likely: where one takes all, there is little to compare.
        shares = [_top_share(found) for found in first_tokens]
        self.prompts.setCurrentIndex(shares.index(min(shares)) if shares else -1)
        self._tokens.setVisible(bool(first_tokens))
        for button in (self.copy_button, self.save_button):
            button.setEnabled(bool(rows))
        self._on_prompt_chosen()

    @Slot()
    def _on_prompt_chosen(self) -> None:
        place = self.prompts.currentIndex()
        found = self._first_tokens[place] if 0 <= place < len(self._first_tokens) else None
        self.bars.show_tokens(found)
        blocks = count_text(sum(item.observed for item in found.counts) if found is not None else 0, "block")
        self.legend.setText(LEGEND.format(blocks))

    # --- The report as text ---

    @Slot()
    def _on_copy(self) -> None:
        assert self._report is not None, "the button is off until there is one"
        QGuiApplication.clipboard().setText(report_text(self._report))
        self.stage.setText("The report is on the clipboard.")

    @Slot()
    def _on_save(self) -> None:
        report = self._report
        path = self._dialogs.ask_save_path(self, "exactness.txt", title="Save report", filters=REPORT_FILTERS)
        if path is None or report is None:
            return
        text = (report_json if path.suffix.lower() == ".json" else report_text)(report)
        self._jobs.submit(
            lambda _job: write_atomically(path, text),
            lambda _: self._show_saved(path),
            failed=self.banner.show_sentence,
            what="The report could not be saved",
            must_finish=True,
        )

    def _show_saved(self, path: Path) -> None:
        self.banner.dismiss()
        self.refresh()  # What is wrong with the settings still is.
        self.stage.setText(f"Saved to {path}")
