"""Downloads in the models window: with progress, one after the other, stopped and resumed, every failure a sentence."""

from __future__ import annotations

import threading

import pytest
from PySide6.QtCore import Qt

from app.theme import DARK
from app.tools.models.downloads import Download, DownloadRow, DownloadState
from app.tools.models.suggestions import ID_HINT, OFFLINE
from core.models.catalogue import EMBEDDED_TITLES, SUGGESTIONS
from core.models.remote.hub import PACKAGE_STAGES, DownloadProgress
from core.text import bytes_text
from tests.fakes_models import (
    NEW,
    download_of,
    hub_entry,
    names,
    open_models,
    small_hub,
    until,
    wait_for_state,
)


@pytest.fixture
def hub(engine_imported, monkeypatch):
    return small_hub().install(monkeypatch)


@pytest.fixture
def make(make_window, hub, qtbot):
    return lambda: open_models(make_window(), hub, qtbot)


@pytest.fixture
def stopped(make, hub, qtbot):
    """A download that was stopped at 40 %: the window, its panel and the row."""
    hub.gate = threading.Semaphore(4)
    window, panel = make()
    window.models.downloads.get(NEW)
    row = panel.downloads.rows[NEW]
    until(qtbot, lambda: row.percent.text() == "40\u00a0%")
    row.cancel.click()
    assert download_of(window, NEW).state is DownloadState.STOPPED
    return window, panel, row


def test_a_typed_id_is_downloaded_with_progress_and_listed(make, hub, qtbot):
    hub.gate = threading.Semaphore(0)
    window, panel = make()
    panel.tabs.setCurrentIndex(1)
    qtbot.keyClicks(panel.suggestions.edit, "gpt2")
    qtbot.keyClick(panel.suggestions.edit, Qt.Key.Key_Return)
    assert "owner/name" in panel.suggestions.note.text(), "a name without an owner is not sent to the Hub"
    assert (panel.suggestions.edit.text(), hub.calls) == ("gpt2", [])
    panel.close()
    window.models.browse()
    assert (panel.suggestions.note.text(), panel.suggestions.note.property("role")) == (ID_HINT, "hint")
    panel.suggestions.edit.clear()
    qtbot.keyClicks(panel.suggestions.edit, " someone/something ")
    qtbot.keyClick(panel.suggestions.edit, Qt.Key.Key_Return)
    hub.gate.release(3)
    row = panel.downloads.rows["someone/something"]
    until(qtbot, lambda: row.note.text() == "300 MB of 1.0 GB · 18.2 MB/s · 38 s left")
    assert row.bar.value() == 300
    assert row.percent.text() == "30\u00a0%"
    assert window.status.download.text() == "Getting something 30\u00a0%"
    hub.gate.release(100)
    wait_for_state(qtbot, window, "someone/something", DownloadState.DONE)
    until(qtbot, lambda: "something" in names(panel))
    assert window.status.download.text() == ""
    assert hub.calls == [("someone/something", False)]


def test_a_stopped_download_from_the_package_index_does_not_promise_what_it_does_not_keep(make):
    window, _ = make()
    row = DownloadRow("a/b", window.models.downloads)
    for stage in PACKAGE_STAGES:
        progress = DownloadProgress(stage, "a.gguf", 10_000_000, 93_000_000)
        row.show_download(Download("a/b", DownloadState.STOPPED, progress))
        assert (row.note.text(), row.percent.text()) == ("Stopped. It starts again from the beginning.", "")
        assert (row.resume.isHidden(), row.restart.isHidden()) == (True, False)


def test_what_is_no_download_shows_its_name_and_no_bytes_and_no_share_before_it_begins():
    for done, share in ((0, None), (109_000_000, 0.2)):
        progress = DownloadProgress("Converting…", "a.gguf", done, 545_000_000)
        running = Download("a/b", DownloadState.RUNNING, progress)
        assert (running.note, running.share) == ("Converting…", share)


def test_a_suggestion_shows_its_size_and_its_state(make, hub, qtbot):
    hub.gate = threading.Semaphore(0)
    window, panel = make()
    row = next(row for row in panel.suggestions.rows if row.suggestion.ref == NEW)
    assert bytes_text(row.suggestion.download_bytes) in row.button.accessibleName()
    row.button.click()
    until(qtbot, lambda: row.word.text() == "Getting…")
    hub.gate.release(100)
    until(qtbot, lambda: row.word.text() == "Here")
    assert NEW in window.models.library.refs


