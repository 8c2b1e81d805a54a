"""A run's key figures, each with its field in the log and what it means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.figures import spaced_percent
from core.report.escaping import escaped
from core.report.page import UNKNOWN
from core.report.run_data import RunData


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that a report may show.

    Attributes:
        title: in words.
        field: its name in the log, where it has one there; vLLM's where vLLM has it.
        meaning: how it is computed.
        read: what it is of a run; None where it is not known.
        form: how it is written.
    """

    title: str
    field: str
    meaning: str
    read: Callable[[RunData], float | None]
    form: str = "{:,.2f}"

    def text(self, run: RunData) -> str:
        """As it is shown."""
        value = self.read(run)
        return UNKNOWN if value is None else spaced_percent(self.form.format(value))


def _of(name: str) -> Callable[[RunData], float | None]:
    return lambda run: run.figure(name)


TWO_SPEEDUPS = (
    "The measured speedup is what the clock said: the run against the target alone. The predicted one is worked out "
    "from the run’s own acceptance and step times. Where they differ, the measured one counts."
)


def mean_acceptance_length(run: RunData) -> float | None:
    """As vLLM reckons it: 1 + accepted / drafts."""
    accepted, drafts = run.figure("num_accepted_tokens"), run.figure("num_drafts")
    return 1 + accepted / drafts if accepted is not None and drafts else None


FIGURES: tuple[Figure, ...] = (
    Figure(
        "Measured speedup",
        "measured_speedup",
        "Tokens per second of this run / those of the target alone, run right afterwards with the same sampling. "
        "Wall clock, never an estimate.",
        _of("measured_speedup"),
        "{:.2f}×",
    ),
    Figure(
        "Tokens per second",
        "tokens_per_second",
        "New tokens / the sum of the steps' times. The prefill of the prompt is not part of it.",
        _of("tokens_per_second"),
        "{:,.1f}",
    ),
    Figure(
        "Baseline, tokens per second",
        "baseline_tokens_per_second",
        "The target alone, one token a forward, in the same process.",
        _of("baseline_tokens_per_second"),
        "{:,.1f}",
    ),
    Figure(
        "Predicted speedup",
        "predicted_speedup",
        "tau / (K c + v), from this run's own alpha, c and verify cost. It stands beside the measured one.",
        _of("predicted_speedup"),
        "{:.2f}×",
    ),
    Figure(
        "Acceptance",
        "draft_acceptance_rate",
        "Accepted / drafted tokens. Tokens behind a rejected one count as drafted.",
        _of("draft_acceptance_rate"),
        "{:.1%}",
    ),
    Figure(
        "Alpha",
        "",
        "Accepted / tested tokens: the chance that a token which is tested is kept.",
        lambda run: run.alpha,
        "{:.1%}",
    ),
    Figure(
        "Block efficiency",
        "block_efficiency",
        "New tokens / forwards of the target, resampled and bonus tokens included. Plain decoding has 1.",
        _of("block_efficiency"),
    ),
    Figure(
        "Mean acceptance length",
        "mean_acceptance_length",
        "1 + accepted tokens / drafts: vLLM's figure, over the steps that drafted.",
        mean_acceptance_length,
    ),
    Figure(
        "Cost coefficient c",
        "cost_coefficient",
        "One draft step's time / one target step's time.",
        _of("cost_coefficient"),
        "{:.3f}",
    ),
    Figure("New tokens", "num_tokens", "Tokens that the run wrote.", _of("num_tokens"), "{:,.0f}"),
    Figure("Prefill, ms", "prefill_ms", "Time to read the prompt, in milliseconds.", _of("prefill_ms"), "{:,.1f}"),
    Figure("Peak memory, MB", "peak_memory_mb", "Of the device or the process.", _of("peak_memory_mb"), "{:,.0f}"),
)


def cards(run: RunData) -> str:
    """The figures that are known, each with what it means."""
    shown = [(figure, figure.text(run)) for figure in FIGURES]
    inside = "\n".join(
        f'<div class="card"><dt>{escaped(figure.title)}</dt><dd class="value">{escaped(text)}</dd>'
        f"<dd>{escaped(figure.meaning)}"
        + (f" <code>{escaped(figure.field)}</code>" if figure.field else "")
        + "</dd></div>"
        for figure, text in shown
        if text != UNKNOWN
    )
    return f'<dl class="figures">\n{inside}\n</dl>'


def verdict(run: RunData) -> str:
    """What the run says of its pair, in a sentence; only what was measured counts."""
    speedup = run.figure("measured_speedup")
    if speedup is None:
        return "The baseline did not run, so that this run does not say whether speculation pays here."
    if speedup < 1:
        return f"Don’t speculate here: this run was slower than the target alone, at {speedup:.2f}× its speed."
    return f"Speculation paid in this run: {speedup:.2f}× the speed of the target alone."


def note(runs: Sequence[RunData]) -> str:
    """What the two speedups are; empty where none of the runs has both."""
    both = ("measured_speedup", "predicted_speedup")
    if not any(all(run.figure(name) is not None for name in both) for run in runs):
        return ""
    return f'<p class="note">{escaped(TWO_SPEEDUPS)}</p>'


def rows(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """The figures of several runs, those left out that none of them has."""
    found = [(figure.title, [figure.text(run) for run in runs]) for figure in FIGURES]
    return [(title, cells) for title, cells in found if set(cells) != {UNKNOWN}]
