"""A model's vocabulary, special tokens and chat template, from its files or its GGUF header. Never imports torch."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ModelUnreadableError
from core.files import open_regular, read_bounded, read_json
from core.models.catalogue import ModelEntry, ModelFormat
from core.models.folder.weight_files import read_gguf_header

LARGEST_TOKENIZER = 256 << 20
"""Largest tokenizer file that is parsed, in bytes; the largest known has about 35 MB."""

_READERS = {"tiktoken.model": ("tiktoken",), "*.model": ("sentencepiece", "protobuf")}
"""The packages with which transformers reads a vocabulary that it can't read by itself, by the name of its file."""

_GGUF_UNUSED = 5
_GGUF_PADDING = re.compile(r"\[PAD\d+\]")
_UNREADABLE = (
    OSError, ModelUnreadableError, AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError,
)  # fmt: skip
"""Errors raised by damaged files; loading reports the cause."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A tokenizer's vocabulary.

    Attributes:
        tokens: by id, added tokens included.
        merges: "left right" by rank; empty if there are none or they are unknown.
        unused: ids without a token.
        is_partial: from a GGUF header, which writes spaces as they are and leaves out what has no weights.
    """

    tokens: Mapping[int, str] = field(repr=False)
    merges: tuple[str, ...] = field(default=(), repr=False)
    unused: frozenset[int] = frozenset()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """The files of a vocabulary; equal if their contents are equal."""

    content: str
    path: Path = field(compare=False)


def parse_tokenizer(tokenizer: Mapping[str, Any]) -> TokenTable:
    """Parse a tokenizer in tokenizer.json format.

    Raises:
        AttributeError, IndexError, KeyError, TypeError, ValueError: the format is wrong.
    """
    model = tokenizer.get("model", {})
    vocabulary = model.get("vocab", {})
    if isinstance(vocabulary, list):  # Unigram models list [piece, score] in id order.
        tokens = {index: str(piece[0]) for index, piece in enumerate(vocabulary)}
    else:
        tokens = {int(token_id): token for token, token_id in vocabulary.items()}
    tokens.update({int(added["id"]): str(added["content"]) for added in tokenizer.get("added_tokens") or ()})
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges") or ())
    return TokenTable(tokens, tuple(merges))


def vocabulary_problem(folder: Path, names: Iterable[str], title: str) -> str | None:
    """Why none of a model's tokenizer files can be read here, in a sentence; None if one can, or loading will tell.

    Args:
        folder: holds its tokenizer_config.json, if it is here.
        names: of all files of the model.
        title: what the sentence calls it.
    """
    names = sorted(names)
    if {"tokenizer.json", "vocab.json", "vocab.txt", "tekken.json"} & set(names):
        return None
    needed = next((_READERS[kind] for kind in _READERS if fnmatch.filter(names, kind)), ())
    with contextlib.suppress(*_UNREADABLE):
        # A class of the model's own would read it, and even without one, transformers has none for *.tiktoken.
        has_class = needed == ("tiktoken",) and "auto_map" in _read_json(folder / "tokenizer_config.json")
        if has_class or (not needed and fnmatch.filter(names, "*.tiktoken")):
            return own_code_needed(title)
    lacking = [name for name in needed if not any(importlib.metadata.distributions(name=name))]
    # With tiktoken, transformers reads a tokenizer.model that isn't SentencePiece's, such as Llama 3's.
    may_be_tiktoken = "tokenizer.model" in names and not _is_sentencepiece(folder)
    if lacking and not (may_be_tiktoken and any(importlib.metadata.distributions(name="tiktoken"))):
        return (
            f"The tokenizer of {title} needs {' and '.join(lacking)}. Install what is missing with "
            f"`pip install {' '.join(lacking)}`, or choose another model."
        )
    return None


def _is_sentencepiece(folder: Path) -> bool:
    with contextlib.suppress(OSError), (folder / "tokenizer.model").open("rb") as file:
        return file.read(1) == b"\n"  # The tag of its first piece; tiktoken's files are text.
    return False


def own_code_needed(title: str) -> str:
    """The sentence about a tokenizer whose class comes with its model."""
    return f"The tokenizer of {title} needs the model's own code, which is never run. Choose another model."


def tokenizer_source(entry: ModelEntry) -> TokenizerSource | None:
    """The files of a model's vocabulary; None if none can be read without loading it."""
    try:
        if entry.format is ModelFormat.GGUF:
            state = entry.path.stat()
            return TokenizerSource(f"{entry.path}:{state.st_size}:{state.st_mtime_ns}", entry.path)
        names = ("tokenizer.json",) if (entry.path / "tokenizer.json").is_file() else (
            "vocab.json", "merges.txt", "added_tokens.json"
        )  # fmt: skip
        digests = []
        for path in (entry.path / name for name in names):
            if path.is_file():
                state = path.stat()
                if state.st_size > LARGEST_TOKENIZER:
                    return None
                digests.append(_digest(path, state.st_size, state.st_mtime_ns))
        return TokenizerSource("".join(digests), entry.path) if digests else None
    except OSError:
        return None


