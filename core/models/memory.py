"""How much memory models will need, told before any of it is taken. Imports torch only when a forecast is asked for."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.models.details import ModelDetails

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 4096
"""Positions that a forecast counts with where none are named, as far as the models have them."""

_MAX_ROWS = 17
"""Rows of logits of one step: a block of 16 drafted tokens and one more."""

_COPIES_OF_A_ROW = 6
"""Of each row, in float32: logits, filtered logits, their order, probabilities of target and draft, the residual."""

_FLOAT_BYTES = 4

_BYTES_BESIDE_A_MODEL = 16 << 20
"""Its tokenizer and what the allocator rounds up: little, but most of what a tiny model takes."""

_estimating = threading.Lock()


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """What one or two models need on a device, in bytes.

    Attributes:
        weights_bytes: the models' weights.
        cache_bytes: their key-value caches, filled to the context.
        working_bytes: activations of the widest forward, masks, logits and probabilities.
        available_bytes: what the device has left; None if it does not say.
    """

    weights_bytes: int
    cache_bytes: int
    working_bytes: int
    available_bytes: int | None

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.working_bytes

    @property
    def fits(self) -> bool | None:
        """Whether all of it fits; None if the device does not say what it has."""
        return None if self.available_bytes is None else self.total_bytes <= self.available_bytes


def forecast(
    models: Sequence[ModelDetails],
    *,
    device: str = "auto",
    dtype: str = "auto",
    context: int | None = None,
    held_bytes: int = 0,
) -> MemoryForecast:
    """What these models need together, filled to the context.

    Loading takes no more than this where it converts: a tensor is in memory twice while its precision is changed, one
    at a time, and the file's pages, which the system may take back, are not counted.

    Args:
        models: the draft and the target, in any order, or one model.
        device: auto, cpu, cuda or mps.
        dtype: auto, float32, bfloat16 or float16.
        context: positions of the text; None for `DEFAULT_CONTEXT`. No model gets more than its own limit.
        held_bytes: of the device, that loaded models hold now and would make room with (`Session.held_bytes`).

    Raises:
        SettingsError, DeviceError: as `core.models.load` does.
    """
    from core.models.devices import resolve_device, resolve_dtype

    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    positions = {model: positions_of(model, context) for model in models}
    distinct = set(models)  # One that drafts for itself is loaded once.
    free = available_bytes(where)
    return MemoryForecast(
        weights_bytes=sum(_weights_bytes(model, precision) for model in distinct),
        cache_bytes=sum(_cache_bytes(model, positions[model], precision.itemsize) for model in models),
        # The models take turns with their activations.
        working_bytes=max((_working_bytes(m, positions[m], precision.itemsize) for m in models), default=0)
        + _BYTES_BESIDE_A_MODEL * len(distinct),
        available_bytes=None if free is None else free + held_bytes,
    )


def available_bytes(device: torch.device) -> int | None:
    """Bytes that a device can still give; of several GPUs, which a model may be spread over, the sum."""
    import torch

    from core.models.devices import free_memory

    devices = [device]
    if device.type == "cuda" and device.index is None:
        devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    try:
        return sum(max(0, free_memory(each)) for each in devices)
    except RuntimeError:
        _log.debug("%s does not tell its memory", device, exc_info=True)
    return None


def positions_of(model: ModelDetails, context: int | None) -> int:
    """Positions that a model's cache is counted with."""
    wanted = DEFAULT_CONTEXT if context is None else context
    return min(wanted, model.context_length or wanted)


def _weights_bytes(model: ModelDetails, dtype: torch.dtype) -> int:
    size = None
    if model.folder is not None and model.shares_tables_with is None:
        config = model.folder / "config.json"
        if config.is_file():
            size = _estimated_bytes(model.folder, config.stat().st_mtime_ns, dtype)
    if size is None:
        # GGUF, a drafter that borrows its tables, an architecture that is not known: what the headers say.
        size = model.num_parameters * dtype.itemsize
    # A trimmed head is a copy of some rows.
    return size + (model.draft_vocabulary_size or 0) * model.hidden_size * dtype.itemsize


def _estimated_bytes(folder: Path, modified_ns: int, dtype: torch.dtype) -> int | None:
    """accelerate's estimate from a model without storage; None for what transformers does not know."""
    # A run that begins and the window's forecast ask for the same, at the same moment.
    with _estimating:
        return _estimate(folder, modified_ns, dtype)


@functools.lru_cache(maxsize=64)
def _estimate(folder: Path, _modified_ns: int, dtype: torch.dtype) -> int | None:
    from accelerate import init_empty_weights
    from accelerate.utils import compute_module_sizes
    from transformers import AutoConfig, AutoModelForCausalLM

    import core.torch_ready  # noqa: F401 - for what its import does
    from core.models.quiet import quiet_transformers

    quiet_transformers()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # With the buffers, so that a context of this thread alone does it, while another may be loading a model; for
        # its sake no dtype is given either, which would be the whole process's for a moment.
        with init_empty_weights(include_buffers=True):
            model = AutoModelForCausalLM.from_config(config, dtype=None, trust_remote_code=False)
        model.tie_weights()
        return int(compute_module_sizes(model.float(), dtype=dtype)[""])
    except Exception:
        _log.debug("no estimate for %s", folder, exc_info=True)
        return None


def _cache_bytes(model: ModelDetails, positions: int, item_bytes: int) -> int:
    """Keys and values of every layer and position: the engine keeps those behind a sliding window too, to rewind."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * positions * item_bytes


def _working_bytes(model: ModelDetails, positions: int, item_bytes: int) -> int:
    """The larger of a prefill chunk's activations and a step's logits, with its probabilities."""
    from core.target import PREFILL_CHUNK

    chunk = min(PREFILL_CHUNK, positions)
    attention = model.num_heads * model.head_dim
    # A layer's states and their norms, fused projections and what is rotated of them, the MLP's two widths and product.
    activations = chunk * (8 * model.hidden_size + 4 * attention + 4 * model.intermediate_size) * item_bytes
    mask = chunk * positions * item_bytes
    # Grouped keys and values are repeated for each query head.
    repeated = 2 * attention * positions * item_bytes
    logits = _MAX_ROWS * model.table_size * (item_bytes + _COPIES_OF_A_ROW * _FLOAT_BYTES)
    return max(activations + mask + repeated, logits)
