"""From a reference to a model that runs: files checked, placed by accelerate, its fastest exact forward chosen."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from core.errors import ModelUnreadableError, OutOfMemoryError, PairMismatchError, first_line
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.compatibility import tokenizer_problem
from core.models.devices import resolve_device, resolve_dtype
from core.models.quiet import quiet_transformers
from core.runners import lean
from core.runners.base import Runner
from core.runners.module import ModuleRunner

_log = logging.getLogger(__name__)

_DEFAULT_CONTEXT = 2048
"""For models whose configuration names no limit."""

_TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
"""One of these holds a tokenizer's vocabulary."""

_PROBE_LENGTH = 12


@dataclass(slots=True, eq=False)
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
    lean_weights: lean.LeanWeights | None = field(default=None, repr=False)

    def runner(self, capacity: int, *, drafting: bool = False) -> Runner:
        """A fresh cache of `capacity` positions, and the forward that fills it.

        Drafting, its logits are (n, R), those of `draft_ids` where there are any: a head over the ids that come up
        often costs less, and a draft may leave out what it likes.

        Raises:
            OutOfMemoryError: where the cache does not fit.
        """
        draft_ids = self.draft_ids if drafting else None
        try:
            if self.lean_weights is not None:
                return lean.LeanRunner(self.lean_weights, capacity, draft_ids)
            return ModuleRunner(self.model, capacity, draft_ids)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemoryError(
                f"The cache of {self.ref} for {capacity} positions does not fit in memory. Ask for fewer new tokens, "
                "or choose a smaller model."
            ) from error


def load(ref: str, device: str = "auto", dtype: str = "auto") -> LanguageModel:
    """Load a model and its tokenizer.

    Only safetensors are read (GGUF is converted to it first), and no code that comes with a model is run.

    Args:
        ref: an embedded model's name, a folder, or a .gguf file.
        device: auto, cpu, cuda or mps.
        dtype: auto, float32, bfloat16 or float16.

    Raises:
        ModelNotFoundError, ModelUnreadableError, DeviceError, SettingsError, OutOfMemoryError: each with a sentence.
    """
    entry = resolve(ref)
    where = resolve_device(device)
    precision = resolve_dtype(dtype, where)
    folder = entry.path
    quiet_transformers()
    if entry.format is ModelFormat.GGUF:
        from core.models.gguf import convert

        folder = convert(entry.path)
    tokenizer = _load_tokenizer(entry, folder)
    model = _load_module(entry, folder, where, precision)
    return prepare(ref, model, tokenizer, where, precision)


def prepare(ref: str, model: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A module that is in place, checked and given its fastest exact forward.

    Raises:
        ModelUnreadableError: it can't be run with a cache that is rewound.
        OutOfMemoryError: there is no memory left to run it.
    """
    loaded = _describe(ref, model, tokenizer, device, dtype)
    expected = _check_cache(loaded)
    try:
        loaded.lean_weights = _lean_weights(loaded, expected)
    except (torch.OutOfMemoryError, MemoryError):
        _log.warning("%s: no memory to arrange its weights, so transformers' module is used.", ref)
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


def _load_tokenizer(entry: ModelEntry, folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        # Without its files transformers makes up a tokenizer of a few special tokens and goes on.
        if not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
            raise FileNotFoundError(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelUnreadableError(
            f"The tokenizer of {entry.title} is missing or can't be read. Download the model again."
        ) from error
    if not tokenizer.get_vocab():
        raise ModelUnreadableError(f"The tokenizer of {entry.title} is missing or empty. Download the model again.")
    return tokenizer


def _load_module(entry: ModelEntry, folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map={"": device},
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(
            f"{entry.title} does not fit in the memory of {device}. Choose a smaller model, or another device."
        ) from error
    except Exception as error:
        _log.debug("loading failed", exc_info=True)
        raise ModelUnreadableError(
            f"The files of {entry.title} are damaged, incomplete or of an unknown kind ({first_line(error)}). "
            "Download the model again, or choose another."
        ) from error
    # transformers fills what a file lacks with random numbers and goes on; a person must not.
    lacking = sorted(info.get("missing_keys") or ())
    if lacking:
        raise ModelUnreadableError(
            f"The weight file of {entry.title} lacks {lacking[0]!r} and {len(lacking) - 1} more. "
            "Download the model again."
        )
    return model.eval().requires_grad_(False)


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


def _check_cache(loaded: LanguageModel) -> torch.Tensor:
    """The module's logits (n, V) for a short text.

    Raises:
        ModelUnreadableError: if the module, given that text in parts and rewound between them, loses its place.
            Recurrent models do, and those with a cache of their own kind: their text would be wrong without a word.
    """
    probe = _probe(loaded)
    third = max(1, len(probe) // 3)
    try:
        expected = ModuleRunner(loaded.model, len(probe)).forward(probe, num_logits=len(probe)).logits.float()
        runner = ModuleRunner(loaded.model, len(probe))
        runner.forward(probe[:third], num_logits=1)
        runner.forward(probe[:third].flip(0), num_logits=1)
        runner.rewind(third)
        rest = runner.forward(probe[third:], num_logits=len(probe) - third).logits.float()
    except ModelUnreadableError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(
            f"{loaded.ref} leaves no memory on {loaded.device} to run it. Choose a smaller model, or another device."
        ) from error
    except Exception as error:
        _log.debug("the probe failed", exc_info=True)
        raise ModelUnreadableError(
            f"{loaded.ref} can't be run with a cache that is rewound ({first_line(error)}). Choose another model."
        ) from error
    if not bool(expected.isfinite().all()):
        return expected  # A matter of precision, which decoding reports.
    # Whole rows are wrong where it loses its place; rounding, and an expert that is a close call, move far less.
    difference = float((rest - expected[third:]).abs().mean())
    if difference > (1e-3 if loaded.dtype is torch.float32 else 0.1) * float(expected.std()):
        raise ModelUnreadableError(
            f"{loaded.ref} keeps a state that can't be rewound, as speculative decoding must. Choose another model."
        )
    return expected


def _probe(loaded: LanguageModel) -> torch.Tensor:
    return torch.arange(min(_PROBE_LENGTH, loaded.context_length)) * 7 % loaded.vocab_size


def _lean_weights(loaded: LanguageModel, expected: torch.Tensor) -> lean.LeanWeights | None:
    """The lean forward's weights, if it computes what the module does; any difference beyond rounding rules it out."""
    if not lean.supports(loaded.model):
        return None
    probe = _probe(loaded)
    weights = lean.LeanWeights(loaded.model)
    runner = lean.LeanRunner(weights, len(probe))
    # In two parts, so that the cache is read as well as written.
    parts = [runner.forward(part, num_logits=len(part)).logits.float() for part in probe.tensor_split(2) if len(part)]
    difference = float((torch.cat(parts) - expected).abs().max())
    tolerance = (1e-4 if loaded.dtype is torch.float32 else 5e-2) * max(1.0, float(expected.abs().max()))
    if difference <= tolerance:
        return weights
    _log.warning("%s: the lean forward differs by %.3g, so transformers' module is used.", loaded.ref, difference)
    return None
