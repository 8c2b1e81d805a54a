"""The models that a request names, loaded or taken from the shelf."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from core.drafters.registry import get_method
from core.errors import OutOfMemoryError, OutriderError, PairMismatchError
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.details import read_details
from core.models.devices import free_memory, release_memory, resolve_device, resolve_dtype
from core.models.fit import forecast, pair_problem
from core.models.language_model import LanguageModel
from core.models.loading import check_pair, load
from core.text import percent_text
from core.types import RunRequest, StageChanged


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
        for key in keys:
            self._drop(key)
        release_memory()

    def _drop(self, key: ShelfKey) -> None:
        # What borrows its tables would keep them in memory.
        self._models = {other: model for other, model in self._models.items() if key not in (other, other.beside)}


def _is_kept(key: ShelfKey, keep: Collection[ShelfKey]) -> bool:
    return key in keep or any(kept.beside == key for kept in keep)


_BYTES_PER_TOKEN = 3
"""Of a prompt, at most languages' rate; how long it really is shows once its tokenizer is here."""


def load_models(
    shelf: ModelShelf, request: RunRequest, check_cancelled: Callable[[], None]
) -> Generator[StageChanged, None, tuple[LanguageModel, LanguageModel | None]]:
    """Bring a request's target and draft to the shelf, dropping what is in their way.

    Yields:
        What is being done.

    Returns:
        The target, and the draft where the method needs one.

    Raises:
        OutriderError: one of them can't be loaded, or they don't go together.
    """
    needs_draft = get_method(request.method).needs_draft_model
    # What can be said without loading anything is said first.
    entries = [resolve(ref) for ref in ([request.target, request.draft] if needs_draft else [request.target]) if ref]
    keys = _keys(entries, request)
    if len(entries) > 1 and not all(key in shelf for key in keys):
        problem = pair_problem(entries[1].ref, entries[0].ref)
        if problem is not None:
            raise PairMismatchError(problem)
    for entry in entries:
        yield from _convert(entry, check_cancelled)
    device = resolve_device(request.device)
    shelf.make_room(_needed_bytes(entries, request) - shelf.held_bytes(keys), device, keep=keys)
    loaded: list[LanguageModel] = []
    for entry, key in zip(entries, keys, strict=True):
        check_cancelled()
        model = shelf.get(key)
        if model is None:
            yield StageChanged(f"Loading {entry.title}…")
            model = _load(shelf, entry, keys, request, loaded[0] if key.beside else None, check_cancelled)
            shelf.add(key, model)
        loaded.append(model)
    check_cancelled()
    target, draft = loaded[0], loaded[1] if len(loaded) > 1 else None
    if draft is not None:
        check_pair(draft, target)
    return target, draft


def _keys(entries: list[ModelEntry], request: RunRequest) -> list[ShelfKey]:
    device = resolve_device(request.device)
    dtype = resolve_dtype(request.dtype, device)
    keys: list[ShelfKey] = []
    for entry in entries:
        beside = keys[0] if keys and entry.serves is not None else None
        keys.append(ShelfKey(entry.path.resolve(), _written_at(entry.path), str(device), dtype, beside))
    return keys


def _written_at(path: Path) -> int:
    files = [path] if path.is_file() else [*path.glob("*.safetensors"), *path.glob("*.json")]
    return max((file.stat().st_mtime_ns for file in files), default=0)


def _convert(entry: ModelEntry, check_cancelled: Callable[[], None]) -> Generator[StageChanged, None, None]:
    if entry.format is not ModelFormat.GGUF:
        return
    from core.models.gguf import converting

    shown = ""
    steps = converting(entry.path, check_cancelled)
    try:
        for share in steps:
            text = f"Converting {entry.title}, once… {percent_text(share)}"
            if text != shown:
                yield StageChanged(text)
            shown = text
    finally:
        steps.close()


def _load(
    shelf: ModelShelf,
    entry: ModelEntry,
    keep: list[ShelfKey],
    request: RunRequest,
    target: LanguageModel | None,
    check_cancelled: Callable[[], None],
) -> LanguageModel:
    try:
        return load(entry.ref, request.device, request.dtype, target=target, check_cancelled=check_cancelled)
    except OutOfMemoryError:
        # A forecast is only that: with everything else gone it may fit all the same.
        if not shelf.drop_all_but(keep):
            raise
    return load(entry.ref, request.device, request.dtype, target=target, check_cancelled=check_cancelled)


def _needed_bytes(entries: list[ModelEntry], request: RunRequest) -> int:
    context = len(request.prompt.encode("utf-8", "replace")) // _BYTES_PER_TOKEN + request.max_new_tokens
    try:
        details = [read_details(entry) for entry in dict.fromkeys(entries)]
        return forecast(details, device=request.device, dtype=request.dtype, context=context).total_bytes
    except OutriderError:
        return 0  # Loading says what is wrong with it.
