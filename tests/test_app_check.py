"""The window that checks exactness: it starts a check, shows the verdict, and copies and saves the report."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel, QStyle, QStyleOptionComboBox

from app.setup.prompt import READY_HINT
from app.setup.setting_fields import set_value
from app.theme import DARK
from app.tools.check import FAILED, NO_RESULTS, NO_TESTS, STOPPED
from app.tools.check_results import ElidedCombo
from core.errors import GenerationError
from core.experiments.check_plan import NOTHING_DRAFTED, BiasLimit
from core.settings import DType
from tests.fakes_app import DRAFT, TARGET, cell, texts
from tests.fakes_check import FakeCheck


@pytest.fixture
def checking(make_window, monkeypatch):
    """A window whose engine answers with a report like this, and its open check window."""

    def build(**report):
        fake = FakeCheck(**report)
        monkeypatch.setattr("core.experiments.check.check", fake)
        window = make_window()
        window.menus.check.trigger()
        return window, window.check, fake

    return build


def finish(qtbot, panel):
    panel.start_button.click()
    qtbot.waitUntil(lambda: not panel.is_running)


def shown_once(panel):
    """The sentence of the banner, which no other label repeats."""
    sentence = panel.banner.sentence()
    assert [label.text() for label in panel.findChildren(QLabel) if label.isVisible()].count(sentence) == 1
    return sentence


def test_an_exact_pair_gets_a_tick_a_plain_sentence_and_its_p_values(checking, qtbot):
    _, panel, fake = checking()
    assert f"{DRAFT.title} for {TARGET.title}" in panel.subject.text()
    hint = panel.results.table.findChild(QLabel, "emptyHint")
    assert (hint.isVisible(), hint.text()) == (True, NO_TESTS)
    panel.blocks.setValue(5_000)
    finish(qtbot, panel)
    assert not hint.isVisible()
    assert (panel.mark.text(), panel.mark.property("kind")) == ("✓", "exact")
    assert panel.headline.text().startswith("Exact: ")
    assert texts(panel.results.table)[0] == ["Greedy text against plain decoding", "576", "", "", "✓ equal"]
    assert texts(panel.results.table)[1] == ["Token 1 of a block", "3,000", "16.4", "18", "✓ p = 0.563"]
    assert texts(panel.results.table)[3][-1] == "too few to test"
    assert panel.results.remarks.text()
    assert panel.reason.isHidden()
    assert panel.results.shown.isHidden()
    assert (fake.requests[0].num_samples, fake.requests[0].run.target) == (5_000, TARGET.ref)


def test_a_check_that_would_miss_a_large_bias_gets_no_green_mark(checking, qtbot):
    _, panel, _ = checking()
    finish(qtbot, panel)
    report = panel._report
    for error, limit, words in (
        (0.05, None, "Exact as far as tested: "),
        (None, BiasLimit.ALIKE, "Exact as far as tested: "),
        (None, BiasLimit.SAMPLES, "Exact as far as tested: no difference in 3,000 blocks, too few to show a bias"),
    ):
        found = replace(report.distribution, bias_error=error, bias_limit=limit)
        panel.show_report(replace(report, distribution=found))
        assert panel.mark.property("kind") == "loose"
        assert panel.headline.text().startswith(words)


def test_a_broken_pair_is_shown_by_sign_sentence_and_rows(checking, qtbot, apply_theme):
    _, panel, _ = checking(broken=True)
    finish(qtbot, panel)
    assert (panel.mark.text(), panel.mark.property("kind")) == ("✕", "broken")
    bias = "their bias towards the draft is 9.3\u00a0%"
    assert panel.headline.text() == f"Not exact: 3,000 sampled blocks don't follow the target's distribution; {bias}."
    assert "another seed (Seed in the main window" in panel.reason.text()
    assert "another seed" not in panel.results.remarks.text()
    assert panel.results.shown.text() == "The bars show only token 1 of a block, which passed."
    assert f" · seed {panel._report.request.run.seed} · took " in panel.subject.text()
    assert texts(panel.results.table)[2][-1] == "✕ p < 0.001"
    assert "p = 2.7\u00a0×\u00a010⁻⁵" in cell(panel.results.table, 2, role=Qt.ItemDataRole.ToolTipRole)
    apply_theme(DARK)
    assert cell(panel.results.table, 2, role=Qt.ItemDataRole.ForegroundRole).name() == DARK.danger
    assert panel.mark.palette().windowText().color().name() == DARK.danger, "the mark says the same"
    assert cell(panel.results.table, 1, role=Qt.ItemDataRole.ForegroundRole) is None


def test_near_ties_are_shown_with_margin_and_difference_and_that_the_settings_have_changed(checking, qtbot):
    window, panel, _ = checking(near=True)
    finish(qtbot, panel)
    assert panel.mark.text() == "≈"
    assert panel.headline.text().startswith("Exact up to near-ties")
    assert texts(panel.results.table)[0][-1] == "≈ 1 near-tie"
    assert "margin 2.1\u00a0×\u00a010⁻⁶, measured difference 4.4\u00a0×\u00a010⁻⁶" in cell(
        panel.results.table, role=Qt.ItemDataRole.ToolTipRole
    )
    before = panel.subject.text()
    k = window.controls.fields["num_draft_tokens"].value()
    window.controls.fields["num_draft_tokens"].set_value(9)
    assert panel.subject.text() == f"{before}\nThe settings have changed since."
    window.controls.fields["num_draft_tokens"].set_value(k)
    assert panel.subject.text() == before
    set_value(window.controls.fields["dtype"], DType.BFLOAT16)
    assert panel.subject.text().endswith("The settings have changed since."), "precision is one of them"
    window.controls.apply(replace(window.controls.settings(""), dtype=DType.AUTO, system="Be brief."))
    window.controls.changed.emit()
    assert panel.subject.text().endswith("The settings have changed since."), "and what the prompts are preceded by"


def test_first_tokens_are_shown_and_heard_and_the_report_is_copied_and_saved(checking, qtbot, dialogs, tmp_path):
    _, panel, _ = checking()
    finish(qtbot, panel)
    assert panel.results.bars.accessibleName() == "First tokens after Fibonacci"
    assert "␣␣␣␣: 499 observed, 497.9 expected" in panel.results.bars.accessibleDescription()
    assert "all others: 115 observed" in panel.results.bars.accessibleDescription()
    shares = [
        found.counts[0].expected / sum(item.expected for item in found.counts) for found in panel.results.first_tokens
    ]
    assert shares.index(min(shares)) == panel.results.prompts.currentIndex(), (
        "the prompt that leaves most open comes first"
    )
    panel.results.prompts.setCurrentIndex(1)
    assert panel.results.bars.accessibleName() == "First tokens after Read a file"
    panel.copy_button.click()
    assert QGuiApplication.clipboard().text().startswith("Exact: ")
    for name in ("report.txt", "report.json"):
        dialogs.export_path = tmp_path / name
        panel.save_button.click()
        qtbot.waitUntil(lambda name=name: panel.stage.text() == f"Saved to {tmp_path / name}")
    assert (tmp_path / "report.txt").read_text("utf-8").startswith("Exact: ")
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["verdict"] == "exact"
    dialogs.export_path = tmp_path / "missing" / "report.txt"
    panel.save_button.click()
    qtbot.waitUntil(lambda: "missing" in panel.banner.sentence())
    dialogs.export_path = tmp_path / "report.txt"
    panel.save_button.click()
    qtbot.waitUntil(lambda: not panel.banner.sentence())


def test_a_prompt_that_is_too_long_for_its_list_ends_in_an_ellipsis(qtbot):
    combo, name = ElidedCombo(), "Tests with docstrings, cut after 35 tokens"
    qtbot.addWidget(combo)
    combo.resize(200, 30)
    combo.addItem(name)

    def drawn(text):
        combo.setItemText(0, text)
        return combo.grab().toImage()

    option, part = QStyleOptionComboBox(), QStyle.SubControl.SC_ComboBoxEditField
    combo.initStyleOption(option)
    room = combo.style().subControlRect(QStyle.ComplexControl.CC_ComboBox, option, part, combo).width()
    shown = combo.fontMetrics().elidedText(name, Qt.TextElideMode.ElideRight, room)
    assert shown.endswith("…")
    assert drawn(name) == drawn(shown)


def test_a_check_that_is_stopped_has_no_verdict_and_no_run_starts_beside_it(checking, qtbot):
    window, panel, fake = checking()
    for count, stop in enumerate((panel.stop_button.click, panel.reject, panel.close), 1):
        fake.gate = threading.Semaphore(1)
        panel.start_button.click()
        qtbot.waitUntil(lambda count=count: len(fake.requests) == count and panel.progress.value() == 1000)
        assert panel.stage.text().startswith("Part 2 of 2 · Blocks: 1,000 of 3,000")
        assert not panel.start_button.isEnabled()
        assert "appear together" in panel.results.table.hint.text()
        window.prompt.run_button.click()
        assert "A check is " in window.banner.label.text()
        assert window.prompt.note.text().startswith("A check is in progress.")
        assert not window.run_view.steps
        stop()
        assert panel.isVisible() is (count < 3)
        qtbot.waitUntil(lambda: not panel.is_running)
        assert window.prompt.note.text() == READY_HINT
        assert (panel.headline.text(), panel.mark.property("kind")) == (STOPPED, "none")
        assert panel.results.table.count() == 0
        assert panel.results.table.hint.text() == NO_RESULTS
        assert panel.start_button.isEnabled()
    subject = panel.subject.text()
    panel.open()
    window.controls.fields["num_draft_tokens"].set_value(9)
    assert panel.subject.text() == subject


def test_a_check_is_refused_while_a_run_is_in_progress(checking, qtbot, session):
    window, panel, fake = checking()
    session.gate = threading.Semaphore(0)
    window.prompt.run_button.click()
    panel.start_button.click()
    assert shown_once(panel) == window.controller.busy_sentence() != ""
    assert not fake.requests
    with qtbot.waitSignal(window.live.run_shown):
        session.gate.release(1000)
    assert panel.banner.sentence() == "", "its cause is gone"


def test_settings_that_cannot_be_checked_are_one_sentence_until_they_are_mended_and_the_report_stays(checking, qtbot):
    window, panel, fake = checking()
    for _ in range(2):
        window.controls.fields["seed"].setText("x")
        panel.start_button.click()
        assert "seed" in shown_once(panel).lower()
        panel.close()
        panel.open()
        shown_once(panel)
        window.controls.fields["seed"].setText("1")
        assert panel.banner.sentence() == ""
        finish(qtbot, panel)
        assert panel.headline.text().startswith("Exact: ")
    assert len(fake.requests) == 2


def test_a_failure_is_one_sentence(checking, qtbot):
    _, panel, fake = checking()
    fake.error = GenerationError(
        "The target's logits hold NaN. In half precision, try float32; otherwise choose another target model."
    )
    finish(qtbot, panel)
    assert shown_once(panel) == str(fake.error)
    assert (panel.headline.text(), panel.results.table.hint.text()) == (FAILED, NO_RESULTS)
    assert not panel.copy_button.isEnabled()


def test_a_failure_outlives_a_moment_of_wrong_settings_and_a_stop_after_it_is_no_failure(checking, qtbot):
    window, panel, fake = checking()
    fake.error = GenerationError(
        "The target's logits hold NaN. In half precision, try float32; otherwise choose another target model."
    )
    finish(qtbot, panel)
    for text in ("x", "1"):
        window.controls.fields["seed"].setText(text)
        assert (shown_once(panel), panel.headline.text()) == (str(fake.error), FAILED)
    panel.banner.dismiss()
    window.controls.fields["seed"].setText("x")
    assert "seed" in shown_once(panel).lower()
    window.controls.fields["seed"].setText("1")
    fake.error, fake.gate = None, threading.Semaphore(0)
    panel.start_button.click()
    panel.stop()
    fake.gate.release(1000)
    qtbot.waitUntil(lambda: not panel.is_running)
    assert panel.headline.text() == STOPPED


def test_k_0_leaves_nothing_to_check_which_is_said_before_and_after_check_is_pressed(checking):
    window, panel, fake = checking()
    window.controls.fields["num_draft_tokens"].set_value(0)
    assert shown_once(panel) == NOTHING_DRAFTED
    panel.start_button.click()
    assert shown_once(panel) == NOTHING_DRAFTED
    assert not fake.requests
    window.controls.fields["num_draft_tokens"].set_value(1)
    assert panel.banner.sentence() == ""


def test_the_progress_says_how_long_the_current_part_takes_and_begins_anew_with_the_next(checking, monkeypatch):
    _, panel, _ = checking()
    clock = iter((0.0, 10.0, 20.0, 21.0))
    monkeypatch.setattr("app.tools.check.time", SimpleNamespace(monotonic=lambda: next(clock)))
    seen = (("Greedy text, prompt 1 of 9", 0, 9), ("Greedy text, prompt 4 of 9", 3, 9), ("Blocks", 0, 200))
    shown = [panel._time_left(*each) for each in (*seen, ("Blocks", 199, 200))]
    assert shown == ["", "about 20 s left in this part", "", ""]
