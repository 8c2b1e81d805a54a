"""Pausing, stepping and slow motion: the run waits between its steps, can always be stopped, and no wait is timed."""

import queue
import threading

import pytest

import core.controls
from core.controls import Cancelled, RunControls
from core.decode import autoregressive, speculative
from core.settings import SamplingParams
from core.types import Drafted, Finished, FinishReason, PrefillDone, Step
from tests.fakes import play, random_law, table_model

GREEDY = SamplingParams(0.0)
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


@pytest.fixture(autouse=True)
def short_look(monkeypatch):
    monkeypatch.setattr(core.controls, "LOOK_MS", 1.0)


def models():
    return table_model(random_law(8, 1, scale=2), 8), table_model(random_law(8, 2, scale=2), 8)


def run_with(controls, count=40):
    target, draft = models()
    return speculative(target, draft, [0], controls=controls, max_new_tokens=count)


def test_a_paused_run_takes_a_step_for_each_that_is_asked_for():
    controls = RunControls(GREEDY, 3)
    controls.pause()
    run = Runner(run_with(controls))
    assert isinstance(run.next(), PrefillDone)
    assert run.is_silent
    for index in range(3):
        controls.step_once()
        assert run.next(Step).index == index
        assert run.is_silent
    controls.resume()
    assert run.next(Finished).summary.finish_reason is FinishReason.LENGTH


def test_a_paused_run_can_be_stopped():
    controls = RunControls(GREEDY, 3)
    controls.pause()
    run = Runner(run_with(controls))
    run.next(PrefillDone)
    controls.cancel()
    assert run.next(Finished).summary.finish_reason is FinishReason.CANCELLED
    run.thread.join(SOON)
    assert not run.thread.is_alive()


def test_settings_changed_during_a_pause_apply_to_the_next_step():
    controls = RunControls(GREEDY, 3)
    controls.pause()
    run = Runner(run_with(controls))
    run.next(PrefillDone)
    controls.set_num_draft_tokens(1)
    controls.set_temperature(0.5)
    controls.step_once()
    step = run.next(Step)
    assert (step.num_draft_tokens, step.temperature) == (1, 0.5)
    controls.cancel()


def test_the_text_is_the_same_however_the_run_is_followed():
    straight = play(run_with(RunControls(SamplingParams(1.0), 3))).ids
    controls = RunControls(SamplingParams(1.0), 3)
    controls.set_delay(1.0)
    followed = [event for event in run_with(controls) if isinstance(event, Step)]
    assert [token for step in followed for token in step.emitted] == straight


def test_a_followed_step_shows_its_draft_before_its_verdict_and_at_full_speed_none_does():
    controls = RunControls(GREEDY, 3)
    controls.set_delay(1.0)
    events = [event for event in run_with(controls, 12) if isinstance(event, Drafted | Step)]
    pairs = list(zip(events[::2], events[1::2], strict=False))
    assert pairs
    for drafted, step in pairs[:-1]:
        assert isinstance(drafted, Drafted)
        assert (drafted.index, drafted.position) == (step.index, step.position)
        assert (drafted.drafted, drafted.drafted_texts) == (step.drafted, step.drafted_texts)
    assert not any(isinstance(event, Drafted) for event in run_with(RunControls(GREEDY, 3)))
    assert not any(isinstance(event, Drafted) for event in autoregressive(models()[0], [0], controls=controls.plain()))


def test_a_stop_while_a_draft_is_looked_at_leaves_its_step_undone(monkeypatch):
    monkeypatch.setattr(core.controls, "LOOK_MS", 1000.0 * SOON)
    controls = RunControls(GREEDY, 3)
    controls.pause()
    controls.step_once()
    run = Runner(run_with(controls))
    run.next(Drafted)
    controls.cancel()
    assert run.next(Finished).summary.num_steps == 0


def test_a_resume_while_a_draft_is_looked_at_ends_the_look(monkeypatch):
    monkeypatch.setattr(core.controls, "LOOK_MS", 1000.0 * SOON)
    controls = RunControls(GREEDY, 3)
    controls.pause()
    controls.step_once()
    run = Runner(run_with(controls))
    run.next(Drafted)
    controls.resume()
    assert run.next(Finished).summary.finish_reason is FinishReason.LENGTH


def test_slow_motion_begins_steps_no_closer_than_its_delay(monkeypatch):
    now, waits = [100.0], []
    monkeypatch.setattr(core.controls.time, "monotonic", lambda: now[0])
    gate = RunControls()

    def wait(seconds=None):
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(gate._changed, "wait", wait)
    gate.set_delay(500)
    gate.wait_for_step()
    assert waits == []
    now[0] += 0.2
    gate.wait_for_step()
    assert waits == [pytest.approx(0.3)]
    gate.set_delay(0)
    gate.wait_for_step()
    assert len(waits) == 1


def test_the_baseline_does_not_pause_but_can_be_stopped():
    controls = RunControls(GREEDY, 3)
    controls.pause()
    plain = controls.plain()
    assert len(play(autoregressive(models()[0], [0], controls=plain, max_new_tokens=5)).ids) == 5
    controls.cancel()
    with pytest.raises(Cancelled):
        plain.wait_for_step()
