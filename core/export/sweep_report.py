"""Writes the HTML report of a sweep: what to do at each temperature, heat maps, and every cell's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from core.experiments.sweep_file import SweepLog, plan_to_config
from core.experiments.sweep_plan import Cell, CellResult, DrafterChoice, SweepPlan
from core.experiments.sweep_results import COLUMNS, FIGURES, SPEEDUP, SweepFigure, SweepResults, ranked_cells, verdicts
from core.export.charts import Axis, Mark, Plot, headroom, series_mark
from core.export.run_data import minute_text, named, numbered, shown, without_folders
from core.export.templates import UNKNOWN, render
from core.runlog.reading import mapping_of, text_of

STRONGEST = 55
"""Per cent of the colour in the strongest cell, which keeps its text readable."""
MOST_NAMED = 24
OWN_PLACES = frozenset({"prompts", "drafters"})
"""Settings that the report shows elsewhere."""


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A cell of a heat map: its text, tooltip and background colour; `style` is empty if nothing counts."""

    text: str
    tip: str = ""
    style: str = ""
    is_best: bool = False


def sweep_page(log: SweepLog) -> str:
    """A sweep so far, as a complete HTML file."""
    log = sweep_without_paths(log)
    plan, results = log.plan, SweepResults(log.plan, log.measurements)
    cells, ranked = results.all(), ranked_cells(results)
    started = minute_text(log.head.get("started_at"))
    measured = f"{results.num_measured:,} of {plan.num_runs:,} runs measured"
    facts = (f"Sweep {shown(log.head.get('id'))}", f"started {started}" if started else "", measured)
    maps = [(figure.title, figure.meaning, _heat_maps(plan, cells, figure, ranked)) for figure in FIGURES]
    return render(
        "sweep.html",
        title=f"Sweep of {plan.target}",
        version=text_of(log.head.get("outrider_version")),
        plan=plan,
        drafters=", ".join(drafter.title for drafter in plan.drafters),
        facts=" · ".join(filter(None, facts)),
        problems=[*log.problems, *_problems(results)],
        verdicts=[verdict.sentence for verdict in verdicts(results)] if results.num_measured else [],
        plot=_over_k(plan, cells),
        measures=[item for item in maps if item[2]],
        suites=_by_suite(results, ranked) if len(results.suites) > 1 else [],
        cells=[_cell_row(cell) for cell in cells],
        settings=_settings(plan),
        environment={name: shown(value) for name, value in mapping_of(log.head.get("environment")).items()},
    )


def drafters_without_paths(plan: SweepPlan) -> dict[DrafterChoice, DrafterChoice]:
    """A plan's drafters, each with its models and files named as in `named`; those that would share a name are
    numbered."""
    names = numbered(value for drafter in plan.drafters for value in (drafter.draft, *drafter.options.values()))

    def without_path(value: Any) -> Any:
        return names[value] if isinstance(value, str) else value

    return {
        drafter: replace(
            drafter,
            draft=without_path(drafter.draft),
            options={name: without_path(value) for name, value in drafter.options.items()},
        )
        for drafter in plan.drafters
    }


def sweep_without_paths(log: SweepLog) -> SweepLog:
    """The sweep with its target as in `named`, and its drafters as in `drafters_without_paths`. It has no lines that
    only newer versions know: what they hold is unknown."""
    drafters = drafters_without_paths(log.plan)
    plan = replace(log.plan, target=named(log.plan.target), drafters=tuple(drafters.values()))
    measurements = []
    for item in log.measurements:
        cell = item.run.cell
        if cell.drafter is not None:
            cell = replace(cell, drafter=drafters[cell.drafter])
        error = item.error and without_folders(item.error)
        measurements.append(replace(item, run=item.run._replace(cell=cell), error=error))
    config = plan_to_config(plan)
    named_config = mapping_of(log.head.get("config")) | {name: config[name] for name in ("target", "drafters")}
    head = log.head | {"config": named_config}
    problems = list(map(without_folders, log.problems))
    return replace(log, plan=plan, measurements=measurements, head=head, problems=problems, others=[])


def _problems(results: SweepResults) -> Iterator[str]:
    measured, tried, planned = results.num_measured, len(results.measurements), results.plan.num_runs
    if not measured:
        yield "The file holds no completed run, so there is nothing to compare."
    elif tried < planned:
        yield f"The sweep is not complete: {planned - tried:,} of its {planned:,} runs are missing."
    if failed := tried - measured:
        yield f"{failed:,} of the sweep's {planned:,} runs failed."
    yield from (
        f"{cell.cell.title}, temperature {cell.cell.temperature:g}: {cell.problem}"
        for cell in results.all()
        if cell.problem
    )
    if results.busy_note:
        yield results.busy_note


def _heat_maps(
    plan: SweepPlan, cells: Sequence[CellResult], figure: SweepFigure, ranked: frozenset[Cell]
) -> list[tuple[str, list[tuple[str, list[HeatCell]]]]]:
    """One table per drafter: its title, and a row per temperature. All share one colour scale, which leaves out
    impossible speedups; the cell with the highest median, of those that the verdicts rank, stands out."""
    grids = [(drafter.title, _rows(plan, cells, drafter)) for drafter in plan.drafters]
    medians = _medians((cell for _, rows in grids for _, row in rows for cell in row), figure)
    origin = min(medians, default=0.0) if figure.middle is None else figure.middle
    reach = max((abs(value - origin) for value in medians), default=0.0) or 1.0
    maps = []
    for title, rows in grids:
        row_cells = [cell for _, row in rows for cell in row]
        if every := {spread.median for cell in row_cells if (spread := figure.spread(cell)) is not None}:
            # If all are equal, none stands out.
            found = _medians((cell for cell in row_cells if cell.cell in ranked), figure)
            best = max(found) if len(set(found)) > 1 or len(found) == 1 < len(every) else None
            shown = [
                (name, [_heat(cell, figure, origin, reach, best if cell.cell in ranked else None) for cell in row])
                for name, row in rows
            ]
            maps.append((title, shown))
    return maps


