"""Batched sampling of continuations: the text that a draft is going to be asked about is the target's own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from core.training.model import rms_norm, rope_for, rotate


def sample(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """One token (batch,) of logits (batch, vocabulary) at temperature (batch,); 0 is argmax. Inverse CDF in float32."""
    scaled = logits.float().div_(temperature.clamp_min(1e-6)[:, None])
    cdf = scaled.softmax(-1).cumsum(-1)
    uniform = torch.rand(len(logits), 1, generator=generator) * cdf[:, -1:]
    drawn = torch.searchsorted(cdf, uniform, right=True).squeeze(1).clamp_max(logits.shape[-1] - 1)
    greedy = (temperature <= 0).nonzero().flatten()
    drawn[greedy] = logits[greedy].argmax(-1)
    return drawn


class BatchDecoder:
    """The model's forward with a static key/value cache, for sequences of equal length side by side."""

    def __init__(self, model: LlamaForCausalLM, batch: int, capacity: int, dtype: torch.dtype) -> None:
        config = model.config
        self.model, self.batch, self.dtype = model, batch, dtype
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        cos, sin = rope_for(model, capacity)
        self.cos, self.sin = cos.to(dtype), sin.to(dtype)
        shape = (config.num_hidden_layers, batch, self.kv_heads, capacity, cos.shape[-1])
        self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        self.weights = {name: p.detach().to(dtype) for name, p in model.named_parameters()}
        self.head = model.lm_head.weight.detach().to(dtype)
        self.position = 0

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Final state (batch, hidden) and logits (batch, vocabulary) after the last of ids (batch, length).

        The ids are appended to the cache.
        """
        start, end, w = self.position, self.position + ids.shape[1], self.weights
        cos, sin = self.cos[start:end], self.sin[start:end]
        eps = self.model.config.rms_norm_eps
        x = functional.embedding(ids, w["model.embed_tokens.weight"])
        for i in range(len(self.keys)):
            at = f"model.layers.{i}."
            h = rms_norm(x, w[at + "input_layernorm.weight"], eps)
            q, k, v = (
                functional.linear(h, w[f"{at}self_attn.{n}_proj.weight"])
                .view(self.batch, end - start, heads, -1)
                .transpose(1, 2)
                for n, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
            )
            self.keys[i, :, :, start:end] = rotate(k, cos, sin)
            self.values[i, :, :, start:end] = v
            mixed = functional.scaled_dot_product_attention(
                rotate(q, cos, sin),
                self.keys[i, :, :, :end],
                self.values[i, :, :, :end],
                is_causal=start == 0,
                enable_gqa=True,
            )
            x = x + functional.linear(
                mixed.transpose(1, 2).reshape(self.batch, end - start, -1), w[at + "self_attn.o_proj.weight"]
            )
            h = rms_norm(x, w[at + "post_attention_layernorm.weight"], eps)
            gate = functional.silu(functional.linear(h, w[at + "mlp.gate_proj.weight"]))
            x = x + functional.linear(
                gate * functional.linear(h, w[at + "mlp.up_proj.weight"]), w[at + "mlp.down_proj.weight"]
            )
        self.position = end
        state = rms_norm(x[:, -1], w["model.norm.weight"], eps)
        return state, functional.linear(state, self.head)


@torch.no_grad()
def continuations(
    model: LlamaForCausalLM,
    prompts: Tensor,
    new_tokens: int,
    temperature: Tensor,
    generator: torch.Generator,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """prompts (batch, n), each with new_tokens sampled at its temperature (batch,). END_OF_TEXT does not stop it."""
    batch, length = prompts.shape
    decoder = BatchDecoder(model, batch, length + new_tokens, dtype)
    pieces, (_, logits) = [prompts], decoder(prompts)
    for _ in range(new_tokens - 1):
        pieces.append(sample(logits, temperature, generator)[:, None])
        _, logits = decoder(pieces[-1])
    pieces.append(sample(logits, temperature, generator)[:, None])
    return torch.cat(pieces, 1)
