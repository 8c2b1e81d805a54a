"""Decides how many tokens a step drafts: a fixed K, or one chosen from measured step times and recent acceptance."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from core.analysis.expectation import expected_of, expected_tokens
from core.drafters.tree_shape import ShapeChoice
from core.errors import SettingsError
from core.settings import LONGEST_CHAIN, MAX_DRAFT_TOKENS, LengthPolicy
from core.types import Step

# --- The setting ------------------------------------------------------------------------------------------------

DraftLength = int | LengthPolicy
"""K, AUTO or ADAPTIVE; never FIXED, which a number stands for."""

_CHOSEN = {str(policy): policy for policy in LengthPolicy if policy is not LengthPolicy.FIXED}


def check_draft_length(length: DraftLength) -> DraftLength:
    """The same length, if a step can have it.

    Raises:
        SettingsError: it is neither a policy nor a whole number from 0 to the longest block.
    """
    if length is LengthPolicy.FIXED:
        raise SettingsError("A fixed draft length needs a K.")
    if not isinstance(length, LengthPolicy) and not 0 <= length <= MAX_DRAFT_TOKENS:
        raise SettingsError(f"K must be a whole number from 0 to {MAX_DRAFT_TOKENS}, not {length!r}.")
    return length


def parse_draft_length(text: str, name: str = "K") -> DraftLength:
    """Parse a draft length: "4", "auto", "adaptive".

    Args:
        text: case and surrounding spaces don't matter.
        name: of the setting or flag, for the error message.

    Raises:
        SettingsError: it is neither a policy nor a whole number from 1 to the longest block.
    """
    word = text.strip().lower()
    if word in _CHOSEN:
        return _CHOSEN[word]
    shown = repr(text if len(text) <= 60 else text[:60] + "…")
    try:
        length = int(word)
    except ValueError:
        raise SettingsError(f"{name} must be a whole number, auto or adaptive, not {shown}.") from None
    if not 1 <= length <= MAX_DRAFT_TOKENS:
        raise SettingsError(f"{name} must be a whole number from 1 to {MAX_DRAFT_TOKENS}, not {shown}.")
    return length


def parse_draft_lengths(text: str, name: str = "K") -> tuple[DraftLength, ...]:
    """Parse several lengths, such as "1-8,auto,adaptive": numbers, inclusive ranges, policies; each once, in order.

    Raises:
        SettingsError: as for a single one; an empty list; a reversed range.
    """
    lengths: list[DraftLength] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        begin, end = parse_draft_length(first, name), parse_draft_length(last if dash else first, name)
        if isinstance(begin, LengthPolicy) or isinstance(end, LengthPolicy):
            if dash:
                raise SettingsError(f"{name}: {part.strip()!r} is not a range of numbers, such as 1-8.")
            lengths.append(begin)
            continue
        if end < begin:
            raise SettingsError(f"{name}: the range {part.strip()!r} runs backwards. Write {end}-{begin}.")
        lengths += range(begin, end + 1)
    return tuple(dict.fromkeys(lengths))


def request_fields(length: DraftLength) -> dict[str, Any]:
    """The fields of a `RunRequest` that a draft length sets: `RunRequest(..., **request_fields(length))`."""
    if isinstance(length, LengthPolicy):
        return {"num_draft_tokens": None, "length_policy": length}
    return {"num_draft_tokens": length}


def config_fields(length: DraftLength) -> dict[str, Any]:
    """The fields of a run log's `config`; `num_draft_tokens` is "auto" for either policy, as older readers expect."""
    if isinstance(length, LengthPolicy):
        return {"num_draft_tokens": str(LengthPolicy.AUTO), "length_policy": str(length)}
    return {"num_draft_tokens": length, "length_policy": str(LengthPolicy.FIXED)}


def shown_draft_length(config: Mapping[str, Any]) -> Any:
    """A log's K as shown and searched for: a number, "auto" or "adaptive"; None if the log has none."""
    length, policy = config.get("num_draft_tokens"), config.get("length_policy")
    return policy if length == str(LengthPolicy.AUTO) and policy in _CHOSEN else length


# --- What steps cost --------------------------------------------------------------------------------------------

_NUM_KEPT = 5
"""Number of latest steps of one K whose lower median counts, so that brief slowdowns don't."""

