"""What a model is, told from the small parts of its files: configuration, headers, tokenizer. Never imports torch."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import ModelUnreadableError
from core.models.catalogue import ModelEntry, ModelFormat
from core.models.weight_files import TensorInfo, read_gguf_header, read_weight_headers

_LARGE = 1_000_000
"""Characters from which on it is worth while: what is smaller takes `json.loads` less than 15 ms."""

_LEVELS = 3
"""Of a tokenizer.json: the whole, its model, and that one's vocabulary and merges. What is deeper is small."""

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN_MEMBER = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*(0|[1-9][0-9]{0,8})[ \t\n\r]*,[ \t\n\r]*')
"""As nearly all of a vocabulary are: a name without escapes, a whole number, and a comma behind."""
_PLAIN_STRING = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*,[ \t\n\r]*')

_decode = json.JSONDecoder().raw_decode


def read(path: Path) -> Any:
    """What a file holds, as `loads` reads it.

    Raises:
        OSError: it can't be read.
        ValueError, RecursionError: it is no JSON.
    """
    return loads(path.read_bytes().decode("utf-8-sig", "surrogatepass"))


def loads(text: str) -> Any:
    """As `json.loads`, which keeps Python's lock to its end: for a large vocabulary, half a second without any frame.

    Takes two to three times as long, and shares the lock with the other threads.

    Raises:
        ValueError, RecursionError: it is no JSON.
    """
    if len(text) < _LARGE:
        return json.loads(text)
    value, at = _value(text, _skip(text, 0), _LEVELS)
    if at != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return value


def _value(text: str, at: int, levels: int) -> tuple[Any, int]:
    """The value that begins at an index, and where what follows it begins."""
    if levels and text.startswith("{", at):
        return _object(text, _skip(text, at + 1), levels - 1)
    if levels and text.startswith("[", at):
        return _array(text, _skip(text, at + 1), levels - 1)
    value, at = _decode(text, at)
    return value, _skip(text, at)


