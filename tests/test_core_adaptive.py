"""Blocks that end where the draft is unsure: the text is the target's, in the whole loop and with real policies."""

import pytest

import core.decode
from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.draft_shape import BlockPlan, DraftLengthPolicy
from core.drafters.draft_model import DraftModelDrafter
from core.errors import GenerationError
from core.types import Coupling, LengthPolicy, PrefillDone, SamplingParams, Step
from tests.exactness import SIGNIFICANCE, engine_law_p_value, stops_at_the_unsure
from tests.fakes import fixed_law, play, random_law, table_model

FILTERED = SamplingParams(0.8, 4, 0.9, 0.02)


class StopsWhereUnsure(DraftLengthPolicy):
    """A policy that looks at no clock, so that its texts are the same everywhere."""

    def plan(self, length):
        return BlockPlan(4, stops_at_the_unsure)


@pytest.mark.parametrize("coupling", Coupling)
def test_the_loop_keeps_the_law_where_blocks_end_by_what_was_drawn(coupling, monkeypatch):
    monkeypatch.setattr(core.decode, "DraftLengthPolicy", StopsWhereUnsure)
    assert engine_law_p_value(speculative, sampling=FILTERED, coupling=coupling) > SIGNIFICANCE


def tables():
    return table_model(random_law(8, 1, scale=2), 8), table_model(random_law(8, 1, scale=1.5), 8)


@pytest.mark.parametrize("settings", [{"sampling": SamplingParams(0.0)}, {"coupling": Coupling.GUMBEL, "seed": 3}])
def test_adaptive_drafts_and_the_text_is_that_of_plain_decoding(settings):
    target, draft = tables()
    plain = play(autoregressive(target, [0], max_new_tokens=150, **settings))
    length = {"num_draft_tokens": LengthPolicy.ADAPTIVE, "max_new_tokens": 150}
    run = play(speculative(target, draft, [0], **length, **settings))
    assert run.ids == plain.ids
    assert run.summary.num_drafts > 0


def test_the_policy_may_change_in_the_middle_of_a_run():
    target, draft = tables()
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
    target, _ = tables()
    draft = table_model(fixed_law([float("nan")] * 8), 8)
    length = {"num_draft_tokens": LengthPolicy.ADAPTIVE}
    with pytest.raises(GenerationError, match="draft's logits"):
        play(speculative(target, draft, [0], sampling=SamplingParams(temperature), **length))
