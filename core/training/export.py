"""Writes a model and the tokenizer as a folder that transformers loads; the folder is replaced whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from core.training.shapes import new_model

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
