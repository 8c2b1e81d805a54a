"""Kept runs for tests of the window: logs of the scripted session, written into a folder as a worker writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path

from core.controls import RunControls
from core.runlog.log import to_line, to_record
from core.settings import RunRequest, SamplingParams
from tests.fakes_app import FakeSession, texts
from tests.fakes_models import until  # noqa: F401 - for the tests of the window


class RunColumn(IntEnum):
    """The columns of the list, from left to right."""

    NAME, WHEN, TARGET, DRAFT, K, TEMPERATURE, ACCEPTANCE, SPEED, SPEEDUP, STATE = range(10)


START = datetime(2026, 1, 1, tzinfo=UTC)


def keep_run(
    folder: Path,
    index: int = 0,
    *,
    step_ms: float = 10.0,
    temperature: float = 0.8,
    lines: int | None = None,
    **changes: object,
) -> str:
    """Write a run's log, or only its first lines; the id."""
    settings = {
        "target": "tiny-target",
        "draft": "tiny-draft",
        "prompt": f"prompt {index}",
        "max_new_tokens": 24,
        "sampling": SamplingParams(temperature),
        **changes,
    }
    request = RunRequest(**settings)  # type: ignore[arg-type]
    events = FakeSession(step_ms=step_ms).run(request, RunControls.from_request(request))
    records = [record for event in events if (record := to_record(event)) is not None]
    moment = START + timedelta(hours=index)
    run_id = f"{moment:%Y%m%d-%H%M%S}-{index:06x}"
    records[0] |= {"id": run_id, "started_at": moment.isoformat()}
    records[0]["config"]["num_draft_tokens"] = request.num_draft_tokens or "auto"
    records[0]["config"]["baseline"] = request.baseline
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run_id}.jsonl").write_bytes(b"".join([to_line(record) for record in records][:lines]))
    return run_id


def names(panel) -> list[str]:
    """The titles in the list of kept runs."""
    return [run.title for run in panel.table.items()]


def cells(panel, row: int) -> list[str]:
    """A row of that list, column by column."""
    return texts(panel.table)[row]


def shown_whole(window) -> bool:
    """Whether a kept run is on screen, all of it."""
    return bool(window.live.kept_title) and window.live._kept is None and not window.live._is_ending
