"""Above temperature 0 the text follows the target's filtered law, and with Gumbel coupling is plain sampling's."""

import pytest

from core.decode import speculative
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.sampling import probabilities
from core.types import Coupling, LengthPolicy, SamplingParams
from tests.exactness import SIGNIFICANCE, engine_law_p_value, global_generator_untouched
from tests.fakes import play, tiny_model
from tests.fakes_decode import PROMPT, plain_ids, tables


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize(
    ("sampling", "num_draft_tokens"),
    [
        (SamplingParams(), 3),
        (SamplingParams(0.6, top_k=3), 1),
        (SamplingParams(1.4, top_p=0.7), 4),
        (SamplingParams(0.9, top_k=4, top_p=0.8, min_p=0.1), 2),
    ],
)
def test_three_tokens_follow_the_filtered_law_together(coupling, sampling, num_draft_tokens):
    p_value = engine_law_p_value(
        speculative, sampling=sampling, coupling=coupling, num_draft_tokens=num_draft_tokens, seed=num_draft_tokens
    )
    assert p_value > SIGNIFICANCE


@pytest.mark.parametrize("coupling", Coupling)
def test_nothing_outside_the_support_is_emitted(coupling):
    sampling = SamplingParams(1.5, top_k=2)
    target, draft = tables()
    run = play(speculative(target, draft, [0], sampling=sampling, max_new_tokens=600, coupling=coupling, seed=3))
    ids = [0, *run.ids]
    for index in range(1, len(ids)):
        assert probabilities(target.law(ids[:index]), sampling)[ids[index]] > 0


@pytest.mark.parametrize("method", ["draft model", "n-gram", "equal"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_gumbel_coupled_text_is_that_of_plain_sampling_with_the_same_seed(method, temperature):
    target, draft = tables()
    sampling = SamplingParams(temperature, top_k=6, top_p=0.95)
    for seed in range(3):
        settings = {"sampling": sampling, "seed": seed, "coupling": Coupling.GUMBEL}
        expected = plain_ids(target, count=60, **settings)
        for num_draft_tokens in (1, 2, 5, 16, LengthPolicy.AUTO):
            drafter = {"draft model": draft, "n-gram": PromptLookupDrafter(), "equal": target}[method]
            run = play(
                speculative(target, drafter, [0], num_draft_tokens=num_draft_tokens, max_new_tokens=60, **settings)
            )
            assert run.ids == expected
            if method == "equal":
                assert run.summary.num_accepted_tokens == run.summary.num_draft_tokens > 0
    if temperature:
        assert plain_ids(target, count=60, sampling=sampling, seed=8, coupling=Coupling.GUMBEL) != expected


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "module"])
def test_gumbel_coupled_text_of_real_models_is_that_of_plain_sampling(is_fused):
    target, draft = tiny_model("llama", is_fused=is_fused), tiny_model("llama", 1)
    settings = {"sampling": SamplingParams(0.8, 50, 0.95), "seed": 5, "coupling": Coupling.GUMBEL}
    expected = plain_ids(target, PROMPT, 60, **settings)
    run = play(speculative(target, draft, PROMPT, num_draft_tokens=5, max_new_tokens=60, **settings))
    assert run.ids == expected


@pytest.mark.parametrize("coupling", Coupling)
def test_a_draft_equal_to_its_target_accepts_everything(coupling):
    sampling = SamplingParams(1.1, top_k=5, top_p=0.9)
    model = tables()[0]
    run = play(speculative(model, model, [0], sampling=sampling, max_new_tokens=200, seed=1, coupling=coupling))
    assert run.summary.draft_acceptance_rate == 1.0
    for step in run.steps:
        assert step.expected_acceptance == pytest.approx((1.0,) * step.num_draft_tokens, abs=1e-6)


@pytest.mark.parametrize("coupling", Coupling)
def test_the_seed_decides_the_text_and_the_global_generator_nothing(coupling):
    target, draft = tables()
    with global_generator_untouched():
        texts = [
            play(speculative(target, draft, [0], max_new_tokens=50, seed=seed, coupling=coupling)).ids
            for seed in (1, 1, 2, 2**63 - 1)
        ]
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 3
