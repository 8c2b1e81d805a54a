"""Forwards of fixed shapes, captured once as CUDA graphs: one launch instead of hundreds.

At batch 1 a GPU waits for Python between a small model's kernels. Graphs avoid this: drafting K tokens, sampling
included, is one graph, and scoring K + 1 positions another. What varies between calls (ids, position, draws,
temperature) is in tensors that the graph reads. Attention covers a whole bucket of the cache, with unwritten positions
masked, so a graph can be used until the text outgrows the bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from core.runners.base import ForwardOutput
from core.runners.llama import FusedLlamaRunner
from core.runners.llama_forward import rms_norm
from core.sampling import draw_in_double, unfiltered_probabilities

_log = logging.getLogger(__name__)

_MOST_POSITIONS = 17
"""A block of 16 drafted tokens, and one more. Longer inputs are prefills, which keep a GPU busy anyway."""

_SMALLEST_BUCKET = 256

Outputs = tuple[Tensor, ...]
Capture = Callable[[Callable[[], Outputs]], tuple[Outputs, Callable[[], None]]]
"""Runs a function over fixed tensors; returns its outputs, and a function that recomputes them in place."""


def captures_graphs(device: torch.device) -> bool:
    """Whether a `GraphedRunner` runs models on this device."""
    return device.type == "cuda"


def capture_on_cuda(function: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
    """Capture a CUDA graph, after warm-up runs that choose kernels and allocate workspaces."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = function()
    return outputs, graph.replay


class StaticForward:
    """Runs a fused runner's weights over its cache without reading values on the host. Shapes as in `llama_forward`."""

    def __init__(self, runner: FusedLlamaRunner) -> None:
        self._weights = runner.weights
        self._head = runner.head.weights[0]
        self._qkv, self._output, self._gate_up, self._down = (product.weights for product in runner.products)
        self._cache = runner.cache
        self._cos, self._sin = runner.rotary
        self._columns = torch.arange(runner.capacity, device=runner.device)

    def __call__(self, ids: Tensor, position: Tensor, bucket: int) -> tuple[Tensor, Tensor]:
        """ids (n,) from `position` () on -> final states (n, hidden) and logits (n, V).

        Attention reads the first `bucket` positions of the cache, causally.
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
    """Rotary embedding of (n, heads, D); the sign of the swapped half is in the table."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((second, first), -1) * sin


@dataclass(frozen=True, slots=True)
class _Graph:
    ids: Tensor
    outputs: Outputs
    replay: Callable[[], None]
    body: Callable[[Tensor], Outputs]  # Keeps alive the tensors that the graph knows only by address.


class GraphedRunner:
    """Wraps a fused runner and captures its short forwards; cache and prefill are that runner's.

    The next call of the same shape overwrites a result. The capture function is a parameter, so that the same logic
    runs without a GPU.
    """

    def __init__(self, eager: FusedLlamaRunner, capture: Capture = capture_on_cuda) -> None:
        self._eager = eager
        self._capture = capture
        self._static = StaticForward(eager)
        device = eager.device
        self._position = torch.zeros((), dtype=torch.int64, device=device)
        self._uniforms = torch.zeros(_MOST_POSITIONS, dtype=torch.float64, device=device)
        self._temperature = torch.ones((), device=device)
        self._graphs: dict[Hashable, _Graph] = {}
        self._is_broken = False

    @property
    def length(self) -> int:
        return self._eager.length

    @property
    def capacity(self) -> int:
        return self._eager.capacity

    def rewind(self, length: int) -> None:
        self._eager.rewind(length)

    @torch.inference_mode()
    def forward(self, ids: Tensor, *, num_logits: int, with_hidden: bool = False) -> ForwardOutput:
        count = ids.shape[0]
        graph = None
        # A call without logits is a prefill, which happens once.
        if count <= _MOST_POSITIONS and num_logits > 0:
            bucket = self._bucket(count)
            graph = self._graph(
                ("score", count, bucket), ids, lambda given: self._static(given, self._position, bucket)
            )
        if graph is None:
            return self._eager.forward(ids, num_logits=num_logits, with_hidden=with_hidden)
        hidden, logits = self._launch(graph, ids, count)
        return ForwardOutput(logits[count - num_logits :], hidden if with_hidden else None)

    @torch.inference_mode()
    def draw_block(
        self, ids: Tensor, uniforms: Tensor, temperature: float, limit: int, proposed: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Append `ids` (n,), draw K tokens one by one without filters, and append all of them but the last.

        Args:
            ids: to append first, n >= 1.
            uniforms: (K,) draws in [0, 1).
            temperature: of the draws.
            limit: number of leading logits to use.
            proposed: (limit,) ids of the logits; None if they are 0, 1, 2 and so on.

        Returns:
            (K,) tokens, and the distributions (K, limit) that they were drawn from; None if no graph is available.
        """
        count, number = ids.shape[0], uniforms.shape[0]
        if max(count, number) > _MOST_POSITIONS:
            return None
        bucket = self._bucket(count + number - 1)
        is_greedy = temperature == 0.0

        def body(given: Tensor) -> Outputs:
            pending, position = given, self._position
            tokens, rows = [], []
            for index in range(number):
                _, logits = self._static(pending, position, bucket)
                row = logits[-1, :limit].float()
                scaled = row if is_greedy else row / self._temperature
                probs = unfiltered_probabilities(scaled, 0.0 if is_greedy else 1.0)
                drawn = draw_in_double(probs, self._uniforms[index]).view(1)
                position = position + pending.shape[0]
                # Indexing with a tensor () would read its value, which a capture forbids.
                pending = drawn if proposed is None else proposed.index_select(0, drawn)
                tokens.append(pending)
                rows.append(probs)
            return torch.cat(tokens), torch.stack(rows)

        self._uniforms[:number].copy_(uniforms)
        if not is_greedy:
            self._temperature.fill_(temperature)
        key = ("draw", count, number, bucket, is_greedy, limit, None if proposed is None else id(proposed))
        graph = self._graph(key, ids, body)
        if graph is None:
            return None
        tokens, rows = self._launch(graph, ids, count + number - 1)
        return tokens, rows

    def _bucket(self, count: int) -> int:
        """The smallest power of two that holds the cache and `count` more positions.

        Raises:
            ValueError: the cache has no room for them.
        """
        end = self.length + count
        if end > self.capacity:
            raise ValueError(f"The cache has room for {self.capacity} positions, not {end}.")
        return min(self.capacity, max(_SMALLEST_BUCKET, 1 << (end - 1).bit_length()))

    def _graph(self, key: Hashable, ids: Tensor, body: Callable[[Tensor], Outputs]) -> _Graph | None:
        """The graph for a shape, captured on first use; None if that failed."""
        graph = self._graphs.get(key)
        if graph is not None or self._is_broken:
            return graph
        given = ids.to(self._eager.device).clone()
        self._position.fill_(self.length)
        try:
            outputs, replay = self._capture(lambda: body(given))
        except Exception:
            # The driver or allocator can't capture: everything runs without graphs.
            _log.warning("CUDA graphs can't be used, so forwards run without them.", exc_info=True)
            self._is_broken = True
            return None
        self._graphs[key] = graph = _Graph(given, outputs, replay, body)
        return graph

    def _launch(self, graph: _Graph, ids: Tensor, count: int) -> Any:
        graph.ids.copy_(ids)
        self._position.fill_(self.length)
        graph.replay()
        self._eager.length += count
        return graph.outputs
