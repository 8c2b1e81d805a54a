"""What a model is, from its files' headers: the figures are those of the loaded model, and no file hangs it."""

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig

from core.errors import ModelUnreadableError
from core.models import load
from core.models.catalogue import resolve
from core.models.folder.details import read_details
from tests import fakes
from tests.fakes import byte_tokenizer, edit_json, save_model, tiny_module
from tests.fakes_gguf import write_gguf

TEMPLATE = "{% for m in messages %}<|start|>{{ m.content }}<|stop|>{% endfor %}"


def details(path):
    return read_details(resolve(str(path)))


def refusal(path) -> str:
    return fakes.refusal(ModelUnreadableError, details, path)


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "model")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gpt_neox", "gemma3_text", "opt", "phi"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_parameters_are_those_of_the_module(tmp_path, family, is_tied):
    changes = {"tie_word_embeddings": is_tied, "vocab_size": 300}
    found = details(save_model(tmp_path, family=family, **changes))
    module = tiny_module(family, **changes)
    assert found.num_parameters == module.num_parameters()
    head = module.get_output_embeddings().weight.numel()
    assert found.head_parameters == head
    # A step multiplies all but what it looks up: positions, and the embedding where it is not the head as well.
    looked_up = sum(p.numel() for name, p in module.named_parameters() if "wpe" in name or "embed_positions" in name)
    looked_up += 0 if is_tied else module.get_input_embeddings().weight.numel()
    biases = 0 if module.get_output_embeddings().bias is None else module.get_output_embeddings().bias.numel()
    assert abs(found.parameters_per_step() - (module.num_parameters() - looked_up)) <= biases


def test_a_model_is_described(saved):
    found = details(saved)
    assert (found.architecture, found.precision, found.context_length) == ("llama", "float32", 128)
    assert (found.vocab_size, found.table_size, found.num_layers, found.hidden_size) == (257, 257, 2, 32)
    assert (found.num_heads, found.num_kv_heads, found.head_dim, found.intermediate_size) == (4, 2, 8, 48)
    assert found.weight_bytes == 4 * found.num_parameters
    assert not found.is_instruct


def test_a_padded_table_is_distinguished_from_the_vocabulary(tmp_path):
    found = details(save_model(tmp_path, vocab_size=320))
    assert (found.vocab_size, found.table_size) == (257, 320)


