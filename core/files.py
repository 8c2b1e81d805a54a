"""Bounded reads, atomic writes, hashes, free space, file locks, and scratch folders."""

from __future__ import annotations

import codecs
import contextlib
import errno
import glob
import hashlib
import io
import itertools
import json
import os
import platform
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import psutil

from core.errors import NoSpaceError, RunLogError
from core.text import bytes_text

if TYPE_CHECKING:
    from filelock import BaseFileLock

NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_DISK_WORDS = (
    " requested and ", "unexpected pos ", "failed writing file",
    "os error 27)", "os error 28)", "os error 69)", "os error 112)", "os error 122)",
)  # fmt: skip
"""What numpy, torch and safetensors say on any system where a file could not be written to its end."""
_SPARE_BYTES = 64_000_000
"""Disk space left free, since a full disk breaks other programs."""

LARGEST_JSON = 16_000_000
"""Most bytes of a small JSON file, such as a configuration."""
_LARGEST_OWN = 512_000_000
"""Most bytes of what Outrider itself keeps: the longest prompt, 256 MB, may double with its escapes."""
LONGEST_LINE = 32_000_000
"""Most bytes of a line of JSON Lines; a prompt of a million tokens takes 11 million."""
_MOST_VALUES = 8_000_000
"""Most values in a JSON document; as Python objects they take up to a hundred times their bytes."""
_MOST_BLANK_LINES = 10_000
_LEAST_MEMORY = 500_000_000
"""While a file's lines are read, this much memory stays free, or less for a small file."""
_MEMORY_PER_BYTE = 50
"""How much of it each byte that was read asks for."""
_BETWEEN_LOOKS = 4_000_000
"""Bytes that are read before the free memory is looked at again."""


# --- Reading what others wrote ----------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file to be read in binary; a pipe would never answer, and a device never end.

    Raises:
        OSError: it can't be read, or is a folder, a pipe or a device.
    """
    try:
        # Without blocking: opening a pipe waits for somebody who writes.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
    except ValueError as error:  # A NUL, or a lone surrogate.
        raise OSError(errno.EINVAL, "no file can have this name") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")


def read_bounded(path: str | os.PathLike[str], most_bytes: int = LARGEST_JSON) -> bytes:
    """A whole file.

    Raises:
        OSError: as `open_regular`, or it is larger than this.
    """
    with open_regular(path) as file:
        return read_rest(file, most_bytes)


def read_rest(file: BinaryIO, most_bytes: int) -> bytes:
    """The rest of an open file, or of a pipe.

    Raises:
        OSError: it can't be read, or is larger than this.
    """
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {bytes_text(most_bytes)}")
    return data


def parse_json(data: bytes) -> Any:
    """A JSON document of bounded depth and number of values; NaN and infinity become None.

    Raises:
        ValueError: it is not one, or is nested too deeply, or holds too much.
    """
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError("it holds too many values")
    try:
        return json.loads(data.decode("utf-8"), parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: str | os.PathLike[str], most_bytes: int = LARGEST_JSON) -> Any:
    """A small JSON file; see `read_bounded` and `parse_json` for what it raises."""
    return parse_json(read_bounded(path, most_bytes))


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, which end at \\n alone.

    Raises:
        OSError: a line is longer than any that Outrider writes, thousands are blank, or memory runs short: what
            becomes of a line may take fifty times its size.
    """
    num_blank = num_unseen = num_read = 0
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise OSError(errno.EFBIG, f"a line of it is longer than {bytes_text(LONGEST_LINE)}")
        num_blank += line.isspace()
        if num_blank > _MOST_BLANK_LINES:
            raise OSError(errno.EFBIG, "it is full of blank lines")
        num_read, num_unseen = num_read + len(line), num_unseen + len(line)
        if num_unseen > _BETWEEN_LOOKS:
            num_unseen = 0
            if psutil.virtual_memory().available < min(_LEAST_MEMORY, _MEMORY_PER_BYTE * num_read):
                raise OSError(errno.ENOMEM, "too little memory is free")
        yield line