def test_cancel_keeps_what_was_received_and_resume_continues_from_there(stopped, hub, qtbot):
    window, panel, row = stopped
    assert row.note.text() == "Stopped. 400 MB of 1.0 GB is kept."
    assert not row.cancel.isVisibleTo(panel)
    hub.gate.release(100)
    row.resume.click()
    wait_for_state(qtbot, window, NEW, DownloadState.DONE)
    assert hub.calls == [(NEW, False), (NEW, False)]
    row.dismiss.click()
    assert NEW not in panel.downloads.rows
    assert not panel.downloads.isVisibleTo(panel)


def test_start_over_starts_again(stopped, hub, qtbot):
    window, _, row = stopped
    # Until the stopped download has ended, it could take the next piece.
    until(qtbot, lambda: window.jobs.is_idle)
    row.restart.click()
    hub.gate.release(1)
    until(qtbot, lambda: row.percent.text() == "10\u00a0%")
    assert hub.calls[-1] == (NEW, True)


def test_a_failure_is_a_sentence_in_the_row_and_can_be_resumed(make, hub, qtbot):
    hub.fail_after = (5, "The connection broke. Resume when the network is back.")
    window, panel = make()
    window.models.downloads.get(NEW)
    wait_for_state(qtbot, window, NEW, DownloadState.FAILED)
    row = panel.downloads.rows[NEW]
    assert row.note.text() == "The connection broke. Resume when the network is back."
    assert row.resume.isVisibleTo(panel)
    assert next(item for item in panel.suggestions.rows if item.suggestion.ref == NEW).button.text() == "Resume"
    hub.fail_after = None
    row.resume.click()
    wait_for_state(qtbot, window, NEW, DownloadState.DONE)


def test_an_unexpected_failure_is_a_sentence_too(make, hub, qtbot):
    window, panel = make()
    for ref, error, cause in (("a/a", RuntimeError(), "RuntimeError"), ("b/b", PermissionError(13, "no"), "no")):
        hub.download_error = error
        window.models.downloads.get(ref)
        wait_for_state(qtbot, window, ref, DownloadState.FAILED)
        assert panel.downloads.rows[ref].note.text() == f"The download failed: {cause}."


def test_downloads_run_one_after_the_other_and_a_waiting_one_can_be_cancelled(make, hub, qtbot):
    hub.gate = threading.Semaphore(1)
    window, panel = make()
    for ref in ("a/first", "b/second", "c/third", "c/third"):
        window.models.downloads.get(ref)
    until(qtbot, lambda: window.status.download.text() == "Getting first 10\u00a0%, 2 more")
    panel.downloads.rows["b/second"].cancel.click()
    hub.gate.release(100)
    wait_for_state(qtbot, window, "c/third", DownloadState.DONE)
    assert hub.calls == [("a/first", False), ("c/third", False)]
    assert download_of(window, "b/second").state is DownloadState.STOPPED


def test_a_pair_is_downloaded_with_one_button_where_none_of_its_drafts_is_here(make, hub, qtbot):
    hub.gate = threading.Semaphore(0)
    target = next(item for item in SUGGESTIONS if len(item.drafts) == 2)
    window, panel = make()
    panel.tabs.setCurrentIndex(1)
    rows = {row.suggestion.ref: row for row in panel.suggestions.rows}
    until(qtbot, lambda: rows[target.ref].pair.isVisibleTo(panel))
    note, draft = rows[target.ref].note, rows[target.drafts[0]].suggestion
    assert note.text().endswith(f"draft: {draft.title}"), "the one that is fetched"
    assert rows[target.drafts[1]].suggestion.title in note.toolTip()
    both = bytes_text(target.download_bytes + draft.download_bytes)
    assert rows[target.ref].pair.text() == f"Get both, {both}"
    rows[target.ref].pair.click()
    assert [download.ref for download in window.models.downloads.all()] == [target.drafts[0], target.ref]
    assert not rows[target.ref].pair.isVisibleTo(panel)


