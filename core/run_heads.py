"""A run log's first and last lines, read without what stands between them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from core.errors import RunLogError
from core.trace import parse_line, read_run_head

MAX_PROMPT = 4_000
"""Characters of a prompt that a list needs: to show its beginning, and to search in it."""
_TAIL_BYTES = 16_384
_MAX_TAIL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """What a list says of a log.

    Attributes:
        config: without the ids of the prompt, and with no more of the prompt than `MAX_PROMPT`.
        summary: without the texts; None where the log has none.
        problem: why the log can't be read; empty if it can.
    """

    started_at: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    num_steps: int | None = None
    problem: str = ""


def read_head(path: Path) -> Head:
    """Read a log's first and last lines. Never raises: what is wrong with the log is told in `problem`."""
    try:
        with path.open("rb") as file:
            run = read_run_head(file.readline(), path.name)
            return _head(run, *_end(file))
    except RunLogError as error:
        return Head(problem=str(error))
    except OSError as error:
        return Head(problem=f"{path.name!r} can't be read ({error.strerror or error}); check its permissions.")


def _head(run: Mapping[str, Any], summary: dict[str, Any] | None, num_steps: int | None) -> Head:
    config = {name: value for name, value in run["config"].items() if name != "prompt_token_ids"}
    prompt = config.get("prompt")
    if isinstance(prompt, str):
        config["prompt"] = prompt[:MAX_PROMPT]
    if summary is not None:
        summary = {name: value for name, value in summary.items() if name not in {"text", "baseline_text"}}
        told = summary.get("num_steps")
        num_steps = told if isinstance(told, int) else num_steps
    environment = run.get("environment")
    started_at = run.get("started_at")
    return Head(
        started_at if isinstance(started_at, str) else "",
        config,
        environment if isinstance(environment, dict) else {},
        summary,
        num_steps,
    )


def _end(file: BinaryIO) -> tuple[dict[str, Any] | None, int | None]:
    """The summary, and the number of steps, as the last lines tell them."""
    first = file.tell()
    size = file.seek(0, os.SEEK_END)
    if size <= first:
        return None, 0
    for line in _lines_from_end(file, first, size):
        record = parse_line(line)
        if record is None:
            continue  # Torn by a crash, or blank.
        kind = record.get("type")
        if kind == "summary":
            return record, None
        if kind == "step":
            index = record.get("index")
            return None, index + 1 if isinstance(index, int) else None
    return None, None


def _lines_from_end(file: BinaryIO, first: int, size: int) -> Iterator[bytes]:
    """Lines, the last one first, from ever larger pieces of the end; none that begins before `first`."""
    length, given = _TAIL_BYTES, 0
    while True:
        start = max(first, size - length)
        file.seek(start)
        lines = file.read(size - start).split(b"\n")
        if start > first:
            lines = lines[1:]  # It began before this piece.
        yield from reversed(lines[: len(lines) - given])
        given = len(lines)
        if start == first or length >= _MAX_TAIL_BYTES:
            return
        length *= 4
