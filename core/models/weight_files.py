"""What is asked of a GGUF file before any of its tensors is unpacked."""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import psutil

from core.errors import ModelUnreadableError, OutOfMemoryError
from core.text import in_words

_LONGEST_HEADER = 100 * 2**20
"""Bytes; the limit that the format's own library has."""

_PRECISIONS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


class TensorInfo(NamedTuple):
    """A tensor as a file describes it: its name, shape and precision, and the bytes it takes there."""

    name: str
    shape: tuple[int, ...]
    precision: str
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def read_weight_headers(folder: Path, title: str) -> tuple[TensorInfo, ...]:
    """The tensors of a folder's .safetensors files.

    Args:
        folder: of the model.
        title: what the model is called in an error.

    Raises:
        ModelUnreadableError: a file is missing, truncated, or no safetensors file.
    """
    tensors: dict[str, TensorInfo] = {}
    for path in _weight_files(folder, title):
        tensors.update({tensor.name: tensor for tensor in _read_header(path, title)})
    return tuple(tensors.values())


def _weight_files(folder: Path, title: str) -> list[Path]:
    """The files that loading would read: one model.safetensors, else all that its index names."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file() or not index.is_file():
        single = folder / "model.safetensors"
        found = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
        if not found:
            raise ModelUnreadableError(f"{title} has no .safetensors file. Download it again.")
        return found
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        paths = [folder / name for name in names]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ModelUnreadableError(
            f"The list of the weight files of {title} can't be read. Download it again."
        ) from None
    for path in paths:
        if not path.is_file():
            raise ModelUnreadableError(
                f"{title} lacks its weight file {path.name!r}, one of {len(paths)}. Download the model again."
            )
    return paths


def _read_header(path: Path, title: str) -> list[TensorInfo]:
    """Eight bytes of length, then JSON: name -> dtype, shape and [begin, end) behind the header."""
    again = "Download the model again."
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _LONGEST_HEADER:
                raise ModelUnreadableError(f"{path.name} of {title} is not a safetensors file. {again}")
            content = file.read(length)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelUnreadableError(f"{path.name} of {title} can't be read ({reason}). {again}") from None
    truncated = f"{path.name} of {title} is truncated: a part of the file is missing. {again}"
    if size <= 8 or size < 8 + length:
        raise ModelUnreadableError(truncated)
    try:
        entries = {name: entry for name, entry in json.loads(content).items() if name != "__metadata__"}
        tensors = [_tensor(name, entry) for name, entry in entries.items()]
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ModelUnreadableError(f"The header of {path.name} of {title} is damaged. {again}") from None
    if size < 8 + length + end:
        raise ModelUnreadableError(truncated)
    return tensors


def _tensor(name: str, entry: Mapping[str, Any]) -> TensorInfo:
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if any(type(number) is not int or not 0 <= number < 1 << 48 for number in (*shape, begin, end)) or begin > end:
        raise ValueError(name)
    dtype = str(entry["dtype"])
    return TensorInfo(name, shape, _PRECISIONS.get(dtype, dtype.lower()), end - begin)


_MAX_PAIRS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_STRING = 16 << 20  # bytes
_MAX_ITEMS = 1 << 22  # of all arrays together
_MAX_HEADER = 512 << 20  # bytes
_GGUF_HEADER_MAX_DIMENSIONS = 8

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _MalformedError(Exception):
    """The file is not what its format says."""


class _TruncatedError(Exception):
    """The file ends too early."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a .gguf file says of itself: `fields` by their keys, arrays as tuples, and its tensors."""

    fields: dict[str, Any] = field(repr=False)
    tensors: tuple[TensorInfo, ...] = field(repr=False)

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def number(self, key: str) -> int | None:
        """An integer below the architecture's own prefix, such as `block_count`; the largest of one that varies."""
        value = self.fields.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple):
            value = max((item for item in value if type(item) is int), default=None)
        return value if type(value) is int and value > 0 else None


