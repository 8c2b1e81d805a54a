"""The quick mode of the sweep: it starts a probe, shows the drafts, and puts one into the settings."""

from __future__ import annotations

import threading

import pytest
from PySide6.QtCore import Qt

from app.theme import LIGHT
from app.tools.sweep.estimate import row_of
from core.analysis.expectation import Curve, Estimate
from core.analysis.probe import Agreement, Costs, DraftProbe, ProbeDone, Shape
from core.errors import ModelNotFoundError
from tests.fakes_app import DRAFT, TARGET, cell, texts
from tests.fakes_check import FakeTask


def found(draft, *speedups, **changes):
    """A draft's probe with these speedups for K = 1, 2, …"""
    values = (1.0, *speedups)
    agreement = Agreement(
        num_places=64, acceptance=Estimate(0.8, 0.75, 0.85), survival=(0.8, 0.6), tokens=Curve(values), top_1=0.7,
        is_own_text=True, kl_target_draft=0.4, kl_draft_target=0.5, num_infinite=0, target_entropy=1.0,
        draft_entropy=1.1,
    )  # fmt: skip
    verify = Curve((1.0, 1.1, 1.2, 1.3, 1.4))
    curve = Curve(values, tuple(value - 0.1 for value in values), tuple(value + 0.1 for value in values))
    return DraftProbe(draft, "", agreement, Costs(10.0, 1.0, ()), verify, curve, 0.5, **changes)


class FakeProbe(FakeTask):
    """Answers with a list of probes."""

    def __init__(self, *probes):
        super().__init__()
        self.probes = probes

    def answer(self, _request, controls):
        done = []
        for probe in self.probes:
            if not self.goes_on(controls):
                break
            done.append(probe)
            yield probe
        ranked = sorted(done, key=lambda item: (bool(item.problem), -item.best_speedup))
        yield ProbeDone(tuple(ranked), controls.is_cancelled, ())


GOOD, BAD = found(DRAFT.ref, 1.3, 1.8, 1.6), found("slow", 0.9, 0.7)


@pytest.fixture
def probing(make_window, monkeypatch):
    """A window whose engine answers with these probes, and its open window of sweeps."""

    def build(*probes):
        fake = FakeProbe(*probes)
        monkeypatch.setattr("core.analysis.run_probe.probe", fake)
        monkeypatch.setattr("core.analysis.probe.drafts_here", lambda target: tuple(item.draft for item in probes))
        window = make_window()
        window.menus.sweep.trigger()
        return window, window.sweep, fake

    return build


def test_what_counts_is_in_view_at_every_size(probing, qtbot, apply_theme):
    _, panel, _ = probing(GOOD)
    finish(qtbot, panel)
    table = panel.estimate.table
    for scale in (1.0, 1.25, 1.5):
        apply_theme(LIGHT, scale)
        panel.restyle()
        panel.resize(1024, 700)
        qtbot.waitUntil(lambda: table.horizontalScrollBar().maximum() == 0)
        assert [table.isColumnHidden(place) for place in (0, 1, 3)] == [False] * 3


def finish(qtbot, panel):
    panel.form.quick_button.click()
    qtbot.waitUntil(lambda: not panel.is_running)


def test_drafts_are_ranked_with_a_sentence_and_one_press_puts_draft_and_k_into_the_settings(probing, qtbot):
    window, panel, fake = probing(BAD, GOOD)
    window.prompt.set_text("def f():")
    panel.form.temperatures.setText("0.3, 1")
    finish(qtbot, panel)
    assert panel.estimate.isVisible()
    assert ", temperature\u00a00.3 (the first) · From the main window: the prompt · " in panel.estimate.subject.text()
    assert window.controls.settings("x").temperature != 0.3
    assert [row[0] for row in texts(panel.estimate.table)] == [DRAFT.title, "slow"]
    assert texts(panel.estimate.table)[0][1:4] == ["1.80×", "1.70 to 1.90", "2"]
    assert panel.estimate.headline.text().startswith(f"At temperature 0.3, use {DRAFT.title} with K = 2")
    asked = fake.requests[0]
    assert (asked.target, asked.drafts, asked.generate) == (TARGET.ref, ("slow", DRAFT.ref), 64)
    assert asked.texts[0].prompt == "def f():"
    panel.estimate.use_button.click()
    assert window.controls.draft_length() == 2
    assert window.controls.settings("x").temperature == 0.3, "for which this K is the best"
    assert window.controls.draft.ref == DRAFT.ref
    assert panel.estimate.note.text().endswith(" with K = 2 at temperature 0.3.")


