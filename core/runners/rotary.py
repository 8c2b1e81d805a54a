"""Rotary frequencies that depend on the length of the text: one choice for a whole run.

Dynamic NTK and LongRoPE change their frequencies as a text grows, which leaves keys of different frequencies in one
cache. Here the longest text that a runner may hold decides once, so that drafting, rewinding and the size of a forward
change nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Frequencies(NamedTuple):
    """What one rotary module of transformers, or one of its layer types, computes its cosines and sines from.

    Attributes:
        module: the rotary module.
        prefix: of its attributes: a layer type and "_", or "".
        inverse: (D/2,) inverse frequencies.
        scaling: factor of cosines and sines.
    """

    module: Any
    prefix: str
    inverse: Tensor
    scaling: float


def frequencies_for(model: Any, capacity: int) -> list[Frequencies]:
    """The length-dependent frequencies of a model for texts of up to `capacity` positions; empty if it has none."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    found = []
    for module, layer_type, kind in _length_dependent(model):
        prefix, given = (f"{layer_type}_", {"layer_type": layer_type}) if layer_type else ("", {})
        device = getattr(module, f"{prefix}inv_freq").device
        inverse, scaling = ROPE_INIT_FUNCTIONS[kind](module.config, device, seq_len=capacity, **given)
        found.append(Frequencies(module, prefix, inverse, scaling))
    return found


@contextlib.contextmanager
def fixed(frequencies: Sequence[Frequencies]) -> Iterator[None]:
    """Within it, rotary modules use these frequencies, whatever the positions."""
    before = [(item.module.rope_type, *_get(item)) for item in frequencies]
    try:
        for item in frequencies:
            # Under this name transformers updates nothing.
            item.module.rope_type = dict.fromkeys(item.module.rope_type, "default") if item.prefix else "default"
            _set(item, item.inverse, item.scaling)
        yield
    finally:
        for item, (kind, inverse, scaling) in zip(frequencies, before, strict=True):
            item.module.rope_type = kind
            _set(item, inverse, scaling)


def boundary_of(model: Any) -> int | None:
    """The last length before a model's frequencies change; None if they never do."""
    limits = []
    for module, layer_type, kind in _length_dependent(model):
        rope = module.config.rope_parameters
        rope = rope[layer_type] if layer_type else rope
        is_dynamic = kind == "dynamic"
        limits.append(module.config.max_position_embeddings if is_dynamic else rope["original_max_position_embeddings"])
    return min(limits, default=None)


def _length_dependent(model: Any) -> Iterator[tuple[Any, str | None, str]]:
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if kind in ("dynamic", "longrope"):
                yield module, layer_type, kind


def _get(item: Frequencies) -> tuple[Tensor, float]:
    return getattr(item.module, f"{item.prefix}inv_freq"), getattr(item.module, f"{item.prefix}attention_scaling")


def _set(item: Frequencies, inverse: Tensor, scaling: float) -> None:
    setattr(item.module, f"{item.prefix}inv_freq", inverse)
    setattr(item.module, f"{item.prefix}attention_scaling", scaling)
