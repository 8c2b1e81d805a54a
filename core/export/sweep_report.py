"""The report of a sweep: what to do at each temperature, the grid as heat maps, and every cell's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from core.experiments.bench import Spread
from core.experiments.sweep import SweepResults, verdicts
from core.experiments.sweep_log import SweepLog, plan_to_config
from core.experiments.sweep_plan import CellResult, DrafterChoice, SweepPlan
from core.export.charts import Axis, Mark, Plot, Words, figure, headroom
from core.export.page import UNKNOWN, attribute, escaped, figures_table, page, section, settings_table, warnings
from core.export.run_data import moment_of, shown, text_of
from core.text import spaced_percent

STRONGEST = 55
"""Percent of the colour in the cell that differs most: its text stays readable on it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value stands among all: `origin` has no colour, and what lies `reach` from it has the strongest."""

    origin: float
    reach: float

    def place(self, value: float) -> float:
        """From -1, the furthest below, to 1, the furthest above."""
        return (value - self.origin) / self.reach


def scale_of(values: Sequence[float], middle: float | None) -> Scale:
    """The scale of these values.

    Args:
        values: at least one.
        middle: the value that is neither good nor bad; None where only more or less counts.
    """
    origin = min(values) if middle is None else middle
    return Scale(origin, max(abs(value - origin) for value in values) or 1.0)


def heat_map(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Spread | None]]], form: str, scale: Scale
) -> str:
    """A table whose cells are the bluer the more they are; around a middle, what lies below it is orange.

    Args:
        title: whose grid it is.
        columns: the values of K.
        rows: a temperature, and its cells.
        form: how a value is written.
        scale: of the colours.
    """
    medians = {spread.median for _, row in rows for spread in row if spread is not None}
    # Where all are the same none stands out.
    best = max(medians) if len(medians) > 1 else None
    head = "".join(f'<th scope="col">K = {escaped(column)}</th>' for column in columns)
    body = "\n".join(
        f'<tr><th scope="row">{escaped(name)}</th>'
        + "".join(_heat(spread, form, scale, best) for spread in row)
        + "</tr>"
        for name, row in rows
    )
    return (
        f'<div class="wide"><table class="heat" aria-label="{attribute(title)}">\n<caption><bdi>{escaped(title)}</bdi>'
        f"</caption>\n<thead><tr><td></td>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _heat(spread: Spread | None, form: str, scale: Scale, best: float | None) -> str:
    if spread is None:
        return f'<td class="number">{UNKNOWN}</td>'
    share = scale.place(spread.median)
    color = "correction" if share < 0 else "accepted"
    style = f"background: color-mix(in srgb, var(--{color}) {abs(share) * STRONGEST:.0f}%, transparent)"
    text = spaced_percent(form.format(spread.median))
    low, high = (spaced_percent(form.format(bound)) for bound in spread.quartiles)
    tip = f"median of {len(spread.values)}, quartiles {low} to {high}"
    mark = " best" if spread.median == best else ""
    shown = f"<b>{text}</b>" if mark else text
    return f'<td class="number{mark}" style="{style}" title="{attribute(tip)}">{shown}</td>'


def cells_table(cells: Sequence[CellResult]) -> str:
    """A row a cell: medians, and the quartiles where there are several runs."""
    names = ("temperature", "speedup", "tokens/s", "acceptance", "block efficiency", "c", "runs", "errors")
    rows = [
        (
            cell.cell.title,
            (
                f"{cell.cell.temperature:g}",
                _spread(cell.speedup, "{:.2f}×"),
                _spread(cell.tokens_per_second, "{:,.1f}"),
                _spread(cell.draft_acceptance_rate, "{:.0%}"),
                _spread(cell.block_efficiency, "{:.2f}"),
                _spread(cell.cost_coefficient, "{:.3f}"),
                f"{cell.num_measured}\u00a0of\u00a0{cell.num_planned}",
                " ".join(cell.errors),
            ),
        )
        for cell in cells
    ]
    note = '<p class="note">Medians; in brackets the first and third quartiles.</p>'
    return note + figures_table(names, rows, "Every cell of the sweep")


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return UNKNOWN
    text = spaced_percent(form.format(spread.median))
    low, high = (spaced_percent(form.format(bound)) for bound in spread.quartiles)
    return text if len(spread.values) == 1 else f"{text} ({low}\u00a0to\u00a0{high})"


DASHES = ("", "7 4", "2 4", "10 3 2 3", "4 2", "1 3")
COLOURS = ("run_1", "run_2", "run_3", "run_4", "run_5", "run_6")
IN_A_TABLE_OF_THEIR_OWN = frozenset({"prompts", "drafters"})


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a cell that a heat map shows.

    Attributes:
        title, meaning: in words.
        pick: what it is of a cell.
        form: how it is written.
        middle: the value that is neither good nor bad; None where only more or less counts.
    """

    title: str
    meaning: str
    pick: Callable[[CellResult], Spread | None]
    form: str
    middle: float | None = None


