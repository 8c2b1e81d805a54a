"""Settings that change during a run, pauses and slow motion: the text stays the target's."""

import itertools
import queue
import threading

import pytest

import core.controls
import core.decode
from core.controls import Cancelled, RunControls
from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.length_policy import BlockPlan, DraftLengthPolicy
from core.errors import GenerationError
from core.settings import Coupling, LengthPolicy, SamplingParams
from core.types import Drafted, Finished, FinishReason, PrefillDone, Step
from tests.exactness import SIGNIFICANCE, engine_p_value, stops_at_the_unsure
from tests.fakes import GREEDY, fixed_rows, play, random_rows, table_model
from tests.fakes_decode import plain_ids, tables

pytestmark = pytest.mark.usefixtures("short_look")


def test_k_and_temperature_apply_from_the_next_step_and_are_recorded():
    model, controls, seen = tables()[0], RunControls(SamplingParams(1.0, top_k=3), 2), []
    changes = {
        2: lambda: controls.set_num_draft_tokens(5),
        3: lambda: controls.set_temperature(0.0),
        5: lambda: controls.set_num_draft_tokens(0),
        6: lambda: controls.set_num_draft_tokens(LengthPolicy.AUTO),
    }
    for event in speculative(model, model, [0], controls=controls, max_new_tokens=60):
        if isinstance(event, Step):
            seen.append((event.num_draft_tokens, event.temperature))
            assert event.draft_length == controls.num_draft_tokens
            changes.get(len(seen), lambda: None)()
    assert seen[:6] == [(2, 1.0), (2, 1.0), (5, 1.0), (5, 0.0), (5, 0.0), (0, 0.0)]
    assert controls.sampling.top_k == 3


def test_a_k_that_has_no_effect_in_a_run_without_a_drafter_is_not_recorded():
    controls = RunControls(GREEDY, 0)
    events = autoregressive(tables()[0], [0], controls=controls, max_new_tokens=4)
    lengths = []
    for event in events:
        if isinstance(event, Step):
            lengths.append(event.draft_length)
            controls.set_num_draft_tokens(4)
    assert lengths == [0] * 4


def test_a_temperature_that_moves_keeps_greedy_steps_greedy():
    target, draft = tables()
    controls, ids = RunControls(SamplingParams(1.0), 3), [0]
    for event in speculative(target, draft, [0], controls=controls, max_new_tokens=80):
        if isinstance(event, Step):
            for token in event.emitted:
                assert event.temperature or token == int(target.logits_of(ids).argmax())
                ids.append(token)
            controls.set_temperature(0.0 if controls.sampling.temperature else 1.0)


class StopsWhereUnsure(DraftLengthPolicy):
    """A policy that looks at no clock, so that it does the same everywhere."""

    def plan(self, length):
        return BlockPlan(4, stops_at_the_unsure) if isinstance(length, LengthPolicy) else BlockPlan(length)


@pytest.mark.parametrize("coupling", Coupling)
def test_the_loop_keeps_the_distribution_where_blocks_end_by_what_was_drawn(coupling, monkeypatch):
    monkeypatch.setattr(core.decode, "DraftLengthPolicy", StopsWhereUnsure)
    sampling, length = SamplingParams(0.8, 3, 0.9, 0.02), LengthPolicy.ADAPTIVE
    assert engine_p_value(speculative, sampling=sampling, coupling=coupling, num_draft_tokens=length) > SIGNIFICANCE


