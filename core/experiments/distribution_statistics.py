"""The statistics of sampled text: chi-squared against exact distributions, and the bias towards the draft."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from core.experiments.check_plan import (
    MOST_SAMPLES,
    BiasLimit,
    DistributionResult,
    DistributionTest,
    DraftedTrees,
    FirstTokens,
)
from core.settings import MAX_DRAFT_TOKENS
from core.types import depths_of

if TYPE_CHECKING:
    from core.engines.steps import Token

LEAST_EXPECTED = 5.0
"""Cells expected less often are joined with others, as usual for chi-squared."""
BONUS = MAX_DRAFT_TOKENS + 1
"""Marks the position of a token after a fully accepted draft, wherever that is."""
OWN = 0
"""Marks the test of a server's first tokens against its own logprobs."""
_NAMES: dict[int, tuple[str, int | None]] = {BONUS: ("bonus", None), OWN: ("own logprobs", None)}
_LEAST_VARIANCE = 10.0

Cell = tuple[float, float]
"""Two counts that are compared: observed and expected, or those of two samples."""


def chi_squared_p_value(statistic: float, degrees: int) -> float:
    """The probability that a chi-squared variable of these degrees of freedom is at least this large."""
    halves = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def normal_p_value(deviations: float) -> float:
    """The probability that a normal variable is at least this many standard deviations off, either way."""
    return math.erfc(abs(deviations) / math.sqrt(2.0))


class Fit(NamedTuple):
    """Pearson's statistic and degrees of freedom, and the counts where the distribution has no mass."""

    statistic: float
    degrees: int
    num_impossible: int


def fit(counts: Mapping[int, int], probs: Tensor, favoured: Tensor) -> Fit:
    """Goodness of fit to probs, (V,) float64, with a cell of its own for every token that is expected often enough.

    The rare ones of the tokens that the draft favours, (V,) bool, make one cell and the others another, since a broken
    verifier moves mass between the two.
    """
    observed = torch.zeros_like(probs)
    observed[list(counts)] = torch.tensor([float(count) for count in counts.values()], dtype=probs.dtype)
    expected = sum(counts.values()) * probs
    often = expected >= LEAST_EXPECTED
    cells: list[Cell] = list(zip(observed[often].tolist(), expected[often].tolist(), strict=True))
    spare = (0.0, 0.0)
    for rare in (favoured & ~often & (probs > 0), ~favoured & ~often & (probs > 0)):
        cell = (spare[0] + float(observed[rare].sum()), spare[1] + float(expected[rare].sum()))
        spare = (0.0, 0.0)
        if cell[1] >= LEAST_EXPECTED:
            cells.append(cell)
        else:
            spare = cell
    if spare[1] > 0 and cells:
        _join_smallest(cells, spare, itemgetter(1))
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    return Fit(statistic, max(len(cells) - 1, 0), int(observed[probs == 0].sum()))


def _join_smallest(cells: list[Cell], cell: Cell, size: Callable[[Cell], float]) -> None:
    """Add a cell to the smallest of the others."""
    at = min(range(len(cells)), key=lambda index: size(cells[index]))
    cells[at] = (cells[at][0] + cell[0], cells[at][1] + cell[1])


def fit_to_top(top: Sequence[float], tokens: Sequence[Token], power: float) -> tuple[Fit, int]:
    """Fit of the drawn tokens to the logprobs of the likeliest ones, and how many drawn tokens are among these.

    Args:
        top: in falling order; a probability is proportional to exp(power * logprob).
    """
    likely = {token.id: token.logprob for token in tokens if token.logprob >= top[-1] - 1e-3}
    counts = Counter(token.id for token in tokens if token.id in likely)
    never = list(top)
    for logprob in list(likely.values())[: len(top)]:
        never.remove(min(never, key=lambda each: abs(each - logprob)))
    # Tokens that never came have cells of their own: joined, they would be a cell that is empty by construction.
    weights = torch.tensor([*likely.values(), *never], dtype=torch.float64).mul(power).exp()
    found = fit({at: counts[token] for at, token in enumerate(likely)}, weights / weights.sum(), weights > 0)
    return found, counts.total()


def homogeneity(one: Counter[int], other: Counter[int]) -> tuple[float, int]:
    """Pearson's statistic and degrees of freedom of two samples, rare tokens joined."""
    sizes = sum(one.values()), sum(other.values())
    least = LEAST_EXPECTED * sum(sizes) / min(sizes)
    often = [token for token in one | other if one[token] + other[token] >= least]
    cells: list[Cell] = [(one[token], other[token]) for token in often]
    cells.append((sizes[0] - sum(cell[0] for cell in cells), sizes[1] - sum(cell[1] for cell in cells)))
    if len(cells) > 1 and sum(cells[-1]) < least:
        _join_smallest(cells, cells.pop(), sum)
    scale = math.sqrt(sizes[1] / sizes[0])
    statistic = sum((a * scale - b / scale) ** 2 / (a + b) for a, b in cells if a + b)
    return statistic, max(len(cells) - 1, 0)


