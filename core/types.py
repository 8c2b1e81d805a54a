"""The engine's types: drafts, verification results and the events of a run.

Nothing here imports torch, so the window can use these types before the engine is loaded. Events cross threads: they
are frozen and hold only CPU scalars, strings, tuples and enums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

# Programs outside import the settings from here.
from core.settings import MAX_DRAFT_TOKENS, Coupling, Device, DType, LengthPolicy, RunRequest, SamplingParams  # noqa: F401

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from core.evidence import PositionEvidence


class TokenKind(StrEnum):
    """Where an emitted token came from."""

    ACCEPTED = "accepted"
    """Drafted, tested and accepted."""
    CORRECTION = "correction"
    """Drawn from the residual after a rejection. On screen: resampled."""
    BONUS = "bonus"
    """Drawn from the target after a fully accepted block; also every token of plain decoding (K = 0)."""


class FinishReason(StrEnum):
    LENGTH = "length"
    EOS = "eos"
    STOP = "stop"
    CANCELLED = "cancelled"
    ERROR = "error"


class StepSource(StrEnum):
    """How the steps of a run on a server are known; a run on this machine measures its own."""

    SERVER = "server"
    """The server reported each step's counts."""
    CHUNKS = "chunks"
    """Inferred: each piece of the stream is taken for a step, and the last of its tokens for the target's own."""
    TEXT = "text"
    """Only the text is known; nothing is said about drafting."""


UNKNOWN_ID = -1
"""Stands for the id of a token that a server doesn't report, such as a rejected one; null in the log."""


class TargetFeature(StrEnum):
    """What a drafter may ask the target to return besides its logits."""

    HIDDEN_STATES = "hidden_states"
    """The final states, which the target's head turns into logits."""


