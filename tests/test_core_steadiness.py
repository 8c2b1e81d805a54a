"""How steady the machine was: the spread of equal steps, the interval of a speedup, and what can't be."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from core.analysis import steadiness
from core.analysis.steadiness import (
    BUSY,
    absence_note,
    busy_note,
    impossible_note,
    speedup_interval,
    spread_of,
    unsteadiness,
)
from core.experiments.sweep_plan import CellResult, Measurement, PlannedRun
from core.experiments.sweep_results import SweepResults, verdicts
from core.runlog.tally import Tally
from core.runners import timing
from tests.fakes import is_sentence
from tests.fakes_cli import step
from tests.fakes_sweep import FakeSweepSession, events_of, measured, plan_of, summary_with


def steps_of(times, text="a", forward=1.0):
    return Tally([replace(step(*text), total_ms=time, verify_ms=forward * time) for time in times])


def steady(mean, count=48, seed=0):
    draw = random.Random(seed)
    return [mean * draw.uniform(0.97, 1.03) for _ in range(count)]


def stalled(mean, count=48):
    """Every fourth step waits for another program."""
    return [time * (3.0 if index % 4 == 0 else 1.0) for index, time in enumerate(steady(mean, count))]


def summary_of(**changes):
    values = {"target_step_ms": 10.0, "num_threads": 2, "baseline_num_threads": 2, "measured_speedup": 1.5}
    return summary_with(100.0, **{**values, "block_efficiency": 2.0, **changes})


def test_equal_work_in_equal_time_is_steady_also_while_a_text_grows_and_stalls_are_not():
    assert spread_of(steady(10.0)) < 0.1
    growing = [time * (1 + index / 48) for index, time in enumerate(steady(10.0))]
    assert spread_of(growing) < 0.1
    assert spread_of(stalled(10.0)) > BUSY
    assert spread_of(steady(10.0, count=7)) is None
    assert spread_of([0.0] * 20) is None
    for huge in ([1e308] * 9, [*[1.0] * 8, 1e308], [1.0, 1e308] * 5):
        assert spread_of(huge) is None, "their squares are no numbers"


def test_only_steps_that_draft_alike_are_compared():
    mixed = Tally()
    for index in range(40):
        drafted = index % 4 == 0
        mixed.add(replace(step("a"), num_draft_tokens=4 if drafted else 0, total_ms=30.0 if drafted else 10.0))
    assert unsteadiness(mixed) == pytest.approx(0.0, abs=1e-9)
    assert unsteadiness(mixed, steps_of(stalled(10.0))) > BUSY
    assert unsteadiness(Tally()) is None


def test_the_interval_covers_the_speedup_and_widens_on_an_unsteady_machine():
    ours, plain = steps_of(steady(15.0), "ab"), steps_of(steady(10.0, seed=1))
    low, high = speedup_interval(ours, plain)
    assert low < 2 * 10 / 15 < high
    assert high - low < 0.05
    low, high = speedup_interval(steps_of(stalled(15.0), "ab"), plain)
    assert high - low > 0.05
    assert speedup_interval(ours, steps_of([1.0] * 5)) is None
    assert speedup_interval(ours, steps_of([0.0] * 20)) is None


def test_the_interval_of_a_few_steps_covers_the_speedup_in_about_nineteen_of_twenty_runs():
    covered = 0
    for seed in range(300):
        ours, plain = (steps_of(steady(mean, 8, 2 * seed + (mean == 10.0))) for mean in (15.0, 10.0))
        low, high = speedup_interval(ours, plain)
        covered += low < 10 / 15 < high
    assert 0.93 < covered / 300 < 0.97


def test_a_run_is_called_busy_for_unequal_steps_another_baseline_or_a_speedup_that_can_not_be():
    ours, plain = steps_of(steady(15.0), "ab"), steps_of(steady(10.0))
    assert busy_note(ours, plain, summary_of()) == ""
    assert busy_note(ours, steps_of(steady(15.0), forward=2 / 3), summary_of()) == "", "sampling is no forward"
    for note, word in (
        (busy_note(ours, steps_of(stalled(10.0)), summary_of()), "same work"),
        (busy_note(ours, plain, summary_of(target_step_ms=4.0)), "4.0 ms in the run and 10.0 ms"),
        (busy_note(ours, plain, summary_of(measured_speedup=2.4)), "At 2.00 tokens per forward of the target, 2.40×"),
    ):
        assert word in note
        assert "busy" in note
        assert is_sentence(note)
    # Another number of threads is another speed, on a quiet machine too.
    assert busy_note(ours, plain, summary_of(target_step_ms=4.0, num_threads=1)) == ""
    assert busy_note(Tally(), Tally(), summary_of(measured_speedup=None)) == ""
    assert impossible_note(2.05, 2.0) == ""


# --- Sweeps -----------------------------------------------------------------------------------------------------


def test_a_sweeps_runs_say_how_steady_they_were_and_a_cell_that_can_not_be_is_not_the_best():
    session = FakeSweepSession(block_efficiency=2.5)
    finished = events_of(plan_of(repeats=3), session)[-1]
    [verdict] = finished.verdicts
    assert verdict.best.cell.num_draft_tokens == 1
    assert "K = 2 with D is left out. At 2.50 tokens per forward of the target, 3.00× is impossible" in verdict.sentence
    assert "The other speedups at this temperature may be too high as well." in verdict.sentence
    problems = {result.cell.num_draft_tokens: result.problem for result in finished.results}
    assert [bool(problems[k]) for k in (0, 1, 2)] == [False, False, True]
    [verdict] = events_of(plan_of(repeats=3, num_draft_tokens=(1, 2, 3)), session)[-1].verdicts
    assert "2 cells are left out: their speedups are higher than their tokens per forward allow" in verdict.sentence
    [verdict] = events_of(plan_of(num_draft_tokens=(2,)), session)[-1].verdicts
    assert verdict.best is None
    assert verdict.sentence.startswith(
        "At temperature 0: there is no ranking. K = 2 with D is left out. At 2.50 tokens"
    )
    assert verdict.sentence.endswith(" Repeat the sweep on an idle machine.")
    plan = plan_of(repeats=3, num_draft_tokens=(2, 3))
    [verdict] = verdicts(SweepResults(plan, measured(events_of(plan, session))[:-1]))
    assert (
        "there is no ranking yet. 2 cells are left out: their speedups are higher than their tokens" in verdict.sentence
    )
    assert verdict.sentence.endswith(" during the baseline. Continue the sweep.")


def test_a_verdict_asks_to_continue_where_the_fullest_cells_have_no_baseline_yet():
    plan, baseline = plan_of(repeats=3), next(plan_of().baselines())
    runs = measured(events_of(plan, FakeSweepSession()))
    kept = [
        item
        for item in runs
        if (item.run.cell == baseline and item.run.prompt == item.run.repeat == 0)
        or (item.run.cell.num_draft_tokens == 1 and item.run.prompt == 1)
        or (item.run.cell.num_draft_tokens == 2 and item.run.prompt == item.run.repeat == 0)
    ]
    [verdict] = verdicts(SweepResults(plan, kept))
    assert verdict.best is None
    assert "too few runs have a baseline to compare them with; continue the sweep." in verdict.sentence


def test_a_verdict_says_in_how_many_runs_the_machine_was_busy():
    plan = plan_of()
    runs = measured(events_of(plan, FakeSweepSession()))
    assert all(run.unsteadiness is None for run in runs)  # Of a single step.
    assert SweepResults(plan, runs).busy_note == ""
    runs[0] = replace(runs[0], unsteadiness=0.9)
    runs[1] = replace(runs[1], summary=replace(runs[1].summary, target_step_ms=99.0))
    others = [replace(run, summary=replace(run.summary, target_step_ms=5.0 + 10 * run.run.prompt)) for run in runs[2:]]
    results = SweepResults(plan, [*runs[:2], *others])
    note = "The machine was busy in 2 of 12 runs at temperature 0."
    assert results.busy_note == note
    [verdict] = verdicts(results)
    assert "busy" not in verdict.sentence
    assert not verdict.was_busy, "two runs alone don't decide"
    busy = [replace(run, unsteadiness=0.9) for run in runs[:4]]
    results = SweepResults(plan, [*busy, *others[2:]])
    note = "The machine was busy in 4 of 12 runs at temperature 0"
    assert results.busy_note == f"{note}; repeat the sweep on an idle machine."
    part = SweepResults(plan, [*busy, *others[3:]])
    assert part.busy_note == f"{note.replace('12', '11')}.", "first the rest is measured"
    [verdict] = verdicts(results)
    assert verdict.was_busy
    plan = plan_of(temperatures=(0.0, 0.5, 1.0))
    runs = measured(events_of(plan, FakeSweepSession()))
    at = [run for run in runs if run.run.cell.temperature == 0.0]
    odd = [run for run in runs if run not in at]
    busy = [replace(run, unsteadiness=0.9) for run in [*at, odd[0]]]
    note = SweepResults(plan, [*busy, *odd[1:]]).busy_note
    assert note.endswith("in 12 of 12 runs at temperature 0; repeat the sweep on an idle machine."), "one is too few"
    cell = next(plan.cells())  # Of which nothing was measured.
    assert CellResult(cell, 1, (Measurement(PlannedRun(cell, 0, 0), 0, 0, "", 1.0),)).problem == ""


def test_a_late_heartbeat_beside_steps_that_go_on_is_no_silence(monkeypatch):
    now = [0.0]
    clock_of = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: 0.0)
    monkeypatch.setattr(timing, "time", clock_of)
    monkeypatch.setattr(timing, "_BEAT_S", 600.0)
    with timing.watching_for_silence() as silence_ms:
        clock = timing.StepClock(torch.device("cpu"), silence_ms)
        for seconds in (*[0.05] * 60, 5.0):
            clock.start()
            now[0] += seconds
            clock.stop()
    assert clock.read() == pytest.approx([50.0] * 60 + [0.0], abs=1e-6)
    assert clock.absent_ms == pytest.approx(5_000.0)


STOPPED = """
import json, os, signal, sys
import pytest
from core.decode import speculative
from core.settings import SamplingParams
from core.types import Step
from tests.fakes import tiny_model
from tests.faults import strike

