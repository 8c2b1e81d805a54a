"""Describes a model from the small parts of its files: configuration, headers, tokenizer. Never imports torch."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import ModelUnreadableError
from core.files import read_json
from core.models.catalogue import ModelEntry, ModelFormat, served_target
from core.models.folder.vocabulary import count_tokens, read_special_tokens, tokenizer_source
from core.models.folder.weight_files import TensorInfo, positive_number, read_gguf_header, read_weight_headers

_EMBEDDINGS = (
    "embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight", "tok_embeddings.weight",
    "token_embd.weight", "backbone.embeddings.weight", "rwkv.embeddings.weight",
)  # fmt: skip
_HEADS = ("lm_head.weight", "embed_out.weight")
_OWN_HEADS = ("output.weight", "head.weight")
"""GGUF's, and RWKV's."""
_LOOKED_UP = (
    "wpe.weight", "embed_positions.weight", "position_embd.weight", "embed_tokens_per_layer.weight",
    "per_layer_token_embd.weight",
)  # fmt: skip
"""Tables beside the embedding: of positions, and Gemma's of each layer."""
_ACTIVE_EXPERTS = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "expert_used_count",
)  # fmt: skip
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "expert_count")
_SCALES = re.compile(
    r"(?:\.scales|\.qzeros|\.g_idx|\.SCB|_scales?|_scale_inv|_zero_point|_g_idx|\.weight_shape|absmax|quant_map"
    r"|\.quant_state\..*)$"
)
"""What a file holds beside quantised weights."""
_PACKED_NAMES = re.compile(r"(?:qweight|weight_packed)$")
PACKAGES = {
    "gptq": ("optimum", "gptqmodel"), "awq": ("gptqmodel",), "bitsandbytes": ("bitsandbytes",), "aqlm": ("aqlm",),
    "hqq": ("hqq",), "torchao": ("torchao",),
    "vptq": ("vptq",), "auto-round": ("auto_round",), "eetq": ("kernels",),
}  # fmt: skip
"""What transformers needs for weights that stay quantised, by method; others it can also expand as it loads them."""
_NOT_CACHED = {"linear_attention", "mamba", "conv", "recurrent", "mlp", "moe", "M", "-", "E"}
"""Kinds of layers, and Nemotron-H's letters for them, that keep no keys and values of each position."""
_KINDS = ("layer_types", "layers_block_type", "hybrid_override_pattern", "block_types")
"""What configurations call the kinds of their layers, repeated where there are more layers."""
_MOST_STRETCHED = 1_000_000
CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", "context_length")
"""What a configuration calls the positions that its model reads."""
_NOT_TEXT = ("vision", "visual", "multi_modal", "audio")
"""Parts of a model that text never passes through."""


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """What is known of a model before it is loaded.

    Attributes:
        title: what the window calls it.
        architecture: transformers' model type, or GGUF's.
        num_parameters: in its files, with a tied output head counted once.
        precision: dtype or quantisation of most of its weights' bytes.
        context_length: positions it was trained for; None if its configuration does not say.
        vocab_size: ids that stand for a token.
        table_size: rows of its embedding table, padding included.
        num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim: its shape; 0 if unknown.
        num_uncached_layers: those that keep a state of fixed size, or nothing, instead of keys and values.
        latent_width: of multi-head latent attention: what a layer caches for a position instead of keys and values.
        has_chat_template, is_instruct: whether it has a chat template, and was trained to answer.
        weight_bytes: size of its stored weights.
        stays_packed: whether they stay as they are stored when they are loaded, by one of `PACKAGES`.
        body_parameters: that one position's forward multiplies, the output head and tables left out; of experts,
            those that are used.
        head_parameters: parameters of its output head.
        draft_vocabulary_size: ids that it proposes as a draft; None for all.
        shares_tables_with: the model whose embedding, head and tokenizer it borrows, and can't be loaded without.
        folder: holds its config.json; None for GGUF.
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
    stays_packed: bool = False
    num_uncached_layers: int = 0
    latent_width: int = 0
    draft_vocabulary_size: int | None = None
    shares_tables_with: str | None = None
    folder: Path | None = field(default=None, repr=False)

    def loaded_bytes(self, item_bytes: int) -> int:
        """Size of its weights after loading, where a parameter takes `item_bytes` unless the weights stay packed."""
        return self.weight_bytes if self.stays_packed else self.num_parameters * item_bytes

    def parameters_per_step(self, *, drafting: bool = False) -> int:
        """Parameters that one decoding step multiplies: all but the embedding, which is looked up.

        Args:
            drafting: whether it proposes, with a head over its draft vocabulary alone where it has one.
        """
        head = self.head_parameters
        if drafting and self.draft_vocabulary_size is not None and self.table_size:
            head = head * self.draft_vocabulary_size // self.table_size
        return self.body_parameters + head


def read_details(entry: ModelEntry) -> ModelDetails:
    """Describe a model from its files' headers, or, if its weights are not here, estimate from the other files.

    Raises:
        ModelUnreadableError: a file is missing, truncated or malformed, with a sentence that says which.
        OutOfMemoryError: there is too little memory to map a file.
    """
    config: dict[str, Any] = {}
    if entry.format is ModelFormat.GGUF:
        header = read_gguf_header(entry.path)
        tensors, number, architecture = header.tensors, header.number, header.architecture
    else:
        config = read_config(entry.path, entry.title)
        nested = config.get("text_config")
        config = {**config, **nested} if isinstance(nested, dict) else config
        headers = read_weight_headers(entry.path, entry.title) if entry.has_weights else _expected(config, entry)
        tensors = tuple(tensor for tensor in headers if not _is_buffer(tensor))
        number, architecture = functools.partial(positive_number, config), str(config.get("model_type") or "")
    active, experts = number(*_ACTIVE_EXPERTS), number(*_EXPERTS)
    quantization = config.get("quantization_config")
    counted = _unpacked(tensors, quantization) if isinstance(quantization, dict) else tensors
    total, body, head_size, rows = _count(counted, active, experts, is_tied=config.get("tie_word_embeddings") is True)
    hidden = number("hidden_size", "n_embd", "d_model", "embedding_length")
    heads = number("num_attention_heads", "n_head", "n_heads", "num_heads", "attention.head_count")
    head_dim = number("head_dim", "attention.key_length") or (hidden // heads if heads else 0)
    # Falcon's newer architecture caches its grouped keys for every head, and keeps a `multi_query` that it ignores.
    has_one = config.get("multi_query") is True and config.get("new_decoder_architecture") is not True
    one_or_all = 1 if has_one else heads
    latent = number("kv_lora_rank")
    kv_heads = number("num_key_value_heads", "attention.head_count_kv") or one_or_all
    if not kv_heads or not head_dim:
        # Nested configurations omit class defaults; the weights show the width of the keys.
        keys = (tensor for tensor in tensors if tensor.name.endswith("k_proj.weight") and _is_text(tensor.name))
        kv_heads, head_dim = 1, next((tensor.shape[0] for tensor in keys if tensor.shape), 0)
    special, source = read_special_tokens(entry), tokenizer_source(entry)
    num_tokens = count_tokens(source) if source else None
    table_size = rows or number("vocab_size")
    drafted = config.get("draft_vocabulary")
    kinds = next((config[name] for name in _KINDS if config.get(name) and isinstance(config[name], list | str)), ())
    layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers", "block_count") or len(kinds)
    is_recurrent = number("state_size") and not number("num_attention_heads")  # Mamba.
    return ModelDetails(
        title=entry.title,
        architecture=architecture or "unknown",
        num_parameters=total,
        precision=_precision(tensors),
        context_length=context_of(config) or number("context_length") or None,
        # Counted as loading does: the tokenizer's ids that have a row in the table.
        vocab_size=min(num_tokens, table_size or num_tokens) if num_tokens else table_size,
        table_size=table_size,
        num_layers=layers,
        num_uncached_layers=layers if is_recurrent else _uncached_layers(config, kinds, layers),
        hidden_size=hidden,
        intermediate_size=number("intermediate_size", "ffn_dim", "n_inner", "feed_forward_length") or 4 * hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        latent_width=latent + number("qk_rope_head_dim") if latent else 0,
        has_chat_template=special.chat_template is not None,
        is_instruct=special.is_instruct,
        weight_bytes=sum(tensor.num_bytes for tensor in tensors),
        stays_packed=isinstance(quantization, dict) and str(quantization.get("quant_method")) in PACKAGES,
        body_parameters=body,
        # A drafter that borrows its target's tables multiplies the borrowed head.
        head_parameters=head_size or table_size * hidden,
        draft_vocabulary_size=len(drafted) if isinstance(drafted, list) and drafted else None,
        shares_tables_with=served_target(config),
        folder=None if entry.format is ModelFormat.GGUF else entry.path,
    )


def _expected(config: Mapping[str, Any], entry: ModelEntry) -> tuple[TensorInfo, ...]:
    """An estimate of the tensors of missing weights: the tables and experts by the configuration, and the rest."""
    number, precision = functools.partial(positive_number, config), config.get("dtype") or config.get("torch_dtype")
    bits = re.search(r"\d+", str(precision))
    item_bytes = max(1, int(bits[0]) // 8) if bits else 4
    hidden = number("hidden_size", "n_embd", "d_model")
    table = (number("vocab_size"), hidden)
    experts = number(*_EXPERTS)
    width, layers = number("moe_intermediate_size", "intermediate_size"), number("num_hidden_layers")
    shapes = {_EMBEDDINGS[0]: table, "mlp.experts.weight": (3, experts, layers, hidden, width)}
    if config.get("tie_word_embeddings") is False:
        shapes[_HEADS[0]] = table
    left = entry.size_bytes // item_bytes - sum(map(math.prod, shapes.values()))
    shapes["weight"] = (max(0, left),)
    name = str(precision or "float32")
    return tuple(TensorInfo(key, shape, name, math.prod(shape) * item_bytes) for key, shape in shapes.items())


def read_config(folder: Path, title: str = "") -> dict[str, Any]:
    """A folder's config.json.

    Raises:
        ModelUnreadableError: it is missing, or not a configuration; the message names `title`, or the folder.
    """
    name = title or folder.name
    try:
        config = read_json(folder / "config.json")
    except FileNotFoundError:
        raise ModelUnreadableError(f"The config.json of {name} is missing. Download the model again.") from None
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise ModelUnreadableError(f"The config.json of {name} can't be read. Download the model again.")
    return config


def _uncached_layers(config: Mapping[str, Any], kinds: Sequence[Any], layers: int) -> int:
    """Layers that keep no keys and values: by their kinds, or as other families write which ones do."""
    if kinds:
        are_uncached = [str(kind) in _NOT_CACHED for kind in kinds]
        times, rest = divmod(layers, len(kinds))
        return times * sum(are_uncached) + sum(are_uncached[:rest])
    for name in ("attn_layer_indices", "full_attn_idxs"):  # Bamba's, LFM2's.
        if isinstance(config.get(name), list):
            return layers - len({at for at in config[name] if type(at) is int and 0 <= at < layers})
    # Jamba's first one is at its offset; Qwen3-Next's is the last of an interval.
    if period := positive_number(config, "attn_layer_period"):
        return layers - max(0, -(-(layers - positive_number(config, "attn_layer_offset")) // period))
    interval = positive_number(config, "full_attention_interval")
    return layers - layers // interval if interval else 0


def context_of(config: Mapping[str, Any]) -> int:
    """Positions that a configuration says its model can read; 0 if it doesn't say."""
    limit = positive_number(config, *CONTEXTS)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    factor = rope.get("factor")
    if not isinstance(factor, int | float) or not 1 < factor < _MOST_STRETCHED:
        return limit
    kind, name = rope.get("rope_type", rope.get("type")), "original_max_position_embeddings"
    original = positive_number(config, name) or positive_number(rope, name)
    if kind == "dynamic":  # NTK, which stretches the trained length.
        return int(limit * factor)
    # Some limits are already stretched. Those of linear scaling mostly are, without saying from what.
    return max(limit, int((original or limit) * factor)) if kind == "yarn" else limit


