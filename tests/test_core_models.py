"""Loading: what is there is found and loaded whole, and what is wrong with it is said in one sentence."""

import base64
import contextlib
import importlib.metadata
import json
import os
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from core.decode import autoregressive
from core.errors import (
    DeviceError,
    ModelNotFoundError,
    ModelUnreadableError,
    PairMismatchError,
    SettingsError,
)
from core.models import load
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, ModelFormat, embedded_models, resolve
from core.models.devices import resolve_dtype
from core.models.fit import pair_problem, pair_verdict, tokenizer_problem
from core.models.folder.vocabulary import vocabulary_problem
from core.models.loading import check_pair
from tests import fakes
from tests.fakes import (
    EOS,
    GREEDY,
    PROMPT,
    byte_tokenizer,
    edit_json,
    greedy_reference,
    is_sentence,
    language_model,
    play,
    save_model,
    tiny_module,
)


@pytest.fixture
def folder(tmp_path):
    """A good model in a folder of the test's own, to be spoilt."""
    return save_model(tmp_path / "model")


def refusal(ref, error=ModelUnreadableError, **settings) -> str:
    """Loads what can't be loaded, and returns the error message."""
    return fakes.refusal(error, load, str(ref), **{"device": "cpu", **settings})


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_a_folder_loads_as_it_was_saved(tmp_path, family):
    original = tiny_module(family)
    model = load(str(save_model(tmp_path, family=family)), "cpu")
    assert (model.device.type, model.dtype, model.vocab_size, model.context_length) == ("cpu", torch.float32, 257, 128)
    assert (model.fused_weights is not None) == (family == "llama")
    expected = greedy_reference(language_model(original), PROMPT, 20)
    assert play(autoregressive(model, PROMPT, sampling=GREEDY, max_new_tokens=20)).ids == expected
    assert not any(parameter.requires_grad for parameter in model.model.parameters())


@pytest.mark.parametrize("name", ["with spaces", "Ünïcödé 模型", "dots.in.name", 'it\'s "quoted"'])
def test_any_path_will_do(tmp_path, name, monkeypatch):
    save_model(tmp_path / name)
    assert load(str(tmp_path / name), "cpu").vocab_size == 257
    monkeypatch.chdir(tmp_path)
    entry = resolve(name)
    assert (entry.title, entry.format) == (name, ModelFormat.SAFETENSORS)
    assert entry.size_bytes == (tmp_path / name / "model.safetensors").stat().st_size


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_precision_is_as_requested(saved, dtype):
    model = load(str(saved), "cpu", dtype)
    assert model.dtype is getattr(torch, dtype)
    assert model.model.dtype is model.dtype
    assert len(play(autoregressive(model, PROMPT, sampling=GREEDY, max_new_tokens=5)).ids) == 5


def test_ends_of_text_come_from_the_generation_config_first(folder):
    assert load(str(folder), "cpu").eos_ids == {256}
    edit_json(folder / "config.json", eos_token_id=7)
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert load(str(folder), "cpu").eos_ids == {7}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert load(str(folder), "cpu").eos_ids == {3, 4}


@pytest.mark.parametrize(
    "ref", ["no/such-model", "nothing.gguf", "~nobody-of-this-name/model", "x" * 5_000, "x" * 5_000 + ".gguf", "a\0b",
            "SmolLM2 135M"]
)  # fmt: skip
def test_an_unknown_model_is_reported_as_unknown(ref):
    refusal(ref, ModelNotFoundError)
    assert is_sentence(pair_problem(ref, ref))


