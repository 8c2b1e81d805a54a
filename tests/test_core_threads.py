"""All threads while the cores are free, one while they are not; and whoever stops a run needn't wait for the timing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import psutil
import pytest

import core.machine
import core.session
from core.controls import Cancelled, RunControls
from core.machine import ThreadGovernor, leave_core, num_processors, on_first_core, placing_threads
from core.session import Session
from core.types import Finished, FinishReason, RunRequest, SamplingParams
from tests.fakes import save_model
from tests.test_core_analysis import make_step

FREE, TAKEN = {1: 10.0, 4: 4.0}, {1: 11.0, 4: 60.0}


class Machine:
    """Says how long a step takes with as many threads as were set last."""

    def __init__(self) -> None:
        self.times = FREE
        self.threads = 4
        self.num_timed = 0

    def set_threads(self, count: int) -> None:
        self.threads = count

    def time_step(self) -> float:
        self.num_timed += 1
        return self.times[self.threads]

    def steps(self, governor: ThreadGovernor, count: int) -> None:
        for _ in range(count):
            governor.record(make_step(2, 1, verify_ms=self.times[self.threads]))


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def governor(machine):
    governor = ThreadGovernor(machine.time_step, machine.set_threads, 4)
    governor.settle()
    return governor


def test_all_threads_are_used_while_the_cores_are_free(machine, governor):
    machine.steps(governor, 200)
    assert machine.threads == governor.num_threads == 4
    assert machine.num_timed == 2  # Once each at the start, and never again.


def test_one_thread_is_used_when_the_cores_are_taken_and_all_again_when_they_are_free(machine, governor):
    machine.steps(governor, 10)
    machine.times = TAKEN
    machine.steps(governor, 3)
    assert machine.threads == 1
    machine.times = FREE
    machine.steps(governor, 64)
    assert machine.threads == 4


def test_a_single_slow_step_changes_nothing(machine, governor):
    machine.steps(governor, 10)
    governor.record(make_step(2, 1, verify_ms=1000.0))
    machine.steps(governor, 10)
    assert machine.num_timed == 2


def test_looking_again_becomes_rarer_while_the_cores_stay_taken(machine, governor):
    machine.steps(governor, 10)
    machine.times = TAKEN
    machine.steps(governor, 2_000)
    assert machine.threads == 1
    assert machine.num_timed <= 4 * 8


def test_a_moment_in_which_something_else_wants_a_core_does_not_cost_all_threads(machine):
    times = iter([11.0, 60.0, 10.0, 4.0])
    governor = ThreadGovernor(lambda: next(times), machine.set_threads, 4)
    assert governor.settle() == machine.threads == 4


def test_a_timing_that_is_broken_off_leaves_the_threads_as_they_were(machine, governor):
    def stop() -> float:
        raise Cancelled

    governor._time_step = stop
    with pytest.raises(Cancelled):
        governor.settle()
    assert machine.threads == governor.num_threads == 4


def test_no_more_threads_than_the_process_may_use(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert num_processors() == 2
    monkeypatch.delattr("os.sched_getaffinity")
    assert num_processors() == 64


@pytest.fixture
def request_with_baseline(tmp_path):
    save_model(tmp_path / "target", eos_token_id=None)
    return RunRequest(
        target=str(tmp_path / "target"), draft=None, method="prompt-lookup", prompt="def f(x):", max_new_tokens=12,
        device="cpu", sampling=SamplingParams(0.0), baseline=True,
    )  # fmt: skip


def test_a_stop_while_threads_are_timed_ends_the_run_before_it_starts(monkeypatch, request_with_baseline):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(core.session, "num_processors", lambda: 2)
    controls = RunControls.from_request(request_with_baseline)
    monkeypatch.setattr(core.session.torch, "set_num_threads", lambda count: controls.cancel())
    *_, last = Session().run(request_with_baseline, controls)
    assert isinstance(last, Finished)
    assert last.summary.finish_reason is FinishReason.CANCELLED
    assert last.summary.num_tokens == 0


def test_a_baseline_that_fails_leaves_the_run_whole(monkeypatch, request_with_baseline):
    def fail(*args, **settings):
        raise RuntimeError("no more room")
        yield

    monkeypatch.setattr(core.session, "autoregressive", fail)
    *_, last = Session().run(request_with_baseline)
    assert last.summary.finish_reason is FinishReason.LENGTH
    assert last.summary.num_tokens == 12
    assert last.summary.error == "The run is whole, but its baseline failed: no more room."
    assert last.summary.measured_speedup is None


# --- Places -----------------------------------------------------------------------------------------------------

PLACED = """
import os, sys
from core.machine import leave_core, num_processors, on_first_core, placing_threads

