"""Transfers a file of a model from the Hub into the user's cache, resuming where an earlier download was interrupted.

huggingface_hub's hf_hub_download restarts an interrupted file from its first byte and reads 10 MB chunks,
so only its API, its session and its errors are used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from core.errors import DownloadError, HubUnreachableError
from core.files import NO_SPACE, file_digest
from core.models.remote import hub
from core.models.remote.contents import TIMEOUT_SECONDS, RemoteFile
from core.models.remote.hub import DOWNLOADING, Meter, http_error

NUM_RETRIES = 4
"""Consecutive connections that may fail, or end with less than `LEAST_PROGRESS`."""

PAUSE_SECONDS = 1.0
"""Wait before the first retry; doubled for each further one."""

RATE_SECONDS = 60.0
SLOWEST_RATE = 1_000
"""A download that brings fewer bytes a second, over this many seconds, is given up."""
LEAST_PROGRESS = 1 << 16
"""A connection that ends with fewer bytes than this counts as failed."""
_ENDS_EARLY = (
    "The Hub's connections keep ending early. Check the connection, and try again; what was downloaded is kept."
)
_TOO_SLOW = (
    f"The Hub sends less than {SLOWEST_RATE:,} bytes a second. Check the connection, and try again; what was "
    "downloaded is kept."
)


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
        """Delete what an interrupted download left of the file, and the file itself if it is damaged.

        Raises:
            DownloadError: another program is downloading it.
        """
        with self._locked():
            self.partial.unlink(missing_ok=True)
            self._meter.enter("Checking…", self.remote.name)
            # The snapshot's file first: if it is intact, so is its blob, which other revisions may share.
            for path in (self.pointer, self.blob):
                if self._is_sound(path):
                    return
                path.unlink(missing_ok=True)

    def fetch(self, bytes_before: int) -> None:
        """Download the file unless it is here, resuming an earlier partial download.

        `bytes_before` are those of the model's earlier files, for the progress.

        Raises:
            DownloadError: the file is not what the Hub announced; it is removed.
            Cancelled, OSError, HTTP errors: what was received is kept, unless the disk is full.
        """
        if _size(self.pointer) == self.remote.size:
            return
        self._check_cancelled()
        with self._locked():
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

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        lock = hub.lock_folder(self._ref) / f"{self.remote.digest}.lock"
        for folder in (self.blob.parent, lock.parent, self.pointer.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock, timeout=0):
                yield
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
            self._meter.enter(DOWNLOADING, self.remote.name)
            try:
                self._stream(start)
            except http_error() as error:
                response = getattr(error, "response", None)
                if response is not None and response.status_code < 500 and response.status_code != 408:
                    raise  # A retry would get the same answer.
                problem = error
            received = _size(self.partial) - start
            if received >= LEAST_PROGRESS or _size(self.partial) >= self.remote.size:
                num_failures = 0
            elif problem is None and received <= 0:
                return  # The Hub has no more; the size check fails.
            else:
                num_failures += 1
                if num_failures > NUM_RETRIES:
                    raise problem or HubUnreachableError(_ENDS_EARLY)
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
            since, at = time.monotonic(), start
            try:
                with self.partial.open("ab" if start else "wb") as out:
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
            except OSError as error:
                # Don't leave a full disk full of unusable data.
                if error.errno in NO_SPACE:
                    self.partial.unlink(missing_ok=True)
                raise

    def _verify(self) -> None:
        self._meter.enter("Checking…", self.remote.name)
        size = max(0, _size(self.partial))
        if self._is_sound(self.partial):
            return
        self.partial.unlink(missing_ok=True)
        problem = f"has {size:,} bytes instead of {self.remote.size:,}"
        if size == self.remote.size:
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


def _size(path: Path) -> int:
    """Size in bytes; -1 if there is no file."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
