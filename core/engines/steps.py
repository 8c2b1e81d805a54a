"""From what a server streams to the steps of a run: counts that it tells, or, labelled so, inferred ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.engines.server import Speculation
from core.types import UNKNOWN_ID, FinishReason, Step, StepSource, TokenKind

Counts = tuple[int, int]
"""Of a step: how many tokens were drafted, and how many of them accepted."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as a server tells it.

    Attributes:
        id: `UNKNOWN_ID` if it isn't told.
        text: as it stands in the text; empty for a special token.
        logprob: of the target, as the server computes it; NaN if it isn't told.
        top: the likeliest tokens here with their logprobs, by text, if they were asked for.
    """

    id: int
    text: str
    logprob: float = math.nan
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """What a server tells about a whole request, at its end; None if it doesn't.

    `per_step` holds the counts of each step that drafted, in order; empty if they aren't told.
    """

    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    per_step: tuple[Counts, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer, as far as the server shows one step of decoding.

    Attributes:
        arrived: `time.perf_counter` when its last token arrived.
        tokens: may be none, as in the last chunk.
        counts: those of this step, if the server tells them at once.
        is_step: False where a piece says nothing about steps.
        finish: why the text ends, in the chunk that ends it.
        told: in the last chunk.
        prompt_ids, num_prompt_tokens: of the prompt, as soon as the server tells them.
    """

    arrived: float
    tokens: tuple[Token, ...] = ()
    counts: Counts | None = None
    is_step: bool = True
    finish: FinishReason | None = None
    told: Told | None = None
    prompt_ids: tuple[int, ...] | None = None
    num_prompt_tokens: int | None = None


class StepMaker:
    """Makes a run's steps from its chunks."""

    def __init__(self, speculation: Speculation, temperature: float) -> None:
        self._speculation = speculation
        self._temperature = temperature
        self._last: float | None = None
        self.steps: list[Step] = []

    def step(self, chunk: Chunk, position: int) -> Step:
        """The step of a chunk with tokens. The first has no time of its own: it came with the prefill."""
        counts, source = (chunk.counts, StepSource.SERVER) if chunk.counts else self._inferred(chunk)
        elapsed = math.nan if self._last is None else max(0.0, chunk.arrived - self._last) * 1e3
        self._last = chunk.arrived
        step = Step(
            index=len(self.steps),
            position=position,
            num_draft_tokens=0,
            temperature=self._temperature,
            drafted=(),
            drafted_texts=(),
            draft_probs=(),
            target_probs=(),
            acceptance_probs=(),
            expected_acceptance=(),
            uniforms=(),
            num_accepted=0,
            emitted=tuple(token.id for token in chunk.tokens),
            emitted_kinds=(TokenKind.BONUS,) * len(chunk.tokens),
            emitted_texts=tuple(token.text for token in chunk.tokens),
            draft_ms=math.nan,
            verify_ms=math.nan,
            sample_ms=math.nan,
            total_ms=elapsed,
            source=source,
        )
        # Without counts, all tokens stand for themselves.
        step = replace(step.counted(*counts), source=source) if any(counts) else step
        self.steps.append(step)
        return step

    def _inferred(self, chunk: Chunk) -> tuple[Counts, StepSource]:
        """The counts of a chunk that tells none: its last token is the target's own, those before were accepted."""
        most, accepted = self._speculation.num_draft_tokens, len(chunk.tokens) - 1
        if self._speculation.is_on is False:
            return (0, 0), StepSource.SERVER
        if not chunk.is_step or not self._speculation.is_on or most is None or accepted > most:
            return (0, 0), StepSource.TEXT
        # The first token comes with the prefill. A single token shows a rejection only where every step drafts.
        if not self.steps or not (accepted or self._speculation.drafts_always):
            return (0, 0), StepSource.CHUNKS
        return (most, accepted), StepSource.CHUNKS


def align(sizes: Sequence[int], per_step: Sequence[Counts]) -> tuple[Counts | None, ...]:
    """Which step has which of the counts that a server lists for the steps that drafted.

    A step that emitted several tokens is found by their number. Among single tokens, rejected drafts and steps without
    a draft look alike: where both occur between two such steps, they stay None.

    Args:
        sizes: tokens that each step emitted; the first step is the prefill's and never drafts.
        per_step: drafted and accepted of each step that drafted, in order. The last may have been cut by the end.

    Returns:
        One entry a step; none at all if the two don't fit.
    """
    fits = _align(sizes, per_step)
    if not fits and sizes and per_step and per_step[-1][1] >= sizes[-1]:
        fits = _align(sizes[:-1], per_step[:-1])
        fits = (*fits, per_step[-1]) if fits else ()
    return fits


def _align(sizes: Sequence[int], counts: Sequence[Counts]) -> tuple[Counts | None, ...]:
    found: list[Counts | None] = [(0, 0)] * len(sizes)
    singles: list[int] = []
    entry = 0
    for step in (*range(1, len(sizes)), None):
        if step is not None and sizes[step] == 1:
            singles.append(step)
            continue
        rejected = list(itertools.takewhile(lambda pair: not pair[1], counts[entry:]))
        entry += len(rejected)
        if len(rejected) > len(singles):
            return ()
        if rejected:
            found[singles[0] : singles[-1] + 1] = rejected if len(rejected) == len(singles) else [None] * len(singles)
        singles = []
        if step is not None:
            if entry == len(counts) or counts[entry][1] != sizes[step] - 1:
                return ()
            found[step] = counts[entry]
            entry += 1
    return tuple(found) if entry == len(counts) else ()


def split_text(text: str, parts: Sequence[str]) -> list[str]:
    """A chunk's text by token, given each token's own text, which may be a special token's name or half a character."""
    shown: list[str] = []
    for part in parts:
        is_next = bool(part) and text.startswith(part)
        shown.append(part if is_next else "")
        text = text[len(part) :] if is_next else text
    if text and shown:
        shown[-1] += text
    return shown


def unknown_tokens(text: str, count: int = 1) -> tuple[Token, ...]:
    """Tokens of which only the text is known."""
    return tuple(Token(UNKNOWN_ID, part) for part in split_text(text, [""] * count))
