"""One round of decoding: draft a block, score and verify it, and rewind both caches to what was accepted.

On a device that runs asynchronously, verification waits for it once, when the verdict is read. Drafting waits where it
reads values: at each level of a tree, and after each token if its probability decides whether to continue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.controls import RunControls
from core.draft_length import DraftLength
from core.drafters.base import (
    Drafter,
    blaming,
    check_distributions,
    check_draft,
    check_types,
    empty_draft,
    is_own,
)
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.length_policy import BlockPlan
from core.models.language_model import LanguageModel
from core.runners.scoring import TargetScorer
from core.runners.timing import StepClock, is_asynchronous, sent
from core.sampling import (
    draw_gumbel,
    draw_uniforms,
    for_device,
    gumbel_noise,
    has_double,
    probabilities,
    seeded_generator,
)
from core.settings import MAX_DRAFT_TOKENS, Coupling, LengthPolicy, SamplingParams, VerificationRule
from core.types import Draft, DraftContext, Verification, depths_of, is_chain
from core.verify import verify_block
from core.verify.checks import check_finite, normalised
from core.verify.on_device import NodeProbs, figures_of, verify_gumbel_on_device, verify_on_device
from core.verify.other_rules import verify_as_block, verify_gumbel, verify_typically

USUAL_ROWS = 9
"""Rows of the largest block to prepare for."""


@dataclass(slots=True, eq=False)
class Round:
    """A round with its tensors.

    Attributes:
        wanted: how many tokens were requested.
        max_depth: how many of them in a row.
        sampling: the parameters of this round.
        draft: what was proposed.
        parents: the draft's, on the host.
        clock: times its three parts: draft, verify, sample.
        uniforms: (wanted + 1,) the draws of the verification; None under Gumbel coupling.
        draws: the same, on a target's device that runs asynchronously.
        length: K or the policy that planned it.
    """

    wanted: int
    max_depth: int
    sampling: SamplingParams
    draft: Draft
    parents: tuple[int, ...]
    clock: StepClock
    uniforms: Tensor | None
    draws: Tensor | None
    length: DraftLength | None = None


@dataclass(slots=True, eq=False)
class Verified:
    """The end of a round: the target's distributions (N + 1, V), the verdict, and the figures of each node.

    `raw_probs` are the distributions at temperature 1, if the evidence of a greedy round needs them.
    """

    target_probs: Tensor
    outcome: Verification
    figures: NodeProbs
    raw_probs: Tensor | None


class Rounds:
    """The rounds of one text.

    Attributes:
        scorer: the target, with its cache.
        drafts_trees: whether drafts may branch.
        silence_ms: of `core.runners.timing.watching_for_silence`, while one watches.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter | None,
        controls: RunControls,
        limit: int,
        *,
        seed: int,
        coupling: Coupling,
        rule: VerificationRule,
        inspect: bool,
    ) -> None:
        """`limit`: positions of the longest text. The other arguments as in `core.decode.speculative`."""
        self._target = target
        self._drafter = drafter
        self._controls = controls
        self._rule = rule
        self.silence_ms: Callable[[], float] = lambda: 0.0
        self._inspect = inspect
        self._generator = seeded_generator(seed)
        self._noise = self._noise_of(seed) if coupling is Coupling.GUMBEL else None
        self.drafts_trees: bool = getattr(drafter, "proposes_trees", False)
        spare = MAX_DRAFT_TOKENS if self.drafts_trees else 0
        self.scorer = TargetScorer(target, limit, drafter.needs if drafter else frozenset(), spare)

    def prepare(self, limit: int) -> None:
        """Do each shape's one-time work before timing starts."""
        length = self._controls.num_draft_tokens
        most = USUAL_ROWS if isinstance(length, LengthPolicy) else min(length + 1, USUAL_ROWS)
        self.scorer.prepare(limit, range(1, most + 1), self._controls.check_cancelled)
        if is_asynchronous(self._target.device):
            self._load_kernels(most - 1)
        if isinstance(self._drafter, DraftModelDrafter):
            in_blocks = self._noise is None and length is not LengthPolicy.ADAPTIVE and not self.drafts_trees
            self._drafter.prepare(limit, self._controls.sampling, self._target.vocab_size, in_blocks=in_blocks)

    @torch.inference_mode()
    def _load_kernels(self, count: int) -> None:
        """Verify blocks of nothing, once for each kind of verification.

        A GPU loads each kernel when it first runs, which takes longer than a step.
        """
        device, sampling = self._target.device, self._controls.sampling
        filters = sampling.top_k > 0, sampling.top_p < 1.0, sampling.min_p > 0.0, sampling.is_greedy
        kind = count, *filters, self._rule, self._noise is None, self.drafts_trees
        if kind in self._target.loaded_kernels:
            return
        probs = probabilities(torch.zeros(count + 1, self._target.vocab_size, device=device), sampling)
        for number, drawn_from in ((0, None), (count, probs[:count]), (count, None)):
            parents = (-1, *range(-1, number - 2))[:number] if self.drafts_trees else tuple(range(-1, number - 1))
            # Which ids the filters keep of a tie is up to the device.
            draft = Draft(probs[:number].argmax(-1).cpu(), torch.tensor(parents), drawn_from)
            uniforms = torch.zeros(number + 1, dtype=torch.float64)
            draws = sent(for_device(uniforms, device), device)
            done = Round(number, number, sampling, draft, parents, StepClock(device, self.silence_ms), uniforms, draws)
            done.clock.start()
            self._decide(0, done, probs[: number + 1])
        self._target.loaded_kernels.add(kind)

    @property
    def num_captures(self) -> int:
        """CUDA graphs captured so far."""
        return self.scorer.num_captures + getattr(self._drafter, "num_captures", 0)

    def renew_noise(self) -> None:
        """Under Gumbel coupling, use other noise from now on."""
        if self._noise is not None:
            self._noise = self._noise_of(int(torch.randint(2**62, (), generator=self._generator)))

    def _noise_of(self, seed: int) -> Callable[[int], Tensor]:
        vocab_size, device = self._target.vocab_size, self._target.device
        return functools.lru_cache(maxsize=32)(lambda at: gumbel_noise(seed, at, vocab_size, device))

    # --- Propose ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def propose(self, ids: Sequence[int], room: int, plan: BlockPlan) -> Round:
        """Draft a block after a text that has room for this many more tokens, with the current settings."""
        # The last token of a full block is the target's own, so a draft must leave room for it.
        max_depth = min(room - 1, plan.max_depth)
        wanted = plan.most if self.drafts_trees and max_depth > 0 else min(plan.most, max_depth)
        sampling, device = self._controls.sampling, self._target.device
        self._controls.check_cancelled()
        clock = StepClock(device, self.silence_ms)
        clock.start()
        uniforms = draws = None
        if self._noise is None:
            # On their way before drafting begins, so that nothing waits for them later.
            uniforms = draw_uniforms(wanted + 1, self._generator)
            draws = sent(for_device(uniforms, device), device) if is_asynchronous(device) else None
        draft = self._draft(ids, wanted, max_depth, sampling, plan)
        clock.stop()
        parents = tuple(draft.parents.tolist())
        done = Round(wanted, max_depth, sampling, draft, parents, clock, uniforms, draws)
        # Reading tokens from a GPU waits for it, so there they are checked along with the result of verification.
        if not is_asynchronous(draft.tokens.device):
            self.check(done, draft.tokens.tolist())
        return done

    def _draft(
        self, ids: Sequence[int], wanted: int, max_depth: int, sampling: SamplingParams, plan: BlockPlan
    ) -> Draft:
        if self._drafter is None or wanted <= 0:
            return empty_draft()
        with blaming(self._drafter):
            draft = self._drafter.propose(
                DraftContext(
                    # A drafter of somebody else may do as it likes with its own copy.
                    ids=ids if is_own(self._drafter) else list(ids),
                    num_draft_tokens=wanted,
                    sampling=sampling,
                    generator=self._generator,
                    vocab_size=self._target.vocab_size,
                    check_cancelled=self._controls.check_cancelled,
                    max_depth=max_depth,
                    gumbel=self._noise,
                    features=self.scorer.take_features(),
                    keep_drafting=plan.keep_drafting,
                )
            )
        check_types(draft, type(self._drafter).__name__)
        # The draft model may be on another device than the target. Tokens travel to a GPU when they are scored.
        device = self._target.device
        tokens = draft.tokens if is_asynchronous(device) else draft.tokens.to(device)
        probs = draft.probs
        if probs is not None:  # Somebody else's may be float64, which Apple's GPUs lack.
            probs = (probs if has_double(device) else probs.float()).to(device)
        if probs is not None and not is_own(self._drafter):
            probs = normalised(probs)
        return draft if tokens is draft.tokens and probs is draft.probs else replace(draft, tokens=tokens, probs=probs)

    def check(self, done: Round, tokens: Sequence[int]) -> None:
        """Raise DrafterError for a draft that breaks the contract; `tokens` are its ids on the host."""
        vocab_size, name = self._target.vocab_size, type(self._drafter).__name__
        check_draft(done.draft, tokens, done.wanted, done.max_depth, vocab_size, name)
        # The tests check the distributions of our own drafters.
        if done.draft.probs is not None and not is_own(self._drafter):
            check_distributions(done.draft.probs, name)

    # --- Score and verify ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def verify(self, ids: Sequence[int], done: Round) -> Verified:
        """Score and verify a block that was drafted after a text, and rewind both caches to what was accepted."""
        position = len(ids)
        draft, sampling, clock = done.draft, done.sampling, done.clock
        self._controls.check_cancelled()
        clock.start()
        logits = self.scorer.score(ids[-1], draft, done.parents)
        clock.stop()

        clock.start()
        target_probs = probabilities(logits[:, : self._target.vocab_size], sampling)
        outcome, figures = self._decide(position, done, target_probs)
        self.scorer.keep(position - 1, outcome.path)
        if self._drafter is not None and done.wanted:
            with blaming(self._drafter):
                self._drafter.observe(outcome)
        clock.stop()
        is_typical = self._noise is None and self._rule is VerificationRule.TYPICAL
        if figures is None:
            figures = figures_of(draft.tokens, done.parents, draft.probs, target_probs, outcome, is_typical=is_typical)
        elif is_asynchronous(draft.tokens.device):
            self.check(done, figures.tokens)
        raw = None
        if self._inspect and sampling.is_greedy:
            raw = probabilities(logits[:, : self._target.vocab_size], SamplingParams())
        return Verified(target_probs, outcome, figures, raw)

    def _decide(self, position: int, done: Round, target_probs: Tensor) -> tuple[Verification, NodeProbs | None]:
        """Test a block. The figures come along if the target's device runs asynchronously."""
        device, parents, probs = target_probs.device, done.parents, done.draft.probs
        is_behind, tokens, clock = is_asynchronous(device), sent(done.draft.tokens, device), done.clock
        if self._noise is not None:
            positions = [position, *(position + 1 + depth for depth in depths_of(parents))]
            drawn = [draw_gumbel(row, self._noise(at)) for row, at in zip(target_probs, positions, strict=True)]
            if is_behind:
                return verify_gumbel_on_device(
                    tokens, parents, probs, target_probs, torch.stack(drawn), fetch=clock.fetch
                )
            check_finite(probs, target_probs)
            return verify_gumbel(tokens, parents, torch.stack(drawn)), None
        assert done.uniforms is not None, "rejection coupling draws"
        uniforms, rule = done.uniforms[: len(parents) + 1], self._rule
        if is_behind:
            assert done.draws is not None, "and sends its draws"
            draws = done.draws[: len(parents) + 1]
            return verify_on_device(
                tokens, parents, probs, target_probs, uniforms, draws=draws, rule=rule, fetch=clock.fetch
            )  # fmt: skip
        if parents and rule is VerificationRule.TYPICAL:
            return verify_typically(tokens, parents, target_probs, uniforms), None
        if parents and rule is VerificationRule.BLOCK and is_chain(parents):
            return verify_as_block(tokens, probs, target_probs, uniforms), None
        return verify_block(tokens, parents, probs, target_probs, uniforms), None
