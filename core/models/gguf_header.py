"""The header of a GGUF file: its key-value pairs and the tensors that follow. Reads no weights.

Every count, length and depth has a limit, and nothing is mapped into memory: a malformed file is a sentence.
"""

from __future__ import annotations

import functools
import math
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from core.errors import ModelUnreadableError
from core.models.weight_files import TensorInfo

_MAX_PAIRS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_STRING = 16 << 20  # bytes
_MAX_ITEMS = 1 << 22  # of all arrays together
_MAX_HEADER = 512 << 20  # bytes
_MAX_DIMENSIONS = 8

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
        if num_dimensions > _MAX_DIMENSIONS:
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
