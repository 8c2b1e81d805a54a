"""Finds weight files, and reads the headers of safetensors and GGUF files.

gguf's GGUFReader is not used: it trusts every count in the file, and creates an array per vocabulary entry.
"""

from __future__ import annotations

import functools
import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from core.errors import ModelUnreadableError, OutOfMemoryError, first_line, ran_out_of_memory
from core.files import open_regular, read_json

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")

_LARGEST_INDEX = 64 << 20

_TRUNCATED = ("header too small", "invalid header length", "not fully covered")
"""In safetensors' messages about files that end too early."""

_PRECISIONS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool",
}  # fmt: skip


class TensorInfo(NamedTuple):
    """A tensor as a file describes it: its name, shape and precision, and the bytes it takes there."""

    name: str
    shape: tuple[int, ...]
    precision: str
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


# --- safetensors ------------------------------------------------------------------------------------------------


def weight_files(folder: Path, name: str) -> list[Path]:
    """The files that loading reads: model.safetensors, else those named by the index, else all safetensors.

    Raises:
        ModelUnreadableError: one is missing, or there is none.
    """
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if weights := sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_")):
            return weights
        if (folder / "adapter_config.json").is_file():
            raise adapter_error(name)
        refuse_ggufs(folder, name)
        pickled = any(any(folder.glob(pattern)) for pattern in PICKLED)
        reason = (
            "its weights are pickle files, which can run code when they are opened; convert them to safetensors"
            if pickled
            else "it has no .safetensors file; download the model again"
        )
        raise ModelUnreadableError(f"{name!r} can't be loaded: {reason}.")
    try:
        names = sorted({str(file) for file in read_json(index, _LARGEST_INDEX)["weight_map"].values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise ModelUnreadableError(f"The list of weight files of {name!r} can't be read. Download it again.") from None
    for file in names:
        if set(file) & set("/\\:"):
            raise ModelUnreadableError(
                f"The list of weight files of {name!r} names {file!r}, which is not in its folder. Download it again."
            )
        if not (folder / file).is_file():
            raise ModelUnreadableError(
                f"{name!r} is incomplete: {file!r} is missing. Download it again; what is here already is kept."
            )
    return [folder / file for file in names]


def adapter_error(name: str) -> ModelUnreadableError:
    """The error of a folder that holds a LoRA or another adapter alone."""
    return ModelUnreadableError(f"{name!r} is an adapter for another model. Merge it into that model first.")


def refuse_ggufs(folder: Path, name: str) -> None:
    """Raise ModelUnreadableError if a folder holds .gguf files, which are named themselves."""
    if ggufs := sorted(folder.glob("*.gguf")):
        raise ModelUnreadableError(f"{name!r} holds .gguf files. Name one of them, such as {str(ggufs[0])!r}.")


def read_weight_headers(folder: Path, title: str) -> tuple[TensorInfo, ...]:
    """The tensors of a folder's .safetensors files.

    Raises:
        ModelUnreadableError: a file is missing, truncated, or not a safetensors file; the message names `title`.
        OutOfMemoryError: there is too little memory to map a file.
    """
    tensors: dict[str, TensorInfo] = {}
    for path in weight_files(folder, title):
        tensors.update({tensor.name: tensor for tensor in _read_header(path, title)})
    return tuple(tensors.values())


def _read_header(path: Path, title: str) -> list[TensorInfo]:
    from safetensors import SafetensorError, safe_open

    try:
        open_regular(path).close()  # The library would wait for a pipe, and hear no signal.
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return [_tensor(name, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()]
    except (OSError, SafetensorError) as error:
        if ran_out_of_memory(error):
            raise OutOfMemoryError(
                f"Out of memory: {path.name} of {title} was not read. Close other programs."
            ) from error
        if isinstance(error, OSError):
            problem = f"can't be read ({error.strerror or first_line(error)})"  # The library's own have no `strerror`.
        else:
            is_truncated = any(words in str(error) for words in _TRUNCATED)
            problem = "is truncated: a part of the file is missing" if is_truncated else "has a damaged header"
    raise ModelUnreadableError(f"{path.name} of {title} {problem}. Download the model again.")


def _tensor(name: str, shape: tuple[int, ...], dtype: str) -> TensorInfo:
    bits = re.search(r"\d+", dtype)  # BF16 and F8_E4M3 begin with their size; BOOL takes a byte.
    num_bytes = math.prod(shape) * (int(bits[0]) if bits else 8) // 8
    return TensorInfo(name, shape, _PRECISIONS.get(dtype, dtype.lower()), num_bytes)


# --- GGUF -------------------------------------------------------------------------------------------------------

_MAX_PAIRS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_STRING = 16 << 20  # bytes
_MAX_ITEMS = 1 << 22  # of all arrays together
_MAX_HEADER = 512 << 20  # bytes
_MAX_DIMENSIONS = 4
_MAX_SIDE = 2**31

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _TruncatedError(Exception):
    """The file ends too early."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A .gguf file's header: `fields` by key, arrays as tuples, and its tensors."""

    fields: dict[str, Any] = field(repr=False)
    tensors: tuple[TensorInfo, ...] = field(repr=False)

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def number(self, *keys: str) -> int:
        """The first positive number below the architecture's own prefix, such as `block_count`; 0 if there is none."""
        return positive_number(self.fields, *(f"{self.architecture}.{key}" for key in keys))


def positive_number(fields: Mapping[str, Any], *names: str) -> int:
    """The first of these fields that is a positive integer; of an array its largest item, and 0 if there is none."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, tuple):
            value = max((item for item in value if type(item) is int), default=None)
        if type(value) is int and 0 < value < 1 << 64:
            return value
    return 0


def read_gguf_header(path: Path) -> GgufHeader:
    """Read a file's header; cached until the file changes.

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
    except (struct.error, KeyError, ValueError, OverflowError, MemoryError):
        raise _not_gguf(path) from None
    except OSError as error:
        raise ModelUnreadableError(f"{path.name!r} can't be read ({error.strerror or type(error).__name__}).") from None


def _not_gguf(path: Path) -> ModelUnreadableError:
    return ModelUnreadableError(f"{path.name!r} is not a GGUF file, or is damaged. Download it again.")


@functools.lru_cache(maxsize=4)  # Tens of megabytes each.
def _read(path: Path, size: int, _modified_ns: int) -> GgufHeader:
    with open_regular(path) as file:
        return _Reader(file, size).header()


class _Reader:
    """Reads a header in bounded memory and time; raises ValueError or KeyError if malformed."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._left = min(size, _MAX_HEADER)
        self._items_left = _MAX_ITEMS

    def header(self) -> GgufHeader:
        # Version 1 counted in 32 bits; a file of the other byte order shows as a huge version.
        if self._take(4) != b"GGUF" or self._scalar("I") not in {2, 3}:
            raise ValueError
        num_tensors, num_pairs = self._scalar("Q"), self._scalar("Q")
        if num_tensors > _MAX_TENSORS or num_pairs > _MAX_PAIRS:
            raise ValueError
        fields = {}
        for _ in range(num_pairs):
            key = self._string()
            fields[key] = self._value(self._scalar("I"))
        described = [self._tensor() for _ in range(num_tensors)]
        alignment = fields.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise ValueError
        start = -(-self._file.tell() // alignment) * alignment
        if any(start + offset + tensor.num_bytes > self._size for tensor, offset in described):
            raise _TruncatedError
        return GgufHeader(fields, tuple(tensor for tensor, _ in described))

    def _take(self, count: int) -> bytes:
        if count > self._left:
            raise _TruncatedError if self._size < _MAX_HEADER else ValueError
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
            raise ValueError
        return self._take(length).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        item_kind, count = self._scalar("I"), self._scalar("Q")
        self._items_left -= count
        if self._items_left < 0:
            raise ValueError
        if item_kind == _STRING:
            return tuple(self._string() for _ in range(count))
        code = _SCALARS[item_kind]  # Arrays of arrays, which no model has, are rejected as an unknown type.
        return struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize(f"<{code}")))

    def _tensor(self) -> tuple[TensorInfo, int]:
        """A tensor and its offset after the header; its dimensions are stored last to first."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name, num_dimensions = self._string(), self._scalar("I")
        if num_dimensions > 2 * _MAX_DIMENSIONS:
            raise ValueError
        shape = tuple(self._scalar("Q") for _ in range(num_dimensions))[::-1]
        kind = GGMLQuantizationType(self._scalar("I"))
        block, block_bytes = GGML_QUANT_SIZES[kind]
        offset = self._scalar("Q")
        precision = _PRECISIONS[kind.name] if kind.name in ("F64", "F32", "F16", "BF16") else kind.name
        return TensorInfo(name, shape, precision, math.prod(shape) // block * block_bytes), offset


# --- Before a GGUF file is unpacked -----------------------------------------------------------------------------


def check_gguf(path: Path) -> int:
    """Check a file's header against its size; returns the bytes that its tensors take as float32.

    Raises:
        ModelUnreadableError: a damaged file, one part of several, or no language model.
    """
    header = read_gguf_header(path)
    num_parts = header.fields.get("split.count")
    if type(num_parts) is int and num_parts > 1:
        raise ModelUnreadableError(
            f"{path.name!r} is one of {num_parts} parts of a model. Merge the parts into one file, or choose another."
        )
    if not header.architecture or not header.tensors:
        raise ModelUnreadableError(f"{path.name!r} contains no language model. Choose another file.")
    if not _is_plausible(header, path.stat().st_size):
        raise _not_gguf(path)
    return 4 * sum(tensor.num_elements for tensor in header.tensors)


def _is_plausible(header: GgufHeader, size: int) -> bool:
    """Whether the file is large enough for everything in its header."""
    tensors = header.tensors
    if any(not 0 < side <= _MAX_SIDE for tensor in tensors for side in tensor.shape):
        return False
    if any(len(tensor.shape) > _MAX_DIMENSIONS or tensor.num_bytes == 0 for tensor in tensors):
        return False
    # Tensors that overlap, or that share a name, would unpack to many times the file.
    if sum(tensor.num_bytes for tensor in tensors) > size or len({tensor.name for tensor in tensors}) < len(tensors):
        return False
    # The model is built before its tensors are read: more blocks than tensors could take forever.
    return header.number("block_count") <= len(tensors)
