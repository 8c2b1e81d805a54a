"""From what a server streams to the steps of a run: counts that it reports, or inferred ones, labelled so."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.engines.server import Speculation
from core.types import UNKNOWN_ID, FinishReason, Step, StepSource, TokenKind

Counts = tuple[int, int]
"""Of a step: how many tokens were drafted, and how many of them accepted."""

MAX_COUNT = 1_000
"""Counts of a step above this are a server's mistake, and not kept."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as a server reports it.

    Attributes:
        id: `UNKNOWN_ID` if it isn't reported.
        text: as it stands in the text; empty for a special token.
        logprob: of the target, as the server computes it; NaN if it isn't reported.
        top: the likeliest tokens here with their logprobs, by name, if they were asked for.
        name: as the server names it with its logprob, also a special token or half a character; empty if it doesn't.
    """

    id: int
    text: str
    logprob: float = math.nan
    top: tuple[tuple[str, float], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """What a server reports about a whole request, at its end; None if it doesn't.

    `per_step` holds the counts of each step that drafted, in order; empty if they aren't reported.
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
        counts: those of this step, if the server reports them with it.
        is_step: False where a piece says nothing about steps.
        finish: why the text ends, in the chunk that ends it.
        reported: in the last chunk.
        prompt_ids, num_prompt_tokens: of the prompt, as soon as the server reports them.
        surplus: how many characters at the end of the earlier chunks' text belong to the stop text that ended it.
    """

    arrived: float
    tokens: tuple[Token, ...] = ()
    counts: Counts | None = None
    is_step: bool = True
    finish: FinishReason | None = None
    reported: Reported | None = None
    prompt_ids: tuple[int, ...] | None = None
    num_prompt_tokens: int | None = None
    surplus: int = 0


FEWEST_WAITS, SHORTEST_MS, SHORTEST_WAIT_MS = 3, 50.0, 1.0
"""What a speed needs: waits for a step, and how long they lasted in all and on average."""


def shows_speed(num_waits: int, waited_ms: float) -> bool:
    """Whether the waits between steps show a speed: fewer, or shorter ones, say more about the connection.

    A proxy or a busy machine may hold steps back and send them at once.
    """
    return num_waits >= FEWEST_WAITS and waited_ms >= max(SHORTEST_MS, SHORTEST_WAIT_MS * num_waits)


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
        if max(counts) > MAX_COUNT:
            counts, source = (0, 0), StepSource.CHUNKS
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
        """The counts of a chunk that reports none: its last token is the target's own, those before were accepted."""
        most, accepted = self._speculation.num_draft_tokens, len(chunk.tokens) - 1
        if self._speculation.is_on is False:
            return (0, 0), StepSource.SERVER
        if not chunk.is_step or not self._speculation.is_on or most is None or accepted > most:
            return (0, 0), StepSource.TEXT
        # The first token comes with the prefill. A single token shows a rejection only where every step drafts.
        if not self.steps or not (accepted or self._speculation.drafts_always):
            return (0, 0), StepSource.CHUNKS
        return (most, accepted), StepSource.CHUNKS


def align(sizes: Sequence[int], per_step: Sequence[Counts]) -> tuple[tuple[Counts, ...] | None, ...]:
    """Which chunk holds which of the steps that a server lists at the end.

    A step lies within one chunk, and emits one token more than it accepted. Steps without a draft aren't listed, so
    that there may be several ways: a chunk in which these differ is None.

    Args:
        sizes: tokens of each chunk; the very first token is the prefill's.
        per_step: drafted and accepted of each step that drafted, in order. The last may have been cut by the end.

    Returns:
        The counts of each chunk's steps, by chunk; none at all if the two don't fit.
    """
    if not (sizes and per_step):
        return ()
    if fits := _align(sizes, per_step):
        return fits
    *before, (drafted, accepted) = per_step
    for emitted in range(min(accepted, sizes[-1]), 0, -1):
        if fits := _align([*sizes[:-1], sizes[-1] - emitted], before):
            return (*fits[:-1], None if fits[-1] is None else (*fits[-1], (drafted, accepted)))
    return ()


def _align(sizes: Sequence[int], per_step: Sequence[Counts]) -> tuple[tuple[Counts, ...] | None, ...]:
    total = sum(sizes)
    ends = list(itertools.accumulate(sizes))
    limits = [end for size, end in zip(sizes, ends, strict=True) for _ in range(size)]
    places: defaultdict[Counts, int] = defaultdict(int)
    for place, counts in enumerate(per_step):
        places[counts] |= 1 << place
    # Bit n of the entry for a place in the text: n of the listed steps may lie before it, and the others behind it.
    before, behind = [0] * (total + 1), [0] * (total + 1)
    if not sizes[0]:
        return ()
    before[1], behind[total] = 1, 1 << len(per_step)
    for at in range(1, total):
        before[at + 1] |= before[at]
        for (_, accepted), found in places.items():
            if (after := at + accepted + 1) <= limits[at]:
                before[after] |= (before[at] & found) << 1
    for at in reversed(range(1, total)):
        behind[at] = behind[at + 1]
        for (_, accepted), found in places.items():
            if (after := at + accepted + 1) <= limits[at]:
                behind[at] |= (behind[after] >> 1) & found
    if not before[total] & behind[total]:
        return ()

    def steps_at(at: int) -> set[Counts]:
        """The steps that may begin at a place."""
        if at == 0:
            return {(0, 0)}
        plain = {(0, 0)} if before[at] & behind[at + 1] else set()
        return plain | {
            counts
            for counts, found in places.items()
            if (after := at + counts[1] + 1) <= limits[at] and before[at] & found & (behind[after] >> 1)
        }

    def steps_of(start: int, end: int) -> tuple[Counts, ...] | None:
        found: list[Counts] = []
        at = start
        while at < end:
            if len(ways := steps_at(at)) > 1:
                # At least no token is shown as accepted that can't be.
                is_plain = end > start + 1 and not any(kept for each in range(start, end) for _, kept in steps_at(each))
                return ((0, 0),) * (end - start) if is_plain else None
            found += ways
            at += found[-1][1] + 1
        return tuple(found)

    return tuple(steps_of(end - size, end) for size, end in zip(sizes, ends, strict=True))


def split_text(text: str, parts: Sequence[str]) -> list[str]:
    """A chunk's text by token, given each token's own text.

    That may be a special token's name, half a character, or lack the space before it, as SentencePiece decodes it.
    """
    shown: list[str] = []
    for part in parts:
        found = next((way for way in (part, f" {part}") if part and text.startswith(way)), "")
        shown.append(found)
        text = text[len(found) :]
    if text and shown:
        shown[-1] += text
    return shown


def unknown_tokens(text: str) -> tuple[Token, ...]:
    """A token of which only the text is known."""
    return (Token(UNKNOWN_ID, text),)
