"""Models of a few weights in a Hub cache of the test's own, and a terminal to look at them in."""

import io
import json
import os
import re
import struct
import time
from types import SimpleNamespace

from core.models import catalogue
from core.models.remote import hub

REF = "owner/tiny-model"
OLD, NEW, COMMIT = "a" * 40, "b" * 40, "0123456789abcdef0123456789abcdef01234567"


def write_model(folder, *, layers=1, tokens=("a", "b", "c"), files=None, **config):
    """A llama of a few weights, all of them 0; `files` are written in place of its own, or left out where None."""
    folder.mkdir(parents=True)
    shapes = {"model.embed_tokens.weight": [len(tokens), 4]}
    shapes |= {f"model.layers.{index}.mlp.up_proj.weight": [8, 4] for index in range(layers)}
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        start, end = end, end + rows * columns * 2
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
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
    vocabulary = {token: index for index, token in enumerate(tokens)}
    contents = {
        "model.safetensors": struct.pack("<Q", len(text)) + text + bytes(end),
        "config.json": json.dumps(values | config),
        "tokenizer.json": json.dumps({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}),
        "tokenizer_config.json": "{}",
        **(files or {}),
    }
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def write_snapshot(ref=REF, commit=OLD, *, main=False, age=0.0, **changes):
    """A model's revision in the Hub cache, its weights a link to a blob as the Hub's tools store them."""
    folder = write_model(hub.snapshot_folder(ref, commit), **changes)
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


def empty_shelf(folder, monkeypatch):
    """Only the test's own models exist; the terminal and cache of the test run have no influence."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_OFF")) or name in _TERMINAL:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setattr(catalogue, "EMBEDDED", folder / "embedded")
    return folder


_TERMINAL = {"COLUMNS", "NO_COLOR", "FORCE_COLOR", "OUTRIDER_DEBUG"}


def leave_partial(shelf):
    """What a download that was stopped leaves in the Hub cache: 4 MB."""
    blobs = shelf / "hub" / "models--owner--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("0" * 64 + hub.PARTIAL_SUFFIX)).write_bytes(bytes(4_000_000))


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


def open_terminal(monkeypatch, *, width=100, typed=""):
    """Standard output and stderr of a terminal, and answers typed at it."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    streams = SimpleNamespace(out=Terminal(), err=Terminal())
    monkeypatch.setattr("sys.stdout", streams.out)
    monkeypatch.setattr("sys.stderr", streams.err)
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    return streams
