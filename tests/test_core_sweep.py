"""A sweep: what its plan allows, in which order it measures, what it computes from the runs, and what it advises."""

from collections import Counter
from dataclasses import replace

import pytest

from core.controls import RunControls
from core.errors import GenerationError, ModelNotFoundError, OutOfMemoryError, OutriderError, PromptError, SettingsError
from core.experiments.prompt_suites import Prompt
from core.experiments.sweep import HOPELESS, WARM_UP_TOKENS
from core.experiments.sweep_plan import (
    DrafterChoice,
    FileFailed,
    Measurement,
    PlannedRun,
    RunMeasured,
    SweepFinished,
    SweepStarted,
    check_models,
)
from core.experiments.sweep_results import SweepResults, bootstrap_medians, verdicts
from core.session import Session
from core.settings import LengthPolicy
from tests.fakes import is_sentence, refusal, save_model
from tests.fakes_sweep import FakeSweepSession, events_of, fails_at, measured, plan_of, summary_with

# --- The plan ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drafters": ()}, "empty"),
        ({"num_draft_tokens": ()}, "empty"),
        ({"temperatures": ()}, "empty"),
        ({"prompts": ()}, "empty"),
        ({"num_draft_tokens": (0,)}, "from 1 to 64"),
        ({"num_draft_tokens": ("often",)}, "auto or adaptive"),
        ({"num_draft_tokens": (2, 2)}, "twice"),
        ({"temperatures": (float("nan"),)}, "Temperature"),
        ({"repeats": 0}, "1 or more"),
        ({"max_new_tokens": 0}, "new tokens"),
        ({"seed": -1}, "seed"),
        ({"top_p": 0.0}, "Top-p"),
        ({"repeats": 1_000_000}, "more than"),
        ({"drafters": (DrafterChoice("draft-model"),)}, "needs a draft"),
        ({"drafters": (DrafterChoice("prompt-lookup", "D"),)}, "uses no draft"),
        ({"prompts": (Prompt("blank", ""),)}, "empty"),
    ],
)
def test_a_bad_plan_is_a_sentence(changes, words):
    refusal(SettingsError, plan_of, **changes, match=words)


def test_a_sweep_of_a_method_that_is_not_there_is_refused_before_anything_runs():
    session = FakeSweepSession()
    plan = plan_of(drafters=(DrafterChoice("guessing"),))
    refusal(SettingsError, events_of, plan, session, match="no method")
    assert not session.warm_ups


def test_the_order_holds_every_run_once_and_depends_on_the_seed_alone():
    plan = plan_of(temperatures=(0.0, 1.0), repeats=3)
    order = plan.order()
    assert len(order) == len(set(order)) == plan.num_runs == (4 + 2) * 2 * 3
    assert order == plan.order() != replace(plan, seed=1).order()
    # Within a repeat all cells and prompts are mixed; a repeat is over before the next begins.
    assert [run.repeat for run in order] == sorted(run.repeat for run in order)
    first = [run.cell for run in order[:12]]
    assert first != sorted(first, key=lambda cell: str(cell))
    assert [run[:2] for run in order[:12]] != [run[:2] for run in order[12:24]]


def test_cells_share_prompts_and_seeds_and_the_baseline_the_sampler():
    plan = plan_of(temperatures=(0.7,), top_k=5, num_draft_tokens=(2, LengthPolicy.AUTO, LengthPolicy.ADAPTIVE))
    requests = {run.cell.num_draft_tokens: plan.request(run) for run in plan.order() if run[1:] == (1, 1)}
    assert len({request.seed for request in requests.values()}) == 1
    assert len({request.sampling for request in requests.values()}) == 1
    assert {request.prompt for request in requests.values()} == {"def g"}
    assert (requests[0].method, requests[0].draft) == ("prompt-lookup", None)
    assert requests[2].num_draft_tokens == 2
    assert requests["auto"].length_policy is LengthPolicy.AUTO
    assert requests["adaptive"].length_policy is LengthPolicy.ADAPTIVE
    assert len({plan.request(run).seed for run in plan.order()}) == 4