@pytest.mark.parametrize(("scale", "width"), [(1.0, 1024), (1.0, 1280), (1.0, 1366), (1.5, 1024), (1.5, 1280)])
def test_the_draft_that_would_be_fetched_is_never_cut(make, apply_theme, qtbot, scale, width):
    _, panel = make()
    apply_theme(DARK, scale)
    panel.resize(width, 700)
    panel.show()
    panel.tabs.setCurrentIndex(1)
    notes = [row.note for row in panel.suggestions.rows]
    qtbot.waitUntil(lambda: all(note.isVisible() for note in notes))
    cut = [note.text() for note in notes if note.width() < note.fontMetrics().horizontalAdvance(note.text())]
    assert not cut


@pytest.mark.parametrize("is_embedded", [True, False])
def test_a_target_whose_draft_is_here_is_downloaded_alone(make, hub, qtbot, is_embedded):
    if is_embedded:
        target = next(item for item in SUGGESTIONS if EMBEDDED_TITLES.keys() & set(item.drafts))
    else:
        target = next(item for item in SUGGESTIONS if len(item.drafts) == 2)
        hub.entries.append(hub_entry(target.drafts[1], 500_000_000))
    _, panel = make()
    panel.tabs.setCurrentIndex(1)
    row = next(row for row in panel.suggestions.rows if row.suggestion is target)
    until(qtbot, lambda: row.button.isVisibleTo(panel))
    assert not row.pair.isVisibleTo(panel)


def test_a_download_continues_while_its_window_is_closed_and_the_strip_leads_back(make, hub, qtbot):
    hub.gate = threading.Semaphore(2)
    window, panel = make()
    window.models.downloads.get(NEW)
    panel.close()
    until(qtbot, lambda: "20\u00a0%" in window.status.download.text())
    window.status.download.click()
    assert panel.isVisible()
    panel.close()
    hub.gate.release(100)
    wait_for_state(qtbot, window, NEW, DownloadState.DONE)


def test_a_failure_while_its_window_is_closed_is_shown_in_the_main_window(make, hub, qtbot):
    hub.fail_after = (1, "There is no space left.")
    window, panel = make()
    panel.close()
    window.models.downloads.get(NEW)
    until(qtbot, lambda: window.banner.sentence() == "There is no space left.")
    hub.fail_after = None
    window.models.downloads.get(NEW)
    wait_for_state(qtbot, window, NEW, DownloadState.DONE)
    assert window.banner.sentence() == ""


def test_a_new_download_moves_nothing_above_it(make, hub, qtbot):
    hub.gate = threading.Semaphore(3)
    window, panel = make()
    window.show()
    panel.tabs.setCurrentIndex(1)
    places = [
        (widget, widget.mapTo(widget.window(), widget.rect().topLeft())) for widget in (panel.pages, window.prompt)
    ]
    sizes = window.prompt.size()
    window.models.downloads.get(NEW)
    until(qtbot, lambda: "30\u00a0%" in window.status.download.text())
    until(qtbot, lambda: panel.downloads.height() > 0)
    assert [(widget, widget.mapTo(widget.window(), widget.rect().topLeft())) for widget, _ in places] == places
    assert window.prompt.size() == sizes


def test_offline_nothing_can_be_downloaded_and_the_reason_is_shown(make, hub):
    hub.is_offline = True
    _, panel = make()
    panel.tabs.setCurrentIndex(1)
    assert panel.suggestions.note.text() == OFFLINE
    panel.suggestions.edit.setText("someone/something")
    assert not panel.suggestions.get.isEnabled()
    assert all(not row.button.isEnabled() and OFFLINE in row.button.toolTip() for row in panel.suggestions.rows)
    panel.suggestions.edit.returnPressed.emit()
    assert hub.calls == []


def test_closing_during_a_download_stops_it_and_leaves_no_job(make, hub, qtbot):
    hub.gate = threading.Semaphore(2)
    window, panel = make()
    window.models.downloads.get(NEW)
    window.models.downloads.get("a/later")
    until(qtbot, lambda: "20\u00a0%" in window.status.download.text())
    window.close()
    until(qtbot, lambda: window.jobs.is_idle)
    assert not panel.isVisible()
    assert hub.kept[NEW] == 2
    assert hub.calls == [(NEW, False)]
