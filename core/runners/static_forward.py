"""The lean forward with every shape fixed and the position in a tensor, as a captured graph needs it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from core.runners.lean import LeanRunner
from core.runners.lean_forward import rms_norm


class StaticForward:
    """Runs a lean runner's weights over its cache. Shapes as in `core.runners.lean_forward`."""

    def __init__(self, runner: LeanRunner) -> None:
        self._weights = runner.weights
        self._head = runner.head.weights[0]
        self._qkv, self._output, self._gate_up, self._down = (product.weights for product in runner.products)
        self._cache = runner.cache
        self._cos, self._sin = runner.rotary
        self._columns = torch.arange(runner.capacity, device=runner.device)

    def __call__(self, ids: Tensor, position: Tensor, bucket: int) -> tuple[Tensor, Tensor]:
        """ids (n,) at `position` () and behind it -> final states (n, hidden) and logits (n, V).

        Attention reads the first `bucket` positions of the cache, which must hold all of them; a position sees those
        up to itself.
        """
        weights = self._weights
        positions = position + self._columns[: ids.shape[0]]
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        hidden = functional.embedding(ids, weights.embedding)
        mask = torch.zeros((), dtype=hidden.dtype, device=hidden.device).masked_fill(
            self._columns[:bucket] > positions.unsqueeze(1), -torch.inf
        )
        attention_norms, mlp_norms, query_norms, key_norms = weights.norms
        heads, kv_heads, size = weights.num_heads, weights.num_kv_heads, weights.head_dim
        for index, store in enumerate(self._cache):
            normed = rms_norm(hidden, attention_norms[index], weights.epsilon)
            bias = weights.qkv_bias[index] if weights.qkv_bias else None
            mixed = functional.linear(normed, self._qkv[index], bias).view(len(ids), heads + 2 * kv_heads, size)
            query, key, value = mixed.split((heads, kv_heads, kv_heads), 1)
            if query_norms:
                query = rms_norm(query, query_norms[index], weights.epsilon)
                key = rms_norm(key, key_norms[index], weights.epsilon)
            store.index_copy_(0, positions, torch.cat((_rotate(key, cos, sin), value), 1))
            known = store[:bucket].transpose(0, 1).unsqueeze(0)  # (1, 2 G, bucket, D)
            attended = functional.scaled_dot_product_attention(
                _rotate(query, cos, sin).transpose(0, 1).unsqueeze(0),
                known[:, :kv_heads],
                known[:, kv_heads:],
                attn_mask=mask,
                enable_gqa=heads != kv_heads,
            )
            attended = attended[0].transpose(0, 1).reshape(len(ids), heads * size)
            hidden = torch.addmm(hidden, attended, self._output[index].t())
            normed = rms_norm(hidden, mlp_norms[index], weights.epsilon)
            gate, up = functional.linear(normed, self._gate_up[index]).chunk(2, -1)
            hidden = torch.addmm(hidden, functional.silu(gate) * up, self._down[index].t())
        hidden = rms_norm(hidden, weights.final_norm, weights.epsilon)
        return hidden, functional.linear(hidden, self._head)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al., 2104.09864) of (n, heads, D); the sign of the swapped half is in the table."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((second, first), -1) * sin
