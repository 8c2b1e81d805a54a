"""Decoding as generators of events: plain, and speculative. One loop, since plain decoding is K = 0.

A step drafts K tokens, scores them and one position more in a single forward of the target, keeps what the verdict
keeps, and rewinds both caches to one position fewer than the text. Closing a generator ends the run; models are left
as they were, because caches belong to the run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from core.capture import EvidenceBacklog
from core.controls import Cancelled, RunControls
from core.draft_shape import DraftLengthPolicy
from core.drafters.base import Drafter, empty_draft
from core.drafters.draft_model import DraftModelDrafter
from core.errors import OutOfMemoryError, PromptError, SettingsError
from core.models.devices import is_out_of_memory, trim_heap
from core.models.language_model import LanguageModel
from core.models.loading import check_pair
from core.models.prompting import check_prompt_length
from core.rounds import Block, Round, TargetScorer, check_draft, features_of, figures
from core.runlog.tally import Tally
from core.runners.graphed import captures_graphs
from core.runners.timing import StepClock, Stopwatch, is_asynchronous, peak_memory_mb, reset_peak_memory
from core.sampling import draw_gumbel, gumbel_noise, probabilities
from core.text import TextStream, display_texts
from core.types import (
    Coupling,
    Draft,
    DraftContext,
    Drafted,
    Finished,
    FinishReason,
    Inspected,
    LengthPolicy,
    PrefillDone,
    SamplingParams,
    Step,
    Summary,
    TargetFeature,
    TokenKind,
    Verification,
)
from core.verify import check_finite, verify_block, verify_gumbel

if TYPE_CHECKING:
    from core.types import RunRequest


_LINE = "\n"


@dataclass(frozen=True, slots=True)
class Continuation:
    """Ids that count as already written, and their text: `kept_text` of the run before, then `forced_text`."""

    ids: tuple[int, ...] = ()
    kept_text: str = ""
    forced_text: str = ""

    def as_config(self) -> dict[str, Any]:
        """For the log's first line: nothing where nothing was continued."""
        if not self.ids:
            return {}
        return {
            "continuation_token_ids": list(self.ids),
            "continuation_text": self.kept_text,
            "forced_text": self.forced_text,
        }


def continue_prompt(target: LanguageModel, prompt_ids: Sequence[int], request: RunRequest) -> Continuation:
    """The ids behind the prompt, checked, and their text. A part of a character at the end is left to what follows.

    Raises:
        PromptError: an id that the target doesn't have, a forced token that ends the text, or no room left.
    """
    forced = request.forced or _ids_of(request.forced_text, target.tokenizer, [*prompt_ids, *request.continuation])
    ids = (*request.continuation, *forced)
    if not ids:
        return Continuation()
    if any(token >= target.vocab_size for token in ids):
        raise PromptError("A token to continue from is none of the target's. Branch from a run of the same target.")
    if target.eos_ids.intersection(ids):
        raise PromptError("That token ends the text, so nothing can follow it. Force another one.")
    check_prompt_length(len(prompt_ids) + len(ids), target)
    stream = TextStream(target.tokenizer, prompt_ids)
    kept_text = "".join([stream.push(token) for token in request.continuation])
    return Continuation(ids, kept_text, "".join([stream.push(token) for token in forced]))