def read_gguf_header(path: Path) -> GgufHeader:
    """Read a file's header; kept until the file changes.

    Raises:
        ModelUnreadableError: the file is missing, truncated or malformed.
    """
    try:
        state = os.stat(path)
        return _read(path, state.st_size, state.st_mtime_ns)
    except _TruncatedError:
        raise ModelUnreadableError(
            f"{path.name!r} is truncated: a part of the file is missing. Download it again."
        ) from None
    except (_MalformedError, struct.error, KeyError, ValueError, OverflowError, MemoryError):
        raise ModelUnreadableError(f"{path.name!r} is not a GGUF file, or is damaged. Download it again.") from None
    except OSError as error:
        raise ModelUnreadableError(f"{path.name!r} can't be read ({error.strerror or type(error).__name__}).") from None


@functools.lru_cache(maxsize=4)  # Tens of megabytes each.
def _read(path: Path, size: int, _modified_ns: int) -> GgufHeader:
    with path.open("rb") as file:
        return _Reader(file, size).header()


class _Reader:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._left = min(size, _MAX_HEADER)
        self._items_left = _MAX_ITEMS

    def header(self) -> GgufHeader:
        if self._take(4) != b"GGUF":
            raise _MalformedError
        version = self._scalar("I")
        if version not in {2, 3}:  # The first counted in 32 bits; one read from the wrong end is a huge number.
            raise _MalformedError
        num_tensors, num_pairs = self._scalar("Q"), self._scalar("Q")
        if num_tensors > _MAX_TENSORS or num_pairs > _MAX_PAIRS:
            raise _MalformedError
        fields = {}
        for _ in range(num_pairs):
            key = self._string()
            fields[key] = self._value(self._scalar("I"))
        described = [self._tensor() for _ in range(num_tensors)]
        alignment = fields.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise _MalformedError
        start = -(-self._file.tell() // alignment) * alignment
        if any(start + offset + tensor.num_bytes > self._size for tensor, offset in described):
            raise _TruncatedError
        return GgufHeader(fields, tuple(tensor for tensor, _ in described))

    def _take(self, count: int) -> bytes:
        if count > self._left:
            raise _TruncatedError if self._size < _MAX_HEADER else _MalformedError
        self._left -= count
        data = self._file.read(count)
        if len(data) != count:
            raise _TruncatedError
        return data

    def _scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

    def _string(self) -> str:
        length = self._scalar("Q")
        if length > _MAX_STRING:
            raise _MalformedError
        return self._take(length).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item_kind, count = self._scalar("I"), self._scalar("Q")
            self._items_left -= count
            if self._items_left < 0:
                raise _MalformedError
            if item_kind == _STRING:
                return tuple(self._string() for _ in range(count))
            code = self._code(item_kind)
            return struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize(f"<{code}")))
        return self._scalar(self._code(kind))

    @staticmethod
    def _code(kind: int) -> str:
        # Arrays of arrays, which no model's header has, are refused with the unknown kinds.
        if kind not in _SCALARS:
            raise _MalformedError
        return _SCALARS[kind]

    def _tensor(self) -> tuple[TensorInfo, int]:
        """A tensor and where it begins behind the header; its dimensions are written from the last to the first."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name, num_dimensions = self._string(), self._scalar("I")
        if num_dimensions > _GGUF_HEADER_MAX_DIMENSIONS:
            raise _MalformedError
        shape = tuple(self._scalar("Q") for _ in range(num_dimensions))[::-1]
        kind = GGMLQuantizationType(self._scalar("I"))
        block, block_bytes = GGML_QUANT_SIZES[kind]
        offset = self._scalar("Q")
        num_bytes = math.prod(shape) // block * block_bytes
        return TensorInfo(name, shape, _precision(kind.name), num_bytes), offset


def _precision(name: str) -> str:
    """float32 and its like by torch's names, quantisations by their own."""
    return {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(name, name)


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