def test_the_precision_is_that_of_most_bytes(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.astype(np.float16) if tensor.ndim > 1 else tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    assert details(folder).precision == "float16"


def test_a_nested_configuration_without_its_defaults(folder):
    config = json.loads((folder / "config.json").read_text())
    text = {name: config.pop(name) for name in ("hidden_size", "num_hidden_layers", "intermediate_size")}
    left_out = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings")
    config = {name: value for name, value in config.items() if name not in left_out}
    (folder / "config.json").write_text(json.dumps({**config, "text_config": text}))
    found = details(folder)
    assert (found.num_layers, found.hidden_size, found.vocab_size, found.context_length) == (2, 32, 257, None)
    # The width of a layer's keys, which its cache takes, is in the weights.
    assert found.num_kv_heads * found.head_dim == 16


def test_masks_in_old_files_are_not_counted_as_parameters(folder):
    expected = details(folder).num_parameters
    tensors = load_file(folder / "model.safetensors")
    tensors["h.0.attn.bias"] = np.ones((1, 1, 128, 128), np.float32)
    tensors["h.0.attn.masked_bias"] = np.ones((), np.float32)
    save_file(tensors, folder / "model.safetensors")
    assert details(folder).num_parameters == expected


@pytest.mark.parametrize(
    ("experts", "active", "tensors"),
    [
        ("num_local_experts", "num_experts_per_tok", {f"mlp.experts.{n}.up.weight": (48, 32) for n in range(4)}),
        ("num_local_experts", "num_experts_per_tok", {"block_sparse_moe.input_linear.weight": (4, 48, 32)}),
        ("moe_num_experts", "moe_k", {"mlp.experts.gate_up_proj": (4, 48, 32)}),
        ("num_experts", "top_k_experts", {"experts.gate_up_proj": (4, 48, 32)}),
    ],
)
def test_only_the_experts_in_use_count_towards_a_step(folder, experts, active, tensors):
    before = details(folder)
    found = {f"model.layers.0.{name}": np.zeros(shape, np.float32) for name, shape in tensors.items()}
    save_file({**load_file(folder / "model.safetensors"), **found}, folder / "model.safetensors")
    edit_json(folder / "config.json", **{experts: 4, active: 1})
    after = details(folder)
    assert after.num_parameters == before.num_parameters + 4 * 48 * 32
    assert after.parameters_per_step() == before.parameters_per_step() + 48 * 32
    # Before its weights are here, its layers are taken to be all experts of three matrices each.
    edit_json(folder / "config.json", moe_intermediate_size=4)
    entry = replace(resolve(str(folder)), has_weights=False)
    expected = read_details(entry).parameters_per_step()
    edit_json(folder / "config.json", **{active: 4})
    assert expected == read_details(entry).parameters_per_step() - 3 * 3 * 2 * 32 * 4


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("mamba", {"state_size": 4}),
        ("mamba2", {"state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1}),
        ("rwkv", {"attention_hidden_size": 32, "intermediate_size": 48}),
    ],
)
def test_the_embedding_of_a_model_without_attention_is_looked_up(tmp_path, family, shape):
    shape = {**shape, "hidden_size": 32, "num_hidden_layers": 2, "tie_word_embeddings": False}
    found, module = details(save_model(tmp_path, family=family, **shape)), tiny_module(family, **shape)
    assert found.num_parameters == module.num_parameters()
    assert found.parameters_per_step() == module.num_parameters() - module.get_input_embeddings().weight.numel()


@pytest.mark.parametrize("name", ["model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"])
def test_embeddings_of_each_layer_are_looked_up(folder, name):
    before = details(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = np.zeros((300, 64), np.float32)
    save_file(tensors, folder / "model.safetensors")
    after = details(folder)
    assert after.num_parameters == before.num_parameters + 300 * 64
    assert (after.parameters_per_step(), after.table_size) == (before.parameters_per_step(), before.table_size)


def test_a_trimmed_head_costs_its_rows_only(folder):
    edit_json(folder / "config.json", draft_vocabulary=[1, 2, 3])
    found = details(folder)
    assert found.parameters_per_step() - found.parameters_per_step(drafting=True) == (257 - 3) * 32


def test_a_drafter_that_borrows_its_tables_has_their_head_in_its_cost(folder):
    tensors = load_file(folder / "model.safetensors")
    layers = {name: tensor for name, tensor in tensors.items() if "embed_tokens" not in name and "lm_head" not in name}
    save_file(layers, folder / "model.safetensors")
    (folder / "tokenizer.json").unlink()
    edit_json(folder / "config.json", shares_tables_with={"model": "some/target"}, draft_vocabulary=list(range(100)))
    found = details(folder)
    own = sum(tensor.size for tensor in layers.values())
    assert (found.shares_tables_with, found.num_parameters) == ("some/target", own)
    assert found.parameters_per_step(drafting=True) == own + 100 * 32


def test_a_model_with_a_chat_template_is_an_instruct_model(folder):
    (folder / "chat_template.jinja").write_text(TEMPLATE + "{{ eos_token }}")
    assert details(folder).is_instruct
    (folder / "chat_template.jinja").unlink()
    edit_json(folder / "tokenizer_config.json", chat_template=[{"name": "default", "template": "{{ eos_token }}"}])
    assert details(folder).is_instruct


def test_a_base_model_with_the_template_of_its_relatives_is_recognised_by_its_end(tmp_path):
    tokenizer = byte_tokenizer(specials=("<|end|>", "<|stop|>"))
    folder = save_model(tmp_path, tokenizer=tokenizer)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    found = details(folder)
    assert found.has_chat_template
    assert not found.is_instruct
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 257]}))
    assert details(folder).is_instruct


@pytest.mark.parametrize("keep", [0, 4, 8, 200, 0.5, -1])
def test_a_truncated_weight_file_is_noticed(folder, keep):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    assert "truncated" in refusal(folder)