def _medians(cells: Iterable[CellResult], figure: SweepFigure) -> list[float]:
    """The medians of a figure, without impossible speedups."""
    counted = (cell for cell in cells if not (figure is SPEEDUP and cell.problem))
    return [spread.median for cell in counted if (spread := figure.spread(cell)) is not None]


def _rows(plan: SweepPlan, cells: Sequence[CellResult], drafter: DrafterChoice) -> list[tuple[str, list[CellResult]]]:
    found = {(cell.cell.drafter, cell.cell.temperature, cell.cell.num_draft_tokens): cell for cell in cells}
    return [
        (f"temperature {temperature:g}", [found[drafter, temperature, k] for k in plan.num_draft_tokens])
        for temperature in plan.temperatures
    ]


def _heat(cell: CellResult, figure: SweepFigure, origin: float, reach: float, best: float | None) -> HeatCell:
    """Blue above the middle, orange below."""
    spread = figure.spread(cell)
    if spread is None:
        return HeatCell(UNKNOWN)
    if not _medians([cell], figure):
        return HeatCell(f"{figure.text(spread.median)} (left out)")
    share = (spread.median - origin) / reach
    color = "correction" if share < 0 else "accepted"
    low, high = map(figure.text, spread.quartiles)
    return HeatCell(
        figure.text(spread.median),
        f"median of {len(spread.values)}, quartiles {low} to {high}",
        f"background: color-mix(in srgb, var(--{color}) {abs(share) * STRONGEST:.0f}%, transparent)",
        spread.median == best,
    )


def _cell_row(cell: CellResult) -> tuple[str, list[str]]:
    counts = f"{cell.num_measured}\u00a0of\u00a0{cell.num_planned}"
    texts = []
    for figure in COLUMNS:
        if (spread := figure.spread(cell)) is None:
            texts.append(UNKNOWN)
            continue
        low, high = map(figure.text, spread.quartiles)
        around = "" if len(spread.values) == 1 else f" ({low}\u00a0to\u00a0{high})"
        texts.append(f"{figure.text(spread.median)}{around}")
    return cell.cell.title, [f"{cell.cell.temperature:g}", *texts, counts, " ".join(cell.errors)]


def _over_k(plan: SweepPlan, cells: Sequence[CellResult]) -> Markup | None:
    names = [str(k) for k in plan.num_draft_tokens]
    several = len(plan.drafters) > 1
    lines = [
        (f"{drafter.title}, {name}" if several else name, [None if cell.problem else cell.speedup for cell in row])
        for drafter in plan.drafters
        for name, row in _rows(plan, cells, drafter)
    ]
    tops = [spread.quartiles[1] for _, row in lines for spread in row if spread is not None]
    if not tops:
        return None
    plot = Plot(
        "speedup",
        "Speedup over K",
        "Medians over prompts and repeats; the whiskers reach from the first to the third quartile. The dotted line is "
        "the target alone.",
        # The values of K are not evenly spaced: each needs its own tick.
        Axis(
            "K, tokens drafted per step",
            0.5,
            len(names) + 0.5,
            lambda place: names[int(place) - 1],
            is_whole=True,
            num_ticks=min(len(names), MOST_NAMED),
        ),
        Axis("speedup, ×", 0, headroom(tops, 1.1)),
    )
    alone = Mark("target alone", "muted", dash="2 3")
    plot.level(1.0, alone)
    marks = [series_mark(name, index) for index, (name, _) in enumerate(lines)]
    for index, (name, row) in enumerate(lines):
        known = [(place, spread) for place, spread in enumerate(row, start=1) if spread is not None]
        # Offset a little, so that the whiskers of several lines don't overlap.
        aside = (index - (len(lines) - 1) / 2) * min(0.12, 0.5 / len(lines))
        points = [(place + aside, spread.median) for place, spread in known]
        for place, spread in known:
            plot.whisker(place + aside, *spread.quartiles)
        plot.line(points, marks[index])
        tips = [f"{name}, K = {names[place - 1]}: {spread.median:.2f}×" for place, spread in known]
        plot.dots(points, marks[index], tips)
    return plot.figure((*marks, alone))


def _by_suite(results: SweepResults, ranked: frozenset[Cell]) -> list[tuple[str, list[str]]]:
    """The fastest cell of each suite at each temperature, of those that the verdicts rank."""
    plan = results.plan
    rows = []
    for suite in results.suites:
        row = []
        for temperature in plan.temperatures:
            shown = [cell for cell in plan.cells() if cell in ranked and cell.temperature == temperature]
            known = [
                (cell.speedup.median, cell.cell.title)
                for cell in (results.result(cell, suite) for cell in shown)
                if cell.speedup is not None and not cell.problem
            ]
            row.append("{1}: {0:.2f}×".format(*max(known)) if known else UNKNOWN)
        rows.append((suite or "(none)", row))
    return rows


def _settings(plan: SweepPlan) -> dict[str, str]:
    config: dict[str, Any] = {n: value for n, value in plan_to_config(plan).items() if n not in OWN_PLACES}
    config["drafters"] = [drafter.title for drafter in plan.drafters]
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else shown(value)
        for name, value in config.items()
    }
