"""Choosing K within the block as well: drafting goes on as long as another token is likely to pay.

How likely a drafted token is to stand shows in how probable the draft itself found it. What that probability is worth
differs from pair to pair and from text to text, so the run's own tests tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from core.analysis import expected_accepted, expected_tokens
from core.draft_length import DraftLength
from core.policy import AutoDraftLength
from core.types import MAX_DRAFT_TOKENS, LengthPolicy, Step

_MEMORY_OF_TESTS = 0.99
"""Weight that tests keep with every later one: some hundred count."""

_PRIOR_CONFIDENCE, _PRIOR_CHANCE, _PRIOR_WEIGHT = 0.5, 0.75, 2.0
"""An imagined token and how it did, and for how many real ones it counts."""

_PRIOR_SLOPE, _SLOPE_WEIGHT = 0.4, 0.5
"""By how much more a sure token stands than an unsure one, before it is seen; and how much of a spread says so."""

_MEMORY_OF_BLOCKS = 0.95


class BlockPlan(NamedTuple):
    """How the next block is drafted: at most so many tokens, and what is asked after each of them, if anything."""

    most: int
    keep_drafting: Callable[[float], bool] | None = None


class DraftLengthPolicy(AutoDraftLength):
    """Plans each block by whichever policy is in force, and learns from every step alike.

    ADAPTIVE leaves it to AUTO's account whether anything is drafted, so that a hopeless draft costs no more than there.
    Within a block it goes on while a token more is expected to bring in more than its time does elsewhere:
    P(all so far stand) x P(the next one stands) > (T(n + 1) - T(n)) x rate, the rate being the run's tokens a
    millisecond; or while the next few together are, where T(K) has a steep place first. That is the rule of the best
    stopping time of a renewal process, its rate learnt as it goes.

    It looks at tokens that are in the block already, and never takes one back; so the text's law is the target's.
    A drafter that tells no probabilities is drafted with as AUTO does.

    A look at a probability waits for the device that has it. On the processor that is nothing; on CUDA it costs the
    graph that drafts a whole block in one launch, so that a draft step there is one launch and one wait. That time is
    in the steps' own, and weighed like any other.
    """

    def __init__(self, target_step_ms: float) -> None:
        super().__init__(target_step_ms)
        self._calibration = Calibration()
        self._confidences: list[float] = []
        self._is_told = False
        self._is_adaptive = False
        self._most = 0
        self._standing = self._next = self._price = 1.0
        self._times: list[float] = []
        self._tokens = self._spent_ms = 0.0

    def plan(self, length: DraftLength) -> BlockPlan:
        """The next block, for a K or a policy."""
        self._confidences.clear()
        self._is_adaptive = length is LengthPolicy.ADAPTIVE
        if not isinstance(length, LengthPolicy):
            return BlockPlan(length)
        self._most = self.choose()
        if not self._is_adaptive or not self._most:
            return BlockPlan(self._most)
        if self._is_told and not self._is_trial:
            self._most = min(2 * self._costs.longest + 1, MAX_DRAFT_TOKENS)
            if self._is_hopeful:
                self._most = self._promising() or self._most
        # What doesn't change within the block is worked out once: it is asked after every drafted token.
        self._standing, self._next, self._price = 1.0, self._later.mean(self._first.mean(_PRIOR_CHANCE)), self._rate
        self._times = self._costs.table(hopeful=self._is_hopeful)
        return BlockPlan(self._most, self._keep_drafting)

    def record(self, step: Step) -> None:
        """Learn from a finished step."""
        super().record(step)
        if not self._confidences or not step.num_draft_tokens:
            return
        self._is_told = True
        chances = step.acceptance_probs if step.uniforms else (1.0,) * step.num_accepted + (0.0,)
        tested = min(step.num_accepted + 1, step.num_draft_tokens)
        for confidence, chance in zip(self._confidences[:tested], chances, strict=False):
            self._calibration.add(confidence, chance)
        # Where tests are drawn, their chances say more than their outcome.
        accepted = expected_accepted(step.acceptance_probs, step.expected_acceptance) if step.uniforms else None
        tokens = len(step.emitted) if accepted is None else 1.0 + accepted
        self._tokens = _MEMORY_OF_BLOCKS * self._tokens + tokens
        self._spent_ms = _MEMORY_OF_BLOCKS * self._spent_ms + self._costs.step_ms(step.num_draft_tokens)

    @property
    def _rate(self) -> float:
        """Tokens a millisecond of the blocks so far, and at least plain decoding's."""
        plain = 1.0 / self._costs.plain_ms
        return max(plain, self._tokens / self._spent_ms) if self._spent_ms else plain

    def _promising(self) -> int | None:
        """A K that may beat the blocks so far, for all that is known: those that grow past it never show its time."""
        first = self._first.mean(_PRIOR_CHANCE)
        later = self._later.mean(first)
        for count, least_ms in self._costs.inferred():
            if 1.0 + first * expected_tokens(later, count - 1) > self._rate * least_ms:
                return count
        return None

    def _best(self, alpha: float, *, hopeful: bool = False) -> int:
        best = super()._best(alpha, hopeful=hopeful)
        # No K of its own pays, but blocks that end where the draft is unsure do.
        if not best and self._is_adaptive and self._is_told and self._rate > 1.0 / self._costs.plain_ms:
            return 1
        return best

    def _keep_drafting(self, confidence: float) -> bool:
        self._confidences.append(confidence)
        self._standing *= self._calibration.chance(confidence)
        drafted, chance, gain = len(self._confidences), self._standing, 0.0
        if drafted >= self._most:
            return False
        here = self._times[drafted]
        for count in range(drafted + 1, self._most + 1):
            chance *= self._next
            gain += chance
            if gain > self._price * (self._times[count] - here):
                return True
        return False


class Calibration:
    """The chance that a drafted token stands by how probable the draft found it: a line through the run's own tests.

    Least squares with older tests counting less, and a prior that a few tests outweigh.
    """

    def __init__(self) -> None:
        self._weight = _PRIOR_WEIGHT
        self._confidence, self._chance = _PRIOR_CONFIDENCE, _PRIOR_CHANCE
        self._spread, self._together = _SLOPE_WEIGHT, _SLOPE_WEIGHT * _PRIOR_SLOPE

    def chance(self, confidence: float) -> float:
        """From 0 to 1."""
        slope = self._together / self._spread
        return min(max(self._chance + slope * (confidence - self._confidence), 0.0), 1.0)

    def add(self, confidence: float, chance: float) -> None:
        """Take in a test: what the draft thought of a token, and how likely it was to stand."""
        self._weight = _MEMORY_OF_TESTS * self._weight + 1.0
        away, off = confidence - self._confidence, chance - self._chance
        self._confidence += away / self._weight
        self._chance += off / self._weight
        # Welford's update: the spread is about the mean, wherever that moves.
        self._spread = _MEMORY_OF_TESTS * self._spread + away * (confidence - self._confidence)
        self._together = _MEMORY_OF_TESTS * self._together + away * (chance - self._chance)