def test_models_that_are_not_here_are_reported_before_anything_runs(tmp_path):
    for target, error in (
        ("nobody/nothing", ModelNotFoundError),
        (str(save_model(tmp_path / "target")), OutriderError),
    ):
        refusal(error, check_models, plan_of(target=target))


# --- Running ----------------------------------------------------------------------------------------------------


def test_a_sweep_reports_its_start_every_run_and_its_end():
    session = FakeSweepSession()
    events = events_of(plan_of(), session)
    runs = [event for event in events if isinstance(event, RunMeasured)]
    assert isinstance(events[0], SweepStarted)
    assert isinstance(events[-1], SweepFinished)
    assert (events[0].plan.num_runs, events[0].num_done, events[-1].is_complete) == (12, 0, True)
    assert [event.num_done for event in runs] == list(range(1, 13))
    assert runs[0].seconds_left > 0 == runs[-1].seconds_left
    assert Counter(is_plain for _, is_plain in session.calls) == {False: 8, True: 4}
    assert [request.max_new_tokens for request in session.warm_ups] == [WARM_UP_TOKENS] * 2
    assert {event.text for event in events if hasattr(event, "text")} == {"Loading T…", "Warming up…", ""}


def test_a_speed_is_compared_with_the_baseline_nearest_in_time():
    plan = plan_of(num_draft_tokens=(1,), prompts=(Prompt("one", "x"),), repeats=2)
    baseline, cell = next(plan.baselines()), next(plan.cells())

    def at(second, cell, repeat, speed):
        run = PlannedRun(cell, 0, repeat)
        return Measurement(run, second, 0, f"2026-01-01T00:00:{second:02}+00:00", 1.0, summary_with(speed))

    results = SweepResults(plan, [at(0, baseline, 0, 10.0), at(9, cell, 0, 30.0)])
    assert results.speedups(cell) == {(0, 0): 3.0}
    changed = results.add(at(10, baseline, 1, 20.0))
    assert changed == [baseline, cell]
    results.add(at(2, cell, 1, 30.0))
    assert results.speedups(cell) == {(0, 0): 1.5, (0, 1): 3.0}
    assert results.result(cell).speedup.median == 2.25
    assert results.result(cell).speedup.quartiles == (1.875, 2.625)
    assert results.result(baseline).speedup is None


@pytest.mark.parametrize("failure", [OutOfMemoryError("It does not fit."), RuntimeError("CUDA error\nand more")])
def test_a_cell_that_fails_is_reported_and_abandoned_and_the_rest_continues(failure):
    events = events_of(plan_of(repeats=4), FakeSweepSession(on_run=fails_at(2, failure)))
    results = {result.cell.num_draft_tokens: result for result in events[-1].results}
    assert events[-1].is_complete
    assert (results[1].num_measured, results[2].num_measured) == (8, 0)
    (error,) = results[2].errors
    assert is_sentence(error)
    assert len(results[2].measurements) == HOPELESS
    assert events[-2].num_done == 24 - (8 - HOPELESS)


def test_a_target_that_cannot_be_loaded_ends_the_sweep_at_once_and_a_prompt_that_is_too_long_fails_alone():
    class Broken(FakeSweepSession):
        def run(self, request, controls):
            raise OutOfMemoryError("T does not fit.")

    class Short(FakeSweepSession):
        def run(self, request, controls):
            if request.prompt == "def g":
                raise PromptError("The prompt is too long.")
            return super().run(request, controls)

    with pytest.raises(OutOfMemoryError):
        events_of(plan_of(), Broken())
    finished = events_of(plan_of(), Short())[-1]
    assert [result.num_measured for result in finished.results] == [2, 2, 2]
    assert all(result.errors == ("The prompt is too long.",) for result in finished.results)


def test_a_sweep_that_is_stopped_keeps_what_was_measured(tmp_path):
    controls = RunControls()
    session = FakeSweepSession(on_run=lambda *_: controls.cancel() if len(session.calls) == 3 else None)
    events = events_of(plan_of(), session, logs=tmp_path, controls=controls)
    assert not events[-1].is_complete
    assert len(session.calls) == 3
    # The log of the run that was cut short goes with it.
    assert {item.log for item in measured(events)} == set(tmp_path.iterdir())
    assert len(measured(events)) == 2


