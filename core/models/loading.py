"""Loads models: checks the files, reads the weights onto their devices, and compares a pair's tokenizers."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from core.errors import (
    DeviceError,
    ModelUnreadableError,
    OutOfMemoryError,
    OutriderError,
    PairMismatchError,
    first_line,
)
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.devices import free_memory, is_out_of_memory, release_memory, resolve_device, resolve_dtype
from core.models.fit import tokenizer_problem
from core.models.folder.checks import check_shapes, empty_model, loading_problem, model_config
from core.models.folder.details import read_config
from core.models.language_model import LanguageModel, describe
from core.models.placement import DeviceMap, choose_place, does_not_fit, first_device, free_by_device, need_of, spread
from core.models.prompting import load_tokenizer
from core.models.shared_draft import load_shared_draft
from core.runners.forward_choice import choose_forward

_log = logging.getLogger(__name__)

_one_at_a_time = threading.Lock()
"""While transformers builds a module, it changes how all threads build theirs."""


def load(
    ref: str,
    device: str = "auto",
    dtype: str = "auto",
    *,
    target: LanguageModel | None = None,
    check_cancelled: Callable[[], None] = lambda: None,
) -> LanguageModel:
    """Load a model and its tokenizer.

    Only safetensors are read (GGUF is converted first), and no code that comes with a model is run. A model that is too
    large for one GPU is spread over all of them, and over the processor's memory where even these lack room.

    Args:
        ref: an embedded or kept model's name, a downloaded Hub id, a folder, or a .gguf file.
        device: auto, cpu, cuda, cuda:1 (the second GPU), or mps.
        dtype: auto, float32, bfloat16 or float16.
        target: for a drafter that borrows its target's tables, that target; its device and precision count.
        check_cancelled: raises to cancel. Called between files; the current file is read to its end.

    Raises:
        ModelNotFoundError, ModelUnreadableError, DeviceError, SettingsError, OutOfMemoryError: one sentence each;
            anything already loaded is freed.
        PairMismatchError: a drafter that borrows its target's tables, without that target.
    """
    entry = resolve(ref)
    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    if entry.serves is not None:
        if target is None:
            raise PairMismatchError(f"{entry.title} drafts only for {entry.serves}. Load it with that target.")
        if target.is_spread:
            raise DeviceError(
                f"{entry.title} uses its target's embedding, and {target.ref} is spread over several devices. "
                "Choose another draft, or prompt lookup."
            )
        lender, where, precision = target, target.device, target.dtype

        def make() -> LanguageModel:
            return prepare(entry.ref, load_shared_draft(entry, lender), lender.tokenizer, where, precision)

    else:
        folder = entry.path
        if entry.format is ModelFormat.GGUF:
            from core.models.folder.gguf import convert

            folder = convert(entry.path, check_cancelled)
        check_cancelled()
        tokenizer = load_tokenizer(entry, folder)
        check_cancelled()

        def make() -> LanguageModel:
            model = _load_module(entry, folder, _device_map(entry, folder, where, precision), precision)
            return prepare(entry.ref, model, tokenizer, first_device(model), precision)

    loaded = _freeing_memory(entry, where, precision, make, check_cancelled)
    loaded.revision = entry.revision
    return loaded


def _freeing_memory(
    entry: ModelEntry,
    device: torch.device,
    dtype: torch.dtype,
    make: Callable[[], LanguageModel],
    check_cancelled: Callable[[], None],
) -> LanguageModel:
    """Call `make`, in one thread at a time; if it runs out of memory, free what it took and say what would fit."""
    while not _one_at_a_time.acquire(timeout=0.1):
        check_cancelled()
    try:
        check_cancelled()
        free = free_memory(device)
        return make()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _log.debug("%s: memory ran out: %s", entry.title, error)
    finally:
        _one_at_a_time.release()
    # Outside the except block, since the error's frames hold what was loaded.
    release_memory()
    raise does_not_fit(entry, dtype, device, free)


def _device_map(entry: ModelEntry, folder: Path, device: torch.device, dtype: torch.dtype) -> DeviceMap:
    """The device of each part of a model."""
    available = free_by_device(device)
    place = choose_place(need_of(entry, dtype), device, available)
    if place is not None:
        return {"": place}
    if device.type == "cuda":
        try:
            device_map = spread(empty_model(folder, dtype), dtype, available)
        except Exception as error:
            raise _damaged(entry, error) from error
        if device_map is not None:
            return device_map
    raise OutOfMemoryError(f"{entry.title} doesn't fit on {device}.")


def _load_module(entry: ModelEntry, folder: Path, device_map: DeviceMap, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    if problem := loading_problem(read_config(folder, entry.title), entry.title):
        raise ModelUnreadableError(problem)
    try:
        config = model_config(folder)
    except Exception as error:
        raise _damaged(entry, error) from error
    if problem := loading_problem(config.to_dict(), entry.title):  # With what its class adds.
        raise ModelUnreadableError(problem)
    is_packed = getattr(config, "quantization_config", None) is not None
    try:
        if not entry.embedded:
            check_shapes(empty_model(folder, dtype), folder, entry.title, is_packed=is_packed)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            device_map=device_map,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, OutriderError):
            raise
        _log.debug("loading failed", exc_info=True)
        if isinstance(error, ImportError):
            raise ModelUnreadableError(
                f"{entry.title} needs a package that is not installed ({first_line(error)}). Install it, or choose "
                "another model."
            ) from error
        if not free_memory(torch.device("cpu")):
            raise MemoryError from error  # Libraries fail in many ways then.
        raise _damaged(entry, error) from error
    # transformers fills missing tensors with random numbers.
    lacking = sorted(info.get("missing_keys") or ())
    if lacking:
        more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
        raise ModelUnreadableError(
            f"The weight file of {entry.title} lacks {lacking[0]!r}{more}: the file is "
            "incomplete, or the model was made for another task. Download the model again, or choose another one."
        )
    if is_packed and not getattr(model, "is_quantized", False):
        _unify(model, dtype)
    return model.eval().requires_grad_(False)


def _unify(model: Any, dtype: torch.dtype) -> None:
    """What was expanded while loading has the requested precision; the rest of the file's weights kept their own."""
    kept = {*(model._keep_in_fp32_modules or ()), *(getattr(model, "_keep_in_fp32_modules_strict", None) or ())}
    for name, parameter in model.named_parameters():
        is_kept = parameter.dtype is torch.float32 and any(part in name for part in kept)
        if parameter.is_floating_point() and not is_kept:
            parameter.data = parameter.data.to(dtype)


def prepare(ref: str, model: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A loaded module with what its files say, and its fastest exact forward; raises what `choose_forward` does."""
    loaded = describe(ref, model, tokenizer, device, dtype)
    choose_forward(loaded)
    return loaded


def _damaged(entry: ModelEntry, error: Exception) -> ModelUnreadableError:
    return ModelUnreadableError(
        f"The files of {entry.title} are damaged, incomplete or of an unknown kind ({first_line(error)}). "
        "Download the model again, or choose another."
    )


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
        return json.loads(backend.to_str())
    return {"model": {"vocab": tokenizer.get_vocab()}}
