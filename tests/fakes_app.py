"""A scripted session for tests of the window: no weights, no torch, every event under the test's control."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from PySide6 import QtGui
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QLabel, QMenu, QTabWidget, QWidget

from core.controls import Cancelled, RunControls
from core.draft_length import config_fields
from core.runlog.tally import Tally
from core.settings import TYPICAL_FIELDS, LengthPolicy, RunRequest
from core.types import (
    BaselineStep,
    Drafted,
    Event,
    Finished,
    FinishReason,
    PrefillDone,
    RunStarted,
    StageChanged,
    Step,
    Summary,
    TokenKind,
)
from tests.fakes_models import DRAFT, MISMATCH, STRANGER, TARGET  # noqa: F401 - for the tests of the window

WORDS = (
    "    if n < 2 :\n        return n\n    a , b = 0 , 1\n    for _ in range ( n - 1 ) :\n        a , b = b , a + b\n"
    "    return b\n\n\ndef main ( ) :\n    print ( fibonacci ( 10 ) )\n\n"
)


WRONG = (" self", " x", "(", " None", ".append", " ==", "\n", " value", ")", " i", "_", " print")
"""What the scripted draft proposes where it is wrong."""


def words() -> tuple[str, ...]:
    """The script's tokens: words and spaces of a small program."""
    found: list[str] = []
    for line in WORDS.splitlines(keepends=True):
        body = line.rstrip("\n")
        indent = body[: len(body) - len(body.lstrip())]
        parts = [indent] if indent else []
        parts += [part if not index else f" {part}" for index, part in enumerate(body.split())]
        found += [*parts, "\n"]
    return tuple(found)


def make_step(
    index: int,
    position: int,
    *,
    num_draft_tokens: int = 4,
    num_accepted: int = 2,
    temperature: float = 0.8,
    texts: Callable[[int], str] = lambda position: f" t{position}",
    ms: float = 10.0,
) -> Step:
    """A step as the engine would send it: accepted tokens, then a correction or a bonus."""
    drafted = tuple(range(1000 + position, 1000 + position + num_draft_tokens))
    kept = drafted[:num_accepted]
    last = TokenKind.BONUS if num_accepted == num_draft_tokens else TokenKind.CORRECTION
    return Step(
        index=index,
        position=position,
        num_draft_tokens=num_draft_tokens,
        temperature=temperature,
        drafted=drafted,
        drafted_texts=tuple(
            texts(position + i) if i < num_accepted else WRONG[(position + i) % len(WRONG)]
            for i in range(num_draft_tokens)
        ),
        draft_probs=tuple(0.5 for _ in drafted),
        target_probs=tuple(0.6 if i < num_accepted else 0.1 for i in range(num_draft_tokens)),
        acceptance_probs=tuple(1.0 if i < num_accepted else 0.2 for i in range(num_draft_tokens)),
        expected_acceptance=tuple(0.8 for _ in drafted),
        uniforms=tuple(0.3 for _ in drafted),
        num_accepted=num_accepted,
        emitted=(*kept, 7),
        emitted_kinds=(*(TokenKind.ACCEPTED for _ in kept), last),
        emitted_texts=tuple(texts(position + i) for i in range(num_accepted + 1)),
        draft_ms=0.1 * ms * num_draft_tokens,
        verify_ms=0.5 * ms,
        sample_ms=0.06 * ms,
        total_ms=0.1 * ms * num_draft_tokens + 0.56 * ms,
    )


def cursor_at(view, position: int) -> QtGui.QTextCursor:
    """A cursor in the text of a view."""
    cursor = QtGui.QTextCursor(view.document())
    cursor.setPosition(position)
    return cursor


def make_summary(steps: list[Step], reason: FinishReason, **changes: object) -> Summary:
    """The summary of these steps, with a forecast by hand."""
    figures = {"cost_coefficient": 0.2, "prefill_ms": 12.0, "predicted_speedup": 1.7, **changes}
    return replace(Tally(steps).summary(reason, peak_memory_mb=210.0), **figures)


