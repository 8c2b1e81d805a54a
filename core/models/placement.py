"""Where a model goes: one device, or several; and what to say when it, or its run, fits nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from core.errors import OutOfMemoryError, OutriderError
from core.models.catalogue import ModelEntry, local_models
from core.models.devices import free_memory, resolve_dtype
from core.models.folder.details import read_details
from core.models.language_model import LanguageModel
from core.text import bytes_text

DeviceKey = int | str
"""A GPU by its number, or "cpu"."""

DeviceMap = dict[str, Any]

_GPU_RESERVE = 0.1
_LEAST_RESERVE = 512 * 2**20
"""Kept free on each GPU for caches and activations: a share of the free memory, and a minimum in bytes."""
_PROCESSOR_RESERVE = 0.2


def choose_place(need_bytes: int, device: torch.device, available: Mapping[DeviceKey, int]) -> torch.device | None:
    """The single device for a model that needs these bytes; None if it fits on none.

    `available` gives the free bytes of each device. If the requested device is a GPU, any other GPU will do.
    """
    if device.type != "cuda":
        return device if need_bytes <= available[device.type] else None
    first = device.index or 0
    gpus = sorted((place for place in available if isinstance(place, int)), key=lambda place: (place != first, place))
    place = next((place for place in gpus if need_bytes <= available[place]), None)
    return None if place is None else device if place == first else torch.device("cuda", place)


def spread(model: Any, dtype: torch.dtype, available: Mapping[DeviceKey, int]) -> DeviceMap | None:
    """Which part of a model goes where: the GPUs in order, then the processor's memory; None without room.

    `model` is on the meta device, its tied weights tied; `available` gives the free bytes of each device, before
    anything is left for caches.
    """
    from accelerate import infer_auto_device_map

    room: dict[DeviceKey, int] = {}
    for place, free in available.items():
        reserve = _PROCESSOR_RESERVE * free if place == "cpu" else max(_GPU_RESERVE * free, _LEAST_RESERVE)
        room[place] = max(0, int(free - reserve))
    device_map = infer_auto_device_map(
        model, max_memory=room, no_split_module_classes=list(model._no_split_modules or ()), dtype=dtype
    )
    places = list(device_map.values())
    # Reading from disk for each token is useless, and so is a model whose first layers are off the GPUs.
    if "disk" in places or not isinstance(places[0], int):
        return None
    return dict(device_map)


def free_by_device(device: torch.device) -> dict[DeviceKey, int]:
    """Free bytes wherever a model for this device may be loaded: on all GPUs, or on the one requested."""
    if device.type == "mps":
        return {"mps": free_memory(device)}
    free: dict[DeviceKey, int] = {}
    if device.type == "cuda":
        gpus = range(torch.cuda.device_count()) if device.index is None else [device.index]
        free |= {index: free_memory(torch.device("cuda", index)) for index in gpus}
    free["cpu"] = free_memory(torch.device("cpu"))
    return free


def first_device(model: Any) -> torch.device:
    """Where a loaded module's text enters and its logits leave."""
    place = next(iter((getattr(model, "hf_device_map", None) or {}).values()), model.device)
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


# --- When memory runs out ---------------------------------------------------------------------------------------

_WORKING_BYTES = 256 * 2**20
"""Extra memory of any model's first forwards."""

_CACHE_SHARE = 0.8


def need_of(entry: ModelEntry, dtype: torch.dtype) -> int:
    """A model's weights in a precision, plus the minimum needed to run them; 0 if its files don't say."""
    try:
        weights = read_details(entry).loaded_bytes(dtype.itemsize)
    except OutriderError:  # Loading reports it.
        return 0
    return weights + min(weights // 4, _WORKING_BYTES)


def does_not_fit(entry: ModelEntry, dtype: torch.dtype, device: torch.device, free_bytes: int) -> OutOfMemoryError:
    """The error for a model that does not fit into the free bytes of a device, with what would fit."""
    choices = list(_choices(entry, dtype, device, free_bytes))
    advice = "Choose a smaller model, or a machine with more memory."
    if choices:
        advice = f"Choose {' or '.join(filter(None, (', '.join(choices[:-1]), choices[-1])))}."
    return OutOfMemoryError(
        f"{entry.title} needs {bytes_text(need_of(entry, dtype))} in {_name(dtype)}, but only "
        f"{bytes_text(free_bytes)} is free on {device}. {advice}"
    )


def _choices(entry: ModelEntry, dtype: torch.dtype, device: torch.device, free: int) -> Iterator[str]:
    needed, shorter = need_of(entry, dtype), _shorter_dtype(device)
    in_shorter = need_of(entry, shorter)
    if 0 < in_shorter < needed and in_shorter <= free:
        yield f"{_name(shorter)} ({bytes_text(in_shorter)})"
    # A drafter that borrows its target's tables is not an alternative.
    others = [other for other in local_models() if other.serves is None and other.title != entry.title]
    sizes = ((need_of(other, dtype), other.title) for other in others)
    fitting = [(size, title) for size, title in sizes if 0 < size <= min(free, needed)]
    if fitting:
        size, title = max(fitting, key=itemgetter(0))
        yield f"{title} ({bytes_text(size)})"
    if device.type == "cuda" and 0 < need_of(entry, torch.float32) <= free_memory(torch.device("cpu")):
        yield "the CPU"


def _shorter_dtype(device: torch.device) -> torch.dtype:
    """The precision of half the size that a device computes in."""
    return torch.bfloat16 if device.type == "cpu" else resolve_dtype("auto", device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bytes_per_position(model: LanguageModel) -> int:
    """Cache bytes per position: keys and values of every layer."""
    config = model.model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return 0  # A recurrent model keeps no keys and values.
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * model.dtype.itemsize)


def run_does_not_fit(models: Sequence[LanguageModel], capacity: int, free_bytes: int, num_nodes: int = 0) -> str:
    """One sentence for a run of these models, target first, whose memory ran out with a text of `capacity` positions.

    `free_bytes` are those of their device after the run, `num_nodes` those of the largest tree; 0 for chains.
    """
    target = models[0]
    problem = f"{target.device} ran out of memory with a text of up to {capacity:,} tokens"
    shorten = "Shorten the prompt"
    if num_nodes > 1:
        problem += f" and trees of up to {num_nodes} nodes"
        shorten = "Draft smaller trees (a smaller K)"
    # Leave room for a forward.
    fitting = int(_CACHE_SHARE * free_bytes / max(1, sum(bytes_per_position(model) for model in models)))
    fitting = fitting // 100 * 100
    if 100 <= fitting < capacity:
        problem += f"; about {fitting:,} tokens would fit"
    halved = "" if target.dtype.itemsize <= 2 else f"{_name(_shorter_dtype(target.device))} or "
    return f"{problem}. {shorten}, ask for fewer new tokens, or choose {halved}a smaller model."