def test_a_folder_without_a_model(tmp_path):
    assert "config.json" in refusal(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing")
    assert "config.json" in refusal(tmp_path)
    assert "not a .gguf file" in refusal(tmp_path / "notes.txt")


GARBAGE = struct.pack("<Q", 2**62) + b"{}", np.random.default_rng(0).bytes(9_000)
DAMAGE = {
    "config.json": (b"", b"{", b"\xff\xfe\x00", b"[]", b"null", b"3", b"{}", b'{"model_type": 3}'),
    "model.safetensors": GARBAGE,
    "tokenizer.json": (b"", b"{", b"[]", b"{}", b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}'),
}


@pytest.mark.parametrize(("name", "content"), [(name, content) for name, all in DAMAGE.items() for content in all])
def test_a_damaged_file_is_a_sentence(folder, saved, name, content):
    (folder / name).write_bytes(content)
    message = refusal(folder)
    problem = pair_problem(str(folder), str(saved))
    assert problem is None or is_sentence(problem)
    if name == "tokenizer.json":
        assert "tokenizer" in message


@pytest.mark.parametrize("changes", [
    {"model_type": "outlandish", "architectures": ["OutlandishForCausalLM"]},
    {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32},
    {"hidden_size": 64},
])  # fmt: skip
def test_a_config_that_does_not_describe_the_weights_is_a_sentence(folder, changes):
    edit_json(folder / "config.json", **changes)
    refusal(folder)


def test_a_vision_language_model_is_refused_with_a_true_reason(folder):
    """It does generate text."""
    edit_json(folder / "config.json", model_type="qwen2_5_vl", architectures=["Qwen2_5_VLForConditionalGeneration"])
    assert "'qwen2_5_vl' model, which transformers can't load as a causal language model" in refusal(folder)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_a_missing_tokenizer(tmp_path, family):
    folder = save_model(tmp_path, family=family)
    for file in folder.glob("*token*"):
        file.unlink()
    assert "tokenizer" in refusal(folder)


@pytest.mark.parametrize(("ends", "expected"), [([[256]], {7}), ([5, "x", None, 256], {5, 256}), ("<|end|>", {7})])
def test_ends_of_a_text_that_are_no_ids_are_left_out(folder, ends, expected):
    edit_json(folder / "generation_config.json", eos_token_id=ends)
    edit_json(folder / "config.json", eos_token_id=7)
    assert load(str(folder), "cpu").eos_ids == expected


def test_a_folder_of_an_adapter_or_of_gguf_files_is_refused_with_what_to_do(folder):
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter for another model" in refusal(folder)
    (folder / "config.json").write_text('{"model_type": "medusa-heads"}')
    assert "--method medusa:heads=FOLDER" in refusal(folder)
    (folder / "config.json").unlink()
    assert "adapter for another model" in refusal(folder)
    (folder / "adapter_config.json").unlink()
    (folder / "a.gguf").write_bytes(b"GGUF")
    assert str(folder / "a.gguf") in refusal(folder)
    (folder / "config.json").write_text("{}")
    assert str(folder / "a.gguf") in refusal(folder)


_OWN = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "Own"}


@pytest.mark.parametrize(("file", "settings", "words"), [
    ("tokenizer.model", {}, "pip install sentencepiece protobuf"), ("tiktoken.model", {}, "`pip install tiktoken`"),
    ("tiktoken.model", _OWN, "own code, which is never run"),
    ("own.tiktoken", _OWN, "own code, which is never run"), ("tokenizer.json", _OWN, "own code, which is never run"),
])  # fmt: skip
def test_a_tokenizer_that_cant_be_read_here_is_refused_with_the_true_reason(folder, monkeypatch, file, settings, words):
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: [])
    (folder / "tokenizer.json").rename(folder / file)
    edit_json(folder / "tokenizer_config.json", **settings)
    assert words in refusal(folder)
    if file != "tokenizer.json":  # Whose class only transformers knows.
        assert words in pair_verdict(str(folder), str(folder), with_memory=False).problem


def test_with_tiktoken_any_tokenizer_model_is_left_to_loading(folder, monkeypatch):
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: [name] if name == "tiktoken" else [])
    assert vocabulary_problem(folder, os.listdir(folder), "Llama 3") is None
    (folder / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")  # SentencePiece's own.
    assert "pip install sentencepiece" in vocabulary_problem(folder, os.listdir(folder), "Llama 2")


def test_a_tekken_file_is_read_without_its_authors_package(folder):
    pieces = [bytes([byte]) for byte in range(250)] + [b"ab", b" ab"]
    written = {
        "config": {"pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\s+|.", "default_vocab_size": len(pieces) + 3,
                   "default_num_special_tokens": 3, "version": "v7"},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
                  for rank, piece in enumerate(pieces)],
        "special_tokens": [{"rank": rank, "token_str": token, "is_control": True}
                           for rank, token in enumerate(("<unk>", "<s>", "</s>"))],
    }  # fmt: skip
    (folder / "tekken.json").write_text(json.dumps(written))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    model = load(str(folder), "cpu")
    assert model.vocab_size == 255
    assert model.tokenizer("ab ab", add_special_tokens=False)["input_ids"] == [253, 254]
    assert pair_verdict(str(folder), str(folder), with_memory=False).problem is None


def test_code_that_comes_with_a_model_is_not_run(folder):
    (folder / "evil.py").write_text("raise SystemExit('ran')\n")
    edit_json(folder / "config.json", model_type="outlandish",
              auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})  # fmt: skip
    refusal(folder)


