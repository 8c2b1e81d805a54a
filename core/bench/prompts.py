"""The prompts of a bench: a file's, or a few of those that come with Outrider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.bench.types import Prompt
from core.errors import PromptError
from core.models.catalogue import RESOURCES

PRESETS = RESOURCES / "prompts" / "presets.jsonl"
_CODE = ("Fibonacci", "Read a file", "Edit a function")
_CHAT = ("Question", "Summary", "Edit a function")


def default_prompts(*, is_chat: bool) -> list[Prompt]:
    """Three of the presets: two that a model writes freely, and one that it can copy from."""
    presets = {prompt.name: prompt for prompt in read_prompts(PRESETS)}
    return [presets[name] for name in (_CHAT if is_chat else _CODE)]


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file: JSON Lines with a `text`, and perhaps a `name`, each; or else plain text, one a line.

    Raises:
        PromptError: it can't be read, or holds none.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise PromptError(f"The prompts in {str(path)!r} are not UTF-8 text; save them as UTF-8.") from None
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror
        raise PromptError(f"The prompts in {str(path)!r} can't be read ({reason}); check the path.") from None
    is_json = path.suffix.lower() in {".jsonl", ".ndjson"}
    prompts = [
        _from_json(line, number, path) if is_json else Prompt(f"line {number}", line)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise PromptError(f"There is no prompt in {str(path)!r}; write one a line.")
    return prompts


def _from_json(line: str, number: int, path: Path) -> Prompt:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str) or not text:
        raise PromptError(f'Line {number} of {str(path)!r} is no JSON object with a "text"; mend or remove it.')
    return Prompt(str(record.get("name") or f"line {number}"), text)
