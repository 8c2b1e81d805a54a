"""Greedy text in float32 is that of transformers' plain `generate`, token for token, for every architecture in use."""

import functools
from dataclasses import replace

import pytest
import torch

from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.draft_tree import DraftTreeDrafter
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.drafters.registry import DraftTreeOptions
from core.errors import SettingsError
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.models.language_model import LanguageModel
from core.models.loading import load
from core.runners import llama
from core.runners.base import tree_rows
from core.runners.forward_choice import reads_trees
from core.settings import SamplingParams
from tests.fakes import greedy_reference, language_model, play, tiny_module
from tests.families import (
    ARCHITECTURES,
    WINDOW,
    WINDOWED,
    architecture,
    architecture_module,
    make_drafter,
    plans,
    prompt,
    relative,
)

LENGTH = 60
GREEDY = {"sampling": SamplingParams(0.0), "max_new_tokens": LENGTH}


@functools.cache
def spoken(name: str, length: int) -> list[int]:
    """What `generate` adds to an architecture's prompt of this length."""
    text = greedy_reference(architecture(name), prompt(length), LENGTH)
    assert len(text) == LENGTH
    return text


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_texts_are_those_of_transformers(name):
    """The speculative text behind each prompt, and two plain ones: one fused, where it can be, and one not."""
    can_fuse = llama.supports(architecture(name).model)
    for number, (ids, kind, k, is_fused) in enumerate(plans(name)):
        target, text = architecture(name, is_fused=is_fused and can_fuse), spoken(name, len(ids))
        if number in {1, 2}:
            assert play(autoregressive(target, ids, **GREEDY)).ids == text
        run = play(speculative(target, make_drafter(kind, name), ids, num_draft_tokens=k, **GREEDY))
        assert run.ids == text, (kind, k)
        if kind == "itself":
            assert run.summary.draft_acceptance_rate == 1.0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_texts_are_worth_comparing(name):
    """They don't collapse into a token or two, relatives agree now and then, and windows are what decides them."""
    target, start, text = architecture(name), prompt(30), spoken(name, 30)
    assert len(set(text[LENGTH // 2 :])) >= 8
    run = play(speculative(target, relative(name), start, num_draft_tokens=1, **GREEDY))
    assert 0.3 < run.summary.draft_acceptance_rate < 0.99
    if name in WINDOWED:
        assert len(start) + LENGTH > 2 * WINDOW
        unbounded = language_model(architecture_module(name, sliding_window=10 * LENGTH))
        assert greedy_reference(unbounded, start, LENGTH) != text


# --- Trees, and where a module counts otherwise --------------------------------------------------------------------

_WIDTHS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
_CHUNKS = {
    **_WIDTHS, "num_key_value_heads": 2, "head_dim": 8, "attention_chunk_size": 16, "intermediate_size_mlp": 48,
    "num_local_experts": 2, "layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0],
}  # fmt: skip
_LOCAL = {"num_layers": 2, "num_heads": 4, "hidden_size": 32, "attention_types": [[["global", "local"], 1]]}
NO_TREES = {
    "mamba2": {"hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "num_hidden_layers": 2,
               "n_groups": 1},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "bloom": {"n_layer": 2, "n_head": 4, "hidden_size": 32},
    "gpt_neo": _LOCAL,
}  # fmt: skip
"""Modules with a state, or that take places in the cache for positions."""


@pytest.mark.parametrize("name", NO_TREES)
def test_a_module_that_would_read_a_tree_wrongly_says_that_it_reads_none(name):
    model = language_model(tiny_module(name, **NO_TREES[name]))
    model.can_branch = reads_trees(model)
    with pytest.raises(SettingsError, match="several candidates for one position"):
        model.runner(8, spare=4).forward(torch.tensor([1, 2]), num_logits=2, tree=tree_rows([-1], 0, 2))


def test_a_tree_across_chunks_of_attention_gives_the_text_of_a_chain():
    target = language_model(tiny_module("llama4_text", **_CHUNKS))
    assert reads_trees(target)
    text = play(autoregressive(target, prompt(40), **GREEDY)).ids
    tree = DraftTreeDrafter(DrafterSetup(target, target), DraftTreeOptions(depth=4, branching=3))
    assert play(speculative(target, tree, prompt(40), num_draft_tokens=12, **GREEDY)).ids == text


def test_positions_that_begin_after_that_of_padding():
    model = language_model(tiny_module("roberta", **_WIDTHS, is_decoder=True, pad_token_id=1))
    assert model.context_length == model.model.config.max_position_embeddings - 2
    ids = torch.arange(2, 22)  # Without that of padding, which such a model gives no position.
    with torch.inference_mode():
        expected = model.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
    assert torch.allclose(model.runner(20).forward(ids, num_logits=20).logits, expected, atol=1e-4)


EMBEDDED_PROMPTS = {"def fibonacci(n):\n": (1, 4), "Once upon a time": (3, 8), '"""Reads a file.\n\n': (4, 16)}
"""Each with the lengths of drafts that it is spoken on with."""


@functools.cache
def embedded() -> tuple[LanguageModel, LanguageModel]:
    """Target and draft of the embedded pair in float32, and, as `load` chooses, through the fused forward."""
    target = load(DEFAULT_TARGET, "cpu", "float32")
    return target, load(DEFAULT_DRAFT, "cpu", "float32", target=target)


@pytest.mark.slow
@pytest.mark.parametrize("text", EMBEDDED_PROMPTS, ids=["code", "prose", "docstring"])
def test_texts_of_the_embedded_pair_are_those_of_transformers(text):
    target, draft = embedded()
    ids = target.tokenizer(text)["input_ids"]
    greedy = {**GREEDY, "max_new_tokens": 40}
    expected = greedy_reference(target, ids, 40)
    plain = play(autoregressive(target, ids, **greedy)).ids
    assert len(plain) == 40, "this prompt ends too soon to show much"
    assert plain == expected
    for num_draft_tokens, drafter in zip(EMBEDDED_PROMPTS[text], (draft, PromptLookupDrafter()), strict=True):
        run = play(speculative(target, drafter, ids, num_draft_tokens=num_draft_tokens, **greedy))
        assert run.ids == expected
    module = replace(target, fused_weights=None)
    assert play(speculative(module, draft, ids, num_draft_tokens=4, **greedy)).ids == expected
