"""Finds models by name: embedded, kept by Outrider, in the Hub's cache, or at a path. No torch, no network."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import platformdirs

from core.errors import ModelNotFoundError, ModelUnreadableError, OutriderError
from core.models import hub

_log = logging.getLogger(__name__)

RESOURCES = Path(__file__).resolve().parents[2] / "resources"
EMBEDDED = RESOURCES / "models"

DEFAULT_TARGET = "outrider-code-target"
DEFAULT_DRAFT = "outrider-code-draft"
SMOLLM2_DRAFTER = "outrider-smollm2-drafter"
EMBEDDED_TITLES = {
    DEFAULT_TARGET: "Outrider Code target",
    DEFAULT_DRAFT: "Outrider Code draft",
    SMOLLM2_DRAFTER: "Outrider SmolLM2 drafter",
}

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_TEXT_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class ModelFormat(StrEnum):
    SAFETENSORS = "safetensors"
    GGUF = "gguf"


class ModelOrigin(StrEnum):
    """Where a model's files are stored. HUB is the user's Hugging Face cache, KEPT Outrider's own data folder."""

    EMBEDDED = "embedded"
    HUB = "hub"
    KEPT = "kept"
    FOLDER = "folder"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that can be chosen.

    Attributes:
        ref: what `core.models.load` and the command line take.
        title: what the window shows.
        path: its folder, or its .gguf file.
        format: how its weights are stored.
        size_bytes: size of its weights.
        origin: where its files are.
        last_used: when its weights were last read, in seconds since the epoch; only for the Hub's cache.
        revision: commit; only for models in the Hub's cache.
        serves: the target's reference, if this is a drafter that borrows its target's tables.
    """

    ref: str
    title: str
    path: Path
    format: ModelFormat
    size_bytes: int
    origin: ModelOrigin = ModelOrigin.FOLDER
    last_used: float | None = None
    revision: str | None = None
    serves: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether it ships with Outrider."""
        return self.origin is ModelOrigin.EMBEDDED


def embedded_models() -> tuple[ModelEntry, ...]:
    """The models that ship with Outrider, default target first; missing or damaged ones are skipped."""
    return tuple(_readable(_embedded_entry, EMBEDDED_TITLES))


def local_models() -> tuple[ModelEntry, ...]:
    """Every local model with a name: embedded, kept, then the Hub's cache by name; damaged ones are skipped.

    Reads a few small files per model.
    """
    kept: list[str] = []
    if _kept_models().is_dir():
        kept = sorted(folder.name.replace("--", "/") for folder in _kept_models().iterdir() if folder.is_dir())
    found = [*embedded_models(), *_readable(_kept_entry, kept)]
    known = {entry.ref for entry in found}
    cached = _readable(_hub_entry, (ref for ref in hub.cached_refs() if ref not in known))
    return (*found, *(entry for entry in cached if _writes_text(entry.path)))


def resolve(ref: str) -> ModelEntry:
    """Find the model that a reference names: an embedded or kept model, a folder, a .gguf file, or a cached Hub id.

    Raises:
        ModelNotFoundError: nothing exists there.
        ModelUnreadableError: what exists there is not a model.
    """
    try:
        if ref in EMBEDDED_TITLES and (EMBEDDED / ref).is_dir():
            return _embedded_entry(ref)
        path = Path(ref).expanduser()
        if path.suffix.lower() == ".gguf":
            return _gguf_entry(path, ref)
        if path.is_dir():
            return _folder_entry(path, ref, path.resolve().name, ModelOrigin.FOLDER)
        if path.is_file():
            raise ModelUnreadableError(
                f"{ref!r} is a file, but not a .gguf file. Name the model's folder, or a .gguf file."
            )
        if hub.is_hub_id(ref):
            return downloaded_model(ref)
    except PermissionError:
        raise ModelUnreadableError(f"{ref!r} may not be read. Ask its owner, or choose another model.") from None
    except (OSError, RuntimeError, ValueError):
        pass  # Not a path at all: too long, an unknown home, or an invalid character.
    names = "".join(f"{entry.ref}, " for entry in embedded_models())
    shown = ref if len(ref) <= 120 else f"{ref[:119]}…"
    raise ModelNotFoundError(
        f"There is no model {shown!r} here. Name {names}a folder with safetensors, a .gguf file, "
        "or a model of the Hub that was downloaded."
    )


def downloaded_model(ref: str) -> ModelEntry:
    """The model with a Hub id, from the Hub's cache or Outrider's own folder.

    Raises:
        ModelNotFoundError: it is not downloaded yet.
        ModelUnreadableError: it is incomplete or damaged.
    """
    if hub.revisions(ref):
        try:
            return _hub_entry(ref)
        except ModelUnreadableError:
            if not kept_folder(ref).is_dir():
                raise
    if kept_folder(ref).is_dir():
        return _kept_entry(ref)
    if "/" not in ref:
        raise FileNotFoundError(ref)
    raise _not_downloaded(ref)


