"""The verdict on a pair before anything is loaded: a problem, warnings, memory and expected cost."""

import json

import gguf
import pytest
import torch

from core.models import fit as memory
from core.models.catalogue import resolve
from core.models.fit import PairVerdict, forecast, pair_problem, pair_verdict
from core.models.folder.details import read_details
from tests.children import imports_of
from tests.fakes import EOS, byte_tokenizer, edit_json, is_sentence, save_model, tiny_module
from tests.fakes_gguf import write_gguf


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "target", num_hidden_layers=6)


@pytest.fixture
def draft(tmp_path):
    return save_model(tmp_path / "draft", num_hidden_layers=1)


def verdict(draft, target, **settings) -> PairVerdict:
    found = pair_verdict(str(draft), str(target), **{"device": "cpu", "with_memory": False, **settings})
    for text in (*found.warnings, *([found.problem] if found.problem else [])):
        assert is_sentence(text), text
    return found


def test_a_good_pair(draft, target):
    found = verdict(draft, target, with_memory=True)
    assert (found.problem, found.warnings) == (None, ())
    assert found.memory is not None
    assert found.memory.fits
    assert 0 < found.cost_coefficient < 0.5


def test_the_problem_is_that_of_pair_problem(draft, target, tmp_path):
    other = save_model(tmp_path / "other", tokenizer=byte_tokenizer([("a", "b")]))
    found = verdict(other, target)
    assert found.problem == pair_problem(str(other), str(target))
    assert f"id 256 is 'ab' in the draft and {EOS!r} in the target" in found.problem
    assert "There is no local model" in verdict("nothing-like-it", target).problem
    (draft / "model.safetensors").write_bytes((draft / "model.safetensors").read_bytes()[:-1])
    assert "truncated" in verdict(draft, target).problem


def test_a_draft_that_is_not_smaller_gets_a_warning(target):
    found = verdict(target, target)
    assert found.cost_coefficient == 1
    assert any("little to gain" in warning for warning in found.warnings)


def test_a_base_draft_for_an_instruct_target_gets_a_warning(draft, tmp_path):
    instruct = save_model(tmp_path / "instruct", num_hidden_layers=6)
    (instruct / "chat_template.jinja").write_text("{{ eos_token }}")
    assert "a base model and the target an instruct model" in verdict(draft, instruct).warnings[0]
    assert "an instruct model and the target a base model" in verdict(instruct, draft).warnings[1]


def test_different_begin_and_end_tokens_are_a_warning_and_not_a_problem(draft, target):
    edit_json(draft / "tokenizer_config.json", eos_token="!", bos_token="<s>")
    (draft / "generation_config.json").unlink(missing_ok=True)
    found = verdict(draft, target)
    assert found.problem is None
    assert f"ends a text with '!' and the target with {EOS!r}" in found.warnings[0]


def test_a_shorter_context_gets_a_warning(tmp_path, target):
    draft = save_model(tmp_path, num_hidden_layers=1, max_position_embeddings=64)
    assert "64 tokens and the target's 128" in verdict(draft, target).warnings[0]


def test_too_little_memory_is_the_first_warning(draft, target, monkeypatch):
    monkeypatch.setattr("core.models.fit.available_bytes", lambda device: 1000)
    found = verdict(draft, target, with_memory=True)
    assert not found.memory.fits
    assert "is free" in found.warnings[0]


def test_a_missing_device_is_not_a_problem_of_the_pair(draft, target):
    found = verdict(draft, target, with_memory=True, device="abacus")
    assert (found.problem, found.memory) == (None, None)
    assert "abacus" in found.warnings[0]


def test_without_memory_torch_is_not_imported(draft, target):
    asked = f"pair_verdict({str(draft)!r}, {str(target)!r}, with_memory=False)"
    assert imports_of(f"from core.models.fit import pair_verdict\n{asked}", "torch", "transformers") == []


def test_gguf_headers_are_compared_without_unpacking(tmp_path, target):
    first, second = write_gguf(tmp_path / "a.gguf"), write_gguf(tmp_path / "b.gguf")
    assert verdict(first, second).problem is None
    assert "id 256" in verdict(first, target).problem


