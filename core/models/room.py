"""Whether a model has room on a device, and what would have, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from core.errors import OutOfMemoryError, OutriderError
from core.models.catalogue import ModelEntry, local_models
from core.models.details import read_details
from core.models.devices import free_memory
from core.models.sizes import in_words

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

_SHORTER = {"cuda": torch.bfloat16, "mps": torch.float16, "cpu": torch.bfloat16}
"""The precision of half the size that each device computes in."""

_WORKING_BYTES = 256 * 2**20
"""What the first forwards of any model take beside it."""

_CACHE_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Need:
    """What a model takes in one precision.

    Attributes:
        title: what a person calls it.
        num_parameters: of the model; 0 if its files don't say.
        dtype: that it is loaded in.
    """

    title: str
    num_parameters: int
    dtype: torch.dtype

    @property
    def weights_bytes(self) -> int:
        return self.num_parameters * self.dtype.itemsize

    @property
    def total_bytes(self) -> int:
        """The weights, and what it takes to run them at all."""
        return self.weights_bytes + min(self.weights_bytes // 4, _WORKING_BYTES)


def need_of(entry: ModelEntry, dtype: torch.dtype) -> Need:
    """What a model will take. Reads headers; one that can't be read counts as nothing, and fails in loading."""
    try:
        return Need(entry.title, read_details(entry).num_parameters, dtype)
    except OutriderError:
        return Need(entry.title, 0, dtype)


def does_not_fit(
    need: Need,
    device: torch.device,
    *,
    free_bytes: int | None = None,
    room_of: Callable[[torch.device], int] = free_memory,
    others: Callable[[], tuple[ModelEntry, ...]] = local_models,
) -> OutOfMemoryError:
    """The error for a model that has no room, with what would fit.

    Args:
        need: of the model.
        device: where it was to go.
        free_bytes: what was free there before it was tried; None to ask now.
        room_of: free bytes of a device.
        others: the models that are here.
    """
    free = room_of(device) if free_bytes is None else free_bytes
    choices = list(_choices(need, device, free, room_of, others))
    advice = f"Choose {_either(choices)}." if choices else "Choose a smaller model, or a machine with more memory."
    return OutOfMemoryError(
        f"{need.title} needs {in_words(need.total_bytes)} at {_name(need.dtype)}, and {in_words(free)} is free on "
        f"{device}. {advice}"
    )


def _choices(
    need: Need,
    device: torch.device,
    free: int,
    room_of: Callable[[torch.device], int],
    others: Callable[[], tuple[ModelEntry, ...]],
) -> Iterator[str]:
    shorter = Need(need.title, need.num_parameters, _SHORTER.get(device.type, torch.bfloat16))
    if 0 < shorter.total_bytes < need.total_bytes and shorter.total_bytes <= free:
        yield f"{_name(shorter.dtype)} ({in_words(shorter.total_bytes)})"
    smaller = _largest_that_fits(need, free, others)
    if smaller is not None:
        yield f"{smaller.title} ({in_words(smaller.total_bytes)})"
    processor = torch.device("cpu")
    on_processor = Need(need.title, need.num_parameters, torch.float32)
    if device.type == "cuda" and need.num_parameters and on_processor.total_bytes <= room_of(processor):
        yield "the CPU"


def _largest_that_fits(need: Need, free: int, others: Callable[[], tuple[ModelEntry, ...]]) -> Need | None:
    # A drafter that borrows its target's tables is no model to choose instead.
    known = (need_of(entry, need.dtype) for entry in others() if entry.serves is None)
    fitting = [other for other in known if other.num_parameters and other.total_bytes <= min(free, need.total_bytes)]
    return max(
        (other for other in fitting if other.title != need.title), key=lambda other: other.num_parameters, default=None
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def bytes_per_position(model: LanguageModel) -> int:
    """What one position of a text takes in a model's cache: keys and values of every layer."""
    config = model.model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * model.dtype.itemsize)


def run_does_not_fit(models: Sequence[LanguageModel], capacity: int, free_bytes: int) -> str:
    """One sentence for a run whose memory ran out.

    Args:
        models: that ran, the target first.
        capacity: positions that the text was to get.
        free_bytes: on their device, now that the run is over.
    """
    target = models[0]
    told = f"{target.device} ran out of memory in a text of up to {capacity:,} tokens"
    # A part is left for what a forward takes.
    fitting = int(_CACHE_SHARE * free_bytes / max(1, sum(bytes_per_position(model) for model in models)))
    fitting = fitting // 100 * 100
    if 100 <= fitting < capacity:
        told += f", and about {fitting:,} would fit"
    halved = "" if target.dtype.itemsize <= 2 else f"{_name(_SHORTER.get(target.device.type, torch.bfloat16))} or "
    return f"{told}. Shorten the prompt, ask for fewer new tokens, or choose {halved}a smaller model."
