"""Blocks that are still to be looked at for the inspector, put off while a run goes at full speed."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from core.evidence import LEAST_LISTED, MAX_LISTED, PositionEvidence
from core.rounds import Round
from core.text import TokenTexts
from core.types import Inspected, TokenKind, Verification
from core.verify import residual

Texts = Callable[[Sequence[int]], tuple[str, ...]]

_GROUP = 64
"""Neighbouring ids that are first looked at by their largest probability alone."""


@torch.inference_mode()
def capture(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, outcome: Verification, texts: Texts
) -> tuple[PositionEvidence, ...]:
    """The evidence of a block: worked out for all its places at once, and brought to the CPU once.

    Args:
        draft_tokens: (K,) drafted ids.
        draft_probs: (K, V) the distributions that they were drawn from; None for a one-hot at each.
        target_probs: (K, V) the target's, or (K + 1, V) with that of the bonus token's place.
        outcome: the block's verdict.
        texts: ids to what is shown of them.
    """
    num_drafted, at = draft_tokens.shape[0], outcome.num_accepted
    draft_tokens = draft_tokens.to(target_probs.device)
    tokens = draft_tokens.unsqueeze(1)
    if draft_probs is None:
        draft = torch.zeros_like(target_probs[:num_drafted]).scatter_(1, tokens, 1.0)
    else:
        draft = draft_probs
    law = _residual_law(draft_tokens, draft_probs, target_probs, outcome)
    ids, num_listed = _likeliest(tokens, draft, target_probs, law, outcome)
    drafted_ids, surplus = ids[:num_drafted], target_probs.shape[0] - num_drafted
    residual_mass = (target_probs[:num_drafted] - draft).clamp_(min=0.0).sum(-1, keepdim=True)
    residual_part = torch.zeros(len(ids), ids.shape[1] + 1, device=ids.device)
    if law is not None:
        residual_part[at] = _split(law.unsqueeze(0), ids[at].unsqueeze(0))[0]
    table = torch.cat(
        (
            ids.float(),  # Whole numbers up to 2^24 stay what they are.
            _split(target_probs, ids),
            functional.pad(_split(draft, drafted_ids), (0, 0, 0, surplus)),
            residual_part,
            _entropy(target_probs),
            functional.pad(_entropy(draft), (0, 0, 0, surplus)),
            functional.pad(residual_mass, (0, 0, 0, surplus)),
            num_listed,
        ),
        dim=1,
    )
    return tuple(
        _place(
            row,
            ids.shape[1],
            has_draft=slot < num_drafted,
            has_residual=law is not None and slot == at,
            texts=texts,
        )
        for slot, row in enumerate(table.tolist())
    )


def _likeliest(
    tokens: Tensor, draft: Tensor, target_probs: Tensor, law: Tensor | None, outcome: Verification
) -> tuple[Tensor, Tensor]:
    """(N, at most MAX_LISTED) ids, likeliest first, and (N, 1) how many of them are to be listed."""
    num_drafted, at = draft.shape[0], outcome.num_accepted
    num_places, vocab_size = target_probs.shape
    score = functional.pad(target_probs, (0, -vocab_size % _GROUP), value=-1.0)
    real = score[:, :vocab_size]
    torch.maximum(real[:num_drafted], draft, out=real[:num_drafted])
    if law is not None:
        torch.maximum(real[at], law, out=real[at])
    # What happened here is shown, however unlikely it was.
    real[:num_drafted].scatter_(1, tokens, torch.inf)
    if at < num_places:
        real[at, outcome.next_token] = torch.inf
    # The n largest of a row lie in n groups at most, and those have the largest maxima: searching there is much less
    # work than searching the row.
    count = min(MAX_LISTED, vocab_size)
    groups = score.view(num_places, -1, _GROUP)
    best = groups.amax(-1).topk(min(count, groups.shape[1]), sorted=False).indices
    found = groups.gather(1, best.unsqueeze(-1).expand(-1, -1, _GROUP)).flatten(1).topk(count, sorted=False)
    ids = best.gather(1, found.indices // _GROUP) * _GROUP + found.indices % _GROUP
    larger = target_probs.gather(1, ids)
    larger[:num_drafted] = torch.maximum(larger[:num_drafted], draft.gather(1, ids[:num_drafted]))
    is_listed = found.values >= LEAST_LISTED
    order = larger.masked_fill(~is_listed, -1.0).argsort(1, descending=True)
    return ids.gather(1, order), is_listed.sum(1, keepdim=True).float()


def _split(probs: Tensor, ids: Tensor) -> Tensor:
    """(N, L + 1): of (N, V), the probabilities of the ids (N, L), and the sum of all others."""
    # Added up by itself: taken as the difference to 1, a small tail would be mostly rounding.
    rest = probs.scatter(1, ids, 0.0).sum(-1, keepdim=True)
    return torch.cat((probs.gather(1, ids), rest), dim=1)


def _residual_law(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, outcome: Verification
) -> Tensor | None:
    """(V,) what the correction was drawn from; None where there is none, or where the coupling draws from none."""
    at = outcome.num_accepted
    is_correction = outcome.next_kind is TokenKind.CORRECTION and at < draft_tokens.shape[0]
    if not is_correction or outcome.next_uniform is None:
        return None
    weights = residual(target_probs[at], None if draft_probs is None else draft_probs[at], draft_tokens[at])
    return weights / weights.sum()


def _entropy(probs: Tensor) -> Tensor:
    """(N, 1) entropies of (N, V) in nats; an impossible token adds 0."""
    return -(probs.clamp_min(torch.finfo(probs.dtype).tiny).log_().mul_(probs)).sum(-1, keepdim=True)


def _place(row: list[float], width: int, *, has_draft: bool, has_residual: bool, texts: Texts) -> PositionEvidence:
    target_entropy, draft_entropy, residual_mass, num_listed = row[-4:]
    count = int(num_listed)
    ids = array("i", map(int, row[:count]))

    def split(start: int) -> tuple[array[float], float]:
        return array("f", row[start : start + count]), sum(row[start + count : start + width + 1])

    target_probs, target_tail = split(width)
    draft_probs, draft_tail = split(2 * width + 1)
    residual_probs, residual_tail = split(3 * width + 2)
    return PositionEvidence(
        ids=ids,
        texts=texts(ids),
        target_probs=target_probs,
        target_tail=target_tail,
        target_entropy=max(0.0, target_entropy),
        draft_probs=draft_probs if has_draft else None,
        draft_tail=draft_tail if has_draft else None,
        draft_entropy=max(0.0, draft_entropy) if has_draft else None,
        residual_mass=min(1.0, residual_mass) if has_draft else None,
        residual_probs=residual_probs if has_residual else None,
        residual_tail=residual_tail if has_residual else None,
    )


class CopyRoom:
    """Copies of tensors in one piece of memory, which is used from its front again when all are given back.

    Each copy in memory of its own would have the system hand out pages at every step, ten of them with the embedded
    pair, and leave 15 MB more of the heap behind a window's runs. Steps take the same time either way.
    """

    def __init__(self, num_bytes: int) -> None:
        """
        Args:
            num_bytes: how much there is to be; where the system doesn't give that, there is none, and each copy is made
                in new memory.
        """
        try:
            self._memory = torch.empty(num_bytes // torch.float32.itemsize)
            self._memory.zero_()  # Its pages are handed out now.
        except RuntimeError:
            self._memory = torch.empty(0)
        self._next = 0
        self._held = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy: in this memory if it has room, which it has for float32 of the CPU alone; else in new memory."""
        self._held += 1
        start, end = self._next, self._next + tensor.numel()
        if tensor.device.type != "cpu" or tensor.dtype is not torch.float32 or end > self._memory.numel():
            return tensor.clone()
        self._next = end
        return self._memory[start:end].view(tensor.shape).copy_(tensor)

    def give_back(self) -> None:
        """A copy, any of them, is not looked at any more."""
        self._held -= 1
        if self._held == 0:
            self._next = 0


