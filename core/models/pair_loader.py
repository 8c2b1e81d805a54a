"""The models that a request names, loaded or taken from the shelf."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

from core.collector import importing
from core.drafters.methods import get_method
from core.errors import OutOfMemoryError, OutriderError, PairMismatchError
from core.figures import percent_text
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.compatibility import pair_problem
from core.models.details import read_details
from core.models.devices import resolve_device, resolve_dtype
from core.models.language_model import LanguageModel
from core.models.loading import check_pair, load
from core.models.memory import forecast
from core.models.shelf import ModelShelf, ShelfKey
from core.types import RunRequest, StageChanged

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
        with importing():  # transformers, which knows what architectures there are
            details = [read_details(entry) for entry in dict.fromkeys(entries)]
            return forecast(details, device=request.device, dtype=request.dtype, context=context).total_bytes
    except OutriderError:
        return 0  # Loading says what is wrong with it.
