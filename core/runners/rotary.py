"""Rotary frequencies that depend on the length of the text: one choice for a whole run.

Dynamic NTK and LongRoPE change their frequencies as a text grows, which leaves keys of different frequencies in one
cache. Here the longest text that a runner may hold decides once, so that drafting, rewinding and the size of a forward
change nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

Frequencies = Sequence[tuple[Any, dict[str, Any]]]
"""Rotary modules of transformers, each with the attributes by which it computes its cosines and sines: `rope_type`,
`inv_freq` (D/2,) and `attention_scaling`, the last two with a prefix for each of several layer types."""

_lock = threading.RLock()
"""Held while modules have other frequencies than their own: all threads that decode with a model share its modules."""


def frequencies_for(model: Any, capacity: int) -> Frequencies:
    """The length-dependent frequencies of a model for texts of up to `capacity` positions; empty if it has none."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    found = []
    for module, layer_type, kind in _length_dependent(model):
        prefix, given = (f"{layer_type}_", {"layer_type": layer_type}) if layer_type else ("", {})
        device = getattr(module, f"{prefix}inv_freq").device
        inverse, scaling = ROPE_INIT_FUNCTIONS[kind](module.config, device, seq_len=capacity, **given)
        # Under this name transformers updates nothing.
        rope_type = dict.fromkeys(module.rope_type, "default") if layer_type else "default"
        changes = {"rope_type": rope_type, f"{prefix}inv_freq": inverse, f"{prefix}attention_scaling": scaling}
        found.append((module, changes))
    return found


@contextlib.contextmanager
def fixed(frequencies: Frequencies) -> Iterator[None]:
    """Within it, rotary modules use these frequencies, whatever the positions; for one thread at a time."""
    if not frequencies:
        yield
        return
    with _lock:
        before = [(module, {name: getattr(module, name) for name in changes}) for module, changes in frequencies]
        try:
            _set(frequencies)
            yield
        finally:
            _set(before)


def boundary_of(model: Any) -> int | None:
    """The last length before a model's frequencies change; None if they never do."""
    limits = []
    for module, layer_type, kind in _length_dependent(model):
        rope = module.config.rope_parameters
        rope = rope[layer_type] if layer_type else rope
        is_dynamic = kind == "dynamic"
        limits.append(module.config.max_position_embeddings if is_dynamic else rope["original_max_position_embeddings"])
    return min(limits, default=None)


def _length_dependent(model: Any) -> list[tuple[Any, str | None, str]]:
    found = []
    with _lock:
        for module in model.modules():
            kinds = getattr(module, "rope_type", None)
            for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
                if kind in ("dynamic", "longrope"):
                    found.append((module, layer_type, kind))
    return found


def _set(frequencies: Frequencies) -> None:
    for module, changes in frequencies:
        for name, value in changes.items():
            setattr(module, name, value)
