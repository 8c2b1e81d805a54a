"""Where the window's sweeps are kept, and what they are called there."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime
from pathlib import Path

from core.sweep.plan import SweepPlan

MOST_LISTED = 20
_STAMP = "%Y%m%d-%H%M%S"


def new_path(folder: Path, plan: SweepPlan, moment: datetime) -> Path:
    """A file that isn't there yet: the moment, and whom the sweep is of."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", plan.target.rstrip("/\\").replace("\\", "/").rpartition("/")[2]).strip("-.")
    stem = f"{moment.strftime(_STAMP)}-{name[:40] or 'sweep'}"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.jsonl" for number in range(1, 1000))
    return next(path for path in (folder / each for each in names) if not path.exists())


def earlier_sweeps(folder: Path) -> list[Path]:
    """The newest of those that are kept, newest first."""
    with contextlib.suppress(OSError):
        return sorted(folder.glob("*.jsonl"), key=lambda path: path.name, reverse=True)[:MOST_LISTED]
    return []


def title_of(path: Path) -> str:
    """What a list calls a sweep."""
    stamp, name = path.stem[:15], path.stem[16:]
    with contextlib.suppress(ValueError):
        moment = datetime.strptime(stamp, _STAMP)
        return f"{moment.day} {moment:%b %Y, %H:%M} · {name}"
    return path.stem