def test_a_missing_tensor_is_not_made_up(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert "layers.1.mlp.up_proj" in refusal(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth"])
def test_pickles_are_never_opened(folder, name):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert "pickle" in refusal(folder)


def test_devices_and_precisions_that_are_not_there(saved):
    refusal(saved, SettingsError, device="abacus")
    refusal(saved, SettingsError, dtype="float7")
    for device in ("cuda", "mps"):
        if not {"cuda": torch.cuda, "mps": torch.backends.mps}[device].is_available():
            assert "auto or cpu" in refusal(saved, DeviceError, device=device)


def test_the_chosen_gpu_decides_about_bfloat16(monkeypatch):
    current = [0]

    @contextlib.contextmanager
    def device(chosen):
        current.append(chosen.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or current[-1] == 0
    )
    assert resolve_dtype("auto", torch.device("cuda:0")) is torch.bfloat16
    assert resolve_dtype("auto", torch.device("cuda:1")) is torch.float16


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (byte_tokenizer([("a", "b")]), ["id 256", "'ab' in the draft", f"{EOS!r} in the target"]),
        (byte_tokenizer(specials=("<other>",)), ["id 256", "'<other>' in the draft"]),
        (byte_tokenizer(specials=(EOS, "<more>")), ["id 257", "'<more>' in the draft", "missing in the target"]),
    ],
)
def test_a_pair_of_two_tokenizers_is_refused_by_the_first_token_that_differs(saved, tmp_path, tokenizer, words):
    other = save_model(tmp_path / "other", tokenizer=tokenizer)
    problem = pair_problem(str(other), str(saved))
    assert is_sentence(problem)
    assert [word for word in words if word not in problem] == []
    with pytest.raises(PairMismatchError) as caught:
        check_pair(load(str(other), "cpu"), load(str(saved), "cpu"))
    assert str(caught.value) == problem


def test_tokenizers_that_join_differently_differ():
    first, second = (json.loads(byte_tokenizer(merges).backend_tokenizer.to_str())
                     for merges in ([("a", "b"), ("b", "c")], [("a", "b"), ("b", "c")]))  # fmt: skip
    assert tokenizer_problem(first, second) is None
    second["model"]["merges"] = [["b", "c"], ["a", "b"]]
    assert "merge 0" in tokenizer_problem(first, second)
    # The two ways in which tokenizer.json spells merges, and vocabularies, are one.
    first["model"]["merges"] = ["b c", "a b"]
    assert tokenizer_problem(first, second) is None
    unigram = {"model": {"vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]}}
    assert tokenizer_problem(unigram, {"model": {"vocab": [["<unk>", 0.0], ["a", -3.0], ["b", -2.0]]}}) is None
    assert "id 2" in tokenizer_problem(unigram, {"model": {"vocab": [["<unk>", 0.0], ["a", -1.0], ["c", -2.0]]}})


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors"])
def test_a_damaged_embedded_model_affects_no_other(tmp_path, monkeypatch, damage):
    for name in (DEFAULT_TARGET, DEFAULT_DRAFT):
        save_model(tmp_path / name)
    monkeypatch.setattr("core.models.catalogue.EMBEDDED", tmp_path)
    assert [entry.ref for entry in embedded_models()] == [DEFAULT_TARGET, DEFAULT_DRAFT]
    if damage == "config.json":
        (tmp_path / DEFAULT_TARGET / damage).write_bytes(b"{")
    else:
        (tmp_path / DEFAULT_TARGET / damage).unlink()
    assert [entry.ref for entry in embedded_models()] == [DEFAULT_DRAFT]
    assert resolve(DEFAULT_DRAFT).embedded
    assert resolve(str(tmp_path / DEFAULT_DRAFT)).format is ModelFormat.SAFETENSORS
    assert DEFAULT_TARGET in refusal(DEFAULT_TARGET)
    assert DEFAULT_TARGET not in refusal("nothing-like-it", ModelNotFoundError)


def test_a_model_may_list_the_ids_that_it_drafts_from(tmp_path):
    save_model(tmp_path / "draft")
    edit_json(tmp_path / "draft" / "config.json", draft_vocabulary=[5, 3, 200])
    model = load(str(tmp_path / "draft"), "cpu")
    ids = torch.tensor(PROMPT)
    whole = model.runner(32).forward(ids, num_logits=2).logits
    trimmed = model.runner(32, drafting=True).forward(ids, num_logits=2).logits
    assert torch.allclose(trimmed, whole[:, [5, 3, 200]], atol=1e-5)


@pytest.mark.parametrize("listed", [[], [1, 1], [-1], [100_000], ["a"], "abc", [1.5]])
def test_a_list_of_ids_that_makes_no_sense_is_refused(tmp_path, listed):
    save_model(tmp_path / "draft")
    edit_json(tmp_path / "draft" / "config.json", draft_vocabulary=listed)
    refusal(str(tmp_path / "draft"), ModelUnreadableError)
