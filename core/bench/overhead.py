"""What a step costs beyond the forwards that it can't do without."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from core.runners.base import Runner
from core.target import prefill
from core.timing import Stopwatch
from core.types import Step

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

_REPEATS = 7


def usual_steps(steps: Sequence[Step]) -> list[Step]:
    """The steps of the draft length that comes up most, drafting ones before plain ones.

    The last is left out, since the end of the text cuts it.
    """
    counted = Counter(step.num_draft_tokens for step in steps[:-1])
    if not counted:
        return []
    usual = max(counted, key=lambda k: (k > 0, counted[k], k))
    return [step for step in steps[:-1] if step.num_draft_tokens == usual]


def overhead(step_ms: Sequence[float], bare_ms: float) -> float:
    """Median step / bare forwards - 1.

    Raises:
        ValueError: no steps, or no time.
    """
    if not step_ms or bare_ms <= 0:
        raise ValueError("An overhead needs steps, and forwards that take time.")
    return statistics.median(step_ms) / bare_ms - 1.0


def runner_of(drafter: Any) -> Runner | None:
    """The runner that a drafter's last run left behind, its kernels and its cache; None where it runs no model."""
    found: Runner | None = getattr(drafter, "runner", None) or getattr(drafter, "_runner", None)
    return found


class BareTimes(NamedTuple):
    """Medians of bare forwards.

    Attributes:
        step_ms: of K one-position forwards of the draft and a (K + 1)-position one of the target.
        cost_coefficient: a one-position forward of the draft / one of the target; None where no model drafts.
    """

    step_ms: float
    cost_coefficient: float | None


def time_bare(
    target: LanguageModel, drafting: Runner | None, num_draft_tokens: int, length: int, capacity: int
) -> BareTimes:
    """Time the forwards of a step, draft and target in turn as in a run.

    Args:
        target: which scores.
        drafting: the draft's runner after a run, of which only a place in its cache is used; None where none drafts.
        num_draft_tokens: K.
        length: positions in the caches before the step.
        capacity: of the target's cache.
    """
    length = max(1, min(length, capacity - num_draft_tokens - 1))
    scoring = target.runner(capacity)
    prefill(scoring, [token % target.vocab_size for token in range(length)], lambda: None)
    start = min(length, drafting.length, drafting.capacity - num_draft_tokens) if drafting is not None else 0
    block = torch.zeros(num_draft_tokens + 1, dtype=torch.int64, device=target.device)
    watch = Stopwatch(target.device)
    drafts, scores, plains = [], [], []
    with torch.inference_mode():
        for _ in range(_REPEATS + 1):
            watch.lap()
            if drafting is not None:
                drafting.rewind(start)
                for _ in range(num_draft_tokens):
                    drafting.forward(block[:1], num_logits=1)
            drafts.append(watch.lap())
            scoring.forward(block, num_logits=num_draft_tokens + 1)
            scores.append(watch.lap())
            scoring.rewind(length)
            scoring.forward(block[:1], num_logits=1)
            plains.append(watch.lap())
            scoring.rewind(length)
    # The first of each warms up.
    step_ms = statistics.median(map(add, drafts[1:], scores[1:]))
    has_draft = drafting is not None and num_draft_tokens > 0
    ratio = statistics.median(drafts[1:]) / num_draft_tokens / statistics.median(plains[1:]) if has_draft else None
    return BareTimes(step_ms, ratio)
