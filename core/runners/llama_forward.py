"""The arithmetic of a Llama-shaped model over fused weights, in the subset of Python that TorchScript compiles.

Shapes: n tokens, H query heads, G key-value heads, D head size, L positions in the cache.
"""

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional

from core.runners.matmul import Product, in_int8, in_packed
from core.sampling import draw_in_double, one_hot, unfiltered_probabilities

# No postponed annotations here: TorchScript can't resolve those of a NamedTuple from another module.

_log = logging.getLogger(__name__)


class FusedLlama(NamedTuple):
    """A model in the script's form. Lists hold one tensor per layer, and are empty if the model has no such weights.

    Attributes:
        embedding: (V, hidden).
        final_norm: twice its weight, as all norms here; see `rms_norm`.
        head: the logits' product.
        attention_norm, mlp_norm: of each layer.
        query_norm, key_norm: of each head's values.
        qkv_bias: of the query, key and value projections in one.
        qkv, output, gate_up, down: the layers' products.
        cache: (capacity, 2 G, D) keys, then values.
        num_heads, num_kv_heads: H and G.
        epsilon: of the norms.
    """

    embedding: Tensor
    final_norm: Tensor
    head: Product
    attention_norm: list[Tensor]
    mlp_norm: list[Tensor]
    query_norm: list[Tensor]
    key_norm: list[Tensor]
    qkv_bias: list[Tensor]
    qkv: Product
    output: Product
    gate_up: Product
    down: Product
    cache: list[Tensor]
    num_heads: int
    num_kv_heads: int
    epsilon: float


