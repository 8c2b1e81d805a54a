"""Says before loading whether a draft suits a target, what the pair will cost, and whether it fits in memory."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.drafters.registry import METHODS
from core.errors import OutriderError
from core.models.catalogue import EMBEDDED, ModelEntry, ModelFormat, local_models, resolve
from core.models.folder.checks import loading_problem
from core.models.folder.details import ModelDetails, read_config, read_details
from core.models.folder.vocabulary import (
    TokenizerSource,
    TokenTable,
    parse_tokenizer,
    read_special_tokens,
    read_table,
    tokenizer_source,
    vocabulary_problem,
)
from core.models.shared_draft import shared_draft_problem
from core.settings import MAX_DRAFT_TOKENS
from core.text import bytes_text

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

# --- Memory -----------------------------------------------------------------------------------------------------

DEFAULT_CONTEXT = 4096
"""Positions that a forecast assumes by default, up to the models' limits."""

_MAX_ROWS = 17
"""Rows of logits per step of a chain: a block of 16 drafted tokens plus one."""

_COPIES_OF_A_ROW = 6
"""Float32 arrays per row: logits, filtered logits, their order, probabilities of target and draft, the residual."""

_FLOAT_BYTES = 4

_BYTES_BESIDE_A_MODEL = 16 << 20
"""A model's tokenizer and the allocator's rounding."""


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """What one or two models need on a device, in bytes.

    Attributes:
        weights_bytes: the models' weights.
        cache_bytes: their key-value caches, filled to the context.
        working_bytes: activations of the widest forward, masks, logits and probabilities.
        available_bytes: free on the device; None if unknown.
    """

    weights_bytes: int
    cache_bytes: int
    working_bytes: int
    available_bytes: int | None

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.working_bytes

    @property
    def fits(self) -> bool | None:
        """Whether all of it fits; None if the free memory is unknown."""
        return None if self.available_bytes is None else self.total_bytes <= self.available_bytes


def forecast(
    models: Sequence[ModelDetails],
    *,
    device: str = "auto",
    dtype: str = "auto",
    context: int | None = None,
    held_bytes: int = 0,
    num_nodes: int = 0,
    num_head_parameters: int = 0,
) -> MemoryForecast:
    """What these models need together, filled to the context.

    Args:
        models: the draft and the target, in any order, or one model.
        device: auto, cpu, cuda or mps.
        dtype: auto, float32, bfloat16 or float16.
        context: positions of the text; None for `DEFAULT_CONTEXT`. No model gets more than its own limit.
        held_bytes: of the device, held by loaded models that would make room (`Session.held_bytes`).
        num_nodes: of the largest tree that is drafted, see `nodes_of`; 0 for chains.
        num_head_parameters: of Medusa heads, see `heads_parameters`.

    Raises:
        SettingsError, DeviceError: as `core.models.load` does.
    """
    from core.models.devices import resolve_device, resolve_dtype

    where = resolve_device(device)
    size = resolve_dtype(dtype, where).itemsize
    positions = {model: positions_of(model, context) for model in models}
    distinct = set(models)  # A model that drafts for itself is loaded once.
    free = available_bytes(where)
    # A tree's branches have places of their own after the text.
    spare, rows = (MAX_DRAFT_TOKENS, max(_MAX_ROWS, num_nodes + 1)) if num_nodes else (0, _MAX_ROWS)
    # A trimmed head is a copy of some rows.
    trimmed = sum((m.draft_vocabulary_size or 0) * m.hidden_size for m in distinct)
    return MemoryForecast(
        weights_bytes=sum(m.loaded_bytes(size) for m in distinct) + (trimmed + num_head_parameters) * size,
        # Keys and values of every layer and position, also beyond a sliding window, to rewind.
        cache_bytes=sum(
            (m.num_layers - m.num_uncached_layers)
            * (m.latent_width or 2 * m.num_kv_heads * m.head_dim)
            * (positions[m] + spare)
            * size
            for m in models
        ),
        # The models run one at a time, so only the larger activations count.
        working_bytes=max((_working_bytes(model, positions[model], size, rows) for model in models), default=0)
        + _BYTES_BESIDE_A_MODEL * len(distinct),
        available_bytes=None if free is None else free + held_bytes,
    )


