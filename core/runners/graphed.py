"""Forwards of fixed shapes, captured once as CUDA graphs: one launch instead of hundreds.

At batch 1 a GPU waits for Python between a small model's kernels. Graphs avoid this: scoring a block is one graph,
drafting a token, sampling included, another, launched K times in a row. Few shapes suffice: a block is padded to one of
two numbers of rows, so that plain and speculative decoding run the same kernels, and a draft step always reads two
tokens. What varies between calls (ids, position, draws, temperature) is in tensors that the graphs read and write.
Attention covers a whole bucket of the cache, with unwritten positions masked, so a graph can be used until the text
outgrows the bucket. Graphs and caches belong to the model and outlive a run.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from core.runners.base import FINAL, ForwardOutput, TreeRows, check_room
from core.runners.llama import FusedLlamaRunner
from core.runners.llama_forward import rms_norm, rotate
from core.runners.timing import sent
from core.sampling import draw_in_double, unfiltered_probabilities

_log = logging.getLogger(__name__)

_ROWS = (8, 24)
"""Numbers of rows that blocks are padded to. Longer inputs are prefills, which keep a GPU busy anyway."""

_LONGEST_DRAFT = 16

_DRAW_PLACES = 4
"""Places beyond the text that capturing the draw of a token writes: it runs a few times, each a place further on."""

_SMALLEST_BUCKET = 256

_ROUNDING = 1024
"""Long caches are rounded up to a multiple of this many positions, shorter ones to a power of two."""


class Draws(NamedTuple):
    """A kind of draws: at temperature 0 or not, from how many logits, and the ids (R,) of these if not 0, 1, 2…"""

    is_greedy: bool
    limit: int
    proposed: Tensor | None


Outputs = tuple[Tensor, ...]
Capture = Callable[[Callable[[], Outputs]], tuple[Outputs, Callable[[], None]]]
"""Runs a function over fixed tensors; returns its outputs, and a function that recomputes them in place."""


def captures_graphs(device: torch.device) -> bool:
    """Whether a `GraphedRunner` runs models on this device."""
    return device.type == "cuda"


@functools.cache
def _capture_stream(device: torch.device) -> Any:
    """One stream for all captures on a device: for each, cuBLAS keeps a workspace until the process ends."""
    return torch.cuda.Stream(device)


class CudaCapture:
    """Captures CUDA graphs on one device, from one stream and into one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _capture_stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
        """Capture a function after warm-up runs, which choose kernels and allocate workspaces."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(3):
                    function()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph, usual = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
            try:
                # Other threads, such as a window's, may use the device meanwhile.
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                    outputs = function()
            except Exception:
                # torch leaves the thread on the other stream, and the pool unusable.
                torch.cuda.set_stream(usual)
                self._pool = torch.cuda.graph_pool_handle()
                raise

        return outputs, graph.replay


class StaticTree(NamedTuple):
    """How the n tokens of a forward relate: their depths (n,), from 0, and which of them each sees, (n, n) bool."""

    depths: Tensor
    visible: Tensor


def _static_chain(count: int, device: torch.device) -> StaticTree:
    return StaticTree(
        torch.arange(count, device=device), torch.ones(count, count, dtype=torch.bool, device=device).tril_()
    )


@dataclass(frozen=True, slots=True)
class _Graph:
    outputs: Outputs
    replay: Callable[[], None]
    proposed: Tensor | None  # Kept alive, as the graph knows it only by address.


class GraphedForwards:
    """A fused runner's cache with the graphs captured over it. One text at a time uses it, through a `GraphedRunner`.

    The capture function is a parameter, so that the same logic runs without a GPU.

    Attributes:
        eager: the fused runner, for prefills and where graphs fail. Its cache has room for padded rows.
        num_captures: graphs captured so far.
        is_broken: whether a capture failed, so that everything runs without graphs.
    """

    def __init__(self, eager: FusedLlamaRunner, capture: Capture) -> None:
        self.eager = eager
        self.num_captures = 0
        self._capture = capture
        device = eager.device
        self._columns = torch.arange(eager.capacity, device=device)
        self._ids = torch.zeros(_ROWS[-1], dtype=torch.int64, device=device)
        self._pair = _static_chain(2, device)
        # What the scoring graphs read; a block that is a tree overwrites it, and the next chain restores it.
        self._trees = {rows: _static_chain(rows, device) for rows in _ROWS}
        self._overwritten: set[int] = set()
        self._position = torch.zeros((), dtype=torch.int64, device=device)
        self._uniforms = torch.zeros(_LONGEST_DRAFT, dtype=torch.float64, device=device)
        self._temperature = torch.ones((), device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._graphs: dict[Hashable, _Graph] = {}
        self.is_broken = False

    def score(self, ids: Tensor, tree: TreeRows | None = None, layers: tuple[int, ...] = ()) -> Outputs | None:
        """Append `ids` (n,): final states (n, hidden), logits (n, V), and the states that enter these layers; the next
        call overwrites them. None if no graph is available. A tree's root is the first of the ids."""
        count = ids.shape[0]
        rows = next((rows for rows in _ROWS if count <= rows), None)
        graph = None if rows is None else self._score_graph(rows, self._bucket(self.eager.length + rows), layers)
        if rows is None or graph is None:
            return None
        self._ids[:count].copy_(sent(ids, self._ids.device))
        self._position.fill_(self.eager.length)
        self._set_tree(rows, tree)
        graph.replay()
        self.eager.length += count
        return tuple(each[:count] for each in graph.outputs)

    def _score_graph(self, rows: int, bucket: int, layers: tuple[int, ...]) -> _Graph | None:
        layers = tuple(layer for layer in layers if layer != FINAL)  # The final states always come along.
        body = functools.partial(self._forward, rows, bucket, self._trees[rows], layers)
        return self._graph(("score", rows, bucket, layers), body)

    def _forward(self, count: int, bucket: int, tree: StaticTree, layers: tuple[int, ...] = ()) -> Outputs:
        """Final states (n, hidden), logits (n, V), and the states that enter these layers, of the first `count` ids.

        It reads no value on the host. Attention reads the first `bucket` places of the cache: all before the position,
        and what `tree` says. Shapes as in `llama_forward`.
        """
        runner, position = self.eager, self._position
        weights = runner.weights
        qkv, output, gate_up, down = (product.weights for product in runner.products)
        places, positions = position + self._columns[:count], position + tree.depths
        cos, sin = (table.index_select(0, positions) for table in runner.rotary)
        hidden = functional.embedding(self._ids[:count], weights.embedding)
        attention_norms, mlp_norms, query_norms, key_norms = weights.norms
        heads, kv_heads, size = weights.num_heads, weights.num_kv_heads, weights.head_dim
        # Query heads that share a key-value head are stacked as rows, so no kernel copies keys for grouped heads.
        per_group = heads // kv_heads
        is_hidden = (self._columns[:bucket] >= position).repeat(count, 1).index_copy_(1, places, ~tree.visible)
        mask = torch.zeros((), dtype=hidden.dtype, device=hidden.device)
        mask = mask.masked_fill(is_hidden.repeat(per_group, 1), -torch.inf)
        states = []
        for index, store in enumerate(runner.cache):
            if index in layers:
                states.append(hidden.clone())
            normed = rms_norm(hidden, attention_norms[index], weights.epsilon)
            bias = weights.qkv_bias[index] if weights.qkv_bias else None
            mixed = functional.linear(normed, qkv[index], bias).view(count, heads + 2 * kv_heads, size)
            query, key = mixed[:, :heads], mixed[:, heads : heads + kv_heads]
            if query_norms:
                query.copy_(rms_norm(query, query_norms[index], weights.epsilon))
                key.copy_(rms_norm(key, key_norms[index], weights.epsilon))
            rotate(mixed[:, : heads + kv_heads], cos, sin)
            store.index_copy_(0, places, mixed[:, heads:])
            known = store[:bucket].transpose(0, 1)  # (2 G, bucket, D)
            stacked = query.transpose(0, 1).reshape(kv_heads, per_group * count, size)
            # For so few rows over a long cache, torch's kernels of attention keep one multiprocessor busy a head.
            scores = torch.baddbmm(mask, stacked, known[:kv_heads].transpose(1, 2), alpha=size**-0.5)
            attended = torch.bmm(scores.softmax(-1), known[kv_heads:])
            attended = attended.view(heads, count, size).transpose(0, 1).reshape(count, heads * size)
            hidden.addmm_(attended, output[index].t())
            normed = rms_norm(hidden, mlp_norms[index], weights.epsilon)
            gate, up = functional.linear(normed, gate_up[index]).chunk(2, -1)
            hidden.addmm_(functional.silu(gate).mul_(up), down[index].t())
        hidden = rms_norm(hidden, weights.final_norm, weights.epsilon)
        return hidden, functional.linear(hidden, runner.head.weights[0]), *states

    def _set_tree(self, rows: int, tree: TreeRows | None) -> None:
        """Set what the graphs with this number of rows read: a tree, or a chain."""
        if tree is None and rows not in self._overwritten:
            return
        self._overwritten.discard(rows)
        depths, visible = _static_chain(rows, torch.device("cpu"))
        if tree is not None:
            self._overwritten.add(rows)
            count = len(tree.visible)
            depths[:count] = tree.positions - tree.positions[0]
            visible[:count, :count] = tree.visible
        for read, given in zip(self._trees[rows], (depths, visible), strict=True):
            read.copy_(sent(given, read.device))

    def draw(
        self, last_two: Tensor, uniforms: Tensor, temperature: float, limit: int, proposed: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """See `GraphedRunner.draw_block`, for two ids (2,)."""
        number, start = uniforms.shape[0], self.eager.length
        bucket = self._bucket(start + max(2 + number, _DRAW_PLACES))
        graph = self._draw_graph(bucket, temperature == 0.0, limit, proposed)
        if graph is None:
            return None
        self._ids[:2].copy_(sent(last_two, self._ids.device))
        self._uniforms[:number].copy_(sent(uniforms, self._ids.device))
        self._position.fill_(start)
        self._temperature.fill_(temperature or 1.0)
        self._step.zero_()
        for _ in range(number):
            graph.replay()
        self.eager.length = start + 1 + number
        tokens, rows = graph.outputs
        return tokens[:number].clone(), rows[:number].clone()

    def _draw_graph(self, bucket: int, is_greedy: bool, limit: int, proposed: Tensor | None) -> _Graph | None:
        key = ("draw", bucket, is_greedy, limit, None if proposed is None else id(proposed))
        if key in self._graphs:
            return self._graphs[key]
        tokens = torch.zeros_like(self._ids[:_LONGEST_DRAFT])
        rows = torch.zeros(_LONGEST_DRAFT, limit, device=self.eager.device)

        def body() -> Outputs:
            """Draw one token, and leave all tensors ready for the next."""
            ids, step = self._ids[:2], self._step
            _, logits = self._forward(2, bucket, self._pair)
            row = logits[-1, :limit].float()
            probs = unfiltered_probabilities(row if is_greedy else row / self._temperature, 0.0 if is_greedy else 1.0)
            drawn = draw_in_double(probs, self._uniforms.index_select(0, step)[0]).view(1)
            token = drawn if proposed is None else proposed.index_select(0, drawn)
            tokens.index_copy_(0, step, token)
            rows.index_copy_(0, step, probs.unsqueeze(0))
            ids.copy_(torch.cat((ids[1:], token)))
            self._position.add_(1)
            step.add_(1)
            return tokens, rows

        return self._graph(key, body, proposed)

    def prepare(self, end: int, draws: Draws | None, layers: tuple[int, ...]) -> None:
        """See `GraphedRunner.prepare`."""
        for bucket in self._buckets(end):
            room = bucket - self.eager.length  # What has none here is never launched with this bucket.
            if draws is None:
                for rows in _ROWS:
                    if rows <= room:
                        self._score_graph(rows, bucket, layers)
            elif room >= _DRAW_PLACES:
                self._draw_graph(bucket, *draws)

    def _buckets(self, end: int) -> Iterator[int]:
        bucket = self._bucket(self.eager.length + 1)
        while True:
            yield bucket
            if bucket >= min(end + _ROWS[-1], self.eager.capacity):
                return
            bucket = min(2 * bucket, self.eager.capacity)

    def _bucket(self, end: int) -> int:
        """The smallest power of two that holds `end` positions."""
        return min(self.eager.capacity, max(_SMALLEST_BUCKET, 1 << (end - 1).bit_length()))

    def _graph(self, key: Hashable, body: Callable[[], Outputs], proposed: Tensor | None = None) -> _Graph | None:
        """The graph for a shape, captured on first use; None if that failed."""
        graph = self._graphs.get(key)
        if graph is not None or self.is_broken:
            return graph
        # What capturing writes to the cache lies beyond the text.
        self._position.fill_(self.eager.length)
        self._step.zero_()
        try:
            outputs, replay = self._capture(body)
        except Exception:
            # The driver or allocator can't capture: everything runs without graphs.
            _log.warning("CUDA graphs can't be used, so forwards run without them.", exc_info=True)
            self.is_broken = True
            return None
        self.num_captures += 1
        self._graphs[key] = graph = _Graph(outputs, replay, proposed)
        return graph


class GraphedRunner:
    """A `Runner` over `GraphedForwards`, for one text. The next call overwrites a result, also one of another runner of
    the model: their graphs share memory."""

    def __init__(self, forwards: GraphedForwards, capacity: int) -> None:
        self._forwards = forwards
        self._eager = forwards.eager
        self._eager.length = 0
        self.capacity = capacity

    @property
    def length(self) -> int:
        return self._eager.length

    @property
    def num_captures(self) -> int:
        """Graphs captured so far; a step during which one is captured takes much longer."""
        return self._forwards.num_captures

    def rewind(self, length: int) -> None:
        self._eager.rewind(length)

    def keep(self, places: Sequence[int]) -> None:
        self._eager.keep(places)

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, *, num_logits: int, layers: Sequence[int] = (), tree: TreeRows | None = None
    ) -> ForwardOutput:
        check_room(self.length + len(ids), self.capacity)
        # A call without logits is a prefill, which happens once; a graph reads a tree from its root.
        is_whole = tree is None or tree.visible.shape[1] == len(ids)
        found = self._forwards.score(ids, tree, tuple(layers)) if num_logits > 0 and is_whole else None
        if found is None:
            return self._eager.forward(ids, num_logits=num_logits, layers=layers, tree=tree)
        hidden, logits, *states = found
        return ForwardOutput(logits[len(ids) - num_logits :], (hidden, *states) if FINAL in layers else tuple(states))

    @torch.inference_mode()
    def draw_block(
        self, ids: Tensor, uniforms: Tensor, temperature: float, limit: int, proposed: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Append `ids` (n,), draw K tokens one by one without filters, and append all of them but the last.

        Args:
            ids: to append first.
            uniforms: (K,) draws in [0, 1).
            temperature: of the draws.
            limit: number of leading logits to use.
            proposed: (limit,) ids of the logits; None if they are 0, 1, 2 and so on.

        Returns:
            (K,) tokens, and the distributions (K, limit) that they were drawn from; None if no graph is available, as
            for a single id.
        """
        count, number, start = ids.shape[0], uniforms.shape[0], self.length
        if count < 2 or number > _LONGEST_DRAFT:
            return None
        check_room(start + count + number - 1, self.capacity)
        if count > 2:
            self._eager.forward(ids[:-2], num_logits=0)
        block = self._forwards.draw(ids[-2:], uniforms, temperature, limit, proposed)
        if block is None:
            self._eager.rewind(start)
        return block

    @torch.inference_mode()
    def prepare(self, end: int, draws: Draws | None = None, layers: Sequence[int] = ()) -> None:
        """Capture what a text of up to `end` positions will launch: all scoring that returns the states of these
        layers, or all draws of this kind."""
        self._forwards.prepare(min(end, self.capacity), draws, tuple(layers))


class GraphPool:
    """A model's idle `GraphedForwards`: graphs and caches outlive a run."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._idle: dict[Hashable, list[GraphedForwards]] = {}

    def runner(self, key: Hashable, capacity: int, make: Callable[[int], FusedLlamaRunner]) -> GraphedRunner:
        """A runner for one text, with the graphs of an earlier one if that has room.

        Args:
            key: what the runner multiplies with: runners of one key are interchangeable.
            capacity: positions of the text.
            make: makes a fused runner with a cache of this many positions.
        """
        idle = self._idle.setdefault(key, [])
        room = capacity + _ROWS[-1]
        forwards = next((each for each in idle if each.eager.capacity >= room), None)
        if forwards is None:
            self.clear()  # Too short, or for other frequencies.
            rounded = max(_SMALLEST_BUCKET, 1 << (room - 1).bit_length())
            forwards = GraphedForwards(make(min(rounded, -(-room // _ROUNDING) * _ROUNDING)), self._capture)
        else:
            idle.remove(forwards)
            # Graphs read all of a cache: where an earlier run left NaN, a weight of 0 would not remove it.
            with torch.inference_mode():
                for store in forwards.eager.cache:
                    store.zero_()
        runner = GraphedRunner(forwards, capacity)
        weakref.finalize(runner, _keep, idle, forwards)
        return runner

    def clear(self) -> None:
        """Free the memory of all that is idle."""
        for idle in self._idle.values():
            idle.clear()


def _keep(idle: list[GraphedForwards], forwards: GraphedForwards) -> None:
    """Keep what a run no longer uses, unless capturing failed: the next run tries again."""
    if not forwards.is_broken:
        idle.append(forwards)
