"""The target's side of a step: a whole draft scored in one forward."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.runners.base import ForwardOutput, Runner
from core.timing import Stopwatch
from core.types import Draft, TargetFeature

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

PREFILL_CHUNK = 512
"""Positions a forward of the prefill: a stop takes effect within one of them."""


def prefill(runner: Runner, ids: Sequence[int], check_cancelled: Callable[[], None]) -> None:
    """Bring a runner's cache up to `ids`, of which it holds the first `runner.length` already."""
    while runner.length < len(ids):
        check_cancelled()
        chunk = ids[runner.length : runner.length + PREFILL_CHUNK]
        runner.forward(torch.tensor(chunk), num_logits=0)


class TargetScorer:
    """The target model with its cache, which between steps holds one position fewer than the text."""

    def __init__(self, model: LanguageModel, capacity: int, needs: frozenset[TargetFeature] = frozenset()) -> None:
        self._runner = model.runner(capacity)
        self._device = model.device
        self._with_hidden = TargetFeature.HIDDEN_STATES in needs

    @property
    def length(self) -> int:
        return self._runner.length

    def prefill(self, ids: Sequence[int], check_cancelled: Callable[[], None]) -> None:
        """Cache all of the prompt but its last token, whose logits the first step needs."""
        prefill(self._runner, ids[:-1], check_cancelled)

    def score(self, last_token: int, draft: Draft) -> ForwardOutput:
        """Append the last committed token and the draft, and score every position behind them.

        Args:
            last_token: the newest token of the text, not cached yet.
            draft: a chain of K tokens.

        Returns:
            (K + 1, V) logits: row i is the law of the token after the i-th drafted one.
        """
        root = torch.tensor([last_token], device=self._device)
        ids = torch.cat((root, draft.tokens.to(self._device)))
        return self._runner.forward(ids, num_logits=len(draft) + 1, with_hidden=self._with_hidden)

    def rewind(self, length: int) -> None:
        self._runner.rewind(min(length, self._runner.length))

    def time_one_step(self, last_token: int, check_cancelled: Callable[[], None], repeats: int = 3) -> float:
        """Median milliseconds of a one-position forward at this point of the text; the cache is left as it was."""
        root = torch.tensor([last_token], device=self._device)
        length, laps = self._runner.length, []
        for _ in range(repeats):
            check_cancelled()
            watch = Stopwatch(self._device)
            self._runner.forward(root, num_logits=1)
            laps.append(watch.lap())
            self._runner.rewind(length)
        return statistics.median(laps)


def features_of(output: ForwardOutput, num_kept: int) -> dict[TargetFeature, Tensor]:
    """What the target returned for the first `num_kept` positions of its last forward."""
    return {} if output.hidden is None else {TargetFeature.HIDDEN_STATES: output.hidden[:num_kept]}