def nodes_of(method: str, num_draft_tokens: int | None) -> int:
    """Nodes of the largest tree that a method drafts with this K, None if the engine chooses it; 0 for chains."""
    known = METHODS.get(method)
    most = MAX_DRAFT_TOKENS if num_draft_tokens is None else num_draft_tokens
    return most if known is not None and known.proposes_trees else 0


def heads_parameters(path: str, target: ModelEntry) -> int:
    """How many parameters Medusa heads hold, with the rows of the target's head that they use, as if stored in 16 bits.

    Args:
        path: of their folder or file; empty for those that ship for the target.
        target: the model that they belong to.

    Raises:
        OSError: the path can't be looked at.
    """
    for place in [Path(path).expanduser()] if path else sorted(EMBEDDED.iterdir()):
        weights = [place] if place.is_file() else place.glob("medusa_lm_head.*")
        config: Mapping[str, Any] = {}
        with contextlib.suppress(OutriderError):
            config = read_config(place)
        size = max((file.stat().st_size for file in weights), default=0)
        if size and (path or config.get("target") == target.ref):
            ids = config.get("vocabulary")
            return size // 2 + (len(ids) * read_details(target).hidden_size if isinstance(ids, list) else 0)
    return 0


def available_bytes(device: torch.device) -> int | None:
    """Free bytes of a device; of several GPUs, which a model may be spread over, the sum; None if not known."""
    import torch

    from core.models.devices import free_memory

    devices = [device]
    if device.type == "cuda" and device.index is None:
        devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    try:
        return sum(max(0, free_memory(each)) for each in devices)
    except RuntimeError:
        _log.debug("the free memory of %s is not known", device, exc_info=True)
    return None


def positions_of(model: ModelDetails, context: int | None) -> int:
    """Positions that a forecast assumes for a model's cache."""
    wanted = DEFAULT_CONTEXT if context is None else context
    return min(wanted, model.context_length or wanted)


def _working_bytes(model: ModelDetails, positions: int, item_bytes: int, rows: int) -> int:
    """The larger of a prefill chunk's activations and a step's logits, with its probabilities."""
    from core.runners.base import PREFILL_CHUNK

    chunk = min(PREFILL_CHUNK, positions)
    attention = model.num_heads * model.head_dim
    # A layer's states and norms, fused projections and what is rotated of them, the MLP's two widths and product.
    activations = chunk * (8 * model.hidden_size + 4 * attention + 4 * model.intermediate_size) * item_bytes
    mask = chunk * positions * item_bytes
    repeated = 2 * attention * positions * item_bytes  # Grouped keys and values, for each query head.
    logits = rows * model.table_size * (item_bytes + _COPIES_OF_A_ROW * _FLOAT_BYTES)
    return max(activations + mask + repeated, logits)


# --- Pairs ------------------------------------------------------------------------------------------------------

_LARGE_COST = 0.5


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """What is known of a draft and a target before they are loaded.

    Attributes:
        problem: why they can't work together, in a sentence; None if they can, or if only loading will tell.
        warnings: one sentence each.
        memory: what they will need; None if not requested or unknown.
        cost_coefficient: expected time of a draft step in target steps, from the parameters that each multiplies;
            right for forwards that are bound by reading weights. None if the files don't say.
    """

    problem: str | None = None
    warnings: tuple[str, ...] = ()
    memory: MemoryForecast | None = None
    cost_coefficient: float | None = None