def test_the_policy_may_change_in_the_middle_of_a_run(monkeypatch):
    monkeypatch.setattr(core.decode, "DraftLengthPolicy", StopsWhereUnsure)
    target = tables()[0]
    draft = table_model(random_rows(8, 1, scale=1.5), 8)
    controls, asked, ids, count = RunControls(GREEDY, 3), [], [], 0

    class Watched(DraftModelDrafter):
        def propose(self, context):
            asked.append(context.keep_drafting is not None)
            return super().propose(context)

    for event in speculative(target, Watched(DrafterSetup(target, draft)), [0], controls=controls, max_new_tokens=120):
        if isinstance(event, PrefillDone):
            assert not asked
        if isinstance(event, Step):
            ids += event.emitted
            count += 1
            controls.set_num_draft_tokens((2, LengthPolicy.ADAPTIVE, LengthPolicy.AUTO)[count // 6 % 3])
    assert ids == plain_ids(target, count=120, sampling=GREEDY)
    assert {True, False} == set(asked)
    assert not any(asked[:5])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_returns_nan_is_named(temperature):
    target, _ = tables()
    draft = table_model(fixed_rows([float("nan")] * 8), 8)
    length = {"num_draft_tokens": LengthPolicy.ADAPTIVE}
    with pytest.raises(GenerationError, match="draft's logits"):
        play(speculative(target, draft, [0], sampling=SamplingParams(temperature), **length))


@pytest.fixture
def clock(monkeypatch):
    """Time that passes in forwards only: `clock.charge` says what those of a model take."""

    class Clock:
        now = 0.0

        absent_ms = 0.0

        def __init__(self, device, *_) -> None:
            self._last, self._parts = Clock.now, []

        def lap(self) -> float:
            elapsed, self._last = Clock.now - self._last, Clock.now
            return elapsed

        def start(self) -> None:
            self._last = Clock.now

        def stop(self) -> None:
            self._parts.append(self.lap())

        def read(self) -> list[float]:
            return self._parts

    def charge(model, milliseconds: float) -> None:
        def spend(runner, ids) -> None:
            Clock.now += milliseconds

        model.on_forward = spend

    Clock.charge = staticmethod(charge)
    monkeypatch.setattr("core.decode.Stopwatch", Clock)
    monkeypatch.setattr("core.rounds.StepClock", Clock)
    monkeypatch.setattr("core.runners.scoring.Stopwatch", Clock)
    return Clock


def test_the_chosen_length_keeps_the_distribution():
    settings = {"sampling": SamplingParams(0.9, top_k=3), "num_draft_tokens": LengthPolicy.AUTO}
    assert engine_p_value(speculative, **settings) > SIGNIFICANCE


def test_a_hopeless_and_costly_draft_is_soon_abandoned(clock):
    target, _ = tables()
    wrong = table_model(lambda ids: -target.logits_of(ids) * 4, 8)
    clock.charge(target, 10.0)
    clock.charge(wrong, 9.0)
    run = play(speculative(target, wrong, [0], num_draft_tokens=LengthPolicy.AUTO, sampling=GREEDY, max_new_tokens=400))
    lengths = [step.num_draft_tokens for step in run.steps]
    assert lengths[0] == 0, "the first step measures plain decoding"
    assert lengths[1] > 0
    assert lengths[2:11] == [0] * 9
    # It looks again now and then, as seldom as the share of the time that looking may cost demands.
    probes = [index for index, length in enumerate(lengths) if length and index > 1]
    assert probes
    assert min(later - earlier for earlier, later in itertools.pairwise([1, *probes])) >= 10
    assert sum(step.total_ms for step in run.steps) < 1.05 * 10.0 * 400


@pytest.mark.parametrize("length", [LengthPolicy.AUTO, LengthPolicy.ADAPTIVE])
def test_reading_the_whole_text_after_a_trial_belongs_to_the_prefill_as_with_a_fixed_k(clock, length):
    target, _ = tables()
    draft = table_model(target.logits_of, 8)
    clock.charge(target, 10.0)
    clock.charge(draft, 2.0)
    run = play(speculative(target, draft, [0, 1] * 50, num_draft_tokens=length, sampling=GREEDY, max_new_tokens=60))
    assert sum(step.num_draft_tokens > 0 for step in run.steps) > 5
    # The end of the prompt, then all of it once drafting has saved time.
    assert run.summary.prefill_ms == pytest.approx(10.0 + 2.0 + 2.0)
    for step in run.steps:
        assert step.draft_ms == pytest.approx(2.0 * step.num_draft_tokens)


@pytest.mark.parametrize("length", [LengthPolicy.AUTO, LengthPolicy.ADAPTIVE])
def test_a_draft_that_needs_a_few_lines_of_the_text_gets_them_to_be_tried(clock, length):
    target, _ = tables()
    draft = table_model(lambda ids: target.logits_of(ids) * (1 if len(ids) >= 30 else -1), 8)
    clock.charge(target, 10.0)
    clock.charge(draft, 1.0)
    run = play(speculative(target, draft, [0, 1] * 25, num_draft_tokens=length, sampling=GREEDY, max_new_tokens=60))
    assert run.summary.block_efficiency > 3


def test_times_are_split_as_they_passed(clock):
    target, _ = tables()
    clock.charge(target, 10.0)
    draft = table_model(target.logits_of, 8)
    clock.charge(draft, 2.0)
    run = play(speculative(target, draft, [0, 1, 2], num_draft_tokens=3, max_new_tokens=41))
    for step in run.steps[1:-1]:
        # After a full block the draft reads two tokens at first, in one forward.
        assert (step.draft_ms, step.verify_ms, step.sample_ms) == pytest.approx((6.0, 10.0, 0.0))
    summary = run.summary
    # Two forwards of the prefill; the rest is decoding.
    assert summary.prefill_ms == pytest.approx(12.0)
    assert summary.cost_coefficient == pytest.approx(0.2, rel=0.1)
    assert summary.tokens_per_second == pytest.approx(1e3 * 41 / sum(step.total_ms for step in run.steps))
    # (K + 1) / (K c + 1), since everything is accepted and scoring four costs what scoring one does.
    assert summary.predicted_speedup == pytest.approx(4 / 1.6, rel=0.1)
    assert summary.block_efficiency == pytest.approx(41 / len(run.steps))


SOON = 10


class Runner:
    """Plays a run in a thread of its own; its events can be waited for."""

    def __init__(self, events):
        self._events = queue.Queue()
        self.thread = threading.Thread(target=lambda: [self._events.put(event) for event in events], daemon=True)
        self.thread.start()

    def next(self, kind=None):
        """The next event; of a kind, if one is given."""
        event = self._events.get(timeout=SOON)
        while kind is not None and not isinstance(event, kind):
            event = self._events.get(timeout=SOON)
        return event

    @property
    def is_silent(self):
        """Whether nothing comes for a while."""
        try:
            self._events.get(timeout=0.05)
        except queue.Empty:
            return True
        return False


def run_with(controls, count=40):
    return speculative(*tables(), [0], controls=controls, max_new_tokens=count)


def test_a_paused_run_takes_each_requested_step(paused):
    controls, run = paused
    assert run.is_silent
    for index in range(3):
        controls.step_once()
        assert run.next(Step).index == index
        assert run.is_silent
    controls.resume()
    assert run.next(Finished).summary.finish_reason is FinishReason.LENGTH


@pytest.fixture
def paused():
    """The controls of a paused run, and the run at its first step."""
    controls = RunControls(GREEDY, 3)
    controls.pause()
    run = Runner(run_with(controls))
    assert isinstance(run.next(), PrefillDone)
    return controls, run


def test_settings_changed_during_a_pause_apply_to_the_next_step_and_the_run_can_be_stopped(paused):
    controls, run = paused
    controls.set_num_draft_tokens(1)
    controls.set_temperature(0.5)
    controls.step_once()
    step = run.next(Step)
    assert (step.num_draft_tokens, step.temperature) == (1, 0.5)
    controls.cancel()
    assert run.next(Finished).summary.finish_reason is FinishReason.CANCELLED
    run.thread.join(SOON)
    assert not run.thread.is_alive()


def run_followed(controls, *length):
    """A run that is taken step by step."""
    controls.pause()
    controls.step_once()
    for event in run_with(controls, *length):
        yield event
        if isinstance(event, Step):
            controls.step_once()


def test_a_run_is_stepped_once_a_step_was_taken_by_itself_and_not_by_a_request_that_was_withdrawn_or_too_late():
    controls = RunControls(GREEDY, 3)
    controls.step_once()
    controls.resume()
    for event in run_with(controls):
        if isinstance(event, Finished):
            controls.step_once()
    assert not controls.was_stepped
    play(run_followed(controls))
    assert controls.was_stepped


def test_the_text_is_the_same_however_the_run_is_followed():
    straight = play(run_with(RunControls(SamplingParams(1.0), 3))).ids
    followed = [event for event in run_followed(RunControls(SamplingParams(1.0), 3)) if isinstance(event, Step)]
    assert [token for step in followed for token in step.emitted] == straight


def test_a_followed_step_shows_its_draft_before_its_verdict_and_at_full_speed_none_does():
    controls = RunControls(GREEDY, 3)
    events = [event for event in run_followed(controls, 12) if isinstance(event, Drafted | Step)]
    pairs = list(zip(events[::2], events[1::2], strict=False))
    assert pairs
    for drafted, step in pairs[:-1]:
        assert isinstance(drafted, Drafted)
        assert (drafted.index, drafted.position) == (step.index, step.position)
        assert (drafted.drafted, drafted.drafted_texts) == (step.drafted, step.drafted_texts)
    assert not any(isinstance(event, Drafted) for event in run_with(RunControls(GREEDY, 3)))
    plain = controls.sharing_stop(GREEDY, 0)
    assert not any(isinstance(event, Drafted) for event in autoregressive(tables()[0], [0], controls=plain))


def test_a_step_in_halves_waits_with_its_draft_until_asked_again_and_nothing_else_changes():
    straight = [step for step in run_with(RunControls(SamplingParams(1.0), 3), 12) if isinstance(step, Step)]
    controls = RunControls(SamplingParams(1.0), 3)
    controls.stops_at_drafts = True
    controls.pause()
    run, seen = Runner(run_with(controls, 12)), []
    assert isinstance(run.next(), PrefillDone)
    for expected in straight:
        controls.step_once()
        if expected.drafted:
            assert run.next(Drafted).drafted[: len(expected.drafted)] == expected.drafted
            assert run.is_silent
            controls.step_once()
        seen.append(run.next(Step))
    assert [step.emitted for step in seen] == [step.emitted for step in straight]
    assert run.next(Finished).summary.num_steps == len(straight)


@pytest.mark.parametrize("in_halves", [False, True])
@pytest.mark.parametrize("is_stop", [False, True])
def test_a_resume_or_a_stop_while_a_draft_is_shown_ends_the_pause(is_stop, in_halves, monkeypatch):
    monkeypatch.setattr(core.controls, "LOOK_MS", 1000.0 * SOON)
    controls = RunControls(GREEDY, 3)
    controls.stops_at_drafts = in_halves
    controls.pause()
    controls.step_once()
    run = Runner(run_with(controls))
    run.next(Drafted)
    (controls.cancel if is_stop else controls.resume)()
    summary = run.next(Finished).summary
    assert summary.finish_reason is (FinishReason.CANCELLED if is_stop else FinishReason.LENGTH)
    assert (summary.num_steps == 0) is is_stop, "a stop leaves the step undone"


def test_the_baseline_does_not_pause_but_can_be_stopped():
    controls = RunControls(GREEDY, 3)
    controls.pause()
    plain = controls.sharing_stop(GREEDY, 0)
    assert len(play(autoregressive(tables()[0], [0], controls=plain, max_new_tokens=5)).ids) == 5
    controls.cancel()
    with pytest.raises(Cancelled):
        plain.wait_for_step()
