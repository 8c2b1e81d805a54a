"""Pairs whose tables differ in size: padding is never emitted, missing ids do no harm, strangers are refused."""

import pytest

from core.decode import speculative
from core.drafters.draft_model import DraftModelDrafter
from core.errors import PairMismatchError
from core.types import Coupling, SamplingParams
from tests.fakes import byte_tokenizer, greedy_reference, is_sentence, language_model, play, tiny_model, tiny_module
from tests.fakes_decode import GREEDY, PROMPT, plain_ids


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
