"""Keeps loaded models for the next run, and drops those least recently used when memory runs short."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from core.drafters.registry import get_method
from core.errors import OutOfMemoryError, OutriderError, PairMismatchError
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.devices import free_memory, release_memory, resolve_device, resolve_dtype
from core.models.fit import forecast, heads_parameters, nodes_of, pair_problem
from core.models.folder.details import read_details
from core.models.language_model import LanguageModel
from core.models.loading import check_pair, load
from core.models.prompting import FilesState, files_state
from core.settings import RunRequest
from core.text import percent_text
from core.types import StageChanged

_BYTES_PER_TOKEN = 3
"""Bytes of a prompt per token in most languages; the exact length is known once the tokenizer is loaded."""


class ShelfKey(NamedTuple):
    """Identifies a loaded model.

    `files` is the state of its files. `beside` is the target whose tables a drafter borrows; None for a model with its
    own.
    """

    path: Path
    files: FilesState
    device: str
    dtype: torch.dtype
    beside: ShelfKey | None = None


class ModelShelf:
    """The loaded models of one thread."""

    def __init__(self) -> None:
        self._models: dict[ShelfKey, LanguageModel] = {}  # Most recently used last.

    def __contains__(self, key: ShelfKey) -> bool:
        return key in self._models

    def keys_of(self, models: Collection[LanguageModel]) -> tuple[ShelfKey, ...]:
        """The keys of the loaded models."""
        return tuple(key for key, model in self._models.items() if any(model is wanted for wanted in models))

    def get(self, key: ShelfKey) -> LanguageModel | None:
        """Return a model and mark it as used."""
        model = self._models.pop(key, None)
        if model is not None:
            self._models[key] = model
        return model

    def add(self, key: ShelfKey, model: LanguageModel) -> None:
        """Keep a model in place of one loaded from an earlier state of the same files."""
        if older := [other for other in self._models if other._replace(files=key.files) == key != other]:
            self._release(older)
        self._models[key] = model

    def held_bytes(
        self, keys: Collection[ShelfKey] | None = None, *, device_type: str | None = None, with_copies: bool = True
    ) -> int:
        """The bytes of the models' weights, shared tables counted once, and of their packed or int8 copies.

        Args:
            keys: the models to count; None for all.
            device_type: count only this one: cpu, cuda or mps; None for all.
        """
        counted = [model for key, model in self._models.items() if keys is None or key in keys]
        parameters = [parameter for model in counted for parameter in model.model.parameters()]
        weights = {each.data_ptr(): each.nbytes for each in parameters if device_type in (None, each.device.type)}
        copies = (
            model.fused_weights.copied_bytes
            for model in counted
            if with_copies and model.fused_weights and device_type in (None, model.device.type)
        )
        return sum(weights.values()) + sum(copies)

    def make_room(self, needed_bytes: int, device: torch.device, keep: Collection[ShelfKey]) -> bool:
        """Drop models, the least recently used first, until `needed_bytes` are free on a device.

        Models with keys in `keep`, and those that they borrow from, stay. Returns whether there is enough room.
        """
        while free_memory(device) < needed_bytes:
            oldest = next((key for key in self._models if not _is_kept(key, keep)), None)
            if oldest is None:
                return False
            self._release([oldest])
        return True

    def drop_all_but(self, keep: Collection[ShelfKey]) -> bool:
        """Drop everything else; returns whether there was anything."""
        surplus = [key for key in self._models if not _is_kept(key, keep)]
        self._release(surplus)
        return bool(surplus)

    def drop(self, ref: str) -> None:
        """Drop one model, however often it was loaded."""
        self._release([key for key, model in self._models.items() if model.ref == ref])

    def clear(self) -> None:
        self._release(list(self._models))

    def _release(self, keys: Iterable[ShelfKey]) -> None:
        """Drop models with those that borrow from them, and free their memory."""
        for key in keys:
            self._models = {other: model for other, model in self._models.items() if key not in (other, other.beside)}
        release_memory()


def _is_kept(key: ShelfKey, keep: Collection[ShelfKey]) -> bool:
    return key in keep or any(kept.beside == key for kept in keep)


def load_models(
    shelf: ModelShelf, request: RunRequest, check_cancelled: Callable[[], None]
) -> Generator[StageChanged, None, tuple[LanguageModel, LanguageModel | None]]:
    """Load a request's target and draft onto the shelf, dropping other models to make room.

    Yields:
        The current stage.

    Returns:
        The target, and the draft where the method needs one.

    Raises:
        OutriderError: one of them can't be loaded, or they don't go together.
    """
    needs_draft = get_method(request.method).needs_draft_model and request.num_draft_tokens != 0
    entries = [resolve(ref) for ref in ([request.target, request.draft] if needs_draft else [request.target]) if ref]
    device = resolve_device(request.device)
    dtype = resolve_dtype(request.dtype, device)
    keys: list[ShelfKey] = []
    for entry in entries:
        beside = keys[0] if keys and entry.serves is not None else None
        keys.append(ShelfKey(entry.path.resolve(), files_state(entry.path), str(device), dtype, beside))
    # Report what is known without loading first.
    if len(entries) > 1 and not all(key in shelf for key in keys):
        problem = pair_problem(entries[1].ref, entries[0].ref)
        if problem is not None:
            raise PairMismatchError(problem)
    for entry in entries:
        if entry.format is ModelFormat.GGUF:
            yield from _convert(entry, check_cancelled)
    shelf.make_room(_needed_bytes(entries, request) - shelf.held_bytes(keys, with_copies=False), device, keep=keys)
    loaded: list[LanguageModel] = []
    for entry, key in zip(entries, keys, strict=True):
        check_cancelled()
        model = shelf.get(key)
        if model is None:
            yield StageChanged(f"Loading {entry.title}…")
            lender = loaded[0] if key.beside else None
            read = partial(
                load, entry.ref, request.device, request.dtype, target=lender, check_cancelled=check_cancelled
            )
            try:
                model = read()
            except OutOfMemoryError:
                # It may still fit once everything else is dropped.
                if not shelf.drop_all_but(keys):
                    raise
            model = model or read()
            shelf.add(key, model)
        loaded.append(model)
    check_cancelled()
    target, draft = loaded[0], loaded[1] if len(loaded) > 1 else None
    if draft is not None:
        check_pair(draft, target)
    return target, draft


def _convert(entry: ModelEntry, check_cancelled: Callable[[], None]) -> Generator[StageChanged, None, None]:
    from core.models.folder.gguf import converting

    shown = ""
    with contextlib.closing(converting(entry.path, check_cancelled)) as steps:
        for share in steps:
            text = f"Converting {entry.title} (only once)… {percent_text(share)}"
            if text != shown:
                yield StageChanged(text)
            shown = text


def _needed_bytes(entries: list[ModelEntry], request: RunRequest) -> int:
    context = len(request.prompt.encode("utf-8", "replace")) // _BYTES_PER_TOKEN + request.max_new_tokens
    try:
        details = [read_details(entry) for entry in dict.fromkeys(entries)]
        heads = str(request.method_options.get("heads", ""))
        needed = forecast(
            details,
            device=request.device,
            dtype=request.dtype,
            context=context,
            num_nodes=nodes_of(request.method, request.num_draft_tokens),
            num_head_parameters=heads_parameters(heads, entries[0]) if request.method == "medusa" else 0,
        )
        return needed.total_bytes
    except (OutriderError, OSError):
        return 0  # Loading reports what is wrong with it.