def kept_folder(ref: str) -> Path:
    """Where Outrider keeps, or will keep, a model that it converted to safetensors itself."""
    return _kept_models() / ref.replace("/", "--")


def weight_files(folder: Path, name: str) -> list[Path]:
    """The files that loading reads: model.safetensors, else those named by the index, else all safetensors.

    Raises:
        ModelUnreadableError: one is missing, or there is none.
    """
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if weights := sorted(folder.glob("*.safetensors")):
            return weights
        pickled = any(any(folder.glob(pattern)) for pattern in PICKLED)
        reason = (
            "its weights are pickle files, which can run code when they are opened; convert them to safetensors"
            if pickled
            else "it has no .safetensors file; download the model again"
        )
        raise ModelUnreadableError(f"{name!r} can't be loaded: {reason}.")
    try:
        names = sorted({str(file) for file in json.loads(index.read_bytes())["weight_map"].values()})
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise ModelUnreadableError(f"The list of weight files of {name!r} can't be read. Download it again.") from None
    for file in names:
        if not (folder / file).is_file():
            raise ModelUnreadableError(
                f"{name!r} is incomplete: {file!r} is missing. Download it again; what is here already is kept."
            )
    return [folder / file for file in names]


def served_target(config: Any) -> str | None:
    """The target whose tables a drafter borrows, from its config.json."""
    borrowed = config.get("shares_tables_with") if isinstance(config, dict) else None
    target = borrowed.get("model") if isinstance(borrowed, dict) else None
    return target if isinstance(target, str) else None


def _not_downloaded(ref: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{ref!r} is not downloaded yet: get it with `outrider models get {ref}`, or in the window under Models."
    )


def _kept_models() -> Path:
    return platformdirs.user_data_path("outrider", appauthor=False) / "models"


def _readable(entry_of: Callable[[str], ModelEntry], refs: Iterable[str]) -> Iterator[ModelEntry]:
    for ref in refs:
        try:
            yield entry_of(ref)
        except (OutriderError, OSError) as error:
            _log.debug("%s is left out: %s", ref, error)


def _embedded_entry(ref: str) -> ModelEntry:
    return _folder_entry(EMBEDDED / ref, ref, EMBEDDED_TITLES[ref], ModelOrigin.EMBEDDED)


def _kept_entry(ref: str) -> ModelEntry:
    return _folder_entry(kept_folder(ref), ref, ref.rpartition("/")[2], ModelOrigin.KEPT)


def _hub_entry(ref: str) -> ModelEntry:
    """The newest complete revision in the Hub's cache; the branch `main` first."""
    problem: ModelUnreadableError | None = None
    for commit in hub.revisions(ref):
        folder = hub.snapshot_folder(ref, commit)
        try:
            hub.refuse_links_out(folder, ref)
            return _folder_entry(folder, ref, ref.rpartition("/")[2], ModelOrigin.HUB, commit)
        except ModelUnreadableError as error:
            problem = problem or error
    raise problem or _not_downloaded(ref)


def _gguf_entry(path: Path, ref: str) -> ModelEntry:
    if path.is_dir():
        raise ModelUnreadableError(f"{ref!r} is a folder, although its name ends in .gguf. Name the file inside it.")
    if not path.is_file():
        raise ModelNotFoundError(f"There is no file {ref!r}. Check the path.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelUnreadableError(f"{ref!r} is not a GGUF file, or is damaged. Download it again.")
    return ModelEntry(ref, path.stem, path, ModelFormat.GGUF, path.stat().st_size, ModelOrigin.GGUF)


def _folder_entry(folder: Path, ref: str, title: str, origin: ModelOrigin, revision: str | None = None) -> ModelEntry:
    if not (folder / "config.json").is_file():
        raise ModelUnreadableError(f"{ref!r} holds no model: its config.json is missing. Name a folder that has one.")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        raise ModelUnreadableError(f"The config.json of {ref!r} can't be read. Download the model again.") from None
    states = [weight.stat() for weight in weight_files(folder, ref)]
    return ModelEntry(
        ref,
        title,
        folder,
        ModelFormat.SAFETENSORS,
        sum(state.st_size for state in states),
        origin,
        # Weights only, since listing models reads the small files.
        last_used=max(state.st_atime for state in states) if origin is ModelOrigin.HUB else None,
        revision=revision,
        serves=served_target(config),
    )


def _writes_text(folder: Path) -> bool:
    """Whether a folder's config.json describes a language model, as far as it says."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not architectures or not isinstance(architectures, list):
        return True
    return any(str(name).endswith(_TEXT_GENERATORS) for name in architectures)
