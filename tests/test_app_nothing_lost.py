"""What people made survives bad bytes, newer versions, two windows, signals, and an export at the wrong moment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from app.__main__ import main
from app.main_window import MainWindow
from app.settings import RunSettings, SettingsStore, WindowSettings
from app.theme import RESOURCES, ThemeMode
from core.errors import GenerationError, RunLogError
from core.experiments.sweep import sweep
from core.models.remote import hub
from core.runlog.log import RunLogWriter
from core.runlog.reading import read_run_log
from core.runlog.store import Label, RunStore
from tests import fakes_downloads
from tests.children import ROOT, run_code, skip_if_ignored
from tests.fakes_app import assert_no_markup
from tests.fakes_cli import refused
from tests.fakes_log import EVENTS, write
from tests.fakes_runs import keep_run
from tests.fakes_sweep import FakeSweepSession, fails_at, keep_sweep, plan_of

UNREADABLE = {
    "empty": b"",
    "null": b"null",
    "no text": b"\xff\xfe\x00",
    "torn": b'{"version": 1, "run": {"prompt": "lost"',
    "not an object": b"[1, 2]",
    "too deep": b"[" * 100_000,
    "of a newer version": b'{"version": 999, "names": {"a": "kept"}, "run": {"prompt": "kept"}, "theme": "dark"}',
    "with a bad byte": b'{"version": 1, "names": {"a": "kept"}, "run": {"prompt": "kept"}, "side_page": "\xff"}',
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_settings_that_can_not_all_be_read_are_kept_aside_and_what_can_be_read_is_used(tmp_path, content):
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    store = SettingsStore(path)
    settings = store.load()
    if b"kept" in content:
        assert settings.run.prompt == "kept"
    else:
        assert settings == WindowSettings()
    assert "The old file is now" in store.problem
    assert store.save(settings) is None
    assert [aside.read_bytes() for aside in tmp_path.glob("settings-unreadable-*.json")] == [content]
    again = SettingsStore(path)
    assert (again.load(), again.problem) == (settings, "")


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_names_that_can_not_all_be_read_are_kept_aside(tmp_path, content):
    first, second = keep_run(tmp_path), keep_run(tmp_path, 1)
    (tmp_path / "names.json").write_bytes(content.replace(b'"a"', f'"{first}"'.encode()))
    store = RunStore(tmp_path)
    assert {run.id: run.name for run in store.runs()} == {first: "kept" if b"kept" in content else "", second: ""}
    assert "kept as" in store.problem
    store.label(Label.NAME, "new", second)
    assert {run.name for run in RunStore(tmp_path).runs()} == {"kept" if b"kept" in content else "", "new"}
    (aside,) = tmp_path.glob("names-unreadable-*.json")
    assert aside.read_bytes() == content.replace(b'"a"', f'"{first}"'.encode())


@pytest.mark.parametrize("order", [1, -1])
def test_two_windows_undo_nothing_of_each_other_whichever_is_closed_last(make_window, qtbot, tmp_path, order):
    store = SettingsStore(tmp_path / "settings.json")
    assert store.save(replace(WindowSettings(), servers={"http://127.0.0.1:1": "Old"})) is None
    windows = first, second = make_window(is_shown=True), make_window(is_shown=True)
    for window, url, name in zip(windows, ("http://127.0.0.1:2", "http://127.0.0.1:3"), "AB", strict=True):
        window.controls.engine.choose(url, name)
        window.controls.engine.choose("")
        window.models.model_opened.emit(f"/{name}")
    first.prompt.edit.setPlainText("of the first")
    first.menus.theme_actions[ThemeMode.DARK].trigger()
    second.controls.fields["temperature"].set_value(0.25)
    second.menus.show_ghosts.trigger()
    for window in windows[::order]:
        window.close()
        qtbot.waitUntil(lambda window=window: window.controller.is_closed)
    saved = store.load()
    assert (saved.run.prompt, saved.theme) == ("of the first", ThemeMode.DARK)
    assert (saved.run.temperature, saved.show_ghosts) == (0.25, True)
    assert set(saved.opened_models) == {"/A", "/B"}
    assert set(saved.servers.values()) == {"Old", "A", "B"}


def test_the_prompt_is_saved_while_it_is_typed(window, qtbot, tmp_path):
    def saved():
        return SettingsStore(tmp_path / "settings.json").load().run.prompt

    window.state.saving.setInterval(0)
    window.prompt.edit.setPlainText("half a thou")
    qtbot.waitUntil(lambda: saved() == "half a thou", timeout=5_000)


def test_a_window_says_that_its_settings_were_kept_aside(make_window, qtbot, monkeypatch, tmp_path):
    (tmp_path / "settings.json").write_bytes(b"{")
    window: MainWindow = make_window()
    assert "settings-unreadable-1.json" in window.banner.sentence()
    # Without its settings, the window opens as at its first start.
    monkeypatch.setattr("app.introduction.introduction.RECORDING", RESOURCES / "introduction" / "recorded.jsonl")
    with qtbot.waitSignal(window.introduction.replay_wanted, timeout=30_000):
        window.introduction.start_if_new()
    assert "settings-unreadable-1.json" in window.banner.sentence()


@pytest.mark.parametrize("form", ["--jsonl", "--csv", "--html"])
def test_no_export_replaces_a_log_that_is_being_written(tmp_path, capsys, form):
    path = tmp_path / "a.jsonl"
    with RunLogWriter(path) as log:
        for event in EVENTS[:-1]:
            log.write(event)
        before = path.read_bytes()
        assert main(["export", str(path), form, str(path), "--force"]) == 2
        assert main(["export", str(write(tmp_path / "b.jsonl")), form, str(path), "--force"]) == 2
        assert path.read_bytes() == before
        with pytest.raises(RunLogError, match="Another run is writing"):
            RunLogWriter(path)
        log.write(EVENTS[-1])
    assert "is being written" in capsys.readouterr().err
    assert read_run_log(path).summary is not None
    assert not list(tmp_path.glob(".*"))


def kept_sweep(path):
    return keep_sweep(path, plan_of(target="/big"), FakeSweepSession(on_run=fails_at(1, GenerationError("No '/big'."))))


@pytest.mark.parametrize("keep", [write, kept_sweep], ids=["run", "sweep"])
def test_mending_keeps_the_paths_and_the_records_that_only_a_newer_version_knows(tmp_path, keep):
    path = keep(tmp_path / "a.jsonl")
    path.write_text(path.read_text("utf-8").replace('"target": 1', '"target": "/big"'), "utf-8")
    lines = path.read_text("utf-8").split("\n")[:-1]
    assert '"/big"' in lines[0]
    newer = ['{"type": "weather", "sky": "blue"}', '{"kind": "untyped"}']
    whole = [lines[0], newer[0], *lines[1:-1], newer[1], lines[-1]]
    path.write_text("\n".join([*whole[:2], '{"torn": ', *whole[2:]]) + "\n", "utf-8")
    assert main(["export", str(path), "--jsonl", str(path)]) == 0
    assert list(map(json.loads, path.read_bytes().split(b"\n")[:-1])) == list(map(json.loads, whole))


RUN = """
import signal, sys
from app.cli import run
from app.__main__ import main
from core.settings import RunRequest
from tests.fakes_cli import GOOD, FakeEngine

