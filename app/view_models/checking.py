"""What the window of the check says: the question that it asks, a row for each test, a sentence and a mark."""

from __future__ import annotations

from dataclasses import dataclass

from core.check.types import CheckReport, CheckRequest, IdentityResult, LawTest, Verdict
from core.check.wording import compared_title, law_remarks, p_text, parting_line, title_of, verdict_sentence
from core.draft_length import length_of
from core.types import Coupling, RunRequest

NONE_YET = "Check whether this pair, with these settings, gives exactly what the target alone would."
NO_TESTS = "Each test gets a row here: greedy text against plain decoding, sampled tokens against the target's law."
STOPPED = "Stopped before there was a verdict."
COLUMNS = (
    ("Test", "What is held against what."),
    ("Tokens", "How many tokens were compared or counted."),
    ("χ²", "Pearson's chi-squared over the cells that are expected five times or more; of the lean, its square."),
    ("df", "Degrees of freedom of χ²."),
    (
        "Result",
        "p: how often an exact engine does at least this badly by chance. Small is bad; any size above is well.",
    ),
)
MARKS = {Verdict.EXACT: "✓", Verdict.NEAR_TIES: "≈", Verdict.NOT_EXACT: "✕"}
MARK_NAMES = {Verdict.EXACT: "exact", Verdict.NEAR_TIES: "near", Verdict.NOT_EXACT: "broken"}
_TESTED = {
    "lean": "Tokens that the draft likes better than the target does, counted against what the target says of them.",
    "bonus": "Tokens after a fully accepted draft, against the target's law there; half of the blocks have K = 1.",
}


LEAST_SHOWN = 0.001


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A line of the table: its texts, an explanation, and whether it speaks against the engine."""

    texts: tuple[str, ...]
    tip: str
    is_failed: bool = False


def subject_of(run: RunRequest) -> str:
    """What will be checked, in a line."""
    sampling = run.sampling
    parts = [
        f"{run.draft} for {run.target}" if run.draft else f"{run.method} for {run.target}",
        f"K = {length_of(run)}",
        f"temperature {sampling.temperature:g}",
    ]
    if not sampling.is_unfiltered:
        parts.append(f"top-k {sampling.top_k}, top-p {sampling.top_p:g}, min-p {sampling.min_p:g}")
    if run.coupling is Coupling.GUMBEL:
        parts.append("Gumbel coupling")
    return " · ".join(parts)


def rows_of(report: CheckReport) -> list[CheckRow]:
    """All that was tested."""
    rows = [_compared(item) for item in report.identities]
    if report.law is not None:
        rows += [_tested(test) for test in report.law.tests]
    return rows


def _compared(item: IdentityResult) -> CheckRow:
    ties = sum(parting.is_near_tie for parting in item.partings)
    result = "equal"
    if item.partings:
        parts = [f"{ties} near-tie" + "s" * (ties != 1)] if ties else []
        others = len(item.partings) - ties
        result = ", ".join([*parts, *([f"{others} unexplained"] if others else [])])
    tip = "\n".join(map(parting_line, item.partings)) or "Token by token, to the end of each text."
    return CheckRow((compared_title(item), f"{item.num_tokens:,}", "", "", result), tip, not item.is_exact)


def _tested(test: LawTest) -> CheckRow:
    figures = (f"{test.statistic:.1f}", f"{test.degrees:,}") if test.degrees else ("", "")
    texts = (title_of(test), f"{test.num_samples:,}", *figures)
    result = _p_text(test.p_value)
    if test.is_failed:
        result = f"✕ {result}"
    tip = _TESTED.get(
        test.name, "Tokens at this place of a block, by what stood before them, against the target's law."
    )
    if test.p_value is not None and test.p_value < LEAST_SHOWN:
        tip = f"{tip} p = {p_text(test.p_value)}."
    return CheckRow((*texts, result), tip, test.is_failed)


def _p_text(p_value: float | None) -> str:
    """A p-value without powers of ten; how small a small one is stands in the tooltip and in the report."""
    if p_value is None:
        return p_text(p_value)
    return f"p < {LEAST_SHOWN:g}" if p_value < LEAST_SHOWN else f"p = {p_value:.3f}"


def remarks_of(report: CheckReport) -> str:
    """What else there is to say: of the samples, and of what the settings do to the law."""
    remarks = [] if report.law is None else law_remarks(report.law)
    return "\n".join([*remarks, *report.notes])


def headline_of(report: CheckReport) -> str:
    """The verdict in a sentence."""
    return verdict_sentence(report)


def is_checked_as(run: RunRequest, request: CheckRequest) -> bool:
    """Whether a report's settings are still those that are chosen."""
    return subject_of(run) == subject_of(request.run)
