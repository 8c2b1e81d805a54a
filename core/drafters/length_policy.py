"""Chooses how many tokens a step drafts, from measured step times and recent acceptance: the policies of K."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from core.analysis.expectation import expected_of, expected_tokens
from core.draft_length import DraftLength
from core.drafters.estimates import LONG_GAP, PRIOR_CHANCE, Acceptance, Calibration, StepCosts
from core.drafters.tree_shape import ShapeChoice
from core.settings import LONGEST_CHAIN, MAX_DRAFT_TOKENS, LengthPolicy
from core.types import Step

_MEMORY, _MEMORY_IN_DEBT = 0.95, 0.8
"""Decay of earlier tests per drafted step: about 20 steps count, or about 5 while the balance is negative."""

_MEMORY_OF_BLOCKS = 0.95
"""The same of the tokens and times of blocks that end where the draft is unsure."""

_FORGETTING, _LEAST_KNOWN = 0.9925, 2.0
"""The factor for a plain step, and the number of tests below which it doesn't apply."""

_PRIOR = 0.7
"""The first token's acceptance before it is tested."""

_ALLOWANCE = 0.015
"""Share of the run's time that trying drafts may cost."""

_FIRST_ALLOWANCE, _MOST_SAVED, _DEEPEST_DEBT = 0.5, 8.0, 1.0
"""In plain steps: the balance at the start, its upper limit, and its lower limit outside trials."""

_MOST_PRICED = 64
"""Missed tokens that a trial is charged for, half as many again after each that failed. Charged for all, a draft that
reads slowly would never be tried again."""

_HOPEFUL_EVERY = 8
"""Drafted steps after which to retry a K whose first steps were slow, perhaps by chance."""

_SHORT_STEP_MS, _LONG_TRIAL = 1.2, 4
"""Where the host runs ahead of the device and plain steps are shorter than this, a trial has this K: much of such a
step goes by between the forwards, so that to draft one token takes almost as long as several."""

_TRIAL_STEPS = 4
"""The first drafted steps; in them, and until drafting has saved time, a draft needn't have read the whole text."""

_LOOK_EVERY = 4
"""Plain tokens between two trials, at least."""

_PLAIN_EVERY, _PLAIN_EVERY_IN_DEBT, _LEAST_PLAIN = 96, 4, 3
"""Steps of which one is plain to measure plain decoding, and the plain steps that drafting in debt needs."""


class BlockPlan(NamedTuple):
    """The next block.

    Attributes:
        most: the most tokens to draft.
        keep_drafting: decides after each whether to continue; None: always.
        is_trial: whether the draft is only tried, and hasn't shown yet that it pays.
        max_depth: the most tokens in a row; of a tree fewer than its nodes.
    """

    most: int
    keep_drafting: Callable[[float], bool] | None = None
    is_trial: bool = False
    max_depth: int = MAX_DRAFT_TOKENS


