"""Folders and cached revisions that are models as far as names and configurations go."""

import os
import time

from core.models import hub

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