@dataclass
class FakeSession:
    """Plays a run by a script. Class-wide seams a test sets before the run.

    Attributes:
        fail_before: raised before the run starts.
        fail_after: the sentence of a failure after this many steps, as (steps, sentence).
        gate: if set, the session waits for it before each step; so a test decides how far a run comes.
        load_gate: if set, the session waits for it while it "loads".
        context_tokens: if set, how many tokens the context has room for.
        requests, controls: what it was asked for.
        dropped: a line for each model that it was told to drop.
    """

    fail_before: Exception | None = None
    fail_after: tuple[int, str] | None = None
    gate: threading.Semaphore | None = None
    load_gate: threading.Event | None = None
    context_tokens: int | None = None
    step_ms: float = 10.0
    requests: list[RunRequest] = field(default_factory=list)
    controls: list[RunControls] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    is_closed: bool = False
    held: int = 0
    started: int = 0

    def run(self, request: RunRequest, controls: RunControls) -> Iterator[Event]:
        """Yield the script's events."""
        self.requests.append(request)
        self.controls.append(controls)
        yield StageChanged("Loading the target…")
        self._wait_for_load(controls)
        if self.fail_before is not None:
            raise self.fail_before
        if controls.is_cancelled:
            yield Finished(make_summary([], FinishReason.CANCELLED))
            return
        self.started += 1
        yield self._head(request)
        yield PrefillDone(num_prompt_tokens=9, prefill_ms=12.0, target_step_ms=5.0)
        steps: list[Step] = []
        reason, error = FinishReason.LENGTH, None
        for step in self._steps(request, controls):
            if isinstance(step, Drafted):
                yield step
                continue
            steps.append(step)
            yield step
            if self.fail_after is not None and len(steps) == self.fail_after[0]:
                reason, error = FinishReason.ERROR, self.fail_after[1]
                break
        if controls.is_cancelled:
            reason = FinishReason.CANCELLED
        was_stepped, baseline = controls.was_stepped, dict[str, object]()
        if request.baseline and reason is FinishReason.LENGTH:
            yield StageChanged("Measuring the baseline…")
            tokens, script = sum(len(step.emitted) for step in steps), words()
            for index in range(tokens):
                plain = make_step(
                    index,
                    9 + index,
                    num_draft_tokens=0,
                    num_accepted=0,
                    texts=lambda place: script[(place - 9) % len(script)],
                    ms=0.9 * self.step_ms,
                )
                yield BaselineStep(plain)
            speed = 1000 / plain.total_ms
            speedup = None if was_stepped else 1000 * tokens / sum(step.total_ms for step in steps) / speed
            baseline = {"baseline_tokens_per_second": speed, "measured_speedup": speedup}
        yield Finished(make_summary(steps, reason, error=error, was_stepped=was_stepped, **baseline))

    def drop(self, ref: str) -> None:
        """Remember that a model was dropped."""
        self.dropped.append(f"drop {ref}")

    def held_bytes(self, _device: str) -> int:
        """What the script says."""
        return self.held

    def close(self) -> None:
        """Remember that the models were dropped."""
        self.is_closed = True

    def _wait_for_load(self, controls: RunControls) -> None:
        while self.load_gate is not None and not self.load_gate.wait(0.005):
            if controls.is_cancelled:
                break

    def _steps(self, request: RunRequest, controls: RunControls) -> Iterator[Drafted | Step]:
        random_source = random.Random(request.seed)
        first = 9 + len(request.continuation) + len(request.forced)
        script, position, index = words(), first, 0
        room = request.max_new_tokens if self.context_tokens is None else self.context_tokens
        while position - first < room:
            while self.gate is not None and not self.gate.acquire(timeout=0.005):
                if controls.is_cancelled:
                    return
            try:
                controls.wait_for_step()
            except Cancelled:
                return
            length = controls.num_draft_tokens
            k = 3 if isinstance(length, LengthPolicy) else length
            k = min(k, room - (position - first) - 1)
            accepted = next((i for i in range(k) if random_source.random() > 0.8), k)
            step = make_step(
                index,
                position,
                num_draft_tokens=k,
                num_accepted=accepted,
                temperature=controls.sampling.temperature,
                texts=lambda place: script[(place - 9) % len(script)],
                ms=self.step_ms * random_source.uniform(0.85, 1.2),
            )
            step = replace(step, draft_length=length)
            if controls.is_paused and k:
                yield Drafted(index, position, step.drafted, step.drafted_texts)
                try:
                    controls.wait_to_look()
                except Cancelled:
                    return
            yield step
            index += 1
            position += len(step.emitted)

    def _head(self, request: RunRequest) -> RunStarted:
        script = words()
        kept = [script[place % len(script)] for place in range(len(request.continuation))]
        continuation = {
            "continuation_token_ids": [*request.continuation, *request.forced],
            "continuation_text": "".join(kept),
            "forced_text": request.forced_text or "".join(f"<{token}>" for token in request.forced),
        }
        names = (
            "target", "draft", "method", "seed", "coupling", "verification", "max_new_tokens", "prompt",
        )  # fmt: skip
        config = {
            **{name: getattr(request, name) for name in names},
            **config_fields(request.draft_length),
            **{name: getattr(request.sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")},
            **{"revision": None, "device": "cpu", "dtype": "float32"},
            **({"lossy": True, **TYPICAL_FIELDS} if request.is_lossy else {}),
            **{"prompt_token_ids": list(range(9)), "chat": request.chat is True},
            **(continuation if request.continuation or request.forced or request.forced_text else {}),
        }
        environment = {"python": "3.11", "torch": "2.13", "transformers": "5.0"}
        environment |= {"platform": "Linux", "device_name": "CPU", "threads": 2}
        return RunStarted(
            run_id=f"20260101-120000-{self.started}",
            started_at="2026-01-01T12:00:00+00:00",
            version="0.1.0",
            config=config,
            environment=environment,
        )


def run_of(steps, *, baseline: bool = True, is_over: bool = True):
    """What the window has of a run of these steps; a plain forward takes 10 ms, a plain step 10.6."""
    from app.run.run_view import RunView

    run, request = RunView(), RunRequest("t", "d", "x", baseline=baseline)
    run.begin(request)
    run.apply(FakeSession()._head(request))
    run.apply(PrefillDone(9, 12.0, 10.0))
    for step in steps:
        run.apply(step)
    measured = {}
    if baseline and is_over:
        for index in range(50):
            plain = make_step(index, 9, num_draft_tokens=0, num_accepted=0, ms=20.0)
            run.apply(BaselineStep(plain))
        measured = {"baseline_tokens_per_second": 1000 / plain.total_ms}
    if is_over:
        run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH, **measured)))
    return run


