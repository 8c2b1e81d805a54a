"""Models of strangers: whatever is in the folder, loading ends soon with a model or one sentence."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import sys
from functools import partial

import pytest
from safetensors.torch import load_file, save_file

from app.__main__ import main
from core.errors import (
    ModelUnreadableError,
    OutOfMemoryError,
    OutriderError,
    PromptError,
    TokenizerError,
    ran_out_of_memory,
)
from core.models import load
from core.models.catalogue import DEFAULT_TARGET, resolve
from core.models.devices import available_memory
from core.models.fit import forecast, pair_verdict
from core.models.folder.details import read_details
from core.models.folder.weight_files import read_weight_headers
from core.models.prompting import encode_prompt, render_prompt
from core.session import Session
from core.settings import RunRequest
from core.types import FinishReason
from tests import fakes
from tests.children import run_code
from tests.errors import failing
from tests.fakes import PANICS, edit_json, is_sentence, save_model


@pytest.fixture
def folder(tmp_path):
    """A good model in a folder of the test's own, to be spoilt."""
    return save_model(tmp_path / "model")


def refusal(ref, error=ModelUnreadableError) -> str:
    """Loads what can't be loaded, and returns the error message."""
    return fakes.refusal(error, load, str(ref), "cpu")


CONFIGS = {
    "100,000 layers": ({"num_hidden_layers": 100_000}, "100,000"),
    "fewer layers than the file": ({"num_hidden_layers": 1}, "describes 1 layers"),
    "no layer": ({"num_hidden_layers": 0}, ""),
    "a negative number of layers": ({"num_hidden_layers": -2}, "describes 0 layers"),
    "two hundred layers": ({"num_hidden_layers": 200}, ""),
    "1e9 labels": ({"num_labels": 10**9}, "num_labels"),
    "many experts": ({"text_config": {"num_experts": 10**9}}, "num_experts"),
    "a huge width": ({"hidden_size": 1 << 20, "intermediate_size": 1 << 22}, ""),
    "a huge vocabulary": ({"vocab_size": 1 << 34}, ""),
    "a context in words": ({"max_position_embeddings": "x"}, ""),
    "a negative context": ({"max_position_embeddings": -1}, ""),
    "layers in words": ({"num_hidden_layers": "many"}, ""),
    "a type with control characters": ({"model_type": "a\x1b]0;owned\x07"}, ""),
    "a type that is not a string": ({"model_type": ["llama"]}, ""),
}


@pytest.mark.parametrize(("changes", "words"), CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_of_another_model_is_refused_before_one_is_built(folder, changes, words):
    edit_json(folder / "config.json", **changes)
    message = refusal(folder, OutriderError)
    assert words in message
    assert message.isprintable()


def test_numbers_that_count_from_the_end_are_not_too_many(folder):
    edit_json(folder / "config.json", vision_feature_layer=-2, label_pad_token_id=-100)
    assert load(str(folder), "cpu").vocab_size == 257


def test_a_table_of_positions_that_no_memory_holds_is_refused_before_it_is_made(tmp_path):
    small = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}
    folder = save_model(tmp_path / "gptj", family="gptj", n_positions=128, **small)
    assert load(str(folder), "cpu").context_length == 128
    edit_json(folder / "config.json", n_positions=30_000_000)
    assert "such as those of its positions" in refusal(folder)


def test_a_bare_model_type_is_not_built_in_its_usual_size(folder):
    (folder / "config.json").write_text('{"model_type": "llama"}')
    assert "parameters" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "endless", "deep", "large"])
def test_a_file_that_never_ends_is_refused(folder, name, kind):
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        if os.name == "nt":
            pytest.skip("Windows has no such pipes")
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "deep":
        path.write_text('{"a":' * 200_000)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40 if kind == "endless" else 17_000_000)
    if (kind, name) != ("large", "tokenizer_config.json"):
        refusal(folder)
        if name != "generation_config.json":  # The window's preview doesn't read it.
            fakes.refusal(ModelUnreadableError, render_prompt, str(folder), "x")


