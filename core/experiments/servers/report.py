"""The results of checking a server, as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from core.experiments.check_plan import DistributionResult, IdentityResult, Verdict
from core.experiments.check_report import distribution_remarks, exact_sentence, identity_text, table_of
from core.text import count_text, duration_text, percent_text, significant_text

SCHEMA = "outrider.server-check/1"
FAR_BELOW, FAR_BELOW_SHARE = 0.1, 0.2
"""An acceptance that misses what the pair allows by more than this much, or this share of it, is reported, if chance
doesn't explain it."""
CHANCE = 4.0
"""Standard errors that chance explains."""
SELDOM = 0.2
"""The share of sampled texts with a draft below which a wrong test of drafts hardly shows in them."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many of the tested draft tokens a server accepted, and what the pair here predicts on the same texts.

    Attributes:
        drawn: mean of sum(min(p, q)) = 1 - TV, for drafts drawn from the draft's distribution.
        likeliest: mean target probability of the draft's most likely token, for servers that always draft that one.
        error: one standard error of the observed share, as far as chance goes.
    """

    temperature: float
    num_tested: int
    num_accepted: int
    drawn: float
    likeliest: float
    error: float

    @property
    def share(self) -> float:
        return self.num_accepted / self.num_tested

    @classmethod
    def of(cls, temperature: float, tested: Sequence[tuple[bool, float, float]]) -> Acceptance | None:
        """From whether each tested token was accepted, and how likely that is in both ways; None if none was tested."""
        if not tested:
            return None
        count = len(tested)
        accepted, drawn, likeliest = (sum(column) for column in zip(*tested, strict=True))
        spreads = (sum(row[way] * (1.0 - row[way]) for row in tested) for way in (1, 2))
        return cls(temperature, count, int(accepted), drawn / count, likeliest / count, math.sqrt(max(spreads)) / count)

    @property
    def _allowed(self) -> float:
        return min(self.drawn, self.likeliest)

    @property
    def _slack(self) -> float:
        return min(FAR_BELOW, FAR_BELOW_SHARE * self._allowed)

    @property
    def is_far_below(self) -> bool:
        """Whether neither way of drafting explains so few accepted tokens."""
        return self.share < self._allowed - max(self._slack, CHANCE * self.error)

    @property
    def is_decided(self) -> bool:
        """Whether enough tokens were tested: chance can't hide a server that accepts far too little."""
        return self.is_far_below or CHANCE * self.error <= self._slack


@dataclass(frozen=True, slots=True)
class ServerReport:
    """All results of a check; no distribution at temperature 0, no acceptance without a draft here.

    `num_drafted` counts the short texts in which the server is known to have drafted, `num_partial` the texts that were
    compared only up to a token without an id; `speculates` is None if it doesn't report whether it drafts at all.
    """

    server: str
    model: str
    speculates: bool | None
    against: str
    greedy: IdentityResult
    temperature: float
    distribution: DistributionResult | None
    num_drafted: int
    num_partial: int
    acceptances: tuple[Acceptance, ...]
    has_draft: bool
    notes: tuple[str, ...]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        if not self.greedy.is_exact or not (self.distribution is None or self.distribution.is_exact):
            return Verdict.NOT_EXACT
        return Verdict.NEAR_TIES if self.greedy.divergences else Verdict.EXACT

    @property
    def accepts_too_little(self) -> bool:
        return any(acceptance.is_far_below for acceptance in self.acceptances)

    @property
    def drafts_seldom(self) -> bool:
        """Whether the sampled texts say little about speculation, as with n-grams that find no match."""
        found = self.distribution
        return found is not None and self.speculates is not False and self.num_drafted < SELDOM * found.num_blocks

    @property
    def is_right(self) -> bool:
        return self.verdict is not Verdict.NOT_EXACT and not self.accepts_too_little


def report_sentence(report: ServerReport) -> str:
    """The verdict in words."""
    if report.verdict is Verdict.NOT_EXACT:
        text = f"Not exact: the server's output differs from that of {report.against}."
    elif report.num_partial and report.distribution is None:
        text = f"{str(report.verdict).capitalize()} as far as compared."
    else:
        samples = "sampled texts"
        text = exact_sentence(report.verdict, report.distribution, samples, has_draft=report.has_draft)
    if report.num_partial:
        texts = count_text(report.num_partial, "text")
        text += f" {texts} could be compared only in part: the ids of some tokens aren't reported."
    if report.drafts_seldom and report.verdict is not Verdict.NOT_EXACT and report.distribution is not None:
        count = f"{report.num_drafted:,} of {report.distribution.num_blocks:,}"
        also = "" if report.num_drafted else " It may not report its steps."
        text += (
            f" But the server is known to have drafted in only {count} sampled texts, which says little about its "
            f"speculation: use --prompts to name prompts for which it drafts more.{also}"
        )
    return f"{text} It accepts far fewer drafted tokens than the pair allows." if report.accepts_too_little else text


def report_text(report: ServerReport) -> str:
    """The report as text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ServerReport) -> Iterator[str]:
    yield report_sentence(report)
    yield report.server
    yield f"Checked {report.model} against {report.against}; took {duration_text(report.seconds)}."
    yield ""
    yield f"Greedy text: {identity_text(report.greedy)}"
    for item in report.greedy.divergences:
        where = f"{item.prompt}, token {item.index + 1}: {item.expected!r} expected, {item.found!r} found"
        how_close = "the server doesn't report how close they are"
        if item.margin is not None:
            kind = "near-tie" if item.is_near_tie else "no near-tie"
            how_close = f"lead {significant_text(item.margin, 2)}: {kind}"
        yield f"  {where}; {how_close}"
    found = report.distribution
    if found is None:
        yield "Sampled text: none at temperature 0."
    else:
        yield f"Sampled text at temperature {report.temperature:g}: {found.num_blocks:,} short texts, chi-squared"
        yield from table_of(found.tests, "text")
        yield from (f"  {remark}" for remark in distribution_remarks(found, "texts"))
        yield f"  The server is known to have drafted in {report.num_drafted:,} of these texts."
    for acceptance in report.acceptances:
        low = "  far below what the pair allows" if acceptance.is_far_below else ""
        low = low or ("" if acceptance.is_decided else "  too few tokens to tell whether that is enough")
        observed = f"{percent_text(acceptance.share, 1)} of {count_text(acceptance.num_tested, 'tested token')}"
        yield (
            f"Acceptance at temperature {acceptance.temperature:g}: {observed}; this pair allows "
            f"{percent_text(acceptance.drawn, 1)} where drafts are drawn (1 - TV), and "
            f"{percent_text(acceptance.likeliest, 1)} where the draft's most likely token is taken{low}"
        )
    yield ""
    yield from report.notes


def report_json(report: ServerReport) -> str:
    """The report for other programs."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": str(report.verdict),
        "accepts_too_little": report.accepts_too_little,
        **asdict(report),
    }
    if report.distribution is not None:
        # There is no block whose scoring could differ, and so no limit.
        record["distribution"] = {
            name: value for name, value in record["distribution"].items() if "rounding" not in name
        }
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"
