"""The window that checks whether a pair, with these settings, gives exactly what the target alone would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QCheckBox, QProgressBar, QSpinBox, QWidget

from app.controller import RunController
from app.dialogs import REPORT_FILTERS, Dialogs
from app.jobs import Jobs
from app.setup.settings_panel import SettingsPanel
from app.theme import hold
from app.tools.check_results import CheckResults
from app.tools.tool_window import ToolWindow
from app.widgets.fields import (
    boxed,
    column,
    guard_wheel,
    held,
    named,
    offer,
    push_button,
    row,
    scrolled,
    set_flag,
    text_label,
    wrapped_label,
)
from app.widgets.labels import ElidedLabel
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
    Verdict,
)
from core.experiments.check_report import drafting_text, is_loose, report_json, report_text, verdict_sentence
from core.files import write_atomically
from core.settings import Coupling, RunRequest
from core.text import duration_text
from core.types import StageChanged

# --- What is shown ---

NONE_YET = "Check whether this pair, with these settings, gives exactly what the target alone would."
NO_TESTS = (
    "Press Check. Each test gets a row here: greedy text against plain decoding, and sampled tokens against the "
    "target's distribution."
)
NO_RESULTS = "No results. Press Check: they appear together, with the verdict, when all tests are done."
TOGETHER = "The results appear together, with the verdict, when all tests are done."
STOPPED = "Stopped before there was a verdict."
FAILED = "The check failed; there is no verdict."
MARKS = {Verdict.EXACT: ("✓", "exact"), Verdict.NEAR_TIES: ("≈", "near"), Verdict.NOT_EXACT: ("✕", "broken")}
LOOSE_MARK = ("✓", "loose")
"""Of a check that finds no difference, and would miss even a large bias."""


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
    parts.append(f"seed {run.seed}")
    return " · ".join(parts)


def _checked(run: RunRequest) -> RunRequest:
    """A run without the settings that a check doesn't use."""
    return replace(run, baseline=False, max_new_tokens=1)


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
        self._ending = NONE_YET
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
        self.headline = wrapped_label("checkHeadline", "title")
        self.reason = wrapped_label("checkReason", "plain")
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
        guard_wheel(self.blocks)
        self.results = CheckResults()
        head = row(self.mark, (column(self.headline, self.reason, self.subject, spacing=2), 1), spacing=12)
        head.setAlignment(self.mark, Qt.AlignmentFlag.AlignTop)
        blocks = text_label("Blocks to sample", "field", buddy=self.blocks)
        self._options = (blocks, self.blocks, self.with_transformers)
        asked = row(*self._options, self.progress, (self.stage, 1), self.start_button, self.stop_button)
        foot = row(None, self.copy_button, self.save_button, self.close_button)
        parts = (self.banner, head, asked, (scrolled(self.results, "checkResults"), 1), foot)
        boxed(column(*parts), self, margins=(16, 14, 16, 16))
        open_at(self, 860, 740)
        self._show_running(is_running=False)
        self._clear()
        self.say(NONE_YET)
        controls.changed.connect(self.refresh)

    def _request(self) -> CheckRequest:
        run = self._controls.request_here(ANY_PROMPT, "Check", ", or run outrider check --engine URL")
        return CheckRequest(run, num_samples=self.blocks.value(), with_transformers=self.with_transformers.isChecked())

    def _subject_of(self, run: RunRequest) -> str:
        return held(self._in_titles(subject_of(run)))

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

        if not self._start_task("A check", work):
            return
        self._clear()
        self._ending = STOPPED
        self.say("Checking…")
        self.subject.setText(self._subject_of(request.run))
        self.stage.clear()
        self.progress.setRange(0, 0)
        self.results.table.hint.setText(TOGETHER)
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
                self._show_progress(event.text, event.done, event.total, event.title)
            elif isinstance(event, CheckFinished) and event.report is not None:
                self.show_report(event.report)

    def _show_progress(self, text: str, done: int = 0, total: int = 0, title: str = "") -> None:
        if self._task is not None and not self._task.controls.is_cancelled:
            title = title or text
            counted = f"{title}: {done:,} of {total:,}" if total and " of " not in text else title
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
            self.results.table.hint.setText(NO_RESULTS)
        self.refresh()

    # --- What is shown ---

    @Slot()
    def refresh(self) -> None:
        """Show the chosen settings, and whether they still match the verdict that is shown."""
        if not self.isVisible() or self.is_running:
            return
        chosen = None
        try:
            chosen = self._request().run
            self.banner.dismiss_if_changed()
        except OutriderError as error:
            # A failure stays until it is dismissed: nothing else tells of it.
            if self.banner.is_until_changed or not self.banner.sentence():
                self.banner.show_until_changed(str(error))
        if self._report is None:
            if self._ending == NONE_YET:  # Later, the line is about the check that ended.
                self.subject.setText("" if chosen is None else self._subject_of(chosen))
            return
        checked = self._report.request.run
        is_same = chosen is not None and _checked(checked) == _checked(chosen)
        has_changed = "" if is_same else "\nThe settings have changed since."
        took = duration_text(self._report.seconds)
        self.subject.setText(f"{self._subject_of(checked)} · took {took}{has_changed}")

    def _clear(self) -> None:
        self._show_mark("?", "none", "No verdict yet")
        self.results.table.hint.setText(NO_TESTS)
        self._show_results(None)

    def show_report(self, report: CheckReport) -> None:
        """Show a verdict and its reasons."""
        sentence, distribution = verdict_sentence(report), report.distribution
        is_weak = report.verdict is Verdict.EXACT and distribution is not None and is_loose(distribution)
        self._show_mark(*(LOOSE_MARK if is_weak else MARKS[report.verdict]), sentence)
        self.say(sentence, role="verdict")
        self._show_results(report)

    def _show_results(self, report: CheckReport | None) -> None:
        self._report = report
        self.results.show_report(report)
        reason = report.notes[0] if report is not None and report.is_unexplained else ""
        self.reason.setText(reason)
        self.reason.setVisible(bool(reason))
        for button in (self.copy_button, self.save_button):
            button.setEnabled(report is not None)

    def _show_mark(self, text: str, kind: str, meaning: str) -> None:
        set_flag(self.mark, "kind", kind)
        self.mark.setText(text)
        self.mark.setAccessibleName(meaning)

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
