"""The contenders of the bench: each writes what was asked for, and leaves the models as they were."""

from dataclasses import replace

import pytest
import torch

from core.errors import SettingsError
from core.experiments import benching as lineup
from core.experiments.bench import (
    ASSISTED,
    AUTO,
    FLASHSPEC,
    FLASHSPEC_AUTO,
    GENERATE,
    PLAIN,
    NotApplicableError,
    Pair,
    default_names,
    known_names,
    split_name,
)
from core.experiments.benching import Plain, Speculative, counted, line_up
from core.experiments.rivals import Assisted, Generate
from tests.exactness import global_generator_untouched
from tests.fakes import greedy_reference, is_sentence, language_model, tiny_model, tiny_module
from tests.fakes_bench import PROMPTS, REAL, SETTINGS, K, N, small_pair


@pytest.fixture(scope="module")
def pair():
    return small_pair()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", REAL)
def test_every_contender_writes_the_number_of_tokens_asked_for(pair, name, temperature):
    contender = lineup.build(name, pair, SETTINGS)
    with global_generator_untouched():
        timed = contender.run(PROMPTS[0].ids, temperature=temperature, seed=3)
    assert len(timed.ids) == N
    assert timed.seconds > 0
    if temperature == 0.0:
        assert list(timed.ids) == greedy_reference(pair.target, PROMPTS[0].ids, N)


@pytest.mark.parametrize("name", [GENERATE, ASSISTED, PLAIN, "draft-model"])
def test_an_end_of_text_ends_nobody(name):
    """Every id ends a text here, in the models' own configurations too."""
    module = tiny_module("llama", seed=1, eos_token_id=list(range(257)))
    target = language_model(module)
    assert target.eos_ids
    free = Pair(replace(target, eos_ids=frozenset()), target)
    contender = lineup.build(name, free, SETTINGS)
    assert len(contender.run((1, 2, 3), temperature=0.0, seed=0).ids) == N


@pytest.mark.parametrize("name", [GENERATE, ASSISTED, PLAIN, "draft-model"])
def test_a_seed_is_a_text(pair, name):
    contender = lineup.build(name, pair, SETTINGS)
    texts = [contender.run(PROMPTS[0].ids, temperature=1.0, seed=seed).ids for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_the_rivals_leave_the_models_as_they_were(pair):
    modules = [pair.target.model, pair.draft.model]
    before = [(module.generation_config, module.generation_config.to_dict()) for module in modules]
    contender = Assisted(pair, N, K)
    for temperature in (0.0, 1.0):
        contender.run(PROMPTS[0].ids, temperature=temperature, seed=0)
    with pytest.raises(IndexError):  # An id that no table holds.
        contender.run((10**9,), temperature=0.0, seed=0)
    for module, (config, values) in zip(modules, before, strict=True):
        assert module.generation_config is config
        assert config.to_dict() == values


def test_assisted_generation_drafts_k_tokens_however_well_it_goes(pair):
    """By itself it would draft more after a block that was accepted whole, and stop where it doubts itself."""
    twin = Pair(pair.target, language_model(tiny_module("llama", seed=1)))
    with counted(pair.target.model) as forwards:
        Assisted(twin, 41, 3).run((1, 2, 3), temperature=0.0, seed=0)
    # The prompt and a block, then a block behind the last token each time, and what is left.
    assert forwards.widths == [3 + 3, *[1 + 3] * 9, 1]


def test_generation_samples_from_the_whole_distribution():
    """transformers would keep 50 ids where top-k is not named; half of these texts have another first token."""
    target = tiny_model(seed=5)
    contender = Generate(Pair(target, None), 1)
    logits = target.model(torch.tensor([[1, 2, 3]])).logits[0, -1] / 8.0
    top = set(logits.topk(50).indices.tolist())
    drawn = [contender.run((1, 2, 3), temperature=8.0, seed=seed).ids[0] for seed in range(40)]
    assert any(token not in top for token in drawn)


def test_forwards_are_counted_by_a_hook_that_goes_away(pair):
    module = pair.target.model
    with counted(module) as forwards:
        Generate(pair, N).run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert forwards.widths == [len(PROMPTS[0].ids), *[1] * (N - 1)]
    module(torch.tensor([[1]]))
    assert len(forwards.widths) == N


def test_our_own_forwards_are_our_steps(pair):
    timed = Plain(pair, N).run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert (timed.num_forwards, timed.longest_draft) == (N, 0)
    timed = Speculative(Pair(pair.target, pair.target), N, K, "draft-model").run((1, 2), temperature=0.0, seed=0)
    assert (timed.num_forwards, timed.longest_draft) == (3, K)


@pytest.mark.parametrize("name", [FLASHSPEC, FLASHSPEC_AUTO])
def test_flashspec_runs_where_it_is_installed(pair, name):
    pytest.importorskip("flashspec")
    contender = lineup.build(name, pair, SETTINGS)
    with counted(pair.target.model) as forwards:
        timed = contender.run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert list(timed.ids) == greedy_reference(pair.target, PROMPTS[0].ids, N)
    assert timed.num_forwards == len(forwards.widths) - 1  # What it says of itself, but for the prompt's.
    assert name == FLASHSPEC_AUTO or timed.longest_draft == K
    texts = [contender.run(PROMPTS[0].ids, temperature=1.0, seed=seed).ids for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]
    assert len(texts[0]) == N


def test_an_assistant_with_another_table_is_turned_away(pair):
    other = language_model(tiny_module("llama", vocab_size=300))
    with pytest.raises(NotApplicableError, match="257"):
        Assisted(Pair(pair.target, other), N, K)


def test_without_a_draft_those_that_need_one_are_absent(pair):
    present, absent = line_up(Pair(pair.target, None), SETTINGS)
    names = {contender.name for contender in present}
    assert {GENERATE, PLAIN, "prompt-lookup", AUTO} <= names
    assert {ASSISTED, "draft-model"} <= {item.name for item in absent}
    assert all(is_sentence(item.reason) for item in absent)


def test_who_was_asked_for_and_can_not_come_is_an_error(pair):
    with pytest.raises(SettingsError, match="assisted can't take part"):
        line_up(Pair(pair.target, None), replace(SETTINGS, only=(PLAIN, ASSISTED)))


def test_only_those_that_are_named_run_in_that_order(pair):
    present, absent = line_up(pair, replace(SETTINGS, only=(AUTO, GENERATE)))
    assert [contender.name for contender in present] == [AUTO, GENERATE]
    assert absent == []


def test_options_stand_behind_a_method():
    assert split_name("prompt-lookup:max-ngram=5:min-ngram=2") == ("prompt-lookup", {"max_ngram": 5, "min_ngram": 2})
    assert set(known_names()) <= set(default_names())
    for name in default_names():
        split_name(name)


def test_options_reach_the_contender(pair):
    contender = lineup.build("prompt-lookup:max-ngram=5", pair, SETTINGS)
    assert (contender.name, contender.title) == ("prompt-lookup:max-ngram=5", "prompt lookup, max-ngram=5")