def test_no_implementation_that_a_configuration_asks_for_is_used(folder):
    edit_json(folder / "config.json", attn_implementation="kernels-community/x")
    assert load(str(folder), "cpu").model.config._attn_implementation == "sdpa"


def test_a_layer_that_the_configuration_leaves_out_is_found_in_the_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    extra = {name.replace("layers.1.", "layers.2."): tensor.clone() for name, tensor in tensors.items()}
    save_file({**extra, **tensors}, folder / "model.safetensors", {"format": "pt"})
    assert "its weights have 3" in refusal(folder)


@pytest.mark.parametrize(
    "files", [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")]
)
def test_the_limit_of_a_container_counts_as_memory(tmp_path, files):
    whole = available_memory(tmp_path)
    for name, text in zip(files, ("3000000\n", "1000000\n"), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert whole > available_memory(tmp_path) == 2_000_000
    total = "total_" if "/" in files[0] else ""
    stat = (tmp_path / files[0]).with_name("memory.stat")
    stat.write_text(f"cache 9\n{total}inactive_file 300000\n{total}active_file 200000\n")
    assert available_memory(tmp_path) == 2_500_000, "files held in memory are given back when it is needed"
    (tmp_path / files[0]).write_text("max\n")
    assert available_memory(tmp_path) > 2_000_000


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("0::/user/run.scope", "user/run.scope"),
        ("0::/user/run.scope", "user"),
        ("4:cpu,memory:/user/run.scope", "memory/user/run.scope"),
    ],
)
def test_the_limit_of_a_service_counts_as_memory_and_so_do_those_above_it(tmp_path, line, folder):
    membership, group = tmp_path / "cgroup", tmp_path / folder
    membership.write_text(f"1:cpu:/other\n{line}\n")
    group.mkdir(parents=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if "memory" in line else ("memory.max", "memory.current")
    for name, text in zip(names, ("3000000\n", "1000000\n"), strict=True):
        (group / name).write_text(text)
    assert available_memory(tmp_path, membership) == 2_000_000
    membership.write_text("3:cpu:/user/run.scope\n0::/elsewhere\n")
    assert available_memory(tmp_path, membership) > 2_000_000


def test_under_the_limit_of_a_container_a_model_too_large_is_not_loaded_and_forecast_not_to_fit(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("core.models.devices.available_memory", partial(available_memory, tmp_path))
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.max").write_text("500000000\n")
    details = read_details(resolve(str(folder)))
    assert forecast([details], device="cpu").fits
    load(str(folder), "cpu")
    (tmp_path / "memory.max").write_text("1100000\n")
    assert not forecast([details], device="cpu").fits
    assert "100 KB is free" in refusal(folder, OutOfMemoryError)
    assert "100 KB is free" in pair_verdict(str(folder), str(folder), device="cpu").warnings[0]


LIMITED = """
import resource, sys
from app.__main__ import main
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20,) * 2)
sys.exit(main(["run", "--prompt", "x = 1", "-n", "2"]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a program's addresses")
@pytest.mark.parametrize("megabytes", [300, 1500])
def test_too_little_memory_is_said_in_a_sentence_and_is_no_damage(megabytes):
    done = run_code(LIMITED, megabytes)
    assert done.returncode == 1
    assert re.search("memory|is free", done.stderr, re.IGNORECASE)
    assert not any(word in done.stderr for word in ("Traceback", "damaged", "failed unexpectedly"))


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (ImportError("x.so: failed to map segment: Cannot allocate memory"), True),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("Invalid buffer size: 23.84 GiB"), True),
        (OSError("页面文件太小，无法完成操作。 (os error 1455)"), True),
        (OSError("[WinError 1455] Die Auslagerungsdatei ist zu klein. Error loading torch_cpu.dll"), True),
        (OSError(errno.ENOENT, "no"), False),
        (ValueError("out of memory"), False),
        (None, False),
    ],
)
def test_memory_that_ran_out_is_told_from_damage(error, is_memory):
    assert ran_out_of_memory(error) == is_memory


def test_the_reason_of_an_unreadable_header_is_quoted_and_too_little_memory_is_no_damage(monkeypatch, folder):
    """safetensors' errors have no `strerror`."""
    monkeypatch.setattr("safetensors.safe_open", failing(OSError("Stale file handle (os error 116)")))
    with pytest.raises(ModelUnreadableError, match=r"can't be read \(Stale file handle \(os error 116\)\)"):
        read_weight_headers(folder, "model")
    monkeypatch.setattr("safetensors.safe_open", failing(OSError("页面文件太小，无法完成操作。 (os error 1455)")))
    with pytest.raises(OutOfMemoryError, match="Out of memory"):
        read_weight_headers(folder, "model")


@pytest.mark.parametrize("name", ["../secret.safetensors", "{outside}", "sub/secret.safetensors", "a\\b", "C:a"])
def test_no_index_leads_out_of_a_models_folder(folder, name):
    outside = folder.parent / "secret.safetensors"
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(outside)
    (folder / "sub").mkdir()
    (folder / "sub" / "secret.safetensors").write_bytes(outside.read_bytes())
    listed = dict.fromkeys(names, name.format(outside=outside))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    assert "not in its folder" in refusal(folder)


def damaged(whole: bytes, seed: int) -> bytes:
    """A file of weights with its header or its end spoilt."""
    draw = random.Random(seed)
    end = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:end])
    entry = header[draw.choice(sorted(header.keys() - {"__metadata__"}))]
    kind = seed % 6
    if kind == 0:
        return whole[: draw.randrange(len(whole))]
    if kind == 1:
        entry["shape"] = draw.choice([[], [-1], [2**40, 2**40], [0], [*entry["shape"], 1], ["x"]])
    elif kind == 2:
        entry["dtype"] = draw.choice(["F64", "I8", "BOOL", "X", None, "F8_E4M3"])
    elif kind == 3:
        entry["data_offsets"] = draw.choice([[0, 2**63], [5, 1], [-4, 4], [], [0, 0]])
    elif kind == 4:
        header[draw.choice(["x" * 10_000, "", "model.norm.weight\0"])] = header.pop(next(iter(header)))
    else:
        at = draw.randrange(8, end)
        return whole[:at] + bytes([draw.randrange(256)]) + whole[at + 1 :]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + whole[end:]


