"""The records of a run log: which fields each line has, in which order, and how an event becomes one.

The fields and their order are a contract with programs outside this repository: extend them, don't rename or remove.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from core import evidence
from core.types import BaselineStep, Event, Finished, Inspected, RunStarted, Step, Summary

SCHEMA = "outrider.run/1"
"""Schema of a log's first line. The number rises only when a reader of the old one would misread the new one."""

Record = dict[str, Any]

CONFIG_FIELDS = (
    "target", "draft", "method", "revision", "device", "dtype", "num_draft_tokens", "temperature", "top_k", "top_p",
    "min_p", "seed", "coupling", "max_new_tokens", "prompt", "prompt_token_ids", "chat",
)  # fmt: skip
ENVIRONMENT_FIELDS = ("python", "torch", "transformers", "platform", "device_name", "threads")
STEP_FIELDS = (
    "index", "position", "num_draft_tokens", "temperature", "drafted", "draft_probs", "target_probs",
    "acceptance_probs", "expected_acceptance", "num_accepted", "emitted", "emitted_kinds", "emitted_text", "draft_ms",
    "verify_ms", "sample_ms", "total_ms",
)  # fmt: skip
BASELINE_STEP_FIELDS = ("index", "position", "emitted", "emitted_text", "total_ms")
"""A plain step drafts nothing, so that this is all there is to it, but for `BASELINE_TIMES`, which older logs lack."""
BASELINE_TIMES = ("verify_ms",)
SUMMARY_FIELDS = (
    "finish_reason", "text", "num_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens",
    "num_accepted_tokens_per_pos", "draft_acceptance_rate", "block_efficiency", "cost_coefficient",
    "tokens_per_second", "prefill_ms", "peak_memory_mb", "predicted_speedup",
)  # fmt: skip
BASELINE_FIELDS = ("baseline_tokens_per_second", "measured_speedup")


def to_record(event: Event) -> Record | None:
    """The log's line for an event, ready for JSON; None for the events that are not logged.

    NaN and infinity, which JSON has no word for, become None.
    """
    if isinstance(event, RunStarted):
        return {
            "schema": SCHEMA,
            "type": "run",
            "id": event.run_id,
            "started_at": event.started_at,
            "outrider_version": event.version,
            "config": _in_order(event.config, CONFIG_FIELDS),
            "environment": _in_order(event.environment, ENVIRONMENT_FIELDS),
        }
    if isinstance(event, Step):
        return {name: _plain(value) for name, value in _step_record(event).items()}
    if isinstance(event, Inspected):
        return {"type": "evidence", "index": event.index, "evidence": list(map(evidence.to_record, event.evidence))}
    if isinstance(event, BaselineStep):
        # By name, not all there is: the baseline has a line a token, and a log should stay small.
        step, names = event.step, (*BASELINE_STEP_FIELDS, *BASELINE_TIMES)
        return {"type": "baseline_step", **{name: _plain(getattr(step, name)) for name in names}}
    if isinstance(event, Finished):
        return {"type": "summary", **_summary_fields(event.summary)}
    return None


def event_line(event: Event) -> bytes | None:
    """The log's line for an event, as `to_line` writes it; None for the events that are not logged.

    Takes half of the time for a step, of which there is one every few milliseconds: JSON writes its values as they are.
    """
    record = _step_record(event) if isinstance(event, Step) else to_record(event)
    return None if record is None else to_line(record)


def _step_record(step: Step) -> Record:
    """Its fields in order, with values as the step has them."""
    values = {**_values(step), "emitted_text": step.emitted_text}
    del values["evidence"]
    record = {"type": "step", **{name: values.pop(name) for name in STEP_FIELDS}, **values}
    if step.evidence:
        record["evidence"] = [evidence.to_record(place) for place in step.evidence]
    return record


def _summary_fields(summary: Summary) -> Record:
    values = _values(summary)
    names: tuple[str, ...] = SUMMARY_FIELDS
    if summary.baseline_tokens_per_second is None:
        for name in (*BASELINE_FIELDS, "baseline_text", "baseline_num_threads"):
            del values[name]
    else:
        names += BASELINE_FIELDS
    if summary.error is None:
        del values["error"]
    return _in_order(values, names)


def _values(event: Step | Summary) -> Record:
    # Not asdict, which copies every number of every list.
    return {item.name: getattr(event, item.name) for item in fields(event)}


def _in_order(values: Mapping[str, Any], names: Iterable[str]) -> Record:
    """The named fields first, null where there is no value; then whatever else there is."""
    ordered = {name: _plain(values.get(name)) for name in names}
    ordered.update({name: _plain(value) for name, value in values.items() if name not in ordered})
    return ordered


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)  # An enum's member becomes its value.
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)


def to_line(record: Mapping[str, Any]) -> bytes:
    """The record as one line of UTF-8 JSON, its end included."""
    try:
        text = _dump(record)
    except (TypeError, ValueError):
        # Most records are plain already; making one plain takes as long as writing it.
        text = _dump(_plain(record))
    # A lone surrogate has no UTF-8; \udxxx, which backslashreplace writes, is how JSON itself spells it.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _dump(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))
