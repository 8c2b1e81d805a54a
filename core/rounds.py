"""One round of drafting and testing: the block before its verdict, and what came of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.errors import DrafterError
from core.runners.base import ForwardOutput, Runner
from core.runners.timing import StepClock, Stopwatch
from core.types import Draft, SamplingParams, TargetFeature, Verification

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


@dataclass(slots=True, eq=False)
class Block:
    """A draft before its verdict, with what it was drafted under."""

    wanted: int
    sampling: SamplingParams
    draft: Draft
    clock: StepClock


@dataclass(slots=True, eq=False)
class Round:
    """What one round of drafting and testing came to, still with its tensors."""

    draft: Draft
    target_probs: Tensor  # (K + 1, V)
    outcome: Verification
    temperature: float
    draft_ms: float
    verify_ms: float
    sample_ms: float
    total_ms: float


def check_draft(draft: Draft, most: int, vocab_size: int, name: str) -> None:
    """Refuse what can't be tested, before the caches see it.

    Args:
        most: how many tokens were asked for.
        name: of the drafter, for the sentence.

    Raises:
        DrafterError: too many tokens, a tree, an id that isn't there, or distributions of another shape.
    """
    tokens = draft.tokens.tolist()
    count = len(tokens)
    if not count:
        return
    if count > most:
        raise DrafterError(f"{name} proposed {count} tokens where {most} were asked for. Mend its code.")
    if draft.parents.tolist() != list(range(-1, count - 1)):
        raise DrafterError(f"{name} proposed a tree, and only chains can be tested yet. Mend its code.")
    if not all(0 <= token < vocab_size for token in tokens):
        raise DrafterError(f"{name} proposed an id outside 0 to {vocab_size - 1}. Mend its code.")
    if draft.probs is not None and tuple(draft.probs.shape) != (count, vocab_size):
        shape = tuple(draft.probs.shape)
        raise DrafterError(f"{name} gave distributions of shape {shape}, not {(count, vocab_size)}. Mend its code.")


@torch.inference_mode()
def figures(done: Round) -> dict[str, tuple[float, ...]]:
    """Per drafted position, for the log: p and q of the drafted id, min(1, p / q), and the sum of min(p, q)."""
    count = len(done.draft)
    if count == 0:
        return {"draft_probs": (), "target_probs": (), "acceptance_probs": (), "expected_acceptance": ()}
    tokens = done.draft.tokens.to(done.target_probs.device).unsqueeze(1)
    target_rows = done.target_probs[:count]
    p = target_rows.gather(1, tokens).squeeze(1)
    if done.draft.probs is None:
        q, overlap = torch.ones_like(p), p
    else:
        q = done.draft.probs.gather(1, tokens).squeeze(1)
        overlap = torch.minimum(target_rows, done.draft.probs).sum(-1)
    return {
        "draft_probs": tuple(q.tolist()),
        "target_probs": tuple(p.tolist()),
        "acceptance_probs": tuple((p / q).clamp(max=1.0).tolist()),
        "expected_acceptance": tuple(overlap.clamp(max=1.0).tolist()),
    }
