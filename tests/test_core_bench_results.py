"""What the bench tells of its contenders: another text, length or draft, ratios, and memory."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from core.experiments import bench_memory_child as memory_child
from core.experiments.bench import ASSISTED, GENERATE, mappings_in
from core.experiments.benching import Comparison, margin_of, rows
from core.models.loading import bytes_per_position
from tests.fakes import greedy_reference, save_model, tiny_model
from tests.fakes_bench import PROMPTS, SETTINGS, K, N, observations, small_pair


@pytest.fixture(scope="module")
def pair():
    return small_pair()


def told(seen, reference, **changes):
    others = changes.pop("others", [])
    comparison = Comparison(0.0, {item.contender.name: item for item in [seen, *others]}, reference)
    return rows(comparison, PROMPTS, replace(SETTINGS, **changes))[0]


def test_another_greedy_text_is_told_with_its_place():
    texts = {0: range(N), 1: [*range(5), 99, *range(6, N)]}
    row = told(observations("rival", seconds=[1, 1], texts=texts), [tuple(range(N))] * 2)
    assert row.notes == (f"another greedy text after 'two', from token 6 of {N}",)


def test_the_same_text_needs_no_note():
    seen = observations("rival", seconds=[1, 1], texts={0: range(N), 1: range(N)})
    assert told(seen, [tuple(range(N))] * 2).notes == ()


def test_above_temperature_0_another_text_is_expected():
    seen = observations("rival", seconds=[1], texts={0: range(N, 2 * N)})
    assert told(seen, None).notes == ()


def test_another_length_is_told():
    seen = observations("rival", seconds=[1], texts={0: range(N - 2)})
    assert told(seen, [tuple(range(N))]).notes == (f"writes {N - 2} tokens where {N} were asked for",)


def test_longer_drafts_are_told():
    seen = observations("assisted", seconds=[1], k=K, longest_draft=7)
    assert told(seen, None).notes == (f"drafts up to 7 tokens a step where K is {K}",)
    seen = observations("flashspec-auto", seconds=[1], k=None, longest_draft=6)
    assert told(seen, None).notes == ("chooses its own K, here up to 6",)


def test_a_difference_says_how_close_it_was(pair):
    reference = [tuple(greedy_reference(pair.target, PROMPTS[0].ids, N))]
    margin = margin_of(pair, PROMPTS, reference)
    at = 4
    logits = pair.target.model(torch.tensor([[*PROMPTS[0].ids, *reference[0][:at]]])).logits[0, -1]
    other = int(logits.topk(2).indices[1])
    assert margin(0, at, reference[0][at], other) == pytest.approx(float(logits.max() - logits[other]), abs=1e-4)
    seen = observations("rival", seconds=[1], texts={0: [*reference[0][:at], other, *reference[0][at + 1 :]]})
    [row] = rows(Comparison(0.0, {"rival": seen}, reference), PROMPTS, SETTINGS, margin)
    assert "prefers its own by" in row.notes[0]


def test_ratios_need_the_contender_they_refer_to():
    seen = observations("x", seconds=[1.0, 2.0])
    row = told(seen, None, others=[observations(GENERATE, seconds=[2.0, 8.0])])
    assert row.ratio_to_generate.values == (2.0, 4.0)
    assert row.ratio_to_assisted is None


def test_tokens_per_forward_are_those_of_the_round_that_does_not_count():
    assert told(observations("x", seconds=[1], forwards=4, forward_tokens=12), None).tokens_per_forward == 3.0
    assert told(observations("x", seconds=[1]), None).tokens_per_forward is None


def test_the_memory_of_one_contender_is_that_of_a_process_that_runs_it(tmp_path):
    target = save_model(tmp_path / "target", max_position_embeddings=128)
    settings = {"target": str(target), "draft_layers": 1, "temperatures": [0.0], "only": [], "max_new_tokens": 4}
    memory = memory_child.measured(ASSISTED, settings, [1, 2, 3])
    assert 0 <= memory.peak_mb < 1_000
    assert 0 < memory.needed_mb < 10


def test_what_a_run_needs_are_the_weights_of_both_and_a_cache_for_each():
    target = tiny_model(is_fused=True)
    weights = sum(weight.nbytes for weight in target.model.parameters()) / 1e6
    cache = 100 * bytes_per_position(target) / 1e6
    alone = SimpleNamespace(target=target, draft=None)
    assert memory_child.needed_mb(alone, None, 100) == pytest.approx(weights + cache)
    assert memory_child.needed_mb(alone, target, 100) == pytest.approx(weights + 2 * cache)
    pair = SimpleNamespace(target=target, draft=tiny_model(seed=1))
    assert memory_child.needed_mb(pair, pair.draft, 100) == pytest.approx(2 * (weights + cache))


def test_only_weight_files_count_as_such():
    """An address, then fields in kB: 8 resident and 4 written of the first, and none of the library."""
    smaps = "\n".join(
        [
            "7f00-9f00 rw-p 00000000 fe:00 1    /models/one/model.safetensors",
            *("Size:    8 kB", "Rss:    8 kB", "Pss:    4 kB", "Anonymous:    4 kB", "VmFlags: rd wr"),
            "a000-b000 r-xp 00000000 fe:00 2    /lib/safetensors/_safetensors_rust.abi3.so",
            *("Rss:    4 kB", "Anonymous:    0 kB"),
        ]
    )
    assert mappings_in(smaps) == [(0x7F00, 0x2000, 8192, 4096)]
    assert mappings_in("") == []
