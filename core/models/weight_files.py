"""The headers of safetensors files: which tensors there are, and whether the file is whole. Reads no weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import ModelUnreadableError

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