def test_gguf_padding_and_spelling_do_not_count_as_differences(tmp_path):
    folder = save_model(tmp_path / "model")
    vocabulary = {"▁a": 0, "b": 1, "c": 2}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_token_list([" a", "b", "[PAD2]", "[PAD3]"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert pair_problem(str(tmp_path / "m.gguf"), str(folder)) is None


def test_the_older_form_of_tokenizer_files_is_compared(tmp_path):
    folders = [save_model(tmp_path / name) for name in ("one", "two")]
    for folder, last in zip(folders, ("c", "d"), strict=True):
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, last: 2}))
        (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    assert "id 2 is 'c' in the draft and 'd' in the target" in pair_problem(*map(str, folders))


# --- Memory ---------------------------------------------------------------------------------------------------------


def details(path):
    return read_details(resolve(str(path)))


def test_the_cache_grows_with_the_context_up_to_the_models_own(saved):
    found = [forecast([details(saved)], device="cpu", dtype="float32", context=n).cache_bytes for n in (10, 128, 999)]
    assert found == [2 * 2 * 2 * 8 * n * 4 for n in (10, 128, 128)]


_MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}),
        ("falcon", {"num_kv_heads": 2, "new_decoder_architecture": True, "multi_query": True}),
        ("falcon", {"new_decoder_architecture": False, "multi_query": True}),
        ("deepseek_v3", _MLA),
    ],
)
def test_the_cache_of_an_architecture_with_its_own_is_what_it_keeps(tmp_path, family, changes):
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    changes = changes if family == "mpt" else {**shape, **changes}
    found = details(save_model(tmp_path, family=family, **changes))
    with torch.inference_mode():
        cache = tiny_module(family, **changes)(torch.arange(9)[None], use_cache=True).past_key_values
    predicted = forecast([found], device="cpu", dtype="float32", context=9).cache_bytes
    assert predicted == sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.parametrize(
    ("family", "changes", "layers"),
    [
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M*M-", "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1},
            1,
        ),
        ("lfm2", {"layer_types": ["conv", "conv", "conv", "full_attention"]}, 1),
        ("mamba2", {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1}, 0),
    ],
)
def test_layers_without_keys_and_values_take_no_cache(tmp_path, family, changes, layers):
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8} if layers else {}
    found = details(save_model(tmp_path, family=family, **{**shape, **heads, **changes}))
    predicted = forecast([found], device="cpu", dtype="float32", context=9).cache_bytes
    assert (found.num_layers, predicted) == (4, layers * 2 * 2 * 8 * 9 * 4)


def test_an_architecture_that_is_not_known_is_counted_by_its_header(tmp_path):
    folder = save_model(tmp_path)
    edit_json(folder / "config.json", model_type="outlandish")
    found = details(folder)
    assert forecast([found], device="cpu", dtype="float16").weights_bytes == 2 * found.num_parameters


def test_two_models_take_both_their_weights_and_caches_and_one_twice_only_its_cache(saved, tmp_path):
    one, other = details(saved), details(save_model(tmp_path / "other", num_hidden_layers=1))
    alone = [forecast([model], device="cpu", context=64) for model in (one, other)]
    both = forecast([one, other], device="cpu", context=64)
    assert both.weights_bytes == sum(part.weights_bytes for part in alone)
    assert both.cache_bytes == sum(part.cache_bytes for part in alone)
    twice = forecast([one, one], device="cpu", context=64)
    assert (twice.weights_bytes, twice.cache_bytes) == (alone[0].weights_bytes, 2 * alone[0].cache_bytes)


def test_memory_that_loaded_models_can_free_counts_as_free(saved, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda _: 1_000)
    assert forecast([details(saved)], device="cpu", held_bytes=500).available_bytes == 1_500
    needed = forecast([details(saved)], device="cpu").total_bytes
    assert pair_verdict(str(saved), str(saved), device="cpu", held_bytes=2 * needed).memory.fits is True
    assert pair_verdict(str(saved), str(saved), device="cpu").memory.fits is False
    monkeypatch.setattr(memory, "available_bytes", lambda _: None)
    assert forecast([details(saved)], device="cpu", held_bytes=500).fits is None
