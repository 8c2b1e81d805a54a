"""Removes downloaded models, whole or interrupted."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from core.errors import ModelNotFoundError, OutriderError, RemovalError
from core.files import folder_bytes
from core.models.catalogue import EMBEDDED_TITLES, ModelEntry, ModelFormat, ModelOrigin, downloaded_model, kept_folder
from core.models.remote import hub

_SHARED = "Other programs share this cache, and would have to download the model again."
_KEPT = "Outrider converted it from a package on the package index, and can do so again."
_PARTIAL = "Its download was interrupted, and would have to start again."
_LINK = "It is a link: only that is removed, and the files that it leads to stay."

_JUNCTION = 0xA0000003
"""Windows' IO_REPARSE_TAG_MOUNT_POINT; `os.path.isjunction` exists from Python 3.12 on."""


class Removal(NamedTuple):
    """The effect of removing a model, or an interrupted download; `note` is a sentence for the confirmation."""

    entry: ModelEntry
    frees_bytes: int
    note: str


def plan_removal(ref: str) -> Removal:
    """Describe the effect of removing a model; removes nothing.

    Raises:
        RemovalError: Outrider may not remove it.
        ModelNotFoundError: nothing of it is here.
    """
    if ref in EMBEDDED_TITLES:
        raise RemovalError(f"{ref!r} ships with Outrider, and can't be removed.")
    folders = _folders(ref)
    if not folders:
        if os.path.exists(os.path.expanduser(ref)):
            raise RemovalError(f"{ref!r} is your own, not downloaded by Outrider. Remove it by hand if you want to.")
        raise ModelNotFoundError(
            f"There is no downloaded model {ref[:120]!r}. List the downloaded ones with `outrider models list`."
        )
    own = [folder for folder in folders if not _is_link(folder)]
    num_bytes, note = sum(map(folder_bytes, own)), _SHARED if own else _LINK
    try:
        entry = downloaded_model(ref)
    except (OutriderError, OSError):
        origin = ModelOrigin.HUB if hub.repository_folder(ref).is_dir() else ModelOrigin.KEPT
        entry = ModelEntry(ref, ref.rpartition("/")[2], folders[0], ModelFormat.SAFETENSORS, num_bytes, origin)
        return Removal(entry, num_bytes, _PARTIAL if own and hub.partial_bytes(ref) else note)
    return Removal(entry, num_bytes, _KEPT if own and entry.origin is ModelOrigin.KEPT else note)


def remove(ref: str) -> int:
    """Remove a model with all its revisions, and any partial download.

    Returns:
        The bytes freed.

    Raises:
        RemovalError: Outrider may not remove it, it is being downloaded, or a program uses it.
        ModelNotFoundError: nothing of it is here.
    """
    from filelock import FileLock, Timeout

    removal = plan_removal(ref)
    for path in hub.lock_folder(ref).glob("*.lock"):
        try:
            with FileLock(path, timeout=0):
                pass
        except Timeout:
            raise RemovalError(f"{ref!r} is being downloaded. Stop that, or wait until it is done.") from None
        except OSError:
            continue
    folders = _folders(ref)
    # A link, to another disk perhaps, goes alone.
    files = [path for folder in folders for path in ([folder] if _is_link(folder) else _files(folder))]
    has_begun = False
    with contextlib.suppress(OSError):
        # The weights first: Windows refuses those that a program has mapped, and then the model must stay whole.
        for path in sorted(files, key=_size, reverse=True):
            path.unlink(missing_ok=True)
            has_begun = True
        for folder in (*_folders(ref), hub.lock_folder(ref)):
            shutil.rmtree(folder, ignore_errors=True)
    if left := _folders(ref):
        how_far = " completely" if has_begun else ""
        raise RemovalError(
            f"{ref!r} could not be removed{how_far}: close the programs that use it, check the permissions of "
            f"{str(left[0])!r}, and try again."
        )
    return removal.frees_bytes


def _files(folder: Path) -> Iterator[Path]:
    """The files in a folder and below, and links, but nothing that these lead to."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if _is_link(Path(place, name))]
        folders[:] = set(folders).difference(links)
        yield from (Path(place, name) for name in (*names, *links))


def _is_link(path: Path) -> bool:
    """Whether it is a link, or on Windows a junction, which `Path.is_symlink` doesn't count."""
    return path.is_symlink() or getattr(os.lstat(path), "st_reparse_tag", 0) == _JUNCTION


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0


def _folders(ref: str) -> list[Path]:
    """A model's folders: in the Hub's cache, and Outrider's own."""
    if not hub.is_hub_id(ref):
        return []
    return [folder for folder in (hub.repository_folder(ref), kept_folder(ref)) if folder.is_dir()]
