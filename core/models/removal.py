"""Models taken off the disk again: from the Hub's cache or Outrider's folder, never what is the user's own."""

from __future__ import annotations

import dataclasses
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
    folders = _folders(ref)
    if not folders:
        raise ModelNotFoundError(
            f"There is no downloaded model {ref!r}. See those that are here with `outrider models list`."
        )
    num_bytes = sum(_files_bytes(folder) for folder in folders)
    try:
        entry = downloaded_model(ref)
    except (OutriderError, OSError):
        title = ref.rpartition("/")[2]
        origin = ModelOrigin.HUB if hub.repository_folder(ref).is_dir() else ModelOrigin.KEPT
        entry = ModelEntry(ref, title, folders[0], ModelFormat.SAFETENSORS, num_bytes, origin)
        return Removal(entry, num_bytes, _PARTIAL if hub.partial_bytes(ref) else _SHARED)
    return Removal(entry, num_bytes, _KEPT if entry.origin is ModelOrigin.KEPT else _SHARED)


def remove(ref: str) -> int:
    """Remove a model with all its revisions, and whatever an interrupted download left of it.

    Returns:
        The bytes freed.

    Raises:
        RemovalError: it is not Outrider's to remove, is on its way here, or a program holds on to it.
        ModelNotFoundError: nothing of it is here.
    """
    removal = plan_removal(ref)
    _refuse_while_downloading(ref)
    if hub.repository_folder(ref).is_dir():
        _remove_revisions(ref)
        shutil.rmtree(hub.lock_folder(ref), ignore_errors=True)
    # What no revision refers to, as after an interrupted download, is left to us.
    for folder in _folders(ref):
        shutil.rmtree(folder, ignore_errors=True)
    if left := _folders(ref):
        raise RemovalError(
            f"{ref!r} can't be removed whole: close the programs that use it, check the rights of {str(left[0])!r}, "
            "and try again."
        )
    return removal.frees_bytes


def _folders(ref: str) -> list[Path]:
    """Those of a model: in the Hub's cache, and Outrider's own."""
    return [folder for folder in (hub.repository_folder(ref), kept_folder(ref)) if folder.is_dir()]


def _refuse_others(ref: str) -> None:
    if ref in EMBEDDED_TITLES:
        raise RemovalError(f"{ref!r} ships with Outrider, and can't be removed.")
    is_named = hub.is_hub_id(ref) and bool(_folders(ref))
    if not is_named and os.path.exists(os.path.expanduser(ref)):
        raise RemovalError(f"{ref!r} is your own, not downloaded by Outrider. Remove it by hand if you want to.")
    if not hub.is_hub_id(ref):
        raise ModelNotFoundError(
            f"There is no downloaded model {ref[:120]!r}. Name one as `outrider models list` does."
        )


def _refuse_while_downloading(ref: str) -> None:
    from filelock import FileLock, Timeout

    for path in hub.lock_folder(ref).glob("*.lock"):
        try:
            with FileLock(path, timeout=0):
                pass
        except Timeout:
            raise RemovalError(f"{ref!r} is being downloaded. Stop that, or wait until it is done.") from None
        except OSError:
            continue  # A lock that can't be asked; whether the files can be removed shows below.


def _remove_revisions(ref: str) -> None:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        scan = scan_cache_dir(hub.cache_folder())
        for repository in scan.repos:
            if repository.repo_type == "model" and repository.repo_id == ref:
                commits = [revision.commit_hash for revision in repository.revisions]
                # Revisions are named by their hash alone, which a copy of the model under another id may share.
                alone = dataclasses.replace(scan, repos=frozenset({repository}))
                alone.delete_revisions(*commits).execute()
    except (CacheNotFound, OSError, ValueError):
        pass  # A cache that can't be scanned is cleared folder by folder.


def _files_bytes(folder: Path) -> int:
    """Of the files in a folder; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(path, name)).st_size for name in names)
    return total
