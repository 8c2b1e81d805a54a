"""The window on the models that ship with it: the engine itself, in its thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from app.settings import RunSettings
from app.tools.runs.table import run_row
from app.worker import open_session
from core.analysis.steadiness import interval_text
from core.experiments.api import generate
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, SMOLLM2_DRAFTER, embedded_models
from core.models.loading import load
from core.runlog.reading import read_run_log
from core.runlog.store import read_head
from core.settings import Coupling
from core.types import FinishReason

pytestmark = pytest.mark.slow


def test_the_pair_and_the_drafter_are_here():
    assert [entry.ref for entry in embedded_models()] == [DEFAULT_TARGET, DEFAULT_DRAFT, SMOLLM2_DRAFTER]


@pytest.fixture
def hub():
    """The models are real."""


@pytest.fixture
def window(make_window, tmp_path):
    window = make_window(open_session)
    window.controls.fields["max_new_tokens"].setValue(48)
    return window


def test_the_embedded_pair_runs_and_its_baseline_is_measured(window, run_to_end, tmp_path):
    run_to_end(window, timeout=120_000)
    assert window.banner.sentence() == ""
    summary = window.run_view.summary
    assert summary.finish_reason is FinishReason.LENGTH
    assert summary.num_tokens == 48
    assert window.transcript.view.toPlainText() == window.prompt.text() + summary.text
    assert window.measurements.tiles.speedup.value.text() == f"{summary.measured_speedup:.2f}×"
    assert window.measurements.latency.baseline_line.isVisible()
    (path,) = (tmp_path / "runs").glob("*.jsonl")
    assert read_run_log(path).problems == []
    run = window.run_view
    assert run.interval == interval_text(summary.measured_speedup_interval)
    assert summary.was_busy is bool(run.busy_note)
    row = run_row(read_head(path))
    assert row.subtitle.removeprefix("busy · ").startswith(f"95 %: {run.interval} ")
    assert row.subtitle.startswith("busy") is summary.was_busy


def test_stop_in_a_run_keeps_the_engine_usable(window, qtbot, run_to_end):
    window.controls.fields["max_new_tokens"].setValue(512)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: window.run_view.num_tokens > 3, timeout=120_000)
    with qtbot.waitSignal(window.live.run_shown, timeout=20_000):
        window.prompt.stop_button.click()
    assert window.run_view.summary.finish_reason is FinishReason.CANCELLED
    window.controls.fields["max_new_tokens"].setValue(8)
    run_to_end(window, timeout=120_000)
    assert window.run_view.summary.num_tokens == 8


def test_closing_during_a_load_leaves_no_thread(window, qtbot):
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: "ead" in window.status.stage.text() or "oad" in window.status.stage.text(), timeout=60_000)
    window.close()
    qtbot.waitUntil(lambda: window.controller.is_closed, timeout=60_000)


def test_a_prompt_beyond_the_context_is_explained_and_kept(window, run_to_end):
    prompt = "word " * 20_000
    window.prompt.edit.setPlainText(prompt)
    run_to_end(window, timeout=120_000)
    assert "remove at least 18,978 tokens, or " in window.banner.sentence()
    assert window.prompt.text() == prompt
    window.prompt.edit.setPlainText("def f():")
    run_to_end(window, timeout=120_000)
    assert window.banner.sentence() == ""


def test_a_model_that_disappeared_is_one_sentence(make_window, run_to_end, tmp_path, monkeypatch):
    target, draft, *_ = embedded_models()
    gone = replace(draft, ref=str(tmp_path / "gone"), path=tmp_path / "gone")
    monkeypatch.setattr("core.models.catalogue.embedded_models", lambda: (target, gone))
    window = make_window(open_session)
    window.controls.draft.wanted = gone.ref
    window.controls._show_models()
    run_to_end(window, timeout=120_000)
    assert "gone" in window.banner.sentence()


def test_the_first_texts_repeat_no_line_over_and_over():
    """What a new user sees: the first prompt under the first settings, and the same again in the race."""
    first = RunSettings()
    pair = [load(ref, "cpu", "float32") for ref in (DEFAULT_TARGET, DEFAULT_DRAFT)]
    for coupling in Coupling:
        text = generate(
            *pair, first.prompt, num_draft_tokens=first.num_draft_tokens, sampling=first.sampling, seed=first.seed,
            max_new_tokens=first.max_new_tokens, coupling=coupling,
        ).text  # fmt: skip
        lines = Counter(line.strip() for line in text.splitlines() if len(line.strip()) > 8)
        assert len(lines) >= 6
        assert max(lines.values()) <= 3
