"""Tokenizers, read without the model that they belong to."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from core.errors import ModelUnreadableError
from core.models.catalogue import ModelEntry
from core.models.quiet import quiet_transformers

_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
"""One of these holds a tokenizer's vocabulary."""

_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template*")
"""What else a tokenizer is made from; of config.json only the kind of model."""

_alive: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Tokenizers in use, by what their files hold: a draft's is most often its target's over again, some 15 MB of it."""


def load_tokenizer(entry: ModelEntry, folder: Path) -> Any:
    """The tokenizer in a model's folder, as transformers has it; the same object for equal files.

    Raises:
        ModelUnreadableError: it is missing, empty or damaged.
    """
    from transformers import AutoTokenizer

    quiet_transformers()
    try:
        # Without its files transformers makes up a tokenizer of a few special tokens and goes on.
        if not any(any(folder.glob(pattern)) for pattern in _FILES):
            raise FileNotFoundError(folder)
        digest = _digest(folder)
        tokenizer = _alive.get(digest)
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelUnreadableError(
            f"The tokenizer of {entry.title} is missing or can't be read. Download the model again."
        ) from error
    if not len(tokenizer):
        raise ModelUnreadableError(f"The tokenizer of {entry.title} is missing or empty. Download the model again.")
    _alive[digest] = tokenizer
    return tokenizer


def _digest(folder: Path) -> str:
    """Of everything that a tokenizer is made from."""
    digest = hashlib.sha256(_kind_of_model(folder).encode())
    for path in sorted({path for pattern in (*_FILES, *_BESIDE) for path in folder.glob(pattern) if path.is_file()}):
        with path.open("rb") as file:
            digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _kind_of_model(folder: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_text("utf-8"))
        if isinstance(config, dict):
            return f"{config.get('model_type')} {config.get('tokenizer_class')}"
    return ""