strike(pytest.MonkeyPatch(), 20, lambda: os.kill(os.getpid(), signal.SIGSTOP))
model = tiny_model()
steps = [event for event in speculative(model, model, list(b"abc"), max_new_tokens=40) if isinstance(event, Step)]
print(json.dumps([[step.absent_ms, step.total_ms] for step in steps]))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs a signal that stops a process")
def test_a_step_during_which_the_process_was_stopped_does_not_hold_that_time():
    """As across a sleep of the machine, and after Ctrl-Z."""
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE) as child:
        os.waitpid(child.pid, os.WUNTRACED)
        threading.Event().wait(1.2)
        child.send_signal(signal.SIGCONT)
        steps = json.loads(child.stdout.read())
    absent, total = max(steps)
    assert total < 1_000 < absent
    assert "for 6.0 s" in absence_note(Tally([replace(step("a"), absent_ms=6_011.0)]), Tally())
    assert absence_note(Tally(), Tally()) == ""


def test_a_spread_that_counts_as_busy_never_reads_as_one_that_does_not():
    for spread, shown in ((0.28, "28"), (0.5, "50"), (0.504, "51"), (0.55, "55"), (0.734, "73")):
        assert f"in time by {shown}\u00a0% (busy: above 50\u00a0%)" in steadiness.spread_text(spread)


def test_what_other_programs_compute_is_seen():
    code = "import time\nwhile time.process_time() < 0.4: pass"
    before = steadiness._seconds_of_others()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert steadiness._seconds_of_others() - before > 0.3
