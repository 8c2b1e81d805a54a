"""A sweep's plan and runs as JSON, and back. The names are a contract with programs outside: extend, don't rename."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from core.errors import RunLogError, SettingsError
from core.prompt_suites import Prompt
from core.sweep.plan import Cell, DrafterChoice, PlannedRun, SweepPlan
from core.sweep.types import Figures, Measurement
from core.types import Coupling, Device, DType, Summary

SCHEMA = "outrider.sweep/1"

Record = dict[str, Any]

_PLAIN = "plain"
_SAID = {
    "target": "the target", "drafters": "the drafters", "num_draft_tokens": "K", "temperatures": "the temperatures",
    "prompts": "the prompts", "repeats": "the number of repeats", "max_new_tokens": "the number of new tokens",
    "seed": "the seed", "coupling": "the coupling", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p",
    "chat": "the chat template", "device": "the device", "dtype": "the precision",
}  # fmt: skip


# --- The plan ---------------------------------------------------------------------------------------------------


def plan_to_config(plan: SweepPlan) -> Record:
    """The plan as the file's first line holds it."""
    config = {item.name: getattr(plan, item.name) for item in fields(plan)}
    config["drafters"] = [_drafter(drafter) for drafter in plan.drafters]
    config["num_draft_tokens"] = [_k(k) for k in plan.num_draft_tokens]
    config["prompts"] = [{"name": item.name, "suite": item.suite, "text": item.text} for item in plan.prompts]
    return config


def _k(num_draft_tokens: int | str) -> int | str:
    return str(num_draft_tokens) if isinstance(num_draft_tokens, str) else num_draft_tokens


def _drafter(drafter: DrafterChoice) -> Record:
    return {"method": drafter.method, "draft": drafter.draft, "method_options": dict(drafter.options)}


def plan_from_config(config: Mapping[str, Any]) -> SweepPlan:
    """The plan of which `config` was made.

    Raises:
        RunLogError: it holds a setting that no sweep can have.
    """
    try:
        known = {item.name for item in fields(SweepPlan)}
        values = {name: value for name, value in config.items() if name in known}
        drafters = [DrafterChoice(item["method"], item["draft"], item["method_options"]) for item in values["drafters"]]
        prompts = [Prompt(item["name"], item["text"], suite=item.get("suite", "")) for item in values["prompts"]]
        values |= {
            "drafters": tuple(drafters),
            "prompts": tuple(prompts),
            "num_draft_tokens": tuple(values["num_draft_tokens"]),
            "temperatures": tuple(values["temperatures"]),
            "coupling": Coupling(values["coupling"]),
            "device": Device(values["device"]),
            "dtype": DType(values["dtype"]),
        }
        return SweepPlan(**values)
    except SettingsError as error:
        raise RunLogError(f"The sweep's plan can't be read: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunLogError("The sweep's plan is damaged; it can't be gone on with.") from error


def difference(theirs: SweepPlan, ours: SweepPlan) -> str:
    """What differs between two plans, in words; empty if nothing does."""
    found = []
    for item in fields(SweepPlan):
        left, right = _comparable(theirs, item.name), _comparable(ours, item.name)
        if left == right:
            continue
        shown = _shown(left), _shown(right)
        says_values = item.name not in {"drafters", "prompts"} and max(map(len, shown)) <= 40
        found.append(_SAID[item.name] + (f" ({shown[0]} there, {shown[1]} here)" if says_values else ""))
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _comparable(plan: SweepPlan, name: str) -> Any:
    value = getattr(plan, name)
    return [(item.name, item.text, item.suite) for item in value] if name == "prompts" else value


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
    return str(value)


# --- Runs -------------------------------------------------------------------------------------------------------


def figures_of(summary: Summary) -> Figures:
    """What a sweep keeps of a run's summary."""
    values = {item.name: getattr(summary, item.name) for item in fields(Figures)}
    return Figures(**values | {"finish_reason": str(summary.finish_reason)})


def run_to_record(measurement: Measurement, plan: SweepPlan, folder: Path | None = None) -> Record:
    """A run's line. A log within `folder`, where the sweep's file is, is named from there, so that both may move."""
    run = measurement.run
    prompt = plan.prompts[run.prompt]
    log = measurement.log
    if log is not None and folder is not None and log.is_relative_to(folder):
        log = log.relative_to(folder)
    return {
        "type": "run",
        "index": measurement.index,
        "cell": cell_to_record(run.cell),
        "prompt_index": run.prompt,
        "prompt": prompt.name,
        "suite": prompt.suite,
        "repeat": run.repeat,
        "seed": measurement.seed,
        "started_at": measurement.started_at,
        "seconds": measurement.seconds,
        "id": measurement.run_id,
        "log": None if log is None else log.as_posix(),
        "summary": None if measurement.figures is None else asdict(measurement.figures),
        "error": measurement.error,
    }


def cell_to_record(cell: Cell) -> Record:
    """A cell as lines and tables name it; the baseline's method is "plain"."""
    drafter = (
        {"method": _PLAIN, "draft": None, "method_options": {}} if cell.drafter is None else _drafter(cell.drafter)
    )
    return {**drafter, "num_draft_tokens": _k(cell.num_draft_tokens), "temperature": cell.temperature}


def run_from_record(record: Mapping[str, Any], plan: SweepPlan, folder: Path | None = None) -> Measurement | None:
    """A run from its line; None where the line is not one that a sweep of this plan could have written."""
    try:
        cell = _cell(record["cell"], plan)
        prompt, repeat = int(record["prompt_index"]), int(record["repeat"])
        datetime.fromisoformat(record["started_at"])
        if not (0 <= prompt < len(plan.prompts) and 0 <= repeat < plan.repeats):
            return None
        summary, error, log = record.get("summary"), record.get("error"), record.get("log")
        if (summary is None) == (not isinstance(error, str)):
            return None
        return Measurement(
            run=PlannedRun(cell, prompt, repeat),
            index=int(record["index"]),
            seed=int(record["seed"]),
            started_at=record["started_at"],
            seconds=float(record["seconds"]),
            figures=None if summary is None else _figures(summary),
            error=error,
            run_id=record.get("id"),
            log=None if log is None else (folder or Path()) / log,
        )
    except (KeyError, TypeError, ValueError, StopIteration, AttributeError):
        return None


def _cell(record: Mapping[str, Any], plan: SweepPlan) -> Cell:
    k, temperature = record["num_draft_tokens"], float(record["temperature"])
    if temperature not in plan.temperatures:
        raise ValueError("not a temperature of the plan")
    if record["method"] == _PLAIN:
        return Cell(None, 0, temperature)
    named = {name: record[name] for name in ("method", "draft", "method_options")}
    drafter = next(item for item in plan.drafters if _drafter(item) == named)
    return Cell(drafter, plan.num_draft_tokens[plan.num_draft_tokens.index(k)], temperature)


_WHOLE = {"num_tokens", "num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens"}


def _figures(summary: Mapping[str, Any]) -> Figures:
    values: Record = {}
    for item in fields(Figures):
        value = summary.get(item.name)
        if item.name == "finish_reason":
            values[item.name] = str(value)
        elif item.name == "num_accepted_tokens_per_pos":
            values[item.name] = tuple(int(count) for count in value or ())
        elif item.name in _WHOLE:
            values[item.name] = int(summary[item.name])
        else:
            values[item.name] = value if _is_number(value) else None
    return Figures(**values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
