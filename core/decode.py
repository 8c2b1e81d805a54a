"""Decoding as generators of events: plain, and speculative. One loop, since plain decoding is K = 0.

A step drafts K tokens, scores K + 1 positions in a single forward of the target, verifies the draft, and commits what
was accepted; both caches are rewound to one position fewer than the text. Closing a generator ends the run and leaves
the models as they were, because caches belong to the run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import torch

from core.controls import Cancelled, RunControls
from core.draft_length import DraftLength
from core.drafters.base import Drafter, DrafterSetup, blaming
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.length_policy import DraftLengthPolicy
from core.errors import OutOfMemoryError
from core.models.devices import is_out_of_memory, trim_heap
from core.models.language_model import LanguageModel
from core.models.loading import check_pair
from core.models.prompting import RunText
from core.rounds import Round, Rounds
from core.runlog.tally import Tally
from core.runners.timing import Stopwatch, is_asynchronous, peak_memory_mb, reset_peak_memory, watching_for_silence
from core.settings import SETTINGS, Coupling, LengthPolicy, SamplingParams, VerificationRule, checked
from core.text import display_texts
from core.types import (
    Drafted,
    Finished,
    FinishReason,
    Inspected,
    PrefillDone,
    Step,
    TokenKind,
    depths_of,
    is_chain,
)
from core.verify.backlog import EvidenceBacklog

DecodeEvent = PrefillDone | Drafted | Step | Inspected | Finished

_LONG_PROMPT = 64
"""Shortest prompt after whose prefill freeing memory is worthwhile."""

_CATCH_UP = 8
"""Most blocks whose evidence is computed between two steps while a run is being inspected."""

_USUAL_DRAFT = 4
"""The K that a sampled block has room for if the engine chooses K."""


def autoregressive(
    target: LanguageModel,
    prompt_ids: Sequence[int],
    *,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    coupling: Coupling = Coupling.REJECTION,
    stop: Sequence[str] = (),
    controls: RunControls | None = None,
    inspect: bool = False,
    written: str = "",
) -> Iterator[DecodeEvent]:
    """Decode one token per forward, with the same sampler and loop as `speculative`: the baseline.

    Arguments, events and errors are those of `speculative`.
    """
    controls = controls or RunControls(sampling, 0)
    token = VerificationRule.TOKEN
    return _Run(
        target, None, prompt_ids, controls, max_new_tokens, seed, coupling, stop, inspect, token, written
    ).events()


def speculative(
    target: LanguageModel,
    drafter: Drafter | LanguageModel | None,
    prompt_ids: Sequence[int],
    *,
    num_draft_tokens: DraftLength = 4,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    coupling: Coupling = Coupling.REJECTION,
    stop: Sequence[str] = (),
    controls: RunControls | None = None,
    inspect: bool = False,
    rule: VerificationRule = VerificationRule.TOKEN,
    written: str = "",
) -> Iterator[DecodeEvent]:
    """Decode with drafts; the text follows the target's distribution exactly.

    Args:
        target: the model whose distribution the text follows.
        drafter: any drafter, or a model to draft with; None for plain decoding.
        prompt_ids: at least one id.
        num_draft_tokens: K, or the policy that chooses it. `controls`, if given, takes precedence.
        sampling: temperature and filters. `controls`, if given, takes precedence.
        max_new_tokens: maximum number of tokens to add; the target's context may end the text earlier.
        seed: of this run's own generator.
        coupling: how draft and target share randomness.
        stop: texts to stop at, each a text or one special token; they are removed from the output.
        controls: live settings, and the way to stop from another thread.
        inspect: send each step's evidence after it, outside all timing.
        rule: how blocks are tested under rejection coupling; TYPICAL is lossy.
        written: text at the end of the prompt in which a stop text may begin, as that of a run to be continued.

    Yields:
        `PrefillDone`, a `Step` for each round, and `Finished`, also when stopped through `controls`. While the user
        follows single steps, a `Drafted` before each step that drafts. If `inspect` is set, an `Inspected` for each
        step: at the end, or earlier while the run is paused or inspected.

    Raises:
        PromptError: no ids, ids that the target doesn't have, or too many for its context.
        PairMismatchError: a draft model with another tokenizer.
        OutOfMemoryError: a cache or a forward that doesn't fit.
        SettingsError: `max_new_tokens` below 1, an empty stop text, or no such coupling or rule.
        GenerationError: logits that hold NaN.
        DrafterError: a drafter that breaks its contract.
    """
    controls = controls or RunControls(sampling, num_draft_tokens)
    if isinstance(drafter, LanguageModel):
        check_pair(drafter, target)
        capacity = len(prompt_ids) + max_new_tokens
        drafter = DraftModelDrafter(DrafterSetup(target, drafter, capacity, controls.check_cancelled))
    return _Run(
        target, drafter, prompt_ids, controls, max_new_tokens, seed, coupling, stop, inspect, rule, written
    ).events()


def sample_blocks(
    target: LanguageModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    *,
    seed: int,
    controls: RunControls,
    coupling: Coupling = Coupling.REJECTION,
    rule: VerificationRule = VerificationRule.TOKEN,
) -> Iterator[Step]:
    """Draw the first step after a prompt endlessly: samples for testing the distribution.

    The prompt is read once; then only the caches are rewound. Everything else is `speculative`'s own loop. A policy
    chooses K from earlier blocks, whose draws don't affect the next block's.

    Arguments and errors are those of `speculative`; K comes from `controls`.

    Raises:
        Cancelled: the run was asked to stop.
    """
    length = controls.num_draft_tokens
    usual = _USUAL_DRAFT if isinstance(length, LengthPolicy) else length or _USUAL_DRAFT
    return _Run(target, drafter, prompt_ids, controls, usual + 2, seed, coupling, (), False, rule).first_blocks()


class _Run:
    def __init__(
        self,
        target: LanguageModel,
        drafter: Drafter | None,
        prompt_ids: Sequence[int],
        controls: RunControls,
        max_new_tokens: int,
        seed: int,
        coupling: Coupling,
        stop: Sequence[str],
        inspect: bool,
        rule: VerificationRule = VerificationRule.TOKEN,
        written: str = "",
    ) -> None:
        self._begin_text = functools.partial(RunText, target, tuple(prompt_ids), max_new_tokens, stop, written)
        self._text = self._begin_text()
        self._ids = self._text.ids
        self._target = target
        self._drafter = drafter
        self._controls = controls
        coupling, rule = checked(SETTINGS["coupling"], coupling), checked(SETTINGS["verification"], rule)
        self._rounds = Rounds(
            target, drafter, controls, self._text.limit, seed=seed, coupling=coupling, rule=rule, inspect=inspect
        )  # fmt: skip
        self._backlog = EvidenceBacklog(target.tokenizer) if inspect else None
        self._tally = Tally()

    def events(self) -> Iterator[DecodeEvent]:
        """The run, from the prefill to its summary."""
        with watching_for_silence() as self._rounds.silence_ms:
            yield from self._events()

    def _events(self) -> Iterator[DecodeEvent]:
        reason = FinishReason.CANCELLED
        try:
            yield self._prefill()
            policy = self._policy()
            ended: FinishReason | None = None
            while ended is None:
                # The step's clock does not run during waits and untimed events.
                yield from self._wait_for_step()
                captured = self._rounds.num_captures
                done = self._propose(policy)
                if self._controls.is_paused and len(done.draft):
                    yield self._drafted(done)
                    self._controls.wait_to_look()
                step, ended = self._commit(done)
                self._tally.add(step)
                # Capturing a graph takes far longer than the steps to come.
                if captured == self._rounds.num_captures:
                    policy.record(step)
                    if self._drafter and not step.num_draft_tokens and self._tally.target_step_ms is None:
                        self._tally.target_step_ms = step.verify_ms
                yield step
            reason = ended
        except Cancelled:
            pass
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemoryError(
                "The device ran out of memory. Ask for fewer new tokens, shorten the prompt, or choose a smaller model."
            ) from error
        except Exception as error:
            # The evidence of earlier steps may show why, if the device still works.
            if not is_out_of_memory(error):
                with contextlib.suppress(Exception):
                    yield from self._remaining_evidence()
            raise
        yield from self._remaining_evidence()
        # A stop text may have cut the steps' own.
        peak_mb = peak_memory_mb(self._target.device)
        yield Finished(self._tally.summary(reason, self._text.text, peak_memory_mb=peak_mb))

    def first_blocks(self) -> Iterator[Step]:
        """See `sample_blocks`."""
        self._prefill()
        features = self._rounds.scorer.take_features()
        self._rounds.scorer.give_back(features)
        policy = self._policy()
        while True:
            self._controls.wait_for_step()
            step, _ = self._commit(self._propose(policy))
            policy.record(step)
            yield step
            self._start_over()
            self._rounds.scorer.give_back(features)

    # --- A step -------------------------------------------------------------------------------------------------

    def _policy(self) -> DraftLengthPolicy:
        is_behind = is_asynchronous(self._target.device)
        return DraftLengthPolicy(
            self._tally.target_step_ms, is_tree=self._rounds.drafts_trees, is_asynchronous=is_behind
        )

    @torch.inference_mode()
    def _propose(self, policy: DraftLengthPolicy) -> Round:
        # Nothing drafts in a run that began at 0, whatever K is set meanwhile.
        length = 0 if self._drafter is None else self._controls.num_draft_tokens
        plan = policy.plan(length)
        is_over = plan.most > 0 and not plan.is_trial
        # A text beyond the draft's context is drafted from its end alone.
        drafter = self._drafter if isinstance(self._drafter, DraftModelDrafter) else None
        fits = drafter is not None and self._text.limit <= drafter.model.context_length
        if drafter is not None and is_over and fits and not drafter.has_read_all:
            # As with a fixed K, the draft's reading of the text belongs to the prefill.
            self._controls.check_cancelled()
            watch = Stopwatch(self._target.device)
            drafter.read_all(self._ids)
            self._tally.prefill_ms += watch.lap()
        done = self._rounds.propose(self._ids, self._text.room, plan)
        done.length = length
        return done

    def _drafted(self, done: Round) -> Drafted:
        drafted = tuple(done.draft.tokens.tolist())
        self._rounds.check(done, drafted)
        texts = display_texts(self._target.tokenizer, drafted)
        return Drafted(self._tally.num_steps, len(self._ids), drafted, texts, _tree_of(done.parents))

    # --- Commit -------------------------------------------------------------------------------------------------

    def _commit(self, done: Round) -> tuple[Step, FinishReason | None]:
        """Verify a round, add its tokens to the text, up to its end, and describe the step."""
        position = len(self._ids)
        verified = self._rounds.verify(self._ids, done)
        outcome, figures, drafted = verified.outcome, verified.figures, verified.figures.tokens
        draft_ms, verify_ms, sample_ms = times = done.clock.read()
        tokens = [*(drafted[node] for node in outcome.path), outcome.next_token]
        kinds = [TokenKind.ACCEPTED] * outcome.num_accepted + [outcome.next_kind]
        texts, ended = self._text.write(tokens)
        count = len(texts)
        figures = figures.within(self._text.ends, done.parents)
        has_next = count > outcome.num_accepted
        nodes: Sequence[int] = range(len(drafted))
        if ended is not None:
            # The target's cache drops what lies beyond the end. The draft's cache ends with the run.
            self._rounds.scorer.rewind(len(self._ids) - 1)
        if ended is not None and not has_next:
            # Statistics drop it, too. A block that ends with its own correction or bonus is whole.
            nodes = [node for node, depth in enumerate(depths_of(done.parents)) if depth < count]
            figures = figures.of(nodes)
        place = {-1: -1, **{node: index for index, node in enumerate(nodes)}}
        tree = _tree_of([place[done.parents[node]] for node in nodes])
        step = Step(
            index=self._tally.num_steps,
            position=position,
            num_draft_tokens=len(nodes),
            temperature=done.sampling.temperature,
            drafted=figures.tokens,
            drafted_texts=display_texts(self._target.tokenizer, figures.tokens),
            draft_probs=figures.draft_probs,
            target_probs=figures.target_probs,
            acceptance_probs=figures.acceptance_probs,
            expected_acceptance=figures.expected_acceptance,
            uniforms=tuple(outcome.uniforms[node] for node in nodes) if outcome.uniforms else (),
            num_accepted=min(count, outcome.num_accepted),
            emitted=tuple(tokens[:count]),
            emitted_kinds=tuple(kinds[:count]),
            emitted_texts=tuple(texts),
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            sample_ms=sample_ms,
            total_ms=sum(times),
            next_uniform=outcome.next_uniform if has_next else None,
            parents=tree,
            accepted_path=tuple(place[node] for node in outcome.path[:count]) if tree else (),
            block=outcome.block[: len(nodes) + 1],
            absent_ms=done.clock.absent_ms,
            draft_length=done.length,
        )
        if self._backlog is not None:
            self._backlog.put(
                step.index,
                done.draft,
                done.parents,
                verified.target_probs,
                outcome,
                nodes,
                has_next=has_next,
                raw=verified.raw_probs,
            )
        return step, ended

    # --- Before, between and after the steps --------------------------------------------------------------------

    def _prefill(self) -> PrefillDone:
        num_prompt = len(self._ids)
        if is_long := num_prompt >= _LONG_PROMPT:
            trim_heap()
        reset_peak_memory(self._target.device)
        if isinstance(self._drafter, DraftModelDrafter):
            self._drafter.choose_kernels()  # Before the clock runs.
        watch = Stopwatch(self._target.device)
        self._rounds.scorer.prefill(self._ids, self._controls.check_cancelled)
        is_chosen = isinstance(self._controls.num_draft_tokens, LengthPolicy)
        if isinstance(self._drafter, DraftModelDrafter):
            self._drafter.start(torch.tensor(self._ids), is_trial=is_chosen)
        elif self._drafter is not None:
            with blaming(self._drafter):
                self._drafter.start(torch.tensor(self._ids))
        self._tally.prefill_ms = watch.lap()
        if is_long:
            trim_heap()
        self._rounds.prepare(self._text.limit)
        if self._drafter is not None and not is_chosen:
            # The unit of c and v. Plain decoding needs none, and a policy begins with such a step.
            last, check_cancelled = self._ids[-1], self._controls.check_cancelled
            self._tally.target_step_ms = self._rounds.scorer.time_one_step(last, check_cancelled)
        return PrefillDone(num_prompt, self._tally.prefill_ms, self._tally.target_step_ms)

    def _start_over(self) -> None:
        """Go back to the prompt; the next step uses new draws."""
        self._text = self._begin_text()
        self._ids = self._text.ids
        self._rounds.scorer.rewind(len(self._ids) - 1)
        # A draft model rewinds its own cache; other drafters start again.
        if self._drafter is not None and not isinstance(self._drafter, DraftModelDrafter):
            with blaming(self._drafter):
                self._drafter.start(torch.tensor(self._ids))
        self._rounds.renew_noise()

    def _wait_for_step(self) -> Iterator[Inspected]:
        """Wait until the next step may begin, and compute evidence meanwhile."""
        backlog = self._backlog
        if backlog is None:
            self._controls.wait_for_step()
            return
        # A GPU isn't held up by this, and its memory is scarce.
        is_wanted = self._controls.is_inspected or is_asynchronous(self._target.device)
        for _ in range(min(_CATCH_UP, len(backlog))):
            if is_wanted or backlog.is_full:
                yield backlog.look()
        while not self._controls.wait_for_step(may_block=not backlog):
            yield backlog.look()

    def _remaining_evidence(self) -> Iterator[Inspected]:
        while self._backlog:
            yield self._backlog.look()


def _tree_of(parents: Sequence[int]) -> tuple[int, ...]:
    """The parents of a tree as events hold them: none for a chain."""
    return () if is_chain(parents) else tuple(parents)
