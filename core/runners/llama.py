"""A fused forward for Llama-shaped models: the same weights and arithmetic in fewer, larger operations.

It fuses the three attention projections, and the two of the gated MLP, into one product each, reads rotary factors from
a table, and writes keys and values into a preallocated cache that is rewound by moving a number. A small model's time
is spent dispatching operations, not on arithmetic, so each operation saved here counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from core.models.devices import available_memory
from core.runners import llama_forward, rotary
from core.runners.base import FINAL, ForwardOutput, TreeRows, check_rewind, check_room
from core.runners.llama_forward import FusedLlama, plain_errors, scripted
from core.runners.matmul import MOST_QUANTISED, Product, in_full, product_of, quantised
from core.runners.timing import sent

Products = tuple[Product, Product, Product, Product]
"""Fused query, key and value projections; attention output; fused gate and up of the MLP; its down projection."""

LLAMA_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Architectures that the fused forward supports. Each model is still checked against its module before use."""

_MEMORY_SHARE = 0.5
"""Weights are packed if the second copy takes at most this share of the free memory."""

_LONGEST_BLOCK = 32
"""Up to here, in float32 on the CPU, attention is three plain products, which are faster than the fused kernel."""


def supports(model: Any) -> bool:
    """Whether the fused forward supports a model with this configuration."""
    config = model.config
    if config.model_type not in LLAMA_MODEL_TYPES or getattr(config, "sliding_window", None):
        return False
    if getattr(config, "hidden_act", "silu") != "silu" or getattr(config, "mlp_bias", False):
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("partial_rotary_factor", 1) != 1:
        return False
    linears = (model.model.layers[0].self_attn.o_proj, model.model.layers[0].mlp.down_proj, model.lm_head)
    return all(type(linear) is torch.nn.Linear and linear.bias is None for linear in linears)