Feature = TargetFeature | int
"""A `TargetFeature`, or the number of a layer: the states that enter it; 0 for the embedded tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A block of proposed tokens: a tree, of which a chain is the case with one child each.

    Attributes:
        tokens: (N,) int64, proposed ids; siblings in the order in which they are tested, and may repeat.
        parents: (N,) int64 on the CPU, index of each node's parent, which is lower than its own; -1 for a child of the
            last committed token.
        probs: (N, V) float32, the distribution that each node was drawn from, given its earlier siblings; None if the
            drafter proposes without distributions (a one-hot at each token).
        raw_probs: at temperature 0, computes (N, V) float32 for display: the draft's distributions at temperature 1 at
            each node. None if the drafter has none. Called at most once, outside all timing.
    """

    tokens: Tensor
    parents: Tensor
    probs: Tensor | None
    raw_probs: Callable[[], Tensor] | None = None

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class DraftContext:
    """What a drafter sees when it proposes.

    Attributes:
        ids: committed ids, prompt included; the last one has not been seen by the target yet.
        num_draft_tokens: K, the most nodes wanted; fewer, or none, may be proposed.
        max_depth: the most tokens in a row. K is not above it for a drafter that proposes chains only.
        sampling: the target's own parameters, which apply to the draft's distribution as well.
        generator: source of randomness for this run; unused if `gumbel` is given.
        gumbel: absolute position -> (V,) noise if the run is Gumbel-coupled; else None.
        vocab_size: V, the number of ids that may be emitted.
        check_cancelled: raises to abandon the step; call it before each forward.
        features: what `Drafter.needs` requested, by feature: (m, H) for the positions that the target has read since
            the drafter's last proposal, from the prompt's first to the one whose logits gave the last of `ids`.
        keep_drafting: if not None, a drafter that draws token by token calls it after each token with the draft's
            probability of that token (at temperature 0, its probability at 1). False ends the block after that token.
            A drafter without such probabilities ignores it.
    """

    ids: Sequence[int]
    num_draft_tokens: int
    sampling: SamplingParams
    generator: torch.Generator
    vocab_size: int
    check_cancelled: Callable[[], None]
    max_depth: int = MAX_DRAFT_TOKENS
    gumbel: Callable[[int], Tensor] | None = None
    features: Mapping[Feature, Tensor] = field(default_factory=dict)
    keep_drafting: Callable[[float], bool] | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of testing one block.

    Attributes:
        num_accepted: how many drafted tokens were accepted: the path's length.
        next_token: the id that follows them.
        next_kind: BONUS after a leaf, as after a full chain; else CORRECTION.
        path: the accepted nodes, from the root down; 0, 1, 2… for a chain.
        acceptance_probs: the probability that each node is accepted if it is tested; empty from the engine.
        uniforms: the draw u of each node, tested or not; empty where no draw decides, as under Gumbel coupling and
            typical acceptance.
        next_uniform: the draw that selected `next_token`; None if there is none.
        block: under block verification the weight of the target and the acceptance probability at each position of the
            chain, see `core.verify`; else empty.
    """

    num_accepted: int
    next_token: int
    next_kind: TokenKind
    path: tuple[int, ...] = ()
    acceptance_probs: tuple[float, ...] = ()
    uniforms: tuple[float, ...] = ()
    next_uniform: float | None = None
    block: tuple[BlockTest, ...] = ()


class BlockTest(NamedTuple):
    """Block verification (Sun et al., 2403.10444) after i tokens of a chain.

    Attributes:
        weight: min(1, p / q) accumulated over the tokens: the residual here is max(0, weight target - draft).
        acceptance: the probability that the prefix of these i tokens passes.
        residual: the sum of max(0, weight target - draft) over the vocabulary; 0 after the whole chain.
    """

    weight: float
    acceptance: float
    residual: float = 0.0


def depths_of(parents: Sequence[int]) -> list[int]:
    """The depth of each node of a tree in index order; 0 for a child of the last committed token."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def is_chain(parents: Sequence[int]) -> bool:
    """Whether each node follows the one before it."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


# --- Events -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageChanged:
    """The engine is busy with something the user waits for, such as loading a model."""

    text: str


@dataclass(frozen=True, slots=True)
class RunStarted:
    """First event of a run: the run log's first line, ready for JSON."""

    run_id: str
    started_at: str
    version: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prompt is in the caches. Times in milliseconds.

    `target_step_ms` is the median of a few one-position forwards of the target, timed here; without a baseline it is
    the unit of the cost coefficient and of the verify cost. None in plain decoding, where every step is such a
    forward, and where a policy chooses K, which begins with one.
    """

    num_prompt_tokens: int
    prefill_ms: float
    target_step_ms: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """One draft-verify round, with the run log's field names.

    Sequences over the drafted block have length `num_draft_tokens`; those over the emitted tokens have length
    `num_accepted` + 1, or less if the text ended within the block. A tree's nodes are in index order.

    Attributes:
        index: number of the step, from 0.
        position: absolute position of the first emitted token, prompt included.
        num_draft_tokens: tokens drafted in this step, fewer if the text ended with one of the accepted ones; 0 is
            a plain step.
        temperature: in force for this step.
        drafted, drafted_texts: the block; texts are for display.
        draft_probs, target_probs: probability of each drafted id under the two models, after the filters. In a tree
            whose siblings are tested by draws, p is what the earlier ones leave.
        acceptance_probs: min(1, p / q) of each drafted id; in a tree p is what its earlier siblings leave. Under block
            verification the weight w of the prefix that ends with it: the probability that this prefix is accepted.
        expected_acceptance: sum over the vocabulary of min(p, q), by drafted position; of min(w p, q) under block
            verification, w being the weight of the prefix before it. 0 behind an end-of-text token, where none is
            accepted. Both are NaN under typical acceptance.
        uniforms: the draw of each drafted token, tested or not; as in `Verification`.
        num_accepted: drafted tokens that were accepted, up to the end of the text.
        emitted, emitted_kinds, emitted_texts: what was added to the text.
        draft_ms, verify_ms, sample_ms: drafting; the target's forward; filters, verification and the next token.
        total_ms: the whole step, without the capture of evidence.
        next_uniform: the draw that took the last emitted token from the residual or the target; None if the text ended
            before it, or if the coupling draws none.
        evidence: the distributions at each drafted position and at the bonus token's, if requested. During a run they
            follow the step as `Inspected`.
        parents, accepted_path: of a tree, as in `Draft` and `Verification`; both empty for a chain.
        block: as in `Verification`.
        absent_ms: time in which the machine slept or the process was suspended; no other time includes it.
        source: of a step on a server how its counts are known; None for one on this machine. Such a step holds NaN for
            what the server doesn't report, and `UNKNOWN_ID` for ids; its time is that between two arrivals.
        draft_length: K in force for this step, or the policy that chose it; None in older logs and on a server.
    """

    index: int
    position: int
    num_draft_tokens: int
    temperature: float
    drafted: tuple[int, ...]
    drafted_texts: tuple[str, ...]
    draft_probs: tuple[float, ...]
    target_probs: tuple[float, ...]
    acceptance_probs: tuple[float, ...]
    expected_acceptance: tuple[float, ...]
    uniforms: tuple[float, ...]
    num_accepted: int
    emitted: tuple[int, ...]
    emitted_kinds: tuple[TokenKind, ...]
    emitted_texts: tuple[str, ...]
    draft_ms: float
    verify_ms: float
    sample_ms: float
    total_ms: float
    next_uniform: float | None = None
    evidence: Sequence[PositionEvidence] = ()
    parents: tuple[int, ...] = ()
    accepted_path: tuple[int, ...] = ()
    block: tuple[BlockTest, ...] = ()
    absent_ms: float = 0.0
    source: StepSource | None = None
    draft_length: int | LengthPolicy | None = None

    @property
    def may_hide_draft(self) -> bool:
        """Whether it may have drafted unseen: a server's stream may not show a draft that was rejected as a whole."""
        # The first token comes from the prompt.
        return self.index > 0 and self.source in {StepSource.CHUNKS, StepSource.TEXT} and not self.num_draft_tokens

    def counted(self, num_draft_tokens: int, num_accepted: int) -> Step:
        """This step of a server with the server's own counts, in place of inferred ones."""
        count = len(self.emitted)
        kept, drafted = min(num_accepted, count), max(num_accepted, num_draft_tokens)
        drafted = drafted if count > num_accepted else count  # The text ended within the block.
        unknown = (math.nan,) * drafted
        last = TokenKind.BONUS if drafted == kept else TokenKind.CORRECTION
        return replace(
            self,
            num_draft_tokens=drafted,
            drafted=(*self.emitted[:kept], *(UNKNOWN_ID,) * (drafted - kept)),
            drafted_texts=(*self.emitted_texts[:kept], *("",) * (drafted - kept)),
            draft_probs=unknown,
            target_probs=unknown,
            acceptance_probs=unknown,
            expected_acceptance=unknown,
            num_accepted=kept,
            emitted_kinds=(TokenKind.ACCEPTED,) * kept + (last,) * (count - kept),
            source=StepSource.SERVER,
        )

    def part(self, start: int, stop: int, index: int, share: float) -> Step:
        """Some of this step's emitted tokens as a step of their own, with a share of its time."""
        return replace(
            self,
            index=index,
            position=self.position + start,
            emitted=self.emitted[start:stop],
            emitted_kinds=self.emitted_kinds[start:stop],
            emitted_texts=self.emitted_texts[start:stop],
            total_ms=self.total_ms * share,
        )

    @property
    def emitted_text(self) -> str:
        return "".join(self.emitted_texts)

    @property
    def path(self) -> tuple[int, ...]:
        """The accepted nodes, from the root down, of a chain, too."""
        return self.accepted_path if self.parents else tuple(range(self.num_accepted))

    @property
    def slots(self) -> tuple[int, ...]:
        """The place in the block of each emitted token: its node, or, before a correction, the last node tested; a
        bonus stands behind all nodes."""
        if not self.parents:
            return tuple(range(len(self.emitted)))
        end = self.accepted_path[-1] if self.accepted_path else -1
        last = max((node for node, parent in enumerate(self.parents) if parent == end), default=self.num_draft_tokens)
        return (*self.accepted_path, last)[: len(self.emitted)]

    @property
    def tested(self) -> tuple[int, ...]:
        """The drafted tokens that were tested: after each accepted one, its children up to the accepted one. Above
        temperature 0, typical acceptance tests all its children, and block verification all tokens."""
        if self.block and self.temperature != 0:
            return tuple(range(self.num_draft_tokens))
        if not self.parents:
            return tuple(range(self.num_accepted + (TokenKind.CORRECTION in self.emitted_kinds)))
        # Typical acceptance has no acceptance probabilities; where p is unknown, too, a server or an old log has none.
        figures = zip(self.target_probs, self.acceptance_probs, strict=False)
        if self.temperature != 0 and any(math.isfinite(p) and math.isnan(chance) for p, chance in figures):
            return tuple(node for node, parent in enumerate(self.parents) if parent in {-1, *self.accepted_path})
        end, found = -1, []
        for node, parent in enumerate(self.parents):
            if parent == end:
                found.append(node)
                end = node if node in self.accepted_path else end
        return tuple(found)

    @property
    def depths(self) -> list[int]:
        """The depth of each drafted token, from 0."""
        return depths_of(self.parents) if self.parents else list(range(self.num_draft_tokens))

    @property
    def depth(self) -> int:
        """How many tokens in a row were drafted: of a chain all."""
        return max(self.depths) + 1 if self.parents else self.num_draft_tokens


