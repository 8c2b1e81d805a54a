"""A check's request, results and verdict: do a pair and its settings give exactly what the target alone would?

`core.experiments.check` runs it, and `core.experiments.check_report` puts the results in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from core.draft_length import DraftLength
from core.drafters.registry import METHODS
from core.errors import SettingsError
from core.experiments.prompt_suites import Prompt
from core.settings import RunRequest, setting, validate

LEAST_SAMPLES, MOST_SAMPLES, DEFAULT_SAMPLES = 200, 1_000_000, 3_000
NOTHING_DRAFTED = "With K = 0 nothing is drafted, so there is nothing to check. Set K to 1 or more."
MAX_BLOCKS = 200_000
"""The most blocks that the window offers, and that a report recommends."""
MOST_TOKENS, DEFAULT_TOKENS = 4_096, 64
MOST_PROMPTS = 1_000


class Verdict(StrEnum):
    """The result of a check."""

    EXACT = "exact"
    NEAR_TIES = "exact up to near-ties"
    NOT_EXACT = "not exact"


class BiasLimit(StrEnum):
    """Why a check can't measure the bias; more samples help only against the first."""

    SAMPLES = "too few samples"
    ALIKE = "draft and target agree"
    DRAFTS = "too few drafts"
    UNWRITTEN = "target hardly ever writes what the draft prefers"


class Comparison(StrEnum):
    """Which two texts are compared, token by token."""

    GREEDY = "greedy"
    GUMBEL = "gumbel"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is to be checked: a run's settings, on these prompts, or on presets where there are none.

    num_samples counts blocks over all prompts, num_tokens the tokens of each text that is compared.

    Raises:
        SettingsError: a value outside its range, or a run that drafts nothing.
    """

    run: RunRequest
    prompts: tuple[Prompt, ...] = ()
    num_samples: int = setting(DEFAULT_SAMPLES, label="The number of samples", min=LEAST_SAMPLES, max=MOST_SAMPLES)
    num_tokens: int = setting(DEFAULT_TOKENS, label="The number of tokens to compare", min=1, max=MOST_TOKENS)
    with_transformers: bool = False

    def __post_init__(self) -> None:
        validate(self)
        if self.run.draft_length == 0:
            raise SettingsError(NOTHING_DRAFTED)
        if len(self.prompts) > MOST_PROMPTS:
            raise SettingsError(
                f"A check takes at most {MOST_PROMPTS:,} prompts, not {len(self.prompts):,}. Leave some out."
            )


def block_lengths(run: RunRequest) -> list[DraftLength]:
    """The draft lengths of the blocks that are sampled, in equal shares."""
    # K = 1 as well: after a long chain the bonus token is too rare to be tested. A tree has many ends.
    asked, method = run.draft_length, METHODS.get(run.method)
    has_leaves = method is not None and method.proposes_trees
    return [asked] if asked == 1 or has_leaves else [asked, 1]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a text first differs from the one it should equal; index counts its tokens from 0.

    margin is the lead of `expected`, difference how far it moves when several positions are scored at once; both None
    where one text ended, and the margin where a token moves over the edge of a filter. A near-tie has its margin within
    the difference, and that within what rounding does.
    """

    prompt: str
    index: int
    expected: str
    found: str
    margin: float | None
    difference: float | None
    is_near_tie: bool


