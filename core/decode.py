"""Decoding as generators of events: plain, and speculative. One loop, since plain decoding is K = 0.

A step drafts K tokens, scores K + 1 positions in a single forward of the target, verifies the draft, and commits what
was accepted; both caches are rewound to one position fewer than the text. Closing a generator ends the run and leaves
the models as they were, because caches belong to the run.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from core.controls import Cancelled, RunControls
from core.draft_shape import BlockPlan, DraftLength, DraftLengthPolicy
from core.drafters.base import Drafter, DrafterSetup, empty_draft
from core.drafters.draft_model import DraftModelDrafter
from core.errors import DrafterError, OutOfMemoryError, PromptError, SettingsError
from core.evidence import EvidenceBacklog
from core.models.devices import is_out_of_memory, trim_heap
from core.models.language_model import LanguageModel
from core.models.loading import check_pair
from core.models.prompting import check_prompt_length
from core.runlog.tally import Tally
from core.runners.base import keep_path, prefill, tree_rows
from core.runners.graphed import GraphedRunner
from core.runners.timing import (
    StepClock,
    Stopwatch,
    is_asynchronous,
    peak_memory_mb,
    reset_peak_memory,
    watching_for_silence,
)
from core.sampling import draw_gumbel, gumbel_noise, probabilities, seeded_generator
from core.settings import MAX_DRAFT_TOKENS, Coupling, LengthPolicy, SamplingParams, VerificationRule
from core.text import TextStream, display_texts
from core.types import (
    Draft,
    DraftContext,
    Drafted,
    Finished,
    FinishReason,
    Inspected,
    PrefillDone,
    Step,
    Summary,
    TargetFeature,
    TokenKind,
    Verification,
    depths_of,
    is_chain,
)
from core.verify import SUM_TOLERANCE, acceptance_of, check_finite, tested_rows, verify_block, verify_gumbel

DecodeEvent = PrefillDone | Drafted | Step | Inspected | Finished

_LONG_PROMPT = 64
"""Shortest prompt after whose prefill freeing memory is worthwhile."""

_CATCH_UP = 8
"""Most blocks whose evidence is computed between two steps while a run is being inspected."""

_USUAL_DRAFT = 4
"""The K to warm up for if the engine chooses K."""


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
) -> Iterator[DecodeEvent]:
    """Decode one token per forward, with the same sampler and loop as `speculative`: the baseline.

    Arguments, events and errors are those of `speculative`.
    """
    controls = controls or RunControls(sampling, 0)
    return _Run(target, None, prompt_ids, controls, max_new_tokens, seed, coupling, stop, inspect).events()


def speculative(
    target: LanguageModel,
    drafter: Drafter | LanguageModel,
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
) -> Iterator[DecodeEvent]:
    """Decode with drafts; the text follows the target's distribution exactly.

    Args:
        target: the model whose distribution the text follows.
        drafter: any drafter, or a model to draft with.
        prompt_ids: at least one id.
        num_draft_tokens: K, or the policy that chooses it. `controls`, if given, takes precedence.
        sampling: temperature and filters. `controls`, if given, takes precedence.
        max_new_tokens: maximum number of tokens to add; the target's context may end the text earlier.
        seed: of this run's own generator.
        coupling: how draft and target share randomness.
        stop: texts to stop at; they are removed from the output.
        controls: live settings, and the way to stop from another thread.
        inspect: send each step's evidence after it, outside all timing.
        rule: how blocks are tested under rejection coupling; TYPICAL is lossy.

    Yields:
        `PrefillDone`, a `Step` for each round, and `Finished`, also when stopped through `controls`. While the user
        follows single steps, a `Drafted` before each step that drafts. If `inspect` is set, an `Inspected` for each
        step: at the end, or earlier while the run is paused or inspected.

    Raises:
        PromptError: no ids, ids that the target doesn't have, or too many for its context.
        PairMismatchError: a draft model with another tokenizer.
        OutOfMemoryError: a cache or a forward that doesn't fit.
        SettingsError: `max_new_tokens` below 1.
        GenerationError: logits that hold NaN.
        DrafterError: a drafter that breaks its contract.
    """
    controls = controls or RunControls(sampling, num_draft_tokens)
    if isinstance(drafter, LanguageModel):
        check_pair(drafter, target)
        capacity = len(prompt_ids) + max_new_tokens
        drafter = DraftModelDrafter(DrafterSetup(target, drafter, capacity, controls.check_cancelled))
    return _Run(target, drafter, prompt_ids, controls, max_new_tokens, seed, coupling, stop, inspect, rule).events()


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
    room = _usual(controls.num_draft_tokens) + 2
    return _Run(target, drafter, prompt_ids, controls, room, seed, coupling, (), False, rule).first_blocks()


def _usual(num_draft_tokens: DraftLength) -> int:
    return _USUAL_DRAFT if isinstance(num_draft_tokens, LengthPolicy) else num_draft_tokens or _USUAL_DRAFT


@dataclass(slots=True, eq=False)
class Round:
    """One round of drafting and testing, with its tensors.

    Attributes:
        wanted: how many tokens were requested.
        max_depth: how many of them in a row.
        sampling: the parameters of this round.
        draft: what was proposed.
        parents: the draft's, on the host.
        clock: times its three parts: draft, verify, sample.
        target_probs: (N + 1, V), once scored.
        raw_probs: the same at temperature 1, if the evidence of a greedy round needs it.
        outcome: once verified.
    """

    wanted: int
    max_depth: int
    sampling: SamplingParams
    draft: Draft
    parents: tuple[int, ...]
    clock: StepClock
    target_probs: Tensor | None = None
    raw_probs: Tensor | None = None
    outcome: Verification | None = None


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
    ) -> None:
        self._begin_text = functools.partial(RunText, target, tuple(prompt_ids), max_new_tokens, stop)
        self._text = self._begin_text()
        self._ids = self._text.ids
        self._target = target
        self._drafter = drafter
        self._controls = controls
        spare = MAX_DRAFT_TOKENS if self._drafts_trees else 0
        self._scorer = TargetScorer(target, self._text.limit, drafter.needs if drafter else frozenset(), spare)
        self._rule = rule
        self._generator = seeded_generator(seed)
        self._noise = self._noise_of(seed) if coupling is Coupling.GUMBEL else None
        self._backlog = EvidenceBacklog(target.tokenizer) if inspect else None
        self._tally = Tally()
        self._prefill_ms = 0.0
        self._target_step_ms: float | None = None
        self._silence_ms: Callable[[], float] = lambda: 0.0

    def events(self) -> Iterator[DecodeEvent]:
        """The run, from the prefill to its summary."""
        with watching_for_silence() as self._silence_ms:
            yield from self._events()

    def _events(self) -> Iterator[DecodeEvent]:
        reason = FinishReason.CANCELLED
        try:
            yield self._prefill()
            policy = DraftLengthPolicy(self._target_step_ms, is_tree=self._drafts_trees)
            ended: FinishReason | None = None
            while ended is None:
                # The step's clock does not run during waits and untimed events.
                yield from self._wait_for_step()
                captured = self._num_captures
                done = self._propose(policy)
                if self._controls.is_watched and len(done.draft):
                    yield self._drafted(done)
                    self._controls.wait_to_look()
                step, ended = self._commit(self._score_and_verify(done))
                self._tally.add(step)
                # Capturing a graph takes far longer than the steps to come.
                if captured == self._num_captures:
                    policy.record(step)
                    if self._drafter and not step.num_draft_tokens and self._target_step_ms is None:
                        self._target_step_ms = step.verify_ms
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
            if not isinstance(error, OutOfMemoryError) and not is_out_of_memory(error):
                with contextlib.suppress(Exception):
                    yield from self._remaining_evidence()
            raise
        yield from self._remaining_evidence()
        yield Finished(self._summary(reason))

    def first_blocks(self) -> Iterator[Step]:
        """See `sample_blocks`."""
        self._prefill()
        features = self._scorer.take_features()
        self._scorer.give_back(features)
        policy = DraftLengthPolicy(self._target_step_ms, is_tree=self._drafts_trees)
        while True:
            self._controls.wait_for_step()
            step, _ = self._commit(self._score_and_verify(self._propose(policy)))
            policy.record(step)
            yield step
            self._start_over()
            self._scorer.give_back(features)

    # --- Propose ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _propose(self, policy: DraftLengthPolicy) -> Round:
        """Draft a block with the current settings."""
        plan = policy.plan(self._controls.num_draft_tokens)
        # The last token of a full block is the target's own, so a draft must leave room for it.
        max_depth = min(self._text.room - 1, plan.max_depth)
        wanted = plan.most if self._drafts_trees and max_depth > 0 else min(plan.most, max_depth)
        sampling = self._controls.sampling
        self._controls.check_cancelled()
        is_over = plan.most > 0 and not plan.is_trial
        if is_over and isinstance(self._drafter, DraftModelDrafter) and not self._drafter.has_read_all:
            # As with a fixed K, the draft's reading of the text belongs to the prefill.
            watch = Stopwatch(self._target.device)
            self._drafter.read_all(self._ids)
            self._prefill_ms += watch.lap()
        clock = StepClock(self._target.device, self._silence_ms)
        clock.start()
        draft = self._draft(wanted, max_depth, sampling, plan)
        clock.stop()
        done = Round(wanted, max_depth, sampling, draft, tuple(draft.parents.tolist()), clock)
        # Reading tokens from a GPU waits for it, so there they are checked along with the result of verification.
        if not is_asynchronous(draft.tokens.device):
            self._check_draft(done)
        return done

    def _draft(self, num_draft_tokens: int, max_depth: int, sampling: SamplingParams, plan: BlockPlan) -> Draft:
        if self._drafter is None or num_draft_tokens <= 0:
            return empty_draft()
        draft = self._drafter.propose(
            DraftContext(
                ids=self._ids,
                num_draft_tokens=num_draft_tokens,
                sampling=sampling,
                generator=self._generator,
                vocab_size=self._target.vocab_size,
                check_cancelled=self._controls.check_cancelled,
                max_depth=max_depth,
                gumbel=self._noise,
                features=self._scorer.take_features(),
                keep_drafting=plan.keep_drafting,
            )
        )
        # The draft model may be on another GPU than the target.
        probs = None if draft.probs is None else draft.probs.to(self._target.device)
        return draft if probs is draft.probs else replace(draft, probs=probs)

    def _check_draft(self, done: Round) -> None:
        vocab_size = self._target.vocab_size
        check_draft(done.draft, done.wanted, done.max_depth, vocab_size, type(self._drafter).__name__)
        if done.draft.probs is not None and not self._is_trusted:
            check_distributions(done.draft.probs, type(self._drafter).__name__)

    @property
    def _is_trusted(self) -> bool:
        """Whether the drafter is one of our own, whose distributions the tests check."""
        return type(self._drafter).__module__.startswith("core.drafters.")

    @property
    def _drafts_trees(self) -> bool:
        return getattr(self._drafter, "proposes_trees", False)

    def _drafted(self, done: Round) -> Drafted:
        self._check_draft(done)
        drafted = tuple(done.draft.tokens.tolist())
        texts = display_texts(self._target.tokenizer, drafted)
        return Drafted(self._tally.num_steps, len(self._ids), drafted, texts, _tree_of(done.parents))

    # --- Score and verify ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _score_and_verify(self, done: Round) -> Round:
        """Score and verify a block, and rewind both caches to what was accepted."""
        position = len(self._ids)
        draft, sampling, clock = done.draft, done.sampling, done.clock
        self._controls.check_cancelled()
        clock.start()
        logits = self._scorer.score(self._ids[-1], draft, done.parents)
        clock.stop()

        clock.start()
        target_probs = probabilities(logits[:, : self._target.vocab_size], sampling)
        outcome = self._verify(done, target_probs)
        self._scorer.keep(position - 1, outcome.path)
        if self._drafter is not None and done.wanted:
            self._drafter.observe(outcome)
        clock.stop()
        if is_asynchronous(draft.tokens.device):
            self._check_draft(done)
        done.target_probs, done.outcome = target_probs, outcome
        if self._backlog is not None and sampling.is_greedy:
            done.raw_probs = probabilities(logits[:, : self._target.vocab_size], SamplingParams())
        return done

    def _verify(self, done: Round, target_probs: Tensor) -> Verification:
        draft = done.draft
        if self._noise is None:
            tokens, rule = draft.tokens.to(target_probs.device), self._rule
            return verify_block(tokens, done.parents, draft.probs, target_probs, generator=self._generator, rule=rule)
        check_finite(draft.probs, target_probs)
        positions = [len(self._ids), *(len(self._ids) + 1 + depth for depth in depths_of(done.parents))]
        drawn = [draw_gumbel(row, self._noise(at)) for row, at in zip(target_probs, positions, strict=True)]
        return verify_gumbel(draft.tokens, done.parents, torch.stack(drawn))

    # --- Commit -------------------------------------------------------------------------------------------------

    def _commit(self, done: Round) -> tuple[Step, FinishReason | None]:
        """Add a round's tokens to the text, up to its end, and describe the step."""
        outcome, target_probs, position = done.outcome, done.target_probs, len(self._ids)
        assert outcome is not None, "a round is verified before it is committed"
        assert target_probs is not None, "and scored before that"
        draft_ms, verify_ms, sample_ms = times = done.clock.read()
        drafted = tuple(done.draft.tokens.tolist())
        tokens = [*(drafted[node] for node in outcome.path), outcome.next_token]
        kinds = [TokenKind.ACCEPTED] * outcome.num_accepted + [outcome.next_kind]
        texts, ended = self._text.write(tokens)
        count = len(texts)
        nodes: Sequence[int] = range(len(drafted))
        if ended is not None:
            # The target's cache and all statistics drop what lies beyond the end. The draft's cache ends with the run.
            self._scorer.rewind(len(self._ids) - 1)
            nodes = [node for node, depth in enumerate(depths_of(done.parents)) if depth < count]
        of_drafted = probs_of_drafted(done, is_typical=self._noise is None and self._rule is VerificationRule.TYPICAL)
        of_drafted = {name: tuple(values[node] for node in nodes) for name, values in of_drafted.items()}
        drafted = tuple(drafted[node] for node in nodes)
        place = {-1: -1, **{node: index for index, node in enumerate(nodes)}}
        tree = _tree_of([place[done.parents[node]] for node in nodes])
        step = Step(
            index=self._tally.num_steps,
            position=position,
            num_draft_tokens=len(drafted),
            temperature=done.sampling.temperature,
            drafted=drafted,
            drafted_texts=display_texts(self._target.tokenizer, drafted),
            **of_drafted,
            uniforms=tuple(outcome.uniforms[node] for node in nodes) if outcome.uniforms else (),
            num_accepted=min(count, outcome.num_accepted),
            emitted=tuple(tokens[:count]),
            emitted_kinds=tuple(kinds[:count]),
            emitted_texts=tuple(texts),
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            sample_ms=sample_ms,
            total_ms=sum(times),
            next_uniform=outcome.next_uniform if count > outcome.num_accepted else None,
            evidence=(),
            parents=tree,
            accepted_path=tuple(place[node] for node in outcome.path[:count]) if tree else (),
            block=outcome.block[: len(drafted) + 1],
            absent_ms=done.clock.absent_ms,
        )
        if self._backlog is not None:
            has_next = count > outcome.num_accepted
            self._backlog.put(
                step.index,
                done.draft,
                done.parents,
                target_probs,
                outcome,
                nodes,
                has_next=has_next,
                raw=done.raw_probs,
            )
        return step, ended

    # --- Before, between and after the steps --------------------------------------------------------------------

    def _noise_of(self, seed: int) -> Callable[[int], Tensor]:
        vocab_size, device = self._target.vocab_size, self._target.device
        return functools.lru_cache(maxsize=32)(lambda at: gumbel_noise(seed, at, vocab_size, device))

    def _prefill(self) -> PrefillDone:
        num_prompt = len(self._ids)
        if is_long := num_prompt >= _LONG_PROMPT:
            trim_heap()
        reset_peak_memory(self._target.device)
        watch = Stopwatch(self._target.device)
        self._scorer.prefill(self._ids, self._controls.check_cancelled)
        is_chosen = isinstance(self._controls.num_draft_tokens, LengthPolicy)
        if isinstance(self._drafter, DraftModelDrafter):
            self._drafter.start(torch.tensor(self._ids), is_trial=is_chosen)
        elif self._drafter is not None:
            self._drafter.start(torch.tensor(self._ids))
        self._prefill_ms = watch.lap()
        if is_long:
            trim_heap()
        self._warm_up()
        if self._drafter is not None and not is_chosen:
            # The unit of c and v. Plain decoding needs none, and a policy begins with such a step.
            self._target_step_ms = self._scorer.time_one_step(self._ids[-1], self._controls.check_cancelled)
        return PrefillDone(num_prompt, self._prefill_ms, self._target_step_ms)

    def _warm_up(self) -> None:
        """Capture the graphs that the steps will launch."""
        self._scorer.prepare(self._text.limit)
        if isinstance(self._drafter, DraftModelDrafter):
            in_blocks = self._noise is None and self._controls.num_draft_tokens is not LengthPolicy.ADAPTIVE
            vocab_size = self._target.vocab_size
            self._drafter.prepare(self._text.limit, self._controls.sampling, vocab_size, in_blocks=in_blocks)

    @property
    def _num_captures(self) -> int:
        return self._scorer.num_captures + getattr(self._drafter, "num_captures", 0)

    def _start_over(self) -> None:
        """Go back to the prompt; the next step uses new draws."""
        self._text = self._begin_text()
        self._ids = self._text.ids
        self._scorer.rewind(len(self._ids) - 1)
        # A draft model rewinds its own cache; other drafters start again.
        if self._drafter is not None and not isinstance(self._drafter, DraftModelDrafter):
            self._drafter.start(torch.tensor(self._ids))
        if self._noise is not None:
            self._noise = self._noise_of(int(torch.randint(2**62, (), generator=self._generator)))

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

    def _summary(self, reason: FinishReason) -> Summary:
        return self._tally.summary(
            reason,
            self._text.text,
            prefill_ms=self._prefill_ms,
            target_step_ms=self._target_step_ms,
            peak_memory_mb=peak_memory_mb(self._target.device),
        )


