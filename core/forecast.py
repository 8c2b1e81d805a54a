"""What another draft length, or another way to draft, would have made of a run: from the run's own steps."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from core.analysis import expected_tokens
from core.diagnosis import LEAST_BLOCKS, LEAST_TIMED, Diagnosis, StepSums
from core.types import MAX_DRAFT_TOKENS

LONGEST_LOOKUP = 3
"""Tokens that are looked up first, as prompt lookup does unless told otherwise."""


class VerifyCurve:
    """v(n), the time to score n positions / the time to score one: 1 at n = 1, measured where blocks of that length
    ran, on the line between two such, and beyond the longest as steep as from the first to it."""

    def __init__(self, sums: StepSums, forward_ms: float) -> None:
        self._points = [(1, 1.0)]
        for length in sorted(sums.verify_by_length):
            times = sums.verify_by_length[length]
            if len(times) >= LEAST_TIMED:
                # Scoring more never takes less: where it seems to, a slow moment is to blame.
                cost = max(self._points[-1][1], statistics.median(times) / forward_ms)
                self._points.append((length + 1, cost))

    @property
    def longest(self) -> int:
        """The longest K that was measured; 0 if none was."""
        return self._points[-1][0] - 1

    def __call__(self, positions: int) -> float:
        """v(positions)."""
        for left, right in itertools.pairwise(self._points):
            if positions <= right[0]:
                return left[1] + (right[1] - left[1]) * (positions - left[0]) / (right[0] - left[0])
        first, last = self._points[0], self._points[-1]
        slope = (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0
        return last[1] + slope * (positions - last[0])


def tokens_per_block(sums: StepSums, num_draft_tokens: int) -> float:
    """Tokens that a block of this length emits: as blocks at least so long did, place by place.

    Acceptance differs from place to place and from text to text, so that the shares of the blocks that were kept so
    far say more than alpha^i; beyond the places that were seen often enough, each further token stands with alpha.
    """
    alpha = sums.accepted / sums.tested if sums.tested else 0.0
    total = survival = 1.0
    for position in range(num_draft_tokens):
        if position >= len(sums.reached) or sums.reached[position] < LEAST_BLOCKS:
            # 1 + alpha + … + alpha^m, less the 1 that is counted already.
            return total + survival * (expected_tokens(alpha, num_draft_tokens - position) - 1.0)
        survival = sums.kept[position] / sums.reached[position]
        total += survival
    return total


@dataclass(frozen=True, slots=True)
class LengthForecast:
    """The K that pays most, and what it would have reached; both in the run's own measure."""

    num_draft_tokens: int
    speedup: float
    is_within: bool
    """Whether K is no longer than what ran; behind that, the cost of scoring is a line drawn on."""


def best_length(sums: StepSums, diagnosis: Diagnosis) -> LengthForecast | None:
    """The best K from 1 to twice the longest that ran; None where nothing tells.

    The model's speedup is scaled so that it meets what was measured at the run's own K.
    """
    own = diagnosis.usual_length
    curve = VerifyCurve(sums, diagnosis.plain.forward_ms)
    if not (diagnosis.is_enough and own and curve.longest and sums.reached):
        return None
    speedups = {k: _model(sums, diagnosis, curve, k) for k in range(1, min(2 * curve.longest, MAX_DRAFT_TOKENS) + 1)}
    if own not in speedups:
        return None
    best = max(speedups, key=lambda k: (speedups[k], -k))
    scale = diagnosis.speedup / speedups[own]
    return LengthForecast(best, scale * speedups[best], best <= curve.longest)


def _model(sums: StepSums, diagnosis: Diagnosis, curve: VerifyCurve, num_draft_tokens: int) -> float:
    drafting = sums.num_blocks / sums.num_steps
    plain = diagnosis.plain
    draft_ms = num_draft_tokens * sums.draft_ms / sums.drafted
    block_ms = draft_ms + plain.forward_ms * curve(num_draft_tokens + 1)
    tokens = drafting * tokens_per_block(sums, num_draft_tokens) + (1 - drafting)
    total_ms = drafting * block_ms + (1 - drafting) * plain.forward_ms + diagnosis.overhead_ms
    return tokens * plain.total_ms / total_ms


@dataclass(frozen=True, slots=True)
class LookupForecast:
    """What prompt lookup would have kept of a text: in `num_steps` steps, `num_accepted` of `num_drafted` tokens."""

    num_steps: int
    num_drafted: int
    num_accepted: int
    speedup: float


def forecast_lookup(
    prompt: Sequence[int], emitted: Sequence[int], sums: StepSums, diagnosis: Diagnosis
) -> LookupForecast | None:
    """Replay the run's own text with prompt lookup: a token that it would have proposed there, and that was emitted.

    That is no guess at the law: prompt lookup is accepted with the target's probability of its token, which is how
    often the text has it.
    """
    if not emitted:
        return None
    length = diagnosis.usual_length or 4
    curve = VerifyCurve(sums, diagnosis.plain.forward_ms)
    ids, place = [*prompt, *emitted], len(prompt)
    index = _LookupIndex(ids)
    steps = drafted = accepted = 0
    total_ms = 0.0
    while place < len(ids):
        found = index.continuation(place, length)
        kept = next((i for i, token in enumerate(found) if ids[place + i : place + i + 1] != [token]), len(found))
        steps, drafted, accepted = steps + 1, drafted + len(found), accepted + kept
        total_ms += diagnosis.plain.forward_ms * curve(len(found) + 1) + diagnosis.overhead_ms
        place += kept + 1
    return LookupForecast(steps, drafted, accepted, len(emitted) * diagnosis.plain.total_ms / total_ms)


class _LookupIndex:
    """Where each n-gram of a text continued the last time; knows no more of the text than it is asked to go on from."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._continuations: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def continuation(self, place: int, length: int) -> Sequence[int]:
        """What followed the tokens before `place`, up to `length` of it; empty where they are new."""
        for end in range(self._num_indexed, place - 1):
            for size in range(1, min(LONGEST_LOOKUP, end + 1) + 1):
                self._continuations[tuple(self._ids[end + 1 - size : end + 1])] = end + 1
        self._num_indexed = max(self._num_indexed, place - 1)
        for size in range(min(LONGEST_LOOKUP, place), 0, -1):
            begin = self._continuations.get(tuple(self._ids[place - size : place]))
            if begin is not None:
                return self._ids[begin : min(begin + length, place)]
        return ()
