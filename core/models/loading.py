"""Loads models: checks the files, places the weights with accelerate, and picks the fastest exact forward."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from core.models.shapes import check_files, check_shapes, model_config
from core.models.shared_draft import load_shared_draft
from core.runners import llama, rotary
from core.runners.base import tree_rows
from core.runners.llama import FusedLlamaWeights
from core.runners.module import ModuleRunner, Reading
from core.runners.threads import threads
from core.text import bytes_text

_log = logging.getLogger(__name__)

_PROBE_LENGTH = 12
_SMALL = 200_000_000
"""Up to this many parameters, one thread reads the probe as fast as several, and never waits for a busy core."""
_ROUNDING, _HALF_PRECISION = 3e-4, 0.1
"""Largest mean difference of logits in float32, and in half precision, as a share of their spread."""

_ONE_BY_ONE = frozenset({"jamba", "recurrent_gemma", "zamba", "zamba2"})
"""Types whose module is wrong or imprecise when it continues with several tokens (transformers 5.23)."""

_NEVER_BRANCH = frozenset({"gpt_neo"})
"""Types whose windows span places in the cache, not positions."""

_SLOW_WAYS = {
    Reading.TOKENS: "%s reads one token per forward, so a draft can't make it faster.",
    Reading.WHOLE: "The cache of %s can't be used, so each forward reads the whole text.",
}


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
        if is_spread(target.model):
            raise DeviceError(
                f"{entry.title} borrows its target's tables, and {target.ref} is spread over several devices. "
                "Choose another draft, or prompt lookup."
            )
        lender = target

        def load_beside() -> LanguageModel:
            model = load_shared_draft(entry, lender)
            return prepare(entry.ref, model, lender.tokenizer, lender.device, lender.dtype)

        loaded = _freeing_memory(entry, target.device, target.dtype, load_beside)
    else:
        quiet_transformers()
        folder = entry.path
        if entry.format is ModelFormat.GGUF:
            from core.models.gguf import convert

            folder = convert(entry.path, check_cancelled)
        check_cancelled()
        if not entry.embedded:
            check_files(folder, entry.title)
        tokenizer = load_tokenizer(entry, folder)
        check_cancelled()

        def load_whole() -> LanguageModel:
            model = _load_module(entry, folder, _device_map(entry, folder, where, precision), precision)
            return prepare(entry.ref, model, tokenizer, first_device(model), precision)

        loaded = _freeing_memory(entry, where, precision, load_whole)
    loaded.revision = entry.revision
    return loaded


def _freeing_memory(
    entry: ModelEntry, device: torch.device, dtype: torch.dtype, make: Callable[[], LanguageModel]
) -> LanguageModel:
    """Call `make`; if it runs out of memory, free what it took and say what would fit."""
    free = free_memory(device)
    try:
        return make()
    except Exception as error:
        if not isinstance(error, OutOfMemoryError) and not is_out_of_memory(error):
            raise
        _log.debug("%s: memory ran out: %s", entry.title, error)
    # Outside the except block, since the error's frames hold what was loaded.
    release_memory()
    raise does_not_fit(need_of(entry, dtype), device, free)


def _load_module(entry: ModelEntry, folder: Path, device_map: DeviceMap, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = model_config(folder)
    except Exception as error:
        raise _damaged(entry, error) from error
    kind = config.model_type
    if config.is_encoder_decoder:
        raise ModelUnreadableError(
            f"{entry.title} is an encoder-decoder model ({kind}), which can't be run yet. Choose a decoder-only model."
        )
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelUnreadableError(
            f"{entry.title} is a {kind!r} model, which can't generate text. Choose another model."
        )
    try:
        if not entry.embedded:
            is_packed = getattr(config, "quantization_config", None) is not None
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
    return model.eval().requires_grad_(False)


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


# --- The forward ------------------------------------------------------------------------------------------------


def prepare(ref: str, model: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """Check a loaded module, and choose its fastest exact forward.

    Raises:
        ModelUnreadableError: it can't be run with a cache that is rewound.
        torch.OutOfMemoryError, MemoryError, RuntimeError: there is no memory left to run it.
    """
    loaded = describe(ref, model, tokenizer, device, dtype)
    with threads(1 if loaded.num_parameters <= _SMALL else None):
        expected = choose_reading(loaded)
    try:
        loaded.fused_weights = find_fused_weights(loaded, expected)
    except Exception as error:
        reason = "out of memory" if is_out_of_memory(error) else first_line(error)
        _log.warning("%s: no fused forward (%s), so transformers' module is used.", ref, reason)
    if loaded.fused_weights is None:
        loaded.can_branch = reads_trees(loaded)
    return loaded


def choose_reading(loaded: LanguageModel) -> torch.Tensor:
    """Set how the module continues a text from its cache: the first way that is right. Most read blocks.

    Reads a short text as a whole, and in parts with a rejected block between them.

    Returns:
        The module's logits (n, V) for that text, read as a whole.

    Raises:
        ModelUnreadableError: the module can't be run at all, or its tokens depend on later ones.
    """
    probe = _probe(loaded)
    _unlimit_time_steps(loaded.model)
    try:
        runner = ModuleRunner(loaded.model, len(probe), reading=Reading.WHOLE)
        logits = runner.forward(probe, num_logits=len(probe)).logits.float()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        _log.debug("the probe failed", exc_info=True)
        raise ModelUnreadableError(f"{loaded.ref} can't be run ({first_line(error)}). Choose another model.") from error
    if not bool(logits.isfinite().all()):
        return logits  # A precision problem, which decoding reports.
    ways = (Reading.TOKENS,) if loaded.model.config.model_type in _ONE_BY_ONE else (Reading.BLOCKS, Reading.TOKENS)
    loaded.reading = next((way for way in ways if _reads_right(loaded, way, probe, logits)), Reading.WHOLE)
    if loaded.reading is Reading.WHOLE and not _is_causal(loaded, probe, logits):
        raise ModelUnreadableError(
            f"{loaded.ref} can't continue a text: its tokens depend on later ones, as in an encoder. Choose a "
            "decoder-only model."
        )
    if loaded.reading in _SLOW_WAYS:
        _log.warning(_SLOW_WAYS[loaded.reading], loaded.ref)
    _check_long_texts(loaded, probe)
    return logits


def _unlimit_time_steps(model: Any) -> None:
    """Let blocks compute what single tokens do in Nemotron-H, where transformers 5.23 limits the time steps of blocks
    only; its configurations limit neither."""
    if model.config.model_type == "nemotron_h":
        for layer in model.modules():
            if hasattr(layer, "time_step_limit"):
                layer.time_step_limit = (0.0, float("inf"))


def _check_long_texts(loaded: LanguageModel, probe: torch.Tensor) -> None:
    """End the context where rotary frequencies change, if texts beyond are not computed as transformers does."""
    boundary = rotary.boundary_of(loaded.model)
    if boundary is None or boundary >= loaded.context_length:
        return
    end = min(loaded.context_length, 2 * boundary)
    # Far apart, so that their distances tell; without a mask transformers takes gaps for the ends of texts.
    at = torch.linspace(0, end - 1, len(probe), device=loaded.device).long().unsqueeze(0)
    ids = probe.to(loaded.device).unsqueeze(0)
    given = {"input_ids": ids, "position_ids": at, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.inference_mode():
        expected = loaded.model(**given).logits
        with rotary.fixed(rotary.frequencies_for(loaded.model, end)):
            ours = loaded.model(**given).logits
    if not _is_alike(ours.float(), expected.float(), _ROUNDING):
        loaded.context_length = boundary
        _log.warning("%s: texts end at %d tokens, where its rotary frequencies change.", loaded.ref, boundary)


def _reads_right(loaded: LanguageModel, way: Reading, probe: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a module that continues from its cache this way computes the `expected` logits (n, V)."""
    third = max(1, len(probe) // 3)
    runner = ModuleRunner(loaded.model, len(probe), reading=way)
    try:
        runner.forward(probe[:third], num_logits=1)
        runner.rewind(third)
        runner.forward(probe[:third].flip(0), num_logits=1)
        runner.rewind(third)
        # The last token by itself, as plain decoding reads: some modules have a way of their own for one.
        parts = (*probe[third:-1].tensor_split(2), probe[max(third, len(probe) - 1) :])
        rows = [runner.forward(part, num_logits=len(part)).logits for part in parts if len(part)]
        # Rounding, and a close call between experts, move far less than a lost place does.
        share = _ROUNDING if loaded.dtype is torch.float32 else _HALF_PRECISION
        return _is_alike(torch.cat(rows).float(), expected[third:], share)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        _log.debug("%s can't read %s", loaded.ref, way, exc_info=True)
        return False


def reads_trees(loaded: LanguageModel) -> bool:
    """Whether a module's rows of a tree are those of its paths. Some take places in the cache for positions."""
    if loaded.model.config.model_type in _NEVER_BRANCH:
        return False
    runner, ids = ModuleRunner(loaded.model, 5, reading=loaded.reading), torch.arange(5)
    try:
        runner.forward(ids[:1], num_logits=1)
        tree = runner.forward(ids[1:], num_logits=4, tree=tree_rows([-1, -1, 1], 1, 4)).logits.float()
        runner.rewind(1)
        path = runner.forward(ids[[1, 3, 4]], num_logits=3).logits.float()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return False
    return _is_alike(tree[2:], path[1:], _ROUNDING if loaded.dtype is torch.float32 else _HALF_PRECISION)


def _is_causal(loaded: LanguageModel, probe: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether what follows a text leaves its logits, the first of those `expected` (n, V), as they are."""
    start = probe[: max(1, len(probe) // 3)]
    rows = ModuleRunner(loaded.model, len(probe), reading=Reading.WHOLE).forward(start, num_logits=len(start)).logits
    return _is_alike(rows.float(), expected[: len(start)], _HALF_PRECISION)


def find_fused_weights(loaded: LanguageModel, expected: torch.Tensor) -> FusedLlamaWeights | None:
    """The fused forward's weights if it computes the module's logits, `expected` (n, V), up to rounding; else None."""
    # A spread model needs its modules, whose accelerate hooks move their inputs.
    if is_spread(loaded.model) or not llama.supports(loaded.model):
        return None
    probe = _probe(loaded)
    weights = FusedLlamaWeights(loaded.model)
    runner = replace(loaded, fused_weights=weights).runner(len(probe))
    # In two parts, so that the cache is read as well as written; copied, as the second overwrites a graph's output.
    parts = [runner.forward(part, num_logits=len(part)).logits.clone() for part in probe.tensor_split(2) if len(part)]
    logits = torch.cat(parts).float()
    difference = float((logits - expected).abs().max())
    if loaded.dtype is torch.float32:
        is_right = difference <= 1e-4 * max(1.0, float(expected.abs().max()))
    else:
        is_right = _is_alike(logits, expected, _HALF_PRECISION)
    if is_right:
        return weights
    _log.warning("%s: the fused forward differs by %.3g, so transformers' module is used.", loaded.ref, difference)
    return None


def _probe(loaded: LanguageModel) -> torch.Tensor:
    return torch.arange(min(_PROBE_LENGTH, loaded.context_length)) * 7 % loaded.vocab_size


def _is_alike(logits: torch.Tensor, expected: torch.Tensor, share: float) -> bool:
    """Whether two (n, V) differ by at most a share of the expected values' spread.

    The mean counts: in half precision single logits move by several units where kernels round differently.
    """
    return float((logits - expected).abs().mean()) <= share * float(expected.std())


# --- Placement ----------------------------------------------------------------------------------------------

Place = int | str
"""A GPU by its number, or "cpu"."""

DeviceMap = dict[str, Any]

_GPU_RESERVE = 0.1
_LEAST_RESERVE = 512 * 2**20
"""Kept free on each GPU for caches and activations: a share of the free memory, and a minimum in bytes."""
_PROCESSOR_RESERVE = 0.2


def _device_map(entry: ModelEntry, folder: Path, device: torch.device, dtype: torch.dtype) -> DeviceMap:
    """The device of each part of a model.

    Raises:
        OutOfMemoryError: they fit nowhere.
        ModelUnreadableError: its parts are unknown.
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
    raise OutOfMemoryError(f"{entry.title} doesn't fit on {device}.")


def choose_place(need_bytes: int, device: torch.device, available: Mapping[Place, int]) -> torch.device | None:
    """The single device for a model; None if it fits on none.

    Args:
        need_bytes: the whole model, including what it needs to run.
        device: the requested device; if it is a GPU, any other GPU will do.
        available: free bytes of each place.
    """
    if device.type != "cuda":
        return device if need_bytes <= available[device.type] else None
    first = device.index or 0
    gpus = sorted((place for place in available if isinstance(place, int)), key=lambda place: (place != first, place))
    place = next((place for place in gpus if need_bytes <= available[place]), None)
    return None if place is None else device if place == first else torch.device("cuda", place)


def spread(model: Any, dtype: torch.dtype, available: Mapping[Place, int]) -> DeviceMap | None:
    """Which part of a model goes where: the GPUs in order, then the processor's memory; None without room.

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
    # Reading from disk for each token is useless, and so is a model whose first layers are off the GPUs.
    if "disk" in places or not isinstance(places[0], int):
        return None
    return dict(device_map)


def empty_model(folder: Path, dtype: torch.dtype) -> Any:
    """A folder's model without its weights, on the meta device."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    config = model_config(folder)
    # Including the buffers, so that nothing is created on the CPU first.
    with init_empty_weights(include_buffers=True):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    model.tie_weights()
    return model


def available_memory(device: torch.device) -> dict[Place, int]:
    """Free bytes wherever a model for this device may be loaded: on all GPUs, or on the one requested."""
    if device.type == "mps":
        return {"mps": free_memory(device)}
    available: dict[Place, int] = {}
    if device.type == "cuda":
        gpus = range(torch.cuda.device_count()) if device.index is None else [device.index]
        available |= {index: free_memory(torch.device("cuda", index)) for index in gpus}
    available["cpu"] = free_memory(torch.device("cpu"))
    return available


def first_device(model: Any) -> torch.device:
    """Where a loaded module's text enters and its logits leave."""
    place = next(iter((getattr(model, "hf_device_map", None) or {}).values()), model.device)
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def is_spread(model: Any) -> bool:
    """Whether a loaded module's weights are in more than one place."""
    return len({str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}) > 1


# --- When memory runs out ---------------------------------------------------------------------------------------

_WORKING_BYTES = 256 * 2**20
"""Extra memory of any model's first forwards."""

_CACHE_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Need:
    """A model by its title, number of parameters (0 if its files don't say), and the precision it is loaded in."""

    title: str
    num_parameters: int
    dtype: torch.dtype

    @property
    def total_bytes(self) -> int:
        """The weights, plus the minimum needed to run them."""
        weights = self.num_parameters * self.dtype.itemsize
        return weights + min(weights // 4, _WORKING_BYTES)


def need_of(entry: ModelEntry, dtype: torch.dtype) -> Need:
    """A model's needs. A file with an unreadable header counts as 0, and fails when loaded."""
    try:
        return Need(entry.title, read_details(entry).num_parameters, dtype)
    except OutriderError:
        return Need(entry.title, 0, dtype)


def does_not_fit(need: Need, device: torch.device, free_bytes: int) -> OutOfMemoryError:
    """The error for a model that does not fit into the free bytes of a device, with what would fit."""
    choices = list(_choices(need, device, free_bytes))
    advice = "Choose a smaller model, or a machine with more memory."
    if choices:
        advice = f"Choose {' or '.join(filter(None, (', '.join(choices[:-1]), choices[-1])))}."
    return OutOfMemoryError(
        f"{need.title} needs {bytes_text(need.total_bytes)} at {_name(need.dtype)}, and {bytes_text(free_bytes)} is "
        f"free on {device}. {advice}"
    )


def _choices(need: Need, device: torch.device, free: int) -> Iterator[str]:
    shorter = Need(need.title, need.num_parameters, _shorter_dtype(device))
    if 0 < shorter.total_bytes < need.total_bytes and shorter.total_bytes <= free:
        yield f"{_name(shorter.dtype)} ({bytes_text(shorter.total_bytes)})"
    # A drafter that borrows its target's tables is not an alternative.
    others = [need_of(entry, need.dtype) for entry in local_models() if entry.serves is None]
    room = min(free, need.total_bytes)
    fitting = [o for o in others if o.num_parameters and o.total_bytes <= room and o.title != need.title]
    if fitting:
        largest = max(fitting, key=lambda other: other.num_parameters)
        yield f"{largest.title} ({bytes_text(largest.total_bytes)})"
    on_processor = Need(need.title, need.num_parameters, torch.float32)
    if device.type == "cuda" and need.num_parameters and on_processor.total_bytes <= free_memory(torch.device("cpu")):
        yield "the CPU"


def _shorter_dtype(device: torch.device) -> torch.dtype:
    """The precision of half the size that a device computes in."""
    return torch.bfloat16 if device.type == "cpu" else resolve_dtype("auto", device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bytes_per_position(model: LanguageModel) -> int:
    """Cache bytes per position: keys and values of every layer."""
    config = model.model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * head_dim * model.dtype.itemsize)


def run_does_not_fit(models: Sequence[LanguageModel], capacity: int, free_bytes: int, num_nodes: int = 0) -> str:
    """One sentence for a run whose memory ran out.

    Args:
        models: those that ran, target first.
        capacity: positions planned for the text.
        free_bytes: on their device after the run.
        num_nodes: of the largest tree that the run drafted; 0 for chains.
    """
    target = models[0]
    problem = f"{target.device} ran out of memory in a text of up to {capacity:,} tokens"
    # Leave room for a forward.
    fitting = int(_CACHE_SHARE * free_bytes / max(1, sum(bytes_per_position(model) for model in models)))
    fitting = fitting // 100 * 100
    if 100 <= fitting < capacity:
        problem += f", and about {fitting:,} would fit"
    halved = "" if target.dtype.itemsize <= 2 else f"{_name(_shorter_dtype(target.device))} or "
    if num_nodes > 1:
        return (
            f"{problem}, with trees of up to {num_nodes} nodes. Draft smaller trees (a smaller K), ask for fewer new "
            f"tokens, or choose {halved}a smaller model."
        )
    return f"{problem}. Shorten the prompt, ask for fewer new tokens, or choose {halved}a smaller model."