class TargetScorer:
    """The target model with its cache, which between steps holds one position fewer than the text."""

    def __init__(
        self, model: LanguageModel, limit: int, needs: frozenset[TargetFeature] = frozenset(), spare: int = 0
    ) -> None:
        """
        Args:
            model: the target.
            limit: positions of the longest text.
            needs: what a drafter wants to see of each position.
            spare: additional places in the cache, for the branches of a tree.
        """
        self._runner = model.runner(limit, spare=spare)
        self._device = model.device
        self._with_hidden = TargetFeature.HIDDEN_STATES in needs
        self._hidden: list[Tensor] = []

    @property
    def length(self) -> int:
        """Positions in the cache."""
        return self._runner.length

    def prefill(self, ids: Sequence[int], check_cancelled: Callable[[], None]) -> None:
        """Cache the prompt except its last token, whose logits the first step needs."""
        on_hidden = self._hidden.append if self._with_hidden else None
        prefill(self._runner, ids[:-1], check_cancelled, on_hidden)

    @property
    def num_captures(self) -> int:
        """CUDA graphs captured so far."""
        return getattr(self._runner, "num_captures", 0)

    def prepare(self, end: int) -> None:
        """Capture the CUDA graphs that scoring will launch, if any, for a text of up to `end` positions."""
        if isinstance(self._runner, GraphedRunner):
            self._runner.prepare(end)

    def score(self, last_token: int, draft: Draft, parents: Sequence[int]) -> Tensor:
        """Append the newest token of the text, not cached yet, and N drafted ones. Returns (N + 1, V) logits.

        Row 0 follows the newest token, row i + 1 follows node i.
        """
        root = torch.tensor([last_token], device=self._device)
        ids = torch.cat((root, draft.tokens.to(self._device)))
        tree = None if is_chain(parents) else tree_rows(parents, self._runner.length, len(ids))
        output = self._runner.forward(ids, num_logits=len(ids), with_hidden=self._with_hidden, tree=tree)
        self._scored = output.hidden
        return output.logits

    def keep(self, root: int, path: Sequence[int]) -> None:
        """Keep the position of the text's newest token, `root`, and the accepted nodes of the block after it."""
        keep_path(self._runner, root, [root + 1 + node for node in path])
        if self._scored is not None:
            self._hidden.append(self._scored[[0, *(node + 1 for node in path)]])

    def take_features(self) -> dict[TargetFeature, Tensor]:
        """What a drafter needs, for the positions since it last asked."""
        if not self._hidden:
            return {}
        states, self._hidden = torch.cat(self._hidden), []
        return {TargetFeature.HIDDEN_STATES: states}

    def give_back(self, features: dict[TargetFeature, Tensor]) -> None:
        """Return what was taken, in place of what has come since."""
        self._hidden = [*features.values()]

    def rewind(self, length: int) -> None:
        """Keep at most the first `length` positions."""
        self._runner.rewind(min(length, self._runner.length))

    def time_one_step(self, last_token: int, check_cancelled: Callable[[], None], repeats: int = 3) -> float:
        """Median milliseconds of a one-position forward at this point of the text; the cache is unchanged."""
        root = torch.tensor([last_token], device=self._device)
        length, laps = self._runner.length, []
        for _ in range(repeats):
            check_cancelled()
            watch = Stopwatch(self._device)
            self._runner.forward(root, num_logits=1)
            laps.append(watch.lap())
            self._runner.rewind(length)
        return statistics.median(laps)


