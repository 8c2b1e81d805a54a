"""Converts GGUF files: dequantises each file once into a folder of safetensors, which is kept.

A child process does the unpacking, so that a malformed file can crash only that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import platformdirs

from core.errors import ModelUnreadableError, NoSpaceError, OutOfMemoryError
from core.files import explain_write_error, file_digest, folder_bytes, read_json, require_space, scratch_folder
from core.models.child import STALL_S, ChildExit, ChildFailedError, python_module, supervise
from core.models.folder.details import read_config
from core.models.folder.weight_files import check_gguf, read_weight_headers
from core.text import bytes_text

_log = logging.getLogger(__name__)

_BASE_MEMORY = 3 * 2**30
"""Bytes for torch, transformers and a large vocabulary, beside the tensors."""
_SPARE_MEMORY = 2**30
_THREAD_MEMORY = 2**27
_SLOWEST_RATE = 10_000_000
"""Bytes of float32 that any machine unpacks and writes per second of processor time."""
_UNPACKING_SHARE = 0.7
"""Unpacking's share of the time; the rest is writing."""
_SIZES = "sizes-5.json"
"""Written last: the sizes of a conversion's other files by name. Another number makes all conversions anew."""

_DOWNLOAD_AGAIN = "Download it again, or choose another file."

_digests: dict[tuple[Path, int, int], str] = {}


def converted_folder(path: Path, check_cancelled: Callable[[], None] = lambda: None) -> Path:
    """The folder of this .gguf file's converted form, whether it exists yet or not; named by the file's content."""
    state = path.stat()
    key = (path.resolve(), state.st_size, state.st_mtime_ns)
    if key not in _digests:
        _digests[key] = file_digest(path, check_cancelled)
    return _kept() / _digests[key][:32]


def is_converted(path: Path) -> bool:
    """Whether this file has been converted already."""
    return _is_whole(converted_folder(path))


def convert(path: Path, check_cancelled: Callable[[], None] = lambda: None) -> Path:
    """Dequantise a .gguf file, unless already done; returns a folder that loads like any other model's.

    See `converting`, which reports its progress.
    """
    steps = converting(path, check_cancelled)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def converting(path: Path, check_cancelled: Callable[[], None]) -> Generator[float, None, Path]:
    """Dequantise a .gguf file to float32 safetensors, unless already done; returns its `converted_folder`.

    `check_cancelled` raises to cancel, within a fraction of a second; nothing is left behind.

    Yields:
        The completed share, from 0 to 1.

    Raises:
        ModelUnreadableError: a damaged file, or one of an unknown architecture.
        NoSpaceError, OutOfMemoryError: no room for the result, on disk or in memory.
    """
    num_bytes = check_gguf(path)
    folder = _kept()
    try:
        folder = converted_folder(path, check_cancelled)
        if not _is_whole(folder):
            with scratch_folder(folder.parent, ".converting-") as scratch:
                yield from _unpack(path, scratch, num_bytes, check_cancelled)
                if not _is_whole(folder):  # Otherwise another process was faster.
                    # What is there may have been cut short, such as by a power failure.
                    if folder.exists():
                        shutil.rmtree(folder, ignore_errors=True)
                    (scratch / "model").rename(folder)
    except OSError as error:
        raise ModelUnreadableError(explain_write_error(error, folder)) from error
    return folder


