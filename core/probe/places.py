"""Two models' laws over a text, compared place by place, a few places at a time so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from core.errors import GenerationError
from core.models.language_model import LanguageModel
from core.runners.base import Runner
from core.sampling import probabilities
from core.target import prefill
from core.theory.columns import Array
from core.types import SamplingParams

_MOST_LOGITS = 4_194_304
"""Logits of one model that are held at once: 16 MB of float32."""

_MOST_ROWS = 256


@dataclass(frozen=True, slots=True)
class Places:
    """Figures of the places of one text, in order, (m,) each. p is the target's law, q the draft's.

    Attributes:
        overlap: sum(min(p, q)) = 1 - TV.
        kept: min(1, q / p) of the token that the text has there.
        kl_target_draft, kl_draft_target: in nats; infinite where one law excludes what the other may say.
        target_entropy, draft_entropy: in nats.
        same_top: 1 where both have the same likeliest token.
    """

    overlap: Array
    kept: Array
    kl_target_draft: Array
    kl_draft_target: Array
    target_entropy: Array
    draft_entropy: Array
    same_top: Array

    def __len__(self) -> int:
        return len(self.overlap)


def compare_over(
    target: LanguageModel,
    draft: LanguageModel,
    ids: Sequence[int],
    first: int,
    sampling: SamplingParams,
    check_cancelled: Callable[[], None] = lambda: None,
    *,
    most_rows: int = _MOST_ROWS,
) -> Places:
    """Both models' laws of the tokens `ids[first:]`, each given all the tokens before it.

    Args:
        ids: at least two, no more than both contexts hold.
        first: index of the first token that counts, 1 or more.
        sampling: what both laws go through, as in a run.
        check_cancelled: raises to give up.
        most_rows: places at a time, at most.
    """
    size = max(1, min(most_rows, _MOST_LOGITS // max(1, target.vocab_size)))
    # The draft's own head and products, as when it drafts.
    runners = target.runner(len(ids)), draft.runner(len(ids), drafting=True, quantise=True)
    readable = next((at for at, token in enumerate(ids) if token >= draft.vocab_size), len(ids))
    pieces = []
    with torch.inference_mode():
        for runner in runners:
            prefill(runner, ids[: min(first - 1, readable)], check_cancelled)
        for start in range(first - 1, len(ids) - 1, size):
            check_cancelled()
            stop = min(start + size, len(ids) - 1)
            target_logits = _logits(runners[0], ids[start:stop])[:, : target.vocab_size]
            tokens = torch.tensor(ids[start + 1 : stop + 1])
            if stop > readable:
                # An id that is not in its table ends what a draft can read; the target goes on alone.
                pieces.append(_unread(len(tokens)))
                continue
            limit = min(target.vocab_size, draft.vocab_size) if draft.draft_ids is None else len(draft.draft_ids)
            draft_logits = _logits(runners[1], ids[start:stop])[:, :limit]
            pieces.append(
                compare(probabilities(target_logits, sampling), probabilities(draft_logits, sampling), tokens,
                        draft.draft_ids)
            )  # fmt: skip
    return joined(pieces)


def _logits(runner: Runner, ids: Sequence[int]) -> Tensor:
    return runner.forward(torch.tensor(ids), num_logits=len(ids)).logits


def compare(target_probs: Tensor, draft_probs: Tensor, tokens: Tensor, draft_ids: Tensor | None = None) -> Places:
    """Compare laws.

    Args:
        target_probs: (n, V).
        draft_probs: (n, R), of `draft_ids`, or of the first R ids where that is None; all others have probability 0.
        tokens: (n,) ids that the text has there.
        draft_ids: (R,).

    Raises:
        GenerationError: laws that hold NaN.
    """
    device = target_probs.device
    draft_probs, tokens = draft_probs.to(device), tokens.to(device).unsqueeze(1)
    columns = torch.arange(draft_probs.shape[1]) if draft_ids is None else draft_ids
    columns = columns.to(device)
    shared = target_probs[:, : len(columns)] if draft_ids is None else target_probs[:, columns]
    target_entropy, draft_entropy = _entropy(target_probs), _entropy(draft_probs)
    outside = target_probs.sum(-1) - shared.sum(-1) > 1e-6
    cross = -torch.where(shared > 0, shared * draft_probs.log(), 0.0).sum(-1)
    reverse = -torch.where(draft_probs > 0, draft_probs * shared.log(), 0.0).sum(-1)
    p = target_probs.gather(1, tokens).squeeze(1)
    # Where in the draft's columns the text's token stands; q is 0 where it stands nowhere.
    q = torch.where(columns == tokens, draft_probs, 0.0).sum(-1)
    found = {
        "overlap": torch.minimum(shared, draft_probs).sum(-1).clamp(max=1.0),
        "kept": torch.where(p > 0, (q / p).clamp(max=1.0), 0.0),
        "kl_target_draft": torch.where(outside, torch.inf, cross - target_entropy).clamp(min=0.0),
        "kl_draft_target": (reverse - draft_entropy).clamp(min=0.0),
        "target_entropy": target_entropy,
        "draft_entropy": draft_entropy,
        "same_top": (target_probs.argmax(-1) == columns[draft_probs.argmax(-1)]).float(),
    }
    table = torch.stack(list(found.values())).cpu().double().numpy()
    if not np.isfinite(table[0]).all():
        raise GenerationError("A model returned numbers that can't be compared (NaN). Try float32.")
    return Places(*table)


def _entropy(probs: Tensor) -> Tensor:
    """(n,) in nats."""
    return -torch.where(probs > 0, probs * probs.log(), 0.0).sum(-1)


def _unread(count: int) -> Places:
    nothing, never = np.zeros(count), np.full(count, np.inf)
    return Places(nothing, nothing, never, never, nothing, nothing, nothing)


def joined(pieces: Sequence[Places]) -> Places:
    """Pieces of one text behind each other."""
    names = [item.name for item in fields(Places)]
    return Places(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in names))
