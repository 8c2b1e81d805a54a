"""A Llama-shaped model's weights, fused and laid out for the lean forward."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from core.runners.products import block_of, quantised


@dataclass(frozen=True, slots=True)
class Products:
    """The weights that are multiplied with: (out, in), one a layer, and their int8 copies where these are used.

    The fields are in the order of `core.runners.lean_forward.forward`; `blocks` has a number for each of the first
    four, see `core.runners.products.block_of`.
    """

    qkv: list[Tensor]
    output: list[Tensor]
    gate_up: list[Tensor]
    down: list[Tensor]
    qkv_int8: list[Any] = field(default_factory=list)
    output_int8: list[Any] = field(default_factory=list)
    gate_up_int8: list[Any] = field(default_factory=list)
    down_int8: list[Any] = field(default_factory=list)
    blocks: list[int] = field(default_factory=lambda: [0] * 4)

    @property
    def plain(self) -> tuple[list[Tensor], ...]:
        return self.qkv, self.output, self.gate_up, self.down

    def in_blocks(self) -> Products:
        """The same, in blocks where that is faster."""
        return replace(self, blocks=[block_of(weights[0]) for weights in self.plain])

    def in_full(self) -> Products:
        """The plain products alone."""
        return Products(self.qkv, self.output, self.gate_up, self.down)

    def quantised(self) -> Products:
        """The same, with int8 copies of what is faster so."""
        qkv, output, gate_up, down = (quantised(weights) for weights in self.plain)
        return replace(self, qkv_int8=qkv, output_int8=output, gate_up_int8=gate_up, down_int8=down)


@dataclass(frozen=True, slots=True)
class Head:
    """An output head: weights (V, hidden), their int8 copy, which is none or one, and the size of their blocks."""

    weight: Tensor
    int8: list[Any] = field(default_factory=list)
    block: int = 0

    def in_blocks(self) -> Head:
        return replace(self, block=block_of(self.weight))

    def quantised(self) -> Head:
        return replace(self, int8=quantised([self.weight]))


class LeanWeights:
    """Shared by any number of runners.

    Fusing makes a new tensor of each group; the module's own parameters are then pointed into it, so that nothing is
    held twice and both forwards read the same numbers.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = getattr(config, "num_key_value_heads", None) or self.num_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.num_heads
        self.epsilon: float = config.rms_norm_eps
        self.embedding: Tensor = model.model.embed_tokens.weight.detach()
        self.head = Head(model.lm_head.weight.detach()).in_blocks()
        self.final_norm: Tensor = _twice(model.model.norm.weight)
        layers = list(model.model.layers)
        self.num_layers = len(layers)
        # In the order of the forward; what a model lacks is an empty list.
        self.norms: tuple[list[Tensor], ...] = (
            [_twice(layer.input_layernorm.weight) for layer in layers],
            [_twice(layer.post_attention_layernorm.weight) for layer in layers],
            [_twice(layer.self_attn.q_norm.weight) for layer in layers if hasattr(layer.self_attn, "q_norm")],
            [_twice(layer.self_attn.k_norm.weight) for layer in layers if hasattr(layer.self_attn, "k_norm")],
        )
        self.qkv_bias = [
            _fuse(_projections(layer), "bias") for layer in layers if layer.self_attn.q_proj.bias is not None
        ]
        self.products = Products(
            qkv=[_fuse(_projections(layer), "weight") for layer in layers],
            output=[layer.self_attn.o_proj.weight.detach() for layer in layers],
            gate_up=[_fuse([layer.mlp.gate_proj, layer.mlp.up_proj], "weight") for layer in layers],
            down=[layer.mlp.down_proj.weight.detach() for layer in layers],
        ).in_blocks()
        self._rotary = model.model.rotary_emb
        self._small: Products | None = None
        self._draft_heads: dict[tuple[int | None, bool], Head] = {}

    def draft_products(self, *, is_quantised: bool) -> Products:
        """Those for drafting, where the precision is free: int8 copies are made once, where they are faster."""
        if not is_quantised:
            return self.products
        if self._small is None:
            self._small = self.products.quantised()
        return self._small

    def draft_head(self, ids: Tensor | None, *, is_quantised: bool) -> Head:
        """The head's rows of some ids (R,), all for None, made once."""
        key = (None if ids is None else id(ids), is_quantised)
        if key not in self._draft_heads:
            head = self.head if ids is None else Head(self.head.weight[ids]).in_blocks()
            self._draft_heads[key] = head.quantised() if is_quantised else head
        return self._draft_heads[key]

    def rotary_table(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with the sign of the half they multiply: (capacity, 1, D) each."""
        positions = torch.arange(capacity, device=self.embedding.device)
        cos, sin = self._rotary(self.embedding, positions.unsqueeze(0))
        cos, sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)
        half = self.head_dim // 2
        return cos.contiguous(), torch.cat((-sin[..., :half], sin[..., half:]), -1).contiguous()


def _projections(layer: Any) -> list[Any]:
    return [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]


def _fuse(linears: list[Any], name: str) -> Tensor:
    """Join parameters along their outputs, and point each module at its part of the joint tensor."""
    joint = torch.cat([getattr(linear, name).detach() for linear in linears])
    start = 0
    for linear in linears:
        parameter = getattr(linear, name)
        end = start + parameter.shape[0]
        parameter.data = joint[start:end]
        start = end
    return joint


def _twice(weight: Tensor) -> Tensor:
    """See `core.runners.lean_forward.rms_norm`."""
    return torch.cat((weight.detach(), weight.detach()))
