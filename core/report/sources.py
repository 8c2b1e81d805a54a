"""Which kind of file something is: a run's log, or a sweep's."""

from __future__ import annotations

import os
from pathlib import Path

from core.sweep.records import SCHEMA
from core.trace import parse_line

_LONGEST_HEAD = 16_000_000
"""A first line holds the prompts; nothing longer is one."""


def is_sweep(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it is a sweep's, of whatever version. What can't be read is none."""
    try:
        with Path(path).open("rb") as file:
            record = parse_line(file.readline(_LONGEST_HEAD).removeprefix(b"\xef\xbb\xbf"))
    except OSError:
        return False
    schema = record.get("schema") if record else None
    return isinstance(schema, str) and schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]