def _unpack(
    path: Path, scratch: Path, num_bytes: int, check_cancelled: Callable[[], None]
) -> Generator[float, None, None]:
    require_space(f"{path.name!r} unpacked", num_bytes, scratch, "choose a smaller model")
    from core.models.devices import available_memory

    available = available_memory(with_swap=True)
    if num_bytes + _SPARE_MEMORY > available:
        raise OutOfMemoryError(
            f"{path.name!r} needs {bytes_text(num_bytes)} unpacked, but only {bytes_text(available)} of memory is "
            "free. Close other programs, or choose a smaller model."
        )
    # A tensor exists twice while it is unpacked, and the file's pages count as memory while they are read.
    memory = _BASE_MEMORY + 2 * (num_bytes + path.stat().st_size)
    # Addresses that the allocator reserves for each thread; the child limits addresses, and the parent what is used.
    reserved = (os.cpu_count() or 1) * _THREAD_MEMORY
    child = supervise(
        _command(_alone(path, scratch), scratch, memory + reserved, round(STALL_S + num_bytes / _SLOWEST_RATE)),
        folder=scratch,
        memory_bytes=memory,
        check_cancelled=check_cancelled,
    )
    with contextlib.closing(child):
        try:
            for _ in child:
                written = min(1.0, folder_bytes(scratch / "model") / num_bytes)
                unpacked = max(_unpacked_share(scratch), float(written > 0))
                yield _UNPACKING_SHARE * unpacked + (1 - _UNPACKING_SHARE) * written
        except ChildFailedError as error:
            _log.debug("unpacking %s failed: %s", path, error)
            raise _explain(error, path) from error
    if not _is_model(scratch / "model"):
        raise _unreadable(path, "it was not unpacked completely")
    (scratch / "model" / _SIZES).write_text(json.dumps(_sizes(scratch / "model")), "utf-8")


def _command(source: Path, scratch: Path, memory_bytes: int, seconds: int) -> list[str]:
    return python_module("core.models.folder.gguf_child", source, scratch, str(memory_bytes), str(seconds))


def _alone(path: Path, scratch: Path) -> Path:
    """The file in a folder of its own, away from configurations and code that may lie beside it."""
    folder = scratch / "source"
    folder.mkdir()
    for link in (os.symlink, os.link):
        with contextlib.suppress(OSError, NotImplementedError):
            link(path.resolve(), folder / "model.gguf")
            return folder / "model.gguf"
    return path.resolve()


def _unpacked_share(scratch: Path) -> float:
    """The share of the tensors that are unpacked, from the last line that the child wrote."""
    with contextlib.suppress(OSError, ValueError, IndexError, ZeroDivisionError):
        done, total = (scratch / "progress").read_text("utf-8").splitlines()[-1].split()
        return min(1.0, int(done) / int(total))
    return 0.0


def _is_whole(folder: Path) -> bool:
    """Whether a conversion is as it was when it ended; one of an older version has no such list."""
    try:
        return _sizes(folder).items() >= read_json(folder / _SIZES).items() and _is_model(folder)
    except (OSError, ValueError, AttributeError):
        return False


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def _is_model(folder: Path) -> bool:
    try:
        read_config(folder)
        return (folder / "tokenizer_config.json").is_file() and bool(read_weight_headers(folder, folder.name))
    except ModelUnreadableError:
        return False


def _explain(error: ChildFailedError, path: Path) -> ModelUnreadableError | NoSpaceError | OutOfMemoryError:
    if error.code == ChildExit.MEMORY:
        return OutOfMemoryError(f"{path.name!r} does not fit in memory unpacked. Choose a smaller model.")
    if error.code == ChildExit.SPACE:
        return NoSpaceError(f"The disk is full, so {path.name!r} could not be unpacked. Free some space.")
    if error.code == ChildExit.STALLED:
        return _unreadable(path, f"no progress in {STALL_S / 60:.0f} minutes")
    if not 0 <= error.code < 2**31:  # Windows has codes such as 0xC0000005.
        return _unreadable(path, "the process that read it crashed")
    advice = "Choose another file." if error.code == ChildExit.UNSUPPORTED else _DOWNLOAD_AGAIN
    return _unreadable(path, error.last_line[:160] or "it gave no reason", advice)


def _unreadable(path: Path, reason: str, advice: str = _DOWNLOAD_AGAIN) -> ModelUnreadableError:
    reason = " ".join(reason.split()).rstrip(".")
    return ModelUnreadableError(f"{path.name!r} can't be read as a GGUF model ({reason}). {advice}")


def _kept() -> Path:
    return platformdirs.user_cache_path("outrider", appauthor=False) / "gguf"
