"""Writes the HTML reports of one run, and of several side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from core.export.run_data import FIGURES, RunData, differences, moment_of, run_data, verdict
from core.export.run_plots import compared_plot, run_plots
from core.export.templates import UNKNOWN, render
from core.runlog.log import RunLog, text_of
from core.settings import LOSSY, Coupling, is_lossy
from core.text import significant_text
from core.types import Step, TokenKind

KINDS = {
    TokenKind.ACCEPTED: ("accepted", "a"),
    TokenKind.CORRECTION: ("resampled", "r"),
    TokenKind.BONUS: ("bonus", "b"),
}
PLAIN = ("plain", "n")
"""Title and class of each kind, and of a token of a plain step."""


class Token(NamedTuple):
    """A token of the text: its style, its tooltip and its text."""

    style: str
    tip: str
    text: str


def run_page(log: RunLog) -> str:
    """A run as a complete HTML file, which also says what is missing from the log."""
    run = run_data(log)
    started = moment_of(log.run.get("started_at"))
    lossy = LOSSY if is_lossy(run.config) else ""
    settings = (
        ("K =", "num_draft_tokens"), ("temperature", "temperature"), ("method", "method"), ("device", "device"),
        ("", "dtype"),
    )  # fmt: skip
    return render(
        "run.html",
        title=f"Run {run.run_id}: {run.pair}",
        run=run,
        version=run.version,
        sampling=", ".join(f"{title} {value}".strip() for title, name in settings if (value := run.setting(name))),
        facts=" · ".join(filter(None, (f"Run {run.run_id}", f"started {started}" if started else "", run.end, lossy))),
        error=text_of((log.summary or {}).get("error")),
        verdict=verdict(run),
        has_two_speedups=_has_two_speedups(run),
        figures=[(figure, text) for figure in FIGURES if (text := figure.text(run)) != UNKNOWN],
        prompt=_prompt(run),
        tokens=_tokens(run),
        plots=run_plots(run),
    )


def compare_page(logs: Sequence[RunLog]) -> str:
    """Several runs as a complete HTML file: the settings that differ, the figures, and the text of each."""
    runs = [run_data(log) for log in logs]
    names = [f"Run {number}" for number in range(1, len(runs) + 1)]
    tables = [{**run.settings, "prompt": run.setting("prompt")} for run in runs]
    differing, agreeing = differences([{name: _cut(text) for name, text in table.items()} for table in tables])
    rows = [(figure.title, [figure.text(run) for run in runs]) for figure in FIGURES]
    return render(
        "compare.html",
        title=f"{len(runs)} runs compared",
        version=next((run.version for run in runs if run.version), ""),
        names=names,
        runs=[(name, run, verdict(run), _prompt(run), _tokens(run)) for name, run in zip(names, runs, strict=True)],
        differing=differing,
        agreeing={name: texts[0] for name, texts in agreeing},
        figures=[(title, cells) for title, cells in rows if set(cells) != {UNKNOWN}],
        has_two_speedups=any(map(_has_two_speedups, runs)),
        plot=compared_plot(names, runs),
    )


def _has_two_speedups(run: RunData) -> bool:
    return None not in {run.figure("measured_speedup"), run.figure("predicted_speedup")}


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


def _prompt(run: RunData) -> str:
    """The text before the generated tokens."""
    config = run.config
    gap = "\n\n" if config.get("chat") else ""
    before = text_of(config.get("prompt")) + gap
    return before + text_of(config.get("continuation_text")) + text_of(config.get("forced_text"))


def _tokens(run: RunData) -> Iterator[Token]:
    is_rejection = run.config.get("coupling") != Coupling.GUMBEL
    for step in run.steps:
        for slot, kind, text in zip(step.slots, step.emitted_kinds, step.emitted_texts, strict=False):
            if text:
                title, style = KINDS[kind] if step.drafted else PLAIN
                yield Token(style, f"{title}, {_tip(step, slot, kind, is_rejection)}", text)


def _tip(step: Step, slot: int, kind: TokenKind, is_rejection: bool) -> str:
    parts = [f"step {step.index + 1}"]
    if slot < len(step.drafted) and kind is not TokenKind.BONUS:
        if kind is TokenKind.CORRECTION:
            parts.append(f"in place of “{step.drafted_texts[slot]}”, which had")
        named = [("p", step.target_probs[slot]), ("q", step.draft_probs[slot])]
        if is_rejection and slot < len(step.uniforms):
            named.append(("u", step.uniforms[slot]))
        parts += [f"{name} {significant_text(value, 3)}" for name, value in named if math.isfinite(value)]
    elif step.next_uniform is not None:
        parts.append(f"u {significant_text(step.next_uniform, 3)}")
    return " · ".join(parts)
