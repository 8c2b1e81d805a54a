"""A report in words: for a terminal, for the clipboard, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from core.check.types import CheckReport, Comparison, IdentityResult, LawResult, LawTest, Parting, Verdict
from core.draft_length import length_of
from core.figures import percent_text, significant_text

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
