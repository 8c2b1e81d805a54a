"""A check's report in words and as JSON: the verdict as a sentence, the tables, and notes on the settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from core.drafters.registry import METHODS
from core.experiments.check_plan import (
    DEFAULT_SAMPLES,
    MAX_BLOCKS,
    BiasLimit,
    CheckReport,
    Comparison,
    DistributionResult,
    DistributionTest,
    Divergence,
    IdentityResult,
    Verdict,
    block_lengths,
)
from core.settings import LOSSY, Coupling, LengthPolicy, RunRequest
from core.text import count_text, duration_text, percent_text, significant_text

SCHEMA = "outrider.check/1"
BIAS_ERRORS = 4.0
"""A bias of this many standard errors is found in nine of ten checks."""
LOOSE_BIAS = 0.1
"""A check that misses even this bias is no proof of exactness, and says so."""
COMPARED = {
    Comparison.GREEDY: "Greedy text against plain decoding",
    Comparison.GUMBEL: "Gumbel-coupled text against plain sampling, same seed",
    Comparison.TRANSFORMERS: "Plain greedy text against transformers' generate",
}
"""What was compared, in words."""


def notes_on(report: CheckReport, *, is_of_others: bool = False) -> tuple[str, ...]:
    """How the settings affect the distribution, a sentence each.

    If the verdict is "not exact", the first says why, or what to do where the settings don't explain it. A drafter that
    `is_of_others` is not one of Outrider's own.
    """
    run, distribution, dtype = report.request.run, report.distribution, report.dtype
    if run.is_lossy and report.agrees_greedily:
        notes = [f"{LOSSY} At temperature 0 the text is still the greedy one."]
    elif report.verdict is Verdict.NOT_EXACT:
        repeat = (
            "Repeat the check with another seed (Seed in the main window, --seed in the terminal); if the output "
            "differs again, save"
        )
        notes = [f"{repeat if report.agrees_greedily else 'Save'} the report, and file a bug with it."]
        if is_of_others and report.agrees_greedily:
            notes.insert(0, "First make sure that the drafter draws from the distributions that are in Draft.probs.")
    else:
        notes = [
            "Only typical acceptance trades exactness for speed: method, tree, K, block verification and an int8 draft "
            "change only the speed."
        ]
    if is_of_others and distribution is not None:
        notes.append(
            "Only this drafter's first proposal after a prompt is sampled; later ones are tested by comparing texts."
        )
    if distribution is not None and len(block_lengths(run)) > 1:
        notes.append("Half the blocks use K = 1, to get more bonus tokens: the longer a draft, the rarer they are.")
    if dtype in {"float16", "bfloat16"}:
        measured = (
            ""
            if distribution is None
            else f", here by up to {significant_text(distribution.rounding, 2)} in total variation"
        )
        notes.append(
            f"In {dtype} the text follows the logits that the target gives when it scores a "
            f"whole block; those of one token at a time differ by rounding{measured}."
        )
    if not run.sampling.is_unfiltered and not run.sampling.is_greedy:
        notes.append(
            "Top-k, top-p and min-p change the distribution on purpose, with drafts and without; the filtered "
            "distribution was checked."
        )
    if run.coupling is Coupling.GUMBEL:
        notes.append("Gumbel coupling keeps the distribution, and a seed gives the same text as without a draft.")
    elif not (run.sampling.is_greedy or run.is_lossy):
        notes.append(
            "The same seed gives different texts with and without a draft, because they use random numbers differently."
        )
        if run.num_draft_tokens is None:
            name = "Auto" if run.length_policy is LengthPolicy.AUTO else "Adaptive"
            notes.append(
                f"With K on {name} the distribution is kept; which text a seed gives depends on this machine's timing."
            )
    return tuple(notes)


def verdict_sentence(report: CheckReport) -> str:
    """The verdict in words."""
    if report.is_lossy and report.distribution is not None and not report.is_unexplained:
        blocks = f"these {report.distribution.num_blocks:,} blocks"
        shows = f"though {blocks} don't show it" if report.distribution.is_exact else f"and {blocks} show it"
        return f"Not exact: typical acceptance doesn't follow the target's distribution, {shows}."
    if report.verdict is Verdict.NOT_EXACT:
        return f"Not exact: {'; '.join(_differences(report))}."
    return exact_sentence(report.verdict, report.distribution)


def _differences(report: CheckReport) -> Iterator[str]:
    """What differs from the target's output, and by how much."""
    for item in report.identities:
        if not item.is_exact:
            others = sum(not divergence.is_near_tie for divergence in item.divergences)
            texts = count_text(item.num_prompts, "text")
            differ = "differs" if others == 1 else "differ"
            yield f"{COMPARED[item.comparison]}: {others} of {texts} {differ} by more than rounding"
    found = report.distribution
    if found is None or report.is_lossy:  # Where the rule is lossy, blocks are expected to differ.
        return
    failed = {test.name for test in found.tests if test.is_failed}
    if failed or found.num_impossible:
        bias = ""
        if "bias" in failed and found.bias is not None:
            bias = f"; their bias towards the draft is {percent_text(found.bias, 1)}"
        yield f"{found.num_blocks:,} sampled blocks don't follow the target's distribution{bias}"
    if found.is_misscored:
        yield "the target's scores of a block differ from those token by token, by more than rounding"


