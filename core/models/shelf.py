"""Loaded models, kept for the next run as long as there is room for those that it needs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from core.models.devices import free_memory, release_memory
from core.models.language_model import LanguageModel


class ShelfKey(NamedTuple):
    """What makes a loaded model the one that is wanted.

    `written_at` is when its files were written last, in nanoseconds: a model that was trained on since is another.
    `beside` is the target whose tables a drafter borrows; None for a model with its own.
    """

    path: Path
    written_at: int
    device: str
    dtype: torch.dtype
    beside: ShelfKey | None = None


class ModelShelf:
    """Keeps models, and drops those that were not used for longest. For one thread."""

    def __init__(self, room_of: Callable[[torch.device], int] | None = None) -> None:
        """Args:
        room_of: free bytes of a device; None for what it says itself.
        """
        self._room_of = room_of or free_memory
        self._models: dict[ShelfKey, LanguageModel] = {}  # Those used last come last.

    def __contains__(self, key: ShelfKey) -> bool:
        return key in self._models

    def keys_of(self, models: Collection[LanguageModel]) -> tuple[ShelfKey, ...]:
        """The keys of models that are here."""
        return tuple(key for key, model in self._models.items() if any(model is wanted for wanted in models))

    def get(self, key: ShelfKey) -> LanguageModel | None:
        """A model, which counts as used by this."""
        model = self._models.pop(key, None)
        if model is not None:
            self._models[key] = model
        return model

    def add(self, key: ShelfKey, model: LanguageModel) -> None:
        """Keep a model; what it replaces, being of the same files before they were written anew, is dropped."""
        if older := [other for other in self._models if other._replace(written_at=key.written_at) == key != other]:
            self._release(older)
        self._models[key] = model

    def held_bytes(self, keys: Collection[ShelfKey] | None = None, *, device_type: str | None = None) -> int:
        """What the weights of those that are here take, tables that two of them share counted once.

        Args:
            keys: of the models that count; None for all.
            device_type: of what counts: cpu, cuda or mps; None for all.
        """
        tensors = {
            parameter.data_ptr(): parameter.nbytes
            for key, model in self._models.items()
            if keys is None or key in keys
            for parameter in model.model.parameters()
            if device_type in (None, parameter.device.type)
        }
        return sum(tensors.values())

    def make_room(self, needed_bytes: int, device: torch.device, keep: Collection[ShelfKey]) -> bool:
        """Drop models, the least recently used first, until so many bytes are free on a device.

        Args:
            needed_bytes: to be free.
            device: where.
            keep: what is not dropped; nor is what it borrows from.

        Returns:
            Whether they are free now.
        """
        while self._room_of(device) < needed_bytes:
            oldest = next((key for key in self._models if not _is_kept(key, keep)), None)
            if oldest is None:
                return False
            self._release([oldest])
        return True

    def drop_all_but(self, keep: Collection[ShelfKey]) -> bool:
        """Drop everything else.

        Returns:
            Whether there was anything.
        """
        surplus = [key for key in self._models if not _is_kept(key, keep)]
        self._release(surplus)
        return bool(surplus)

    def clear(self) -> None:
        self._release(list(self._models))

    def _release(self, keys: Iterable[ShelfKey]) -> None:
        """Drop models, and give back what they took."""
        before = {id(tensor): weakref.ref(tensor) for tensor in self._parameters()}
        for key in keys:
            self._drop(key)
        for tensor in self._parameters():
            before.pop(id(tensor), None)
        # Only where some architecture's modules refer to each other in rings is anything left, and a window stands
        # still while they are looked for among all that there is.
        release_memory(of_models=any(reference() is not None for reference in before.values()))

    def _parameters(self) -> Iterable[torch.Tensor]:
        return (parameter for model in self._models.values() for parameter in model.model.parameters())

    def _drop(self, key: ShelfKey) -> None:
        # What borrows its tables would keep them in memory.
        self._models = {other: model for other, model in self._models.items() if key not in (other, other.beside)}


def _is_kept(key: ShelfKey, keep: Collection[ShelfKey]) -> bool:
    return key in keep or any(kept.beside == key for kept in keep)
