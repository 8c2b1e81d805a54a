"""Comments and commands of a configuration, as text that a shell or Python takes as it stands."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from core.production.choice import Choice

CHECKED_ON = "2026-11-22"
"""The day on which every project's sources were last looked at."""

WIDTH = 100


def comment(*paragraphs: str) -> str:
    """Lines that begin with #; no text can break out of them."""
    lines: list[str] = []
    for paragraph in paragraphs:
        # textwrap takes every line end for a space, so that what a reference holds stays in the comment.
        lines += textwrap.wrap(_plain(paragraph), WIDTH - 2, subsequent_indent="  ", break_on_hyphens=False) or [""]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def command(*words: Iterable[str]) -> str:
    """A command of a POSIX shell, a group of words a line."""
    return " \\\n    ".join(shlex.join(_plain(word) for word in group) for group in words if group) + "\n"


def as_json(values: Mapping[str, Any]) -> str:
    """One line of JSON, to be quoted as a word."""
    return json.dumps(values, ensure_ascii=False)


def python(value: Any) -> str:
    """A literal in Python."""
    return repr(value)


def number(value: float) -> str:
    """Without a needless fraction: 1, 0.8."""
    return f"{value:g}"


def head(title: str, choice: Choice) -> list[str]:
    """The first comments of each configuration: what it is of."""
    draft = f" with {choice.draft}" if choice.draft else ""
    sampling = choice.sampling
    law = "greedy" if sampling.is_greedy else f"temperature {number(sampling.temperature)}"
    for name, value, off in (("top-k", sampling.top_k, 0), ("top-p", sampling.top_p, 1), ("min-p", sampling.min_p, 0)):
        if value != off and not sampling.is_greedy:
            law += f", {name} {number(value)}"
    origin = f"Outrider's run {choice.run_id}" if choice.run_id else "Outrider's settings"
    lines = [
        f"{title}: {choice.target}{draft}, {choice.method}, K = {choice.num_draft_tokens}, {law}.",
        f"From {origin}." + (f" {choice.k_note}" if choice.k_note else ""),
    ]
    if choice.measured_speedup is not None:
        lines.append(
            choice.verdict
            or f"Measured there: {choice.measured_speedup:.2f}× the target alone, by Outrider's engine; not a promise."
        )
    return lines


def checked(sources: Iterable[str]) -> str:
    """Which sources the flags were looked up in, and when."""
    return f"Checked on {CHECKED_ON} against " + "; ".join(sources) + "."


def _plain(text: str) -> str:
    """Without the characters that end a line or a string in some shell."""
    return "".join(character if character.isprintable() else " " for character in text)
