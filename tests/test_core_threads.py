"""All threads while the cores are free, one while they are not; stopping never waits for the timing."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import torch

import core.runners.forward_choice
import core.session
from core.controls import RunControls
from core.models import load
from core.runners.threads import ThreadGovernor, _performance_cores, num_processors, processors_allowed, threads
from core.session import Session
from core.settings import RunRequest, SamplingParams
from core.types import Finished, FinishReason, RunStarted
from tests.children import run_code
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


def test_all_threads_are_used_while_the_cores_are_free_and_a_single_slow_step_changes_nothing(machine, governor):
    machine.steps(governor, 100)
    governor.record(make_step(2, 1, verify_ms=1000.0))
    machine.steps(governor, 100)
    assert machine.threads == governor.num_threads == 4
    assert machine.num_timed == 2  # Once each at the start, and never again.


def test_a_moment_in_which_something_else_wants_a_core_does_not_cost_all_threads(machine):
    times = iter([11.0, 60.0, 10.0, 4.0])
    governor = ThreadGovernor(lambda: next(times), machine.set_threads, 4)
    assert governor.settle() == machine.threads == 4


def test_one_thread_is_used_while_the_cores_are_taken_and_all_again_when_they_are_free(machine, governor):
    machine.steps(governor, 10)
    machine.times = TAKEN
    machine.steps(governor, 3)
    assert machine.threads == 1
    machine.times = FREE
    machine.steps(governor, 64)
    assert machine.threads == 4
    machine.times, timed_before = TAKEN, machine.num_timed
    machine.steps(governor, 2_000)
    assert machine.threads == 1
    assert machine.num_timed - timed_before <= 4 * 8, "it looks again ever more rarely"


def test_no_more_threads_than_the_process_may_use(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr("core.runners.threads.processors_allowed", lambda: 1000)
    monkeypatch.setattr("core.runners.threads._performance_cores", lambda: 1000)
    assert num_processors() == 2
    monkeypatch.delattr("os.sched_getaffinity")
    assert num_processors() == 64


@pytest.mark.parametrize(("answer", "count"), [(subprocess.CompletedProcess([], 0, "4\n"), 4), (None, 8)])
def test_the_efficiency_cores_of_an_apple_chip_are_not_counted(monkeypatch, answer, count):
    def run(command, **_):
        if answer is None:  # An Intel Mac knows no such name.
            raise subprocess.CalledProcessError(1, command)
        return answer

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8)
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("core.runners.threads.processors_allowed", lambda: 1000)
    monkeypatch.setattr("core.runners.threads._performance_cores", _performance_cores.__wrapped__)
    assert num_processors() == count


@pytest.mark.parametrize(
    "files", [{"cpu.max": "200000 100000"}, {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}]
)
def test_a_containers_limit_of_processor_time_is_one_of_threads(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert processors_allowed(tmp_path) == 2
    (tmp_path / next(iter(files))).write_text("max 100000\n" if "cpu.max" in files else "-1\n")
    assert processors_allowed(tmp_path) > 64


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


@pytest.mark.parametrize(("asked", "logged"), [("", 4), ("1", 1)])
def test_equal_runs_log_the_same_number_of_threads_whatever_is_chosen_for_each(
    monkeypatch, request_with_baseline, asked, logged
):
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    else:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(core.session, "num_processors", lambda: 4)
    monkeypatch.setattr(ThreadGovernor, "settle", lambda self: torch.set_num_threads(1))
    events = Session().run(request_with_baseline)
    assert next(event for event in events if isinstance(event, RunStarted)).environment["threads"] == logged


def test_a_baseline_that_fails_leaves_the_run_whole(monkeypatch, request_with_baseline):
    def fail(*args, **settings):
        raise RuntimeError("no more room")
        yield

    monkeypatch.setattr(core.session, "autoregressive", fail)
    *_, last = Session().run(request_with_baseline)
    assert last.summary.finish_reason is FinishReason.LENGTH
    assert last.summary.num_tokens == 12
    assert last.summary.error == "The run is complete, but its baseline failed: no more room."
    assert last.summary.measured_speedup is None


TWO_AT_ONCE = """
import sys, threading
import core.session
import torch

sys.setswitchinterval(1e-6)
arrived = threading.Barrier(2)

import builtins
plain = builtins.__import__

def slow_import(name, *args, **kwargs):
    # As PySide's, Python code that runs at each import: the lock may pass to the other thread there.
    for _ in range(20_000):
        pass
    return plain(name, *args, **kwargs)

builtins.__import__ = slow_import

def use():
    arrived.wait()
    torch.tensor(1.0)

threads = [threading.Thread(target=use) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("through")
"""


def test_two_threads_may_be_the_first_to_make_a_tensor():
    done = run_code(TWO_AT_ONCE)
    assert done.stdout.strip() == "through", done.stderr


def test_the_probe_of_a_small_model_waits_for_no_busy_core(tmp_path, monkeypatch):
    counts = []
    real = core.runners.forward_choice.choose_reading
    monkeypatch.setattr(
        "core.runners.forward_choice.choose_reading",
        lambda loaded: (counts.append(torch.get_num_threads()), real(loaded))[1],
    )
    path = str(save_model(tmp_path / "model"))
    with threads(2):
        load(path, "cpu")
        monkeypatch.setattr("core.runners.forward_choice._SMALL", 0)
        load(path, "cpu")
        assert torch.get_num_threads() == 2
    assert counts == [1, 2]
