"""Blocks that are still to be looked at for the inspector, put off while a run goes at full speed."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from core.capture import capture
from core.copy_room import CopyRoom
from core.rounds import Round
from core.text import TokenTexts
from core.types import Inspected, TokenKind, Verification

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