def pair_verdict(
    draft_ref: str | ModelEntry,
    target_ref: str | ModelEntry,
    *,
    device: str = "auto",
    dtype: str = "auto",
    context: int | None = None,
    with_memory: bool = True,
    held_bytes: int = 0,
    num_nodes: int = 0,
) -> PairVerdict:
    """Judge a pair by its files. Errors in them are not raised, but returned as the verdict's problem.

    Args:
        draft_ref, target_ref: as `core.models.load` takes them, or entries of models that are not downloaded.
        device, dtype: what the pair would run with, for the memory.
        context: positions of the text; None for the target's own limit, within reason.
        with_memory: whether to forecast the memory, and to ask whether transformers knows the models, which import
            torch.
        held_bytes, num_nodes: as for `forecast`.
    """
    try:
        draft, target = (ref if isinstance(ref, ModelEntry) else resolve(ref) for ref in (draft_ref, target_ref))
        ours, theirs = read_details(draft), read_details(target)
        folders = [entry for entry in (target, draft) if entry.format is not ModelFormat.GGUF]
        problems = (
            loading_problem(read_config(entry.path, entry.title), entry.title, with_kinds=with_memory)
            for entry in folders
        )
        problem = next(filter(None, problems), None)
        own = [entry for entry in folders if entry.serves is None]
        texts = (vocabulary_problem(entry.path, os.listdir(entry.path), entry.title) for entry in own)
        problem = problem or next(filter(None, texts), None)
    except OutriderError as error:
        return PairVerdict(problem=str(error))
    problem = problem or _tokenizer_problem(draft, target)
    if problem is not None:
        return PairVerdict(problem=problem)
    step, target_step = ours.parameters_per_step(drafting=True), theirs.parameters_per_step()
    cost = step / target_step if step and target_step else None
    memory, warnings = None, []
    if with_memory:
        try:
            place: dict[str, Any] = {"device": device, "dtype": dtype, "context": context}
            memory = forecast((ours, theirs), **place, held_bytes=held_bytes, num_nodes=num_nodes)
        except OutriderError as error:  # There is no such device; the pair itself may be fine.
            warnings.append(str(error))
        else:
            warnings += _memory_warnings(memory, max(positions_of(model, context) for model in (ours, theirs)))
    if cost is not None and cost > _LARGE_COST:
        warnings.append(
            f"A step of the draft is expected to cost {cost:.2f} of a target step, which leaves little to gain. "
            "Choose a smaller draft, or a larger target."
        )
    if ahead := [entry.ref for entry in (draft, target) if not entry.has_weights]:
        warnings.append(
            f"Memory and cost are estimates for {' and '.join(dict.fromkeys(ahead))}: until a model is "
            "downloaded, only its configuration and file sizes are known."
        )
    # A drafter without a tokenizer of its own was trained on its target's texts.
    if ours.shares_tables_with is None:
        warnings += _training_warnings(draft, target, ours, theirs)
    if ours.context_length and theirs.context_length and ours.context_length < theirs.context_length:
        warnings.append(
            f"The draft's context is {ours.context_length:,} tokens and the target's {theirs.context_length:,}: beyond "
            "the draft's limit the target continues alone."
        )
    return PairVerdict(None, tuple(warnings), memory, cost)


def pair_problem(draft_ref: str, target_ref: str) -> str | None:
    """Why these two can't work together, in one sentence; None if they can, or if only loading will tell.

    Reads only tokenizer files, and for a .gguf file its header.
    """
    try:
        return _tokenizer_problem(resolve(draft_ref), resolve(target_ref))
    except OutriderError as error:
        return str(error)


def fitting_drafts(target: ModelEntry) -> list[ModelEntry]:
    """The smaller models on this computer that can draft for this one, smallest first."""

    def details(entry: ModelEntry) -> ModelDetails | None:
        with contextlib.suppress(OutriderError):
            return read_details(entry)
        return None

    smaller = smaller_drafts(target, local_models(), details)
    return [entry for entry in smaller if pair_problem(entry.ref, target.ref) is None]


def smaller_drafts(
    target: ModelEntry, drafts: Iterable[ModelEntry], details: Callable[[ModelEntry], ModelDetails | None]
) -> list[ModelEntry]:
    """The drafts whose step multiplies fewer parameters than the target's, smallest first.

    Args:
        details: of a model; the weights of one without any are taken to have 16 bits.
    """

    def size(entry: ModelEntry, *, drafting: bool) -> int:
        found = details(entry)
        return (found.parameters_per_step(drafting=drafting) if found else 0) or entry.size_bytes // 2

    sizes = {entry: size(entry, drafting=True) for entry in drafts if entry.ref != target.ref}
    most = size(target, drafting=False)
    return sorted((entry for entry in sizes if sizes[entry] < most), key=sizes.__getitem__)