def _unpacked(tensors: Iterable[TensorInfo], quantization: Mapping[str, Any]) -> Iterator[TensorInfo]:
    """The tensors with the shapes of what they pack, without scales and the like."""
    bits = positive_number(quantization, "bits", "w_bit") or (2 if quantization.get("quant_method") == "bitnet" else 4)
    groups = quantization.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        bits = (positive_number(weights, "num_bits") if isinstance(weights, dict) else 0) or bits
    for tensor in tensors:
        if _SCALES.search(tensor.name):
            continue
        # Words of 32 bits; or bytes, as in bitsandbytes, MXFP4 and BitNet.
        width = 8 if tensor.precision == "uint8" else 32 if _PACKED_NAMES.search(tensor.name) else bits
        per_item = max(1, width // bits)
        yield tensor._replace(name=_PACKED_NAMES.sub("weight", tensor.name), shape=(*tensor.shape, per_item))


def _is_buffer(tensor: TensorInfo) -> bool:
    """Whether it is a mask or rotary frequencies, which older files hold beside the weights."""
    is_mask = tensor.shape[:2] == (1, 1) and len(tensor.shape) == 4
    return is_mask or tensor.name.endswith((".masked_bias", ".inv_freq"))


def _count(tensors: Iterable[TensorInfo], active: int, experts: int, *, is_tied: bool) -> tuple[int, int, int, int]:
    """Parameters in all, in what every step multiplies but the head, and in the head; rows of the token table.

    `active` of `experts` serve one position; `is_tied`: a head in the file is the embedding.
    """
    share = min(1.0, active / experts) if active and experts else 1.0
    embedding = head = lookups = rest = body = rows = 0
    for name, shape, size in ((tensor.name, tensor.shape, tensor.num_elements) for tensor in tensors):
        if name in _OWN_HEADS or name.endswith(_HEADS):
            head = size
        elif name.endswith(_LOOKED_UP):
            lookups += size
        elif name.endswith(_EMBEDDINGS):
            embedding, rows = size, shape[0] if shape else 0
        else:
            rest += size
            is_expert = ".experts." in name or "_exps." in name or shape[:-2] == (experts,)
            if _is_text(name):
                body += round(size * share) if is_expert else size
    own_head = 0 if is_tied and embedding else head
    return rest + lookups + embedding + own_head, body, head or embedding, rows


def _precision(tensors: Iterable[TensorInfo]) -> str:
    """The precision of most bytes."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.precision] += tensor.num_bytes
    return max(sizes, key=sizes.__getitem__, default="unknown")


def _is_text(name: str) -> bool:
    return not any(part in name for part in _NOT_TEXT)