def read_table(source: TokenizerSource) -> TokenTable | None:
    """The vocabulary; None if its files are damaged."""
    try:
        return _read_gguf(source.path) if source.path.is_file() else _read_folder(source)
    except _UNREADABLE:
        return None


def read_tokens(entry: ModelEntry) -> Mapping[int, str] | None:
    """A model's tokens by id; None if they can't be read without loading it."""
    source = tokenizer_source(entry)
    table = read_table(source) if source else None
    return table.tokens if table else None


@functools.lru_cache(maxsize=256)
def count_tokens(source: TokenizerSource) -> int | None:
    """Number of ids up to the highest with a token; None if unreadable."""
    table = read_table(source)
    return None if table is None else max(table.tokens, default=-1) + 1


@functools.lru_cache(maxsize=256)
def _digest(path: Path, _size: int, _modified_ns: int) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=4)  # Tens of megabytes each.
def _read_folder(source: TokenizerSource) -> TokenTable:
    folder = source.path
    if (folder / "tokenizer.json").is_file():
        return parse_tokenizer(read_json(folder / "tokenizer.json", LARGEST_TOKENIZER))
    # The older byte-level format: one file per part.
    vocabulary = {**read_json(folder / "vocab.json", LARGEST_TOKENIZER), **_read_json(folder / "added_tokens.json")}
    merges: list[str] = []
    if (folder / "merges.txt").is_file():
        lines = read_bounded(folder / "merges.txt", LARGEST_TOKENIZER).decode("utf-8").split("\n")
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


# --- Special tokens ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The begin token, the end tokens and the chat template, as far as the files say."""

    begin: str | None = None
    ends: frozenset[str] = frozenset()
    chat_template: str | None = field(default=None, repr=False)

    @property
    def is_instruct(self) -> bool:
        """Whether the model is an instruct model: it has a chat template and uses the template's end token.

        Some base models ship their instruct sibling's template, but use another end token.
        """
        template = self.chat_template
        if not template:
            return False
        return not self.ends or "eos_token" in template or any(end in template for end in self.ends)


def read_special_tokens(entry: ModelEntry) -> SpecialTokens:
    """Special tokens from the small files beside a vocabulary; unreadable files are skipped."""
    try:
        return _gguf_special_tokens(entry.path) if entry.format is ModelFormat.GGUF else _special_tokens(entry)
    except _UNREADABLE:
        return SpecialTokens()


def _special_tokens(entry: ModelEntry) -> SpecialTokens:
    settings = _read_json(entry.path / "tokenizer_config.json")
    generation = _read_json(entry.path / "generation_config.json").get("eos_token_id")
    ids = [item for item in (generation if isinstance(generation, list) else [generation]) if type(item) is int]
    added = settings.get("added_tokens_decoder") or {}
    if all(str(item) in added for item in ids):
        named = [_content(added[str(item)]) for item in ids]
    else:
        tokens = read_tokens(entry) or {}
        named = [tokens.get(item) for item in ids]
    ends = frozenset(end for end in (_content(settings.get("eos_token")), *named) if end)
    template = settings.get("chat_template")
    if (file := entry.path / "chat_template.jinja").is_file():
        template = read_bounded(file).decode("utf-8", "replace")
    elif isinstance(template, list):  # Several named templates; the default one is used.
        templates = {item["name"]: item["template"] for item in template}
        template = templates.get("default") or next(iter(templates.values()), None)
    return SpecialTokens(_content(settings.get("bos_token")), ends, template if isinstance(template, str) else None)


def _gguf_special_tokens(path: Path) -> SpecialTokens:
    fields = read_gguf_header(path).fields
    tokens = fields.get("tokenizer.ggml.tokens") or ()

    def token(role: str) -> str | None:
        token_id = fields.get(f"tokenizer.ggml.{role}_token_id")
        return tokens[token_id] if type(token_id) is int and 0 <= token_id < len(tokens) else None

    template = fields.get("tokenizer.chat_template")
    ends = frozenset(end for end in (token("eos"), token("eot"), token("eom")) if end)
    return SpecialTokens(token("bos"), ends, template if isinstance(template, str) else None)


def _content(token: Any) -> str | None:
    """A token as tokenizer_config.json writes it: its text, or a record that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}
