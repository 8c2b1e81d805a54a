"""The two architectures: plain Llama, so that transformers loads them as any other model."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from core.training.tokenizer import MAX_POSITIONS

SHAPES: dict[str, dict[str, int]] = {
    "target": {
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
    "draft": {
        "hidden_size": 160,
        "num_hidden_layers": 2,
        "intermediate_size": 512,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
    },
    "tiny": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
}
ROPE_THETA = 10_000.0


def new_model(shape: str, vocab_size: int, seed: int, num_layers: int | None = None) -> LlamaForCausalLM:
    """A freshly initialised model; id 0 is END_OF_TEXT. Output projections of the residual branches start at zero."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
        **(SHAPES[shape] if num_layers is None else {**SHAPES[shape], "num_hidden_layers": num_layers}),
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model
