"""What is asked of a GGUF file before any of its tensors is unpacked."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from core.errors import ModelUnreadableError, OutOfMemoryError
from core.models.gguf_header import GgufHeader, read_gguf_header
from core.models.sizes import in_words

UNPACKED_BYTES = 4
"""Bytes that a number takes unpacked, as float32."""

_MAX_SIDE = 2**31
_MAX_DIMENSIONS = 4
_SPARE_DISK = 2**28
_SPARE_MEMORY = 2**30
"""For Python, torch and transformers."""


@dataclass(frozen=True, slots=True)
class UnpackingPlan:
    """What unpacking a file will take, in bytes: on disk, and in the memory of the process that does it."""

    disk_bytes: int
    memory_bytes: int


def check_file(path: Path) -> UnpackingPlan:
    """Check a file's size and header. Nothing that it claims is believed before it is held against its size.

    Raises:
        ModelUnreadableError: a damaged file, one part of several, or no language model.
    """
    header = read_gguf_header(path)
    size = path.stat().st_size
    _check_kind(path, header)
    if not _is_plausible(header, size):
        raise ModelUnreadableError(f"{path.name!r} is not a GGUF file, or is damaged. Download it again.")
    unpacked = UNPACKED_BYTES * sum(tensor.num_elements for tensor in header.tensors)
    # The file's pages count as memory while they are read; a tensor is there twice while it is unpacked.
    return UnpackingPlan(disk_bytes=unpacked, memory_bytes=unpacked + size)


def check_room(path: Path, plan: UnpackingPlan, folder: Path) -> None:
    """Whether there is room to unpack a file into `folder`.

    Raises:
        ModelUnreadableError: too little free space on disk.
        OutOfMemoryError: too little free memory.
    """
    free = shutil.disk_usage(folder).free
    if plan.disk_bytes + _SPARE_DISK > free:
        raise ModelUnreadableError(
            f"{path.name!r} takes {in_words(plan.disk_bytes)} unpacked, and {in_words(free)} is free on the disk of "
            f"{str(folder)!r}. Free some space, or choose a smaller model."
        )
    available = psutil.virtual_memory().available + psutil.swap_memory().free
    if plan.disk_bytes + _SPARE_MEMORY > available:
        raise OutOfMemoryError(
            f"{path.name!r} takes {in_words(plan.disk_bytes)} unpacked, and {in_words(available)} of memory is free. "
            "Close other programs, or choose a smaller model."
        )


def _check_kind(path: Path, header: GgufHeader) -> None:
    num_parts = header.fields.get("split.count")
    if type(num_parts) is int and num_parts > 1:
        raise ModelUnreadableError(
            f"{path.name!r} is one of {num_parts} parts of a model. Join the parts to one file, or choose another."
        )
    if not header.architecture or not header.tensors:
        raise ModelUnreadableError(f"{path.name!r} holds no language model. Choose another file.")


def _is_plausible(header: GgufHeader, size: int) -> bool:
    """Whether nothing in the header would make more of the file than there is in it."""
    tensors = header.tensors
    if any(not 0 < side <= _MAX_SIDE for tensor in tensors for side in tensor.shape):
        return False
    if any(len(tensor.shape) > _MAX_DIMENSIONS or tensor.num_bytes == 0 for tensor in tensors):
        return False
    # Tensors that lie over each other, or twice under one name, would unpack to many times the file.
    if sum(tensor.num_bytes for tensor in tensors) > size or len({tensor.name for tensor in tensors}) < len(tensors):
        return False
    # A model is built before its tensors are looked for: one of more blocks than tensors could have no end.
    return (header.number("block_count") or 0) <= len(tensors)
