"""Deploy: the window with a pair's configurations."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from PySide6.QtGui import QGuiApplication

from core.errors import SettingsError
from core.export.choice import choice_from_request
from core.export.configurations import PROJECTS
from core.types import Finished, FinishReason
from tests.errors import failing
from tests.fakes_app import assert_no_markup, files_beside_settings, make_step, make_summary


@pytest.fixture
def opened(window):
    """The window with configurations, opened over the settings."""

    def build():
        window.menus.production.trigger()
        return window.exports.page

    return build


def show(page, title):
    """Bring an engine to the front; its text."""
    index = next(place for place in range(page.tabs.count()) if page.tabs.tabText(place) == title)
    page.tabs.setCurrentIndex(index)
    return page.tabs.currentWidget().toPlainText()


def test_before_a_run_the_settings_are_taken(window, opened):
    window.controls.fields["num_draft_tokens"].set_value(6)
    page = opened()
    assert "K = 6" in page.heading.text()
    assert "From the current settings: no run has finished yet." in page.note.text()
    assert page.tabs.count() == len(PROJECTS)
    assert '"num_speculative_tokens": 6' in show(page, "vLLM")
    assert "num_assistant_tokens = 6" in show(page, "transformers")
    assert page.verdict.isHidden()
    # The engine in front stays there when the window is opened again.
    show(page, "llama.cpp")
    page.close()
    window.controls.fields["num_draft_tokens"].set_value(8)
    assert opened() is page
    assert page.tabs.tabText(page.tabs.currentIndex()) == "llama.cpp"
    assert "8" in page.tabs.currentWidget().toPlainText()


def test_after_a_run_its_own_pair_and_k_are_taken_and_whether_it_paid_is_said(window, opened, run_to_end):
    run_to_end(window)
    window.controls.fields["num_draft_tokens"].set_value(9)
    page = opened()
    assert "K = 3" in page.heading.text()
    assert "From the run of 20" in page.note.text()
    assert f"(95 % interval {window.run_view.interval})" in page.note.text()
    assert window.run_view.started.run_id in show(page, "vLLM")
    slow = make_summary([make_step(0, 9)], FinishReason.LENGTH, measured_speedup=0.7, baseline_tokens_per_second=100.0)
    window.run_view.apply(Finished(slow))
    page = opened()
    assert not page.verdict.isHidden()
    assert "Drafting did not pay" in page.verdict.text()
    assert "0.70×" in page.note.text()
    window.run_view.summary = None
    assert opened().note.text().startswith("From the current settings: this run has not finished.")


def test_after_a_run_of_few_steps_there_is_no_verdict_as_in_its_report(window, opened, run_to_end):
    window.controls.fields["max_new_tokens"].setValue(12)
    run_to_end(window)
    page = opened()
    assert page.verdict.text().startswith("Too few steps to tell whether speculation pays here.")
    assert page.verdict.isVisible()


def test_the_command_is_copied_alone_or_with_its_comments_and_an_engine_that_can_not_do_it_has_none(window, opened):
    page = opened()
    text = show(page, "vLLM")
    page.copy_button.click()
    assert QGuiApplication.clipboard().text().startswith("vllm serve")
    assert page.copy_button.text() == "Copied"
    page.copy_all_button.click()
    assert QGuiApplication.clipboard().text() == text
    assert page.copy_button.text() == "Copy command"
    show(page, "transformers")
    assert page.copy_button.text() == "Copy program"
    window.controls.method.choose("prompt-lookup")
    page = opened()
    assert "no prompt lookup" in show(page, "MLX")
    assert not page.copy_button.isEnabled()
    show(page, "vLLM")
    assert page.copy_button.isEnabled()


def test_a_configuration_is_saved_whole_or_says_why_not(opened, dialogs, qtbot, tmp_path):
    page = opened()
    before = files_beside_settings(tmp_path)
    page.save_button.click()
    assert files_beside_settings(tmp_path) == before, "a dismissed dialog saves nothing"
    dialogs.export_path = tmp_path / "serve.sh"
    text = show(page, "SGLang")
    page.save_button.click()
    qtbot.waitUntil(lambda: bool(page.saved.text()))
    assert dialogs.export_path.read_text("utf-8") == text
    assert dialogs.asked[-1] == "sglang.sh"
    assert str(dialogs.export_path) in page.saved.text()
    dialogs.export_path = tmp_path / "missing" / "serve.sh"
    page.save_button.click()
    qtbot.waitUntil(lambda: "no folder" in page.saved.text())


def test_settings_that_can_not_be_run_are_a_sentence_and_no_window(window, monkeypatch):
    monkeypatch.setattr(window.controls, "request", failing(SettingsError("Choose a target model.")))
    window.menus.production.trigger()
    assert window.banner.sentence() == "Choose a target model."
    assert window.exports.page is None


def test_a_run_on_a_server_or_without_drafts_has_nothing_to_deploy(window, run_to_end):
    run_to_end(window)
    for changes, words in (({"engine": {"url": "http://x"}}, "on a server"), ({"num_draft_tokens": 0}, "K = 0")):
        started = window.run_view.started
        window.run_view.started = replace(started, config={**started.config, **changes})
        window.menus.production.trigger()
        assert words in window.banner.sentence()
        assert window.exports.page is None
        window.run_view.started = started


def test_nothing_that_a_draft_says_of_itself_is_shown_as_markup(window, opened, tmp_path):
    picture = "<img src='/dev/zero'><b>&amp;\u202egpj"
    (tmp_path / "config.json").write_text(json.dumps({"shares_tables_with": {"model": picture}}))
    page = opened()
    page.open_choice(choice_from_request(replace(window.controls.request("Hi"), draft=str(tmp_path))), picture)
    assert "borrows the embedding" in show(page, "vLLM")
    assert_no_markup(picture, page)
