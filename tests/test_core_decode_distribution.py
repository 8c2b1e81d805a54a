"""Above temperature 0 the text follows the filtered distribution; with Gumbel coupling it is plain sampling's."""

import pytest

from core.decode import speculative
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.errors import PairMismatchError
from core.runlog.log import SUMMARY_FIELDS, to_record
from core.sampling import probabilities
from core.settings import Coupling, LengthPolicy, SamplingParams
from core.types import Finished
from tests.exactness import SIGNIFICANCE, engine_law_p_value, global_generator_untouched
from tests.fakes import (
    byte_tokenizer,
    greedy_reference,
    is_sentence,
    language_model,
    play,
    random_law,
    table_model,
    tiny_model,
    tiny_module,
)
from tests.fakes_decode import GREEDY, PROMPT, plain_ids, tables


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
def test_three_tokens_follow_the_filtered_distribution_together(coupling, sampling, num_draft_tokens):
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


SAMPLING = SamplingParams(0.9, top_k=12)


def run(coupling: Coupling, seed: int):
    models = [table_model(random_law(16, law, scale=2), 16) for law in (1, 2)]
    return play(speculative(*models, [0], num_draft_tokens=3, sampling=SAMPLING, max_new_tokens=2000, seed=seed,
                            coupling=coupling)).summary  # fmt: skip


def test_what_a_coupled_run_expects_of_rejection_is_what_rejection_does():
    coupled = [run(Coupling.GUMBEL, seed) for seed in range(2)]
    rejecting = [run(Coupling.REJECTION, seed) for seed in range(2)]

    def mean(summaries, name: str) -> float:
        return sum(getattr(summary, name) for summary in summaries) / len(summaries)

    reached = mean(rejecting, "draft_acceptance_rate")
    assert mean(coupled, "expected_acceptance_rate") == pytest.approx(reached, abs=0.03)
    assert mean(rejecting, "expected_acceptance_rate") == pytest.approx(reached, abs=0.03)
    # Coupling by shared noise keeps less, which is the price that is shown.
    assert mean(coupled, "draft_acceptance_rate") < mean(coupled, "expected_acceptance_rate") - 0.01


def test_the_log_holds_the_figure_after_the_older_fields():
    record = to_record(Finished(run(Coupling.GUMBEL, 5)))
    assert record is not None
    assert list(record)[1 : 1 + len(SUMMARY_FIELDS)] == list(SUMMARY_FIELDS)
    assert 0.0 < record["expected_acceptance_rate"] < 1.0


def test_a_draft_goes_quiet_at_an_id_that_it_lacks():
    target, draft = tiny_model(vocab_size=257), tiny_model(seed=1, vocab_size=250)
    for prompt in ([5, 252, 7], [5, 6, 7]):
        drafter = DraftModelDrafter(draft)
        run = play(speculative(target, drafter, prompt, num_draft_tokens=3, max_new_tokens=8, sampling=GREEDY))
        assert run.ids == greedy_reference(target, prompt, 8)
        assert bool(run.summary.num_draft_tokens) is (252 not in prompt)


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_padding_of_the_tables_is_never_emitted(coupling, temperature):
    target, draft = tiny_model(vocab_size=300), tiny_model(seed=1, vocab_size=272)
    # The padding would win every time, were it not masked.
    target.model.lm_head.weight.data[257:] *= 50
    draft.model.lm_head.weight.data[257:] *= 50
    sampling = SamplingParams(temperature)
    for models in ((target, draft), (draft, target), (target, target)):
        run = play(speculative(*models, PROMPT, sampling=sampling, max_new_tokens=60, coupling=coupling))
        assert len(run.ids) == 60
        assert max(run.ids) < 257
        assert max(max(step.drafted, default=0) for step in run.steps) < 257
        if temperature == 0.0:
            assert run.ids == plain_ids(models[0], PROMPT, 60, sampling=sampling)
            if models[0] is models[1]:
                assert run.summary.draft_acceptance_rate == 1.0


def test_a_draft_whose_table_lacks_the_last_ids_still_serves_exactly():
    target, draft = tiny_model(vocab_size=257), tiny_model(seed=1, vocab_size=250)
    assert draft.vocab_size == 250
    run = play(speculative(target, draft, PROMPT, sampling=GREEDY, max_new_tokens=60))
    assert run.ids == greedy_reference(target, PROMPT, 60)


def test_models_whose_tokenizers_differ_are_refused():
    other = language_model(tiny_module("llama"), byte_tokenizer(specials=("<other>",)))
    with pytest.raises(PairMismatchError, match="id 256") as caught:
        speculative(tiny_model(), other, PROMPT)
    assert is_sentence(str(caught.value))
