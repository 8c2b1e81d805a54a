"""Files read from the disk before the system needs a page of them, while Python's other threads go on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_PIECE_BYTES = 4_000_000
"""Small ones would starve another thread, which has no time to wake up between two of them."""


def read_ahead(path: Path) -> None:
    """Have the system keep a file in memory, as far as it can be read. Python's lock is given back meanwhile."""
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        piece = bytearray(min(_PIECE_BYTES, path.stat().st_size + 1))
        while file.readinto(piece):
            pass


class ExtensionReader(MetaPathFinder):
    """Finds modules as Python does, and reads the library of an extension module before it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What Python's own finder finds."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None and isinstance(spec.loader, ExtensionFileLoader):
            read_ahead(Path(spec.origin))
        return spec


@contextlib.contextmanager
def extensions_read_ahead() -> Iterator[None]:
    """Within it, no thread that imports an extension module keeps the others waiting for the disk.

    While the system loads such a module's library, Python's lock stays with the thread that imports it; torch and
    transformers have hundreds. From a disk of 400 reads a second that halts a window for up to 80 ms, five times in a
    start; once they are in memory, loading takes a few.
    """
    reader = ExtensionReader()
    finders = sys.meta_path
    # Not before those that others have put in front, and not in place of Python's own: one might ask for it.
    finders.insert(finders.index(PathFinder) if PathFinder in finders else len(finders), reader)
    try:
        yield
    finally:
        finders.remove(reader)
