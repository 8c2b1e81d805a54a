"""A bench as a JSON document."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from core.bench.results import Row
from core.bench.rival_flashspec import PACKAGE
from core.bench.types import Absence, BenchSettings, Prompt

if TYPE_CHECKING:
    from core.bench.types import Pair

SCHEMA = "outrider.bench/1"


@dataclass(frozen=True, slots=True)
class Report:
    """All that a bench has to tell."""

    started_at: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: Sequence[Row]
    absent: Sequence[Absence]


def now() -> str:
    """This moment, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def config_of(settings: BenchSettings, pair: Pair, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The settings as they came out."""
    config = asdict(settings) | {
        "draft": pair.draft.ref if pair.draft is not None else None,
        "device": str(pair.target.device),
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "revision": pair.target.revision,
        "prompts": [{"name": item.name, "text": item.text, "num_tokens": len(item.ids)} for item in prompts],
    }
    return config | {"temperatures": list(settings.temperatures), "only": list(settings.only)}


def environment_of(pair: Pair, settings: BenchSettings) -> dict[str, Any]:
    """The machine and the versions that it ran with."""
    import torch

    from core.models.devices import device_name

    return {
        "outrider": _version("outrider"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "flashspec": _version(PACKAGE),
        "platform": platform.platform(),
        "device_name": device_name(pair.target.device),
        "threads": settings.threads or torch.get_num_threads(),
    }


def to_json(report: Report) -> str:
    """The document, with `"schema": "outrider.bench/1"`."""
    document = {
        "schema": SCHEMA,
        "started_at": report.started_at,
        "config": dict(report.config),
        "environment": dict(report.environment),
        "results": [asdict(row) for row in report.rows],
        "absent": [asdict(absence) for absence in report.absent],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
