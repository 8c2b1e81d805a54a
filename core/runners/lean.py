"""A lean forward for Llama-shaped models: the same weights and arithmetic in fewer, larger operations.

Against transformers' module it fuses the three attention projections, and the two of the gated MLP, into one product
each, reads rotary factors from a table, and writes keys and values into a preallocated cache that is rewound by moving
a number. At one to a few positions a small model's time goes into dispatching operations, not into arithmetic, so each
operation saved here counts. Shapes below: n tokens, H query heads, G key-value heads, D head size, L positions in the
cache.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn import functional

from core.runners.base import ForwardOutput, check_rewind

_log = logging.getLogger(__name__)

_LONGEST_BLOCK = 32
"""Up to here attention is three products by hand; beyond, in a prefill, the fused kernel that never holds n x L."""

LEAN_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Architectures whose forward is the one below. Each is still checked against its module before it is used."""


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor  # (2 hidden,), see _rms_norm
    qkv: Tensor  # ((H + 2 G) D, hidden)
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # (2 D,), Qwen3 only
    key_norm: Tensor | None
    output_t: Tensor  # (H D, hidden)
    mlp_norm: Tensor
    gate_up: Tensor  # (2 F, hidden)
    down_t: Tensor  # (F, hidden)


class LeanWeights:
    """A Llama-shaped model's weights, arranged for `LeanRunner`. Shared by any number of runners.

    Fusing makes a new tensor of each group; the module's own parameters are then pointed into it, so that nothing is
    held twice and both forwards read the same numbers.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = getattr(config, "num_key_value_heads", None) or self.num_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.num_heads
        self.epsilon: float = config.rms_norm_eps
        self.embedding: Tensor = model.model.embed_tokens.weight
        self.head: Tensor = model.lm_head.weight
        self.final_norm: Tensor = _twice(model.model.norm.weight)
        self.layers = [self._arrange(layer) for layer in model.model.layers]
        # In the order of _run_layers; what a model lacks is an empty list.
        self.columns: tuple[list[Tensor], ...] = tuple(
            [column for layer in self.layers if (column := getattr(layer, item.name)) is not None]
            for item in fields(_Layer)
        )
        self._rotary = model.model.rotary_emb

    @staticmethod
    def _arrange(layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        qkv_bias = _fuse(projections, "bias") if attention.q_proj.bias is not None else None
        return _Layer(
            attention_norm=_twice(layer.input_layernorm.weight),
            qkv=_fuse(projections, "weight"),
            qkv_bias=qkv_bias,
            query_norm=_twice(attention.q_norm.weight) if hasattr(attention, "q_norm") else None,
            key_norm=_twice(attention.k_norm.weight) if hasattr(attention, "k_norm") else None,
            output_t=attention.o_proj.weight.detach().t(),
            mlp_norm=_twice(layer.post_attention_layernorm.weight),
            gate_up=_fuse([mlp.gate_proj, mlp.up_proj], "weight"),
            down_t=mlp.down_proj.weight.detach().t(),
        )

    def rotary_table(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with the sign of the half they multiply: (capacity, 1, D) each."""
        positions = torch.arange(capacity, device=self.embedding.device)
        cos, sin = self._rotary(self.embedding, positions.unsqueeze(0))
        cos, sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)
        half = self.head_dim // 2
        return cos.contiguous(), torch.cat((-sin[..., :half], sin[..., half:]), -1).contiguous()


def supports(model: Any) -> bool:
    """Whether this model's configuration is one that the lean forward computes."""
    config = model.config
    if config.model_type not in LEAN_MODEL_TYPES or getattr(config, "sliding_window", None):
        return False
    if getattr(config, "hidden_act", "silu") != "silu" or getattr(config, "mlp_bias", False):
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    # Dynamic and long-context tables depend on the length of the text; one fixed table would be wrong.
    if (
        rope.get("rope_type", "default") not in {"default", "linear", "llama3"}
        or rope.get("partial_rotary_factor", 1) != 1
    ):
        return False
    linears = (model.model.layers[0].self_attn.o_proj, model.model.layers[0].mlp.down_proj, model.lm_head)
    return all(type(linear) is torch.nn.Linear and linear.bias is None for linear in linears)


