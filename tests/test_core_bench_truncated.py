"""A draft made of its target's first layers: the tables are shared, the layers and hooks are its own."""

import pytest
import torch

from core.errors import SettingsError
from core.experiments.bench import Pair
from core.experiments.benching import counted
from core.experiments.rivals import Assisted, truncated_draft
from tests.fakes import greedy_reference, tiny_model
from tests.fakes_bench import K, N, small_pair


@pytest.fixture(scope="module")
def pair():
    return small_pair()


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gemma3_text", "qwen3"])
def test_a_truncated_draft_has_the_first_layers_and_shares_the_tables(family):
    target = tiny_model(family)
    most = target.model.config.num_hidden_layers
    draft = truncated_draft(target, 1)
    assert draft.model.config.num_hidden_layers == 1
    assert target.model.config.num_hidden_layers == most
    assert draft.model.get_input_embeddings() is target.model.get_input_embeddings()
    assert draft.model.get_output_embeddings() is target.model.get_output_embeddings()
    assert sum(1 for _ in draft.model.parameters()) < sum(1 for _ in target.model.parameters())
    timed = Assisted(Pair(target, draft), N, K).run((1, 2, 3), temperature=0.0, seed=0)
    assert list(timed.ids) == greedy_reference(target, (1, 2, 3), N)


def test_with_all_layers_it_is_the_target(pair):
    draft = truncated_draft(pair.target, 2)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.allclose(draft.model(ids).logits, pair.target.model(ids).logits, atol=1e-5)
    own = {id(parameter) for layer in draft.model.model.layers for parameter in layer.parameters()}
    assert not own & {id(parameter) for parameter in pair.target.model.parameters()}


def test_a_hook_on_the_target_does_not_hear_its_truncated_draft(pair):
    draft = truncated_draft(pair.target, 1)
    with counted(pair.target.model) as forwards:
        draft.model(torch.tensor([[1]]))
    assert forwards.widths == []


@pytest.mark.parametrize("count", [0, -1, 3])
def test_more_layers_than_there_are_is_a_sentence(pair, count):
    with pytest.raises(SettingsError, match="from 1 to 2"):
        truncated_draft(pair.target, count)
