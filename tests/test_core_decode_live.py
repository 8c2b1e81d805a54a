"""Settings that change during a run, and K chosen by a policy: the text stays the target's."""

import itertools
import math

import pytest

import core.decode
from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.draft_shape import BlockPlan, DraftLengthPolicy
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.errors import GenerationError, SettingsError
from core.settings import Coupling, LengthPolicy, SamplingParams
from core.types import PrefillDone, Step
from tests.exactness import SIGNIFICANCE, always, engine_law_p_value, stops_at_the_unsure
from tests.fakes import fixed_law, play, random_law, table_model
from tests.fakes_decode import GREEDY, plain_ids, tables


def test_k_and_temperature_apply_from_the_next_step_and_are_recorded():
    model = tables()[0]
    controls = RunControls(SamplingParams(1.0, top_k=3), 2)
    seen = []
    for event in speculative(model, model, [0], controls=controls, max_new_tokens=60):
        if not isinstance(event, Step):
            continue
        seen.append((event.num_draft_tokens, event.temperature))
        if len(seen) == 2:
            controls.set_num_draft_tokens(5)
        if len(seen) == 3:
            controls.set_temperature(0.0)
            greedy_from = event.position + len(event.emitted)
        if len(seen) == 5:
            controls.set_num_draft_tokens(0)
        if len(seen) == 6:
            break
    assert seen == [(2, 1.0), (2, 1.0), (5, 1.0), (5, 0.0), (5, 0.0), (0, 0.0)]
    assert greedy_from < 60
    assert controls.sampling.top_k == 3


@pytest.mark.parametrize("k", [-1, 17])
def test_live_settings_out_of_range_change_nothing(k):
    controls = RunControls(SamplingParams(0.5), 3)
    with pytest.raises(SettingsError):
        controls.set_num_draft_tokens(k)
    with pytest.raises(SettingsError):
        controls.set_temperature(-1.0)
    with pytest.raises(SettingsError):
        controls.set_temperature(math.nan)
    assert (controls.num_draft_tokens, controls.sampling.temperature) == (3, 0.5)


def test_a_temperature_that_moves_keeps_greedy_steps_greedy():
    target, draft = tables()
    controls = RunControls(SamplingParams(1.0), 3)
    ids = [0]
    for event in speculative(target, draft, [0], controls=controls, max_new_tokens=80):
        if isinstance(event, Step):
            for token in event.emitted:
                if event.temperature == 0.0:
                    assert token == int(target.law(ids).argmax())
                ids.append(token)
            controls.set_temperature(0.0 if controls.sampling.temperature else 1.0)


FILTERED = SamplingParams(0.8, 4, 0.9, 0.02)


class StopsWhereUnsure(DraftLengthPolicy):
    """A policy that looks at no clock, so that its texts are the same everywhere."""

    def plan(self, length):
        return BlockPlan(4, stops_at_the_unsure)


@pytest.mark.parametrize("coupling", Coupling)
def test_the_loop_keeps_the_distribution_where_blocks_end_by_what_was_drawn(coupling, monkeypatch):
    monkeypatch.setattr(core.decode, "DraftLengthPolicy", StopsWhereUnsure)
    assert engine_law_p_value(speculative, sampling=FILTERED, coupling=coupling) > SIGNIFICANCE


def sharp_tables():
    return table_model(random_law(8, 1, scale=2), 8), table_model(random_law(8, 1, scale=1.5), 8)


@pytest.mark.parametrize("settings", [{"sampling": SamplingParams(0.0)}, {"coupling": Coupling.GUMBEL, "seed": 3}])
def test_adaptive_drafts_and_the_text_is_that_of_plain_decoding(settings):
    target, draft = sharp_tables()
    plain = play(autoregressive(target, [0], max_new_tokens=150, **settings))
    length = {"num_draft_tokens": LengthPolicy.ADAPTIVE, "max_new_tokens": 150}
    run = play(speculative(target, draft, [0], **length, **settings))
    assert run.ids == plain.ids
    assert run.summary.num_drafts > 0


def test_the_policy_may_change_in_the_middle_of_a_run():
    target, draft = sharp_tables()
    controls, asked, count = RunControls(SamplingParams(0.0), 3), [], 0
    plain = play(autoregressive(target, [0], max_new_tokens=120, sampling=SamplingParams(0.0))).ids

    class Watched(DraftModelDrafter):
        def propose(self, context):
            asked.append(context.keep_drafting is not None)
            return super().propose(context)

    ids = []
    for event in speculative(target, Watched(draft), [0], controls=controls, max_new_tokens=120):
        if isinstance(event, PrefillDone):
            assert not asked
        if isinstance(event, Step):
            ids += event.emitted
            count += 1
            lengths = (2, LengthPolicy.ADAPTIVE, LengthPolicy.AUTO)
            controls.set_num_draft_tokens(lengths[count // 6 % 3])
    assert ids == plain
    assert {True, False} == set(asked)
    assert not any(asked[:5])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_says_no_number_is_named_for_it(temperature):
    target, _ = sharp_tables()
    draft = table_model(fixed_law([float("nan")] * 8), 8)
    length = {"num_draft_tokens": LengthPolicy.ADAPTIVE}
    with pytest.raises(GenerationError, match="draft's logits"):
        play(speculative(target, draft, [0], sampling=SamplingParams(temperature), **length))


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
