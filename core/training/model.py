"""The embedded pair's models: shapes, the forward that training and sampling share, and their files."""

from __future__ import annotations

import contextlib
import copy
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from core.files import explaining_full_disks
from core.models.devices import resolve_dtype
from core.training.corpus import MAX_POSITIONS


def _shape(hidden: int, layers: int, intermediate: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
    }


SHAPES = {
    "target": _shape(512, 6, 1024, 8, 2),
    "draft": _shape(160, 2, 512, 5, 1),
    "tiny": _shape(32, 1, 64, 2, 1),
}
ROPE_THETA = 10_000.0


def _has_bfloat16() -> bool:
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        # oneDNN also says yes where it emulates bfloat16 in AVX-512.
        is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
        return not is_x86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    except (AttributeError, RuntimeError):  # This torch comes without oneDNN, or can't tell.
        return False


ARITHMETIC = torch.bfloat16 if _has_bfloat16() else torch.float32
"""The number format of training on a CPU, on float32 weights: emulated bfloat16 takes tens of times longer."""


def arithmetic(device: torch.device) -> torch.dtype:
    """The number format of training on a device, on float32 weights."""
    if device.type != "cuda":
        return ARITHMETIC if device.type == "cpu" else torch.float32
    found = resolve_dtype("auto", device)
    return found if found is torch.bfloat16 else torch.float32


def new_model(shape: str, vocab_size: int, seed: int) -> LlamaForCausalLM:
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
        **SHAPES[shape],
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def rope_for(model: LlamaForCausalLM, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin, each (length, head size), of the rotary embedding of a model in float32 that doesn't scale it."""
    device = model.model.norm.weight.device
    cos, sin = model.model.rotary_emb(torch.zeros(1, device=device), torch.arange(length, device=device)[None])
    return cos[0], sin[0]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, computed in float32."""
    return functional.rms_norm(x.float(), weight.shape, eps=eps).to(x.dtype) * weight.to(x.dtype)


@dataclass
class Cache:
    """Keys and values of equally long sequences, each (layers, batch, kv heads, capacity, head size)."""

    keys: Tensor
    values: Tensor
    length: int = 0

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the new positions of a layer, and return all of its positions."""
        end = self.length + keys.shape[2]
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def hidden_states(
    model: LlamaForCausalLM,
    ids: Tensor,
    cos: Tensor,
    sin: Tensor,
    dtype: torch.dtype = ARITHMETIC,
    cache: Cache | None = None,
) -> Tensor:
    """Final normed states (batch, length, hidden) of ids (batch, length); cos and sin are (length, head size).

    A non-empty cache takes one position at a time.
    """
    config = model.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    batch, length = ids.shape
    eps = config.rms_norm_eps
    cos, sin = cos.to(dtype), sin.to(dtype)
    x = functional.embedding(ids, model.model.embed_tokens.weight).to(dtype)
    for index, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        h = rms_norm(x, layer.input_layernorm.weight, eps)
        q, k, v = (
            _linear(h, projection).view(batch, length, number, -1).transpose(1, 2)
            for projection, number in (
                (attention.q_proj, heads),
                (attention.k_proj, kv_heads),
                (attention.v_proj, kv_heads),
            )
        )
        q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=0)
        if cache is not None:
            k, v = cache.append(index, k, v)
        elif heads != kv_heads:
            k, v = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=cache is not None)
        x = x + _linear(mixed.transpose(1, 2).reshape(batch, length, -1), attention.o_proj)
        h = rms_norm(x, layer.post_attention_layernorm.weight, eps)
        x = x + _linear(functional.silu(_linear(h, mlp.gate_proj)) * _linear(h, mlp.up_proj), mlp.down_proj)
    return rms_norm(x, model.model.norm.weight, eps)


def _linear(x: Tensor, projection: torch.nn.Linear) -> Tensor:
    return functional.linear(x, projection.weight.to(x.dtype))


def logits_of(model: LlamaForCausalLM, states: Tensor) -> Tensor:
    """(..., vocabulary) from states (..., hidden), in the dtype of the states."""
    return _linear(states, model.lm_head)


