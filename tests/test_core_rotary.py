"""Every kind of rotary embedding: one set of frequencies a run, whatever its length and the sizes of its forwards."""

import functools
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from core.analysis.near_ties import lead, moved_margin, replay_margin
from core.decode import autoregressive, speculative
from core.runners import llama, rotary
from core.runners.forward_choice import choose_reading
from core.settings import SamplingParams
from tests.fakes import FAMILIES, greedy_reference, language_model, oracle, play, tiny_module

BOUNDARY, LONGEST, NEW = 48, 192, 20
_FACTOR = {"rope_theta": 1e4, "factor": 4.0}
_TRAINED = {"original_max_position_embeddings": BOUNDARY}
KINDS = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "linear": {"rope_type": "linear", **_FACTOR},
    "dynamic": {"rope_type": "dynamic", **_FACTOR},
    "yarn": {"rope_type": "yarn", **_FACTOR, **_TRAINED},
    "longrope": {"rope_type": "longrope", **_FACTOR, **_TRAINED,
                 "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 3.0, 6.0, 12.0]},
    "llama3": {"rope_type": "llama3", **_FACTOR, **_TRAINED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "proportional": {"rope_type": "proportional", **_FACTOR},
}  # fmt: skip
PROMPTS = {"below": 20, "across": BOUNDARY - 8, "above": BOUNDARY + 12}


def module_of(family: str, kind: str):
    longest = BOUNDARY if kind == "dynamic" else LONGEST
    sizes = {**FAMILIES["llama"], "max_position_embeddings": longest, "rope_parameters": dict(KINDS[kind])}
    return tiny_module(family, **sizes, **({"original_max_position_embeddings": BOUNDARY} if family == "phi3" else {}))


CHANGING = ("dynamic", "longrope")
"""Kinds whose frequencies are others beyond the boundary: of the rest, a text across it shows all."""
CASES = [
    (family, kind, is_fused, where)
    for where in PROMPTS
    for family, kind, is_fused in (*itertools.product(["llama"], KINDS, [True, False]), ("phi3", "longrope", False))
    if where != "below" or kind in CHANGING
]


@pytest.mark.parametrize(("family", "kind", "is_fused", "where"), CASES)
def test_plain_and_speculative_text_agree_with_transformers(family, kind, is_fused, where, monkeypatch):
    monkeypatch.setattr("core.runners.base.PREFILL_CHUNK", 16)
    model = language_model(module_of(family, kind), is_fused=is_fused)
    prompt = torch.randint(257, (PROMPTS[where],), generator=torch.Generator().manual_seed(3)).tolist()
    greedy = {"sampling": SamplingParams(0.0), "max_new_tokens": NEW}
    plain = play(autoregressive(model, prompt, **greedy)).ids
    assert len(plain) == NEW
    # One set of frequencies: the same text when all of it is read at once.
    runner = model.runner(len(prompt) + NEW)
    rows = runner.forward(torch.tensor([*prompt, *plain[:-1]]), num_logits=NEW).logits
    assert rows.argmax(-1).tolist() == plain
    # transformers changes them in mid-text, and those of dynamic NTK with every token beyond the boundary.
    if where == "below" or (where == "above" and kind != "dynamic") or kind not in CHANGING:
        assert plain == greedy_reference(language_model(module_of(family, kind)), prompt, NEW)
    for drafter in (model, oracle([*prompt, *plain], offset=1, vocab_size=257)):
        assert play(speculative(model, drafter, prompt, num_draft_tokens=4, **greedy)).ids == plain


def test_a_module_is_left_as_it_was():
    model = language_model(module_of("phi3", "longrope"))
    embedding = model.model.model.rotary_emb
    before = embedding.inv_freq.clone()
    model.runner(LONGEST).forward(torch.arange(9), num_logits=1)
    assert embedding.rope_type == "longrope"
    assert torch.equal(embedding.inv_freq, before)


def test_threads_that_decode_texts_of_other_lengths_with_one_model_write_the_same(request):
    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)
    model, lengths = language_model(module_of("llama", "dynamic")), (20, 100)
    rotary_module = model.model.model.rotary_emb
    before = rotary_module.inv_freq.clone()

    def text(length: int) -> list[int]:
        return play(autoregressive(model, [1, 2, 3], sampling=SamplingParams(0.0), max_new_tokens=length)).ids

    expected = {length: text(length) for length in lengths}
    with ThreadPoolExecutor(2) as pool:
        for length, ids in zip(lengths * 8, pool.map(text, lengths * 8), strict=True):
            assert ids == expected[length]
    assert rotary_module.rope_type == "dynamic"
    assert torch.equal(rotary_module.inv_freq, before)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_loading_compares_texts_beyond_the_boundary_or_ends_them_there(kind, monkeypatch, caplog):
    model = language_model(module_of("llama", kind))
    choose_reading(model)
    assert model.context_length == LONGEST
    found = rotary.frequencies_for

    def always_short(module, capacity: int):
        return found(module, min(capacity, BOUNDARY))

    monkeypatch.setattr(rotary, "frequencies_for", always_short)
    choose_reading(model)
    assert model.context_length == BOUNDARY
    assert "rotary frequencies change" in caplog.text
    assert rotary.boundary_of(module_of("llama", "yarn")) is None
    assert llama.supports(module_of("llama", kind))


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_near_ties_are_measured_with_the_frequencies_of_the_run(kind):
    model = language_model(module_of("llama", kind), is_fused=True)
    prompt = torch.randint(257, (PROMPTS["below"],), generator=torch.Generator().manual_seed(3)).tolist()
    capacity = len(prompt) + 60
    run = play(autoregressive(model, prompt, sampling=SamplingParams(0.0), max_new_tokens=60))
    for at in range(5, 20, 5):
        tokens = run.ids[at], (run.ids[at] + 1) % 257
        leads = [
            lead(model, [*prompt, *run.ids[:at]], tokens, capacity=capacity),
            replay_margin(model, prompt, run.steps, at, tokens, capacity=capacity),
            moved_margin(model, prompt, run.ids[:at], tokens, 4, capacity=capacity)[0],
        ]
        assert leads == pytest.approx([leads[0]] * 3, abs=2e-3)
        assert leads[0] > 0
