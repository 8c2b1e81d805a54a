"""A Llama-shaped model's weights, fused and laid out for the lean forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from core.runners.products import NO_BLOCKS, Product, blocks_of, head_product, is_faster_packed, pack, quantised

Products = tuple[Product, Product, Product, Product]
"""Of the query, key and value projections in one; the attention's output; the MLP's gate and up in one; its down."""

Norms = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]
"""Before attention, before the MLP, of queries, of keys; a tensor a layer."""


class LeanWeights:
    """Shared by any number of runners.

    Fusing makes a new tensor of each group; the module's own parameters are then pointed into it, so that nothing is
    held twice and both forwards read the same numbers. Where products are taken with packed weights, the module keeps
    its own, which are pages of the weight file as long as nobody writes to them.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = getattr(config, "num_key_value_heads", None) or self.num_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.num_heads
        self.epsilon: float = config.rms_norm_eps
        self.embedding: Tensor = model.model.embed_tokens.weight.detach()
        self.head = head_product(model.lm_head.weight.detach())
        self.final_norm: Tensor = _twice(model.model.norm.weight)
        layers = list(model.model.layers)
        self.num_layers = len(layers)
        # In the order of the forward; what a model lacks is an empty list.
        self.norms: Norms = (
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
        # In the order of the forward.
        self.products: Products = (
            _product([_projections(layer) for layer in layers]),
            _product([[layer.self_attn.o_proj] for layer in layers]),
            _product([[layer.mlp.gate_proj, layer.mlp.up_proj] for layer in layers]),
            _product([[layer.mlp.down_proj] for layer in layers]),
        )
        self._rotary = model.model.rotary_emb
        self._small: Products | None = None
        # Each with the ids that it was made for, so that their `id` stays theirs.
        self._draft_heads: dict[tuple[int, bool], tuple[Tensor | None, Product]] = {}

    def draft_products(self, *, is_quantised: bool) -> Products:
        """Those for drafting, where the precision is free: int8 copies are made once, where they are faster."""
        if not is_quantised:
            return self.products
        if self._small is None:
            qkv, output, gate_up, down = self.products
            self._small = quantised(qkv), quantised(output), quantised(gate_up), quantised(down)
        return self._small

    def draft_head(self, ids: Tensor | None, *, is_quantised: bool) -> Product:
        """The head's rows of some ids (R,), all for None, made once."""
        key = (id(ids), is_quantised)
        if key not in self._draft_heads:
            head = self.head if ids is None else head_product(self.head.weights[0][ids])
            self._draft_heads[key] = ids, quantised(head) if is_quantised else head
        return self._draft_heads[key][1]

    @property
    def int8_bytes(self) -> int:
        """What the int8 copies take that drafting has had made, a byte a weight."""
        products = [*(self._small or ()), *(head for _, head in self._draft_heads.values())]
        return sum(weight.numel() for product in products if product.int8 for weight in product.weights)

    def rotary_table(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with the sign of the half they multiply: (capacity, 1, D) each."""
        positions = torch.arange(capacity, device=self.embedding.device)
        cos, sin = self._rotary(self.embedding, positions.unsqueeze(0))
        cos, sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)
        half = self.head_dim // 2
        return cos.contiguous(), torch.cat((-sin[..., :half], sin[..., half:]), -1).contiguous()


def _projections(layer: Any) -> list[Any]:
    return [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]


def _product(groups: list[list[Any]]) -> Product:
    """The products of one kind; `groups` holds the modules that each layer does at once.

    A layer at a time, so that hardly more than the model itself is held on the way.
    """
    is_packed = is_faster_packed(_joint(groups[0]))
    weights = []
    for group in groups:
        joint = _joint(group)
        if not is_packed:
            _point_into(joint, group)
        weights.append(pack(joint) if is_packed else joint)
    return Product([], [], weights, NO_BLOCKS) if is_packed else Product(weights, [], [], blocks_of(weights[0]))


def _joint(linears: list[Any]) -> Tensor:
    weights = [linear.weight.detach() for linear in linears]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _point_into(joint: Tensor, linears: list[Any]) -> None:
    start = 0
    for linear in linears:
        end = start + linear.weight.shape[0]
        linear.weight.data = joint[start:end]
        start = end


def _twice(weight: Tensor) -> Tensor:
    """See `core.runners.lean_forward.rms_norm`."""
    return torch.cat((weight.detach(), weight.detach()))