def read_own_json(path: Path, version: int) -> tuple[dict[str, Any], bool]:
    """What Outrider itself keeps in a JSON object, as far as it can be read, and whether all of it could be.

    False means that the file must be kept aside before it is replaced: it is damaged, or a newer version wrote it.
    """
    try:
        data = read_bounded(path, _LARGEST_OWN).removeprefix(codecs.BOM_UTF8)  # Some editors add one.
    except FileNotFoundError:
        return {}, True
    except OSError:
        return {}, False
    # One bad byte, in the text of a prompt or a name, costs that character alone.
    text = data.decode("utf-8", "replace")
    try:
        # Not `parse_json`, which would count the commas of a prompt as values.
        record = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}, False
    if not isinstance(record, dict):
        return {}, False
    return record, record.get("version") == version and text.encode() == data


def keep_aside(path: Path) -> Path:
    """Rename a file that can't be read, so that writing a new one doesn't destroy it; returns its new place.

    Raises:
        OSError: it can't be renamed.
    """
    names = (path.with_name(f"{path.stem}-unreadable-{number}{path.suffix}") for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    path.rename(aside)
    return aside


def explain_read_error(error: OSError, path: str | os.PathLike[str], what: str = "file") -> str:
    """One sentence: why `path` could not be read, and what to do about it."""
    name = shown_path(path)
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return f"There is no file {name}; check the path."
    # Windows doesn't allow a folder to be opened.
    if error.errno == errno.EISDIR or (error.errno in _NOT_ALLOWED and os.path.isdir(path)):
        return f"{name} is a folder; choose a {what} in it."
    if error.errno in _NOT_ALLOWED:
        return f"{name} can't be read ({error.strerror or error}); check its permissions."
    return f"{name} can't be read ({error.strerror or error}); choose another file."


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path in quotes, at most 120 characters of it."""
    name = os.fspath(path)
    return repr(name if len(name) <= 120 else f"{name[:119]}…")


def short_path(folder: Path) -> str:
    """A folder's path, with ~ for the home folder."""
    try:
        return str(Path("~") / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(folder)


# --- Writing ----------------------------------------------------------------------------------------------------


def file_digest(path: Path, check_cancelled: Callable[[], None], digest: Any = None) -> str:
    """The SHA-256 of a file in hexadecimal, or another `digest` of hashlib; `check_cancelled` raises to cancel."""
    digest = hashlib.sha256() if digest is None else digest
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            check_cancelled()
            digest.update(block)
    return str(digest.hexdigest())


def folder_bytes(folder: Path) -> int:
    """The total size of the files in a folder; 0 if there is no such folder."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def require_space(what: str, num_bytes: int, folder: Path, way_out: str) -> None:
    """Check that the disk of a folder, which need not exist yet, has room for this many bytes.

    Raises:
        NoSpaceError: it does not; says how much is needed and free.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if num_bytes and num_bytes + _SPARE_BYTES > free:
        raise NoSpaceError(
            f"{what} needs {bytes_text(num_bytes + _SPARE_BYTES)} on disk, but only {bytes_text(free)} is free. "
            f"Free some space, or {way_out}."
        )


def open_to_write(path: str | os.PathLike[str]) -> int:
    """A descriptor of a file, created if need be, whose content stays.

    Raises:
        OSError: it can't be opened, or it is a pipe that nobody reads, which would be waited for.
    """
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags, 0o666)
    if hasattr(os, "O_NONBLOCK"):
        os.set_blocking(descriptor, True)
    return descriptor


def write_atomically(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write a file so that a reader finds either all of it or the previous content.

    Text is written as UTF-8 with its line endings unchanged. A device or a pipe is written to directly.

    Raises:
        RunLogError: it can't be written; no temporary file remains.
    """
    content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    try:
        mode = os.stat(path).st_mode if os.path.exists(path) else None
        if mode is not None and not stat.S_ISREG(mode):
            # By its own name: /dev/stdout leads to a pipe that has no other.
            with os.fdopen(open_to_write(path), "wb") as file:  # A folder raises IsADirectoryError here.
                file.write(content)
            return
        # A link stays as it is: its target is replaced.
        _replace(Path(os.path.realpath(path)), content, mode)
    except (OSError, ValueError) as error:
        raise RunLogError(explain_write_error(error, path)) from error


def _replace(target: Path, content: bytes, mode: int | None) -> None:
    temporary = target.with_name(f".outrider-{secrets.token_hex(8)}.tmp")
    # Not tempfile: its files are private, whereas a log should get the default permissions.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def explain_write_error(error: OSError | ValueError, path: str | os.PathLike[str]) -> str:
    """One sentence: why `path` could not be written, and what to do about it."""
    name = os.fspath(path)
    if not isinstance(error, OSError):  # A NUL, or a lone surrogate.
        return f"No file can have the name {shown_path(path)}; choose another."
    folder = os.path.dirname(name) or "."
    code = error.errno
    if code in NO_SPACE:
        return f"There is no space left to write {name!r}; free some, or choose another disk."
    if code == errno.EISDIR or os.path.isdir(name):
        return f"{name!r} is a folder; choose a file in it."
    if code == errno.ENOENT:
        return f"There is no folder {folder!r} to write {os.path.basename(name)!r} in; create it, or choose another."
    if code in _NOT_ALLOWED:
        return f"Writing {name!r} is not allowed; choose another folder, or close the program that has the file open."
    if code == errno.ENXIO:
        return f"No program reads the pipe {name!r}; start one first, or choose a file."
    return f"{shown_path(path)} can't be written ({error.strerror or error}); choose another name or folder."


@contextlib.contextmanager
def explaining_full_disks(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a library's own error about a full disk into an OSError with the number ENOSPC."""
    try:
        yield
    except Exception as error:
        is_told = isinstance(error, OSError) and error.errno is not None
        if is_told or not any(words in str(error) for words in _DISK_WORDS):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path)) from error


