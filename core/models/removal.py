"""Models taken off the disk again: from the Hub's cache or Outrider's folder, never what is the user's own."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from core.errors import ModelNotFoundError, OutriderError, RemovalError
from core.models import hub
from core.models.catalogue import EMBEDDED_TITLES, ModelEntry, ModelFormat, ModelOrigin, downloaded_model, kept_folder

_SHARED = "Other programs share this cache, and would have to download the model again."
_KEPT = "Outrider made it from a package of the package index, and can do so again."
_PARTIAL = "Its download was interrupted, and would have to begin anew."


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model means.

    Attributes:
        entry: the model; of an interrupted download, its folder in the cache.
        frees_bytes: of disk space.
        note: a sentence for the question that comes first.
    """

    entry: ModelEntry
    frees_bytes: int
    note: str


def plan_removal(ref: str) -> Removal:
    """What removing a model would mean; removes nothing.

    Raises:
        RemovalError: it is not Outrider's to remove.
        ModelNotFoundError: nothing of it is here.
    """
    _refuse_others(ref)
    folder = hub.repository_folder(ref)
    if folder.is_dir():
        entry, note = _cached_entry(ref, folder)
        return Removal(entry, _files_bytes(folder), note)
    kept = kept_folder(ref)
    if kept.is_dir():
        size = _files_bytes(kept)
        return Removal(_entry(ref, kept, ModelOrigin.KEPT, size), size, _KEPT)
    raise ModelNotFoundError(
        f"There is no downloaded model {ref!r}. See those that are here with `outrider models list`."
    )


def remove(ref: str) -> int:
    """Remove a model with all its revisions, and whatever an interrupted download left of it.

    Returns:
        The bytes freed.

    Raises:
        RemovalError: it is not Outrider's to remove, or a program holds on to it.
        ModelNotFoundError: nothing of it is here.
    """
    removal = plan_removal(ref)
    if removal.entry.origin is ModelOrigin.KEPT:
        folder = kept_folder(ref)
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder = hub.repository_folder(ref)
        _remove_revisions(ref)
        # What no revision refers to, as after an interrupted download, is left to us.
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(hub.lock_folder(ref), ignore_errors=True)
    if folder.exists():
        raise RemovalError(
            f"{ref!r} can't be removed whole: close the programs that use it, check the rights of {str(folder)!r}, "
            "and try again."
        )
    return removal.frees_bytes


def _refuse_others(ref: str) -> None:
    if ref in EMBEDDED_TITLES:
        raise RemovalError(f"{ref!r} ships with Outrider, and can't be removed.")
    is_named = hub.is_hub_id(ref) and (hub.repository_folder(ref).is_dir() or kept_folder(ref).is_dir())
    if not is_named and os.path.exists(os.path.expanduser(ref)):
        raise RemovalError(f"{ref!r} is your own, not downloaded by Outrider. Remove it by hand if you want to.")
    if not hub.is_hub_id(ref):
        raise ModelNotFoundError(
            f"There is no downloaded model {ref[:120]!r}. Name one as `outrider models list` does."
        )


def _cached_entry(ref: str, folder: Path) -> tuple[ModelEntry, str]:
    try:
        entry = downloaded_model(ref)
        if entry.origin is ModelOrigin.HUB:
            return entry, _SHARED
    except (OutriderError, OSError):
        pass
    note = _PARTIAL if hub.partial_bytes(ref) else _SHARED
    return _entry(ref, folder, ModelOrigin.HUB, _files_bytes(folder)), note


def _entry(ref: str, folder: Path, origin: ModelOrigin, size: int) -> ModelEntry:
    return ModelEntry(ref, ref.rpartition("/")[2], folder, ModelFormat.SAFETENSORS, size, origin)


def _remove_revisions(ref: str) -> None:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        scan = scan_cache_dir(hub.cache_folder())
        commits = [
            revision.commit_hash
            for repository in scan.repos
            if repository.repo_type == "model" and repository.repo_id == ref
            for revision in repository.revisions
        ]
        if commits:
            scan.delete_revisions(*commits).execute()
    except (CacheNotFound, OSError, ValueError):
        pass  # A cache that can't be scanned is cleared folder by folder.


def _files_bytes(folder: Path) -> int:
    """Of the files in a folder; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(path, name)).st_size for name in names)
    return total
