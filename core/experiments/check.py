"""A report in words: for a terminal, for the clipboard, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from core.draft_shape import length_of
from core.errors import SettingsError
from core.experiments.prompt_suites import Prompt
from core.text import percent_text, significant_text
from core.types import Coupling, LengthPolicy, RunRequest

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


_HALF = {"torch.float16": "float16", "torch.bfloat16": "bfloat16"}


def notes_on(run: RunRequest, dtype: str, law: LawResult | None) -> tuple[str, ...]:
    """A sentence each.

    Args:
        run: the settings.
        dtype: torch's name of the precision that it ran in.
        law: what the sampled law came to, for the rounding that was measured.
    """
    notes = ["No setting of Outrider trades exactness for speed: method, K and an int8 draft change the speed alone."]
    if dtype in _HALF:
        measured = "" if law is None else f", here by up to {significant_text(law.rounding, 2)} in total variation"
        notes.append(
            f"In {_HALF[dtype]} the text follows the logits that the target gives when it scores a whole block; those "
            f"of one token at a time differ by rounding{measured}."
        )
    if not run.sampling.is_unfiltered and not run.sampling.is_greedy:
        notes.append(
            "Top-k, top-p and min-p change the law on purpose, with drafts and without; the filtered law was checked."
        )
    if run.coupling is Coupling.GUMBEL:
        notes.append("Gumbel coupling keeps the law, and a seed gives the text that it gives without a draft.")
    elif not run.sampling.is_greedy:
        notes.append("Rejection coupling keeps the law; a seed gives another text than it gives without a draft.")
    is_drawn = run.coupling is Coupling.REJECTION and not run.sampling.is_greedy
    if run.num_draft_tokens is None and is_drawn:
        name = "Auto" if run.length_policy is LengthPolicy.AUTO else "Adaptive"
        notes.append(f"With K on {name} the law is kept; which text a seed gives depends on this machine's timing.")
    return tuple(notes)


SCHEMA = "outrider.check/1"

_SENTENCES = {
    Verdict.EXACT: "Exact: no test tells this pair's output from the target's own.",
    Verdict.NEAR_TIES: "Exact up to near-ties: texts part only where rounding alone decides.",
    Verdict.NOT_EXACT: "Not exact: the output is not the target's own.",
}
_COMPARED = {
    Comparison.GREEDY: "Greedy text against plain decoding",
    Comparison.GUMBEL: "Gumbel-coupled text against plain sampling, same seed",
    Comparison.TRANSFORMERS: "Plain greedy text against transformers' generate",
}
LEAN_ERRORS = 4.0
"""A lean of so many standard errors is found in nine of ten checks."""


def verdict_sentence(report: CheckReport) -> str:
    """The verdict, plainly."""
    return _SENTENCES[report.verdict]


def compared_title(item: IdentityResult) -> str:
    """What was compared."""
    return _COMPARED[item.comparison]


def identity_line(item: IdentityResult) -> str:
    """What came of one comparison."""
    texts = f"{item.num_tokens:,} tokens equal in {item.num_prompts} {_plural(item.num_prompts, 'text')}"
    if not item.partings:
        return texts
    ties = sum(parting.is_near_tie for parting in item.partings)
    parts = []
    if ties:
        parts.append(f"{ties} {_plural(ties, 'near-tie')}")
    if len(item.partings) > ties:
        parts.append(f"{len(item.partings) - ties} not explained by rounding")
    return f"{texts}; {', '.join(parts)}"


def parting_line(parting: Parting) -> str:
    """Where and how closely two texts parted."""
    where = f"{parting.prompt}, token {parting.index + 1}: {parting.expected!r} expected, {parting.found!r} found"
    if parting.margin is None or parting.difference is None:
        return f"{where}; one text ended there"
    explained = parting.margin <= parting.difference
    kind = "near-tie" if parting.is_near_tie else "more than rounding" if explained else "no near-tie"
    margin, difference = significant_text(parting.margin, 2), significant_text(parting.difference, 2)
    return f"{where}; margin {margin}, measured difference {difference}: {kind}"


def title_of(test: LawTest) -> str:
    """What a test of the law is about."""
    if test.name == "lean":
        return "Lean towards the draft"
    return "Bonus token" if test.name == "bonus" else f"Token {test.position} of a block"


def p_text(p_value: float | None) -> str:
    """A p-value as it is read."""
    if p_value is None:
        return "too few to test"
    return f"{p_value:.3f}" if p_value >= 0.001 else significant_text(p_value, 2)


def lean_line(law: LawResult) -> str:
    """How much of the draft shows, and how much would have been found."""
    if law.lean is None or law.lean_error is None:
        return "Draft and target agree too much, or came up too seldom, for a lean to be measured."
    return (
        f"Lean towards the draft: {percent_text(law.lean, 1)} ± {percent_text(law.lean_error, 1)}; "
        f"{percent_text(LEAN_ERRORS * law.lean_error, 1)} would have been found."
    )


def law_remarks(law: LawResult) -> list[str]:
    """What else there is to say about the sampled law."""
    remarks = [lean_line(law)]
    if law.first_p_value is not None:
        remarks.append(
            f"The first samples gave p = {p_text(law.first_p_value)}; these are {law.num_blocks:,} fresh blocks, drawn "
            "because of that. Only what comes up twice counts."
        )
    if law.num_impossible:
        remarks.append(f"{law.num_impossible:,} tokens were drawn that the target never gives with these filters.")
    if law.is_misscored:
        remarks.append(
            f"The target scores a block otherwise than token by token, by {significant_text(law.rounding, 2)} in "
            f"total variation; rounding would be {significant_text(law.most_rounding, 2)} at most."
        )
    return remarks


def settings_line(report: CheckReport) -> str:
    """What was checked, and where."""
    run, sampling = report.request.run, report.request.run.sampling
    parts = [
        f"target {run.target}",
        *([f"draft {run.draft}"] if run.draft else []),
        run.method,
        f"K {length_of(run)}",
        f"temperature {sampling.temperature:g}",
        *([f"top-k {sampling.top_k}"] if sampling.top_k else []),
        *([f"top-p {sampling.top_p:g}"] if sampling.top_p < 1 else []),
        *([f"min-p {sampling.min_p:g}"] if sampling.min_p else []),
        f"{run.coupling} coupling",
        f"seed {run.seed}",
        report.device,
        report.dtype,
        f"{report.seconds:.0f} s",
    ]
    return ", ".join(parts)


def report_lines(report: CheckReport) -> list[str]:
    """The whole report as text."""
    lines = [verdict_sentence(report), settings_line(report), ""]
    for item in report.identities:
        lines.append(f"{compared_title(item)}: {identity_line(item)}")
        lines += [f"  {parting_line(parting)}" for parting in item.partings]
    if report.law is None:
        lines.append("Sampled law: at temperature 0 there is none but the greedy text.")
    else:
        lines += _law_lines(report.law)
    return [*lines, "", *report.notes]


def _law_lines(law: LawResult) -> list[str]:
    lines = [
        f"Sampled law: {law.num_blocks:,} blocks against the target's exact law, chi-squared",
        f"  {'':<24}{'tokens':>8}{'chi2':>10}{'df':>6}  {'p':<16}",
    ]
    for test in law.tests:
        mark = "  not exact" if test.is_failed else ""
        row = f"  {title_of(test):<24}{test.num_samples:>8,}{test.statistic:>10.1f}{test.degrees:>6}"
        lines.append(f"{row}  {p_text(test.p_value)}{mark}")
    return [*lines, *(f"  {remark}" for remark in law_remarks(law))]


def report_text(report: CheckReport) -> str:
    """The report as one text."""
    return "\n".join(report_lines(report)) + "\n"


def report_json(report: CheckReport) -> str:
    """The report for other programs."""
    record: dict[str, Any] = {"schema": SCHEMA, "verdict": str(report.verdict), **asdict(report)}
    # Prompts by their names: what is in them is the user's own.
    record["request"]["prompts"] = [prompt.name for prompt in report.request.prompts]
    record["request"]["run"].pop("prompt")
    for item, found in zip(record["identities"], report.identities, strict=True):
        item["is_exact"] = found.is_exact
    if report.law is not None:
        record["law"]["is_exact"] = report.law.is_exact
    return json.dumps(record, indent=2, ensure_ascii=False, default=str) + "\n"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
