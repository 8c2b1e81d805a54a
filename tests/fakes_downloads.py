"""A model to download from a Hub of the test's own, how to interrupt it, and what a download left behind."""

import random

import pytest

from core.controls import Cancelled
from core.models.remote import hub
from core.models.remote.downloads import download

REF = "owner/tiny-model"
WEIGHTS = "model.safetensors"
SIZE = 300_000


def content(size: int = SIZE, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def model_files(**changes: bytes | None) -> dict[str, bytes]:
    files = {
        "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        WEIGHTS: content(),
        **{name.replace("__", "."): data for name, data in changes.items()},
    }
    return {name: data for name, data in files.items() if data is not None}


def refusal(error, ref=REF, **arguments) -> str:
    """Downloads what can't be downloaded, and returns the message."""
    from tests import fakes  # With torch, which a process that is killed in a download can do without.

    return fakes.refusal(error, download, ref, **arguments)


def left_behind(home) -> list[str]:
    return sorted(path.name for path in home.rglob("*") if path.is_file() and ".lock" not in path.name)


def stop_at_first_bytes() -> None:
    if hub.partial_bytes(REF) > 1_000:  # The small files are over by then.
        raise Cancelled


def interrupt() -> int:
    """Stops a download while its weights come in; returns how much of them is there."""
    with pytest.raises(Cancelled):
        download(REF, check_cancelled=stop_at_first_bytes)
    kept = hub.partial_bytes(REF)
    assert 0 < kept < SIZE
    return kept
