"""The draft in training: a few layers between the target's embedding and rows of its head."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from core.errors import ModelUnreadableError
from core.models.shared_draft import BORROWED, SHARES, tokens_sha256
from core.models.vocabularies import parse_tokenizer


def check_target(target: Any) -> None:
    """Raises:
    ModelUnreadableError: if this is no Llama that the training forward computes.
    """
    config = target.config
    plain = config.model_type == "llama" and not config.attention_bias and not config.mlp_bias
    rope = config.rope_parameters["rope_type"] if plain else "none"
    if rope != "default":
        raise ModelUnreadableError(
            f"A draft can be distilled from plain Llama models, and this is {config.model_type!r} or has biases or "
            "stretched rotary embeddings. Choose another target."
        )


def new_student(target: Any, num_layers: int) -> LlamaForCausalLM:
    """A student whose layers begin as copies of the target's, from the first to the last, evenly spaced."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = num_layers
    with torch.device("cpu"):
        student = LlamaForCausalLM(config)
    last = target.config.num_hidden_layers - 1
    with torch.no_grad():
        for index, layer in enumerate(student.model.layers):
            source = target.model.layers[round(index * last / max(1, num_layers - 1))]
            layer.load_state_dict(source.state_dict())
        student.model.norm.load_state_dict(target.model.norm.state_dict())
    student.set_input_embeddings(target.get_input_embeddings())
    student.set_output_embeddings(target.get_output_embeddings())
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(name not in BORROWED)
    return student.float()


def stored(student: LlamaForCausalLM) -> dict[str, Tensor]:
    """The parameters that are the student's own."""
    return {name: tensor for name, tensor in student.state_dict().items() if name not in BORROWED}


def export_student(
    student: LlamaForCausalLM, tokenizer: Any, target_ref: str, vocabulary: list[int], folder: Path
) -> None:
    """Write the layers in bfloat16, with what `core.models.shared_draft` needs to put them beside their target."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    config = copy.deepcopy(student.config)
    config.dtype = torch.bfloat16
    config.tie_word_embeddings = True
    config.draft_vocabulary = vocabulary
    setattr(config, SHARES, {"model": target_ref, "tokens_sha256": tokens_sha256(parse_tokenizer(backend).tokens)})
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        config.save_pretrained(fresh)
        weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in stored(student).items()}
        save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})
        (fresh / "model.safetensors").chmod(0o644)
        if folder.exists():
            for kept in folder.glob("*.md"):
                kept.replace(fresh / kept.name)
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)