def _object(text: str, at: int, levels: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    if text.startswith("}", at):
        return members, _skip(text, at + 1)
    while True:
        while plain := _PLAIN_MEMBER.match(text, at):
            members[plain[1]] = int(plain[2])
            at = plain.end()
        if not text.startswith('"', at):
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = _value(text, at, 0)
        if not text.startswith(":", at):
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        members[name], at = _value(text, _skip(text, at + 1), levels)
        if text.startswith("}", at):
            return members, _skip(text, at + 1)
        at = _behind_comma(text, at)


def _array(text: str, at: int, levels: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    if text.startswith("]", at):
        return items, _skip(text, at + 1)
    while True:
        while plain := _PLAIN_STRING.match(text, at):
            items.append(plain[1])
            at = plain.end()
        item, at = _value(text, at, levels)
        items.append(item)
        if text.startswith("]", at):
            return items, _skip(text, at + 1)
        at = _behind_comma(text, at)


def _behind_comma(text: str, at: int) -> int:
    if not text.startswith(",", at):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


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
        return parse_tokenizer(read(folder / "tokenizer.json"))
    # The older form of byte-level tokenizers: a file for each part.
    vocabulary = dict(read(folder / "vocab.json"))
    if (folder / "added_tokens.json").is_file():
        vocabulary.update(read(folder / "added_tokens.json"))
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


_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "token_embd.weight",
)
_HEADS = ("lm_head.weight", "embed_out.weight")
_GGUF_HEAD = "output.weight"
_POSITIONS = ("wpe.weight", "embed_positions.weight", "position_embd.weight")
_OTHER_SENSES = ("vision", "visual", "multi_modal", "audio")
"""Parts of a model that a text never passes through."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What can be known of a model before it is loaded.

    Attributes:
        title: what a person calls it.
        architecture: transformers' model type, or GGUF's.
        num_parameters: in its files, with a tied output head counted once.
        precision: of most of its weights' bytes: a dtype, or a quantisation.
        context_length: positions that it was made for; None if its configuration does not say.
        vocab_size: ids that stand for a token.
        table_size: rows of its embedding table, padding included.
        num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim: its shape; 0 if unknown.
        has_chat_template: whether prompts can be put as turns of a chat.
        is_instruct: whether it was taught to answer in a chat, unlike a base model.
        weight_bytes: of its weights as they are stored.
        body_parameters: that one position's forward multiplies, the output head and tables left out; of experts,
            those that are asked.
        head_parameters: of its output head.
        draft_vocabulary_size: ids that it proposes as a draft; None for all.
        shares_tables_with: the model whose embedding, head and tokenizer it borrows, and can't be loaded without.
        folder: that holds its config.json; None for GGUF.
    """

    title: str
    architecture: str
    num_parameters: int
    precision: str
    context_length: int | None
    vocab_size: int
    table_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_chat_template: bool
    is_instruct: bool
    weight_bytes: int
    body_parameters: int
    head_parameters: int
    draft_vocabulary_size: int | None = None
    shares_tables_with: str | None = None
    folder: Path | None = field(default=None, repr=False)

    def parameters_per_step(self, *, drafting: bool = False) -> int:
        """Parameters that one decoding step multiplies: the embedding is looked up, the head is multiplied.

        Args:
            drafting: whether it proposes, with a head over its draft vocabulary alone where it has one.
        """
        head = self.head_parameters
        if drafting and self.draft_vocabulary_size is not None and self.table_size:
            head = head * self.draft_vocabulary_size // self.table_size
        return self.body_parameters + head


def read_details(entry: ModelEntry) -> ModelDetails:
    """Describe a model from its files' headers.

    Raises:
        ModelUnreadableError: a file is missing, truncated or malformed, with a sentence that says which.
    """
    return _gguf_details(entry) if entry.format is ModelFormat.GGUF else _folder_details(entry)


def _folder_details(entry: ModelEntry) -> ModelDetails:
    whole = read_config(entry)
    nested = whole.get("text_config")
    config = {**whole, **nested} if isinstance(nested, dict) else whole
    tensors = [tensor for tensor in read_weight_headers(entry.path, entry.title) if not _is_buffer(tensor)]
    shares = _shared_model(whole)
    hidden = _number(config, "hidden_size", "n_embd", "d_model")
    table_rows = _number(config, "vocab_size")
    experts = _number(config, "num_local_experts", "num_experts", "n_routed_experts")
    active = _number(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk")
    counts = _count(tensors, is_tied=config.get("tie_word_embeddings") is True, share=_share(active, experts))
    heads = _number(config, "num_attention_heads", "n_head", "num_heads")
    head_dim = _number(config, "head_dim") or (hidden // heads if heads else 0)
    kv_heads = _number(config, "num_key_value_heads") or (1 if config.get("multi_query") is True else heads)
    if not kv_heads or not head_dim:
        # Nested configurations leave out what is their class's default; the widths are in the weights all the same.
        kv_heads, head_dim = 1, _key_width(tensors)
    drafted = whole.get("draft_vocabulary")
    special = read_special_tokens(entry)
    source = tokenizer_source(entry)
    # A drafter that borrows its target's tables has none in its file; its step multiplies the borrowed head.
    table_size = counts.table_rows or table_rows
    return ModelDetails(
        title=entry.title,
        architecture=str(config.get("model_type") or "unknown"),
        num_parameters=counts.total,
        precision=_precision(tensors),
        context_length=_number(config, "max_position_embeddings", "n_positions") or None,
        vocab_size=_vocab_size(count_tokens(source) if source else None, table_size),
        table_size=table_size,
        num_layers=_number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden_size=hidden,
        intermediate_size=_number(config, "intermediate_size", "ffn_dim", "n_inner") or 4 * hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        has_chat_template=special.chat_template is not None,
        is_instruct=special.is_instruct,
        weight_bytes=sum(tensor.num_bytes for tensor in tensors),
        body_parameters=counts.body,
        head_parameters=counts.head or table_size * hidden,
        draft_vocabulary_size=len(drafted) if isinstance(drafted, list) and drafted else None,
        shares_tables_with=shares,
        folder=entry.path,
    )


def _gguf_details(entry: ModelEntry) -> ModelDetails:
    header = read_gguf_header(entry.path)
    number = header.number
    hidden, heads = number("embedding_length") or 0, number("attention.head_count") or 0
    counts = _count(header.tensors, is_tied=False, share=_share(number("expert_used_count"), number("expert_count")))
    special = read_special_tokens(entry)
    source = tokenizer_source(entry)
    return ModelDetails(
        title=entry.title,
        architecture=header.architecture or "unknown",
        num_parameters=counts.total,
        precision=_precision(header.tensors),
        context_length=number("context_length"),
        vocab_size=_vocab_size(count_tokens(source) if source else None, counts.table_rows),
        table_size=counts.table_rows,
        num_layers=number("block_count") or 0,
        hidden_size=hidden,
        intermediate_size=number("feed_forward_length") or 4 * hidden,
        num_heads=heads,
        num_kv_heads=number("attention.head_count_kv") or heads,
        head_dim=number("attention.key_length") or (hidden // heads if heads else 0),
        has_chat_template=special.chat_template is not None,
        is_instruct=special.is_instruct,
        weight_bytes=sum(tensor.num_bytes for tensor in header.tensors),
        body_parameters=counts.body,
        head_parameters=counts.head,
    )


def read_config(entry: ModelEntry) -> dict[str, Any]:
    """A folder's config.json.

    Raises:
        ModelUnreadableError: it is missing, or no configuration.
    """
    try:
        config = json.loads((entry.path / "config.json").read_bytes())
    except FileNotFoundError:
        raise ModelUnreadableError(f"The config.json of {entry.title} is missing. Download the model again.") from None
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ModelUnreadableError(f"The config.json of {entry.title} can't be read. Download the model again.")
    return config


def _shared_model(config: Mapping[str, Any]) -> str | None:
    shares = config.get("shares_tables_with")
    model = shares.get("model") if isinstance(shares, dict) else None
    return model if isinstance(model, str) else None


def _number(config: Mapping[str, Any], *names: str) -> int:
    """The first of these that is a sensible count; 0 if none is."""
    values = (config.get(name) for name in names)
    return next((value for value in values if type(value) is int and 0 < value < 1 << 40), 0)


def _is_buffer(tensor: TensorInfo) -> bool:
    """Masks and rotary frequencies that older files hold beside the weights."""
    return tensor.name.endswith((".masked_bias", ".inv_freq")) or (
        tensor.shape[:2] == (1, 1) and len(tensor.shape) == 4
    )


class _Counts(NamedTuple):
    """Parameters in all, in what every step multiplies but the head, and in the head; rows of the token table."""

    total: int
    body: int
    head: int
    table_rows: int


def _count(tensors: Iterable[TensorInfo], *, is_tied: bool, share: float) -> _Counts:
    """Args:
    tensors: of the model, each once.
    is_tied: whether a head in the file is the embedding over again.
    share: of the experts that one position asks.
    """
    embedding = head = lookups = rest = body = rows = 0
    for name, shape, size in ((tensor.name, tensor.shape, tensor.num_elements) for tensor in tensors):
        if name == _GGUF_HEAD or name.endswith(_HEADS):
            head = size
        elif name.endswith(_EMBEDDINGS):
            embedding, rows = size, shape[0] if shape else 0
        elif name.endswith(_POSITIONS):
            lookups += size
        else:
            rest += size
            is_expert = ".experts." in name or "_exps." in name
            if _is_text(name):
                body += round(size * share) if is_expert else size
    own_head = 0 if is_tied and embedding else head
    return _Counts(rest + lookups + embedding + own_head, body, head or embedding, rows)


def _share(active: int | None, experts: int | None) -> float:
    return min(1.0, active / experts) if active and experts else 1.0


def _precision(tensors: Iterable[TensorInfo]) -> str:
    """That of most bytes."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.precision] += tensor.num_bytes
    return max(sizes, key=sizes.__getitem__, default="unknown")


def _key_width(tensors: Sequence[TensorInfo]) -> int:
    """Numbers that a layer's keys hold for one position; 0 if no tensor tells."""
    is_keys = (tensor.name.endswith("k_proj.weight") and _is_text(tensor.name) for tensor in tensors)
    return next((tensor.shape[0] for tensor, found in zip(tensors, is_keys, strict=True) if found and tensor.shape), 0)


def _is_text(name: str) -> bool:
    return not any(part in name for part in _OTHER_SENSES)


def _vocab_size(num_tokens: int | None, table_size: int) -> int:
    """As loading counts it: the tokenizer's ids, as far as the table has rows for them."""
    return min(num_tokens, table_size or num_tokens) if num_tokens else table_size
