"""The target's part of a step: scores a block, keeps what was accepted, and collects what a drafter wants to see."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.errors import DrafterError
from core.runners.base import FINAL, keep_path, prefill, tree_rows
from core.runners.graphed import GraphedRunner
from core.runners.llama import FusedLlamaRunner
from core.runners.timing import Stopwatch, sent
from core.types import Draft, Feature, TargetFeature, is_chain

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

_QUICK = 50_000_000
"""Most parameters of a model whose forward takes no longer than building its kernels."""


class TargetScorer:
    """The target model with its cache, which between steps holds one position fewer than the text."""

    def __init__(
        self, model: LanguageModel, limit: int, needs: frozenset[Feature] = frozenset(), spare: int = 0
    ) -> None:
        """For texts of up to `limit` positions, with `spare` places in the cache for the branches of a tree.

        `needs` is what a drafter wants to see of each position.
        """
        self._model = model
        self._runner = model.runner(limit, spare=spare)
        self._device = model.device
        _check_layers([each for each in needs if not isinstance(each, TargetFeature)], model)
        self._features: list[Feature] = sorted(needs, key=_layer)
        self._layers = [_layer(feature) for feature in self._features]
        self._states: list[list[Tensor]] = []
        self._scored: list[Tensor] = []

    def prefill(self, ids: Sequence[int], check_cancelled: Callable[[], None]) -> None:
        """Cache the prompt except its last token, whose logits the first step needs."""
        on_output = (lambda output: self._states.append([*output.states])) if self._features else None
        prefill(self._runner, ids[:-1], check_cancelled, on_output, self._layers)

    @property
    def num_captures(self) -> int:
        """CUDA graphs captured so far."""
        return getattr(self._runner, "num_captures", 0)

    def prepare(self, end: int, num_rows: Iterable[int], check_cancelled: Callable[[], None]) -> None:
        """Do each shape's one-time work before timing starts.

        Capture CUDA graphs for texts of up to `end` positions, or, on the CPU, run each of these row counts once: the
        library builds a kernel for each, which takes longer than a small model's forward.
        """
        if isinstance(self._runner, GraphedRunner):
            self._runner.prepare(end, layers=self._layers)
        elif isinstance(self._runner, FusedLlamaRunner) and self._device.type == "cpu":
            if self._model.num_parameters > _QUICK:
                return
            length = self._runner.length
            for count in set(num_rows) - self._model.known_rows:
                if length + count <= self._runner.capacity:
                    check_cancelled()
                    self._runner.forward(torch.zeros(count, dtype=torch.long), num_logits=count)
                    self._runner.rewind(length)
                    self._model.known_rows.add(count)

    def score(self, last_token: int, draft: Draft, parents: Sequence[int]) -> Tensor:
        """Append the newest token of the text, not cached yet, and N drafted ones. Returns (N + 1, V) logits.

        Row 0 follows the newest token, row i + 1 follows node i.
        """
        # A number reaches a device with the kernel that writes it: no copy, which might wait.
        root = torch.full((1,), last_token, device=self._device)
        ids = torch.cat((root, sent(draft.tokens, self._device))) if len(draft) else root
        tree = None if is_chain(parents) else tree_rows(parents, self._runner.length, len(ids))
        output = self._runner.forward(ids, num_logits=len(ids), layers=self._layers, tree=tree)
        self._scored = [*output.states]
        return output.logits

    def keep(self, root: int, path: Sequence[int]) -> None:
        """Keep the position of the text's newest token, `root`, and the accepted nodes of the block after it."""
        keep_path(self._runner, root, [root + 1 + node for node in path])
        if self._scored:
            kept = sent(torch.tensor([0, *(node + 1 for node in path)]), self._device)
            self._states.append([each.index_select(0, kept.to(each.device)) for each in self._scored])

    def take_features(self) -> dict[Feature, Tensor]:
        """What a drafter needs, for the positions since it last asked."""
        states, self._states = self._states, []
        if not states:
            return {}
        return {feature: torch.cat([each[at] for each in states]) for at, feature in enumerate(self._features)}

    def give_back(self, features: dict[Feature, Tensor]) -> None:
        """Return what was taken, in place of what has come since; more may follow."""
        self._states = [[*features.values()]] if features else []

    def rewind(self, length: int) -> None:
        """Keep at most the first `length` positions."""
        self._runner.rewind(min(length, self._runner.length))

    def time_one_step(self, last_token: int, check_cancelled: Callable[[], None]) -> float:
        """Median milliseconds of a one-position forward at this point of the text; the cache is unchanged."""
        root = torch.full((1,), last_token, device=self._device)
        length, laps = self._runner.length, []
        for _ in range(3):
            check_cancelled()
            watch = Stopwatch(self._device)
            self._runner.forward(root, num_logits=1)
            laps.append(watch.lap())
            self._runner.rewind(length)
        return statistics.median(laps)


def _layer(feature: Feature) -> int:
    return FINAL if isinstance(feature, TargetFeature) else feature


def _check_layers(layers: Sequence[int], model: LanguageModel) -> None:
    """Raise DrafterError for layers that the target doesn't have."""
    if not layers:
        return
    count = model.model.config.get_text_config().num_hidden_layers
    if wrong := [layer for layer in layers if not (isinstance(layer, int) and 0 <= layer < count)]:
        raise DrafterError(
            f"The drafter needs the states that enter layer {wrong[0]}, but {model.ref} has layers 0 to {count - 1}. "
            "Fix its code, or choose another target."
        )
