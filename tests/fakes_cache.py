"""Models of a few bytes in a Hub cache of the test's own, and a terminal to look at them in."""

import io
import json
import os
import re
import struct
import time
from types import SimpleNamespace

from core.models import catalogue, hub

REF = "owner/tiny-model"
CONFIG = '{"architectures": ["LlamaForCausalLM"]}'
OLD, NEW = "a" * 40, "b" * 40


def write_folder(folder, **changes):
    """A folder that is a model as far as names and configuration go."""
    files = {"config.json": CONFIG, "tokenizer.json": "{}", "model.safetensors": "weights", **changes}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        if text is not None:
            (folder / name).write_text(text)
    return folder


def write_snapshot(ref=REF, commit=OLD, *, main=False, age=0.0, **changes):
    """A revision in the cache, its weights a link to a blob as the Hub's tools lay them down."""
    folder = write_folder(hub.snapshot_folder(ref, commit), **changes)
    weights = folder / "model.safetensors"
    if weights.exists():
        blob = hub.repository_folder(ref) / "blobs" / f"{commit[0]}{len(ref)}"
        blob.parent.mkdir(exist_ok=True)
        weights.rename(blob)
        weights.symlink_to(os.path.relpath(blob, folder))
    if main:
        hub.set_main(ref, commit)
    os.utime(folder, (time.time() - age,) * 2)
    return folder


def empty_cache(folder, monkeypatch):
    """A Hub cache of the test's own, which is not there yet, and no embedded models."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    monkeypatch.setattr("core.models.catalogue.EMBEDDED", folder / "embedded")
    return folder / "hf" / "hub"


# --- For the terminal ---

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_model(folder, *, layers=1, tokens=("a", "b", "c"), **config):
    """A llama of a few weights, all of them 0."""
    folder.mkdir(parents=True)
    shapes = {"model.embed_tokens.weight": [len(tokens), 4]}
    shapes |= {f"model.layers.{index}.mlp.up_proj.weight": [8, 4] for index in range(layers)}
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        start, end = end, end + rows * columns * 2
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    values = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(tokens),
        "hidden_size": 4,
        "intermediate_size": 8,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(values | config), "utf-8")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text("{}", "utf-8")
    return folder


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def text(self):
        """What was written, without colours and weights."""
        return re.sub(r"\x1b\[[\d;]*m", "", self.getvalue())


def models(*arguments):
    from app.__main__ import main

    return main(["models", *map(str, arguments)])


def fields(text):
    """The last value of each name."""
    return dict(line.split("\t") for line in text.splitlines())


def empty_shelf(folder, monkeypatch):
    """No model is here but those of the test; the terminal of the test run has no say."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_")) or name in {"COLUMNS", "NO_COLOR", "FORCE_COLOR", "OUTRIDER_DEBUG"}:
            monkeypatch.delenv(name)
    embedded = folder / "embedded"
    embedded.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(catalogue, "EMBEDDED", embedded)
    return folder


def put_into_cache(shelf, ref, **changes):
    """Puts a model into the Hub cache."""
    repository = shelf / "hub" / f"models--{ref.replace('/', '--')}"
    folder = write_model(repository / "snapshots" / COMMIT, **changes)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return folder


def leave_partial(shelf):
    """What a download that was stopped leaves in the Hub cache: 4 MB."""
    blobs = shelf / "hub" / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("0" * 64 + hub.PARTIAL_SUFFIX)).write_bytes(bytes(4_000_000))


def open_terminal(monkeypatch, *, width=100, typed=""):
    """Standard output and stderr of a terminal, and answers typed at it."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    streams = SimpleNamespace(out=Terminal(), err=Terminal())
    monkeypatch.setattr("sys.stdout", streams.out)
    monkeypatch.setattr("sys.stderr", streams.err)
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    return streams
