"""Random models of the architectures in use: small, of lively choices, their windows shorter than the texts."""

import functools

import torch

from core.drafters.base import Drafter
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.models.language_model import LanguageModel
from tests.fakes import FAMILIES, language_model, tiny_module

V = 100
WINDOW = 16
PROMPT_LENGTHS = (1, 30, 60)
"""Shorter and longer than the window."""

_ROOM = {"max_position_embeddings": 320}
_LLAMA = {**FAMILIES["llama"], **_ROOM}
_WINDOWED = {**_LLAMA, "sliding_window": WINDOW}
_GEMMA = {
    **_WINDOWED, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"],
    "tie_word_embeddings": False,
}  # fmt: skip

ARCHITECTURES: dict[str, tuple[str, dict]] = {
    "llama": ("llama", _LLAMA),
    "mistral": ("mistral", {**_LLAMA, "sliding_window": None}),
    "mistral, windowed": ("mistral", _WINDOWED),
    "qwen2": ("qwen2", _LLAMA),
    "qwen2, one layer windowed": ("qwen2", {**_WINDOWED, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", _LLAMA),
    "gpt2": ("gpt2", {**FAMILIES["gpt2"], "n_positions": 320}),
    "gpt_neox": ("gpt_neox", _LLAMA),
    "gemma2": ("gemma2", _GEMMA),
    "gemma3": ("gemma3_text", _GEMMA),
    "opt": ("opt", {**FAMILIES["opt"], **_ROOM}),
    "phi": ("phi", _LLAMA),
    "phi3, windowed": ("phi3", _WINDOWED),
}
"""By name: transformers' model type, and the values of its configuration."""

KINDS = ("relative", "prompt lookup", "relative", "itself", "stranger")
"""Drafters that are right now and then, always, and hardly ever."""

WINDOWED = [name for name, (_, values) in ARCHITECTURES.items() if values.get("sliding_window")]


def architecture_module(name: str, seed: int = 0, **changes):
    """A module whose greedy texts go on changing: an untrained one with small weights soon repeats one token."""
    family, values = ARCHITECTURES[name]
    module = tiny_module(family, vocab_size=V, seed=seed, **{**values, **changes})
    for parameter in module.parameters():
        if parameter.ndim > 1:
            parameter.mul_(2.0)
    if name.startswith("gemma"):
        # Gemma scales its embedding up, so that the last token alone would decide.
        module.get_input_embeddings().weight.mul_(0.1)
    return module


@functools.cache
def architecture(name: str, seed: int = 0, *, is_fused: bool = False) -> LanguageModel:
    """A `LanguageModel` of one of the architectures, with the fused forward or with the module's own."""
    return language_model(architecture_module(name, seed), is_fused=is_fused)


@functools.cache
def relative(name: str, seed: int = 0, *, noise: float = 0.007) -> LanguageModel:
    """A model that often agrees with `architecture(name, seed)`: its weights with noise of this share of their size."""
    module = architecture_module(name, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in module.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std(), alpha=noise)
    return language_model(module)


def prompt(length: int) -> list[int]:
    """Random ids."""
    return torch.randint(V, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def make_drafter(kind: str, name: str) -> Drafter | LanguageModel:
    """What drafts for an architecture: a model, or prompt lookup."""
    if kind == "prompt lookup":
        return PromptLookupDrafter()
    return relative(name) if kind == "relative" else architecture(name, 1 if kind == "stranger" else 0)


def plans(name: str) -> list[tuple[list[int], str, int, bool]]:
    """An architecture's texts: a prompt of each length, the kind of drafter, K, and whether the forward is fused.

    Over the architectures, every kind meets every K and every length.
    """
    number = [*ARCHITECTURES].index(name)
    texts = []
    for place, length in enumerate(PROMPT_LENGTHS):
        kind = KINDS[(len(PROMPT_LENGTHS) * number + place) % len(KINDS)]
        texts.append((prompt(length), kind, (4, 1, 3, 8)[(number - place) % 4], (number + place) % 2 == 0))
    return texts
