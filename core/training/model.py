"""Writes a model and the tokenizer as a folder that transformers loads; the folder is replaced whole."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from core.training.corpus import MAX_POSITIONS

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


def deepened(model: LlamaForCausalLM, num_layers: int) -> LlamaForCausalLM:
    """A model of `num_layers` that computes what `model` computes; the new layers are spread evenly, the last on top.

    Raises:
        ValueError: for fewer layers than there are, or more than twice as many.
    """
    old = len(model.model.layers)
    extra = num_layers - old
    if not 0 <= extra <= old:
        raise ValueError(f"{old} layers can be deepened to {old} to {2 * old}, not {num_layers}")
    repeated = {(index + 1) * old // extra - 1 for index in range(extra)}
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = num_layers
    grown = LlamaForCausalLM(config)
    with torch.no_grad():
        grown.load_state_dict({k: v for k, v in model.state_dict().items() if ".layers." not in k}, strict=False)
        places = iter(grown.model.layers)
        for index, layer in enumerate(model.model.layers):
            next(places).load_state_dict(layer.state_dict())
            if index in repeated:
                added = next(places)
                added.load_state_dict(layer.state_dict())
                added.self_attn.o_proj.weight.zero_()
                added.mlp.down_proj.weight.zero_()
    return grown


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


FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def load_model(path: Path, shape: str) -> LlamaForCausalLM:
    """A model in float32, from a training checkpoint or an exported folder."""
    if path.is_dir():
        return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
    state = torch.load(path, weights_only=True)
    config = state["config"]
    model = new_model(shape, config["vocab_size"], seed=0, num_layers=config["num_hidden_layers"])
    model.load_state_dict(state["model"])
    return model


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Weights in bfloat16. The caller's model stays as it is."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16)
    copy.config.dtype = torch.bfloat16
    copy.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0, do_sample=True, temperature=1.0, top_k=0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        fresh = Path(scratch) / "fresh"
        copy.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        for extra in set(fresh.iterdir()) - {fresh / name for name in FILES}:
            extra.unlink()
        fresh.chmod(0o755)
        for file in fresh.iterdir():
            file.chmod(0o644)
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)
