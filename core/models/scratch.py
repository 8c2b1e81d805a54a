"""Folders for work in progress: beside the place that the result goes to, and swept away if a crash left them there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil

_ORPHAN_AGE_S = 24 * 3600


def new_scratch(parent: Path, prefix: str) -> Path:
    """A new folder in `parent`, which is made if it is not there; those that processes left that are gone are removed.

    Raises:
        OSError: it can't be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _sweep(parent, prefix)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


def _sweep(parent: Path, prefix: str) -> None:
    for scratch in parent.glob(f"{prefix}*"):
        owner = scratch.name.removeprefix(prefix).partition("-")[0]
        with contextlib.suppress(OSError):
            is_old = time.time() - scratch.stat().st_mtime > _ORPHAN_AGE_S
            if is_old or (owner.isdecimal() and not psutil.pid_exists(int(owner))):
                shutil.rmtree(scratch, ignore_errors=True)
