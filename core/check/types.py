"""The words of a check: what is asked, what is found, and what that comes to. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from core.errors import SettingsError
from core.prompt_suites import Prompt
from core.types import RunRequest

LEAST_SAMPLES, MOST_SAMPLES, DEFAULT_SAMPLES = 200, 1_000_000, 3_000
MOST_TOKENS, DEFAULT_TOKENS = 4_096, 64
MOST_PROMPTS = 1_000
LAW_PROMPTS = 3
"""Prompts behind which blocks are sampled: many blocks behind one prompt say more than few behind many."""


class Verdict(StrEnum):
    """What a check comes to."""

    EXACT = "exact"
    NEAR_TIES = "exact up to near-ties"
    NOT_EXACT = "not exact"


class Comparison(StrEnum):
    """Which two texts are held against each other, token by token."""

    GREEDY = "greedy"
    GUMBEL = "gumbel"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What is to be checked.

    Attributes:
        run: the run whose exactness is asked about; its prompt, length, baseline and stops do not count.
        prompts: texts to check behind; none stands for those that suit the target.
        num_samples: blocks to draw for the test of the law, over all prompts.
        num_tokens: most tokens of each text that is compared.
        with_transformers: also hold plain greedy text against transformers' own `generate`.

    Raises:
        SettingsError: for a value outside its range.
    """

    run: RunRequest
    prompts: tuple[Prompt, ...] = ()
    num_samples: int = DEFAULT_SAMPLES
    num_tokens: int = DEFAULT_TOKENS
    with_transformers: bool = False

    def __post_init__(self) -> None:
        if not LEAST_SAMPLES <= self.num_samples <= MOST_SAMPLES:
            raise SettingsError(
                f"The number of samples must be from {LEAST_SAMPLES} to {MOST_SAMPLES:,}, not {self.num_samples:,}."
            )
        if not 1 <= self.num_tokens <= MOST_TOKENS:
            raise SettingsError(
                f"The number of tokens to compare must be from 1 to {MOST_TOKENS:,}, not {self.num_tokens:,}."
            )
        if len(self.prompts) > MOST_PROMPTS:
            raise SettingsError(
                f"A check takes at most {MOST_PROMPTS:,} prompts, not {len(self.prompts):,}. Leave some out."
            )


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a text parts from the one it should equal.

    Attributes:
        prompt: name of the prompt.
        index: place of the token in the text, from 0.
        expected, found: the tokens' texts; empty where one text ended.
        margin: by how much the choice of `expected` led; None where it was not measured.
        difference: how far that lead was seen to move when several positions are scored at once; likewise.
        is_near_tie: the lead is within the difference, and the difference within what rounding does.
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
    """Texts held against each other, up to where each pair parts.

    Attributes:
        comparison: which texts.
        num_prompts: how many pairs of them.
        num_tokens: tokens that were compared and equal.
        partings: at most one a prompt.
    """

    comparison: Comparison
    num_prompts: int
    num_tokens: int
    partings: tuple[Parting, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether every parting is a near-tie."""
        return all(parting.is_near_tie for parting in self.partings)


@dataclass(frozen=True, slots=True)
class LawTest:
    """One test of the sampled law.

    Attributes:
        name: what a table calls it.
        position: of the block's tokens, from 1; None for the bonus token, and for the lean, which is over all tokens.
        num_samples: tokens that were counted.
        degrees: of freedom; 0 where there was too little to test.
        statistic: chi-squared, or the square of a standard normal.
        p_value: how often an exact engine does at least this badly; None where there was too little to test.
        is_failed: the engine's law is another one.
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
    """How often one token came first, and how often it should have. The last of a list may stand for all others."""

    text: str
    observed: int
    expected: float


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The first tokens behind one prompt, the likeliest ahead."""

    prompt: str
    counts: tuple[TokenCount, ...]


@dataclass(frozen=True, slots=True)
class LawResult:
    """The sampled law against the target's exact one.

    Attributes:
        num_blocks: blocks that were drawn for `tests`.
        tests: one a position of the block, one of the bonus token, and the lean.
        lean: share of the draft's own law that shows in the samples: 0 is exact, 1 would be the draft alone; None where
            draft and target agree too much to tell.
        lean_error: its standard error.
        num_impossible: tokens that the target, after the filters, never gives.
        rounding: most that the target's law was seen to differ when a block is scored at once, in total variation.
        most_rounding: what of it is believed to be rounding at this precision.
        first_p_value: of the samples that made it draw `tests`' fresh ones; None where none were needed.
        first_tokens: for a look, by prompt.
    """

    num_blocks: int
    tests: tuple[LawTest, ...]
    lean: float | None
    lean_error: float | None
    num_impossible: int
    rounding: float
    most_rounding: float
    first_p_value: float | None = None
    first_tokens: tuple[FirstTokens, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether every test passes, and scoring a block is scoring its positions."""
        return not (any(test.is_failed for test in self.tests) or self.num_impossible or self.is_misscored)

    @property
    def is_misscored(self) -> bool:
        """Whether the target gives other laws in blocks than token by token, by more than rounding."""
        return self.rounding > self.most_rounding


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All that a check found.

    Attributes:
        request: what was asked.
        device, dtype: where it ran.
        identities: texts against texts.
        law: None at temperature 0, where there is no law but the greedy text.
        notes: what the settings do to the law, a sentence each.
        seconds: how long it took, loading aside.
    """

    request: CheckRequest
    device: str
    dtype: str
    identities: tuple[IdentityResult, ...]
    law: LawResult | None
    notes: tuple[str, ...]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """What it comes to."""
        if any(not item.is_exact for item in self.identities) or not (self.law is None or self.law.is_exact):
            return Verdict.NOT_EXACT
        return Verdict.NEAR_TIES if any(item.partings for item in self.identities) else Verdict.EXACT


# --- Events -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """How far one part of the check is."""

    text: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class CheckFinished:
    """The last event; without a report where it was stopped."""

    report: CheckReport | None