@dataclass(frozen=True, slots=True)
class Drafted:
    """A block that awaits verification; fields as in `Step`. Sent only while the user follows single steps."""

    index: int
    position: int
    drafted: tuple[int, ...]
    drafted_texts: tuple[str, ...]
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Inspected:
    """The evidence of an earlier step: sent while the run is paused, at its end, or at once while it is inspected."""

    index: int
    evidence: Sequence[PositionEvidence]


@dataclass(frozen=True, slots=True)
class StepsCounted:
    """What a server reports at the end about steps that were inferred.

    Attributes:
        counts: by step, drafted and accepted of each of the steps that it really was: a server may send several at
            once. None where the counts fit in several ways, as some steps drafted nothing: such a step stays inferred,
            but a single token then shows no rejection.
    """

    counts: tuple[tuple[tuple[int, int], ...] | None, ...]

    def applied(self, steps: Iterable[Step]) -> Iterator[Step]:
        """The steps with these counts; those that were sent at once share their time equally."""
        added = 0
        for step in steps:
            counts = self.counts[step.index] if 0 <= step.index < len(self.counts) else ()
            # A log may be a stranger's: what can't be is left out.
            if not counts or not step.source or len(step.emitted) <= sum(kept + 1 for _, kept in counts[:-1]):
                whole = step.part(0, len(step.emitted), step.index + added, 1.0)
                is_guess = counts is None and step.source is StepSource.CHUNKS and not step.num_accepted
                yield replace(whole.counted(0, 0), source=step.source) if is_guess else whole
                continue
            start = 0
            for place, (drafted, accepted) in enumerate(counts):
                stop = len(step.emitted) if place == len(counts) - 1 else start + accepted + 1
                part = step.part(start, stop, step.index + added + place, 1 / len(counts))
                yield part.counted(drafted, accepted)
                start = stop
            added += len(counts) - 1