def test_damaged_weights_are_loaded_whole_or_refused(folder):
    path, outcomes = folder / "model.safetensors", []
    whole = path.read_bytes()
    for seed in range(57):
        path.write_bytes(damaged(whole, seed))
        try:
            load(str(folder), "cpu")
            outcomes.append("")
        except ModelUnreadableError as error:
            outcomes.append(str(error))
    assert all(is_sentence(message) for message in outcomes if message), outcomes
    assert outcomes.count("") < 20


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_that_are_no_numbers_end_a_run_as_failed(folder, name, value):
    tensors = load_file(folder / "model.safetensors")
    tensors[name].fill_(value)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    request = RunRequest(str(folder), None, prompt="abc", method="prompt-lookup", device="cpu", max_new_tokens=4)
    summary = list(Session().run(request))[-1].summary
    assert summary.finish_reason is FinishReason.ERROR
    assert is_sentence(summary.error)
    assert summary.num_tokens == 0


# --- Programs in a model ----------------------------------------------------------------------------------------

NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
TEMPLATES = {
    "a loop": (NESTED + "{% endfor %}" * 3, "1 seconds"),
    "a text": ("{{ 'x' * 9000000000 }}", "memory"),
    "a list": ("{{ [0] * 9000000000 }}", "memory"),
    "a centred text": ("{{ 'x' | center(9000000000) }}", "memory"),
    "a format": ("{{ '%9000000000d' | format(1) }}", "memory"),
    "a format's method": ("{{ '{:9000000000}'.format(1) }}", "memory"),
    "JSON": ("{{ ('x' * 270000000) | tojson }}", "memory"),
    "doubling": (
        "{% set n = namespace(s='x') %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
        "memory",
    ),
    "control characters": ("{{ raise_exception('a\x1b]0;owned\x07b') }}", "owned"),
    "another alphabet": ("{{ raise_exception('你好') }}", "你好"),
    "a mistake": ("{% for", "end of template"),
}


