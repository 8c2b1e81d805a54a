"""Choosing K before each step, 0 included, from what forwards cost here and how much was accepted lately."""

from __future__ import annotations

from core.analysis import expected_tokens
from core.types import MAX_DRAFT_TOKENS, Step, TokenKind

_MEMORY = 0.95
"""Weight that the past keeps with every step: some 20 steps count."""

_FIRST_K = 3
_PROBE_K = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256


class AutoDraftLength:
    """Maximises expected tokens per millisecond, E[tokens](alpha, K) / (K d + t(K + 1)).

    The choice rests on earlier steps alone, never on the tokens about to be drafted, so it leaves the output's law as
    it is. Where no K pays it plainly decodes, and looks again with a short draft after a pause that doubles each time.
    """

    def __init__(self, target_step_ms: float) -> None:
        self._scoring_ms: dict[int, float] = {1: target_step_ms}
        self._draft_ms: float | None = None
        # A few imagined tests, so that the first real ones don't decide alone.
        self._accepted, self._tested = 2.1, 3.0
        self._plain_steps = 0
        self._pause = _FIRST_PAUSE

    def choose(self) -> int:
        """K for the next step."""
        if self._draft_ms is None:
            return _FIRST_K
        best = max(range(MAX_DRAFT_TOKENS + 1), key=lambda k: (self._rate(k), -k))
        if best:
            self._plain_steps, self._pause = 0, _FIRST_PAUSE
            return best
        self._plain_steps += 1
        if self._plain_steps >= self._pause:
            self._plain_steps, self._pause = 0, min(2 * self._pause, _LONGEST_PAUSE)
            return _PROBE_K
        return 0

    def record(self, step: Step) -> None:
        """Learn from a finished step."""
        count = step.num_draft_tokens
        positions = count + 1
        known = self._scoring_ms.get(positions)
        self._scoring_ms[positions] = step.verify_ms if known is None else 0.8 * known + 0.2 * step.verify_ms
        if not count:
            return
        draft_ms = step.draft_ms / count
        self._draft_ms = draft_ms if self._draft_ms is None else 0.8 * self._draft_ms + 0.2 * draft_ms
        self._accepted = _MEMORY * self._accepted + step.num_accepted
        self._tested = _MEMORY * self._tested + step.num_accepted + (TokenKind.CORRECTION in step.emitted_kinds)

    def _rate(self, count: int) -> float:
        alpha = min(self._accepted / self._tested, 1.0) if self._tested else 0.0
        return expected_tokens(alpha, count) / (count * (self._draft_ms or 0.0) + self._scoring_time(count + 1))

    def _scoring_time(self, positions: int) -> float:
        """t(n): as measured, else on the line through its measured neighbours."""
        known = self._scoring_ms
        if positions in known:
            return known[positions]
        below = max(n for n in known if n < positions)
        above = min((n for n in known if n > positions), default=None)
        if above is not None:
            share = (positions - below) / (above - below)
            return known[below] + share * (known[above] - known[below])
        slope = max((known[below] - known[1]) / (below - 1), 0.0) if below > 1 else 0.1 * known[1]
        return known[below] + slope * (positions - below)
