"""The report of several runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from core.report.charts import Axis, Mark, Plot, Words, figure, headroom, thinned
from core.report.escaping import escaped
from core.report.page import figures_table, page, section, settings_table, warnings
from core.report.run_data import RunData, run_data
from core.report.run_figures import note, rows, verdict
from core.report.run_plots import over_time
from core.report.run_text import coloured_text, legend
from core.trace import RunLog

DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "1 3")
COLOURS = ("run_1", "run_2", "run_3", "run_4", "run_5", "run_6")


def compare_page(logs: Sequence[RunLog]) -> str:
    """Runs as a whole HTML file: what differs in their settings, their figures, and the text of each."""
    runs = [run_data(log) for log in logs]
    names = [f"Run {number}" for number in range(1, len(runs) + 1)]
    differing, shared = _settings(runs)
    problems = [f"{name}: {problem}" for name, run in zip(names, runs, strict=True) for problem in run.problems]
    settings = figures_table(names, differing, "Settings that differ", of_words=True) if differing else ""
    return page(
        f"{len(runs)} runs compared",
        (
            f"<header>\n<h1>{len(runs)} runs compared</h1>\n{_heads(names, runs)}</header>",
            warnings(problems),
            section("What differs", settings or '<p class="muted">Nothing in their settings.</p>'),
            section("Key figures", figures_table(names, rows(runs), "Key figures of the runs"), note(runs)),
            section("Plots", _over_time(names, runs)),
            section("Texts", legend(), *(_text(name, run) for name, run in zip(names, runs, strict=True))),
            section("Settings that they share", settings_table(shared, "Settings that the runs share")),
        ),
        version=next((run.version for run in runs if run.version), ""),
    )


def _heads(names: Sequence[str], runs: Sequence[RunData]) -> str:
    return "\n".join(
        f'<p><b>{name}</b> <bdi>{escaped(run.pair)}</bdi> <span class="muted">{escaped(run.run_id)}. '
        f"{escaped(verdict(run))}</span></p>"
        for name, run in zip(names, runs, strict=True)
    )


def _settings(runs: Sequence[RunData]) -> tuple[list[tuple[str, list[str]]], dict[str, str]]:
    """Those that differ, by run; and those that are the same."""
    differing, shared = [], {}
    found = [{**run.settings, "prompt": run.setting("prompt")} for run in runs]
    for name in dict.fromkeys(name for settings in found for name in settings):
        values = [settings.get(name, "") for settings in found]
        if len(set(values)) > 1:
            differing.append((name, [_cut(value) for value in values]))
        else:
            shared[name] = _cut(values[0])
    return differing, shared


def _cut(value: str) -> str:
    return value if len(value) <= 200 else f"{value[:199]}…"


def _over_time(names: Sequence[str], runs: Sequence[RunData]) -> str:
    lines = [thinned(over_time(run.steps)) for run in runs]
    ends = [line[-1] for line in lines]
    words = Words(
        "tokens", "Tokens over time", "New tokens against seconds of decoding. The steepest line is the fastest."
    )
    x = Axis("time, s", 0, max(end[0] for end in ends) or 1.0)
    plot = Plot(words, x, Axis("tokens", 0, headroom([end[1] for end in ends]), is_whole=True))
    marks = [Mark(name, COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]) for place, name in enumerate(names)]
    for line, mark in zip(lines, marks, strict=True):
        plot.line(line, mark)
    return figure(plot, words, marks)


def _text(name: str, run: RunData) -> str:
    title = f"{name}: {run.pair}, K = {run.setting('num_draft_tokens')}"
    return f"<details open>\n<summary><bdi>{escaped(title)}</bdi></summary>\n{coloured_text(run)}\n</details>"
