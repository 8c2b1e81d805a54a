"""Random Medusa heads for tiny targets, in both forms: as `distill` writes them, and as published ones."""

import functools
import tempfile
from pathlib import Path

import torch

from core.models.language_model import LanguageModel
from core.models.medusa_heads import HeadsConfig, MedusaHeads, norm_fingerprint, save_heads


def size_of(target: LanguageModel) -> int:
    return target.model.config.hidden_size


def write_heads(folder: Path, target: LanguageModel, vocabulary: list[int] | None) -> Path:
    """Heads of two blocks, of which the first reads tokens."""
    torch.manual_seed(0)
    config = HeadsConfig("tiny", norm_fingerprint(target.model), vocabulary)
    heads = MedusaHeads(size_of(target), [[head + 1, 0] for head in range(3)], config)
    folder.mkdir()
    save_heads(heads, folder)
    return folder


@functools.cache
def heads_for(target: LanguageModel) -> str:
    """The path of heads that propose any of a target's ids, as an option of the method."""
    scratch = tempfile.TemporaryDirectory(prefix="outrider-heads-")
    _scratches.append(scratch)
    return str(write_heads(Path(scratch.name) / "heads", target, list(range(target.vocab_size))))


_scratches: list[tempfile.TemporaryDirectory] = []
"""Removed when the tests end."""


def published(target: LanguageModel) -> dict[str, torch.Tensor]:
    """Tensors as in a `medusa_lm_head.pt`: one block and an output head of each."""
    generator, size = torch.Generator().manual_seed(0), size_of(target)
    tensors = {}
    for head in range(2):
        tensors[f"{head}.0.linear.weight"] = 0.1 * torch.randn(size, size, generator=generator)
        tensors[f"{head}.0.linear.bias"] = 0.1 * torch.randn(size, generator=generator)
        rows = len(target.model.get_output_embeddings().weight)
        tensors[f"{head}.1.weight"] = 0.3 * torch.randn(rows, size, generator=generator)
    return tensors