class LeanRunner:
    """Runs a Llama-shaped model over `LeanWeights`, one text at a time."""

    def __init__(self, weights: LeanWeights, capacity: int, head_ids: Tensor | None = None) -> None:
        """
        Args:
            weights: the model's.
            capacity: positions that the cache gets.
            head_ids: (R,) ids whose logits are wanted, in this order; None for all.
        """
        self._weights = weights
        self._head = weights.head if head_ids is None else weights.head[head_ids]
        self._capacity = capacity
        self._length = 0
        dtype, device = weights.embedding.dtype, weights.embedding.device
        # (capacity, 2 G, D) a layer, keys before values, in the order in which the fused projection leaves them.
        shape = (capacity, 2 * weights.num_kv_heads, weights.head_dim)
        self._cache = [torch.zeros(shape, dtype=dtype, device=device) for _ in weights.layers]
        self._cos, self._sin = weights.rotary_table(capacity)
        # Within a block, a position sees those before it: -inf above the diagonal.
        block = torch.full((_LONGEST_BLOCK, _LONGEST_BLOCK), -torch.inf, dtype=dtype, device=device)
        self._causal = block.triu_(1)

    @property
    def length(self) -> int:
        return self._length

    @property
    def capacity(self) -> int:
        return self._capacity

    def rewind(self, length: int) -> None:
        check_rewind(length, self._length)
        self._length = length

    @torch.inference_mode()
    def forward(self, ids: Tensor, *, num_logits: int, with_hidden: bool = False) -> ForwardOutput:
        weights = self._weights
        count, start = ids.shape[0], self._length
        end = start + count
        if end > self._capacity:
            raise ValueError(f"The cache has room for {self._capacity} positions, not {end}.")
        ids = ids.to(weights.embedding.device)
        cos, sin = self._cos[start:end], self._sin[start:end]
        mask = None
        if count > _LONGEST_BLOCK:
            mask = torch.full((count, end), -torch.inf, dtype=cos.dtype, device=cos.device).triu_(start + 1)
        elif count > 1:
            mask = self._causal[:count, :count]
        # The optimiser of scripts would compile each new number of positions anew; the interpreter is what is wanted.
        with torch.jit.optimized_execution(False), _plain_errors():  # type: ignore[attr-defined]
            hidden = _scripted()(
                functional.embedding(ids, weights.embedding),
                *weights.columns,
                self._cache,
                cos,
                sin,
                mask,
                count <= _LONGEST_BLOCK,
                start,
                weights.num_heads,
                weights.num_kv_heads,
                weights.epsilon,
            )
        self._length = end
        hidden = _rms_norm(hidden, weights.final_norm, weights.epsilon)
        logits = functional.linear(hidden[count - num_logits :], self._head)
        return ForwardOutput(logits, hidden if with_hidden else None)


