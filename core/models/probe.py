"""What a loaded model must show before it runs: that its cache can be rewound, and which forward may be used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from core.errors import ModelUnreadableError, first_line
from core.models.devices import is_out_of_memory
from core.models.placement import is_spread
from core.runners import lean
from core.runners.lean_weights import LeanWeights
from core.runners.module import ModuleRunner

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

_log = logging.getLogger(__name__)

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
        _log.debug("the probe failed", exc_info=True)
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


def find_lean_weights(loaded: LanguageModel, expected: torch.Tensor) -> LeanWeights | None:
    """The lean forward's weights, if it computes what the module does; any difference beyond rounding rules it out."""
    # What is spread is run by its modules, which accelerate has taught to move what they are given.
    if is_spread(loaded.model) or not lean.supports(loaded.model):
        return None
    probe = _probe(loaded)
    weights = LeanWeights(loaded.model)
    runner = lean.LeanRunner(weights, len(probe))
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
    _log.warning("%s: the lean forward differs by %.3g, so transformers' module is used.", loaded.ref, difference)
    return None