class FileClaim:
    """Reserves a file, which need not exist, with a lock file beside it; the lock ends with its process.

    Where no lock can be made, as in a read-only folder, the file is not reserved.

    Raises:
        ValueError: no file can have this name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = Path(os.path.realpath(path))
        self.lock_path = file.with_name(f".{file.name}.lock")
        self._lock: BaseFileLock | None = None

    def take(self) -> bool:
        """Reserve the file; False if somebody else holds it."""
        from filelock import FileLock, Timeout  # Imported late: the command line starts faster.

        # The file may be closed in another thread.
        lock = FileLock(self.lock_path, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            return False
        except (OSError, NotImplementedError):
            return True
        self._lock = lock
        return True

    def give_back(self) -> None:
        """Release the file."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        # Deleted before it is released, so that nobody acquires a lock that is about to vanish.
        with contextlib.suppress(OSError):
            self.lock_path.unlink()
        with contextlib.suppress(OSError):
            lock.release()


_ORPHAN_AGE_S = 24 * 3600


@contextlib.contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `parent`, which is created if needed; removed afterwards, as are those that a crash left.

    Raises:
        OSError: it can't be created.
    """
    parent.mkdir(parents=True, exist_ok=True)
    # The processes of another machine, or container, that shares the home are unknown here.
    ours = f"{prefix}{platform.node()}-"
    for folder in parent.glob(f"{glob.escape(ours)}*"):
        owner = folder.name.removeprefix(ours).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
    sweep(parent, prefix)
    scratch = Path(tempfile.mkdtemp(prefix=f"{ours}{os.getpid()}-", dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep(parent: Path, prefix: str) -> None:
    """Remove the folders of this prefix that nobody has changed for a day, such as those left by a crash."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _ORPHAN_AGE_S:
                shutil.rmtree(folder, ignore_errors=True)