everywhere = os.sched_getaffinity(0)
with placing_threads():
    import torch
assert os.sched_getaffinity(0) == everywhere, "the thread itself is free again"
assert "OMP_PLACES" not in os.environ and "OMP_PROC_BIND" not in os.environ

before = set(os.listdir("/proc/self/task"))
torch.set_num_threads(2)
torch.ones(1 << 20).add_(1.0)
new = [os.sched_getaffinity(int(task)) for task in set(os.listdir("/proc/self/task")) - before]
with on_first_core() as tell_threads:
    assert os.sched_getaffinity(0) == everywhere, "nobody has said yet how many compute"
    tell_threads(2)
    here = os.sched_getaffinity(0)
    assert here < everywhere
    assert [there for there in new if there < everywhere and not here & there], (here, new)
    tell_threads(1)
    assert os.sched_getaffinity(0) == everywhere, "one alone goes where there is room"
    tell_threads(2)
    leave_core()
    assert os.sched_getaffinity(0) == everywhere
assert os.sched_getaffinity(0) == everywhere
assert num_processors() > 1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads have places on Linux only")
@pytest.mark.skipif(num_processors() < 2, reason="takes two cores")
def test_beside_a_window_each_thread_has_a_core_while_it_computes():
    chosen = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run([sys.executable, "-c", PLACED], env=chosen, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_where_torch_is_here_already_threads_may_move(monkeypatch):
    monkeypatch.setattr(core.machine.os, "sched_setaffinity", lambda *_: pytest.fail("moved"), raising=False)
    with placing_threads():
        assert "OMP_PLACES" not in os.environ
    with on_first_core() as tell_threads:
        tell_threads(2)


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_places_that_the_user_chose_stay(monkeypatch, name):
    monkeypatch.setattr(core.machine.sys, "modules", {})
    monkeypatch.setenv(name, "false")
    before = dict(os.environ)
    with placing_threads():
        assert dict(os.environ) == before
    assert dict(os.environ) == before


def test_the_number_of_processors_is_the_processs_although_a_thread_has_a_core_of_its_own(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2} if pid == os.getpid() else {0}, raising=False)
    assert num_processors() == 3


@pytest.fixture
def cores(monkeypatch):
    """A machine whose threads may be put on cores, as its system calls tell: which thread is where."""
    places: dict[int, set[int]] = {}
    monkeypatch.setattr(core.machine, "_first_core", {0})
    monkeypatch.setattr("os.sched_getaffinity", lambda thread: places.get(thread, {0, 1}), raising=False)
    monkeypatch.setattr("os.sched_setaffinity", places.__setitem__, raising=False)
    return places


def test_a_run_that_is_closed_in_another_thread_frees_the_one_that_it_kept_to_a_core(cores):
    placed = contextlib.ExitStack()
    placed.enter_context(on_first_core())(2)
    here = threading.get_native_id()
    assert cores == {here: {0}}
    other = threading.Thread(target=placed.close)
    other.start()
    other.join()
    assert cores == {here: {0, 1}}


def test_a_thread_that_was_started_on_the_first_core_may_leave_it(cores, monkeypatch):
    leave_core()
    assert cores == {}, "nobody has places"
    monkeypatch.setattr(core.machine, "_all_cores", {0, 1})
    with on_first_core() as tell_threads:
        tell_threads(2)
        other = threading.Thread(target=leave_core)
        other.start()
        other.join()
    here = threading.get_native_id()
    assert [places for thread, places in cores.items() if thread != here] == [{0, 1}]


def test_a_core_that_is_gone_is_no_reason_for_a_run_to_fail(cores, monkeypatch):
    def refuse(_thread, _cores):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("os.sched_setaffinity", refuse)
    with on_first_core() as tell_threads:
        tell_threads(2)