class FusedLlamaWeights:
    """A model's fused weights, shared by any number of runners.

    Fusing makes a new tensor of each group; the module's own parameters then become views of it, so that nothing is
    stored twice. Packed weights are a second copy, made if it leaves most of the memory free.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = getattr(config, "num_key_value_heads", None) or self.num_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.num_heads
        self.epsilon: float = config.rms_norm_eps
        self.embedding: Tensor = model.model.embed_tokens.weight.detach()
        self._may_pack = _MEMORY_SHARE * available_memory() > sum(p.nbytes for p in model.parameters())
        # A draft with a vocabulary of its own uses only some rows of the head.
        uses_head = getattr(config, "draft_vocabulary", None) is None
        self.head = product_of([model.lm_head.weight.detach()], may_pack=self._may_pack and uses_head)
        self.final_norm: Tensor = _twice(model.model.norm.weight)
        layers = list(model.model.layers)
        self.num_layers = len(layers)
        # Before attention, before the MLP, of queries, of keys; empty if the model has none.
        self.norms = (
            [_twice(layer.input_layernorm.weight) for layer in layers],
            [_twice(layer.post_attention_layernorm.weight) for layer in layers],
            [_twice(layer.self_attn.q_norm.weight) for layer in layers if hasattr(layer.self_attn, "q_norm")],
            [_twice(layer.self_attn.k_norm.weight) for layer in layers if hasattr(layer.self_attn, "k_norm")],
        )
        self.qkv_bias = [
            torch.cat([linear.bias.detach() for linear in _projections(layer)])
            for layer in layers
            if layer.self_attn.q_proj.bias is not None
        ]
        groups = (
            [_projections(layer) for layer in layers],
            [[layer.self_attn.o_proj] for layer in layers],
            [[layer.mlp.gate_proj, layer.mlp.up_proj] for layer in layers],
            [[layer.mlp.down_proj] for layer in layers],
        )
        qkv, output, gate_up, down = (
            product_of([_fused(linears) for linears in kind], may_pack=self._may_pack) for kind in groups
        )
        self.products: Products = qkv, output, gate_up, down
        self._model = model.model
        self.has_length_dependent_rotary = rotary.boundary_of(self._model) is not None
        self._small: Products | None = None
        # Each with the ids it was made for, which keeps their `id` unique.
        self._draft_heads: dict[tuple[int, bool], tuple[Tensor | None, Product]] = {}

    def draft_products(self, *, is_quantised: bool) -> Products:
        """The products for drafting, which may be imprecise: int8 copies, if they are faster, made once."""
        if not is_quantised:
            return self.products
        if self._small is None:
            qkv, output, gate_up, down = self.products
            self._small = quantised(qkv), quantised(output), quantised(gate_up), quantised(down)
        return self._small

    def draft_head(self, ids: Tensor | None, *, is_quantised: bool) -> Product:
        """The head's rows for these ids (R,), or all rows for None; made once."""
        key = (id(ids), is_quantised)
        if key not in self._draft_heads:
            head = self.head if ids is None else product_of([self.head.weights[0][ids]], may_pack=self._may_pack)
            self._draft_heads[key] = ids, quantised(head) if is_quantised else head
        return self._draft_heads[key][1]

    @property
    def copied_bytes(self) -> int:
        """Size of the copies that are packed or in int8."""
        products = [*self.products, *(self._small or ()), self.head, *(head for _, head in self._draft_heads.values())]
        packed = {
            id(weight): weight.numel() * weight.element_size() for product in products for weight in product.packed
        }
        int8 = {id(weight): weight.numel() for product in products if product.int8 for weight in product.weights}
        return sum(packed.values()) + sum(int8.values())

    def rotary_table(self, capacity: int, longest: int) -> tuple[Tensor, Tensor]:
        """Cosines, and sines signed for the half they multiply: (capacity, 1, D) each, for texts up to `longest`."""
        positions = torch.arange(capacity, device=self.embedding.device)
        with rotary.fixed(rotary.frequencies_for(self._model, longest)):
            cos, sin = self._model.rotary_emb(self.embedding, positions.unsqueeze(0))
        cos, sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)
        half = self.head_dim // 2
        return cos.contiguous(), torch.cat((-sin[..., :half], sin[..., half:]), -1).contiguous()


def _projections(layer: Any) -> list[Any]:
    return [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]


def _fused(linears: list[Any]) -> Tensor:
    """The weights of some modules in one tensor, of which theirs become views."""
    if len(linears) == 1:
        return linears[0].weight.detach()
    joint = torch.cat([linear.weight.detach() for linear in linears])
    for linear, rows in zip(linears, joint.split([len(linear.weight) for linear in linears]), strict=True):
        linear.weight.data = rows
    return joint


def _twice(weight: Tensor) -> Tensor:
    """See `llama_forward.rms_norm`."""
    return torch.cat((weight.detach(), weight.detach()))