class Bias:
    """How much of the draft's own distribution shows in what was emitted.

    An exact engine emits the tokens that the draft prefers as often as the target says. If a share x of the tokens
    were the draft's own, they would come more often, by x times what the two distributions differ there.
    """

    def __init__(self) -> None:
        self._surplus = self._difference = self._variance = 0.0
        self.num_samples = 0

    def add(self, counts: Mapping[int, int], target_probs: Tensor, draft_probs: Tensor) -> None:
        """Count the tokens that came after one prefix, given both distributions, (V,) float64."""
        favoured = draft_probs > target_probs
        mass = float(target_probs[favoured].sum().clamp(0.0, 1.0))
        total = sum(counts.values())
        self.num_samples += total
        self._surplus += sum(count for token, count in counts.items() if favoured[token]) - total * mass
        self._difference += total * float((draft_probs - target_probs)[favoured].sum())
        self._variance += total * mass * (1.0 - mass)

    @property
    def is_known(self) -> bool:
        """Whether draft and target differ enough, over enough samples, for the normal approximation."""
        return self.varies_enough() and self.differs_over(self.num_samples)

    def varies_enough(self, times: float = 1.0) -> bool:
        """Whether the variance suffices for the normal approximation, or would with `times` as many samples."""
        return times * self._variance >= _LEAST_VARIANCE

    def differs_over(self, num_samples: int) -> bool:
        """Whether the mean difference between draft and target over `num_samples` is large enough to measure."""
        return self._difference > 0.01 * num_samples

    @property
    def deviations(self) -> float:
        """The bias in standard errors."""
        return self._surplus / math.sqrt(self._variance)

    @property
    def share(self) -> float:
        """x."""
        return self._surplus / self._difference

    @property
    def error(self) -> float:
        """The standard error of x."""
        return math.sqrt(self._variance) / self._difference


class DistributionTally:
    """Adds up the tests, by position in the block."""

    def __init__(self) -> None:
        self.statistics: defaultdict[int, float] = defaultdict(float)
        self.degrees: Counter[int] = Counter()
        self.samples: Counter[int] = Counter()
        self.num_impossible = 0
        self.rounding = 0.0
        self.bias = Bias()
        self.num_undrafted = 0
        """Tokens where nothing was drafted."""
        self.first_tokens: list[FirstTokens] = []
        self.shapes: Counter[tuple[int, ...]] = Counter()
        """How often the blocks had these parents; a chain's are empty."""

    def add(
        self,
        position: int,
        counts: Counter[int],
        target_probs: Tensor,
        draft_probs: Tensor | None,
        edge: Collection[int] = (),
    ) -> None:
        """Add the tests of what followed one prefix; the tokens at the edge of a filter are left out.

        draft_probs is None where nothing is drafted.
        """
        is_drafted = draft_probs is not None
        draft_probs = target_probs if draft_probs is None else draft_probs
        if edge:
            counts = Counter({token: count for token, count in counts.items() if token not in edge})
            target_probs, draft_probs = (_without(probs, edge) for probs in (target_probs, draft_probs))
        if not counts:
            return
        found = fit(counts, target_probs, draft_probs > target_probs)
        self.count(position, found.statistic, found.degrees, sum(counts.values()))
        self.num_impossible += found.num_impossible
        self.bias.add(counts, target_probs, draft_probs)
        self.num_undrafted += 0 if is_drafted else sum(counts.values())

    def count(self, position: int, statistic: float, degrees: int, num_samples: int) -> None:
        """Add one test of what came at a position."""
        self.statistics[position] += statistic
        self.degrees[position] += degrees
        self.samples[position] += num_samples

    def result(self, num_blocks: int, most_rounding: float) -> DistributionResult:
        tests = []
        for position, samples in sorted(self.samples.items()):
            degrees, statistic = self.degrees[position], self.statistics[position]
            p_value = chi_squared_p_value(statistic, degrees) if degrees else None
            name, shown = _NAMES.get(position, (f"token {position}", position))
            tests.append(DistributionTest(name, shown, samples, degrees, statistic, p_value))
        limit = self._bias_limit(num_blocks)
        bias = self.bias if limit is None else None
        if bias:
            p_value = normal_p_value(bias.deviations)
            tests.append(DistributionTest("bias", None, bias.num_samples, 1, bias.deviations**2, p_value))
        return DistributionResult(
            num_blocks=num_blocks,
            tests=tuple(tests),
            bias=bias.share if bias else None,
            bias_error=bias.error if bias else None,
            num_impossible=self.num_impossible,
            rounding=self.rounding,
            most_rounding=most_rounding,
            first_tokens=tuple(self.first_tokens),
            trees=_trees([parents for parents in self.shapes if parents]),
            bias_limit=limit,
        )

    def _bias_limit(self, num_blocks: int) -> BiasLimit | None:
        num_drafted = self.bias.num_samples - self.num_undrafted
        if self.bias.is_known:
            return None
        if self.samples and num_drafted <= 0:
            return BiasLimit.DRAFTS
        if not self.samples:
            return BiasLimit.SAMPLES
        if self.bias.differs_over(self.bias.num_samples):
            can_vary = self.bias.varies_enough(MOST_SAMPLES / num_blocks)
            return BiasLimit.SAMPLES if can_vary else BiasLimit.UNWRITTEN
        return BiasLimit.DRAFTS if self.bias.differs_over(num_drafted) else BiasLimit.ALIKE


def _without(probs: Tensor, tokens: Collection[int]) -> Tensor:
    """The distribution, (V,) float64, given that none of these tokens is drawn."""
    left = probs.clone()
    left[[*tokens]] = 0.0
    return left / left.sum().clamp_min(torch.finfo(left.dtype).tiny)


def _trees(shapes: Sequence[tuple[int, ...]]) -> DraftedTrees | None:
    if not shapes:
        return None
    return DraftedTrees(
        num_shapes=len(shapes),
        most_nodes=max(map(len, shapes)),
        most_depth=1 + max(max(depths_of(parents)) for parents in shapes),
        most_children=max(max(Counter(parents).values()) for parents in shapes),
    )
