"""Converts GGUF files: dequantises each file once into a folder of safetensors, which is kept.

A child process does the unpacking, so that a malformed file can crash only that.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import platformdirs

from core.errors import ModelUnreadableError, OutOfMemoryError
from core.files import explain_write_error, new_scratch
from core.models.child_process import ChildFailedError, ChildFailure, Limits, folder_bytes, supervise
from core.models.weight_files import UnpackingPlan, check_file, check_room

_log = logging.getLogger(__name__)

_STALL_S = 600.0
_BASE_MEMORY = 3 * 2**30
"""Bytes for torch, transformers and a large vocabulary, beside the tensors."""
_UNPACKING_SHARE = 0.7
"""Unpacking's share of the time; the rest is writing."""
_THREAD_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Chosen for decoding in this process; not for the child."""

_digests: dict[tuple[Path, int, int], str] = {}


def converted_folder(path: Path, check_cancelled: Callable[[], None] = lambda: None) -> Path:
    """The folder of this .gguf file's converted form, whether it exists yet or not; named by the file's content."""
    state = path.stat()
    key = (path.resolve(), state.st_size, state.st_mtime_ns)
    if key not in _digests:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(2**22):
                check_cancelled()
                digest.update(chunk)
        _digests[key] = digest.hexdigest()
    return _kept() / _digests[key][:32]


def is_converted(path: Path) -> bool:
    """Whether this file has been converted already."""
    return _is_whole(converted_folder(path))


def convert(
    path: Path,
    check_cancelled: Callable[[], None] = lambda: None,
    on_progress: Callable[[float], None] = lambda _share: None,
) -> Path:
    """Dequantise a .gguf file to float32 safetensors, unless already done.

    Args:
        check_cancelled: raises to cancel, within a fraction of a second; leaves nothing behind.
        on_progress: called with the completed share, from 0 to 1.

    Returns:
        A folder that loads like any other model's.

    Raises:
        ModelUnreadableError: a damaged file, one of an unknown architecture, or no room on disk for the result.
        OutOfMemoryError: no room in memory for it.
    """
    conversion = converting(path, check_cancelled)
    with contextlib.closing(conversion):
        while True:
            try:
                on_progress(next(conversion))
            except StopIteration as end:
                return end.value


def converting(path: Path, check_cancelled: Callable[[], None] = lambda: None) -> Generator[float, None, Path]:
    """`convert` in steps: yields the completed share, and returns the folder. Close it to cancel."""
    try:
        plan = check_file(path)
        folder = converted_folder(path, check_cancelled)
        if _is_whole(folder):
            return folder
        scratch = new_scratch(folder.parent, ".converting-")
    except OSError as error:
        raise ModelUnreadableError(explain_write_error(error, path)) from error
    try:
        check_room(path, plan, folder.parent)
        yield from _unpack(path, scratch, plan, check_cancelled)
        try:
            (scratch / "model").rename(folder)
        except OSError:
            if not _is_whole(folder):  # Otherwise another process was faster.
                raise
    except OSError as error:
        raise ModelUnreadableError(explain_write_error(error, folder)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _unpack(
    path: Path, scratch: Path, plan: UnpackingPlan, check_cancelled: Callable[[], None]
) -> Generator[float, None, None]:
    destination = scratch / "model"
    memory = _BASE_MEMORY + 2 * plan.memory_bytes
    child = supervise(
        _command(_alone(path, scratch), destination, memory),
        environment=_environment(),
        limits=Limits(memory, _STALL_S),
        check_cancelled=check_cancelled,
        output=destination,
    )
    unpacked, failure = 0.0, {}
    try:
        for message in child:
            if message is not None and "failure" in message:
                failure = dict(message)
            elif message and isinstance(message.get("done"), int) and isinstance(message.get("total"), int):
                unpacked = max(unpacked, min(1.0, message["done"] / max(1, message["total"])))
            written = min(1.0, folder_bytes(destination) / plan.disk_bytes)
            yield _UNPACKING_SHARE * max(unpacked, float(written > 0)) + (1 - _UNPACKING_SHARE) * written
    except ChildFailedError as error:
        _log.debug("unpacking %s failed: %s", path, error)
        raise _failed(path, error, failure) from error
    finally:
        child.close()
    if not _is_whole(destination):
        raise _unreadable(path, "it was not unpacked whole")


def _command(source: Path, destination: Path, memory_bytes: int) -> list[str]:
    # -P: a folder named `core` in the working directory must not shadow this package.
    return [sys.executable, "-P", "-m", "core.models.gguf_child", str(source), str(destination), str(memory_bytes)]


def _environment() -> dict[str, str]:
    """The child's variables: it finds this package, uses no network, and leaves the GPU alone."""
    environment = {name: value for name, value in os.environ.items() if name not in _THREAD_SETTINGS}
    paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "USE_TF": "0"}
    return environment


def _alone(path: Path, scratch: Path) -> Path:
    """The file in a folder of its own, away from configurations and code that may lie beside it."""
    folder = scratch / "source"
    folder.mkdir()
    for link in (os.symlink, os.link):
        with contextlib.suppress(OSError, NotImplementedError):
            link(path.resolve(), folder / "model.gguf")
            return folder / "model.gguf"
    return path.resolve()


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _failed(path: Path, error: ChildFailedError, sent: dict[str, object]) -> ModelUnreadableError | OutOfMemoryError:
    if error.failure is ChildFailure.MEMORY or sent.get("failure") == "memory":
        return OutOfMemoryError(f"{path.name!r} does not fit in memory unpacked. Choose a smaller model.")
    if error.failure is ChildFailure.STALL:
        return _unreadable(path, f"no progress in {_STALL_S / 60:.0f} minutes")
    if sent.get("failure") == "space":
        return ModelUnreadableError(explain_write_error(OSError(errno.ENOSPC, "No space left"), _kept()))
    if error.failure is ChildFailure.SIGNAL:
        return _unreadable(path, "the process that read it crashed")
    return _unreadable(path, str(sent.get("reason") or error.said[:160] or "it gave no reason"))


def _unreadable(path: Path, reason: str) -> ModelUnreadableError:
    reason = " ".join(reason.split()).rstrip(".")
    return ModelUnreadableError(
        f"{path.name!r} can't be read as a GGUF model ({reason}). Download it again, or choose another file."
    )


def _kept() -> Path:
    return platformdirs.user_cache_path("outrider", appauthor=False) / "gguf"
