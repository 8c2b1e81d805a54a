"""From a reference to a model that runs: files checked, placed by accelerate, its fastest exact forward chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from core.errors import DeviceError, ModelUnreadableError, OutOfMemoryError, PairMismatchError, first_line
from core.models import large_json
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.compatibility import tokenizer_problem
from core.models.devices import free_memory, is_out_of_memory, release_memory, resolve_device, resolve_dtype
from core.models.language_model import LanguageModel, describe
from core.models.placement import DeviceMap, available_memory, choose_place, empty_model, is_spread, spread
from core.models.probe import check_cache, find_lean_weights
from core.models.quiet import quiet_transformers
from core.models.room import does_not_fit, need_of
from core.models.tokenizers import load_tokenizer

_log = logging.getLogger(__name__)


def load(
    ref: str,
    device: str = "auto",
    dtype: str = "auto",
    *,
    target: LanguageModel | None = None,
    check_cancelled: Callable[[], None] = lambda: None,
) -> LanguageModel:
    """Load a model and its tokenizer.

    Only safetensors are read (GGUF is converted to it first), and no code that comes with a model is run. A model that
    is too large for one GPU is spread over all of them, and over the processor's memory where even these lack room.

    Args:
        ref: an embedded or kept model's name, a downloaded Hub id, a folder, or a .gguf file.
        device: auto, cpu, cuda or mps.
        dtype: auto, float32, bfloat16 or float16.
        target: for a drafter that borrows its target's tables, that target; its device and precision count.
        check_cancelled: raises to give up. Called between files; a file that is being read is read to its end.

    Raises:
        ModelNotFoundError, ModelUnreadableError, DeviceError, SettingsError, OutOfMemoryError: with a sentence each;
            what had been loaded is given back.
        PairMismatchError: a drafter that borrows its target's tables, without that target.
    """
    entry = resolve(ref)
    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    if entry.serves is not None:
        return _load_beside(entry, target)
    quiet_transformers()
    folder = entry.path
    if entry.format is ModelFormat.GGUF:
        from core.models.gguf import convert

        folder = convert(entry.path, check_cancelled)
    check_cancelled()
    tokenizer = load_tokenizer(entry, folder)
    check_cancelled()
    loaded = _with_memory(entry, where, precision, lambda: _load_whole(entry, folder, tokenizer, where, precision))
    loaded.revision = entry.revision
    return loaded


def _load_beside(entry: ModelEntry, target: LanguageModel | None) -> LanguageModel:
    if target is None:
        raise PairMismatchError(f"{entry.title} drafts only for {entry.serves}. Load it beside that target.")
    if is_spread(target.model):
        raise DeviceError(
            f"{entry.title} borrows its target's tables, and {target.ref} is spread over several devices. "
            "Choose another draft, or prompt lookup."
        )
    from core.models.shared_draft import load_shared_draft

    loaded = _with_memory(entry, target.device, target.dtype, lambda: load_shared_draft(entry, target))
    loaded.revision = entry.revision
    return loaded


def _with_memory(
    entry: ModelEntry, device: torch.device, dtype: torch.dtype, make: Callable[[], LanguageModel]
) -> LanguageModel:
    """Call `make`; where memory runs out within, give it back, and say what would fit."""
    free = free_memory(device)
    try:
        return make()
    except Exception as error:
        if not isinstance(error, OutOfMemoryError) and not is_out_of_memory(error):
            raise
        _log.debug("%s: memory ran out: %s", entry.title, error)
    # Only here, where the error is gone and its frames with it, does nothing hold what was loaded any more.
    release_memory()
    raise does_not_fit(need_of(entry, dtype), device, free_bytes=free)


def _load_whole(
    entry: ModelEntry, folder: Path, tokenizer: Any, device: torch.device, dtype: torch.dtype
) -> LanguageModel:
    model = _load_module(entry, folder, _device_map(entry, folder, device, dtype), dtype)
    return prepare(entry.ref, model, tokenizer, _first_device(model), dtype)


def _device_map(entry: ModelEntry, folder: Path, device: torch.device, dtype: torch.dtype) -> DeviceMap:
    """Where a model's parts go.

    Raises:
        OutOfMemoryError: they have room nowhere.
        ModelUnreadableError: which parts there are can't be told.
    """
    available = available_memory(device)
    place = choose_place(need_of(entry, dtype).total_bytes, device, available)
    if place is not None:
        return {"": place}
    if device.type == "cuda":
        try:
            device_map = spread(empty_model(folder, dtype), dtype, available)
        except Exception as error:
            raise _damaged(entry, error) from error
        if device_map is not None:
            return device_map
    raise OutOfMemoryError(f"{entry.title} has no room on {device}.")


def _first_device(model: Any) -> torch.device:
    """Where a text enters the model, and its logits come out."""
    place = next(iter((getattr(model, "hf_device_map", None) or {"": "cpu"}).values()))
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def prepare(ref: str, model: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A module that is in place, checked and given its fastest exact forward.

    Raises:
        ModelUnreadableError: it can't be run with a cache that is rewound.
        torch.OutOfMemoryError, MemoryError, RuntimeError: there is no memory left to run it.
    """
    loaded = describe(ref, model, tokenizer, device, dtype)
    expected = check_cache(loaded)
    try:
        loaded.lean_weights = find_lean_weights(loaded, expected)
    except Exception as error:  # It is but the faster of two ways.
        _log.warning("%s: no lean forward (%s), so transformers' module is used.", ref, first_line(error))
    return loaded


def check_pair(draft: LanguageModel, target: LanguageModel) -> None:
    """Raises:
    PairMismatchError: if the two loaded models' tokenizers differ, with the first token that does.
    """
    if draft.tokenizer is target.tokenizer:
        return
    problem = tokenizer_problem(_tokenizer_json(draft.tokenizer), _tokenizer_json(target.tokenizer))
    if problem is not None:
        raise PairMismatchError(problem)


def _tokenizer_json(tokenizer: Any) -> dict[str, Any]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return large_json.loads(backend.to_str())
    return {"model": {"vocab": tokenizer.get_vocab()}}


def _load_module(entry: ModelEntry, folder: Path, device_map: DeviceMap, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map=device_map,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        _log.debug("loading failed", exc_info=True)
        raise _damaged(entry, error) from error
    # transformers fills what a file lacks with random numbers and goes on; a person must not.
    lacking = sorted(info.get("missing_keys") or ())
    if lacking:
        raise ModelUnreadableError(
            f"The weight file of {entry.title} lacks {lacking[0]!r} and {len(lacking) - 1} more. "
            "Download the model again."
        )
    return model.eval().requires_grad_(False)


def _damaged(entry: ModelEntry, error: Exception) -> ModelUnreadableError:
    return ModelUnreadableError(
        f"The files of {entry.title} are damaged, incomplete or of an unknown kind ({first_line(error)}). "
        "Download the model again, or choose another."
    )
