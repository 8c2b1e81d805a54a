"""One file of a model: received, resumed where it stopped, checked, and put into the Hub's cache.

huggingface_hub's own download throws away what it has when it is stopped, and looks up only every ten megabytes, or
not at all where its Xet client takes over. So the bytes are received here, over plain HTTP, and laid down in the
cache's own layout: blobs/<digest>, and a link to it in snapshots/<commit>/.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import DownloadError
from core.models import hub
from core.models.hub_errors import http_error
from core.models.progress import Meter

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