def text_of(run) -> str:
    """The text that a run has generated so far."""
    return "".join(step.emitted_text for step in run.steps)


def keep_files_in(folder: Path, patches: pytest.MonkeyPatch) -> None:
    """Have settings, runs and sweeps kept in a folder until the patches are undone."""
    patches.setattr("app.settings.data_folder", lambda: folder)
    patches.setattr("app.settings.config_file", lambda: folder / "settings.json")


def _asks(answer: str):
    """A dialog that answers with this attribute, and notes what it was asked about."""

    def ask(self, _parent, *about, **_how):
        self.asked.extend(about)
        return getattr(self, answer)

    return ask


class ScriptedDialogs:
    """Answers in a person's place. A path or text of None: the dialog is dismissed."""

    export_path = model_path = sweep_path = prompts_path = forced_text = None
    says_yes = False

    def __init__(self) -> None:
        self.asked = []

    ask_removal = ask_too_large = _asks("says_yes")
    ask_save_path = _asks("export_path")
    ask_sweep_path = _asks("sweep_path")
    ask_prompts_path = _asks("prompts_path")
    ask_model_path = _asks("model_path")
    ask_forced_text = _asks("forced_text")

    def show_about(self, _parent, device, _jobs):
        self.asked.append("about")
        self.device = device


MIN_CONTRAST = 4.5
"""WCAG AA for text; every pair of text and background below meets it."""
MIN_BAR_CONTRAST = 3.0
"""WCAG AA for graphics: a plot's bars against the panel behind them."""


def files_beside_settings(folder):
    """All files in a folder but the settings, which the window saves when it has time."""
    return sorted(path for path in folder.rglob("*") if "settings" not in path.name)


def cell(view, row=0, column=0, role=0):
    """What a table shows in a cell, or another role of it."""
    return view.model().index(row, column).data(role)


def texts(view):
    """What a table shows, row by row."""
    model = view.model()
    return [[cell(view, row, column) for column in range(model.columnCount())] for row in range(model.rowCount())]


def assert_no_markup(text: str, *windows: QWidget) -> None:
    """A stranger's text is shown by labels and tooltips of the windows, without markup and hidden characters."""
    labels = [label for window in windows for label in window.findChildren(QLabel)]
    # pyqtgraph's own menus are never shown, and hold no data.
    labels = [label for label in labels if not isinstance(label.window(), QMenu)]
    assert any("img" in label.text() for label in labels), text
    assert {label.textFormat() for label in labels} == {Qt.TextFormat.PlainText}
    tips = [widget.toolTip() for window in windows for widget in window.findChildren(QWidget)]
    for tabs in (tabs for window in windows for tabs in window.findChildren(QTabWidget)):
        tips += map(tabs.tabToolTip, range(tabs.count()))
    for view in (view for window in windows for view in window.findChildren(QAbstractItemView)):
        model = view.model()
        cells = [model.index(row, column) for row in range(model.rowCount()) for column in range(model.columnCount())]
        tips += [str(index.data(Qt.ItemDataRole.ToolTipRole) or "") for index in cells]
    assert any("img" in tip for tip in tips), text
    rich = [tip for tip in tips if QtGui.Qt.mightBeRichText(tip)]
    assert not [tip for tip in rich if "<img" in tip or "<b>" in tip], text
    assert not [tip for tip in tips if "\u202e" in tip], text


def drag_columns(window: QWidget, widths: list[int]) -> None:
    """Give a main window's columns other widths, as by dragging the handles between them."""
    window.main_splitter.setSizes(widths)
    window.main_splitter.splitterMoved.emit(0, 1)
