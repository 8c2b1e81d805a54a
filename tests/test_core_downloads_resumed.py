"""A download tells its progress, stops at once, and goes on at the byte where it stopped."""

import itertools

import pytest

from core.controls import Cancelled
from core.models import hub
from core.models.catalogue import local_models, resolve
from core.models.downloads import download
from core.models.hub import Meter
from tests.fakes_downloads import REF, SIZE, WEIGHTS, content, fresh_home, interrupt, model_files, serving
from tests.hub_server import Repository


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    return fresh_home(tmp_path, monkeypatch)


@pytest.fixture
def server(monkeypatch):
    with serving(monkeypatch) as server:
        yield server


def test_progress_knows_the_total_before_the_first_byte_and_ends_at_it(server):
    seen = []
    download(REF, on_progress=seen.append)
    total = sum(len(data) for data in model_files().values())
    assert seen[0].stage == "Asking the Hub…"
    assert (seen[1].stage, seen[1].done_bytes, seen[1].total_bytes) == ("Downloading", 0, total)
    assert {(progress.stage, progress.file) for progress in seen} >= {("Downloading", WEIGHTS), ("Checking…", WEIGHTS)}
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert done[-1] == total


def test_the_meter_reports_ten_times_a_second_with_a_rate_and_the_time_left():
    now = itertools.count(step=0.01)
    seen = []
    meter = Meter(seen.append, total_bytes=100_000, clock=lambda: next(now))
    meter.enter("Downloading", "file", is_receiving=True)
    for _ in range(500):
        meter.count(100)
    # The clock is read twice where something is measured.
    assert 40 <= len(seen) <= 60
    last = seen[-1]
    assert last.bytes_per_second == pytest.approx(10_000, rel=0.15)
    assert last.seconds_left == pytest.approx((100_000 - last.done_bytes) / last.bytes_per_second)
    meter.enter("Checking…", "file")
    assert (seen[-1].bytes_per_second, seen[-1].seconds_left) == (None, None)


def test_a_cancelled_download_goes_on_at_the_byte_where_it_stopped(server):
    kept = interrupt()
    assert hub.interrupted_refs() == [REF]
    assert REF not in [entry.ref for entry in local_models()]
    seen = []
    entry = download(REF, on_progress=seen.append)
    assert server.sent[WEIGHTS][1] == SIZE - kept
    assert (entry.path / WEIGHTS).read_bytes() == content()
    assert hub.interrupted_refs() == []
    first = next(progress for progress in seen if progress.file == WEIGHTS)
    assert first.done_bytes > kept


def test_a_restart_begins_anew(server):
    interrupt()
    download(REF, restart=True)
    assert server.sent[WEIGHTS][1] == SIZE


def test_a_restart_keeps_what_is_sound_and_repairs_what_is_not(server):
    entry = download(REF)
    blob = (entry.path / WEIGHTS).resolve()
    blob.write_bytes(content(seed=9))
    server.sent.clear()
    assert download(REF) == resolve(REF)
    assert server.sent == {}
    download(REF, restart=True)
    assert set(server.sent) == {WEIGHTS}
    assert (entry.path / WEIGHTS).read_bytes() == content()


def test_a_restart_leaves_other_revisions_whole(server):
    old = download(REF)
    server.repositories[REF] = Repository(model_files(tokenizer_config__json=b'{"new": 1}'), commit="b" * 40)
    server.sent.clear()

    def stop_at_once() -> None:
        if server.sent:
            raise Cancelled

    with pytest.raises(Cancelled):
        download(REF, restart=True, check_cancelled=stop_at_once)
    assert (old.path / WEIGHTS).read_bytes() == content()
    new = download(REF)
    assert (new.revision, set(server.sent)) == ("b" * 40, {"tokenizer_config.json"})


def test_a_download_stopped_before_its_first_byte_leaves_nothing(server, home):
    def stop_when_folders_are_made() -> None:
        if (hub.repository_folder(REF) / "blobs").is_dir():
            raise Cancelled

    with pytest.raises(Cancelled):
        download(REF, check_cancelled=stop_when_folders_are_made)
    assert not hub.repository_folder(REF).exists()


def test_a_hub_that_can_not_resume_sends_the_whole_file(server):
    interrupt()
    server.ignores_ranges = True
    assert (download(REF).path / WEIGHTS).read_bytes() == content()
    assert server.sent[WEIGHTS][1] == SIZE


def test_a_connection_that_breaks_is_taken_up_again(server):
    server.break_after[WEIGHTS] = 100_000
    assert (download(REF).path / WEIGHTS).read_bytes() == content()
    assert len(server.sent[WEIGHTS]) >= 3
    assert sum(server.sent[WEIGHTS]) < 2 * SIZE


def test_cancel_takes_effect_before_anything_is_asked(server):
    def stop():
        raise Cancelled

    with pytest.raises(Cancelled):
        download(REF, check_cancelled=stop)
    assert server.requests == []