class FusedLlamaRunner:
    """Runs a Llama-shaped model over `FusedLlamaWeights`, one text at a time.

    Attributes:
        weights, products, head: what it multiplies with.
        device: where they are.
        length: positions in the cache; code that writes to the cache directly must update it.
        cache: (capacity, 2 G, D) keys and values of each layer.
        rotary: cosines and signed sines, see `FusedLlamaWeights.rotary_table`.
    """

    def __init__(
        self,
        weights: FusedLlamaWeights,
        capacity: int,
        *,
        products: Products | None = None,
        head: Product | None = None,
        longest: int | None = None,
    ) -> None:
        """
        Args:
            weights: the model's.
            capacity: positions of the cache.
            products, head: replacements for the weights' own, for a draft that is quantised or proposes only some ids.
            longest: positions of the longest text, if the cache has room for more.
        """
        self.weights = weights
        self.products = products or weights.products
        self.head = head or weights.head
        self.device = weights.embedding.device
        self.capacity = capacity
        self.length = 0
        dtype, device = weights.embedding.dtype, self.device
        # Keys before values, the fused projection's order.
        shape = (capacity, 2 * weights.num_kv_heads, weights.head_dim)
        self.cache = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(weights.num_layers)]
        self.rotary = weights.rotary_table(capacity, longest or capacity)
        self._longest_block = _LONGEST_BLOCK if device.type == "cpu" and dtype is torch.float32 else 0
        self._skips_mask = device.type == "cuda"
        """Whether chunks of a prefill need no mask; see `llama_forward.attend_causally`."""
        # Causal within a block: -inf above the diagonal.
        block = torch.full((_LONGEST_BLOCK, _LONGEST_BLOCK), -torch.inf, dtype=dtype, device=device)
        self._causal = block.triu_(1)
        every = (*self.products, self.head)
        self._few = self._model(*every)
        # int8 rows share one scale, which doesn't suit many different rows.
        self._many = self._model(*map(in_full, every))

    def _model(self, qkv: Product, output: Product, gate_up: Product, down: Product, head: Product) -> FusedLlama:
        weights = self.weights
        return FusedLlama(
            weights.embedding,
            weights.final_norm,
            head,
            *weights.norms,
            weights.qkv_bias,
            qkv,
            output,
            gate_up,
            down,
            self.cache,
            weights.num_heads,
            weights.num_kv_heads,
            weights.epsilon,
        )

    def rewind(self, length: int) -> None:
        check_rewind(length, self.length)
        self.length = length

    @torch.inference_mode()
    def keep(self, places: Sequence[int]) -> None:
        check_rewind(places[-1] + 1, self.length)
        start, end = places[0], places[0] + len(places)
        kept = sent(torch.tensor(places), self.device)
        for store in self.cache:
            store[start:end] = store.index_select(0, kept)
        self.length = end

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, *, num_logits: int, layers: Sequence[int] = (), tree: TreeRows | None = None
    ) -> ForwardOutput:
        hidden, logits, states = self._call(llama_forward.forward, ids, num_logits, list(layers), tree=tree)
        return ForwardOutput(logits, (hidden, *states) if FINAL in layers else tuple(states))

    @torch.inference_mode()
    def draw_next(self, ids: Tensor, uniform: Tensor, temperature: float, limit: int) -> tuple[Tensor, Tensor, Tensor]:
        """Append `ids` (n,), n >= 1, and draw the token that follows them, without filters.

        Args:
            ids: to append.
            uniform: () float64 on the model's device, in [0, 1).
            temperature: of the draw.
            limit: number of leading logits to use.

        Returns:
            () index among the logits; the distribution (limit,) float32 that it was drawn from; and the logits used.
        """
        token, probs, logits = self._call(llama_forward.draw_next, ids, uniform, temperature, limit)
        return token, probs, logits

    def _call(self, function: Callable[..., Any], ids: Tensor, *given: Any, tree: TreeRows | None = None) -> Any:
        count, start = ids.shape[0], self.length
        end = start + count
        check_room(end, self.capacity)
        at = slice(start, end) if tree is None else sent(tree.new_positions, self.device)
        cos, sin = (table[at] for table in self.rotary)
        is_block = count <= self._longest_block
        model = self._few if count <= MOST_QUANTISED else self._many
        mask = None
        if tree is not None:
            width = tree.visible.shape[1] if is_block else end
            mask = torch.zeros(count, width, dtype=cos.dtype)
            mask[:, -tree.visible.shape[1] :].masked_fill_(~tree.visible, -torch.inf)
            mask = sent(mask, self.device)
        elif count > 1 and is_block:
            mask = self._causal[:count, :count]
        elif count > 1 and start > 0 and not self._skips_mask:
            mask = torch.full((count, end), -torch.inf, dtype=cos.dtype, device=cos.device).triu_(start + 1)
        # TorchScript's optimiser would recompile for each number of positions; only the interpreter is needed.
        with torch.jit.optimized_execution(False), plain_errors():  # type: ignore[attr-defined]
            result = scripted(function)(sent(ids, self.device), *given, model, cos, sin, mask, is_block, start)
        self.length = end
        return result
