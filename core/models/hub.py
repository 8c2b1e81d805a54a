"""The user's Hugging Face cache, and what the environment says about the Hub. Never touches the network.

The environment is read whenever it is asked for, whereas huggingface_hub reads it once, as it is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

from core.errors import ModelUnreadableError

_log = logging.getLogger(__name__)

_NAME = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_NAME}(?:/{_NAME})?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = {"1", "ON", "YES", "TRUE"}

PARTIAL_SUFFIX = ".incomplete"
"""Of files that a download was interrupted in; the cache's tools know it too."""


def is_hub_id(ref: str) -> bool:
    """Whether a reference has the form of a Hub id: "name", or "owner/name"."""
    return bool(_HUB_ID.fullmatch(ref)) and "--" not in ref and ".." not in ref


def is_offline() -> bool:
    """Whether the user keeps programs from the Hub, by HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE."""
    return _is_set("HF_HUB_OFFLINE") or _is_set("TRANSFORMERS_OFFLINE")


def avoids_links() -> bool:
    """Whether the user wants files rather than links in the cache's snapshots, by HF_HUB_DISABLE_SYMLINKS."""
    return _is_set("HF_HUB_DISABLE_SYMLINKS")


def endpoint() -> str | None:
    """The Hub's address from HF_ENDPOINT; None for the usual one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def cache_folder() -> Path:
    """Where models of the Hub are kept, for all programs of this user."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(variable):
            return _expanded(value)
    return home_folder() / "hub"


def home_folder() -> Path:
    """The folder of the Hub's tools, which holds the cache and the token."""
    if value := os.environ.get("HF_HOME"):
        return _expanded(value)
    return _expanded(os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")) / "huggingface"


def repository_folder(ref: str) -> Path:
    """The folder of one model in the cache, with its blobs, refs and snapshots."""
    return cache_folder() / f"models--{ref.replace('/', '--')}"


def snapshot_folder(ref: str, commit: str) -> Path:
    """The folder with the files of one revision."""
    return repository_folder(ref) / "snapshots" / commit


def lock_folder(ref: str) -> Path:
    """Where programs that download a model tell each other so."""
    return cache_folder() / ".locks" / repository_folder(ref).name


def revisions(ref: str) -> list[str]:
    """The commits of a model that are in the cache: that of the branch `main` first, then from the newest on."""
    try:
        folders = [path for path in (repository_folder(ref) / "snapshots").iterdir() if _COMMIT.fullmatch(path.name)]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    main = _main_commit(ref)
    return sorted((path.name for path in folders), key=lambda commit: commit != main)


def cached_refs() -> list[str]:
    """The ids of all models in the cache, sorted. May take a while where there are many."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(cache_folder()).repos
    except (CacheNotFound, OSError, ValueError) as error:
        _log.debug("The Hub's cache can't be scanned: %s", error)
        return []
    return sorted((repository.repo_id for repository in repositories if repository.repo_type == "model"), key=str.lower)


def refuse_links_out(folder: Path, ref: str) -> None:
    """Raises:
    ModelUnreadableError: if a file of a snapshot is a link to somewhere outside the cache.
    """
    # A model that was moved to another disk as a whole, with a link in its place, is the user's own doing.
    inside = (Path(os.path.realpath(cache_folder())), Path(os.path.realpath(repository_folder(ref))))
    for path in folder.iterdir():
        target = Path(os.path.realpath(path))
        if not any(target.is_relative_to(base) for base in inside):
            raise ModelUnreadableError(
                f"{ref!r} can't be loaded: its {path.name!r} is a link to a file outside the Hub's cache. "
                "Remove the model and download it again."
            )


def set_main(ref: str, commit: str) -> None:
    """Record which revision the branch `main` is at."""
    path = repository_folder(ref) / "refs" / "main"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(commit, "utf-8")
    os.replace(temporary, path)


def partial_bytes(ref: str) -> int:
    """How much an interrupted download of a model has left in the cache."""
    total = 0
    for path in (repository_folder(ref) / "blobs").glob(f"*{PARTIAL_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # Another program has just finished it.
            total += path.stat().st_size
    return total


def interrupted_refs() -> list[str]:
    """The ids of models of which a download was interrupted, sorted."""
    found = (path.parents[1].name for path in cache_folder().glob(f"models--*/blobs/*{PARTIAL_SUFFIX}"))
    return sorted({name.removeprefix("models--").replace("--", "/") for name in found})


def _main_commit(ref: str) -> str | None:
    try:
        return (repository_folder(ref) / "refs" / "main").read_text("utf-8").strip()
    except (OSError, ValueError):
        return None


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in _TRUE


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))