_NUM_TRUSTED = 2
"""Steps of one K needed to trust its time; a single one may have been slowed down."""

_SHORTEST_MS = 1e-6

_FIRST_SLOPE = 0.1
"""Share of a plain step's time that a drafted token is assumed to add, before it is measured."""

LONG_GAP = 8
"""After this many plain tokens, the time in which the draft reads them is significant, and is recorded separately."""


class StepCosts:
    """Estimates T(K), a whole step's milliseconds: drafting, scoring K + 1 positions, sampling.

    T is interpolated linearly between measured K, and extrapolated with the smallest slope. It never falls with K: if
    a longer block took less, the shorter one was slowed down.
    """

    def __init__(self, target_step_ms: float | None = None) -> None:
        """Args: target_step_ms: time of a one-position forward of the target, the first estimate of a plain step."""
        first = [] if target_step_ms is None else [max(target_step_ms, _SHORTEST_MS)]
        self._laps: dict[int, deque[float]] = {0: deque(first, _NUM_KEPT)}
        self._catch_up_ms: deque[float] = deque(maxlen=_NUM_KEPT)
        self._tables: dict[bool, list[float]] = {}

    @property
    def is_known(self) -> bool:
        """Whether a plain step has been timed."""
        return bool(self._laps[0])

    @property
    def plain_ms(self) -> float:
        """T(0), once it is known."""
        return statistics.median_low(self._laps[0])

    @property
    def num_plain(self) -> int:
        """Plain steps timed, as far as they are kept."""
        return len(self._laps[0])

    @property
    def longest(self) -> int:
        """The largest measured K."""
        return max(self._laps)

    def inferred(self) -> Iterator[tuple[int, float]]:
        """Each K between two known ones, with a lower bound of T(K): the smaller neighbour plus the smallest slope."""
        stretches = [*itertools.pairwise(self._measured(_NUM_TRUSTED))]
        slope = min((_slope(left, right) for left, right in stretches), default=0.0)
        for left, right in stretches:
            for count in range(left[0] + 1, right[0]):
                yield count, left[1] + slope * (count - left[0])

    def table(self, *, hopeful: bool = False) -> list[float]:
        """T(K) for each K from 0 to the longest block; hopeful: a K measured only once is interpolated, too."""
        found = self._tables.get(hopeful)
        if found is None:
            found = self._tables[hopeful] = _filled(self._measured(_NUM_TRUSTED if hopeful else 1))
        return found

    def catch_up_ms(self, num_missed: int) -> float:
        """Time the draft needs to read tokens that plain steps have added."""
        return num_missed * statistics.median(self._catch_up_ms) if self._catch_up_ms else 0.0

    def record(self, num_draft_tokens: int, total_ms: float, num_missed: int) -> None:
        """Record a step; `num_missed` tokens were added by plain steps since the draft last read the text."""
        if num_draft_tokens and num_missed >= LONG_GAP and num_draft_tokens in self._laps:
            extra = total_ms - self.table()[num_draft_tokens]
            self._catch_up_ms.append(max(0.0, extra) / num_missed)
            return
        self._laps.setdefault(num_draft_tokens, deque(maxlen=_NUM_KEPT)).append(max(total_ms, _SHORTEST_MS))
        self._tables.clear()

    def _measured(self, least_laps: int) -> list[tuple[int, float]]:
        """(K, T(K)) in order, for each K with at least this many laps; K = 0 always."""
        least, curve = float("inf"), []
        for count in sorted(self._laps, reverse=True):
            laps = self._laps[count]
            if count == 0 or len(laps) >= least_laps:
                least = min(least, statistics.median_low(laps))
                curve.append((count, least))
        return curve[::-1]


def _filled(curve: list[tuple[int, float]]) -> list[float]:
    """T(K) for every K, from a curve of some of them."""
    if len(curve) == 1:
        return [curve[0][1] * (1.0 + _FIRST_SLOPE * count) for count in range(MAX_DRAFT_TOKENS + 1)]
    times = [curve[0][1]]
    for left, right in itertools.pairwise(curve):
        times += [left[1] + _slope(left, right) * (count - left[0]) for count in range(left[0] + 1, right[0] + 1)]
    last = curve[-1]
    slope = max(min(_slope(left, right) for left, right in itertools.pairwise(curve)), _slope(curve[0], last) / 2)
    if len(curve) == 2:
        slope = _slope(curve[0], last) / 2
    return times + [last[1] + slope * (count - last[0]) for count in range(last[0] + 1, MAX_DRAFT_TOKENS + 1)]