class RunText:
    """A prompt and the text generated after it.

    Attributes:
        ids: all ids, the prompt's included.
        limit: maximum number of ids.

    Raises:
        PromptError: no ids, ids that the target doesn't have, or too many for its context.
        SettingsError: `max_new_tokens` below 1.
    """

    def __init__(
        self, target: LanguageModel, prompt_ids: Sequence[int], max_new_tokens: int, stop: Sequence[str]
    ) -> None:
        check_prompt_length(len(prompt_ids), target)
        if not all(0 <= token < target.vocab_size for token in prompt_ids):
            raise PromptError(f"The prompt holds an id outside 0 to {target.vocab_size - 1}.")
        if max_new_tokens < 1:
            raise SettingsError(f"The number of new tokens must be 1 or more, not {max_new_tokens!r}.")
        self.ids = list(prompt_ids)
        self.limit = min(len(self.ids) + max_new_tokens, target.context_length)
        self._eos_ids = target.eos_ids
        self._stop = tuple(stop)
        self._stream = TextStream(target.tokenizer, self.ids)

    @property
    def text(self) -> str:
        """The generated text, without the prompt."""
        return self._stream.text

    @property
    def room(self) -> int:
        """How many more ids fit."""
        return self.limit - len(self.ids)

    def write(self, tokens: Sequence[int]) -> tuple[list[str], FinishReason | None]:
        """Add tokens up to the end of the text. Returns the texts of those added, and why the text ended, if it did."""
        texts: list[str] = []
        for token in tokens:
            texts.append(self._stream.push(token))
            self.ids.append(token)
            if (ended := self._end_at(token, texts)) is not None:
                return texts, ended
        return texts, None

    def _end_at(self, token: int, texts: list[str]) -> FinishReason | None:
        """Why the text ends with the token just added, or None; the last of `texts` is its own, and may be cut."""
        at = self._stream.find_stop(self._stop, len(texts[-1])) if self._stop else None
        if at is not None:
            surplus = len(self._stream.text) - at
            self._stream.cut(at)
            # A stop text may begin in tokens already emitted; only the summary's text is cut there.
            texts[-1] = texts[-1][: max(0, len(texts[-1]) - surplus)]
            return FinishReason.STOP
        is_eos = token in self._eos_ids
        if is_eos or self.room <= 0:
            texts[-1] += self._stream.flush()
            return FinishReason.EOS if is_eos else FinishReason.LENGTH
        return None


