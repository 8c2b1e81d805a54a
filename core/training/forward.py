"""A lean training forward over the weights of a transformers Llama: whole sequences, no cache, made to be compiled."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM


def rope_table(length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each (length, head_dim), in the half-rotated layout of transformers."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse).repeat(1, 2)
    return angles.cos(), angles.sin()


def rope_for(model: LlamaForCausalLM, length: int) -> tuple[Tensor, Tensor]:
    """The model's own table.

    Raises:
        ValueError: its rotary embedding is not the plain one.
    """
    config = model.config
    rope = config.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rotary embeddings of the type {rope['rope_type']} are not trained here")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return rope_table(length, head_dim, rope["rope_theta"])


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x (batch, heads, length, head_dim)."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def hidden_states(
    model: LlamaForCausalLM, ids: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """Final normed states (batch, length, hidden) of token ids (batch, length); cos and sin are (length, head_dim)."""
    config = model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    batch, length = ids.shape
    eps = config.rms_norm_eps
    cos, sin = cos.to(dtype), sin.to(dtype)
    x = functional.embedding(ids, model.model.embed_tokens.weight).to(dtype)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        h = rms_norm(x, layer.input_layernorm.weight, eps)
        q = functional.linear(h, attention.q_proj.weight.to(dtype)).view(batch, length, heads, -1).transpose(1, 2)
        k = functional.linear(h, attention.k_proj.weight.to(dtype)).view(batch, length, kv_heads, -1).transpose(1, 2)
        v = functional.linear(h, attention.v_proj.weight.to(dtype)).view(batch, length, kv_heads, -1).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if heads != kv_heads:
            k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        mixed = (
            functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        )
        x = x + functional.linear(mixed, attention.o_proj.weight.to(dtype))
        h = rms_norm(x, layer.post_attention_layernorm.weight, eps)
        gate = functional.linear(h, mlp.gate_proj.weight.to(dtype))
        x = x + functional.linear(
            functional.silu(gate) * functional.linear(h, mlp.up_proj.weight.to(dtype)), mlp.down_proj.weight.to(dtype)
        )
    return rms_norm(x, model.model.norm.weight, eps)


def logits_of(model: LlamaForCausalLM, states: Tensor) -> Tensor:
    """(..., vocabulary) from states (..., hidden), in the dtype of the states."""
    return functional.linear(states, model.lm_head.weight.to(states.dtype))


def next_token_loss(model: LlamaForCausalLM, ids: Tensor, targets: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Mean cross-entropy in nats of targets (batch, length), the ids one position on."""
    logits = logits_of(model, hidden_states(model, ids, cos, sin)).float()
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
