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


def read_ahead(path: Path) -> int:
    """Have the system keep a file in memory. Python's lock is given back meanwhile.

    Returns:
        How many bytes could be read.
    """
    count = 0
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        piece = bytearray(min(_PIECE_BYTES, path.stat().st_size + 1))
        while read := file.readinto(piece):
            count += read
    return count


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
    """Within it, an extension module's own library is in memory by the time that the system loads it.

    While it does, Python's lock stays with the thread that imports; behind torch and transformers there are dozens of
    such modules. From a disk of 400 reads a second that halted a window for 61 to 80 ms, five times in a start. What
    their libraries are linked with is not read here; see `core.torch_libraries`.
    """
    reader = ExtensionReader()
    finders = sys.meta_path
    # Not before those that others have put in front, and not in place of Python's own: one might ask for it.
    finders.insert(finders.index(PathFinder) if PathFinder in finders else len(finders), reader)
    try:
        yield
    finally:
        finders.remove(reader)
