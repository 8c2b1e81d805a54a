"""All that a Llama-shaped model's forward multiplies with and writes to, as one value that TorchScript reads."""

# No postponed annotations here: TorchScript can't resolve those of a NamedTuple from another module.
from typing import NamedTuple

from torch import Tensor

from core.runners.products import Product


class LeanModel(NamedTuple):
    """Lists hold a tensor a layer, and are empty where the model has no such weights.

    Attributes:
        embedding: (V, hidden).
        final_norm: twice its weight, as all norms here; see `core.runners.lean_forward.rms_norm`.
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
