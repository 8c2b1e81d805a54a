"""The target's part of a step: scores a block, keeps what was accepted, and collects what a drafter wants to see."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.runners.base import keep_path, prefill, tree_rows
from core.runners.graphed import GraphedRunner
from core.runners.timing import Stopwatch, sent
from core.types import Draft, TargetFeature, is_chain

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


class TargetScorer:
    """The target model with its cache, which between steps holds one position fewer than the text."""

    def __init__(
        self, model: LanguageModel, limit: int, needs: frozenset[TargetFeature] = frozenset(), spare: int = 0
    ) -> None:
        """
        Args:
            model: the target.
            limit: positions of the longest text.
            needs: what a drafter wants to see of each position.
            spare: additional places in the cache, for the branches of a tree.
        """
        self._runner = model.runner(limit, spare=spare)
        self._device = model.device
        self._with_hidden = TargetFeature.HIDDEN_STATES in needs
        self._hidden: list[Tensor] = []

    @property
    def length(self) -> int:
        """Positions in the cache."""
        return self._runner.length

    def prefill(self, ids: Sequence[int], check_cancelled: Callable[[], None]) -> None:
        """Cache the prompt except its last token, whose logits the first step needs."""
        on_hidden = self._hidden.append if self._with_hidden else None
        prefill(self._runner, ids[:-1], check_cancelled, on_hidden)

    @property
    def num_captures(self) -> int:
        """CUDA graphs captured so far."""
        return getattr(self._runner, "num_captures", 0)

    def prepare(self, end: int) -> None:
        """Capture the CUDA graphs that scoring will launch, if any, for a text of up to `end` positions."""
        if isinstance(self._runner, GraphedRunner):
            self._runner.prepare(end)

    def score(self, last_token: int, draft: Draft, parents: Sequence[int]) -> Tensor:
        """Append the newest token of the text, not cached yet, and N drafted ones. Returns (N + 1, V) logits.

        Row 0 follows the newest token, row i + 1 follows node i.
        """
        # A number reaches a device with the kernel that writes it: no copy, which might wait.
        root = torch.full((1,), last_token, device=self._device)
        ids = torch.cat((root, sent(draft.tokens, self._device))) if len(draft) else root
        tree = None if is_chain(parents) else tree_rows(parents, self._runner.length, len(ids))
        output = self._runner.forward(ids, num_logits=len(ids), with_hidden=self._with_hidden, tree=tree)
        self._scored = output.hidden
        return output.logits

    def keep(self, root: int, path: Sequence[int]) -> None:
        """Keep the position of the text's newest token, `root`, and the accepted nodes of the block after it."""
        keep_path(self._runner, root, [root + 1 + node for node in path])
        if self._scored is not None:
            kept = sent(torch.tensor([0, *(node + 1 for node in path)]), self._device)
            self._hidden.append(self._scored.index_select(0, kept))

    def take_features(self) -> dict[TargetFeature, Tensor]:
        """What a drafter needs, for the positions since it last asked."""
        if not self._hidden:
            return {}
        states, self._hidden = torch.cat(self._hidden), []
        return {TargetFeature.HIDDEN_STATES: states}

    def rewind(self, length: int) -> None:
        """Keep at most the first `length` positions."""
        self._runner.rewind(min(length, self._runner.length))

    def time_one_step(self, last_token: int, check_cancelled: Callable[[], None], repeats: int = 3) -> float:
        """Median milliseconds of a one-position forward at this point of the text; the cache is unchanged."""
        root = torch.full((1,), last_token, device=self._device)
        length, laps = self._runner.length, []
        for _ in range(repeats):
            check_cancelled()
            watch = Stopwatch(self._device)
            self._runner.forward(root, num_logits=1)
            laps.append(watch.lap())
            self._runner.rewind(length)
        return statistics.median(laps)