MOST_NAMED = 24
MEASURES = (
    Measure(
        "Speedup",
        "Median of tokens per second / those of the baseline run of the same prompt and temperature that is nearest "
        "in time. Below 1 drafting doesn’t pay.",
        lambda cell: cell.speedup,
        "{:.2f}×",
        1.0,
    ),
    Measure(
        "Acceptance",
        "Median of accepted / drafted tokens.",
        lambda cell: cell.draft_acceptance_rate,
        "{:.0%}",
    ),
    Measure("Tokens per second", "Median over prompts and repeats.", lambda cell: cell.tokens_per_second, "{:,.1f}"),
    Measure("Block efficiency", "Median of tokens per target forward.", lambda cell: cell.block_efficiency, "{:.2f}"),
)


def sweep_page(log: SweepLog) -> str:
    """A sweep as a whole HTML file, as far as it has come."""
    plan, results = log.plan, SweepResults(log.plan, log.measurements)
    cells = results.all()
    started = moment_of(log.head.get("started_at"))
    facts = [f"Sweep {shown(log.head.get('id'))}", f"started {started}" if started else ""]
    facts.append(f"{results.num_measured:,} of {plan.num_runs:,} runs measured")
    environment = log.head.get("environment")
    problems = [*log.problems, *_missing(results)]
    drafters = ", ".join(drafter.title for drafter in plan.drafters)
    return page(
        f"Sweep of {plan.target}",
        (
            f"<header>\n<h1><bdi>{attribute(plan.target)}</bdi></h1>\n"
            f'<p class="muted">Drafted by <bdi>{escaped(drafters)}</bdi></p>\n'
            f'<p class="muted">{escaped(" · ".join(fact for fact in facts if fact))}</p>\n</header>',
            warnings(problems),
            section("What to do", _verdicts(results) if results.num_measured else ""),
            section("Plots", _over_k(plan, cells)),
            *(section(measure.title, _heat_maps(plan, cells, measure)) for measure in MEASURES),
            section("By suite", _by_suite(results) if len(results.suites) > 1 else ""),
            section("Every cell", cells_table(cells)),
            section("Settings", settings_table(_settings(plan), "Settings of the sweep"), _prompts(plan)),
            section("Environment", settings_table(_shown(environment), "Where the sweep took place")),
        ),
        version=text_of(log.head.get("outrider_version")),
    )


def _missing(results: SweepResults) -> Iterator[str]:
    measured, planned = results.num_measured, results.plan.num_runs
    if not measured:
        yield "The file holds no run that came to an end, so that there is nothing to compare."
    elif measured < planned:
        yield f"The sweep is not complete: {planned - measured:,} of its {planned:,} runs are missing."


def _verdicts(results: SweepResults) -> str:
    return "\n".join(f'<p class="verdict">{escaped(verdict.sentence)}</p>' for verdict in verdicts(results))


def _heat_maps(plan: SweepPlan, cells: tuple[CellResult, ...], measure: Measure) -> str:
    grids = [(drafter.title, _rows(plan, cells, drafter, measure)) for drafter in plan.drafters]
    columns = [str(k) for k in plan.num_draft_tokens]
    # One scale for all: a colour means the same whoever drafts.
    medians = [spread.median for _, rows in grids for _, row in rows for spread in row if spread is not None]
    if not medians:
        return ""
    scale = scale_of(medians, measure.middle)
    found = [
        heat_map(title, columns, rows, measure.form, scale)
        for title, rows in grids
        if any(spread is not None for _, row in rows for spread in row)
    ]
    return "\n".join([f'<p class="note">{escaped(measure.meaning)}</p>', *found])


