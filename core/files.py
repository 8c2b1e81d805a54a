"""Files that are whole or not there, and what to tell a person when the disk says no."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from core.errors import RunLogError

_NO_SPACE = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_atomically(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write a file so that a reader finds either all of it or what was there before.

    The data goes to a temporary file in the same folder, is brought to the disk and then takes the file's name. Text
    is written as UTF-8, its line ends as they are. A device or a pipe is written to directly.

    Raises:
        RunLogError: it can't be written, with a sentence that says what to do; nothing is left behind.
    """
    content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    # A link keeps pointing where it points: the file behind it is replaced.
    target = Path(os.path.realpath(path))
    try:
        mode = _existing_mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            target.write_bytes(content)  # A folder raises IsADirectoryError here.
            return
        _replace(target, content, mode)
    except OSError as error:
        raise RunLogError(explain_write_error(error, path)) from error


def _existing_mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(target: Path, content: bytes, mode: int | None) -> None:
    temporary = target.with_name(f".outrider-{secrets.token_hex(8)}.tmp")
    # Not tempfile: its files are private to the owner, whereas a log should get the rights that any new file gets.
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


def explain_write_error(error: OSError, path: str | os.PathLike[str]) -> str:
    """One sentence about why `path` could not be written, and what to do about it."""
    name = os.fspath(path)
    folder = os.path.dirname(name) or "."
    code = error.errno
    if code in _NO_SPACE:
        return f"There is no space left to write {name!r}; free some, or choose another disk."
    if code == errno.EISDIR or os.path.isdir(name):
        return f"{name!r} is a folder; name a file inside it."
    if code == errno.ENOENT:
        return f"There is no folder {folder!r} to write {os.path.basename(name)!r} in; create it, or choose another."
    if code == errno.ENOTDIR:
        return f"{name!r} can't be written, because a part of its path is a file; choose another folder."
    if code in _NOT_ALLOWED:
        return f"Writing {name!r} is not allowed; choose another folder, or close the program that has the file open."
    if code == errno.ENAMETOOLONG:
        return f"The name {os.path.basename(name)!r} is too long for this disk; choose a shorter one."
    return f"{name!r} can't be written ({error.strerror or error}); choose another place."
