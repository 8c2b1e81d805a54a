"""A machine whose costs and acceptance are made up, in its own time: no clock is read."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from core.analysis.expectation import expected_tokens
from core.drafters.length_policy import DraftLengthPolicy
from core.drafters.tree_shape import grow, node_gains
from core.settings import MAX_DRAFT_TOKENS, LengthPolicy
from core.types import Step, TokenKind, depths_of, is_chain

PLAIN_MS = 10.0


@dataclass(frozen=True)
class Costs:
    """In plain steps: a drafted token, a draft, a scored position, the first block of three, a token to catch up on."""

    draft: float
    call: float = 0.0
    position: float = 0.05
    cliff: float = 0.0
    catch_up: float = 0.005

    def drafting_ms(self, count: int, missed: int) -> float:
        return PLAIN_MS * (self.call + self.draft * count + self.catch_up * missed) if count else 0.0

    def scoring_ms(self, count: int) -> float:
        return PLAIN_MS * (1.0 + self.position * count + (self.cliff if count >= 3 else 0.0))

    def best_rate(self, alpha: float) -> float:
        """Tokens a millisecond of the best fixed K."""
        spent = [self.drafting_ms(k, 0) + self.scoring_ms(k) for k in range(MAX_DRAFT_TOKENS + 1)]
        return max(expected_tokens(alpha, k) / spent[k] for k in range(MAX_DRAFT_TOKENS + 1))


COSTS = {"cheap": Costs(0.05), "embedded": Costs(0.12, call=0.1, position=0.06, cliff=0.5), "middling": Costs(0.35),
         "dear": Costs(1.0)}  # fmt: skip


@dataclass
class Machine:
    """Runs steps. Greedy: the steps say of a test only how it went, as at temperature 0."""

    costs: Costs
    alpha: Callable[[int], float]
    seed: int = 0
    is_greedy: bool = False
    noise: float = 0.0
    text: int = 0
    time_ms: float = 0.0
    missed: int = 0
    chosen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def step(self, count: int, chances: Sequence[float] | None = None) -> Step:
        """A step that drafts `count` tokens, each accepted with its own chance, or all with alpha."""
        chances = chances or (self.alpha(self.text),) * count
        uniforms = tuple(self.chance.random() for _ in range(count))
        stands = [u < alpha for u, alpha in zip(uniforms, chances, strict=True)]
        accepted = [*stands, False].index(False)
        expected = tuple(map(float, stands)) if self.is_greedy else tuple(chances)
        moment = math.exp(self.chance.gauss(0.0, self.noise))
        if self.noise and self.chance.random() < 0.02:  # Something else wanted the processor.
            moment *= 1.0 + 1.5 * self.chance.random()
        draft_ms = moment * self.costs.drafting_ms(count, self.missed)
        verify_ms = moment * self.costs.scoring_ms(count)
        self.missed = 0 if count else self.missed + 1
        self.text += accepted + 1
        self.time_ms += draft_ms + verify_ms
        self.chosen.append(count)
        last = TokenKind.BONUS if accepted == count else TokenKind.CORRECTION
        return make_step(uniforms, expected, accepted, (TokenKind.ACCEPTED,) * accepted + (last,), draft_ms, verify_ms)

    def run(self, policy: DraftLengthPolicy, length: int) -> float:
        """Milliseconds that the next `length` tokens take."""
        began, goal = self.time_ms, self.text + length
        while self.text < goal:
            policy.record(self.step(min(policy.plan(LengthPolicy.AUTO).most, goal - self.text - 1)))
        return self.time_ms - began


@dataclass
class TreeMachine:
    """Runs trees at fixed rates of acceptance by rank; a level and a node cost these shares of a plain step."""

    rates: Sequence[float]
    level: float
    node: float
    deepest: int = 8
    seed: int = 0
    time_ms: float = 0.0
    text: int = 0
    chosen: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def best_rate(self) -> float:
        """Tokens a millisecond of the best fixed shape."""
        best = 1.0
        for limit in range(1, self.deepest + 1):
            parents = [node.parent for node in grow(self.rates, MAX_DRAFT_TOKENS, limit, 3)]
            gains, depths = node_gains(self.rates, parents), depths_of(parents)
            for count in range(1, len(parents) + 1):
                spent = (max(depths[:count]) + 1) * self.level + 1.0 + self.node * count
                best = max(best, (1.0 + sum(gains[:count])) / spent)
        return best / PLAIN_MS

    def run(self, policy: DraftLengthPolicy, length: int) -> float:
        """Tokens a millisecond over a text of this length."""
        while self.text < length:
            plan = policy.plan(LengthPolicy.AUTO)
            policy.record(self._step(plan.most, min(plan.max_depth, self.deepest)))
        return self.text / self.time_ms

    def _step(self, count: int, deepest: int) -> Step:
        nodes, path, at = grow(self.rates, count, deepest, 3) if count else [], [], -1
        for index, node in enumerate(nodes):
            if node.parent == at and self.chance.random() < self.rates[min(node.rank, len(self.rates) - 1)]:
                path.append(index)
                at = index
        parents = tuple(node.parent for node in nodes)
        levels = max(depths_of(parents), default=-1) + 1
        moment = PLAIN_MS * (1.0 + 0.05 * abs(self.chance.gauss(0.0, 1.0)))
        draft_ms, verify_ms = moment * self.level * levels, moment * (1.0 + self.node * count)
        self.time_ms += draft_ms + verify_ms
        self.text += len(path) + 1
        self.chosen.append((count, levels))
        kinds = (TokenKind.ACCEPTED,) * len(path) + (TokenKind.BONUS if at not in parents else TokenKind.CORRECTION,)
        chances = tuple(float(index in path) for index in range(count))
        step = make_step((0.5,) * count, chances, len(path), kinds, draft_ms, verify_ms)
        is_branched = not is_chain(parents)
        return replace(step, uniforms=(), parents=parents * is_branched, accepted_path=tuple(path) * is_branched)


def make_step(uniforms, expected, accepted, kinds, draft_ms, verify_ms, sample_ms=0.0) -> Step:
    count = len(uniforms)
    return Step(
        index=0, position=0, num_draft_tokens=count, temperature=1.0, drafted=(1,) * count,
        drafted_texts=("a",) * count, draft_probs=(0.5,) * count, target_probs=(0.5,) * count,
        acceptance_probs=expected, expected_acceptance=expected, uniforms=uniforms, num_accepted=accepted,
        emitted=(1,) * len(kinds), emitted_kinds=kinds, emitted_texts=("a",) * len(kinds), draft_ms=draft_ms,
        verify_ms=verify_ms, sample_ms=sample_ms, total_ms=draft_ms + verify_ms + sample_ms,
    )  # fmt: skip
