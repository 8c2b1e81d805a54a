"""Processes that sleep tell when the machine stood still."""

import os
import signal
import subprocess
import sys
import time

import pytest

from app.core_watch import HALT_S, CoreWatch, watch, watching_cores, without_halts

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="nothing keeps a process to a core here")


def wait_for(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def is_written(watched, end):
    return wait_for(lambda: any(halt[1] >= end for halt in watched.halts()), seconds=2)


def test_a_halt_is_written_down_with_its_time(tmp_path):
    path, flag = tmp_path / "core", tmp_path / "flag"
    core, watched = min(os.sched_getaffinity(0)), CoreWatch([path], flag)
    process = subprocess.Popen([sys.executable, "-m", "app.core_watch", str(core), str(path), str(flag)])
    try:
        with watched.listening():
            assert wait_for(path.exists)
            begin, end = stopped(process)
            # It may have been stopped just between two naps.
            while not is_written(watched, end):
                begin, end = stopped(process)
        # But for the nap it may have been in.
        assert without_halts(begin, end, watched.halts()) < 0.01
        assert not flag.exists()
    finally:
        process.kill()
        process.wait()


def stopped(process):
    """Stop it for a while, which stands for a machine that does; from when to when."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    begin = time.perf_counter()
    time.sleep(4 * HALT_S)
    end = time.perf_counter()
    process.send_signal(signal.SIGCONT)
    return begin, end


def test_a_line_that_is_not_whole_yet_does_not_count(tmp_path):
    path = tmp_path / "core"
    path.write_text("2.5 2.75\n1.0 1.5\n3.0 3.")
    assert CoreWatch([path, tmp_path / "none"], tmp_path).halts() == [(1.0, 1.5), (2.5, 2.75)]


def test_the_processes_end_with_the_block_and_with_who_asked_for_them(tmp_path, monkeypatch):
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with watching_cores():
        assert len(started) in {0, len(os.sched_getaffinity(0))}
        assert all(process.poll() is None for process in started)
    assert all(process.poll() is not None for process in started)
    everywhere = os.sched_getaffinity(0)
    watch(min(everywhere), tmp_path / "core", tmp_path / "flag", parent=-1)
    os.sched_setaffinity(0, everywhere)
