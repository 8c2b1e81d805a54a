"""A file kept to oneself, so that two that write it do not write over each other."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import BaseFileLock


class FileClaim:
    """Keeps a file by a lock beside it, which goes with the claim; a process that dies gives it back.

    It binds only those who ask. Where no lock can be had, as in a folder that takes no new file, nobody is kept out.

    Args:
        path: the file; it need not be there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        file = Path(os.path.realpath(path))
        self.lock_path = file.with_name(f".{file.name}.lock")
        self._lock: BaseFileLock | None = None

    def take(self) -> bool:
        """Take the file; False if another has it."""
        from filelock import FileLock, Timeout  # Late: the command line is parsed without it.

        # Whoever closes the file may do so in another thread.
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
        """Let others have it; once is enough."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        # Before it is released, so that nobody takes a lock that is about to go. Windows removes it by itself.
        with contextlib.suppress(OSError):
            self.lock_path.unlink()
        with contextlib.suppress(OSError):
            lock.release()