def _ids_of(text: str, tokenizer: Any, before: Sequence[int]) -> tuple[int, ...]:
    """A typed text as tokens that read as it does behind what is there already."""
    if not text:
        return ()
    # Some tokenizers put a space before what they take for the start of a text, so it is tried behind a line as well.
    text = text.encode("utf-8", "replace").decode("utf-8")
    alone = _encode(tokenizer, text)
    line, behind = _encode(tokenizer, _LINE), _encode(tokenizer, _LINE + text)
    ways = [alone, behind[len(line) :]] if behind[: len(line)] == line else [alone]
    for ids in ways:
        stream = TextStream(tokenizer, before)
        if "".join([stream.push(token) for token in ids]) == text:
            return tuple(ids)
    return tuple(alone)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class RunText:
    """A prompt and what is written behind it.

    Attributes:
        ids: all of it, the prompt included.
        limit: how many ids there may be.
    """

    def __init__(
        self, target: LanguageModel, prompt_ids: Sequence[int], max_new_tokens: int, stop: Sequence[str]
    ) -> None:
        """Begin behind a prompt.

        Raises:
            PromptError: no ids, ids that the target doesn't have, or too many for its context.
            SettingsError: fewer than one new token.
        """
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
        """What was written, without the prompt."""
        return self._stream.text

    @property
    def room(self) -> int:
        """How many ids may still come."""
        return self.limit - len(self.ids)

    def write(self, tokens: Sequence[int]) -> tuple[list[str], FinishReason | None]:
        """Add tokens up to an end, if one is among them: the texts of those that were added, and the end."""
        texts: list[str] = []
        for token in tokens:
            texts.append(self._stream.push(token))
            self.ids.append(token)
            if (ended := self._end_at(token, texts)) is not None:
                return texts, ended
        return texts, None

    def _end_at(self, token: int, texts: list[str]) -> FinishReason | None:
        """Whether the text ends with the token just added; the last of `texts` is its own, and may be cut."""
        at = self._stream.find_stop(self._stop, len(texts[-1])) if self._stop else None
        if at is not None:
            surplus = len(self._stream.text) - at
            self._stream.cut(at)
            # What began in earlier tokens was emitted with them; the summary's text is the one that counts.
            texts[-1] = texts[-1][: max(0, len(texts[-1]) - surplus)]
            return FinishReason.STOP
        is_eos = token in self._eos_ids
        if is_eos or self.room <= 0:
            texts[-1] += self._stream.flush()
            return FinishReason.EOS if is_eos else FinishReason.LENGTH
        return None


if TYPE_CHECKING:
    DecodeEvent = PrefillDone | Drafted | Step | Inspected | Finished

_LONG_PROMPT = 64
"""Positions from which reading the prompt leaves enough memory behind for giving it back to be worth the time."""

_CATCH_UP = 8
"""Blocks that are looked at between two steps, once somebody looks at a run that goes on meanwhile."""

_USUAL_DRAFT = 4
"""What is warmed up for where K is chosen as the run goes."""


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
    """Decode one token a forward, through the same sampler and loop as `speculative`: the baseline.

    Arguments, events and errors are those of `speculative`.
    """
    controls = controls or RunControls(sampling, 0)
    run = _Run(target, None, prompt_ids, controls, max_new_tokens, seed, coupling, stop, inspect)
    return run.events()


def speculative(
    target: LanguageModel,
    drafter: Drafter | LanguageModel,
    prompt_ids: Sequence[int],
    *,
    num_draft_tokens: int | None = 4,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    coupling: Coupling = Coupling.REJECTION,
    stop: Sequence[str] = (),
    controls: RunControls | None = None,
    inspect: bool = False,
    length_policy: LengthPolicy = LengthPolicy.AUTO,
) -> Iterator[DecodeEvent]:
    """Decode with drafts; the text follows the target's law exactly.

    Args:
        target: the model whose law the text follows.
        drafter: any drafter, or a model to draft with.
        prompt_ids: at least one id.
        num_draft_tokens: K; None chooses it by `length_policy`. `controls`, where given, decides instead.
        sampling: temperature and filters; `controls`, where given, decides instead.
        max_new_tokens: most tokens to add; the target's context may end the text earlier.
        seed: of this run's own generator.
        coupling: how draft and target share randomness.
        stop: texts to stop at; they are cut from the text.
        controls: live settings, and the way to stop from another thread.
        inspect: send each step's evidence behind it, outside everything timed.
        length_policy: how K is chosen where it isn't given.

    Yields:
        `PrefillDone`, a `Step` each round, and `Finished`, also when stopped through `controls`. While a person
        follows the single steps, a `Drafted` before each that drafts. An `Inspected` for each step where that was asked
        for: at the end, unless the run is held, or `controls` say that somebody looks.

    Raises:
        PromptError: no ids, ids that the target doesn't have, or too many for its context.
        PairMismatchError: a draft model with another tokenizer.
        OutOfMemoryError: a cache or a forward that does not fit.
        SettingsError: fewer than one new token.
        GenerationError: logits that hold NaN.
        DrafterError: a drafter that breaks its contract.
    """
    controls = controls or RunControls(sampling, num_draft_tokens, length_policy)
    if isinstance(drafter, LanguageModel):
        check_pair(drafter, target)
        capacity = len(prompt_ids) + max_new_tokens
        drafter = DraftModelDrafter(drafter, capacity=capacity, check_cancelled=controls.check_cancelled)
    run = _Run(target, drafter, prompt_ids, controls, max_new_tokens, seed, coupling, stop, inspect)
    return run.events()