_LIMITS = {
    BiasLimit.ALIKE: "draft and target agree too closely to measure a bias",
    BiasLimit.DRAFTS: "too few tokens were drafted to measure a bias",
    BiasLimit.UNWRITTEN: "the target hardly ever writes what the draft prefers",
}


def exact_sentence(
    verdict: Verdict, found: DistributionResult | None, samples: str = "blocks", *, has_draft: bool = True
) -> str:
    """What was found where nothing differs from the target's output, and how large a bias would have been found."""
    name, parts = str(verdict).capitalize(), []
    if verdict is Verdict.NEAR_TIES:
        parts.append("texts diverge only where rounding decides")
    if found is None:
        return f"{name}: {'; '.join(parts) or 'all texts are equal'}."
    equal, bias = f"no difference in {found.num_blocks:,} {samples}", least_bias(found)
    most = min(max(DEFAULT_SAMPLES, 4 * found.num_blocks), MAX_BLOCKS)
    more = f"Sample more, for instance {most:,}" if most > found.num_blocks else "Sample more"
    if bias is None:
        parts.append(equal)
        if not has_draft:
            return f"{name}: {'; '.join(parts)}."
        if found.bias_limit in _LIMITS:
            parts.append(_LIMITS[found.bias_limit])
            return f"{name} as far as tested: {'; '.join(parts)}."
        said = f"{'; '.join(parts)}, too few to show a bias towards the draft"
        return f"{name} as far as tested: {said}. {more}."
    least = percent_text(bias, 1)
    if is_loose(found):
        parts.append(f"{equal}, enough to find only a bias towards the draft of {least} or more")
        return f"{name} as far as tested: {'; '.join(parts)}. {more}."
    parts.append(f"{equal}, where a bias towards the draft of {least} would have shown")
    return f"{name}: {'; '.join(parts)}."


def least_bias(found: DistributionResult) -> float | None:
    """The bias towards the draft that nine of ten such checks would find; None where none was measured."""
    # After a second test, a bias counts only if the first, smaller samples showed it, too.
    error = found.bias_error if found.first_p_value is None else found.first_bias_error
    return None if error is None or found.bias_error is None else BIAS_ERRORS * error


def is_loose(found: DistributionResult) -> bool:
    """Whether nine of ten such checks would find only a large bias towards the draft, or none."""
    bias = least_bias(found)
    return bias is None or bias > LOOSE_BIAS


def drafting_text(run: RunRequest) -> str:
    """The method with the options that shape its drafts, K, and the rule that tests them."""
    method = METHODS.get(run.method)
    options = {} if method is None else asdict(method.parse(run.method_options))
    shape = [
        f"{name.replace('_', ' ')} {value}" for name, value in options.items() if not isinstance(value, bool | str)
    ]
    shape += [f"rule {options['rule']}"] if "rule" in options else []
    drafted = f"{run.method} ({', '.join(shape)})" if shape else run.method
    return f"{drafted}, K = {run.draft_length}, {run.verification} verification"


def divergence_line(divergence: Divergence) -> str:
    """Where two texts diverged, and by what margin."""
    expected, found = divergence.expected, divergence.found
    where = f"{divergence.prompt}, token {divergence.index + 1}: {expected!r} expected, {found!r} found"
    if divergence.difference is None:
        return f"{where}; one text ended there"
    explained = (divergence.margin or 0.0) <= divergence.difference
    kind = "near-tie" if divergence.is_near_tie else "more than rounding" if explained else "no near-tie"
    margin = "at the edge of the filters"
    if divergence.margin is not None:
        margin = f"margin {significant_text(divergence.margin, 2)}"
    return f"{where}; {margin}, measured difference {significant_text(divergence.difference, 2)}: {kind}"


def title_of(test: DistributionTest, sample: str = "block") -> str:
    """What a test of the distribution is about."""
    titles = {"bias": "Bias towards the draft", "bonus": "Bonus token", "own logprobs": "Token 1, own logprobs"}
    return titles.get(test.name, f"Token {test.position} of a {sample}")


def p_text(p_value: float | None) -> str:
    """A p-value as text."""
    if p_value is None:
        return "too few to test"
    return f"{p_value:.3f}" if p_value >= 0.001 else significant_text(p_value, 2)