def check_draft(draft: Draft, most: int, max_depth: int, vocab_size: int, name: str) -> None:
    """Refuse a draft that can't be verified.

    Args:
        draft: what was proposed.
        most, max_depth: how many tokens were requested, and how many of them in a row.
        vocab_size: V.
        name: of the drafter.

    Raises:
        DrafterError: too many tokens, parents that are no tree, an id out of range, or rows of the wrong shape.
    """
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    count = len(tokens)
    if len(parents) != count or not all(-1 <= parent < node for node, parent in enumerate(parents)):
        raise DrafterError(
            f"{name} proposed parents that are no tree: each must be -1 or an earlier node. Fix its code."
        )
    if not count:
        return
    if count > most:
        raise DrafterError(f"{name} proposed {count} tokens where {most} were requested. Fix its code.")
    if (depth := max(depths_of(parents)) + 1) > max_depth:
        raise DrafterError(f"{name} proposed {depth} tokens in a row where {max_depth} were requested. Fix its code.")
    if not all(0 <= token < vocab_size for token in tokens):
        raise DrafterError(f"{name} proposed an id outside 0 to {vocab_size - 1}. Fix its code.")
    if draft.probs is not None and tuple(draft.probs.shape) != (count, vocab_size):
        shape = tuple(draft.probs.shape)
        raise DrafterError(f"{name} returned distributions of shape {shape}, not {(count, vocab_size)}. Fix its code.")


