"""GGUF files, read by dequantising them once into a folder of safetensors that is kept.

The unpacking runs in a process of its own that is watched and can be killed: a malformed file costs that process, not
the app.
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
"""What torch, transformers and a large vocabulary take beside the tensors, generously."""
_UNPACKING_SHARE = 0.7
"""Of the time; the rest is writing."""
_PARENTS_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""How this process' threads wait, which is for decoding."""

_digests: dict[tuple[Path, int, int], str] = {}


def converted_folder(path: Path, check_cancelled: Callable[[], None] = lambda: None) -> Path:
    """Where the converted form of this .gguf file is, or will be, kept: named by its content."""
    return _kept() / _digest(path, check_cancelled)[:32]


def is_converted(path: Path) -> bool:
    """Whether this file's converted form is kept already."""
    return _is_whole(converted_folder(path))


def convert(
    path: Path,
    check_cancelled: Callable[[], None] = lambda: None,
    on_progress: Callable[[float], None] | None = None,
) -> Path:
    """Dequantise a .gguf file to float32 safetensors, unless that was done before.

    Args:
        path: of the file.
        check_cancelled: raises to give up, within a fraction of a second; nothing is left behind.
        on_progress: told now and then which share is done, from 0 to 1.

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
                share = next(conversion)
            except StopIteration as end:
                return end.value
            if on_progress is not None:
                on_progress(share)


def converting(path: Path, check_cancelled: Callable[[], None] = lambda: None) -> Generator[float, None, Path]:
    """The same in steps: yields the share that is done, and returns the folder. Closing it gives up."""
    try:
        plan = check_file(path)
        folder = converted_folder(path, check_cancelled)
        if _is_whole(folder):
            return folder
        scratch = new_scratch(folder.parent, ".converting-")
    except OSError as error:
        raise _unusable(error, path) from error
    try:
        check_room(path, plan, folder.parent)
        yield from _unpack(path, scratch, plan, check_cancelled)
        _keep(scratch / "model", folder)
    except OSError as error:
        raise _unusable(error, folder) from error
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
    unpacked, told = 0.0, {}
    try:
        for message in child:
            if message is None:
                pass
            elif "failure" in message:
                told = dict(message)
            elif isinstance(message.get("done"), int) and isinstance(message.get("total"), int):
                unpacked = max(unpacked, min(1.0, message["done"] / max(1, message["total"])))
            written = min(1.0, folder_bytes(destination) / plan.disk_bytes)
            yield _UNPACKING_SHARE * max(unpacked, float(written > 0)) + (1 - _UNPACKING_SHARE) * written
    except ChildFailedError as error:
        _log.debug("unpacking %s failed: %s", path, error)
        raise _failed(path, error, told) from error
    finally:
        child.close()
    if not _is_whole(destination):
        raise ModelUnreadableError(_unreadable(path, "it was not unpacked whole"))


def _command(source: Path, destination: Path, memory_bytes: int) -> list[str]:
    # Without -P, a folder called `core` where the app was started would be taken for this one.
    return [sys.executable, "-P", "-m", "core.models.gguf_child", str(source), str(destination), str(memory_bytes)]


def _environment() -> dict[str, str]:
    """The child's: this package can be found, nothing is fetched, no GPU is woken."""
    environment = {name: value for name, value in os.environ.items() if name not in _PARENTS_CHOICES}
    paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "USE_TF": "0"}
    return environment


def _alone(path: Path, scratch: Path) -> Path:
    """The file in a folder of its own, where no configuration or code beside it is taken for its own."""
    folder = scratch / "source"
    folder.mkdir()
    for link in (os.symlink, os.link):
        with contextlib.suppress(OSError, NotImplementedError):
            link(path.resolve(), folder / "model.gguf")
            return folder / "model.gguf"
    return path.resolve()


def _keep(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not _is_whole(folder):  # If it is, another process was faster.
            raise


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _failed(path: Path, error: ChildFailedError, told: dict[str, object]) -> ModelUnreadableError | OutOfMemoryError:
    if error.failure is ChildFailure.MEMORY or told.get("failure") == "memory":
        return OutOfMemoryError(f"{path.name!r} does not fit in memory unpacked. Choose a smaller model.")
    if error.failure is ChildFailure.STALL:
        return ModelUnreadableError(_unreadable(path, f"no progress in {_STALL_S / 60:.0f} minutes"))
    if told.get("failure") == "space":
        return ModelUnreadableError(explain_write_error(OSError(errno.ENOSPC, "No space left"), _kept()))
    if error.failure is ChildFailure.SIGNAL:
        return ModelUnreadableError(_unreadable(path, "the process that read it crashed"))
    return ModelUnreadableError(_unreadable(path, str(told.get("reason") or error.said[:160] or "it gave no reason")))


def _unreadable(path: Path, reason: str) -> str:
    reason = " ".join(reason.split()).rstrip(".")
    return f"{path.name!r} can't be read as a GGUF model ({reason}). Download it again, or choose another file."


def _unusable(error: OSError, path: Path) -> ModelUnreadableError:
    return ModelUnreadableError(explain_write_error(error, path))


def _kept() -> Path:
    return platformdirs.user_cache_path("outrider", appauthor=False) / "gguf"


def _digest(path: Path, check_cancelled: Callable[[], None]) -> str:
    # Asked for again with every verdict on a pair; a file of gigabytes is read once, until it changes.
    state = path.stat()
    key = (path.resolve(), state.st_size, state.st_mtime_ns)
    if key not in _digests:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(2**22):
                check_cancelled()
                digest.update(chunk)
        _digests[key] = digest.hexdigest()
    return _digests[key]
