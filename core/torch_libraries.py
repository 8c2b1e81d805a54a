"""The libraries behind torch and transformers, loaded or read from the disk while Python's other threads go on."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from core.read_ahead import read_ahead

_NAMES = {"linux": "libtorch.so", "darwin": "libtorch.dylib"}

_READ_AHEAD = (
    "torch/lib/libtorch_python.*",
    "scipy.libs/*openblas*",
    "scipy/.dylibs/*openblas*",
)
"""From the folder that the packages are in: those that extension modules of a few kilobytes bring with them."""
_READ_AHEAD_OF_SYSTEM = ("libcrypto.so.*", "libssl.so.*")
"""Behind Python's own `_ssl`, which transformers imports: from the first folder that has them."""


def load_torch_libraries() -> bool:
    """Have the system load what `import torch` is about to need; with Python's lock given back meanwhile.

    An import keeps the lock while the system loads a library. torch's take a fifth to half a second, in which no other
    thread runs any Python, and a window stands still. The system's own `dlopen`, called through ctypes, does the same
    without the lock; the import then finds the libraries in their place.

    Some need Python's lock while they are loaded. The largest are read from the disk here, which leaves the import the
    part that takes no more than 20 ms: where the disk was asked first, it took 50 to 170. `core.read_ahead` has the
    extension modules themselves.

    To be called in the thread that will import torch, because OpenMP's library is among them (see `core.machine`).

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
                for path in _files_ahead(Path(folder).parent):
                    read_ahead(path)
                return True
    return False


def _files_ahead(packages: Path) -> Iterator[Path]:
    for pattern in _READ_AHEAD:
        yield from packages.glob(pattern)
    own, multiarch = sysconfig.get_config_var("LIBDIR") or "/usr/lib", sysconfig.get_config_var("MULTIARCH") or ""
    for folder in (Path(own), Path("/usr/lib") / multiarch, Path("/usr/lib64")):
        found = [path for pattern in _READ_AHEAD_OF_SYSTEM for path in folder.glob(pattern)]
        if found:
            yield from found
            return
