"""From a reference to a model that runs: files checked, placed by accelerate, its fastest exact forward chosen."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from core.models.catalogue import ModelEntry, ModelFormat, local_models, resolve
from core.models.details import read_details
from core.models.devices import free_memory, is_out_of_memory, release_memory, resolve_device, resolve_dtype
from core.models.fit import tokenizer_problem
from core.models.language_model import LanguageModel, describe
from core.models.prompting import load_tokenizer, quiet_transformers
from core.runners import llama
from core.runners.llama import FusedLlamaWeights
from core.runners.module import ModuleRunner
from core.text import in_words

Place = int | str
"""A GPU by its number, or "cpu"."""

DeviceMap = dict[str, Any]

_GPU_RESERVE = 0.1
_LEAST_RESERVE = 512 * 2**20
"""On each GPU, for caches and activations: a share of what is free, and at least this many bytes."""
_PROCESSOR_RESERVE = 0.2


def choose_place(need_bytes: int, device: torch.device, available: Mapping[Place, int]) -> torch.device | None:
    """The one device that a model goes to; None if it has room on none.

    Args:
        need_bytes: of the whole model, with what it takes to run.
        device: the one asked for; another GPU will do where it is one.
        available: free bytes of each place.
    """
    if device.type != "cuda":
        return device if need_bytes <= available[device.type] else None
    first = device.index or 0
    gpus = sorted((place for place in available if isinstance(place, int)), key=lambda place: (place != first, place))
    fitting = (place for place in gpus if need_bytes <= available[place])
    place = next(fitting, None)
    return None if place is None else device if place == first else torch.device("cuda", place)


def spread(model: Any, dtype: torch.dtype, available: Mapping[Place, int]) -> DeviceMap | None:
    """Which part of a model goes to which place: the GPUs in order, then the processor's memory; None without room.

    Args:
        model: its module on the meta device, its tied weights tied.
        dtype: that it will have.
        available: free bytes of each place, before anything is left for caches.
    """
    from accelerate import infer_auto_device_map

    room: dict[Place, int] = {}
    for place, free in available.items():
        reserve = _PROCESSOR_RESERVE * free if place == "cpu" else max(_GPU_RESERVE * free, _LEAST_RESERVE)
        room[place] = max(0, int(free - reserve))
    device_map = infer_auto_device_map(
        model, max_memory=room, no_split_module_classes=list(model._no_split_modules or ()), dtype=dtype
    )
    places = list(device_map.values())
    # What would have to be read from disk for each token is no use, nor what has its first layers off the GPUs.
    if "disk" in places or not isinstance(places[0], int):
        return None
    return dict(device_map)


def empty_model(folder: Path, dtype: torch.dtype) -> Any:
    """A folder's model without its weights, on the meta device."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    # With the buffers, nothing is made on the processor first.
    with init_empty_weights(include_buffers=True):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    model.tie_weights()
    return model


def available_memory(device: torch.device) -> dict[Place, int]:
    """Free bytes of every place that a model for this device may go to."""
    if device.type == "mps":
        return {"mps": free_memory(device)}
    available: dict[Place, int] = {}
    if device.type == "cuda":
        available |= {index: free_memory(torch.device("cuda", index)) for index in range(torch.cuda.device_count())}
    available["cpu"] = free_memory(torch.device("cpu"))
    return available


def is_spread(model: Any) -> bool:
    """Whether a loaded module's weights lie in more than one place."""
    return len({str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}) > 1


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


_probe_log = logging.getLogger(__name__)

_LENGTH = 12
_HALF_PRECISION = 0.1
"""How far half-precision logits may be apart on average, as a share of their spread."""


def check_cache(loaded: LanguageModel) -> torch.Tensor:
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
    except Exception as error:
        if is_out_of_memory(error):
            raise
        _probe_log.debug("the probe failed", exc_info=True)
        raise ModelUnreadableError(
            f"{loaded.ref} can't be run with a cache that is rewound ({first_line(error)}). Choose another model."
        ) from error
    if not bool(expected.isfinite().all()):
        return expected  # A matter of precision, which decoding reports.
    # Rounding, and an expert that is a close call, move far less than a lost place does.
    if not _is_alike(rest, expected[third:], 1e-3 if loaded.dtype is torch.float32 else _HALF_PRECISION):
        raise ModelUnreadableError(
            f"{loaded.ref} keeps a state that can't be rewound, as speculative decoding must. Choose another model."
        )
    return expected


def _probe(loaded: LanguageModel) -> torch.Tensor:
    return torch.arange(min(_LENGTH, loaded.context_length)) * 7 % loaded.vocab_size


def _is_alike(logits: torch.Tensor, expected: torch.Tensor, share: float) -> bool:
    """Whether two (n, V) differ by at most a share of how far the expected ones are spread. Wrong rows differ by all.

    The mean counts: in half precision single logits move by several units where one kernel rounds otherwise than
    another, and transformers' own module is as far from its float32 self.
    """
    return float((logits - expected).abs().mean()) <= share * float(expected.std())


def find_fused_weights(loaded: LanguageModel, expected: torch.Tensor) -> FusedLlamaWeights | None:
    """The lean forward's weights, if it computes what the module does; any difference beyond rounding rules it out."""
    # What is spread is run by its modules, which accelerate has taught to move what they are given.
    if is_spread(loaded.model) or not llama.supports(loaded.model):
        return None
    probe = _probe(loaded)
    weights = FusedLlamaWeights(loaded.model)
    runner = llama.FusedLlamaRunner(weights, len(probe))
    # In two parts, so that the cache is read as well as written.
    parts = [runner.forward(part, num_logits=len(part)).logits.float() for part in probe.tensor_split(2) if len(part)]
    logits = torch.cat(parts)
    difference = float((logits - expected).abs().max())
    if loaded.dtype is torch.float32:
        is_right = difference <= 1e-4 * max(1.0, float(expected.abs().max()))
    else:
        is_right = _is_alike(logits, expected, _HALF_PRECISION)
    if is_right:
        return weights
    _probe_log.warning(
        "%s: the fused forward differs by %.3g, so transformers' module is used.", loaded.ref, difference
    )
    return None


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
        loaded.fused_weights = find_fused_weights(loaded, expected)
    except Exception as error:  # It is but the faster of two ways.
        _log.warning("%s: no fused forward (%s), so transformers' module is used.", ref, first_line(error))
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
