"""Tokenizers, read without the model that they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core.errors import ModelUnreadableError
from core.models.catalogue import ModelEntry
from core.models.quiet import quiet_transformers

_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
"""One of these holds a tokenizer's vocabulary."""


def load_tokenizer(entry: ModelEntry, folder: Path) -> Any:
    """The tokenizer in a model's folder, as transformers has it.

    Raises:
        ModelUnreadableError: it is missing, empty or damaged.
    """
    from transformers import AutoTokenizer

    quiet_transformers()
    try:
        # Without its files transformers makes up a tokenizer of a few special tokens and goes on.
        if not any(any(folder.glob(pattern)) for pattern in _FILES):
            raise FileNotFoundError(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelUnreadableError(
            f"The tokenizer of {entry.title} is missing or can't be read. Download the model again."
        ) from error
    if not tokenizer.get_vocab():
        raise ModelUnreadableError(f"The tokenizer of {entry.title} is missing or empty. Download the model again.")
    return tokenizer