class DraftLengthPolicy:
    """Plans each block by the current policy, and learns from every step.

    AUTO maximises expected tokens per millisecond, E[tokens] / T(K), within a budget for losses. The choice depends on
    earlier steps alone, so the output's distribution is unchanged. A balance records the time that drafting gains or
    loses against plain decoding. A draft that may pay, but hasn't yet, is tried with a short block while the balance
    allows it; at a negative balance, only a draft whose latest steps say that it pays is used. A useless draft thus
    costs about one trial at the start, and `_ALLOWANCE` of the time after it.

    ADAPTIVE drafts whenever AUTO would. Within a block it continues while the next token, or the next few together, are
    expected to be worth their time: P(all so far accepted) x P(the next accepted) > (T(n + 1) - T(n)) x rate, where the
    rate is the run's tokens per millisecond. It considers only tokens already in the block, and never removes one, so
    the text follows the target's distribution. For a drafter without probabilities it behaves like AUTO.
    """

    def __init__(
        self, target_step_ms: float | None = None, *, is_tree: bool = False, is_asynchronous: bool = False
    ) -> None:
        """
        Args:
            target_step_ms: see `StepCosts`; without it the first step is plain, and measures it.
            is_tree: whether trees are drafted, of which K is the number of nodes.
            is_asynchronous: whether the host runs ahead of the target's device, as of a GPU.
        """
        self._costs = StepCosts(target_step_ms)
        self._first, self._later = Acceptance(), Acceptance()
        self._shape = ShapeChoice() if is_tree else None
        self._balance_ms = _FIRST_ALLOWANCE * (target_step_ms or 0.0)
        self._earned_ms = 0.0
        self._num_missed = 0
        self._most_priced = _MOST_PRICED
        self._num_drafted_steps = 0
        self._asked: int | None = None
        self._num_in_debt = 0
        self._is_trial = False
        self._is_asynchronous = is_asynchronous
        self._calibration = Calibration()
        self._confidences: list[float] = []
        self._has_confidences = False
        self._is_adaptive = False
        self._tokens = self._spent_ms = 0.0

    def plan(self, length: DraftLength) -> BlockPlan:
        """The next block, for a K or a policy."""
        self._confidences.clear()
        self._is_adaptive = length is LengthPolicy.ADAPTIVE
        if not isinstance(length, LengthPolicy):
            return BlockPlan(length)
        self._asked = most = self._choose()
        is_trial = self._num_drafted_steps < _TRIAL_STEPS or self._earned_ms <= 0.0
        if self._shape is not None:
            return BlockPlan(most, is_trial=is_trial, max_depth=self._shape.depth)
        if not self._is_adaptive or not most:
            return BlockPlan(most, is_trial=is_trial)
        if self._has_confidences and not self._is_trial:
            most = min(2 * self._costs.longest + 1, LONGEST_CHAIN)
            if self._is_hopeful:
                most = self._promising() or most
        return BlockPlan(most, self._decider(most), is_trial)

    def _choose(self) -> int:
        """K for the next step."""
        self._is_trial = False
        if not self._costs.is_known:
            return 0
        if not self._num_drafted_steps:
            return self._trial
        if self._num_drafted_steps % _PLAIN_EVERY == 0 and not self._num_missed:
            return 0
        if self._num_missed < LONG_GAP:
            is_in_debt = self._balance_ms < 0.0
            # In debt, the prior test counts as failed.
            if best := self._best(self._first.mean(0.0 if is_in_debt else _PRIOR), hopeful=self._is_hopeful):
                # It may only seem to pay, beside plain steps that were slow: more of these are measured.
                self._num_in_debt += is_in_debt
                is_sure = self._costs.num_plain >= _LEAST_PLAIN and self._num_in_debt % _PLAIN_EVERY_IN_DEBT
                return best if is_sure or not is_in_debt else 0
        elif self._num_missed % _LOOK_EVERY:
            return 0
        if self._balance_ms >= self._price_of_a_trial():
            self._is_trial = self._best(self._first.optimistic(_PRIOR), hopeful=True) > 0
        elif self._balance_ms >= 0.0:
            self._is_trial = self._best(self._first.mean(_PRIOR)) > 0
        return self._trial if self._is_trial else 0

    @property
    def _trial(self) -> int:
        """K of a trial."""
        return _LONG_TRIAL if self._is_asynchronous and self._costs.plain_ms < _SHORT_STEP_MS else 1

    @property
    def _is_hopeful(self) -> bool:
        """Whether it is time to retry what was slow, perhaps by chance."""
        return self._num_drafted_steps % _HOPEFUL_EVERY == 0

    def record(self, step: Step) -> None:
        """Learn from a finished step."""
        count, asked = step.num_draft_tokens, self._asked
        self._asked = None
        was_known = self._costs.is_known
        if not was_known:
            # With a K set by hand meanwhile, scoring its block is the first estimate.
            self._costs.record(0, step.verify_ms if count else step.total_ms - step.draft_ms, 0)
            self._balance_ms = _FIRST_ALLOWANCE * step.total_ms
        if asked:
            self._book(step)
        self._balance_ms += _ALLOWANCE * step.total_ms
        self._balance_ms = min(self._balance_ms, _MOST_SAVED * self._costs.plain_ms)
        left_out_ms = 0.0 if count else step.draft_ms
        if self._shape is not None and count:
            self._shape.record(step)
            # T(K) leaves out the levels of a tree, whose number K doesn't determine.
            left_out_ms = self._shape.level_ms * step.depth
        if count or was_known:
            self._costs.record(count, step.total_ms - left_out_ms, self._num_missed)
        if not count:
            if not asked:  # Else the drafter proposed nothing, and may be asked again.
                self._num_missed += len(step.emitted)
            self._first.fade(_FORGETTING, _LEAST_KNOWN)
            self._later.fade(_FORGETTING, _LEAST_KNOWN)
            return
        self._num_missed = 0
        self._num_drafted_steps += 1
        # A token's own test: its probability is more informative than its outcome.
        is_own = step.uniforms and not step.block
        tested = min(step.num_accepted + 1, count)
        outcomes = (1.0,) * step.num_accepted + (0.0,)
        chances = (step.expected_acceptance if is_own else outcomes)[:tested]
        memory = _MEMORY if self._balance_ms >= 0.0 else _MEMORY_IN_DEBT
        self._first.fade(memory)
        self._later.fade(memory)
        self._first.add(chances[:1])
        self._later.add(chances[1:])
        if not self._confidences:
            return
        self._has_confidences = True
        chances = step.acceptance_probs if is_own else outcomes
        for confidence, chance in zip(self._confidences[:tested], chances, strict=False):
            self._calibration.add(confidence, chance)
        accepted = expected_of(step) if step.uniforms else None
        tokens = len(step.emitted) if accepted is None else 1.0 + accepted
        self._tokens = _MEMORY_OF_BLOCKS * self._tokens + tokens
        self._spent_ms = _MEMORY_OF_BLOCKS * self._spent_ms + self._costs.table()[count]

    def _book(self, step: Step) -> None:
        """Add the time that drafting gained or lost."""
        plain_ms = self._costs.plain_ms
        if not step.num_draft_tokens:
            self._balance_ms -= step.draft_ms
            return
        gain_ms = len(step.emitted) * plain_ms - step.total_ms
        if not step.num_accepted:
            # Then at least the draft's time is lost; a step that looks faster was lucky, and would buy more trials.
            gain_ms = min(gain_ms, -step.draft_ms)
        self._earned_ms += gain_ms
        self._balance_ms += gain_ms
        if self._is_trial:
            self._balance_ms += self._costs.catch_up_ms(max(0, self._num_missed - self._most_priced))
            self._most_priced = _MOST_PRICED if step.num_accepted else self._most_priced * 3 // 2
        else:
            self._balance_ms = max(self._balance_ms, -_DEEPEST_DEBT * plain_ms)

    def _price_of_a_trial(self) -> float:
        """The time that a trial with a rejected draft loses."""
        trial_ms = self._costs.table(hopeful=True)[self._trial] + (self._shape.level_ms if self._shape else 0.0)
        return trial_ms - self._costs.plain_ms + self._costs.catch_up_ms(min(self._num_missed, self._most_priced))

    @property
    def _rate(self) -> float:
        """Tokens per millisecond of the blocks so far; at least that of plain decoding."""
        plain = 1.0 / self._costs.plain_ms
        return max(plain, self._tokens / self._spent_ms) if self._spent_ms else plain

    def _promising(self) -> int | None:
        """A K between measured ones that may be faster than the blocks so far."""
        first = self._first.mean(PRIOR_CHANCE)
        later = self._later.mean(first)
        for count, least_ms in self._costs.inferred():
            if 1.0 + first * expected_tokens(later, count - 1) > self._rate * least_ms:
                return count
        return None

    def _best(self, alpha: float, *, hopeful: bool = False) -> int:
        """The best K if the first drafted token is accepted with this probability."""
        times, most = self._costs.table(hopeful=hopeful), 2 * self._costs.longest + 1
        if self._shape is not None:
            return self._shape.choose(times, min(most, MAX_DRAFT_TOKENS), alpha / self._first.mean(_PRIOR))
        best, best_rate, tokens = 0, 1.0 / times[0], 1.0
        later = self._later.mean(alpha, weight=2.0)
        for count in range(1, min(most, LONGEST_CHAIN) + 1):
            tokens += alpha * later ** (count - 1)
            if tokens > best_rate * times[count]:
                best, best_rate = count, tokens / times[count]
        if best or self._balance_ms < 0.0 or not (self._is_adaptive and self._has_confidences):
            return best
        # No fixed K pays, but blocks that end where the draft is unsure may.
        return int(self._rate > 1.0 / self._costs.plain_ms)

    def _decider(self, most: int) -> Callable[[float], bool]:
        """What decides after each token of a block of at most this many whether to continue.

        What doesn't change within a block is computed once, here.
        """
        rate, times = self._rate, self._costs.table(hopeful=self._is_hopeful)
        next_chance, standing = self._later.mean(self._first.mean(PRIOR_CHANCE)), 1.0

        def keep_drafting(confidence: float) -> bool:
            nonlocal standing
            self._confidences.append(confidence)
            standing *= self._calibration.chance(confidence)
            drafted, chance, gain = len(self._confidences), standing, 0.0
            for count in range(drafted + 1, most + 1):
                chance *= next_chance
                gain += chance
                if gain > rate * (times[count] - times[drafted]):
                    return True
            return False

        return keep_drafting
