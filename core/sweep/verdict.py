"""Which cell to take at each temperature, and how sure that is: a bootstrap over prompts and repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from core.figures import percent_text
from core.sweep.results import Key, SweepResults
from core.sweep.types import CellResult, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FEWEST_RUNS = 6
"""Runs of a cell below which nothing is said of chance: six that all lean one way have a chance of 3 % to do so."""

FEWEST_PROMPTS = 6
"""Prompts below which the interval speaks of these prompts alone: of three, all lie on one side of the usual prompt one
time in four, and an interval over them misses it as often."""

_SURE = 0.975
_SAMPLES, _MOST_DRAWS = 2_000, 5_000_000


def verdicts(results: SweepResults) -> tuple[Verdict, ...]:
    """One for each temperature of the plan: it is part of what is sampled, and thus no matter of speed."""
    return tuple(_verdict(results, temperature) for temperature in results.plan.temperatures)


def _verdict(results: SweepResults, temperature: float) -> Verdict:
    import numpy as np  # Late, so that the command line is parsed without it.

    cells = [results.result(cell) for cell in results.plan.cells() if cell.temperature == temperature]
    ranked = _ranked(cells)
    at = f"At temperature {temperature:g}"
    if not ranked:
        return Verdict(temperature, f"{at}: no cell has both a run and a baseline to hold it against.")
    best, runner_up = ranked[0], ranked[1] if len(ranked) > 1 else None
    ours = results.speedups(best.cell)
    theirs = results.speedups(runner_up.cell) if runner_up is not None else {}
    # Only runs that both have are compared; where there is no runner-up, all of the best one's count.
    shared = ours.keys() & theirs.keys() or ours.keys()
    interval, ahead, is_sure, is_distinguishable = None, None, None, None
    if len(ours) >= FEWEST_RUNS:
        medians = bootstrap_medians(ours)
        low, high = (float(value) for value in np.quantile(medians, (1 - _SURE, _SURE)))
        interval, is_sure = (low, high), not low <= 1.0 <= high
    if runner_up is not None and len(shared) >= FEWEST_RUNS and shared <= theirs.keys():
        mine = bootstrap_medians({key: ours[key] for key in shared})
        other = bootstrap_medians({key: theirs[key] for key in shared})
        ahead = float(np.mean(mine > other) + np.mean(mine == other) / 2)
        is_distinguishable = ahead >= _SURE
    verdict = Verdict(
        temperature,
        "",
        best,
        runner_up,
        interval,
        speculates=_median(best) > 1.0,
        is_sure=is_sure,
        beats_runner_up=ahead,
        is_distinguishable=is_distinguishable,
    )
    return replace(verdict, sentence=f"{at}: {_sentence(verdict)}")


def bootstrap_medians(values: Mapping[Key, float]) -> NDArray[np.float64]:
    """Medians of resamples: prompts are drawn anew, and within each its repeats, since those are alike.

    The draws depend on the keys alone, so that two cells with the same runs are resampled in step.
    """
    import numpy as np

    prompts = sorted({prompt for prompt, _ in values})
    repeats = sorted({repeat for _, repeat in values})
    table = np.full((len(prompts), len(repeats)), np.nan)
    for (prompt, repeat), value in values.items():
        table[prompts.index(prompt), repeats.index(repeat)] = value
    count = max(200, min(_SAMPLES, _MOST_DRAWS // table.size))
    generator = np.random.default_rng(0)
    rows = generator.integers(len(prompts), size=(count, len(prompts), 1))
    columns = generator.integers(len(repeats), size=(count, len(prompts), len(repeats)))
    drawn = table[rows, columns].reshape(count, -1)
    drawn = drawn[~np.isnan(drawn).all(axis=1)]
    return np.asarray(np.nanmedian(drawn, axis=1), dtype=np.float64)


def _ranked(cells: list[CellResult]) -> list[CellResult]:
    """Those that have a speedup, best first. One with less than half the runs of the fullest is no match for it."""
    fullest = max((cell.num_measured for cell in cells), default=0)
    known = [cell for cell in cells if cell.speedup is not None and 2 * cell.num_measured >= fullest]
    return sorted(known, key=_median, reverse=True)


def _median(result: CellResult) -> float:
    assert result.speedup is not None, "only cells with a speedup are ranked"
    return result.speedup.median


def _sentence(verdict: Verdict) -> str:
    best = verdict.best
    assert best is not None
    speed, name = _median(best), best.cell.title
    if not verdict.speculates:
        said = f"don't speculate; the best cell, {name}, reaches {speed:.2f}× the speed of plain decoding"
        return f"{said}{_interval(verdict)}."
    if verdict.is_sure is False:
        said = f"{name} is fastest by its median, {speed:.2f}× plain decoding{_interval(verdict)}"
        return f"{said}, but these runs can't tell it from plain decoding; repeat them more often."
    return f"{name} is fastest, {speed:.2f}× plain decoding{_interval(verdict)}; {_comparison(verdict)}."


def _interval(verdict: Verdict) -> str:
    if verdict.interval is None or verdict.best is None:
        return ""
    low, high = verdict.interval
    prompts = len({item.run.prompt for item in verdict.best.measurements if item.figures is not None})
    # Two or three prompts can't say how others differ, however often each is repeated.
    here = "" if prompts >= FEWEST_PROMPTS else f" on {'this prompt' if prompts == 1 else f'these {prompts} prompts'}"
    return f" (95 % interval {low:.2f} to {high:.2f}{here})"


def _comparison(verdict: Verdict) -> str:
    other = verdict.runner_up
    if other is None:
        return "there is no other cell to hold it against"
    name = f"{_short(verdict, other)} at {_median(other):.2f}×"
    if verdict.is_distinguishable is None:
        return f"{name} comes next, and these runs are too few to tell the two apart"
    assert verdict.beats_runner_up is not None, "it is told apart by that share"
    share = percent_text(verdict.beats_runner_up)
    if verdict.is_distinguishable:
        return f"it is ahead of {name} in {share} of the bootstrap samples"
    return f"{name} can't be told from it, being behind in {share} of the bootstrap samples"


def _short(verdict: Verdict, other: CellResult) -> str:
    """The runner-up without the drafter's name, where that is the winner's."""
    assert verdict.best is not None
    same = other.cell.drafter == verdict.best.cell.drafter
    return f"K = {other.cell.num_draft_tokens}" if same else other.cell.title
