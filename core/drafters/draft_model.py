"""Drafting with a smaller model of the same vocabulary (Leviathan et al., 2211.17192; Chen et al., 2302.01318), or
with the target itself in int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from core.drafters.base import DrafterSetup, chain, empty_draft
from core.drafters.registry import DraftModelOptions, NoOptions
from core.errors import SettingsError
from core.runners.base import PREFILL_CHUNK, Runner, prefill
from core.runners.graphed import Draws, GraphedRunner
from core.runners.llama import FusedLlamaRunner
from core.runners.timing import sent
from core.sampling import draw, draw_gumbel, draw_uniforms, for_device, is_plain, probabilities
from core.settings import SamplingParams
from core.types import Draft, DraftContext, TargetFeature, Verification

_TRIAL_CONTEXT = 64
"""Tokens of the text that a draft on trial reads. With 16, good drafts predicted so poorly that they were given up."""


class DraftModelDrafter:
    """Samples K tokens in a row from a draft model, whose cache is kept and rewound like the target's."""

    needs: frozenset[TargetFeature] = frozenset()
    _spare = 0
    """Places in the cache beyond the text's."""
    _runner: Runner
    """The current text's, from `start` on."""

    def __init__(self, setup: DrafterSetup, options: DraftModelOptions | None = None) -> None:
        """Raises:
        SettingsError: the setup has no draft model.
        """
        if setup.draft is None:
            raise SettingsError("Drafting with a model needs a draft model. Choose one.")
        self.model = setup.draft
        self._options = options or DraftModelOptions()
        self._check_cancelled = setup.check_cancelled
        self._capacity = min(setup.capacity or self.model.context_length, self.model.context_length)
        self._num_committed = 0
        self._num_skipped = 0
        self._is_lost = False
        self._logits: list[Tensor] = []
        """Of the last greedy block's tokens, if their memory isn't reused: for its distributions at temperature 1."""

    def choose_kernels(self) -> None:
        """Make the weights that drafting uses: what is fastest on this machine may have to be measured first."""
        if (weights := self.model.fused_weights) is not None:
            weights.draft_products(is_quantised=self._options.int8)
            weights.draft_head(self.model.draft_ids, is_quantised=self._options.int8)

    def start(self, prompt: Tensor, *, is_trial: bool = False) -> None:
        """Begin a text; in a trial only its end is read, until `read_all`."""
        self._runner = self.model.runner(self._capacity, drafting=True, quantise=self._options.int8, spare=self._spare)
        self._num_skipped = max(0, len(prompt) - _TRIAL_CONTEXT) if is_trial else 0
        prompt = prompt[self._num_skipped :]
        self._num_committed = int(prompt.shape[0])
        self._is_lost = False
        if self._room > 0 and not self._lacks(prompt):
            prefill(self._runner, prompt[:-1].tolist(), self._check_cancelled)

    @property
    def has_read_all(self) -> bool:
        """Whether no part of the text was left out."""
        return not self._num_skipped

    def read_all(self, ids: Sequence[int]) -> None:
        """End the trial: read the whole text but its last token."""
        self._num_skipped = 0
        self._runner.rewind(0)
        if not self._lacks(torch.tensor(ids)):
            prefill(self._runner, ids[: min(len(ids), self._capacity) - 1], self._check_cancelled)

    def propose(self, context: DraftContext) -> Draft:
        pending = self._unread(context)
        # Beyond its own context the draft proposes nothing; the target continues alone.
        count = min(context.num_draft_tokens, self._room)
        if pending is None or count <= 0:
            return empty_draft()
        uniforms = None if context.gumbel else draw_uniforms(count, context.generator)
        self._logits = []
        block = self._whole_block(pending, context, uniforms)
        if block is None:
            block = self._token_by_token(pending, context, count, uniforms)
        tokens, rows = block
        draft = chain(tokens, over_vocabulary(rows, self.model.draft_ids, context.vocab_size))
        if not self._logits:
            return draft
        return replace(draft, raw_probs=partial(self._raw_probs, self._logits, context.vocab_size))

    def _raw_probs(self, logits: Sequence[Tensor], vocab_size: int) -> Tensor:
        """(N, V) at temperature 1, from each node's logits (R,)."""
        rows = torch.softmax(torch.stack([*logits]).float(), -1)
        return over_vocabulary(rows, self.model.draft_ids, vocab_size)

    @property
    def _room(self) -> int:
        """How many tokens in a row the draft can propose after the committed ones, within its context."""
        return self._capacity - self._num_committed + 1

    def _unread(self, context: DraftContext) -> Tensor | None:
        """Ids to read next, the last committed one at least; None if the draft can't read the text."""
        runner = self._runner
        if self._num_skipped:
            num_unread = len(context.ids) - self._num_skipped - runner.length
            depth = min(context.num_draft_tokens, context.max_depth)
            is_full = len(context.ids) - self._num_skipped + depth > self._capacity
            if num_unread > _TRIAL_CONTEXT or is_full:
                self._num_skipped = len(context.ids) - min(_TRIAL_CONTEXT, self._capacity // 2)
                runner.rewind(0)
        ids = context.ids[self._num_skipped :] if self._num_skipped else context.ids
        self._num_committed = len(ids)
        # A forward needs a token to read, even if the text hasn't changed since the last proposal; a graph reads two.
        unread = min(2 if isinstance(runner, GraphedRunner) else 1, len(ids))
        runner.rewind(min(runner.length, len(ids) - unread))
        if self._room <= 0 or self._is_lost:
            return None
        pending = torch.tensor(ids[runner.length :])
        if self._lacks(pending):
            return None
        # The first draft step's forward reads all tokens committed since the last proposal.
        if len(ids) - runner.length > PREFILL_CHUNK:
            prefill(runner, ids[:-1], context.check_cancelled)
            pending = torch.tensor(ids[runner.length :])
        return pending

    @property
    def num_captures(self) -> int:
        """CUDA graphs captured so far."""
        return getattr(self._runner, "num_captures", 0)

    def prepare(self, end: int, sampling: SamplingParams, vocab_size: int, *, in_blocks: bool) -> None:
        """Capture the CUDA graphs that drafting will launch, if any, for a text of up to `end` positions.

        `in_blocks`: without Gumbel noise, and without a look at each token.
        """
        if isinstance(self._runner, GraphedRunner):
            draws = Draws(sampling.is_greedy, self._num_proposed(vocab_size), self.model.draft_ids)
            self._runner.prepare(end, draws if in_blocks and is_plain(sampling) else None)

    def _whole_block(
        self, pending: Tensor, context: DraftContext, uniforms: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """The block from one CUDA graph; None if there is no graph, or if drafting may end early."""
        runner, sampling = self._runner, context.sampling
        if not isinstance(runner, GraphedRunner) or context.keep_drafting or uniforms is None or not is_plain(sampling):
            return None
        limit = self._num_proposed(context.vocab_size)
        return runner.draw_block(pending, uniforms, sampling.temperature, limit, self.model.draft_ids)

    def _token_by_token(
        self, pending: Tensor, context: DraftContext, count: int, uniforms: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Tokens (K,), and the distributions (K, R) that they were drawn from."""
        proposed, keep = self.model.draft_ids, context.keep_drafting
        tokens, rows = [], []
        if uniforms is not None:
            uniforms = sent(for_device(uniforms, self.model.device), self.model.device)
        for index in range(count):
            context.check_cancelled()
            uniform = None if uniforms is None else uniforms[index]
            drawn, row, confidence = self._draw(pending, context, len(context.ids) + index, uniform)
            # Indexing with a tensor () would read its value.
            token = drawn if proposed is None else proposed.index_select(0, drawn.view(1))[0]
            tokens.append(token)
            rows.append(row)
            # After the token, which stays: removing an improbable token would distort the distribution.
            if keep is not None and not keep(float(confidence)):
                break
            pending = token.unsqueeze(0)
        return torch.stack(tokens), torch.stack(rows)

    def _draw(
        self, pending: Tensor, context: DraftContext, position: int, uniform: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read `pending`, and draw the token at `position`.

        Returns:
            () index among the logits; the distribution (R,) that it was drawn from; and, if `keep_drafting` needs it,
            its () probability there, at temperature 1 if sampling is greedy.
        """
        runner, sampling, limit = self._runner, context.sampling, self._num_proposed(context.vocab_size)
        is_asked = context.keep_drafting is not None
        can_fuse = is_plain(sampling) and not (is_asked and sampling.is_greedy)
        if isinstance(runner, FusedLlamaRunner) and can_fuse and uniform is not None and uniform.is_floating_point():
            drawn, row, logits = runner.draw_next(pending, uniform, sampling.temperature, limit)
            if sampling.is_greedy:
                self._logits.append(logits)
            return drawn, row, row[drawn] if is_asked else row
        logits = runner.forward(pending, num_logits=1).logits[0, :limit]
        row = probabilities(logits, sampling)
        if sampling.is_greedy:
            if not isinstance(runner, GraphedRunner):
                self._logits.append(logits)
            return row.argmax(-1), row, torch.softmax(logits.float(), -1).max() if is_asked else row
        drawn = draw(row, uniform) if uniform is not None else draw_gumbel(row, self._noise(context, position))
        return drawn, row, row[drawn] if is_asked else row

    def _noise(self, context: DraftContext, position: int) -> Tensor:
        """Gumbel noise (R,) of the ids that the draft can propose."""
        assert context.gumbel is not None
        noise, proposed = context.gumbel(position), self.model.draft_ids
        return (
            noise[: self._num_proposed(context.vocab_size)] if proposed is None else noise.to(proposed.device)[proposed]
        )

    def _num_proposed(self, vocab_size: int) -> int:
        """Number of logits used: a padded head's surplus is left out; a trimmed head's are all used."""
        proposed = self.model.draft_ids
        return min(vocab_size, self.model.vocab_size) if proposed is None else len(proposed)

    def _lacks(self, ids: Tensor) -> bool:
        """Whether the text now holds an id that is missing from the draft's table, so that the draft can't continue."""
        self._is_lost = self._is_lost or int(ids.max()) >= self.model.vocab_size
        return self._is_lost

    def observe(self, outcome: Verification) -> None:
        self._runner.rewind(min(self._runner.length, self._num_committed + outcome.num_accepted))


class SelfDraftDrafter(DraftModelDrafter):
    """Drafts with the target itself, in int8: a quarter of the bytes, and most of its proposals are accepted.

    Where int8 products are not faster, as with very small models, the plain ones are used.
    """

    def __init__(self, setup: DrafterSetup, _options: NoOptions | None = None) -> None:
        """Raises:
        SettingsError: int8 products are not available for this target here.
        """
        target = setup.target
        if target.device.type != "cpu" or target.dtype is not torch.float32:
            raise SettingsError(
                f"Self-draft runs in int8 with a float32 target on the CPU, but {target.ref} is on {target.device} in "
                f"{str(target.dtype).removeprefix('torch.')}. Choose the CPU and float32, or another method."
            )
        super().__init__(replace(setup, draft=target), DraftModelOptions(int8=True))


def over_vocabulary(probs: Tensor, proposed: Tensor | None, vocab_size: int) -> Tensor:
    """(K, V) from (K, R): probability 0 at ids that the draft doesn't propose or doesn't have."""
    if proposed is not None:
        return probs.new_zeros(len(probs), vocab_size).index_copy_(1, proposed, probs)
    missing = vocab_size - probs.shape[-1]
    return functional.pad(probs, (0, missing)) if missing > 0 else probs
