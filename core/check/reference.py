"""The exact laws that samples are held against, from forwards of their own beside the engine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core.drafters.base import Drafter
from core.models.language_model import LanguageModel
from core.sampling import probabilities
from core.target import prefill
from core.types import DraftContext, SamplingParams

_SPARE = 2


class TargetLaws:
    """The target's law after each beginning of a block, scored alone and scored as part of a block."""

    def __init__(
        self,
        target: LanguageModel,
        prompt_ids: Sequence[int],
        num_draft_tokens: int,
        sampling: SamplingParams,
        check_cancelled: Callable[[], None],
    ) -> None:
        """
        Args:
            target: the model.
            prompt_ids: the text that blocks follow.
            num_draft_tokens: K; a block scores K + 1 positions.
            sampling: temperature and filters.
            check_cancelled: raises to give up; called before each forward.
        """
        self._prompt = tuple(prompt_ids)
        self._sampling = sampling
        self._check_cancelled = check_cancelled
        self._vocab_size = target.vocab_size
        self._length = min(num_draft_tokens, target.context_length - len(self._prompt))
        capacity = len(self._prompt) + num_draft_tokens + _SPARE
        self._single, self._block = target.runner(capacity), target.runner(capacity)
        for runner in (self._single, self._block):
            prefill(runner, self._prompt[:-1], check_cancelled)
        self._cached: tuple[int, ...] = ()
        self.rounding = 0.0
        """Most that the two ways of scoring were seen to differ, in total variation, the filters aside."""

    @torch.inference_mode()
    def law(self, block: tuple[int, ...]) -> Tensor:
        """(V,) float64: the law that the engine has to draw from behind the prompt and `block`, at most K tokens.

        It is that of a block's scoring, which is what is verified against. How far plain decoding's is from it is
        noted, because only rounding may lie between the two.
        """
        alone, scored = self._alone(block), self._scored(block)
        plain = SamplingParams(self._sampling.temperature)
        laws = [probabilities(row, plain).double() for row in (alone, scored)]
        self.rounding = max(self.rounding, 0.5 * float((laws[0] - laws[1]).abs().sum()))
        return probabilities(scored, self._sampling).double().cpu()

    def _alone(self, block: tuple[int, ...]) -> Tensor:
        """Token by token, as plain decoding reads."""
        base = len(self._prompt) - 1
        same = 0
        while same < min(len(block), len(self._cached)) and block[same] == self._cached[same]:
            same += 1
        # The last position is read again where it is there already: its logits are wanted.
        keep = min(self._single.length, base + min(same + 1, len(block)))
        self._single.rewind(keep)
        text = (*self._prompt, *block)
        for at in range(keep, len(text)):
            self._check_cancelled()
            logits = self._single.forward(torch.tensor(text[at : at + 1]), num_logits=1).logits
        self._cached = block
        return logits[0, : self._vocab_size].float()

    def _scored(self, block: tuple[int, ...]) -> Tensor:
        """As a row of K + 1; what stands behind a position does not sway it."""
        self._check_cancelled()
        ids = (self._prompt[-1], *block)
        padded = (*ids, *[ids[-1]] * (self._length + 1 - len(ids)))
        rows = self._block.forward(torch.tensor(padded), num_logits=len(padded)).logits
        row = rows[len(block), : self._vocab_size].float()
        self._block.rewind(len(self._prompt) - 1)
        return row


class DraftLaws:
    """What a drafter would propose next, for a look only: nothing that is tested hangs on it."""

    def __init__(
        self,
        drafter: Drafter,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        vocab_size: int,
        check_cancelled: Callable[[], None],
    ) -> None:
        self._drafter = drafter
        self._prompt = list(prompt_ids)
        self._sampling = sampling
        self._vocab_size = vocab_size
        self._check_cancelled = check_cancelled
        self._generator = torch.Generator().manual_seed(0)
        drafter.start(torch.tensor(self._prompt))

    @torch.inference_mode()
    def law(self, block: tuple[int, ...]) -> Tensor | None:
        """(V,) float64: its law behind the prompt and `block`; None where it proposes nothing."""
        law = None
        # From the prompt on: a drafter takes what it has read for the beginning of what it is asked about.
        for length in range(len(block) + 1):
            law = self._next([*self._prompt, *block[:length]])
        return law

    def _next(self, ids: list[int]) -> Tensor | None:
        draft = self._drafter.propose(
            DraftContext(
                ids=ids,
                num_draft_tokens=1,
                sampling=self._sampling,
                generator=self._generator,
                vocab_size=self._vocab_size,
                check_cancelled=self._check_cancelled,
            )
        )
        if not len(draft):
            return None
        if draft.probs is not None:
            return draft.probs[0].double().cpu()
        law = torch.zeros(self._vocab_size, dtype=torch.float64)
        law[int(draft.tokens[0])] = 1.0
        return law