def _rows(
    plan: SweepPlan, cells: tuple[CellResult, ...], drafter: DrafterChoice, measure: Measure
) -> list[tuple[str, list[Spread | None]]]:
    by_place = {(cell.cell.drafter, cell.cell.temperature, cell.cell.num_draft_tokens): cell for cell in cells}
    return [
        (
            f"temperature {temperature:g}",
            [measure.pick(by_place[drafter, temperature, k]) for k in plan.num_draft_tokens],
        )
        for temperature in plan.temperatures
    ]


def _over_k(plan: SweepPlan, cells: tuple[CellResult, ...]) -> str:
    names = [str(k) for k in plan.num_draft_tokens]
    several = len(plan.drafters) > 1
    lines = [
        (f"{drafter.title}, {name}" if several else name, row)
        for drafter in plan.drafters
        for name, row in _rows(plan, cells, drafter, MEASURES[0])
    ]
    tops = [spread.quartiles[1] for _, row in lines for spread in row if spread is not None]
    if not tops:
        return ""
    words = Words(
        "speedup",
        "Speedup over K",
        "Medians over prompts and repeats; the whiskers reach from the first to the third quartile. The dotted line is "
        "the target alone.",
    )
    x = Axis(
        "K, tokens drafted a step",
        0.5,
        len(names) + 0.5,
        lambda place: names[int(place) - 1],
        is_whole=True,
        # The places are not evenly spaced in K: each needs its name.
        num_ticks=min(len(names), MOST_NAMED),
    )
    plot = Plot(words, x, Axis("speedup, ×", 0, headroom(tops, 1.1)))
    alone = Mark("target alone", "muted", dash="2 3")
    plot.level(1.0, alone)
    marks = []
    for index, (name, row) in enumerate(lines):
        mark = Mark(name, COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)])
        marks.append(mark)
        known = [(place, spread) for place, spread in enumerate(row, start=1) if spread is not None]
        # Lines of many temperatures would hide each other's whiskers.
        aside = (index - (len(lines) - 1) / 2) * min(0.12, 0.5 / len(lines))
        for place, spread in known:
            plot.whisker(place + aside, *spread.quartiles)
        plot.line([(place + aside, spread.median) for place, spread in known], mark)
        tips = [f"{name}, K = {names[place - 1]}: {spread.median:.2f}×" for place, spread in known]
        plot.dots([(place + aside, spread.median) for place, spread in known], mark, tips)
    return figure(plot, words, (*marks, alone))


def _by_suite(results: SweepResults) -> str:
    """The fastest cell of each suite at each temperature."""
    plan = results.plan
    rows = []
    for suite in results.suites:
        row = []
        for temperature in plan.temperatures:
            cells = [results.result(cell, suite) for cell in plan.cells() if cell.temperature == temperature]
            known = [(cell.speedup.median, cell.cell.title) for cell in cells if cell.speedup is not None]
            row.append("{1}: {0:.2f}×".format(*max(known)) if known else "–")
        rows.append((suite or "(none)", row))
    names = [f"temperature {temperature:g}" for temperature in plan.temperatures]
    note = '<p class="note">The cell with the highest median speedup on the prompts of each suite.</p>'
    return note + figures_table(names, rows, "Fastest cell by suite", of_words=True)


def _settings(plan: SweepPlan) -> dict[str, str]:
    config = {name: value for name, value in plan_to_config(plan).items() if name not in IN_A_TABLE_OF_THEIR_OWN}
    config["drafters"] = [drafter.title for drafter in plan.drafters]
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else shown(value)
        for name, value in config.items()
    }


def _shown(values: object) -> dict[str, str]:
    return {name: shown(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _prompts(plan: SweepPlan) -> str:
    listed = "\n".join(
        f"<details>\n<summary><bdi>{escaped(prompt.name)}</bdi> "
        f'<span class="note">{escaped(prompt.suite)}</span></summary>\n'
        f'<div class="text" dir="auto" lang="">{escaped(prompt.text)}</div>\n</details>'
        for prompt in plan.prompts
    )
    return f"<details>\n<summary>{len(plan.prompts):,} prompts</summary>\n{listed}\n</details>"