@dataclass(frozen=True, slots=True)
class BaselineStep:
    """One token of the plain baseline, which follows the speculative run it is compared with."""

    step: Step


@dataclass(frozen=True, slots=True)
class Summary:
    """Results of a run. Rates cover decoding only; the prefill is reported separately.

    Attributes:
        num_drafts: steps in which at least one token was drafted; 0 if a server reports only how many tokens were.
        num_draft_tokens: all drafted tokens; 0, like num_drafts, if a server's steps don't show every draft.
        num_accepted_tokens_per_pos: how often a drafted token at each position after the text was accepted; empty if
            a server doesn't report it.
        draft_acceptance_rate: accepted / drafted; None if nothing was drafted, or not every draft is known.
        block_efficiency: tokens emitted per target forward.
        cost_coefficient: one draft step's time / one target step's time.
        tokens_per_second: num_tokens / the sum of the steps' total_ms; None if these are too few or too short to tell.
        predicted_speedup: tau / (K c + v(K+1)) from this run's measured alpha, c and v.
        measured_speedup: tokens_per_second / baseline_tokens_per_second; None if the baseline did not finish, or if
            the steps were taken one by one.
        measured_speedup_interval: its 95 % interval; None where there are few steps.
        was_busy: whether the machine was busy during the run or its baseline, so far as their steps show.
        expected_acceptance_rate: the accepted / drafted expected of the run's way of testing, or, under Gumbel
            coupling, of rejection sampling; None under typical acceptance.
        num_threads, baseline_num_threads: CPU threads in use at the end of each.
        error: what went wrong: in the baseline, unless the finish reason is ERROR.
        target_step_ms: time of the target's one-position forward, as in `PrefillDone` or of the first plain step.
        source: of a run on a server how the counts are known: SERVER for this run's own, CHUNKS if they are inferred
            from the stream or from the server's counters, TEXT if nothing is known about drafting.
        was_stepped: whether steps were taken one by one: between them processors idle, and then are slower.
    """

    finish_reason: FinishReason
    text: str
    num_tokens: int
    num_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    draft_acceptance_rate: float | None
    block_efficiency: float | None
    cost_coefficient: float | None
    tokens_per_second: float | None
    prefill_ms: float
    peak_memory_mb: float | None
    predicted_speedup: float | None
    baseline_tokens_per_second: float | None = None
    baseline_text: str | None = None
    num_threads: int | None = None
    baseline_num_threads: int | None = None
    measured_speedup: float | None = None
    measured_speedup_interval: tuple[float, float] | None = None
    was_busy: bool | None = None
    error: str | None = None
    expected_acceptance_rate: float | None = None
    target_step_ms: float | None = None
    source: StepSource | None = None
    was_stepped: bool = False

    @property
    def has_baseline(self) -> bool:
        """Whether the baseline ran to its end; from one that was stopped, no speedup follows."""
        return self.baseline_tokens_per_second is not None or self.baseline_text is not None

    def shown(self, steps: Sequence[Step]) -> Sequence[Step]:
        """The steps with no more text than the summary has: a stop text may begin in tokens emitted before its end."""
        text, left = "".join(step.emitted_text for step in steps), len(self.text)
        # A damaged log may hold any text.
        if self.finish_reason is not FinishReason.STOP or text == self.text or not text.startswith(self.text):
            return steps
        found: list[Step] = []
        for step in steps:
            texts: list[str] = []
            for text in step.emitted_texts:
                texts.append(text[:left])
                left -= len(texts[-1])
            found.append(replace(step, emitted_texts=tuple(texts)))
        return found


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of a run, also of one that was stopped before it started."""

    summary: Summary


Event = StageChanged | RunStarted | PrefillDone | Drafted | Step | StepsCounted | Inspected | BaselineStep | Finished