def distribution_remarks(found: DistributionResult, samples: str = "blocks") -> list[str]:
    """Further notes on the sampled distribution."""
    remarks = []
    if found.bias is not None and found.bias_error is not None:
        bias, error = percent_text(found.bias, 1), percent_text(found.bias_error, 1)
        errors = f"standard errors{'' if found.first_p_value is None else ' of its first samples'}"
        remark = f"Bias towards the draft: {bias}, standard error {error}."
        if (least := least_bias(found)) is not None:
            remark += f" A check of this size finds a bias of {percent_text(least, 1)} (about {BIAS_ERRORS:g} {errors})"
            remark += " nine times in ten."
        remarks = [f"{remark} 100 % would mean that all tokens came from the draft's distribution."]
    if (trees := found.trees) is not None:
        shapes = "all of one shape" if trees.num_shapes == 1 else f"of {trees.num_shapes:,} shapes"
        remarks.append(
            f"Trees {shapes}: up to {count_text(trees.most_nodes, 'node')}, {trees.most_depth} in a row, "
            f"{count_text(trees.most_children, 'sibling')}."
        )
    if found.first_p_value is not None:
        remarks.append(
            f"The first samples gave p = {p_text(found.first_p_value)}; these are {found.num_blocks:,} fresh "
            f"{samples}, drawn because of that. Only a deviation that appears twice counts."
        )
    if found.num_impossible:
        remarks.append(f"{found.num_impossible:,} tokens were drawn that the target never produces with these filters.")
    if found.is_misscored:
        remarks.append(
            f"The target's scores of a block differ from those token by token by {significant_text(found.rounding, 2)} "
            f"in total variation; rounding explains {significant_text(found.most_rounding, 2)} at most."
        )
    return remarks


def report_text(report: CheckReport) -> str:
    """The report as text."""
    return "\n".join(_report_lines(report)) + "\n"


def _report_lines(report: CheckReport) -> Iterator[str]:
    yield verdict_sentence(report)
    yield _settings_line(report)
    yield ""
    for item in report.identities:
        yield f"{COMPARED[item.comparison]}: {identity_text(item)}"
        yield from (f"  {divergence_line(divergence)}" for divergence in item.divergences)
    found = report.distribution
    if found is None:
        yield "Sampled distribution: none at temperature 0, where only the greedy text is possible."
    else:
        yield f"Sampled distribution: {found.num_blocks:,} blocks against the target's exact distribution, chi-squared"
        yield from table_of(found.tests)
        yield from (f"  {remark}" for remark in distribution_remarks(found))
    yield ""
    yield from report.notes


def table_of(tests: Iterable[DistributionTest], sample: str = "block") -> Iterator[str]:
    """The tests as a table."""
    yield f"  {'':<24}{'tokens':>8}{'chi2':>10}{'df':>6}  {'p':<16}"
    for test in tests:
        row = f"  {title_of(test, sample):<24}{test.num_samples:>8,}{test.statistic:>10.1f}{test.degrees:>6}"
        yield f"{row}  {p_text(test.p_value)}{'  not exact' if test.is_failed else ''}"


def identity_text(item: IdentityResult) -> str:
    """How many tokens were equal, and how many divergences there are."""
    text = f"{count_text(item.num_tokens, 'token')} equal in {count_text(item.num_prompts, 'text')}"
    if not item.divergences:
        return text
    ties = sum(divergence.is_near_tie for divergence in item.divergences)
    others = len(item.divergences) - ties
    parts = [count_text(ties, "near-tie")] if ties else []
    return f"{text}; {', '.join([*parts, *([f'{others} not explained by rounding'] if others else [])])}"


def _settings_line(report: CheckReport) -> str:
    run = report.request.run
    parts = [
        f"target {run.target}",
        f"draft {run.draft}" if run.draft else "",
        drafting_text(run),
        run.sampling.text,
        f"{run.coupling} coupling",
        f"seed {run.seed}",
        {None: "", True: "chat template", False: "without chat template"}[run.chat],
        "with a system prompt" if run.system else "",
        report.device,
        report.dtype,
        f"took {duration_text(report.seconds)}",
    ]
    return ", ".join(filter(None, parts))


_PUBLISHED = {
    "distribution": "law",
    "bias": "lean",
    "bias_error": "lean_error",
    "first_bias_error": "first_lean_error",
    "bias_limit": "lean_limit",
    "divergences": "partings",
}
"""Names in the JSON document, where they differ from those in the code."""


def report_json(report: CheckReport) -> str:
    """The report for other programs."""
    record: dict[str, Any] = {"schema": SCHEMA, "verdict": str(report.verdict), **asdict(report)}
    # Prompts by their names: their text is the user's own.
    record["request"]["prompts"] = [prompt.name for prompt in report.request.prompts]
    record["request"]["run"].pop("prompt")
    for item, found in zip(record["identities"], report.identities, strict=True):
        item["is_exact"] = found.is_exact
    if report.distribution is not None:
        record["distribution"]["is_exact"] = report.distribution.is_exact
        for test in record["distribution"]["tests"]:
            test["name"] = _PUBLISHED.get(test["name"], test["name"])
    return json.dumps(_renamed(record), indent=2, ensure_ascii=False, default=str) + "\n"


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {_PUBLISHED.get(key, key): _renamed(item) for key, item in value.items()}
    return [_renamed(item) for item in value] if isinstance(value, list | tuple) else value