@dataclass(frozen=True, slots=True)
class IdentityResult:
    """Texts compared up to where each pair diverges: how many tokens were equal, and at most one divergence a
    prompt."""

    comparison: Comparison
    num_prompts: int
    num_tokens: int
    divergences: tuple[Divergence, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether every divergence is a near-tie."""
        return all(divergence.is_near_tie for divergence in self.divergences)


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """One test of the sampled distribution: of a position of the block, of the bonus token, or of the bias.

    statistic is chi-squared, or the square of a standard normal; p_value is how often an exact engine does at least
    this badly, None if there were too few samples.
    """

    name: str
    position: int | None
    num_samples: int
    degrees: int
    statistic: float
    p_value: float | None
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class TokenCount:
    """How often one token came first, and how often it should have. The last of a list may combine all others."""

    text: str
    observed: int
    expected: float


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The first tokens after one prompt, most likely first."""

    prompt: str
    counts: tuple[TokenCount, ...]


@dataclass(frozen=True, slots=True)
class DraftedTrees:
    """The trees that were drafted: how many shapes, and the most nodes, nodes in a row and children of one node."""

    num_shapes: int
    most_nodes: int
    most_depth: int
    most_children: int


@dataclass(frozen=True, slots=True)
class DistributionResult:
    """How the sampled distribution compares with the target's exact one.

    Attributes:
        bias: share of the draft's own distribution in the samples: 0 is exact, 1 would be the draft alone; None where
            bias_limit says why it can't be measured, or a server is checked without its draft.
        num_impossible: tokens that the target never produces after the filters.
        rounding: largest total variation between the target's distributions scored in a block and one at a time;
            most_rounding is the largest that rounding may cause at this precision.
        first_p_value, first_bias_error: of the first samples, if fresh ones were needed for `tests`; else None.
        trees: the shapes of the blocks; None if all were chains.
    """

    num_blocks: int
    tests: tuple[DistributionTest, ...]
    bias: float | None
    bias_error: float | None
    num_impossible: int
    rounding: float
    most_rounding: float
    first_p_value: float | None = None
    first_bias_error: float | None = None
    first_tokens: tuple[FirstTokens, ...] = ()
    trees: DraftedTrees | None = None
    bias_limit: BiasLimit | None = None

    @property
    def is_exact(self) -> bool:
        """Whether every test passes, and scoring a block equals scoring its positions."""
        return not (any(test.is_failed for test in self.tests) or self.num_impossible or self.is_misscored)

    @property
    def is_misscored(self) -> bool:
        """Whether the target's distributions in blocks differ from those token by token by more than rounding."""
        return self.rounding > self.most_rounding


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All results of a check; no distribution at temperature 0. seconds excludes loading."""

    request: CheckRequest
    device: str
    dtype: str
    identities: tuple[IdentityResult, ...]
    distribution: DistributionResult | None
    notes: tuple[str, ...]
    seconds: float

    @property
    def is_lossy(self) -> bool:
        """Whether the text isn't the target's by design, whatever the samples show."""
        return self.request.run.is_lossy and self.distribution is not None

    @property
    def is_unexplained(self) -> bool:
        """Whether the output isn't the target's though the settings promise it."""
        return self.verdict is Verdict.NOT_EXACT and not (self.request.run.is_lossy and self.agrees_greedily)

    @property
    def agrees_greedily(self) -> bool:
        """Whether no text differs that depends neither on the seed nor on typical acceptance."""
        return all(item.is_exact or item.comparison is Comparison.GUMBEL for item in self.identities)

    @property
    def is_right(self) -> bool:
        """Whether the output is the target's own, up to near-ties."""
        return self.verdict is not Verdict.NOT_EXACT

    @property
    def verdict(self) -> Verdict:
        """The result."""
        if (
            self.is_lossy
            or any(not item.is_exact for item in self.identities)
            or not (self.distribution is None or self.distribution.is_exact)
        ):
            return Verdict.NOT_EXACT
        return Verdict.NEAR_TIES if any(item.divergences for item in self.identities) else Verdict.EXACT


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """An event: the progress of one part of the check; parts count from 1, 0 where their number isn't known."""

    text: str
    done: int
    total: int
    part: int = 0
    num_parts: int = 0

    @property
    def title(self) -> str:
        """The text, and which part it is if there are several."""
        return f"Part {self.part} of {self.num_parts} · {self.text}" if self.num_parts > 1 else self.text


@dataclass(frozen=True, slots=True)
class CheckFinished:
    """The last event; has no report if the check was stopped."""

    report: CheckReport | None