def tokenizer_problem(draft: Mapping[str, Any], target: Mapping[str, Any]) -> str | None:
    """Compare two tokenizers in the form of tokenizer.json, and name the first token that differs.

    Rows that a model's table has beyond its tokenizer don't count.
    """
    return _difference(parse_tokenizer(draft), parse_tokenizer(target))


def _tokenizer_problem(draft: ModelEntry, target: ModelEntry) -> str | None:
    if target.serves is not None:
        return f"{target.title} uses the embedding of {target.serves}, so it can only draft for that model."
    if draft.path == target.path:
        return None
    if draft.serves is not None:
        return shared_draft_problem(draft, target)
    sources = tokenizer_source(draft), tokenizer_source(target)
    if sources[0] is None or sources[1] is None or sources[0] == sources[1]:
        return None
    return _compare(sources[0], sources[1])


@functools.lru_cache(maxsize=1024)
def _compare(draft: TokenizerSource, target: TokenizerSource) -> str | None:
    ours, theirs = read_table(draft), read_table(target)
    return None if ours is None or theirs is None else _difference(ours, theirs)


def _difference(draft: TokenTable, target: TokenTable) -> str | None:
    is_partial = draft.is_partial or target.is_partial
    ours, theirs = draft.tokens, target.tokens
    skipped = draft.unused | target.unused

    def differs(token_id: int) -> bool:
        mine, other = ours.get(token_id), theirs.get(token_id)
        if mine == other or token_id in skipped:
            return False
        return not (is_partial and mine and other and mine.replace("▁", " ") == other.replace("▁", " "))

    # What a GGUF header omits is not a difference; loading builds the tokenizer and compares.
    ids = ours.keys() & theirs.keys() if is_partial else ours.keys() | theirs.keys()
    first = min(filter(differs, ids), default=None)
    if first is not None:
        mine, other = ("missing" if tokens.get(first) is None else repr(tokens[first]) for tokens in (ours, theirs))
        return (
            f"The tokenizers differ: id {first} is {mine} in the draft and {other} in the target. "
            "Choose a draft of the target's own family."
        )
    if draft.merges and target.merges and draft.merges != target.merges:
        pairs = zip(draft.merges, target.merges, strict=False)
        shorter = min(len(draft.merges), len(target.merges))
        at = next((rank for rank, (mine, other) in enumerate(pairs) if mine != other), shorter)
        return (
            f"The tokenizers differ in how they join characters, first at merge {at}. "
            "Choose a draft of the target's own family."
        )
    return None


def _training_warnings(
    draft: ModelEntry, target: ModelEntry, draft_details: ModelDetails, target_details: ModelDetails
) -> list[str]:
    """Warnings about how the two were trained. They share their ids, so the text stays correct."""
    if draft_details.is_instruct != target_details.is_instruct:
        kinds = ("an instruct", "a base") if draft_details.is_instruct else ("a base", "an instruct")
        return [
            f"The draft is {kinds[0]} model and the target {kinds[1]} model, so fewer tokens will be accepted "
            "than with two of the same kind."
        ]
    ours, theirs = read_special_tokens(draft), read_special_tokens(target)
    warnings = []
    if ours.begin and theirs.begin and ours.begin != theirs.begin:
        warnings.append(
            f"The draft was trained to begin a text with {ours.begin!r} and the target with {theirs.begin!r}: "
            "the target's is used."
        )
    if ours.ends and theirs.ends and not ours.ends & theirs.ends:
        ends = ", ".join(map(repr, sorted(ours.ends))), ", ".join(map(repr, sorted(theirs.ends)))
        warnings.append(f"The draft ends a text with {ends[0]} and the target with {ends[1]}: the target's is used.")
    return warnings


def _memory_warnings(memory: MemoryForecast, positions: int) -> list[str]:
    if memory.fits is not False or memory.available_bytes is None:
        return []
    return [
        f"With a text of {positions:,} tokens both models need about {bytes_text(memory.total_bytes)}, but only "
        f"{bytes_text(memory.available_bytes)} is free. Choose smaller models, a shorter text, or a lower precision."
    ]
