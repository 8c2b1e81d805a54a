"""Converts GGUF files: dequantises each file once into a folder of safetensors, which is kept.

A child process does the unpacking, so that a malformed file can crash only that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

import platformdirs
import psutil

from core.errors import ModelUnreadableError, NoSpaceError, OutOfMemoryError
from core.files import explain_write_error, file_digest, folder_bytes, new_scratch, require_space
from core.models.weight_files import check_gguf
from core.text import bytes_text

_log = logging.getLogger(__name__)

POLL_S = 0.1
_STALL_S = 600.0
_BASE_MEMORY = 3 * 2**30
"""Bytes for torch, transformers and a large vocabulary, beside the tensors."""
_SPARE_MEMORY = 2**30
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
        _digests[key] = file_digest(path, check_cancelled)
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
        ModelUnreadableError: a damaged file, or one of an unknown architecture.
        NoSpaceError, OutOfMemoryError: no room for the result, on disk or in memory.
    """
    with contextlib.closing(converting(path, check_cancelled)) as conversion:
        while True:
            try:
                on_progress(next(conversion))
            except StopIteration as end:
                return end.value


def converting(path: Path, check_cancelled: Callable[[], None] = lambda: None) -> Generator[float, None, Path]:
    """`convert` in steps: yields the completed share, and returns the folder. Close it to cancel."""
    num_bytes = check_gguf(path)
    folder, scratch = _kept(), None
    try:
        folder = converted_folder(path, check_cancelled)
        if not _is_whole(folder):
            scratch = new_scratch(folder.parent, ".converting-")
            yield from _unpack(path, scratch, num_bytes, check_cancelled)
            if not _is_whole(folder):  # Otherwise another process was faster.
                (scratch / "model").rename(folder)
    except OSError as error:
        raise ModelUnreadableError(explain_write_error(error, folder)) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _unpack(
    path: Path, scratch: Path, num_bytes: int, check_cancelled: Callable[[], None]
) -> Generator[float, None, None]:
    require_space(f"{path.name!r} unpacked", num_bytes, scratch, "choose a smaller model")
    available = psutil.virtual_memory().available + psutil.swap_memory().free
    if num_bytes + _SPARE_MEMORY > available:
        raise OutOfMemoryError(
            f"{path.name!r} needs {bytes_text(num_bytes)} unpacked, and {bytes_text(available)} of memory is free. "
            "Close other programs, or choose a smaller model."
        )
    # A tensor exists twice while it is unpacked, and the file's pages count as memory while they are read.
    memory = _BASE_MEMORY + 2 * (num_bytes + path.stat().st_size)
    child = supervise(
        _command(_alone(path, scratch), scratch),
        environment=child_environment(),
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
    if not _is_whole(scratch / "model"):
        raise _unreadable(path, "it was not unpacked completely")


def _command(source: Path, scratch: Path) -> list[str]:
    # -P: a folder named `core` in the working directory must not shadow this package.
    return [sys.executable, "-P", "-m", "core.models.gguf_child", str(source), str(scratch)]


def child_environment() -> dict[str, str]:
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


def _unpacked_share(scratch: Path) -> float:
    """The share of the tensors that are unpacked, from the last line that the child wrote."""
    with contextlib.suppress(OSError, ValueError, IndexError, ZeroDivisionError):
        done, total = (scratch / "progress").read_text("utf-8").splitlines()[-1].split()
        return min(1.0, int(done) / int(total))
    return 0.0


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def _explain(error: ChildFailedError, path: Path) -> ModelUnreadableError | NoSpaceError | OutOfMemoryError:
    if error.code == ChildExit.MEMORY:
        return OutOfMemoryError(f"{path.name!r} does not fit in memory unpacked. Choose a smaller model.")
    if error.code == ChildExit.SPACE:
        return NoSpaceError(f"The disk is full, so {path.name!r} could not be unpacked. Free some space.")
    if error.code == ChildExit.STALLED:
        return _unreadable(path, f"no progress in {_STALL_S / 60:.0f} minutes")
    if error.code < 0:
        return _unreadable(path, "the process that read it crashed")
    return _unreadable(path, error.last_line[:160] or "it gave no reason")


def _unreadable(path: Path, reason: str) -> ModelUnreadableError:
    reason = " ".join(reason.split()).rstrip(".")
    return ModelUnreadableError(
        f"{path.name!r} can't be read as a GGUF model ({reason}). Download it again, or choose another file."
    )


def _kept() -> Path:
    return platformdirs.user_cache_path("outrider", appauthor=False) / "gguf"


# --- Child processes --------------------------------------------------------------------------------------------


class ChildExit(IntEnum):
    """Exit codes of children with a meaning here. Those killed by the system have a negative one."""

    FAILED = 1
    SPACE = 3
    MEMORY = 4
    STALLED = 5


class ChildFailedError(Exception):
    """A child failed, or was killed: its exit code, and its output."""

    def __init__(self, code: int, output: str) -> None:
        lines = output.strip().splitlines()
        self.code = code
        self.output = output
        self.last_line = lines[-1].strip() if lines else ""
        super().__init__(f"{code}: {self.last_line}")


def supervise(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    memory_bytes: int,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Generator[None, None, None]:
    """Run a command until it ends; kill it when it needs too much, makes no progress, or this generator is closed.

    Its stdin stays open while this process lives, so that the child can exit when it closes.

    Args:
        environment: the child's complete environment.
        folder: what the child writes here counts as progress; its output goes to `child.log` in it.
        memory_bytes: limit of its resident memory.
        check_cancelled: raises to cancel; called about ten times a second.

    Yields:
        About ten times a second.

    Raises:
        ChildFailedError: it ended with an error, or had to be killed.
        OSError: it could not be started.
    """
    # The flags exist on Windows only, where they lower the priority and keep a console from opening.
    flags = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0) | getattr(subprocess, "CREATE_NO_WINDOW", 0)
    log = folder / "child.log"
    with log.open("wb") as output:
        # In its own session: Ctrl+C reaches only this process, which then ends the child.
        child = subprocess.Popen(
            list(command), env=dict(environment), stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
            creationflags=flags, start_new_session=True,
        )  # fmt: skip
    written, progress_at, limit = -1, 0.0, 0
    try:
        while child.poll() is None and not limit:
            check_cancelled()
            yield
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_S)
            before, written = written, folder_bytes(folder)
            progress_at = time.monotonic() if written != before else progress_at
            if time.monotonic() - progress_at > _STALL_S:
                limit = ChildExit.STALLED
            with contextlib.suppress(psutil.Error):  # It may have just exited.
                if psutil.Process(child.pid).memory_info().rss > memory_bytes:
                    limit = ChildExit.MEMORY
        if code := limit if child.poll() is None else child.returncode:
            raise ChildFailedError(code, _tail(log))
    finally:
        child.kill()
        child.wait()
        with contextlib.suppress(OSError):
            child.stdin.close()  # type: ignore[union-attr]


def _tail(file: Path, num_bytes: int = 16_384) -> str:
    with file.open("rb") as content:
        content.seek(max(0, file.stat().st_size - num_bytes))
        return content.read().decode("utf-8", "replace")
