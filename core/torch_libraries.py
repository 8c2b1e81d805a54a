"""The libraries behind torch and transformers, loaded or read from the disk while Python's other threads go on."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path

_NAMES = {"linux": "libtorch.so", "darwin": "libtorch.dylib"}

_READ_AHEAD = (
    "torch/lib/libtorch_python.*",
    "scipy.libs/*openblas*",
    "scipy/.dylibs/*openblas*",
    "tokenizers/tokenizers.*",
)
"""From the folder that the packages are in: the largest of those that the import itself has to load."""
_PIECE_BYTES = 4_000_000
"""Small ones would starve another thread, which has no time to wake up between two of them."""


def load_torch_libraries() -> bool:
    """Have the system load what `import torch` is about to need; with Python's lock given back meanwhile.

    An import keeps the lock while the system loads a library. torch's take a fifth to half a second, in which no other
    thread runs any Python, and a window stands still. The system's own `dlopen`, called through ctypes, does the same
    without the lock; the import then finds the libraries in their place.

    Some need Python's lock while they are loaded. Those are read from the disk here, which leaves the import the part
    that takes no more than 20 ms: where the disk was asked first, it took 50 to 170.

    To be called in the thread that will import torch, because OpenMP's library is among them (see `core.threads`).

    Returns:
        Whether they were loaded here; False where torch is loaded already, on other systems than Linux and macOS, and
        where it fails, which is for the import to explain.
    """
    name = _NAMES.get(sys.platform)
    if name is None or "torch" in sys.modules:
        return False
    with contextlib.suppress(ImportError, OSError, AttributeError, ValueError):
        spec = importlib.util.find_spec("torch")
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            dlopen = ctypes.CDLL(None).dlopen
            dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
            if dlopen(os.fsencode(Path(folder) / "lib" / name), os.RTLD_NOW | os.RTLD_LOCAL):
                _read_ahead(Path(folder).parent)
                return True
    return False


def _read_ahead(packages: Path) -> None:
    """Have the system keep in memory what will soon be loaded."""
    piece = bytearray(_PIECE_BYTES)
    for pattern in _READ_AHEAD:
        for path in packages.glob(pattern):
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                while file.readinto(piece):
                    pass
