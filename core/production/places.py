"""Where another program finds a model that Outrider knows by a reference."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from core.models.catalogue import EMBEDDED, EMBEDDED_TITLES
from core.models.hub import is_hub_id
from core.models.shared_draft import serves


class PlaceKind(StrEnum):
    """What a program has to be able to read."""

    HUB = "hub"
    FOLDER = "folder"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class Place:
    """A model, as other programs name it.

    Attributes:
        kind: a Hub id, a folder of safetensors, or a .gguf file.
        name: the id, or the absolute path.
        serves: of a draft that borrows its target's tables, that target; other programs can't load such a draft.
    """

    kind: PlaceKind
    name: str
    serves: str | None = None


def place_of(ref: str) -> Place:
    """Where the model of a reference lies. Looks at a folder's config.json, and never fails: the model may be gone."""
    if ref in EMBEDDED_TITLES:
        folder = EMBEDDED / ref
        return Place(PlaceKind.FOLDER, str(folder), serves(folder))
    path = _absolute(ref)
    if ref.lower().endswith(".gguf"):
        return Place(PlaceKind.GGUF, ref if path is None else str(path))
    try:
        if path is not None and path.is_dir():
            return Place(PlaceKind.FOLDER, str(path), serves(path))
    except (OSError, ValueError):
        pass
    return Place(PlaceKind.HUB if is_hub_id(ref) else PlaceKind.FOLDER, ref)


def _absolute(ref: str) -> Path | None:
    try:
        return Path(ref).expanduser().absolute()
    except (OSError, RuntimeError, ValueError):
        return None
