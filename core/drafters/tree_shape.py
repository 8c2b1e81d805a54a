"""The shape of a drafted tree: grown from measured acceptance, and chosen by what nodes and levels cost."""

from __future__ import annotations

import heapq
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from core.drafters.estimates import Acceptance
from core.settings import LONGEST_CHAIN, MAX_DRAFT_TOKENS
from core.types import Step, depths_of

_FIRST_RATES, _PRIOR_TESTS = (0.6, 0.3, 0.2, 0.15), 8.0
"""The acceptance of a node with 0, 1, 2 and more rejected siblings, before it is measured, and its weight in tests."""

_MEMORY, _MEMORY_OF_TESTS = 0.95, 0.98
"""Factors by which each tree decays the yields and the tests of earlier ones."""

_NUM_KEPT = 5
"""Latest trees whose time a level is taken from: their lower median, so that brief slowdowns don't count."""


_FIRST_CHOICES, _CHOOSE_EVERY = 12, 4
"""The first drafted steps, each of which chooses a new shape, and the interval at which later ones do."""


class Node(NamedTuple):
    """A place of a shape: its parent's index, and how many earlier siblings it has."""

    parent: int
    rank: int


def grow(rates: Sequence[float], count: int, depth: int, branching: int) -> list[Node]:
    """The shape of at most `count` nodes that is expected to accept the most tokens, most promising nodes first.

    Args:
        rates: the acceptance of a node with 0, 1, 2… rejected siblings; the last holds for all further ones.
        count: most nodes.
        depth: most nodes in a row.
        branching: most children of a node.
    """
    nodes: list[Node] = []
    # Of each node that may come next: minus the probability that it is accepted, its order, parent, rank and depth.
    # The probability that it is tested belongs to its later sibling.
    waiting = [(-rates[0], 0, Node(-1, 0), 0, 1.0)]
    while waiting and len(nodes) < count:
        minus_value, _, node, level, tested = heapq.heappop(waiting)
        nodes.append(node)
        rate = rates[min(node.rank, len(rates) - 1)]
        if level + 1 < depth:
            child = (minus_value * rates[0], 2 * len(nodes), Node(len(nodes) - 1, 0), level + 1, -minus_value)
            heapq.heappush(waiting, child)
        if node.rank + 1 < branching:
            left = tested * (1.0 - rate)
            later = rates[min(node.rank + 1, len(rates) - 1)]
            sibling = (-left * later, 2 * len(nodes) + 1, Node(node.parent, node.rank + 1), level, left)
            heapq.heappush(waiting, sibling)
    return nodes


def node_gains(rates: Sequence[float], parents: Iterable[int]) -> list[float]:
    """The probability that each node of a tree is accepted, at these rates."""
    gains: list[float] = []
    tested, ranks = {-1: 1.0}, Counter[int]()
    for node, parent in enumerate(parents):
        rate, chance = rates[min(ranks[parent], len(rates) - 1)], tested[parent]
        ranks[parent] += 1
        tested[node], tested[parent] = chance * rate, chance * (1.0 - rate)
        gains.append(chance * rate)
    return gains


class SiblingRates:
    """The measured acceptance of a node by its number of rejected siblings, with decaying weights."""

    def __init__(self) -> None:
        self._by_rank = [Acceptance() for _ in _FIRST_RATES]

    def add(self, parents: Iterable[int], path: Sequence[int]) -> None:
        """Add a verified tree, and its accepted path."""
        for acceptance in self._by_rank:
            acceptance.fade(_MEMORY_OF_TESTS)
        at, rank = -1, 0
        for node, parent in enumerate(parents):
            if parent == at:
                self._by_rank[rank].add((float(node in path),))
                at, rank = (node, 0) if node in path else (at, min(rank + 1, len(_FIRST_RATES) - 1))

    @property
    def rates(self) -> list[float]:
        """By number of rejected siblings; they never rise, so that siblings are added in order."""
        rates: list[float] = []
        for acceptance, prior in zip(self._by_rank, _FIRST_RATES, strict=True):
            rates.append(min([acceptance.mean(prior, _PRIOR_TESTS), *rates[-1:]]))
        return rates


class ShapeChoice:
    """Chooses a tree's nodes and depth: the most expected tokens / (time of its nodes + levels x time of a level).

    Expected tokens are those of `grow` at the measured rates, times what trees have given relative to that: a drafter
    may also follow its own confidence.
    """

    def __init__(self) -> None:
        self.depth = LONGEST_CHAIN
        self._rates = SiblingRates()
        self._accepted = self._expected = 1.0 / (1.0 - _MEMORY)
        self._level_laps: deque[float] = deque(maxlen=_NUM_KEPT)
        self._deepest = self._num_steps = self._count = 0

    @property
    def level_ms(self) -> float:
        """Time to draft a level: one forward of the draft, however many nodes it reads."""
        return statistics.median_low(self._level_laps) if self._level_laps else 0.0

    def record(self, step: Step) -> None:
        """Learn from a finished step that drafted."""
        parents = step.parents or range(-1, step.num_draft_tokens - 1)
        self._expected = _MEMORY * self._expected + sum(node_gains(self._rates.rates, parents))
        self._accepted = _MEMORY * self._accepted + step.num_accepted
        self._rates.add(parents, step.path)
        self._level_laps.append(step.draft_ms / step.depth)
        self._deepest = max(self._deepest, step.depth)
        self._num_steps += 1

    def choose(self, times: Sequence[float], most: int, hope: float = 1.0) -> int:
        """The best number of nodes up to `most`, given the time of 0, 1, 2… nodes; sets `depth`.

        hope: factor of the expected tokens; above 1 for a trial.
        """
        # Rates change slowly, and a choice takes a fraction of a millisecond.
        if hope == 1.0 and self._count and self._num_steps > _FIRST_CHOICES and self._num_steps % _CHOOSE_EVERY:
            return self._count
        # One level beyond those seen: the drafter's own limit is not known here.
        rates, level_ms, limit = self._rates.rates, self.level_ms, min(self._deepest + 1, LONGEST_CHAIN)
        nodes = grow(rates, min(2 * most, MAX_DRAFT_TOKENS), limit, len(rates))
        parents = [node.parent for node in nodes]
        scale = hope * self._accepted / self._expected
        found = [*zip(depths_of(parents), node_gains(rates, parents), strict=True)]
        best, best_rate = 0, 1.0 / times[0]
        for depth in range(limit):
            tokens = 1.0
            shallow = [gain for level, gain in found if level <= depth][:most]
            for count, gain in enumerate(shallow, start=1):
                tokens += scale * gain
                rate = tokens / (times[count] + min(depth + 1, count) * level_ms)
                if rate > best_rate:
                    best, best_rate, self.depth = count, rate, depth + 1
        self._count = best if hope == 1.0 else 0
        return best