@pytest.mark.parametrize(("template", "words"), TEMPLATES.values(), ids=TEMPLATES)
def test_a_chat_template_that_loops_or_grows_is_ended(folder, template, words, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")  # As on Windows.
    # On a busy machine, the usual 5 seconds may pass before memory is used up.
    monkeypatch.setattr("core.models.template_child.SECONDS", 1 if words == "1 seconds" else 60)
    edit_json(folder / "tokenizer_config.json", chat_template=template)
    said = fakes.refusal(PromptError, render_prompt, str(folder), "hi", chat=True)
    assert words in said
    assert said.isprintable()


def test_a_chat_template_renders_as_transformers_does(folder):
    template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}"
    template += "{% if add_generation_prompt %}<answer>{{ '\\ud800' }}{% endif %}"
    edit_json(folder / "tokenizer_config.json", chat_template=template, bos_token="é")
    model = load(str(folder), "cpu")
    encoded = encode_prompt(model, 'snö "☃"', chat=True)
    messages = [{"role": "user", "content": 'snö "☃"'}]
    whole = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert encoded.rendered == whole.replace("\ud800", "?")
    assert encoded.is_chat


def replacing(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


TOKENIZERS = {
    "a regex": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}},
        TokenizerError,
    ),
    "a normaliser": (PANICS, TokenizerError),
    "doublings": (
        {"normalizer": {"type": "Sequence", "normalizers": [replacing({"String": "x"}, "xx")] * 40}},
        ModelUnreadableError,
    ),
    "insertions": (
        {"decoder": {"type": "Sequence", "decoders": [replacing({"Regex": ""}, "x")] * 40}},
        ModelUnreadableError,
    ),
    "a table": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, ModelUnreadableError),
}


@pytest.mark.parametrize(("changes", "error"), TOKENIZERS.values(), ids=TOKENIZERS)
def test_a_tokenizer_that_panics_or_grows_its_text_is_a_sentence_and_a_failure(folder, changes, error, capfd):
    edit_json(folder / "tokenizer.json", **changes)
    said = fakes.refusal(error, render_prompt, str(folder), "x" * 60)
    flags = ["--prompt", "x" * 60, "--method", "prompt-lookup", "--device", "cpu", "--quiet"]
    assert main(["run", "--target", str(folder), *flags]) == (1 if error is TokenizerError else 2)
    written = capfd.readouterr().err
    assert written.splitlines()[-1] == said


def test_a_forced_text_that_makes_a_tokenizer_panic_is_a_sentence(folder):
    edit_json(folder / "tokenizer.json", **TOKENIZERS["a regex"][0])
    request = RunRequest(str(folder), None, prompt="abc", method="prompt-lookup", forced_text="x" * 60, device="cpu")
    fakes.refusal(TokenizerError, lambda: list(Session().run(request)), match="Shorten the text")


def test_a_text_that_makes_the_shipped_tokenizer_panic_is_a_sentence():
    fakes.refusal(TokenizerError, render_prompt, DEFAULT_TARGET, " " * 12_000_000, match="Shorten the text")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_weights_that_are_no_file_are_refused_before_the_library_waits_for_them(folder, kind):
    (folder / "model.safetensors").unlink()
    if kind == "pipe":
        os.mkfifo(folder / "model.safetensors")
    else:
        (folder / "model.safetensors").symlink_to("/dev/zero")
    assert "pipe or a device" in refusal(folder)
    with pytest.raises(ModelUnreadableError, match="pipe or a device"):
        read_weight_headers(folder, "model")