MAX_BYTES = 256 * 1024 * 1024
"""Of distributions that wait; beyond it the oldest block is looked at between two steps."""

_MOST_READY = 64 * 1024 * 1024
"""Of memory that is taken before the first step."""
_ROWS_A_TOKEN = 3
"""Distributions that wait for each token of the text: a draft of four, half of it accepted, leaves nine for three."""


class _Block(NamedTuple):
    step: int
    draft_tokens: Tensor
    draft_probs: Tensor | None
    target_probs: Tensor
    outcome: Verification


class EvidenceBacklog:
    """Copies each block's distributions, and works their evidence out when it is asked to.

    With a small model on the CPU, working it out between two steps takes a fifth of a step's time, and puts what the
    next forward needs out of the caches. Copying takes a fiftieth.
    """

    def __init__(self, tokenizer: Any, max_bytes: int = MAX_BYTES, *, num_tokens: int = 0, vocab_size: int = 0) -> None:
        """
        Args:
            tokenizer: for the listed tokens' texts.
            max_bytes: from which it is full.
            num_tokens: how long the text may become; memory is taken for so many, within reason.
            vocab_size: V.
        """
        self._texts = TokenTexts(tokenizer)
        self._max_bytes = max_bytes
        row = vocab_size * torch.float32.itemsize
        self._room = CopyRoom(min(_MOST_READY, max_bytes, _ROWS_A_TOKEN * num_tokens * row))
        self._num_bytes = 0
        self._blocks: deque[_Block] = deque()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def is_full(self) -> bool:
        """Whether more waits than should."""
        return self._num_bytes > self._max_bytes

    def put(self, index: int, done: Round, num_drafted: int, num_emitted: int) -> None:
        """Keep what a round leaves to be looked at.

        Args:
            index: of its step.
            done: what came of the round.
            num_drafted: places of the block that an end within it has left.
            num_emitted: tokens that it added to the text.
        """
        outcome, probs = done.outcome, done.draft.probs
        has_bonus = outcome.next_kind is TokenKind.BONUS and num_emitted > outcome.num_accepted
        # Copied here, where nothing is timed: if a step's own tensors were kept, the next one would have to write to
        # memory that was never used, which is slower. And a drafter may use its buffers again.
        block = _Block(
            index,
            done.draft.tokens[:num_drafted].clone(),
            None if probs is None else self._room.copy(probs[:num_drafted]),
            self._room.copy(done.target_probs[: num_drafted + has_bonus]),
            outcome,
        )
        self._blocks.append(block)
        self._num_bytes += _num_bytes(block)

    def look(self) -> Inspected:
        """Work out the evidence of the block that has waited longest.

        Raises:
            IndexError: none waits.
        """
        block = self._blocks.popleft()
        self._num_bytes -= _num_bytes(block)
        step, tokens, draft_probs, target_probs, outcome = block
        evidence = capture(tokens, draft_probs, target_probs, outcome, self._texts)
        for probs in (draft_probs, target_probs):
            if probs is not None:
                self._room.give_back()
        return Inspected(step, evidence)


def _num_bytes(block: _Block) -> int:
    return sum(probs.nbytes for probs in (block.draft_probs, block.target_probs) if probs is not None)