@functools.cache
def _scripted() -> Callable[..., Tensor]:
    """The layers as TorchScript, whose interpreter dispatches an operation in half of Python's time.

    Where this torch, or this Python, has no TorchScript, the same function is run by Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.script(_run_layers)
    except Exception:
        _log.debug("no TorchScript", exc_info=True)
        return _run_layers


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors as Python would have raised them: the interpreter of scripts wraps their text, and loses their type."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "in the TorchScript interpreter" not in text:
            raise
        message = text.rpartition("\nRuntimeError: ")[2].strip()
        kind = torch.OutOfMemoryError if "out of memory" in message else RuntimeError
        raise kind(message) from error


def _run_layers(
    hidden: Tensor,
    attention_norm: list[Tensor],
    qkv: list[Tensor],
    qkv_bias: list[Tensor],
    query_norm: list[Tensor],
    key_norm: list[Tensor],
    output_t: list[Tensor],
    mlp_norm: list[Tensor],
    gate_up: list[Tensor],
    down_t: list[Tensor],
    cache: list[Tensor],
    cos: Tensor,
    sin: Tensor,
    mask: Optional[Tensor],  # noqa: UP045 - TorchScript reads no other form
    is_block: bool,
    start: int,
    num_heads: int,
    num_kv_heads: int,
    epsilon: float,
) -> Tensor:
    """(n, hidden) -> (n, hidden): all layers, their keys and values written to the cache from `start` on.

    mask is (n, n) for a block, (n, L) for a chunk, None for one position.

    Written in the part of Python that TorchScript reads. A list holds one tensor a layer; it is empty where the model
    has no such weights.
    """
    count, size = hidden.size(0), cos.size(2)
    end, half = start + count, size // 2
    for index, weight in enumerate(qkv):
        normed = _rms_norm(hidden, attention_norm[index], epsilon)
        bias = qkv_bias[index] if len(qkv_bias) > 0 else None
        mixed = functional.linear(normed, weight, bias).view(count, num_heads + 2 * num_kv_heads, size)
        rotated = mixed[:, : num_heads + num_kv_heads]
        if len(query_norm) > 0:
            rotated[:, :num_heads] = _rms_norm(rotated[:, :num_heads], query_norm[index], epsilon)
            rotated[:, num_heads:] = _rms_norm(rotated[:, num_heads:], key_norm[index], epsilon)
        # Rotary embedding (Su et al., 2104.09864): x cos + swap(x) sin, the sign of the swapped half in the table.
        swapped = torch.cat((rotated[..., half:], rotated[..., :half]), -1)
        rotated.mul_(cos).addcmul_(swapped, sin)
        store = cache[index]
        store[start:end] = mixed[:, num_heads:]
        query = mixed[:, :num_heads].transpose(0, 1)  # (H, n, D)
        keys = store[:end, :num_kv_heads].transpose(0, 1)  # (G, L, D)
        values = store[:end, num_kv_heads:].transpose(0, 1)
        attended = _attend_block(query, keys, values, mask) if is_block else _attend_chunk(query, keys, values, mask)
        attended = attended.transpose(0, 1).reshape(count, num_heads * size)
        hidden = torch.addmm(hidden, attended, output_t[index])
        gates = functional.linear(_rms_norm(hidden, mlp_norm[index], epsilon), gate_up[index])
        width = down_t[index].size(0)
        activated = functional.silu(gates[:, :width]).mul_(gates[:, width:])
        hidden = torch.addmm(hidden, activated, down_t[index])
    return hidden


def _attend_block(query: Tensor, keys: Tensor, values: Tensor, mask: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """Attention for a few positions.

    Args:
        query: (H, n, D).
        keys, values: (G, L, D), the block's own positions last.
        mask: (n, n), added to the scores between the block's own positions.

    Returns:
        (H, n, D).
    """
    heads, count, size = query.shape
    groups, length = keys.shape[:2]
    # The H / G query heads that share a key-value head are stacked along the rows of one product.
    stacked = query.reshape(groups, heads // groups * count, size)
    scores = torch.baddbmm(stacked.new_empty(()), stacked, keys.transpose(1, 2), beta=0, alpha=size**-0.5)
    if mask is not None:
        scores.view(heads, count, length)[..., length - count :].add_(mask)
    return torch.bmm(scores.softmax(-1), values).view(heads, count, size)


def _attend_chunk(query: Tensor, keys: Tensor, values: Tensor, mask: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """The same for many positions, with a mask (n, L) over all that the cache holds."""
    mixed = functional.scaled_dot_product_attention(
        query.unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=mask,
        enable_gqa=query.shape[0] != keys.shape[0],
    )
    return mixed[0]


def _rms_norm(x: Tensor, weight_twice: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm of the last dimension, through the layer norm of (x, -x).

    That vector's mean is 0 and its variance the mean square of x, so the two norms agree; torch has one kernel for the
    layer norm on the CPU, and some ten small operations for the other.
    """
    mirrored = torch.cat((x, -x), -1)
    return torch.layer_norm(mirrored, weight_twice.shape, weight_twice, None, epsilon)[..., : x.shape[-1]]


def _twice(weight: Tensor) -> Tensor:
    return torch.cat((weight.detach(), weight.detach()))


def _fuse(linears: list[Any], name: str) -> Tensor:
    """Join parameters along their rows, and point each module at its slice of the joint tensor."""
    joint = torch.cat([getattr(linear, name).detach() for linear in linears])
    row = 0
    for linear in linears:
        parameter = getattr(linear, name)
        rows = parameter.shape[0]
        parameter.data = joint[row : row + rows]
        row += rows
    return joint
