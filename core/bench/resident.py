"""This process's memory as its own need: without the program's code, and without pages of files that nobody reads."""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path
from typing import NamedTuple

import psutil

_PROCESS = Path("/proc/self")
_DONT_NEED = 4
"""Linux's MADV_DONTNEED: what is in the file anyway leaves this process's memory, and comes back when it is read."""
_WEIGHTS = ".safetensors"


def forget_peak() -> None:
    """Let the highest mark start anew, where the system can; else it is that of the whole process."""
    with contextlib.suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def drop_read_weights() -> None:
    """Send away the pages of weight files that are mapped.

    Loading reads all of a file through such pages, and they stay although the weights were copied from them.
    """
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for mapping in _weight_mappings():
            if not mapping.num_written:  # Those pages would be lost.
                advise(mapping.start, mapping.size, _DONT_NEED)


def private_mb() -> float:
    """Memory of its own that the process holds now, in MB of 10^6 bytes."""
    return _status("RssAnon") or float(psutil.Process().memory_info().rss) / 1e6


def peak_mb() -> float | None:
    """Its own memory at the highest mark, and the pages of weight files in use; None where the system can't tell.

    Pages of files are taken to be as many at the mark as they are now, which holds for the second of two equal runs.
    """
    highest, files = _status("VmHWM"), _status("RssFile")
    if highest is None or files is None:
        return None
    return highest - files + sum(mapping.num_resident for mapping in _weight_mappings()) / 1e6


def _status(key: str) -> float | None:
    with contextlib.suppress(OSError):
        found = re.search(rf"^{key}:\s+(\d+) kB", (_PROCESS / "status").read_text("utf-8", "replace"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024 / 1e6
    return None


class _Mapping(NamedTuple):
    """A mapped file: where, and how many bytes of it are in memory, and were written to by this process."""

    start: int
    size: int
    num_resident: int
    num_written: int


def _weight_mappings() -> list[_Mapping]:
    return mappings_in((_PROCESS / "smaps").read_text("utf-8", "replace")) if (_PROCESS / "smaps").exists() else []


def mappings_in(smaps: str) -> list[_Mapping]:
    """The weight files in the text of /proc/self/smaps."""
    found: list[_Mapping] = []
    is_weights = False
    for line in smaps.splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_weights = line.endswith(_WEIGHTS)
            if is_weights:
                start, end = int(head[1], 16), int(head[2], 16)
                found.append(_Mapping(start, end - start, 0, 0))
        elif is_weights and (count := re.match(r"(Rss|Anonymous):\s+(\d+) kB", line)):
            field = "num_resident" if count[1] == "Rss" else "num_written"
            found[-1] = found[-1]._replace(**{field: int(count[2]) * 1024})
    return found
