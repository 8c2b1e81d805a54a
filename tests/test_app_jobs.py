"""Jobs run outside the window's thread, and their results arrive in it."""

from __future__ import annotations

import threading

import pytest

from app.jobs import Jobs
from core.errors import SettingsError
from tests.errors import failing


@pytest.fixture
def jobs(qtbot):
    jobs = Jobs()
    yield jobs
    jobs.close()
    assert jobs.wait(5000)


def test_work_runs_elsewhere_and_its_result_arrives_in_the_windows_thread(qtbot, jobs):
    seen = []
    jobs.submit(
        lambda _job: threading.current_thread(), lambda thread: seen.append((thread, threading.current_thread()))
    )
    qtbot.waitUntil(lambda: bool(seen))
    assert seen[0][0] is not seen[0][1] is threading.main_thread()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (SettingsError("K must be at least 1."), "K must be at least 1."),
        (ValueError("odd"), "The list failed: ValueError: odd."),
        (FileNotFoundError(2, "No such file"), "The list failed: No such file."),
    ],
)
def test_an_error_becomes_one_sentence(qtbot, jobs, error, sentence):
    heard = []
    jobs.submit(failing(error), heard.append, failed=heard.append, what="The list failed")
    qtbot.waitUntil(lambda: bool(heard))
    assert heard == [sentence]


def test_jobs_of_one_lane_run_in_order_and_report_progress(qtbot, jobs):
    heard = []
    first_may_end = threading.Event()

    def first(job):
        job.report("half")
        first_may_end.wait(5)
        return "first"

    jobs.submit(first, heard.append, progress=heard.append, lane="disk")
    jobs.submit(lambda _job: "second", heard.append, lane="disk")
    qtbot.waitUntil(lambda: heard == ["half"])
    first_may_end.set()
    qtbot.waitUntil(lambda: jobs.is_idle)
    assert heard == ["half", "first", "second"]


def test_a_cancelled_job_has_no_callback(qtbot, jobs):
    heard = []
    started = threading.Event()

    def work(job):
        started.set()
        while not job.is_cancelled:
            pass
        job.check()

    job = jobs.submit(work, heard.append, failed=heard.append)
    assert started.wait(5)
    job.cancel()
    qtbot.waitUntil(lambda: jobs.is_idle)
    assert heard == []


def test_closing_drops_what_is_only_shown_and_finishes_what_must_be(qtbot, jobs):
    written, shown = [], []
    gate = threading.Event()
    jobs.submit(lambda _job: gate.wait(5), lane="disk")
    jobs.submit(lambda _job: written.append("file"), lane="disk", must_finish=True)
    jobs.submit(lambda _job: "list", shown.append, lane="disk")
    jobs.close()
    gate.set()
    qtbot.waitUntil(lambda: jobs.is_idle)
    assert (written, shown) == (["file"], [])
    jobs.submit(lambda _job: "late", shown.append)
    assert jobs.is_idle