def _slope(left: tuple[int, float], right: tuple[int, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


# --- Auto -------------------------------------------------------------------------------------------------------

_MEMORY, _MEMORY_IN_DEBT = 0.95, 0.8
"""Decay of earlier tests per drafted step: about 20 steps count, or about 5 while the balance is negative."""

_FORGETTING, _LEAST_KNOWN = 0.9925, 2.0
"""The factor for a plain step, and the number of tests below which it doesn't apply."""

_PRIOR, _POLICY_PRIOR_WEIGHT = 0.7, 1.0
"""A prior test, so that the first real one doesn't decide alone."""

_ALLOWANCE = 0.015
"""Share of the run's time that trying drafts may cost."""

_FIRST_ALLOWANCE, _MOST_SAVED, _DEEPEST_DEBT = 0.5, 8.0, 1.0
"""In plain steps: the balance at the start, its upper limit, and its lower limit outside trials."""

_HOPEFUL_EVERY = 8
"""Drafted steps after which to retry a K whose first steps were slow, perhaps by chance."""

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
    loses against plain decoding. A draft that may pay, but hasn't yet, is tried with K = 1 while the balance allows it;
    at a negative balance, only a draft whose latest steps say that it pays is used. A useless draft thus costs about
    one step at the start, and `_ALLOWANCE` of the time after it.

    ADAPTIVE drafts whenever AUTO would. Within a block it continues while the next token, or the next few together, are
    expected to be worth their time: P(all so far accepted) x P(the next accepted) > (T(n + 1) - T(n)) x rate, where the
    rate is the run's tokens per millisecond. It considers only tokens already in the block, and never removes one, so
    the text follows the target's distribution. For a drafter without probabilities it behaves like AUTO.
    """

    def __init__(self, target_step_ms: float | None = None, *, is_tree: bool = False) -> None:
        """
        Args:
            target_step_ms: see `StepCosts`; without it the first step is plain, and measures it.
            is_tree: whether trees are drafted, of which K is the number of nodes.
        """
        self._costs = StepCosts(target_step_ms)
        self._first, self._later = _Acceptance(), _Acceptance()
        self._shape = ShapeChoice() if is_tree else None
        self._balance_ms = _FIRST_ALLOWANCE * (target_step_ms or 0.0)
        self._earned_ms = 0.0
        self._num_missed = 0
        self._num_drafted_steps = 0
        self._asked: int | None = None
        self._num_in_debt = 0
        self._is_trial = False
        self._calibration = Calibration()
        self._confidences: list[float] = []
        self._has_confidences = False
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
        is_trial = self._num_drafted_steps < _TRIAL_STEPS or self._earned_ms <= 0.0
        if self._shape is not None:
            return BlockPlan(self._most, is_trial=is_trial, max_depth=self._shape.depth)
        if not self._is_adaptive or not self._most:
            return BlockPlan(self._most, is_trial=is_trial)
        if self._has_confidences and not self._is_trial:
            self._most = min(2 * self._costs.longest + 1, LONGEST_CHAIN)
            if self._is_hopeful:
                self._most = self._promising() or self._most
        # What doesn't change within the block is computed once.
        self._standing, self._next, self._price = 1.0, self._later.mean(self._first.mean(_PRIOR_CHANCE)), self._rate
        self._times = self._costs.table(hopeful=self._is_hopeful)
        return BlockPlan(self._most, self._keep_drafting, is_trial)

    def choose(self) -> int:
        """K for the next step."""
        self._asked = self._choose()
        return self._asked

    def _choose(self) -> int:
        self._is_trial = False
        if not self._costs.is_known:
            return 0
        if not self._num_drafted_steps:
            return 1
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
        return int(self._is_trial)

    @property
    def _is_hopeful(self) -> bool:
        """Whether it is time to retry what was slow, perhaps by chance."""
        return self._num_drafted_steps % _HOPEFUL_EVERY == 0

    def record(self, step: Step) -> None:
        """Learn from a finished step."""
        count, asked = step.num_draft_tokens, self._asked
        self._asked = None
        if not self._costs.is_known:
            # With a K set by hand meanwhile, scoring its block is the first estimate.
            self._costs.record(0, step.verify_ms, 0)
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
        chances = step.expected_acceptance if is_own else (1.0,) * step.num_accepted + (0.0,)
        chances = chances[: min(step.num_accepted + 1, count)]
        memory = _MEMORY if self._balance_ms >= 0.0 else _MEMORY_IN_DEBT
        self._first.fade(memory)
        self._later.fade(memory)
        self._first.add(chances[:1])
        self._later.add(chances[1:])
        if not self._confidences:
            return
        self._has_confidences = True
        chances = step.acceptance_probs if is_own else (1.0,) * step.num_accepted + (0.0,)
        tested = min(step.num_accepted + 1, step.num_draft_tokens)
        for confidence, chance in zip(self._confidences[:tested], chances, strict=False):
            self._calibration.add(confidence, chance)
        accepted = expected_of(step) if step.uniforms else None
        tokens = len(step.emitted) if accepted is None else 1.0 + accepted
        self._tokens = _MEMORY_OF_BLOCKS * self._tokens + tokens
        self._spent_ms = _MEMORY_OF_BLOCKS * self._spent_ms + self._costs.table()[step.num_draft_tokens]

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
        if not self._is_trial:
            self._balance_ms = max(self._balance_ms, -_DEEPEST_DEBT * plain_ms)

    def _price_of_a_trial(self) -> float:
        """The time that a step with a rejected draft of K = 1 loses."""
        trial_ms = self._costs.table(hopeful=True)[1] + (self._shape.level_ms if self._shape else 0.0)
        return trial_ms - self._costs.plain_ms + self._costs.catch_up_ms(self._num_missed)

    @property
    def _rate(self) -> float:
        """Tokens per millisecond of the blocks so far; at least that of plain decoding."""
        plain = 1.0 / self._costs.plain_ms
        return max(plain, self._tokens / self._spent_ms) if self._spent_ms else plain

    def _promising(self) -> int | None:
        """A K between measured ones that may be faster than the blocks so far."""
        first = self._first.mean(_PRIOR_CHANCE)
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


class _Acceptance:
    """The share of tests passed, with decaying weights."""

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

    def mean(self, prior: float, weight: float = _POLICY_PRIOR_WEIGHT) -> float:
        return min((self._passed + weight * prior) / (self._tested + weight), 1.0)

    def optimistic(self, prior: float) -> float:
        """One standard error above the mean."""
        mean = self.mean(prior)
        return min(mean + math.sqrt(mean * (1.0 - mean) / (self._tested + _POLICY_PRIOR_WEIGHT)), 1.0)


# --- Adaptive ---------------------------------------------------------------------------------------------------

_MEMORY_OF_TESTS = 0.99
"""Factor by which each test decays earlier ones: about a hundred count."""

_PRIOR_CONFIDENCE, _PRIOR_CHANCE, _PRIOR_WEIGHT = 0.5, 0.75, 2.0
"""A prior test: the draft's probability, the probability of acceptance, and its weight in real tests."""

_PRIOR_SLOPE, _SLOPE_WEIGHT = 0.4, 0.5
"""The prior slope of acceptance over confidence, and its weight."""

_MEMORY_OF_BLOCKS = 0.95


class Calibration:
    """Predicts the probability of acceptance from the draft's probability of a token, by a line fitted to this run.

    Least squares with decaying weights, and a prior that a few tests outweigh.
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
        """Add a test: the draft's probability of a token, and its probability of acceptance."""
        self._weight = _MEMORY_OF_TESTS * self._weight + 1.0
        away, off = confidence - self._confidence, chance - self._chance
        self._confidence += away / self._weight
        self._chance += off / self._weight
        # Welford's update: deviations are from the moving mean.
        self._spread = _MEMORY_OF_TESTS * self._spread + away * (confidence - self._confidence)
        self._together = _MEMORY_OF_TESTS * self._together + away * (chance - self._chance)
