"""Choosing K before each step, 0 included, from what steps cost here and how much was accepted lately."""

from __future__ import annotations

import math

from core.step_costs import LONG_GAP, StepCosts
from core.types import MAX_DRAFT_TOKENS, Step

_MEMORY = 0.95
"""Weight that tests keep with every drafted step: some 20 steps count."""

_FORGETTING, _LEAST_KNOWN = 0.9925, 2.0
"""Weight that they keep with every plain step, and how many are kept at least: how a draft did is the less certain the
longer ago it was."""

_PRIOR, _PRIOR_WEIGHT = 0.7, 1.0
"""An imagined test, so that the first real one doesn't decide alone."""

_ALLOWANCE = 0.02
"""Share of the time spent that trying drafts may cost."""

_FIRST_ALLOWANCE, _MOST_SAVED, _DEEPEST_DEBT = 0.75, 8.0, 0.25
"""In plain steps: what may be lost at once at the start; what a good stretch leaves for a bad one; what is owed."""

_HOPEFUL_EVERY = 8
"""Drafted steps after which a K may be tried whose first steps were dear, perhaps by chance."""

_LOOK_EVERY = 4
"""Plain tokens after which a long pause may end: plain decoding itself should not wait for the policy."""

_PLAIN_EVERY = 96
"""Drafted steps after which a plain one tells what plain decoding costs now."""


class AutoDraftLength:
    """Maximises expected tokens per millisecond, E[tokens] / T(K), and answers for its losses.

    The choice rests on earlier steps alone, never on the tokens about to be drafted, so it leaves the output's law as
    it is. What drafting gained or lost against plain decoding is booked step by step. A draft that may pay, but has
    not shown it, is tried with K = 1 while the account allows it; an account in the red means plain decoding. Thus a
    hopeless draft costs a step or so at the start, and `_ALLOWANCE` of the time after it.
    """

    def __init__(self, target_step_ms: float) -> None:
        self._costs = StepCosts(target_step_ms)
        self._first, self._later = _Acceptance(), _Acceptance()
        self._balance_ms = _FIRST_ALLOWANCE * self._costs.plain_ms
        self._num_missed = 0
        self._num_drafted_steps = 0
        self._asked: int | None = None
        self._is_trial = False

    def choose(self) -> int:
        """K for the next step."""
        self._asked = self._choose()
        return self._asked

    def _choose(self) -> int:
        self._is_trial = False
        if not self._num_drafted_steps:
            return 1
        if self._num_drafted_steps % _PLAIN_EVERY == 0 and not self._num_missed:
            return 0
        if self._num_missed < LONG_GAP:
            if best := self._best(self._first.mean(_PRIOR), hopeful=self._is_hopeful):
                return best if self._balance_ms >= 0.0 else 0
        elif self._num_missed % _LOOK_EVERY:
            return 0
        if self._balance_ms >= self._price_of_a_trial():
            self._is_trial = self._best(self._first.optimistic(_PRIOR), hopeful=True) > 0
        elif self._balance_ms >= 0.0:
            # What is expected to pay need not be paid for beforehand.
            self._is_trial = self._best(self._first.mean(_PRIOR)) > 0
        return int(self._is_trial)

    @property
    def _is_hopeful(self) -> bool:
        """Whether it is time to try what was dear, perhaps by chance."""
        return self._num_drafted_steps % _HOPEFUL_EVERY == 0

    def record(self, step: Step) -> None:
        """Learn from a finished step."""
        count, asked = step.num_draft_tokens, self._asked
        self._asked = None
        if asked:
            self._book(step)
        self._balance_ms += _ALLOWANCE * step.total_ms
        self._balance_ms = min(self._balance_ms, _MOST_SAVED * self._costs.plain_ms)
        self._costs.record(count, step.total_ms - (0.0 if count else step.draft_ms), self._num_missed)
        if not count:
            if not asked:  # Else it was the drafter that had nothing to say, and it may go on being asked.
                self._num_missed += len(step.emitted)
            self._first.fade(_FORGETTING, _LEAST_KNOWN)
            self._later.fade(_FORGETTING, _LEAST_KNOWN)
            return
        self._num_missed = 0
        self._num_drafted_steps += 1
        # Where tests are drawn, their chance says more than their outcome.
        chances = step.expected_acceptance if step.uniforms else (1.0,) * step.num_accepted + (0.0,)
        chances = chances[: min(step.num_accepted + 1, count)]
        self._first.fade(_MEMORY)
        self._later.fade(_MEMORY)
        self._first.add(chances[:1])
        self._later.add(chances[1:])

    def _book(self, step: Step) -> None:
        """What asking for a draft gained or lost."""
        plain_ms = self._costs.plain_ms
        if not step.num_draft_tokens:
            self._balance_ms -= step.draft_ms
            return
        self._balance_ms += len(step.emitted) * plain_ms - step.total_ms
        if not self._is_trial:
            self._balance_ms = max(self._balance_ms, -_DEEPEST_DEBT * plain_ms)

    def _price_of_a_trial(self) -> float:
        """What a rejected K = 1 loses."""
        trial_ms = self._costs.step_ms(1, hopeful=True)
        return trial_ms - self._costs.plain_ms + self._costs.catch_up_ms(self._num_missed)

    def _best(self, alpha: float, *, hopeful: bool = False) -> int:
        """The K that pays most if the first drafted token stands with this probability."""
        times = self._costs.table(hopeful=hopeful)
        later = self._later.mean(alpha, weight=2.0)
        best, best_rate = 0, 1.0 / times[0]
        tokens, chance = 1.0, alpha
        for count in range(1, min(2 * self._costs.longest + 1, MAX_DRAFT_TOKENS) + 1):
            tokens += chance
            chance *= later
            if tokens > best_rate * times[count]:
                best, best_rate = count, tokens / times[count]
        return best


class _Acceptance:
    """The share of tests passed, old ones counting less."""

    def __init__(self) -> None:
        self._passed = self._tested = 0.0

    def add(self, chances: tuple[float, ...]) -> None:
        self._passed += sum(chances)
        self._tested += len(chances)

    def fade(self, weight: float, least: float = 0.0) -> None:
        if self._tested * weight < least:
            return
        self._passed *= weight
        self._tested *= weight

    def mean(self, prior: float, weight: float = _PRIOR_WEIGHT) -> float:
        return min((self._passed + weight * prior) / (self._tested + weight), 1.0)

    def optimistic(self, prior: float) -> float:
        """One standard error above the mean."""
        mean = self.mean(prior)
        return min(mean + math.sqrt(mean * (1.0 - mean) / (self._tested + _PRIOR_WEIGHT)), 1.0)
