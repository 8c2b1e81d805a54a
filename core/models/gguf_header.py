"""The head of a GGUF file, read with a bound on everything: no count or length in it is believed before it is checked.

The format: magic, version, the numbers of tensors and of keys, the keys with their values, a description of each
tensor, and, from the next aligned position on, the tensors' data. All little-endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from core.errors import ModelUnreadableError

MAX_TENSORS = 65_536
MAX_KEYS = 65_536
MAX_NAME_BYTES = 65_535
MAX_STRING_BYTES = 16 * 2**20
"""The longest value of text; chat templates are the longest that there are, at some tens of kilobytes."""
MAX_ARRAY_ITEMS = 4 * 2**20
"""All arrays together; the largest vocabularies have some 260,000 tokens and twice as many merges."""
MAX_DIMENSIONS = 4
MAX_SIDE = 2**31

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_DEFAULT_ALIGNMENT = 32
_UNPACKED_BYTES = 4  # float32


class GgufArray(NamedTuple):
    """What is kept of an array: how many items it has. The vocabulary's size is that of `tokenizer.ggml.tokens`."""

    num_items: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor's description: its name, its sides, how its numbers are packed, and where. Sizes in bytes."""

    name: str
    shape: tuple[int, ...]
    packing: str
    offset: int
    size_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself.

    Attributes:
        metadata: values by key; an array is a `GgufArray`.
        tensors: their descriptions, in the order of the file.
        size_bytes: of the whole file.
    """

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    size_bytes: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def num_parameters(self) -> int:
        return sum(tensor.num_elements for tensor in self.tensors)

    @property
    def unpacked_bytes(self) -> int:
        """What its tensors take in float32."""
        return _UNPACKED_BYTES * self.num_parameters

    def architecture_value(self, name: str) -> Any:
        """The value of a key that is prefixed with the architecture, such as `block_count`; None where it is absent."""
        return self.metadata.get(f"{self.architecture}.{name}")


class _DamagedError(Exception):
    """Says in a few words what does not add up."""


def read_header(path: Path) -> GgufHeader:
    """Read and check what stands before the tensors, and that the tensors' data is all there.

    Takes a fraction of a second, whatever the file holds.

    Raises:
        ModelUnreadableError: a file that is torn, damaged, absurd, one part of several, or that can't be opened.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            header = _Reader(file, size).header()
    except OSError as error:
        raise ModelUnreadableError(
            f"{path.name!r} can't be opened ({error.strerror or error}). Check its permissions, or choose another file."
        ) from error
    except _DamagedError as error:
        raise ModelUnreadableError(
            f"{path.name!r} is damaged or incomplete ({error}). Download it again, or choose another file."
        ) from None
    _check_kind(path, header)
    return header


def _check_kind(path: Path, header: GgufHeader) -> None:
    num_parts = header.metadata.get("split.count")
    if isinstance(num_parts, int) and num_parts > 1:
        raise ModelUnreadableError(
            f"{path.name!r} is one of {num_parts} parts of a model. Join the parts to one file, or choose another."
        )
    if not header.architecture or not header.tensors:
        raise ModelUnreadableError(f"{path.name!r} holds no language model. Choose another file.")


class _Reader:
    """Reads values in order, never past the end of the file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size
        self._items_left = MAX_ARRAY_ITEMS

    def header(self) -> GgufHeader:
        if self._take(4) != _MAGIC:
            raise _DamagedError("it does not begin as a GGUF file does")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise _DamagedError(f"its version is {version}, and versions 2 and 3 can be read")
        num_tensors = self._count("<Q", MAX_TENSORS, "tensors")
        num_keys = self._count("<Q", MAX_KEYS, "keys")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text(MAX_NAME_BYTES)
            if key in metadata:
                raise _DamagedError(f"its key {_shown(key)} stands there twice")
            metadata[key] = self._value(self._number("<I"))
        tensors = tuple(self._tensor() for _ in range(num_tensors))
        self._check_data(tensors, metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        return GgufHeader(metadata, tensors, self._size)

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise _DamagedError("it ends too early")
        return data

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _count(self, form: str, most: int, what: str) -> int:
        count = int(self._number(form))
        if count > most:
            raise _DamagedError(f"it claims {count:,} {what}")
        return count

    def _text(self, most: int) -> str:
        return self._take(self._count("<Q", most, "bytes of text")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text(MAX_STRING_BYTES)
        if kind == _ARRAY:
            return self._array()
        raise _DamagedError(f"it has a value of the unknown type {kind}")

    def _array(self) -> GgufArray:
        kind = self._number("<I")
        count = self._count("<Q", self._items_left, "items in a list")
        self._items_left -= count
        if kind in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _STRING:
            for _ in range(count):
                self._skip(self._count("<Q", MAX_STRING_BYTES, "bytes of text"))
        else:
            raise _DamagedError(f"it has a list of values of the unknown type {kind}")
        return GgufArray(count)

    def _skip(self, count: int) -> None:
        # Short stretches are cheaper to read than to seek over, which would throw the buffer away.
        if count < 4096:
            self._take(count)
        elif self._file.tell() + count > self._size:
            raise _DamagedError("it ends too early")
        else:
            self._file.seek(count, 1)

    def _tensor(self) -> GgufTensor:
        name = self._text(MAX_NAME_BYTES)
        shape = tuple(
            self._count("<Q", MAX_SIDE, "numbers along a side of a tensor")
            for _ in range(self._count("<I", MAX_DIMENSIONS, "sides of a tensor"))
        )
        packing, block, block_bytes = _packing(self._number("<I"))
        num_elements = math.prod(shape)
        if num_elements == 0 or num_elements % block:
            raise _DamagedError(f"its tensor {_shown(name)} has an impossible shape")
        return GgufTensor(name, shape, packing, self._number("<Q"), num_elements // block * block_bytes)

    def _check_data(self, tensors: tuple[GgufTensor, ...], alignment: Any) -> None:
        """Every tensor lies within the file, and no stretch of it serves for two."""
        if type(alignment) is not int or not 0 < alignment <= 2**16 or alignment & (alignment - 1):
            raise _DamagedError(f"its alignment is {_shown(str(alignment))}")
        start = -(-self._file.tell() // alignment) * alignment
        end, names = 0, set()
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            if tensor.name in names:
                raise _DamagedError(f"its tensor {_shown(tensor.name)} stands there twice")
            names.add(tensor.name)
            if tensor.offset < end or tensor.offset % alignment:
                raise _DamagedError(f"its tensor {_shown(tensor.name)} has an impossible place")
            end = tensor.offset + tensor.size_bytes
            if start + end > self._size:
                raise _DamagedError(f"it ends within the tensor {_shown(tensor.name)}")


def _packing(number: int) -> tuple[str, int, int]:
    """Name, numbers in a block, and bytes of a block."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(number)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    except (KeyError, ValueError):
        raise _DamagedError(f"it has a tensor of the unknown type {number}") from None
    return kind.name, block, block_bytes


def _shown(text: str) -> str:
    """Somebody else's text, fit to stand in a sentence of one line."""
    return repr(text if len(text) <= 60 else f"{text[:59]}…")
