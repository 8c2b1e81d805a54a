"""Drafting with a smaller model of the same vocabulary (Leviathan et al., 2211.17192; Chen et al., 2302.01318)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from core.drafters.base import chain, empty_draft
from core.drafters.registry import DraftModelOptions
from core.rounds import PREFILL_CHUNK, prefill
from core.runners.base import Runner
from core.runners.graphed import GraphedRunner
from core.runners.llama import FusedLlamaRunner
from core.sampling import draw, draw_gumbel, draw_uniforms, for_device, is_plain, probabilities
from core.types import Draft, DraftContext, TargetFeature, Verification

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


class DraftModelDrafter:
    """Samples K tokens in a row from a draft model, whose cache is kept and rewound like the target's.

    Where it is asked after each token whether to go on, it looks at that token's probability, and so waits for the
    device once a token; the token is in the block whatever the answer. Else nothing is looked at.
    """

    needs: frozenset[TargetFeature] = frozenset()

    def __init__(
        self,
        model: LanguageModel,
        options: DraftModelOptions | None = None,
        *,
        capacity: int | None = None,
        check_cancelled: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            model: the draft.
            options: see there.
            capacity: positions that its cache gets, at most its context; the whole context if None.
            check_cancelled: raises to abandon `start` between two forwards over a long prompt.
        """
        self._model = model
        self._options = options or DraftModelOptions()
        self._check_cancelled = check_cancelled
        self._capacity = min(capacity or model.context_length, model.context_length)
        self._runner: Runner | None = None
        self._num_committed = 0
        self._is_lost = False

    @property
    def model(self) -> LanguageModel:
        """The model that drafts."""
        return self._model

    def start(self, prompt: Tensor) -> None:
        self._runner = self._model.runner(self._capacity, drafting=True, quantise=self._options.int8)
        self._num_committed = int(prompt.shape[0])
        self._is_lost = False
        if self._lacks(prompt):
            return
        known = prompt[: min(self._num_committed, self._capacity) - 1].tolist()
        prefill(self._runner, known, self._check_cancelled)

    def propose(self, context: DraftContext) -> Draft:
        runner = self._runner
        assert runner is not None, "propose() before start()"
        self._num_committed = len(context.ids)
        # A forward needs a token to read, also when the same text is proposed for again.
        runner.rewind(min(runner.length, len(context.ids) - 1))
        # Beyond its own context the draft has nothing to say; the target goes on alone.
        count = min(context.num_draft_tokens, runner.capacity - len(context.ids) + 1)
        pending = torch.tensor(context.ids[runner.length :])
        if count <= 0 or self._is_lost or self._lacks(pending):
            return empty_draft()
        # All that was committed since the last proposal: one token, or two after a fully accepted block, or
        # whatever plain steps have added meanwhile. It is read by the first draft step's own forward.
        if len(context.ids) - runner.length > PREFILL_CHUNK:
            prefill(runner, context.ids[:-1], context.check_cancelled)
            pending = torch.tensor(context.ids[runner.length :])
        uniforms = None if context.gumbel else draw_uniforms(count, _generator(context))
        proposed = self._model.draft_ids  # None: every id
        keep = context.keep_drafting
        if isinstance(runner, GraphedRunner) and keep is None and uniforms is not None and is_plain(context.sampling):
            temperature, limit = context.sampling.temperature, self._num_proposed(context)
            block = runner.draw_block(pending, uniforms, temperature, limit, proposed)
            if block is not None:
                return chain(block[0], _over_vocabulary(block[1], proposed, context.vocab_size))
        if keep is not None and context.sampling.is_greedy:
            return self._likeliest_chain(pending, context, count, keep)
        tokens, rows = [], []
        if uniforms is not None:
            uniforms = for_device(uniforms, self._model.device).to(self._model.device)
        for index in range(count):
            context.check_cancelled()
            if uniforms is None:
                drawn, row = self._next_of_noise(pending, context, len(context.ids) + index)
            else:
                drawn, row = self._next(pending, context, uniforms[index])
            token = drawn if proposed is None else proposed[drawn]
            tokens.append(token)
            rows.append(row)
            # Behind the token, which stays: to take back what came out improbable would bend the law.
            if keep is not None and not keep(float(row[drawn])):
                break
            pending = token.unsqueeze(0)
        return chain(torch.stack(tokens), _over_vocabulary(torch.stack(rows), proposed, context.vocab_size))

    def _next(self, pending: Tensor, context: DraftContext, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Read `pending`, and draw what follows: its () index among the logits, and their law."""
        runner, sampling = self._runner, context.sampling
        if isinstance(runner, FusedLlamaRunner) and is_plain(sampling) and uniform.is_floating_point():
            return runner.draw_next(pending, uniform, sampling.temperature, self._num_proposed(context))
        row = self._law(pending, context)
        return draw(row, uniform), row

    def _next_of_noise(self, pending: Tensor, context: DraftContext, position: int) -> tuple[Tensor, Tensor]:
        row = self._law(pending, context)
        assert context.gumbel is not None
        noise = context.gumbel(position).to(row.device)
        proposed = self._model.draft_ids
        return draw_gumbel(row, noise[: len(row)] if proposed is None else noise[proposed]), row

    def _likeliest_chain(
        self, pending: Tensor, context: DraftContext, count: int, keep: Callable[[float], bool]
    ) -> Draft:
        """At temperature 0, asked after each token whether to go on, by the probability that it has at temperature 1.

        The laws are made for all tokens at once.
        """
        proposed, found, sureness = self._model.draft_ids, [], []
        for _ in range(count):
            context.check_cancelled()
            best, probability = self._likeliest(pending, context)
            found.append(best)
            sureness.append(probability)
            if not keep(float(probability)):
                break
            pending = (best if proposed is None else proposed[best]).unsqueeze(0)
        indices = torch.stack(found)
        # 0 times a probability that is no number makes all of its law so, as `probabilities` does.
        zero = torch.stack(sureness).unsqueeze(1) * 0.0
        rows = zero.repeat(1, self._num_proposed(context)).scatter_(1, indices.unsqueeze(1), zero + 1.0)
        tokens = indices if proposed is None else proposed[indices]
        return chain(tokens, _over_vocabulary(rows, proposed, context.vocab_size))

    def _likeliest(self, pending: Tensor, context: DraftContext) -> tuple[Tensor, Tensor]:
        if isinstance(self._runner, FusedLlamaRunner):
            return self._runner.draw_likeliest(pending, self._num_proposed(context))
        logits = self._logits(pending, context).float()
        return logits.argmax(-1), torch.softmax(logits, -1).max()

    def _law(self, pending: Tensor, context: DraftContext) -> Tensor:
        return probabilities(self._logits(pending, context), context.sampling)

    def _logits(self, pending: Tensor, context: DraftContext) -> Tensor:
        assert self._runner is not None, "propose() before start()"
        return self._runner.forward(pending, num_logits=1).logits[0, : self._num_proposed(context)]

    def _num_proposed(self, context: DraftContext) -> int:
        """Logits that count: of all that a padded head gives, or of a trimmed head all."""
        proposed = self._model.draft_ids
        return min(context.vocab_size, self._model.vocab_size) if proposed is None else len(proposed)

    def _lacks(self, ids: Tensor) -> bool:
        """Whether the text now holds an id that is not in the draft's table, which then can't read on."""
        self._is_lost = self._is_lost or int(ids.max()) >= self._model.vocab_size
        return self._is_lost

    def observe(self, outcome: Verification) -> None:
        assert self._runner is not None, "observe() before start()"
        self._runner.rewind(min(self._runner.length, self._num_committed + outcome.num_accepted))


def _generator(context: DraftContext) -> torch.Generator:
    assert context.generator is not None, "rejection coupling needs a generator"
    return context.generator


def _over_vocabulary(probs: Tensor, proposed: Tensor | None, vocab_size: int) -> Tensor:
    """(K, V) from (K, R): probability 0 at the ids that a draft does not propose, or that its table lacks."""
    if proposed is not None:
        return probs.new_zeros(len(probs), vocab_size).index_copy_(1, proposed, probs)
    missing = vocab_size - probs.shape[-1]
    return functional.pad(probs, (0, missing)) if missing > 0 else probs