def test_every_file_of_the_index_must_be_there(folder):
    names = list(load_file(folder / "model.safetensors"))
    expected = details(folder).num_parameters
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    weight_map = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {**weight_map, "x": "model-00002-of-00002.safetensors"}}))
    assert "'model-00002-of-00002.safetensors'" in refusal(folder)
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert details(folder).num_parameters == expected
    for content in ("", "[]", '{"weight_map": [1]}', '{"weight_map": {"a": 3}}'):
        index.write_text(content)
        refusal(folder)


@pytest.mark.parametrize("changes", [{"num_hidden_layers": "x"}, {"hidden_size": -1}, {"vocab_size": 10**100},
                                     {"num_attention_heads": 0}, {"text_config": 3}, {"model_type": None},
                                     {"draft_vocabulary": "abc"}, {"shares_tables_with": 3}])  # fmt: skip
def test_odd_values_are_left_to_loading(folder, changes):
    edit_json(folder / "config.json", **changes)
    assert details(folder).num_parameters > 0


@pytest.mark.parametrize(("tensor_type", "precision"), [(None, "float32"), (gguf.GGMLQuantizationType.Q8_0, "Q8_0")])
def test_a_gguf_file_is_described_by_its_header(tmp_path, tensor_type, precision):
    found = details(write_gguf(tmp_path / "tiny.gguf", tensor_type=tensor_type))
    assert (found.architecture, found.precision, found.context_length) == ("llama", precision, 128)
    assert (found.num_layers, found.hidden_size, found.num_kv_heads, found.head_dim) == (2, 32, 2, 8)
    body = 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)
    assert (found.vocab_size, found.num_parameters) == (258, body + 2 * 258 * 32)
    assert (found.head_parameters, found.body_parameters) == (258 * 32, body)


def test_a_gguf_file_with_a_chat_template_is_an_instruct_model(tmp_path):
    assert not details(write_gguf(tmp_path / "base.gguf")).is_instruct
    assert details(write_gguf(tmp_path / "chat.gguf", template="{{ messages }}{{ eos_token }}")).is_instruct


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.6, -1])
def test_a_truncated_gguf_file_is_noticed(tmp_path, keep):
    content = write_gguf(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "torn.gguf").write_bytes(content[: int(len(content) * keep) if keep > 0 else -200])
    assert "truncated" in refusal(tmp_path / "torn.gguf")


@pytest.mark.parametrize(("family", "kinds"), [
    ("qwen3_next", {"full_attention_interval": 3}), ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 1}),
    ("bamba", {"attn_layer_indices": [1, 4]}), ("lfm2", {"full_attn_idxs": [0, 2]}),
    ("recurrent_gemma", {"block_types": ["recurrent", "recurrent", "attention"]}),
])  # fmt: skip
def test_layers_that_cache_nothing_are_counted_as_transformers_reads_them(folder, family, kinds):
    edit_json(folder / "config.json", model_type=family, num_hidden_layers=7, **kinds)
    read = AutoConfig.for_model(family, num_hidden_layers=7, **kinds).layer_types
    cached = sum(kind in {"full_attention", "sliding_attention"} for kind in read)
    assert details(folder).num_uncached_layers == 7 - cached > 0


_YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(("family", "changes", "context"), [
    ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}, 64),
    ("rwkv", {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 48,
              "context_length": 96}, 96),
    ("llama", {"rope_parameters": {**_YARN, "original_max_position_embeddings": 64}}, 256),
    ("llama", {"rope_parameters": {**_YARN, "original_max_position_embeddings": 32}}, 128),
    ("llama", {"rope_scaling": _YARN}, 512),
    ("llama", {"rope_scaling": _YARN, "original_max_position_embeddings": 64}, 256),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 256),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, 128),
])  # fmt: skip
def test_the_context_is_the_loaded_models(tmp_path, family, changes, context):
    folder = save_model(tmp_path, family=family, **({} if family == "llama" else changes))
    if family == "llama":
        edit_json(folder / "config.json", **{"rope_parameters": None, "rope_theta": 10_000.0, **changes})
    assert details(folder).context_length == load(str(folder), "cpu").context_length == context
