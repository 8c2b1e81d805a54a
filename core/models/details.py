"""What a model is, told from the small parts of its files: configuration, headers, tokenizer. Never imports torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import ModelUnreadableError
from core.models.catalogue import ModelEntry, ModelFormat
from core.models.gguf_header import read_gguf_header
from core.models.vocabularies import count_tokens, read_special_tokens, tokenizer_source
from core.models.weight_files import TensorInfo, read_weight_headers

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
