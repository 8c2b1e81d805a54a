"""When a run's evidence is computed: late while it is not shown, at once while it is, never too late."""

import itertools
import threading

import pytest
import torch

import core.decode
from core.controls import RunControls
from core.decode import speculative
from core.drafters.base import chain
from core.errors import GenerationError, OutOfMemoryError
from core.settings import SamplingParams
from core.types import Drafted, Finished, Inspected, Step, TokenKind, Verification
from core.verify.backlog import EvidenceBacklog
from tests.fakes import LetterTokenizer, ScriptDrafter, failing, play
from tests.test_core_evidence import pair


def events(controls: RunControls, count: int = 40):
    target, draft = pair()
    return speculative(target, draft, [0, 1], max_new_tokens=count, inspect=True, seed=5, controls=controls)


def kinds(run) -> list[tuple[str, int]]:
    return [(type(event).__name__, event.index) for event in run if isinstance(event, Step | Inspected)]


def test_at_full_speed_it_follows_the_last_step_in_the_steps_order():
    seen = list(events(RunControls(SamplingParams())))
    num_steps = sum(isinstance(event, Step) for event in seen)
    assert kinds(seen) == [(name, index) for name in ("Step", "Inspected") for index in range(num_steps)]
    assert isinstance(seen[-1], Finished)


def test_where_somebody_looks_it_comes_before_the_next_step():
    controls = RunControls(SamplingParams())
    controls.is_inspected = True
    seen = kinds(events(controls))
    assert seen[:4] == [("Step", 0), ("Inspected", 0), ("Step", 1), ("Inspected", 1)]


def test_what_is_left_when_somebody_begins_to_look_comes_in_portions():
    controls = RunControls(SamplingParams())
    seen = []
    for event in events(controls, 100):
        seen.append(event)
        if isinstance(event, Step) and event.index == 20:
            controls.is_inspected = True
    names = [name for name, _ in kinds(seen)]
    portions = [len(list(group)) for name, group in itertools.groupby(names) if name == "Inspected"]
    assert portions[:2] == [core.decode._CATCH_UP] * 2
    looked_at = [index for name, index in kinds(seen) if name == "Inspected"]
    assert looked_at == list(range(names.count("Step")))


def test_too_much_that_waits_is_looked_at_between_steps(monkeypatch):
    monkeypatch.setattr("core.verify.backlog._MAX_BYTES", 1)
    seen = kinds(events(RunControls(SamplingParams())))
    assert seen[:4] == [("Step", 0), ("Inspected", 0), ("Step", 1), ("Inspected", 1)]


def test_a_run_that_is_held_looks_at_everything_while_it_waits():
    controls = RunControls(SamplingParams())
    run = events(controls)
    seen = list(itertools.takewhile(lambda event: not isinstance(event, Step) or event.index < 3, run))
    controls.pause()
    seen = [next(run) for _ in range(4)]
    assert [(type(event), event.index) for event in seen] == [(Inspected, index) for index in range(4)]
    threading.Timer(0.05, controls.step_once).start()
    assert isinstance(next(run), Drafted)


def test_a_run_that_is_stopped_still_reports_what_it_has_kept():
    controls = RunControls(SamplingParams())
    seen = []
    for event in events(controls):
        seen.append(event)
        if isinstance(event, Step) and event.index == 4:
            controls.cancel()
    assert kinds(seen) == [(name, index) for name in ("Step", "Inspected") for index in range(5)]


def collect(run, seen: list) -> None:
    """What came before an error is kept as well."""
    seen.extend(run)


def failing_at(monkeypatch, index: int, error: Exception):
    commit = core.decode._Run._commit

    def fail(run, block):
        if run._tally.num_steps == index:
            raise error
        return commit(run, block)

    monkeypatch.setattr(core.decode._Run, "_commit", fail)


def test_a_run_that_fails_reports_what_was_said_before(monkeypatch):
    failing_at(monkeypatch, 3, GenerationError("NaN"))
    seen = []
    with pytest.raises(GenerationError):
        collect(events(RunControls()), seen)
    assert kinds(seen) == [(name, index) for name in ("Step", "Inspected") for index in range(3)]


def test_a_device_that_can_not_be_looked_at_any_more_does_not_hide_what_went_wrong(monkeypatch):
    failing_at(monkeypatch, 3, RuntimeError("an illegal memory access"))
    monkeypatch.setattr(EvidenceBacklog, "look", failing(RuntimeError("the device is gone")))
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        list(events(RunControls()))


@pytest.mark.parametrize("error", [OutOfMemoryError("full"), RuntimeError("CUDA error: out of memory")])
def test_where_memory_ran_out_nothing_more_is_looked_at(monkeypatch, error):
    failing_at(monkeypatch, 3, error)
    seen = []
    with pytest.raises(type(error)):
        collect(events(RunControls()), seen)
    assert {name for name, _ in kinds(seen)} == {"Step"}


def test_late_evidence_is_the_same_as_evidence_at_once():
    def seen(inspected: bool):
        controls = RunControls(SamplingParams())
        controls.is_inspected = inspected
        return play(events(controls, 60)).steps

    late, at_once = seen(False), seen(True)
    assert [step.evidence for step in late] == [step.evidence for step in at_once]
    assert all(step.evidence for step in late)


def put(backlog: EvidenceBacklog, vocab_size: int) -> tuple[torch.Tensor, ...]:
    """Put a rejected token into it, and return the tensors that it was given."""
    rejected = Verification(num_accepted=0, next_token=1, next_kind=TokenKind.CORRECTION)
    target_probs = torch.full((2, vocab_size), 1 / vocab_size)
    draft = chain(torch.tensor([0]), target_probs[:1].clone())
    backlog.put(0, draft, (-1,), target_probs, rejected, (0,), has_next=True)
    return draft.tokens, draft.probs, target_probs


def test_a_row_that_is_not_looked_at_is_not_held(monkeypatch):
    row = 1000 * 4
    monkeypatch.setattr("core.verify.backlog._MAX_BYTES", 2 * row)
    backlog = EvidenceBacklog(LetterTokenizer(40))
    put(backlog, 1000)
    assert not backlog.is_full
    put(backlog, 1000)
    assert backlog.is_full


def test_what_writes_to_a_rounds_tensors_afterwards_changes_no_evidence():
    expected, backlog = (EvidenceBacklog(LetterTokenizer(40)) for _ in range(2))
    put(expected, 40)
    for tensor in put(backlog, 40):
        tensor.fill_(0)
    assert backlog.look() == expected.look()


def test_a_drafter_that_keeps_its_tokens_in_one_place_does_not_change_what_waits():
    at = torch.zeros(4, dtype=torch.int64)

    class Buffered(ScriptDrafter):
        def propose(self, context):
            draft = super().propose(context)
            return chain(at[: len(draft)].copy_(draft.tokens), None)

    def seen(kind):
        drafter = kind(lambda ids, count: [(ids[-1] + 1) % 5 for _ in range(count)])
        sampling = SamplingParams()
        run = speculative(pair()[0], drafter, [0, 1], max_new_tokens=40, inspect=True, seed=5, sampling=sampling)
        return [step.evidence for step in play(run).steps]

    assert seen(Buffered) == seen(ScriptDrafter)
