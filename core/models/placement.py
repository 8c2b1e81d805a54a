"""Where a model's layers go: one device if it has room, else several GPUs, and the processor's memory as the last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from core.models.devices import free_memory

Place = int | str
"""A GPU by its number, or "cpu"."""

DeviceMap = dict[str, Any]

_GPU_RESERVE = 0.1
_LEAST_RESERVE = 512 * 2**20
"""On each GPU, for caches and activations: a share of what is free, and at least this many bytes."""
_PROCESSOR_RESERVE = 0.2


def choose_place(need_bytes: int, device: torch.device, available: Mapping[Place, int]) -> torch.device | None:
    """The one device that a model goes to; None if it has room on none.

    Args:
        need_bytes: of the whole model, with what it takes to run.
        device: the one asked for; another GPU will do where it is one.
        available: free bytes of each place.
    """
    if device.type != "cuda":
        return device if need_bytes <= available[device.type] else None
    first = device.index or 0
    gpus = sorted((place for place in available if isinstance(place, int)), key=lambda place: (place != first, place))
    fitting = (place for place in gpus if need_bytes <= available[place])
    place = next(fitting, None)
    return None if place is None else device if place == first else torch.device("cuda", place)


def spread(model: Any, dtype: torch.dtype, available: Mapping[Place, int]) -> DeviceMap | None:
    """Which part of a model goes to which place: the GPUs in order, then the processor's memory; None without room.

    Args:
        model: its module on the meta device, its tied weights tied.
        dtype: that it will have.
        available: free bytes of each place, before anything is left for caches.
    """
    from accelerate import infer_auto_device_map

    room: dict[Place, int] = {}
    for place, free in available.items():
        reserve = _PROCESSOR_RESERVE * free if place == "cpu" else max(_GPU_RESERVE * free, _LEAST_RESERVE)
        room[place] = max(0, int(free - reserve))
    device_map = infer_auto_device_map(
        model, max_memory=room, no_split_module_classes=list(model._no_split_modules or ()), dtype=dtype
    )
    places = list(device_map.values())
    # What would have to be read from disk for each token is no use, nor what has its first layers off the GPUs.
    if "disk" in places or not isinstance(places[0], int):
        return None
    return dict(device_map)


def empty_model(folder: Path, dtype: torch.dtype) -> Any:
    """A folder's model without its weights, on the meta device."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    # With the buffers, nothing is made on the processor first.
    with init_empty_weights(include_buffers=True):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    model.tie_weights()
    return model


def available_memory(device: torch.device) -> dict[Place, int]:
    """Free bytes of every place that a model for this device may go to."""
    if device.type == "mps":
        return {"mps": free_memory(device)}
    available: dict[Place, int] = {}
    if device.type == "cuda":
        available |= {index: free_memory(torch.device("cuda", index)) for index in range(torch.cuda.device_count())}
    available["cpu"] = free_memory(torch.device("cpu"))
    return available


def is_spread(model: Any) -> bool:
    """Whether a loaded module's weights lie in more than one place."""
    return len({str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}) > 1
