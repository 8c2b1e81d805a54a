"""From a reference to a model that runs: files checked, placed by accelerate, its fastest exact forward chosen."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from core.errors import DeviceError, ModelUnreadableError, OutOfMemoryError, PairMismatchError, first_line
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.compatibility import tokenizer_problem
from core.models.devices import free_memory, is_out_of_memory, release_memory, resolve_device, resolve_dtype
from core.models.placement import DeviceMap, available_memory, choose_place, empty_model, is_spread, spread
from core.models.probe import check_cache, find_lean_weights
from core.models.quiet import quiet_transformers
from core.models.room import does_not_fit, need_of
from core.models.tokenizers import load_tokenizer
from core.runners import lean
from core.runners.base import Runner
from core.runners.graphed import GraphedRunner, captures_graphs
from core.runners.lean_weights import LeanWeights
from core.runners.module import ModuleRunner

_log = logging.getLogger(__name__)

_DEFAULT_CONTEXT = 2048
"""For models whose configuration names no limit."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class LanguageModel:
    """A loaded model with its tokenizer.

    Attributes:
        ref: the reference it was loaded from.
        model: transformers' module.
        tokenizer: transformers' tokenizer.
        device, dtype: where and in which precision it runs.
        vocab_size: number of ids that stand for a token; a table padded beyond it is never emitted from.
        context_length: positions that the model was made for.
        eos_ids: ids that end a text.
        draft_ids: (R,) ids that it proposes as a draft, in the order of its trimmed head; None for all.
        lean_weights: weights arranged for the lean forward; None where transformers' module is used.
        revision: the commit of a model of the Hub; None of others.
    """

    ref: str
    model: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    context_length: int
    eos_ids: frozenset[int]
    draft_ids: torch.Tensor | None = field(default=None, repr=False)
    lean_weights: LeanWeights | None = field(default=None, repr=False)
    revision: str | None = None

    def runner(self, capacity: int, *, drafting: bool = False, quantise: bool = False) -> Runner:
        """A fresh cache of `capacity` positions, and the forward that fills it.

        Drafting, its logits are (n, R), those of `draft_ids` where there are any: a head over the ids that come up
        often costs less, and a draft may leave out what it likes. A draft may also `quantise`: its products are then
        in int8 as far as that is faster, which only the lean forward on the CPU knows.

        Raises:
            OutOfMemoryError: where the cache does not fit.
        """
        draft_ids = self.draft_ids if drafting else None
        try:
            if self.lean_weights is not None:
                return self._lean_runner(capacity, drafting=drafting, quantise=quantise)
            return ModuleRunner(self.model, capacity, draft_ids)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemoryError(
                f"The cache of {self.ref} for {capacity} positions does not fit in memory. Ask for fewer new tokens, "
                "or choose a smaller model."
            ) from error

    def _lean_runner(self, capacity: int, *, drafting: bool, quantise: bool) -> Runner:
        weights = self.lean_weights
        assert weights is not None
        runner = lean.LeanRunner(
            weights,
            capacity,
            products=weights.draft_products(is_quantised=quantise) if drafting else None,
            head=weights.draft_head(self.draft_ids, is_quantised=quantise) if drafting else None,
        )
        return GraphedRunner(runner) if captures_graphs(self.device) else runner


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
    loaded = _describe(ref, model, tokenizer, device, dtype)
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
        return json.loads(backend.to_str())
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


def _describe(ref: str, model: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    config = model.config.get_text_config()
    table = int(model.get_output_embeddings().weight.shape[0])
    highest = max(tokenizer.get_vocab().values())
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    return LanguageModel(
        ref=ref,
        model=model,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        vocab_size=min(table, highest + 1),
        context_length=next((int(limit) for limit in limits if limit), _DEFAULT_CONTEXT),
        eos_ids=_eos_ids(model, tokenizer),
        draft_ids=_draft_ids(ref, config, min(table, highest + 1), device),
    )


def _draft_ids(ref: str, config: Any, vocab_size: int, device: torch.device) -> torch.Tensor | None:
    """The list `draft_vocabulary` of a model's configuration, which models made to be drafts have."""
    listed = getattr(config, "draft_vocabulary", None)
    if listed is None:
        return None
    are_ids = isinstance(listed, list) and all(type(item) is int and 0 <= item < vocab_size for item in listed)
    if not are_ids or not listed or len(set(listed)) != len(listed):
        raise ModelUnreadableError(
            f"The draft_vocabulary in the config.json of {ref} must list different ids from 0 to {vocab_size - 1}. "
            "Download the model again."
        )
    return torch.tensor(listed, device=device)


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return frozenset(ids if isinstance(ids, list | tuple) else [ids])
    return frozenset()
