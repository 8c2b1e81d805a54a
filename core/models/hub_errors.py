"""What went wrong with the Hub, in a sentence for a person."""

from __future__ import annotations

import errno
from typing import Any

from core.errors import (
    DownloadError,
    GatedModelError,
    HubUnreachableError,
    ModelNotFoundError,
    NoSpaceError,
    OfflineError,
    OutriderError,
    first_line,
)

_NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def offline_error(ref: str) -> OfflineError:
    """The refusal to download in offline mode."""
    return OfflineError(
        f"{ref!r} can't be downloaded in offline mode. Unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, and try again."
    )


def http_error() -> type[Exception]:
    """The base of the HTTP client's errors. Which client it is depends on the release of huggingface_hub."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")


def explain(error: Exception, ref: str) -> OutriderError:
    """The error to be raised in place of one that came out of a talk with the Hub, or of the disk."""
    from huggingface_hub import errors

    if isinstance(error, OutriderError):
        return error
    if isinstance(error, errors.GatedRepoError):
        return gated_error(ref)
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFoundError(
            f"The Hub has no model {ref!r}, or it is private. Check how it is spelt; for a private one, log in with "
            "`hf auth login`."
        )
    if isinstance(error, errors.DisabledRepoError):
        return DownloadError(f"The Hub has switched off access to {ref!r}. Choose another model.")
    if isinstance(error, errors.EntryNotFoundError | errors.RevisionNotFoundError):
        return DownloadError(f"A file of {ref!r} is no longer on the Hub. Start the download again.")
    if isinstance(error, errors.HfHubHTTPError):
        return _explain_status(error, ref)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return offline_error(ref)
    if isinstance(error, http_error()):
        return _explain_transport(error, ref)
    if isinstance(error, OSError):
        return explain_disk_error(error, ref)
    return DownloadError(
        f"The Hub's answer about {ref!r} can't be understood ({first_line(error)}). Check HF_ENDPOINT, and try again."
    )


def gated_error(ref: str) -> GatedModelError:
    """The refusal of a model whose licence was not accepted yet."""
    return GatedModelError(
        f"{ref!r} is gated: accept its licence on the Hub's page of the model, log in with `hf auth login`, "
        "and try again."
    )


def explain_disk_error(
    error: OSError, ref: str, place: str = "the Hub's cache folder", way_out: str = "set HF_HOME to another disk"
) -> DownloadError:
    """Why files of a model can't be written to a place."""
    if error.errno in _NO_SPACE:
        return NoSpaceError(f"The disk is full, so {ref!r} could not be downloaded. Free some space, or {way_out}.")
    return DownloadError(
        f"{ref!r} can't be written ({error.strerror or first_line(error)}). Check the rights of {place}, or {way_out}."
    )


def _explain_status(error: Any, ref: str) -> OutriderError:
    status = error.response.status_code
    if status in (401, 403):
        return DownloadError(
            f"The Hub refuses access to {ref!r} ({status}). Log in with `hf auth login`, with a token that may read it."
        )
    if status == 404:
        return ModelNotFoundError(f"The Hub has no model {ref!r}. Check how it is spelt.")
    if status == 429:
        return HubUnreachableError("The Hub has had too many requests from here. Wait some minutes, and try again.")
    return HubUnreachableError(f"The Hub has a problem of its own (status {status}). Try again later.")


def _explain_transport(error: Exception, ref: str) -> HubUnreachableError:
    if "Timeout" in type(error).__name__:
        return HubUnreachableError(
            f"The Hub did not answer in time about {ref!r}. Check the connection, and try again; what came is kept."
        )
    return HubUnreachableError(
        f"The Hub can't be reached for {ref!r}. Check the connection, and try again; what came so far is kept."
    )