def test_logs_that_cannot_be_kept_are_reported_once_and_the_sweep_continues(tmp_path):
    (tmp_path / "file").write_text("x")
    events = events_of(plan_of(), FakeSweepSession(), logs=tmp_path / "file" / "logs")
    (failure,) = [event.sentence for event in events if isinstance(event, FileFailed)]
    assert is_sentence(failure)
    assert all(item.run_id is None for item in measured(events))


def test_real_models_are_swept_and_plain_decoding_drafts_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Threads are not timed against each other.
    target = str(save_model(tmp_path / "target", eos_token_id=None))
    draft = str(save_model(tmp_path / "draft", family="gpt2", seed=1, eos_token_id=None))
    plan = plan_of(
        target=target, drafters=(DrafterChoice("draft-model", draft),), temperatures=(0.5,), repeats=1,
        num_draft_tokens=(2, LengthPolicy.AUTO), max_new_tokens=8, device="cpu",
    )  # fmt: skip
    check_models(plan)
    session = Session()
    finished = events_of(plan, session, logs=tmp_path / "logs")[-1]
    plain, fixed, _ = finished.results
    assert [result.num_measured for result in finished.results] == [2, 2, 2]
    assert all(item.summary.num_drafts == 0 and item.summary.num_tokens == 8 for item in plain.measurements)
    assert all(item.summary.num_drafts > 0 for item in fixed.measurements)
    assert fixed.speedup.median > 0
    assert all(item.log.exists() and item.log.stem == item.run_id for item in fixed.measurements)
    session.close()


# --- Verdicts ---------------------------------------------------------------------------------------------------


def swept(speed, **changes):
    plan = plan_of(**{"repeats": 6, **changes})
    return verdicts(SweepResults(plan, measured(events_of(plan, FakeSweepSession(speed)))))


@pytest.mark.parametrize(
    ("speed", "facts", "words"),
    [
        (
            lambda k, seed: 10.0 + 5.0 * k,
            {"speculates": True, "is_sure": True},
            "K = 2 with D is fastest, 2.00× the speed of plain decoding (95 % interval 2.00 to 2.00",
        ),
        (lambda k, seed: 9.0, {"speculates": False, "is_sure": True}, "don't speculate"),
        (
            lambda k, seed: (5.0, 9.9, 20.0)[seed % 3],
            {"speculates": False, "is_sure": False},
            "reaches 0.99× the speed of plain decoding (95 % interval",
        ),
        (lambda k, seed: 20.0 + (seed % 3 == k), {"is_sure": True}, "K = 1 with D leads with 2.00×"),
        (
            lambda k, seed: (5.0, 10.1, 20.0)[seed % 3],
            {"speculates": True, "is_sure": False},
            "can't distinguish it from plain decoding",
        ),
    ],
    ids=["best", "none", "unsure", "alike", "noise"],
)
def test_a_verdict_says_what_is_fastest_and_how_sure_that_is(speed, facts, words):
    (verdict,) = swept(lambda request, is_plain: 10.0 if is_plain else speed(request.num_draft_tokens, request.seed))
    assert {name: getattr(verdict, name) for name in facts} == facts
    assert words in verdict.sentence
    assert ("is not settled (" in verdict.sentence) is verdict.sentence.endswith("needed).") is ("leads" in words)
    assert (" (at least 97.5\xa0% sure)." in verdict.sentence) is ("fastest" in words)
    assert is_sentence(verdict.sentence)


def test_of_more_than_two_cells_a_verdict_says_that_its_interval_ignores_the_choice():
    def said(count, **changes):
        lengths = tuple(range(1, count + 1))
        (verdict,) = swept(lambda request, is_plain: 10.0 if is_plain else 20.0, num_draft_tokens=lengths, **changes)
        return verdict.sentence

    assert said(3).endswith(
        "The interval doesn't allow for the choice of the best of 3 cells, which may look faster than it is."
    )
    assert "choice" not in said(2)
    assert "choice" not in said(3, repeats=1), "which has no interval"