def test_a_temperature_that_the_window_lacks_is_not_said_to_be_set(probing, qtbot):
    window, panel, _ = probing(GOOD)
    panel.form.temperatures.setText("3")
    finish(qtbot, panel)
    panel.estimate.use_button.click()
    assert window.controls.settings("x").temperature == 2.0
    assert panel.estimate.note.text().endswith(" at temperature 2, but this K is the best at 3.")


def test_a_tree_that_is_faster_than_any_chain_is_named_and_used(probing, qtbot):
    slower, faster = Shape(3, 2, 2, 2.2, 1.7), Shape(6, 3, 4, 3.1, 2.4)
    probe = found(DRAFT.ref, 1.3, 1.8, shapes=(faster, slower))
    window, panel, _ = probing(probe)
    finish(qtbot, panel)
    assert texts(panel.estimate.table)[0][4] == "2.40×"
    assert "Faster still, a tree" in panel.estimate.headline.text()
    assert "K = 3, depth 2, branching 2: 2.20 tokens/forward" in row_of(probe).tip
    panel.estimate.use_button.click()
    settings = window.controls.settings("x")
    assert (settings.method, window.controls.draft_length()) == ("draft-tree", 6)
    assert settings.method_options["draft-tree"].items() >= {"depth": 3, "branching": 4}.items()
    assert not found("x", 1.3, 1.8, shapes=(slower,)).faster_tree


def test_a_draft_that_does_not_pay_can_not_be_used_and_one_with_a_problem_says_it(probing, qtbot):
    _, panel, fake = probing(DraftProbe("odd", problem="The tokenizers differ."), BAD)
    finish(qtbot, panel)
    assert fake.requests[0].target == TARGET.ref
    assert ", don't speculate here" in panel.estimate.headline.text()
    assert not panel.estimate.use_button.isEnabled()
    assert [row[1] for row in texts(panel.estimate.table)] == ["below 1×", "–"]
    assert texts(panel.estimate.table)[0][3] == "none"
    assert cell(panel.estimate.table, 1, role=Qt.ItemDataRole.ToolTipRole) == "The tokenizers differ."


@pytest.mark.parametrize("num_probed", [0, 1])
def test_a_probe_that_is_stopped_keeps_what_it_has_and_no_run_starts_beside_it(probing, qtbot, num_probed):
    window, panel, fake = probing(GOOD, BAD)
    fake.gate = threading.Semaphore(num_probed)
    panel.form.quick_button.click()
    qtbot.waitUntil(lambda: bool(fake.requests) and panel.estimate.table.count() == num_probed)
    assert panel.form.stop_button.isEnabled()
    assert not panel.form.start_button.isEnabled()
    window.prompt.run_button.click()
    assert "An estimate is " in window.banner.label.text()
    assert not window.run_view.steps
    panel.form.stop_button.click() if num_probed else panel.close()
    qtbot.waitUntil(lambda: not panel.is_running)
    assert ("Stopped before all" if num_probed else "Stopped before any draft") in panel.estimate.headline.text()
    assert panel.form.start_button.isEnabled()


def test_a_probe_is_refused_while_a_run_is_in_progress(probing, qtbot, session):
    window, panel, fake = probing(GOOD)
    session.gate = threading.Semaphore(0)
    window.prompt.run_button.click()
    panel.form.quick_button.click()
    assert panel.banner.sentence() == window.controller.busy_sentence() != ""
    assert not fake.requests
    with qtbot.waitSignal(window.live.run_shown):
        session.gate.release(1000)


def test_a_failure_is_one_sentence_in_the_window(probing, qtbot):
    window, panel, fake = probing(GOOD)
    fake.error = ModelNotFoundError("There is no draft here for it.")
    finish(qtbot, panel)
    assert panel.banner.sentence() == "There is no draft here for it."
    assert panel.estimate.headline.text() == "", "and shown once"
    window.prompt.set_text("  ")
    panel.form.quick_button.click()
    assert "prompt is empty" in panel.banner.sentence()
