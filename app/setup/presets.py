"""Prompts to start from: JSON Lines of name, category and text under resources/prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from app.theme import RESOURCES


@dataclass(frozen=True, slots=True)
class Preset:
    """A prompt with a name."""

    name: str
    category: str
    text: str


def load_presets(folder: Path = RESOURCES / "prompts") -> tuple[Preset, ...]:
    """All presets; lines that hold none are passed over, since a preset is only a convenience.

    The other files of the folder are suites to measure on, with more prompts than a menu bears.
    """
    found: list[Preset] = []
    for path in folder.glob("presets.jsonl"):
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                found.append(Preset(**json.loads(line)))
            except (ValueError, TypeError):
                continue
    return tuple(found)