def sample_blocks(
    target: LanguageModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    *,
    seed: int,
    controls: RunControls,
    coupling: Coupling = Coupling.REJECTION,
) -> Iterator[Step]:
    """The first step behind a prompt again and again, drawn anew each time, without end: samples for a test of the law.

    The prompt is read once; then only the caches go back. Everything else is `speculative`'s own loop. Where K is
    chosen as the run goes, it is chosen from the blocks before, whose draws have no part in the next one's.

    Arguments and errors are those of `speculative`; K comes from `controls`.

    Raises:
        Cancelled: the run was asked to stop.
    """
    room = (controls.num_draft_tokens or _USUAL_DRAFT) + 2
    run = _Run(target, drafter, prompt_ids, controls, room, seed, coupling, (), False)
    return run.first_blocks()


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
    ) -> None:
        self._begin_text = functools.partial(RunText, target, tuple(prompt_ids), max_new_tokens, stop)
        self._text = self._begin_text()
        self._ids = self._text.ids
        self._num_prompt = len(self._ids)
        self._target = target
        self._drafter = drafter
        self._controls = controls
        self._scorer = TargetScorer(target, self._text.limit, drafter.needs if drafter else frozenset())
        self._features: dict[TargetFeature, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._noise = self._noise_of(seed) if coupling is Coupling.GUMBEL else None
        self._backlog = self._begin_backlog(max_new_tokens) if inspect else None
        self._tally = Tally()
        self._prefill_ms = 0.0
        self._target_step_ms: float | None = None

    def _begin_backlog(self, num_tokens: int) -> EvidenceBacklog:
        # Elsewhere it is looked at as soon as it comes, and its memory is the device's.
        num_tokens = 0 if is_asynchronous(self._target.device) else num_tokens
        return EvidenceBacklog(self._target.tokenizer, num_tokens=num_tokens, vocab_size=self._target.vocab_size)

    def _noise_of(self, seed: int) -> Callable[[int], Tensor]:
        vocab_size = self._target.vocab_size
        return functools.lru_cache(maxsize=32)(lambda at: gumbel_noise(seed, at, vocab_size))

    def events(self) -> Iterator[DecodeEvent]:
        reason = FinishReason.CANCELLED
        try:
            yield self._prefill()
            policy = DraftLengthPolicy(self._target_step_ms or 1.0)
            ended: FinishReason | None = None
            while ended is None:
                # Waits, and events that show what is not timed, fall between the laps of the step's clock.
                yield from self._wait_for_step()
                block = self._draft_block(policy)
                if self._controls.is_watched and len(block.draft):
                    yield self._drafted(block)
                    self._controls.wait_to_look()
                step, ended = self._commit(self._judge(block), len(self._ids))
                self._tally.add(step)
                policy.record(step)
                yield step
            reason = ended
        except Cancelled:
            pass
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemoryError(
                "The device ran out of memory. Ask for fewer new tokens, shorten the prompt, or choose a smaller model."
            ) from error
        except Exception as error:
            # What was said before it went wrong may show why. A device that broke down may not tell it any more.
            if not isinstance(error, OutOfMemoryError) and not is_out_of_memory(error):
                with contextlib.suppress(Exception):
                    yield from self._look_at_rest()
            raise
        yield from self._look_at_rest()
        yield Finished(self._summary(reason))

    def _wait_for_step(self) -> Iterator[Inspected]:
        """Wait until the next step may begin, and look at blocks that are left while there is nothing else to do."""
        backlog = self._backlog
        if backlog is None:
            self._controls.wait_for_step()
            return
        # Another device computes by itself: it is not held up, and its memory is dear.
        is_wanted = self._controls.is_inspected or is_asynchronous(self._target.device)
        for _ in range(min(_CATCH_UP, len(backlog))):
            if is_wanted or backlog.is_full:
                yield backlog.look()
        while not self._controls.wait_for_step(may_block=not backlog):
            yield backlog.look()

    def _look_at_rest(self) -> Iterator[Inspected]:
        while self._backlog:
            yield self._backlog.look()

    def first_blocks(self) -> Iterator[Step]:
        self._prefill()
        # One for all blocks, as in a run: whoever chooses K has to have learnt before blocks grow, or end where unsure.
        policy = DraftLengthPolicy(self._target_step_ms or 1.0)
        while True:
            self._controls.wait_for_step()
            step, _ = self._commit(self._judge(self._draft_block(policy)), len(self._ids))
            policy.record(step)
            yield step
            self._start_over()

    def _start_over(self) -> None:
        """Back to the prompt, with new draws to come."""
        self._text = self._begin_text()
        self._ids = self._text.ids
        self._features = {}
        self._scorer.rewind(len(self._ids) - 1)
        # A draft model's cache goes back by itself; what another drafter has kept of the text is its own affair.
        if self._drafter is not None and not isinstance(self._drafter, DraftModelDrafter):
            self._drafter.start(torch.tensor(self._ids))
        if self._noise is not None:
            self._noise = self._noise_of(int(torch.randint(2**62, (), generator=self._generator)))

    def _prefill(self) -> PrefillDone:
        if is_long := self._num_prompt >= _LONG_PROMPT:
            trim_heap()
        reset_peak_memory(self._target.device)
        watch = Stopwatch(self._target.device)
        self._scorer.prefill(self._ids, self._controls.check_cancelled)
        if self._drafter is not None:
            self._drafter.start(torch.tensor(self._ids))
        self._prefill_ms = watch.lap()
        if is_long:
            # What its forwards took is not needed any more.
            trim_heap()
        if self._drafter is not None:
            self._warm_up()
            # The unit of c and v, which plain decoding has no use for: its steps are such forwards.
            self._target_step_ms = self._scorer.time_one_step(self._ids[-1], self._controls.check_cancelled)
        return PrefillDone(self._num_prompt, self._prefill_ms, self._target_step_ms)

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Draft and score a block for nothing, where that captures the graphs that the first step will launch.

        With draws of its own, so that the run's are what they would have been.
        """
        count = min(self._controls.num_draft_tokens or _USUAL_DRAFT, self._text.room - 1)
        if self._drafter is None or count < 1 or not captures_graphs(self._target.device):
            return
        draft = self._propose(count, self._controls.sampling, torch.Generator().manual_seed(0))
        self._scorer.score(self._ids[-1], draft)
        self._scorer.rewind(len(self._ids) - 1)
        self._drafter.observe(Verification(num_accepted=0, next_token=self._ids[-1], next_kind=TokenKind.CORRECTION))

    @torch.inference_mode()
    def _draft_block(self, policy: DraftLengthPolicy) -> Block:
        """Draft a block with the settings in force. What is timed happens here and in `_judge`."""
        plan = policy.plan(self._controls.draft_length)
        # The last token of a full block is the target's own, so a draft never fills all the room that is left.
        wanted = min(plan.most, self._text.room - 1)
        if self._drafter is None:
            wanted = 0
        sampling = self._controls.sampling
        self._controls.check_cancelled()
        clock = StepClock(self._target.device)
        clock.start()
        draft = self._propose(wanted, sampling, self._generator, plan.keep_drafting)
        clock.stop()
        # Looking at tokens on a GPU means waiting for them; those are looked at when the verdict is waited for anyway.
        if not is_asynchronous(draft.tokens.device):
            check_draft(draft, wanted, self._target.vocab_size, type(self._drafter).__name__)
        return Block(wanted, sampling, draft, clock)

    def _drafted(self, block: Block) -> Drafted:
        check_draft(block.draft, block.wanted, self._target.vocab_size, type(self._drafter).__name__)
        drafted = tuple(block.draft.tokens.tolist())
        texts = display_texts(self._target.tokenizer, drafted)
        return Drafted(self._tally.num_steps, len(self._ids), drafted, texts)

    @torch.inference_mode()
    def _judge(self, block: Block) -> Round:
        """Score and test a block, and rewind both caches to what stands."""
        position = len(self._ids)
        draft, sampling, clock = block.draft, block.sampling, block.clock
        self._controls.check_cancelled()
        clock.start()
        output = self._scorer.score(self._ids[-1], draft)
        clock.stop()

        clock.start()
        target_probs = probabilities(output.logits[:, : self._target.vocab_size], sampling)
        outcome = self._test(draft, target_probs)
        self._scorer.rewind(position + outcome.num_accepted)
        self._features = features_of(output, outcome.num_accepted + 1)
        if self._drafter is not None and block.wanted:
            self._drafter.observe(outcome)
        clock.stop()
        if is_asynchronous(draft.tokens.device):
            check_draft(draft, block.wanted, self._target.vocab_size, type(self._drafter).__name__)
        draft_ms, verify_ms, sample_ms = times = clock.read()
        return Round(draft, target_probs, outcome, sampling.temperature, draft_ms, verify_ms, sample_ms, sum(times))

    def _propose(
        self,
        num_draft_tokens: int,
        sampling: SamplingParams,
        generator: torch.Generator,
        keep_drafting: Callable[[float], bool] | None = None,
    ) -> Draft:
        if self._drafter is None or num_draft_tokens <= 0:
            return empty_draft()
        draft = self._drafter.propose(
            DraftContext(
                ids=self._ids,
                num_draft_tokens=num_draft_tokens,
                sampling=sampling,
                generator=generator,
                vocab_size=self._target.vocab_size,
                check_cancelled=self._controls.check_cancelled,
                gumbel=self._noise,
                features=self._features,
                keep_drafting=keep_drafting,
            )
        )
        # A draft model may have found room on another GPU than the target's.
        probs = None if draft.probs is None else draft.probs.to(self._target.device)
        return draft if probs is draft.probs else replace(draft, probs=probs)

    def _test(self, draft: Draft, target_probs: Tensor) -> Verification:
        if self._noise is None:
            tokens = draft.tokens.to(target_probs.device)
            return verify_block(tokens, draft.probs, target_probs, generator=self._generator)
        check_finite(draft.probs, target_probs)
        first = len(self._ids)
        drawn = [draw_gumbel(row, self._noise(first + index)) for index, row in enumerate(target_probs)]
        return verify_gumbel(draft.tokens, torch.stack(drawn))

    def _commit(self, done: Round, position: int) -> tuple[Step, FinishReason | None]:
        """Add a round's tokens to the text, up to an end if one is among them, and describe it."""
        outcome = done.outcome
        drafted = tuple(done.draft.tokens.tolist())
        tokens = [*drafted[: outcome.num_accepted], outcome.next_token]
        kinds = [TokenKind.ACCEPTED] * outcome.num_accepted + [outcome.next_kind]
        texts, ended = self._text.write(tokens)
        count = len(texts)
        if ended is not None:
            # Both caches and all statistics forget what lay behind the end. The draft's is dropped with the run.
            self._scorer.rewind(len(self._ids) - 1)
            drafted = drafted[:count]
        of_drafted = {name: values[: len(drafted)] for name, values in figures(done).items()}
        step = Step(
            index=self._tally.num_steps,
            position=position,
            num_draft_tokens=len(drafted),
            temperature=done.temperature,
            drafted=drafted,
            drafted_texts=display_texts(self._target.tokenizer, drafted),
            **of_drafted,
            uniforms=outcome.uniforms[: len(drafted)],
            num_accepted=min(count, outcome.num_accepted),
            emitted=tuple(tokens[:count]),
            emitted_kinds=tuple(kinds[:count]),
            emitted_texts=tuple(texts),
            draft_ms=done.draft_ms,
            verify_ms=done.verify_ms,
            sample_ms=done.sample_ms,
            total_ms=done.total_ms,
            next_uniform=outcome.next_uniform if count > outcome.num_accepted else None,
            evidence=(),
        )
        if self._backlog is not None:
            self._backlog.put(step.index, done, len(drafted), count)
        return step, ended

    def _summary(self, reason: FinishReason) -> Summary:
        return self._tally.summary(
            reason,
            self._text.text,
            prefill_ms=self._prefill_ms,
            target_step_ms=self._target_step_ms,
            peak_memory_mb=peak_memory_mb(self._target.device),
        )
