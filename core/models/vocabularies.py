"""What a model's tokenizer files say: tokens by id, merges, special tokens, chat template. Loads no tokenizer.

Files of tens of megabytes are parsed once for each content, and known again by size and time of change.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ModelUnreadableError
from core.models import large_json
from core.models.catalogue import ModelEntry, ModelFormat
from core.models.gguf_header import read_gguf_header

_LARGEST_FILE = 512 << 20
"""Bytes of a tokenizer file that are still parsed."""

_GGUF_UNUSED = 5
_GGUF_PADDING = re.compile(r"\[PAD\d+\]")


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A tokenizer's vocabulary.

    Attributes:
        tokens: by id, added tokens included.
        merges: "left right" in order of rank; empty where a tokenizer has none, or does not tell.
        unused: ids that stand for nothing.
        is_partial: from a GGUF header, which writes spaces as they are and leaves out what has no weights.
    """

    tokens: Mapping[int, str] = field(repr=False)
    merges: tuple[str, ...] = field(default=(), repr=False)
    unused: frozenset[int] = frozenset()
    is_partial: bool = False

    @property
    def num_tokens(self) -> int:
        """Ids up to the highest that stands for a token."""
        return max(self.tokens, default=-1) + 1


def tokens_by_id(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    """The tokens of a tokenizer in the form of tokenizer.json, added ones included.

    Raises:
        AttributeError, IndexError, KeyError, TypeError, ValueError: it has not that form.
    """
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # Unigram models list [piece, score] in the order of ids.
        tokens = {index: str(piece[0]) for index, piece in enumerate(vocabulary)}
    else:
        tokens = {int(token_id): token for token, token_id in vocabulary.items()}
    tokens.update({int(added["id"]): str(added["content"]) for added in tokenizer.get("added_tokens") or ()})
    return tokens


def parse_tokenizer(tokenizer: Mapping[str, Any]) -> TokenTable:
    """The table of a tokenizer in the form of tokenizer.json; raises as `tokens_by_id` does."""
    merges = tokenizer.get("model", {}).get("merges") or []
    joined = tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in merges)
    return TokenTable(tokens_by_id(tokenizer), joined)


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where a vocabulary is read from; two of the same content are equal."""

    content: str
    path: Path = field(compare=False)
    format: ModelFormat = field(compare=False)


def tokenizer_source(entry: ModelEntry) -> TokenizerSource | None:
    """The files of a model's vocabulary; None where there are none that can be read without loading it."""
    try:
        if entry.format is ModelFormat.GGUF:
            state = entry.path.stat()
            return TokenizerSource(f"{entry.path}:{state.st_size}:{state.st_mtime_ns}", entry.path, entry.format)
        digests = []
        for name in ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json"):
            path = entry.path / name
            if path.is_file():
                state = path.stat()
                if state.st_size > _LARGEST_FILE:
                    return None
                digests.append(_digest(path, state.st_size, state.st_mtime_ns))
                if name == "tokenizer.json":
                    break
        return TokenizerSource("".join(digests), entry.path, entry.format) if digests else None
    except OSError:
        return None


def read_table(source: TokenizerSource) -> TokenTable | None:
    """The vocabulary; None if its files are damaged, which loading reports."""
    try:
        return _read_gguf(source.path) if source.format is ModelFormat.GGUF else _read_folder(source)
    except (OSError, ModelUnreadableError, AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError):
        return None


def read_tokens(entry: ModelEntry) -> Mapping[int, str] | None:
    """A model's tokens by id; None where they can't be read without loading it."""
    source = tokenizer_source(entry)
    table = read_table(source) if source else None
    return table.tokens if table else None


@functools.lru_cache(maxsize=256)
def count_tokens(source: TokenizerSource) -> int | None:
    """Ids up to the highest that stands for a token; None if that can't be read."""
    table = read_table(source)
    return None if table is None else table.num_tokens