@functools.cache
def scripted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` or `draw_next` as TorchScript, whose interpreter is faster than Python's; Python if it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.script(function)
    except Exception:
        _log.debug("no TorchScript", exc_info=True)
        return function


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Restores Python's errors: the script interpreter wraps their text and loses their type."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "in the TorchScript interpreter" not in text:
            raise
        message = text.rpartition("\nRuntimeError: ")[2].strip()
        kind = torch.OutOfMemoryError if "out of memory" in message else RuntimeError
        raise kind(message) from error


def forward(
    ids: Tensor,
    num_logits: int,
    layers: list[int],
    model: FusedLlama,
    cos: Tensor,
    sin: Tensor,
    mask: Optional[Tensor],  # noqa: UP045 - TorchScript reads no other form
    is_block: bool,
    start: int,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """ids (n,) -> final states (n, hidden), the logits (num_logits, V) after the last of them, and the states that
    enter these layers.

    Keys and values of all layers are written to the cache from `start` on. mask is (n, m) over the last m positions
    for a block, (n, L) for a chunk after others, None for one position or the first chunk. cos and sin are of each
    token's position, which in a tree is not its place in the cache.
    """
    hidden = functional.embedding(ids, model.embedding)
    count, size = hidden.size(0), cos.size(2)
    end = start + count
    heads, kv_heads = model.num_heads, model.num_kv_heads
    states: list[Tensor] = []
    for index in range(len(model.cache)):
        if index in layers:
            states.append(hidden)
        mixed = apply_product(rms_norm(hidden, model.attention_norm[index], model.epsilon), model.qkv, index)
        if len(model.qkv_bias) > 0:
            mixed = mixed.add_(model.qkv_bias[index])
        mixed = mixed.view(count, heads + 2 * kv_heads, size)
        rotated = mixed[:, : heads + kv_heads]
        if len(model.query_norm) > 0:
            rotated[:, :heads] = rms_norm(rotated[:, :heads], model.query_norm[index], model.epsilon)
            rotated[:, heads:] = rms_norm(rotated[:, heads:], model.key_norm[index], model.epsilon)
        rotate(rotated, cos, sin)
        store = model.cache[index]
        store[start:end] = mixed[:, heads:]
        query = mixed[:, :heads].transpose(0, 1)  # (H, n, D)
        keys = store[:end, :kv_heads].transpose(0, 1)  # (G, L, D)
        values = store[:end, kv_heads:].transpose(0, 1)
        attended = _attend_block(query, keys, values, mask) if is_block else _attend_chunk(query, keys, values, mask)
        attended = attended.transpose(0, 1).reshape(count, heads * size)
        hidden = _add_product(hidden, attended, model.output, index)
        gates = apply_product(rms_norm(hidden, model.mlp_norm[index], model.epsilon), model.gate_up, index)
        width = gates.size(1) // 2
        activated = functional.silu(gates[:, :width]).mul_(gates[:, width:])
        hidden = _add_product(hidden, activated, model.down, index)
    hidden = rms_norm(hidden, model.final_norm, model.epsilon)
    return hidden, apply_product(hidden[count - num_logits :], model.head, 0), states


def draw_next(
    ids: Tensor,
    uniform: Tensor,
    temperature: float,
    limit: int,
    model: FusedLlama,
    cos: Tensor,
    sin: Tensor,
    mask: Optional[Tensor],  # noqa: UP045 - TorchScript reads no other form
    is_block: bool,
    start: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """A forward over ids (n,): the next token (), drawn without filters, its distribution (limit,), and the logits.

    One script, because a small draft's time is spent between operations. uniform: () float64 in [0, 1); only the first
    `limit` logits are used.
    """
    _, logits, _ = forward(ids, 1, [], model, cos, sin, mask, is_block, start)
    row = logits[0, :limit].float()
    if temperature == 0.0:
        best = row.argmax(-1, keepdim=True)
        return best[0], one_hot(row, best), row
    probs = unfiltered_probabilities(row, temperature)
    return draw_in_double(probs, uniform), probs, row


def apply_product(x: Tensor, product: Product, index: int) -> Tensor:
    if len(product.int8) > 0:
        return in_int8(x, product.int8[index])
    if _is_packed(x, product):
        return in_packed(x, product.packed[index])
    return functional.linear(x, product.weights[index])


def _add_product(residual: Tensor, x: Tensor, product: Product, index: int) -> Tensor:
    if len(product.int8) > 0 or _is_packed(x, product):
        return apply_product(x, product, index).add_(residual)
    return torch.addmm(residual, x, product.weights[index].t())


def _is_packed(x: Tensor, product: Product) -> bool:
    return len(product.packed) > 0 and x.size(0) >= product.fewest


def _attend_block(query: Tensor, keys: Tensor, values: Tensor, mask: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """Attention for a few positions: query (H, n, D), keys and values (G, L, D), the block's last -> (H, n, D).

    mask (n, m) is added to the scores of the last m positions.
    """
    heads, count, size = query.shape
    groups, length = keys.shape[:2]
    # Query heads that share a key-value head are stacked as rows of one product.
    stacked = query.reshape(groups, heads // groups * count, size)
    scores = torch.baddbmm(stacked.new_empty(()), stacked, keys.transpose(1, 2), beta=0, alpha=size**-0.5)
    if mask is not None:
        scores.view(heads, count, length)[..., length - mask.size(1) :].add_(mask)
    return torch.bmm(scores.softmax(-1), values).view(heads, count, size)


def _attend_chunk(query: Tensor, keys: Tensor, values: Tensor, mask: Optional[Tensor]) -> Tensor:  # noqa: UP045
    """The same for many positions, with a mask (n, L) over the whole cache; without one they are causal."""
    heads, count, size = query.shape
    groups = keys.shape[0]
    if mask is None and count > 1 and (query.is_cuda or count < keys.shape[1]):
        return attend_causally(query, keys, values)
    if mask is None and count > 1:
        return functional.scaled_dot_product_attention(
            query.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), is_causal=True, enable_gqa=heads != groups
        )[0]
    if mask is not None and heads != groups:
        mask = mask.repeat(heads // groups, 1)
    # Query heads that share a key-value head are stacked as rows: the kernel's own grouping copies the keys.
    stacked = query.reshape(1, groups, heads // groups * count, size)
    mixed = functional.scaled_dot_product_attention(stacked, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask)
    return mixed.reshape(heads, count, size)


@torch.jit.ignore  # type: ignore[untyped-decorator]
def attend_causally(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """`_attend_chunk` of many positions, whether others precede them or not, by CUDA's kernels that need no mask."""
    # Imports torch's compiler, which takes half a second.
    from torch.backends.cuda import SDPAParams, can_use_flash_attention
    from torch.nn.attention.bias import causal_lower_right

    per_group, causal = query.shape[0] // keys.shape[0], causal_lower_right(query.shape[1], keys.shape[1])
    query, keys, values = query.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0)
    groups_heads = bool(can_use_flash_attention(SDPAParams(query, keys, values, None, 0.0, False, per_group > 1)))
    if per_group > 1 and not groups_heads:
        # Float32 and older GPUs have one such kernel, which knows no groups: torch would make a mask of all scores.
        keys, values = keys.repeat_interleave(per_group, 1), values.repeat_interleave(per_group, 1)
    is_grouped = per_group > 1 and groups_heads
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=causal, enable_gqa=is_grouped)[0]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding (Su et al., 2104.09864) of (n, heads, D) in place: x cos + swap(x) sin.

    The sign of the swapped half is in the table.
    """
    half = x.size(2) // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), -1)
    x.mul_(cos).addcmul_(swapped, sin)


def rms_norm(x: Tensor, weight_twice: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm of the last dimension; on the CPU as the layer norm of (x, -x).

    That vector's mean is 0 and its variance the mean square of x, so the two agree; on the CPU the layer norm is one
    kernel, the direct form about ten small operations.
    """
    if not x.is_cpu:
        weight = weight_twice[: x.shape[-1]]
        return torch.rms_norm(x, weight.shape, weight, epsilon)
    mirrored = torch.cat((x, -x), -1)
    return torch.layer_norm(mirrored, weight_twice.shape, weight_twice, None, epsilon)[..., : x.shape[-1]]
