"""torch's shared libraries, loaded while Python's other threads go on."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path

_NAMES = {"linux": "libtorch.so", "darwin": "libtorch.dylib"}


def load_torch_libraries() -> bool:
    """Have the system load what `import torch` is about to need; with Python's lock given back meanwhile.

    An import keeps the lock while the system loads a library. torch's take a fifth to half a second, in which no other
    thread runs any Python, and a window stands still. The system's own `dlopen`, called through ctypes, does the same
    without the lock; the import then finds the libraries in their place.

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
                return True
    return False