@functools.lru_cache(maxsize=256)
def _digest(path: Path, _size: int, _modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=4)  # Tens of megabytes each.
def _read_folder(source: TokenizerSource) -> TokenTable:
    folder = source.path
    if (folder / "tokenizer.json").is_file():
        return parse_tokenizer(large_json.read(folder / "tokenizer.json"))
    # The older form of byte-level tokenizers: a file for each part.
    vocabulary = dict(large_json.read(folder / "vocab.json"))
    if (folder / "added_tokens.json").is_file():
        vocabulary.update(large_json.read(folder / "added_tokens.json"))
    merges: list[str] = []
    if (folder / "merges.txt").is_file():
        lines = (folder / "merges.txt").read_text("utf-8").split("\n")
        merges = [line for line in lines if line and not line.startswith("#version")]
    return parse_tokenizer({"model": {"vocab": vocabulary, "merges": merges}})


def _read_gguf(path: Path) -> TokenTable:
    fields = read_gguf_header(path).fields
    tokens = fields.get("tokenizer.ggml.tokens") or ()
    kinds = fields.get("tokenizer.ggml.token_type") or ()
    merges = fields.get("tokenizer.ggml.merges") or ()
    unused = {index for index, kind in enumerate(kinds) if kind == _GGUF_UNUSED}
    unused |= {index for index, token in enumerate(tokens) if _GGUF_PADDING.fullmatch(str(token))}
    by_id = {index: str(token) for index, token in enumerate(tokens) if index not in unused}
    return TokenTable(by_id, tuple(str(merge) for merge in merges), frozenset(unused), is_partial=True)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Which tokens play a part of their own.

    Attributes:
        begin: what a text begins with, if the files say.
        ends: what ends a text.
        chat_template: turns messages into a text, if there is one.
    """

    begin: str | None = None
    ends: frozenset[str] = frozenset()
    chat_template: str | None = field(default=None, repr=False)

    @property
    def is_instruct(self) -> bool:
        """Whether the model was taught to answer: it has a chat template, and ends its texts as the template does.

        Some base models come with the template of their instruct relatives, but still end with a token of their own.
        """
        template = self.chat_template
        if not template:
            return False
        return not self.ends or "eos_token" in template or any(end in template for end in self.ends)


def read_special_tokens(entry: ModelEntry) -> SpecialTokens:
    """What the small files beside a vocabulary say; of those that can't be read, nothing."""
    try:
        return _gguf_special_tokens(entry.path) if entry.format is ModelFormat.GGUF else _special_tokens(entry)
    except (OSError, ModelUnreadableError, AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError):
        return SpecialTokens()


def _special_tokens(entry: ModelEntry) -> SpecialTokens:
    settings = _read_json(entry.path / "tokenizer_config.json")
    ends = {_content(settings.get("eos_token"))}
    generation = _read_json(entry.path / "generation_config.json").get("eos_token_id")
    ids = [item for item in (generation if isinstance(generation, list) else [generation]) if type(item) is int]
    if ids:
        ends |= set(_names(entry, settings, ids))
    known = frozenset(end for end in ends if end)
    return SpecialTokens(_content(settings.get("bos_token")), known, _chat_template(entry.path, settings))


def _names(entry: ModelEntry, settings: Mapping[str, Any], ids: list[int]) -> list[str | None]:
    added = settings.get("added_tokens_decoder") or {}
    if all(str(item) in added for item in ids):
        return [_content(added[str(item)]) for item in ids]
    tokens = read_tokens(entry) or {}
    return [tokens.get(item) for item in ids]


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8", "replace")
    template = settings.get("chat_template")
    if isinstance(template, list):  # Several by name, of which the default one counts.
        named = {item["name"]: item["template"] for item in template}
        template = named.get("default") or next(iter(named.values()), None)
    return template if isinstance(template, str) else None


def _gguf_special_tokens(path: Path) -> SpecialTokens:
    fields = read_gguf_header(path).fields
    tokens = fields.get("tokenizer.ggml.tokens") or ()

    def token(role: str) -> str | None:
        token_id = fields.get(f"tokenizer.ggml.{role}_token_id")
        return tokens[token_id] if type(token_id) is int and 0 <= token_id < len(tokens) else None

    template = fields.get("tokenizer.chat_template")
    ends = frozenset(end for end in (token("eos"), token("eot")) if end)
    return SpecialTokens(token("bos"), ends, template if isinstance(template, str) else None)


def _content(token: Any) -> str | None:
    """A token as tokenizer_config.json writes it: its text, or a record that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes()) if path.is_file() else {}
    return content if isinstance(content, dict) else {}
