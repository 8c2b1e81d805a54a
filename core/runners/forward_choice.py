"""Chooses how a loaded model's forward runs: the fastest way that computes, on a short text, what its module does."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from core.errors import ModelUnreadableError, first_line
from core.models.devices import is_out_of_memory
from core.runners import llama, rotary
from core.runners.base import tree_rows
from core.runners.llama import FusedLlamaWeights
from core.runners.module import ModuleRunner, Reading
from core.runners.threads import threads

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

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


def choose_forward(loaded: LanguageModel) -> None:
    """Check a loaded module, and choose its fastest exact forward.

    Raises:
        ModelUnreadableError: it can't be run with a cache that is rewound.
        torch.OutOfMemoryError, MemoryError, RuntimeError: there is no memory left to run it.
    """
    with threads(1 if loaded.num_parameters <= _SMALL else None):
        expected = choose_reading(loaded)
    try:
        loaded.fused_weights = find_fused_weights(loaded, expected)
    except Exception as error:
        reason = "out of memory" if is_out_of_memory(error) else first_line(error)
        _log.warning("%s: no fused forward (%s), so transformers' module is used.", loaded.ref, reason)
    if loaded.fused_weights is None:
        loaded.can_branch = reads_trees(loaded)


def choose_reading(loaded: LanguageModel) -> torch.Tensor:
    """Set how the module continues a text from its cache: the first way that is right. Most read blocks.

    Reads a short text as a whole, whose logits (n, V) it returns, and in parts with a rejected block between them.

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
    # Far apart, so that distances matter; without a mask transformers takes gaps for the ends of texts.
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
    if loaded.is_spread or not llama.supports(loaded.model):
        return None
    probe = _probe(loaded)
    weights = FusedLlamaWeights(loaded.model)
    runner = replace(loaded, fused_weights=weights).runner(len(probe))
    # Two parts are read without logits, as a prompt is. The others are copied: a graph overwrites its output.
    parts = [part for part in probe.tensor_split(4) if len(part)]
    for part in parts[:-2]:
        runner.forward(part, num_logits=0)
    logits = torch.cat([runner.forward(part, num_logits=len(part)).logits.clone() for part in parts[-2:]]).float()
    expected = expected[-len(logits) :]
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
