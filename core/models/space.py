"""Whether a disk has room for what is to be written."""

from __future__ import annotations

import shutil
from pathlib import Path

from core.errors import NoSpaceError
from core.models.sizes import in_words

SPARE_BYTES = 64_000_000
"""To be left over: a disk filled to the last byte troubles every program."""


def require_space(what: str, num_bytes: int, folder: Path, way_out: str) -> None:
    """Check that the disk of a folder, which need not exist yet, has room for so many bytes.

    Raises:
        NoSpaceError: it has not; with how much is needed and free.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if num_bytes and num_bytes + SPARE_BYTES > free:
        raise NoSpaceError(
            f"{what!r} needs {in_words(num_bytes + SPARE_BYTES)} on disk, and {in_words(free)} are free. "
            f"Free some space, or {way_out}."
        )