def check_distributions(probs: Tensor, name: str) -> None:
    """Refuse rows (N, V) that are no distributions, which would change the output's distribution unnoticed.

    Raises:
        DrafterError: a negative entry, NaN, or a row that doesn't sum to 1.
    """
    if not bool((probs >= 0).all()) or not bool(((probs.sum(-1) - 1).abs() <= SUM_TOLERANCE).all()):
        raise DrafterError(
            f"{name} returned rows that are no distributions: each must be non-negative and sum to 1. Fix its code."
        )


def _tree_of(parents: Sequence[int]) -> tuple[int, ...]:
    """The parents of a tree as events hold them: none for a chain."""
    return () if is_chain(parents) else tuple(parents)


@torch.inference_mode()
def probs_of_drafted(done: Round, *, is_typical: bool) -> dict[str, tuple[float, ...]]:
    """A step's fields for each drafted token: p and q of its id, its acceptance, and the acceptance expected there."""
    draft, target_probs, outcome = done.draft, done.target_probs, done.outcome
    if not done.parents or target_probs is None or outcome is None:
        return {"draft_probs": (), "target_probs": (), "acceptance_probs": (), "expected_acceptance": ()}
    tokens = draft.tokens.to(target_probs.device)
    rows = tested_rows(tokens, done.parents, draft.probs, target_probs)
    at = tokens.unsqueeze(1)
    # Where no draw decides, a sibling leaves the target's distribution as it is.
    shown = rows if outcome.uniforms else target_probs[[parent + 1 for parent in done.parents]]
    p = shown.gather(1, at).squeeze(1).tolist()
    q = [1.0] * len(p) if draft.probs is None else draft.probs.gather(1, at).squeeze(1).tolist()
    found = {"draft_probs": tuple(q), "target_probs": tuple(p)}
    if is_typical:
        unknown = (math.nan,) * len(p)
        return {**found, "acceptance_probs": unknown, "expected_acceptance": unknown}
    if outcome.block:
        chances = [test.weight for test in outcome.block[1:]]
        # The sum of min(w p, q) is w less the residual's mass.
        expected = [max(0.0, test.weight - test.residual) for test in outcome.block[:-1]]
    else:
        chances = acceptance_of(tokens, draft.probs, rows).tolist()
        overlap = rows.gather(1, at).squeeze(1) if draft.probs is None else torch.minimum(rows, draft.probs).sum(-1)
        expected = overlap.clamp(max=1.0).tolist()
    return {**found, "acceptance_probs": tuple(chances), "expected_acceptance": tuple(expected)}