@pytest.mark.parametrize("lengths", [(1, 2), (2,)], ids=["ahead", "alone"])
def test_what_a_busy_machine_leaves_open_no_verdict_calls_the_fastest(lengths):
    def speed(request, is_plain):
        return 10.0 if is_plain else 10.0 + 5.0 * request.num_draft_tokens

    plan = plan_of(repeats=6, num_draft_tokens=lengths)
    runs = measured(events_of(plan, FakeSweepSession(speed)))
    (quiet,), (busy,) = (
        verdicts(SweepResults(plan, [replace(run, unsteadiness=at) for run in runs])) for at in (0.0, 0.9)
    )
    assert "K = 2 with D is fastest, 2.00× the speed of plain decoding" in quiet.sentence
    assert "busy" not in quiet.sentence
    assert "K = 2 with D leads with 2.00× the speed of plain decoding" in busy.sentence
    assert "fastest" not in busy.sentence
    assert busy.sentence.endswith("on a busy machine, so this is not settled.")
    assert ("% sure" in quiet.sentence, "% sure" in busy.sentence) == (len(lengths) > 1, False)
    assert is_sentence(busy.sentence)
    if len(lengths) > 1:
        (part,) = verdicts(SweepResults(plan, [replace(run, unsteadiness=0.9) for run in runs[:-1]]))
        assert part.sentence.endswith("so this is not settled. Continue the sweep to measure the rest.")


@pytest.mark.parametrize(
    ("count", "words"), [(1, "2.00 on this prompt)"), (3, "2.00 on these 3 prompts)"), (6, "to 2.00);")]
)
def test_an_interval_over_few_prompts_covers_only_these(count, words):
    prompts = tuple(Prompt(str(index), "any") for index in range(count))
    (verdict,) = swept(lambda request, is_plain: 10.0 if is_plain else 20.0, prompts=prompts)
    assert words in verdict.sentence


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ((2,), "there is no other cell"),
        ((1, 2), "the other cell failed. Continue the sweep to try the failed runs again."),
        ((1, 2, 3), "the other 2 cells failed. Continue the sweep to try"),
    ],
)
def test_a_verdict_without_a_runner_up_says_whether_the_other_cells_failed(lengths, words):
    def on_run(request, controls):
        if controls.num_draft_tokens not in {0, 2}:
            raise GenerationError("The draft ran out of memory.")

    plan = plan_of(repeats=6, num_draft_tokens=lengths)
    runs = measured(events_of(plan, FakeSweepSession(on_run=on_run)))
    (verdict,) = verdicts(SweepResults(plan, runs))
    assert words in verdict.sentence
    assert is_sentence(verdict.sentence)
    # A cell that was stopped before its first run has not failed.
    (verdict,) = verdicts(SweepResults(plan, [run for run in runs if run.run.cell.num_draft_tokens != 1]))
    assert "the other cell" not in verdict.sentence


def test_few_runs_give_no_interval_and_no_runs_no_verdict():
    (verdict,) = swept(lambda request, is_plain: 10.0 if is_plain else 20.0, repeats=1)
    assert verdict.is_sure is None
    assert " has 2: add repeats or prompts." in verdict.sentence
    runs = measured(events_of(plan_of(repeats=6), FakeSweepSession()))
    early = [run for run in runs if run.run.prompt == run.run.repeat == 0]
    (verdict,) = verdicts(SweepResults(plan_of(repeats=6), early))
    assert " has 1: continue the sweep to measure the rest." in verdict.sentence
    (verdict,) = verdicts(SweepResults(plan_of()))
    assert verdict.best is None
    assert is_sentence(verdict.sentence)


def test_a_bootstrap_draws_prompts_and_their_repeats_and_tolerates_gaps():
    alike = {(prompt, repeat): float(prompt) for prompt in range(2) for repeat in range(50)}
    # Of two prompts, a sample holds one alone half the time, however often each was repeated.
    medians = bootstrap_medians(alike)
    assert abs((medians == 0.5).mean() - 0.5) < 0.05
    gaps = bootstrap_medians({(0, 0): 1.0, (1, 1): 3.0})
    assert 1.0 <= gaps.min() <= gaps.max() <= 3.0
