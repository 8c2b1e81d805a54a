"""A tiny model in a GGUF file, a child that is played, and what a conversion left behind."""

import sys
from pathlib import Path

import gguf
import numpy as np

import core.models.folder.gguf as engine
from core.errors import ModelUnreadableError
from core.models.folder.gguf import convert
from tests import fakes
from tests.fakes import EOS, byte_tokenizer, tiny_module

CONTROL, UNUSED, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.UNUSED, gguf.TokenType.USER_DEFINED


def refusal(path, error=ModelUnreadableError) -> str:
    """Converts what can't be converted, and returns the message."""
    said = fakes.refusal(error, convert, Path(path))
    assert left_over() == []
    return said


def left_over() -> list[Path]:
    """What is in the folder of converted files and is not a converted file."""
    return sorted(path for path in engine._kept().glob("*") if not (path / "config.json").is_file())


def write_gguf(
    path,
    *,
    template=None,
    tensor_type=None,
    extra=None,
    last=((EOS, CONTROL),),
    family="llama",
    num_layers=2,
    merges=("a b",),
    pieces=(),
) -> Path:
    """A tiny llama, Gemma or Phi-3, as llama.cpp's converter writes it, but with its rotary order left as it is.

    `extra`: further fields by key, and tensors, as lists, by name. `last`: the tokens from id 257 on, and their types.
    `pieces`: those of a SentencePiece vocabulary in place of all others, with their types and scores.
    """
    config = tiny_module("llama").config
    tokens = byte_tokenizer([("a", "b")]).convert_ids_to_tokens(range(257)) + [token for token, _ in last]
    tokens = [piece for piece, _, _ in pieces] or tokens
    is_gemma, vocab_size = family.startswith("gemma"), len(tokens)
    width = 16 if is_gemma else 8
    writer = gguf.GGUFWriter(path, family)
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("llama" if pieces else "gpt2")
    writer.add_token_list(tokens)
    if pieces:
        writer.add_token_types([kind for _, kind, _ in pieces])
        writer.add_token_scores([score for _, _, score in pieces])
    else:
        writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [kind for _, kind in last])
        writer.add_token_merges(merges)
    writer.add_eos_token_id(2 if pieces else 257)
    if template:
        writer.add_chat_template(template)
    for name, value in (extra or {}).items():
        if isinstance(value, list):
            writer.add_tensor(name, np.array(value, dtype=np.float32))
        else:
            kinds = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool}
            kinds[type(value)](name, value)
    random = np.random.default_rng(0)
    shapes = {"token_embd": (vocab_size, 32), "output_norm": (32,)} | ({} if is_gemma else {"output": (vocab_size, 32)})
    norms = {"post_attention_norm": (32,), "post_ffw_norm": (32,), "attn_q_norm": (width,), "attn_k_norm": (width,)}
    fused = {"attn_qkv": (8 * width, 32), "ffn_up": (96, 32)}
    for block in range(num_layers):
        shapes |= {
            f"blk.{block}.{name}": shape
            for name, shape in {
                "attn_norm": (32,), "attn_q": (4 * width, 32), "attn_k": (2 * width, 32), "attn_v": (2 * width, 32),
                "attn_output": (32, 4 * width), "ffn_norm": (32,), "ffn_gate": (48, 32), "ffn_up": (48, 32),
                "ffn_down": (32, 48), **(norms if is_gemma else {}), **(fused if family == "phi3" else {}),
            }.items()
        }  # fmt: skip
    for name, shape in shapes.items():
        data = random.normal(size=shape, scale=0.3).astype(np.float32)
        packed = tensor_type if tensor_type and shape[-1] == 32 and len(shape) > 1 else None
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(data, packed) if packed else data, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fake(script: str) -> list[str]:
    """A command that runs a few lines of Python, which start sooner than the real child."""
    return [sys.executable, "-S", "-c", f"import json, os, signal, sys, time\n{script}"]
