"""The models that are here, by name. Reads small files only; never imports torch."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from core.errors import ModelNotFoundError, ModelUnreadableError

RESOURCES = Path(__file__).resolve().parents[2] / "resources"
EMBEDDED = RESOURCES / "models"

DEFAULT_TARGET = "outrider-code-target"
DEFAULT_DRAFT = "outrider-code-draft"
EMBEDDED_TITLES = {DEFAULT_TARGET: "Outrider Code target", DEFAULT_DRAFT: "Outrider Code draft"}


class ModelFormat(StrEnum):
    SAFETENSORS = "safetensors"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that can be chosen.

    Attributes:
        ref: what `core.models.load` and the command line take.
        title: what the window shows.
        path: its folder, or its .gguf file.
        format: how its weights are stored.
        size_bytes: of its weights.
        embedded: whether it ships with Outrider.
    """

    ref: str
    title: str
    path: Path
    format: ModelFormat
    size_bytes: int
    embedded: bool = False


def embedded_models() -> tuple[ModelEntry, ...]:
    """The pair that ships with Outrider, target first; without those that are missing or damaged."""
    found = []
    for ref in EMBEDDED_TITLES:
        # What is wrong with a damaged one is said to whoever asks for it; the others work.
        with contextlib.suppress(ModelUnreadableError, OSError):
            found.append(_embedded_entry(ref))
    return tuple(found)


def resolve(ref: str) -> ModelEntry:
    """Find the model that a reference names: an embedded model, a folder, or a .gguf file.

    Raises:
        ModelNotFoundError: nothing is there.
        ModelUnreadableError: something is there that is not a model.
    """
    try:
        if ref in EMBEDDED_TITLES and (EMBEDDED / ref).is_dir():
            return _embedded_entry(ref)
        path = Path(ref).expanduser()
        if path.suffix.lower() == ".gguf":
            return _gguf_entry(path, ref)
        if path.is_dir():
            return _folder_entry(path, ref=ref, title=path.resolve().name)
        if path.is_file():
            raise ModelUnreadableError(
                f"{ref!r} is a file, but not a .gguf file. Name the model's folder, or a .gguf file."
            )
    except PermissionError:
        raise ModelUnreadableError(f"{ref!r} may not be read. Ask its owner, or choose another model.") from None
    except (OSError, RuntimeError, ValueError):
        # No path at all: too long for one, the home of nobody, or with a character that none may have.
        pass
    names = "".join(f"{entry.ref}, " for entry in embedded_models())
    raise ModelNotFoundError(
        f"There is no model {_shortened(ref)!r} here. Name {names}a folder with safetensors, or a .gguf file."
    )


def _embedded_entry(ref: str) -> ModelEntry:
    return _folder_entry(EMBEDDED / ref, ref=ref, title=EMBEDDED_TITLES[ref], embedded=True)


def _shortened(ref: str) -> str:
    return ref if len(ref) <= 120 else f"{ref[:119]}…"


def _gguf_entry(path: Path, ref: str) -> ModelEntry:
    if path.is_dir():
        raise ModelUnreadableError(f"{ref!r} is a folder, although its name ends in .gguf. Name the file inside it.")
    if not path.is_file():
        raise ModelNotFoundError(f"There is no file {ref!r}. Check the path.")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelUnreadableError(f"{ref!r} is not a GGUF file, or is damaged. Download it again.")
    return ModelEntry(ref, path.stem, path, ModelFormat.GGUF, path.stat().st_size)


def _folder_entry(folder: Path, *, ref: str, title: str, embedded: bool = False) -> ModelEntry:
    config = folder / "config.json"
    if not config.is_file():
        raise ModelUnreadableError(f"{ref!r} holds no model: its config.json is missing. Name a folder that has one.")
    try:
        json.loads(config.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        raise ModelUnreadableError(f"The config.json of {ref!r} can't be read. Download the model again.") from None
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        reason = (
            "its weights are pickle files, which can run code when they are opened; convert them to safetensors"
            if pickled
            else "it has no .safetensors file; download the model again"
        )
        raise ModelUnreadableError(f"{ref!r} can't be loaded: {reason}.")
    size = sum(weight.stat().st_size for weight in weights)
    return ModelEntry(ref, title, folder, ModelFormat.SAFETENSORS, size, embedded)
