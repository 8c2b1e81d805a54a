"""Times are split as they passed, and the length that the engine chooses follows from them."""

import itertools

import pytest

from core.decode import speculative
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.types import LengthPolicy, SamplingParams
from tests.exactness import SIGNIFICANCE, always, engine_law_p_value
from tests.fakes import play, table_model
from tests.fakes_decode import GREEDY, plain_ids, tables


@pytest.fixture
def clock(monkeypatch):
    """Time that passes in forwards only: `clock.charge` says what those of a model take."""

    class Clock:
        now = 0.0

        def __init__(self, device) -> None:
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
    monkeypatch.setattr("core.decode.StepClock", Clock)
    monkeypatch.setattr("core.decode.Stopwatch", Clock)
    return Clock


def test_the_chosen_length_keeps_the_text_exact():
    target, draft = tables()
    expected = plain_ids(target, count=120, sampling=GREEDY)
    for drafter in (draft, table_model(target.law, 8), PromptLookupDrafter(), always([1, 2])):
        run = play(
            speculative(target, drafter, [0], num_draft_tokens=LengthPolicy.AUTO, sampling=GREEDY, max_new_tokens=120)
        )
        assert run.ids == expected
    p_value = engine_law_p_value(
        speculative, sampling=SamplingParams(0.9, top_k=5), num_draft_tokens=LengthPolicy.AUTO, blocks=1_000
    )
    assert p_value > SIGNIFICANCE


def test_a_hopeless_and_costly_draft_is_soon_left_alone(clock):
    target, _ = tables()
    wrong = table_model(lambda ids: -target.law(ids) * 4, 8)
    clock.charge(target, 10.0)
    clock.charge(wrong, 9.0)
    run = play(speculative(target, wrong, [0], num_draft_tokens=LengthPolicy.AUTO, sampling=GREEDY, max_new_tokens=400))
    lengths = [step.num_draft_tokens for step in run.steps]
    assert lengths[0] > 0
    assert lengths[1:10] == [0] * 9
    # It looks again now and then, as seldom as the share of the time that looking may cost demands.
    probes = [index for index, length in enumerate(lengths) if length and index]
    assert probes
    assert min(later - earlier for earlier, later in itertools.pairwise([0, *probes])) >= 10
    assert sum(step.total_ms for step in run.steps) < 1.05 * 10.0 * 400


def test_a_free_and_perfect_draft_is_used_in_full(clock):
    target, _ = tables()
    clock.charge(target, 10.0)
    draft = table_model(target.law, 8)
    clock.charge(draft, 0.1)
    run = play(speculative(target, draft, [0], num_draft_tokens=LengthPolicy.AUTO, max_new_tokens=400))
    assert max(step.num_draft_tokens for step in run.steps) >= 12
    assert run.summary.block_efficiency > 8


def test_times_are_split_as_they_passed(clock):
    target, _ = tables()
    clock.charge(target, 10.0)
    draft = table_model(target.law, 8)
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
