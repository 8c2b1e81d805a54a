"""Models whose files pack their weights, or that can't be loaded here: what is counted, forecast and said."""

import importlib.util

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.decode import autoregressive
from core.errors import ModelUnreadableError
from core.models.catalogue import resolve
from core.models.fit import forecast, pair_verdict
from core.models.folder.details import read_details
from core.models.loading import load
from core.settings import SamplingParams
from tests.fakes import edit_json, is_sentence, play, refusal, save_model, tiny_module

GROUPS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}}}


def gptq(name, rows, columns):
    packed = {"qweight": (columns // 8, rows), "qzeros": (1, rows // 8), "g_idx": (columns,)}
    parts = {f"{name}.{part}": torch.zeros(shape, dtype=torch.int32) for part, shape in packed.items()}
    return {**parts, f"{name}.scales": torch.zeros(1, rows)}


def compressed(name, rows, columns):
    words, shape = torch.zeros(rows, columns // 4, dtype=torch.int32), torch.tensor([rows, columns])
    return {f"{name}.weight_packed": words, f"{name}.weight_scale": torch.zeros(rows, 1), f"{name}.weight_shape": shape}


def bitsandbytes(name, rows, columns):
    parts = {"absmax": torch.zeros(4), "quant_map": torch.zeros(16), "quant_state.bitsandbytes__nf4": torch.zeros(9)}
    bytes_ = torch.zeros(rows * columns // 2, 1, dtype=torch.uint8)
    return {f"{name}.weight": bytes_, **{f"{name}.weight.{part}": tensor for part, tensor in parts.items()}}


def fp8(name, rows, columns):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 0.3
    scale = torch.full((rows // 16, columns // 16), 1 / 256)
    return {f"{name}.weight": (weight * 256).to(torch.float8_e4m3fn), f"{name}.weight_scale_inv": scale}


def quantised(folder, pack, **quantization):
    """A tiny model in float16, the matrices of whose layers are packed."""
    save_model(folder)
    packed = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        is_matrix = ".layers." in name and weight.dim() == 2
        packed |= pack(name.removesuffix(".weight"), *weight.shape) if is_matrix else {name: weight.half()}
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    edit_json(folder / "config.json", dtype="float16", quantization_config=quantization)
    return folder


PACKED = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4}),
    "compressed-tensors": (compressed, {"quant_method": "compressed-tensors", "config_groups": GROUPS}),
    "bitsandbytes": (bitsandbytes, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}


@pytest.mark.parametrize("method", PACKED)
def test_packed_weights_are_counted_as_what_they_pack_and_forecast_as_they_are_loaded(tmp_path, method):
    pack, quantization = PACKED[method]
    found = read_details(resolve(str(quantised(tmp_path / "model", pack, **quantization))))
    plain = read_details(resolve(str(save_model(tmp_path / "plain"))))
    assert (found.num_parameters, found.body_parameters) == (plain.num_parameters, plain.body_parameters)
    # As they are stored; those of compressed-tensors would be expanded.
    size = 4 * plain.num_parameters if method == "compressed-tensors" else found.weight_bytes
    assert forecast([found], device="cpu", dtype="float32").weights_bytes == size


@pytest.mark.parametrize("method", PACKED)
def test_a_quantised_model_whose_package_is_missing_is_told_before_and_at_loading(tmp_path, monkeypatch, method):
    pack, quantization = PACKED[method]
    folder = str(quantised(tmp_path / "model", pack, **quantization))
    known = importlib.util.find_spec
    mine = {"optimum", "gptqmodel", "bitsandbytes"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in mine else known(name, *more))
    for with_memory in (False, True):
        problem = pair_verdict(folder, folder, device="cpu", with_memory=with_memory).problem
        assert f"is quantised with {method}, which {'can' if method == 'compressed-tensors' else 'needs'}" in problem
        assert is_sentence(problem)
    assert refusal(ModelUnreadableError, load, folder, "cpu") == problem


@pytest.mark.parametrize("method", [["gptq"], {"a": 1}, 3, None])
def test_a_method_that_is_no_name_is_none(tmp_path, method):
    plain = read_details(resolve(str(save_model(tmp_path / "model"))))
    edit_json(tmp_path / "model" / "config.json", quantization_config={"quant_method": method})
    assert read_details(resolve(str(tmp_path / "model"))) == plain


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "is an encoder-decoder model (t5)"),
        ({"model_type": "foo", "auto_map": {"AutoConfig": "foo.Foo"}}, "without the model's own code, which is never"),
        ({"model_type": "foo"}, "is a 'foo' model, which transformers can't load"),
    ],
)
def test_what_cant_be_loaded_can_neither_draft_nor_be_drafted_for(tmp_path, changes, words):
    bad, good = str(save_model(tmp_path / "bad")), str(save_model(tmp_path / "good"))
    edit_json(tmp_path / "bad" / "config.json", **changes)
    for pair in ((bad, good), (good, bad)):
        problem = pair_verdict(*pair, device="cpu").problem
        assert words in problem
        assert is_sentence(problem)
    assert refusal(ModelUnreadableError, load, bad, "cpu") == problem


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="transformers keeps FP8 on a GPU")
def test_fp8_weights_that_are_expanded_have_one_precision_with_the_others(tmp_path, dtype):
    folder = quantised(tmp_path / "model", fp8, quant_method="fp8", weight_block_size=[16, 16])
    loaded = load(str(folder), "cpu", dtype)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {loaded.dtype}
    assert len(play(autoregressive(loaded, [5, 6, 7], max_new_tokens=4, sampling=SamplingParams(0.0))).ids) == 4
    assert loaded.num_parameters == read_details(resolve(str(folder))).num_parameters


def test_mxfp4_experts_are_counted_and_forecast_as_they_are_expanded(tmp_path):
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2}
    folder, module = save_model(tmp_path / "model", family="gpt_oss", **shape), tiny_module("gpt_oss", **shape)
    packed = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = tensor.shape
            packed[f"{name}_blocks"] = torch.zeros(experts, rows, columns // 32, 16, dtype=torch.uint8)
            packed[f"{name}_scales"] = torch.full((experts, rows, columns // 32), 120, dtype=torch.uint8)
        else:
            packed[name] = tensor.bfloat16()
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    edit_json(folder / "config.json", quantization_config={"quant_method": "mxfp4"})
    found = read_details(resolve(str(folder)))
    number = sum(parameter.numel() for parameter in module.parameters())
    assert found.num_parameters == number
    assert forecast([found], device="cpu", dtype="bfloat16").weights_bytes == 2 * number