def next_token_loss(
    model: LlamaForCausalLM, ids: Tensor, targets: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype = ARITHMETIC
) -> Tensor:
    """Mean cross-entropy in nats of targets (batch, length), the ids one position on."""
    logits = logits_of(model, hidden_states(model, ids, cos, sin, dtype)).float()
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --- Sampling in batches ----------------------------------------------------------------------------------------


def sample(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """One token (batch,) of logits (batch, vocabulary) at temperature (batch,); 0 is argmax. Inverse CDF in float32.

    The generator is the CPU's, on every device.
    """
    scaled = logits.float().div_(temperature.clamp_min(1e-6)[:, None])
    cdf = scaled.softmax(-1).cumsum(-1)
    uniform = torch.rand(len(logits), 1, generator=generator).to(cdf.device) * cdf[:, -1:]
    drawn = torch.searchsorted(cdf, uniform, right=True).squeeze(1).clamp_max(logits.shape[-1] - 1)
    greedy = (temperature <= 0).nonzero().flatten()
    drawn[greedy] = logits[greedy].argmax(-1)
    return drawn


class BatchDecoder:
    """Decodes sequences of equal length side by side, with a static cache."""

    def __init__(self, model: LlamaForCausalLM, batch: int, capacity: int, dtype: torch.dtype) -> None:
        config = model.config
        with torch.device("meta"):
            self.model = LlamaForCausalLM(config)
        self.model.load_state_dict({name: t.detach().to(dtype) for name, t in model.state_dict().items()}, assign=True)
        self.dtype = dtype
        self.cos, self.sin = rope_for(model, capacity)
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, capacity, self.cos.shape[-1])
        keys, values = (torch.zeros(shape, dtype=dtype, device=self.cos.device) for _ in range(2))
        self.cache = Cache(keys, values)

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Append ids (batch, length); returns the last position's state (batch, hidden) and logits (batch, V)."""
        at = slice(self.cache.length, self.cache.length + ids.shape[1])
        state = hidden_states(self.model, ids, self.cos[at], self.sin[at], self.dtype, self.cache)[:, -1]
        self.cache.length = at.stop
        return state, logits_of(self.model, state)


@torch.no_grad()
def continuations(
    model: LlamaForCausalLM,
    prompts: Tensor,
    new_tokens: int,
    temperature: Tensor,
    generator: torch.Generator,
    dtype: torch.dtype = ARITHMETIC,
) -> Tensor:
    """prompts (batch, n), each with new_tokens sampled at its temperature (batch,). END_OF_TEXT does not stop it."""
    batch, length = prompts.shape
    decoder = BatchDecoder(model, batch, length + new_tokens, dtype)
    pieces = [prompts]
    for _ in range(new_tokens):
        _, logits = decoder(pieces[-1])
        pieces.append(sample(logits, temperature, generator)[:, None])
    return torch.cat(pieces, 1)


# --- Files ------------------------------------------------------------------------------------------------------

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def load_model(path: Path) -> LlamaForCausalLM:
    """A model in float32, from a training checkpoint or an exported folder."""
    if path.is_dir():
        return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
    state = torch.load(path, weights_only=True)
    model = LlamaForCausalLM(LlamaConfig.from_dict(state["config"]))
    model.load_state_dict(state["model"])
    return model


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a folder that transformers loads, in bfloat16, atomically; the caller's model stays as it is."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=0, do_sample=True, temperature=1.0, top_k=0)
    with replaced_folder(folder) as fresh:
        half.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        for extra in set(fresh.iterdir()) - {fresh / name for name in FILES}:
            extra.unlink()


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder to write to, which replaces `folder` once writing is complete; its model cards are kept."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        with explaining_full_disks(folder):
            yield fresh
        for card in folder.glob("*.md"):
            shutil.copy(card, fresh)
        fresh.chmod(0o755)
        for file in fresh.iterdir():
            file.chmod(0o644)
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)