def end(controls):
    signal.raise_signal(getattr(signal, sys.argv[1]))

run.make_engine = lambda: FakeEngine([*GOOD[:-1], end, GOOD[-1]])
sys.exit(main(["run", "--prompt", "Hi", "--log", sys.argv[2]]))
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_ends_a_run_with_its_summary_and_a_code_of_its_own(tmp_path, name, code):
    skip_if_ignored(name)
    done = run_code(RUN, name, tmp_path / "a.jsonl")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    summary = read_run_log(tmp_path / "a.jsonl").summary
    assert summary is not None
    assert summary["finish_reason"] == "cancelled"


HELD = """
import os, sys
from app.cli import run
from app.__main__ import main
from tests.fakes_cli import GOOD, FakeEngine

def wait(_):
    os.write(1, b"!")
    sys.stdin.read()

run.make_engine = lambda: FakeEngine([*GOOD[:-1], wait, GOOD[-1]])
sys.exit(main(["run", "--prompt", "Hi", "--quiet", "--log", sys.argv[1]]))
"""


def test_a_second_process_never_writes_the_log_of_a_run(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    command = [sys.executable, "-c", HELD, str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        while child.stdout.read(1) not in {b"!", b""}:
            pass
        before = path.read_bytes()
        assert "Another run is writing" in refused(capsys, "run", "Hi", "--quiet", "--force", "--log", path)
        assert path.read_bytes() == before
        child.communicate(timeout=60)
    assert child.returncode == 0
    log = read_run_log(path)
    assert (len(log.steps), log.problems) == (2, [])
    assert log.summary is not None


STUCK = """
import contextlib, hashlib, os, sys
from app.cli import bench, run
from app.__main__ import main
from tests.fakes_cli import GOOD, FakeEngine

def never_return(_):
    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt):  # The first Ctrl-C may come just before the call.
            os.write(1, b"!")
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # As a forward that hangs: in C, without Python's lock.

run.make_engine = lambda: FakeEngine([*GOOD[:-1], never_return])
bench.run_bench = lambda *_, **__: never_return(None)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_second_ctrl_c_ends_a_command_whose_library_never_returns(tmp_path, command):
    path = tmp_path / "a.jsonl"
    arguments = ["run", "--prompt", "Hi", "--log", str(path)] if command == "run" else ["bench"]
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        while child.stdout.read(1) not in {b"!", b""}:
            pass
        while child.poll() is None:
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
        assert child.returncode == 130
        assert b"did not return" in child.stderr.read()
    assert command == "bench" or len(read_run_log(path).steps) == 2


@pytest.mark.parametrize("picture", ["<img src='/dev/zero'>", "<b>img</b>", "<img>&amp;\u202egpj"])
def test_no_text_of_a_log_is_shown_as_markup(make_window, qtbot, tmp_path, picture):
    run_id, _ = (keep_run(tmp_path / "runs", n, target=picture, draft=picture, prompt=picture) for n in range(2))
    RunStore(tmp_path / "runs").label(Label.NAME, picture, run_id)
    window = make_window()
    window.runs.open()
    panel = window.runs.window
    qtbot.waitUntil(lambda: panel._is_complete and panel.table.count() == 2, timeout=30_000)
    panel.table.selectAll()
    panel.compare_button.click()
    qtbot.waitUntil(panel.compare_page.isVisible, timeout=30_000)
    window.runs.open_run(panel.table.items()[0])
    qtbot.waitUntil(lambda: bool(window.live.kept_title), timeout=30_000)
    window.status.stage.setText(f"Kept run {picture!r}")
    window.banner.show_sentence(picture)
    assert_no_markup(picture, window, panel)


KILLED = """
import os, signal, sys
from pathlib import Path

folder, place, moment = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

if moment in {"fsync", "replace"}:
    setattr(os, moment, die)
if place == "settings":
    from app.settings import SettingsStore, WindowSettings
    SettingsStore(folder / "settings.json").save(WindowSettings())
elif place == "names":
    from core.runlog.store import Label, RunStore
    RunStore(folder).label(Label.NAME, "new", next(iter(RunStore(folder).runs())).id)
elif place == "export":
    from app.__main__ import main
    main(["export", str(next(folder.glob("*.jsonl"))), "--html", str(folder / "report.html"), "--force"])
elif place == "log":
    from tests.fakes_log import EVENTS, RunLogWriter
    log = RunLogWriter(folder / "log.jsonl")
    for event in EVENTS[:-1]:
        log.write(event)
    die()
elif place == "sweep":
    from core.experiments.sweep import sweep
    from tests.fakes_sweep import FakeSweepSession, plan_of
    for event in sweep(plan_of(), FakeSweepSession().run, out=folder / "sweep.jsonl"):
        getattr(event, "num_done", 0) == 2 and die()
elif place == "download":
    from tests.fakes_downloads import REF, download, hub
    download(REF, check_cancelled=lambda: hub.partial_bytes(REF) > 1_000 and die())
"""
PLACES = [("settings", "fsync"), ("settings", "replace"), ("names", "replace"), ("export", "fsync"), ("log", "step"),
          ("sweep", "run"), ("download", "bytes")]  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
@pytest.mark.parametrize(("place", "moment"), PLACES)
def test_kill_9_leaves_every_file_whole_and_what_follows_works(tmp_path, home, server, place, moment):
    run_id = keep_run(tmp_path)
    settings, store, report = SettingsStore(tmp_path / "settings.json"), RunStore(tmp_path), tmp_path / "report.html"
    list(store.runs())
    store.label(Label.NAME, "old", run_id)
    settings.save(WindowSettings(run=RunSettings(prompt="old")))
    report.write_text("old")
    assert run_code(KILLED, tmp_path, place, moment).returncode == -signal.SIGKILL
    assert report.read_text() == "old"
    assert SettingsStore(tmp_path / "settings.json").load().run.prompt == "old"
    assert [run.name for run in RunStore(tmp_path).runs() if run.id == run_id] == ["old"]
    if place == "log":
        assert len(read_run_log(tmp_path / "log.jsonl").steps) == 1
    elif place == "sweep":
        events = list(sweep(plan_of(), FakeSweepSession().run, out=tmp_path / "sweep.jsonl"))
        assert (events[0].num_done, events[-1].is_complete) == (2, True)
    elif place == "download":
        kept = hub.partial_bytes(fakes_downloads.REF)
        assert kept > 1_000
        assert fakes_downloads.download(fakes_downloads.REF).size_bytes == fakes_downloads.SIZE
        assert server.sent[fakes_downloads.WEIGHTS][-1] == fakes_downloads.SIZE - kept
    assert main(["export", str(tmp_path / f"{run_id}.jsonl"), "--html", str(report), "--force"]) == 0
    assert report.read_text("utf-8") != "old"
    assert settings.save(WindowSettings()) is None
    RunStore(tmp_path).label(Label.NAME, "new", run_id)
