"""Child processes for what may crash, hang or eat memory: a stranger's file, or the program in it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path

import psutil

from core.errors import first_line, ran_out_of_memory
from core.files import NO_SPACE, folder_bytes
from core.runners.threads import SPIN_SETTINGS

POLL_S = 0.1
STALL_S = 600.0
PARENT = "OUTRIDER_PARENT"
"""The variable that tells a child the process id of its parent, which a launcher may stand between."""

# --- In the parent ----------------------------------------------------------------------------------------------


class ChildExit(IntEnum):
    """Exit codes of children with a meaning here. Those killed by the system have a negative one, on Windows
    one above 2^31."""

    FAILED = 1
    SPACE = 3
    MEMORY = 4
    STALLED = 5
    UNSUPPORTED = 6


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
    environment: Mapping[str, str] | None = None,
    folder: Path,
    memory_bytes: int,
    stall_s: float | None = None,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Generator[None, None, None]:
    """Run a command until it ends; kill it when it needs too much, makes no progress, or this generator is closed.

    Its stdin stays open while this process lives; see `end_with_parent`.

    Args:
        environment: the child's complete environment; None for `child_environment`.
        folder: what the child writes here counts as progress; its output goes to `child.log` in it.
        memory_bytes: limit of its resident memory, and on Windows of its children's too.
        stall_s: how long it may write nothing; None for `STALL_S`.
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
            list(command), stdin=subprocess.PIPE, stdout=output,
            env=dict(child_environment() if environment is None else environment),
            stderr=subprocess.STDOUT, creationflags=flags, start_new_session=True,
        )  # fmt: skip
    written, progress_at, limit = -1, 0.0, 0
    stall_s = STALL_S if stall_s is None else stall_s
    try:
        while child.poll() is None and not limit:
            check_cancelled()
            yield
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_S)
            before, written = written, folder_bytes(folder)
            progress_at = time.monotonic() if written != before else progress_at
            if time.monotonic() - progress_at > stall_s:
                limit = ChildExit.STALLED
            with contextlib.suppress(psutil.Error):  # It may have just exited.
                process = psutil.Process(child.pid)
                # In a venv on Windows, it is a launcher, which starts the real Python as its child.
                others = process.children(recursive=True) if sys.platform == "win32" else []
                if sum(each.memory_info().rss for each in (process, *others)) > memory_bytes:
                    limit = ChildExit.MEMORY
        if code := limit if child.poll() is None else child.returncode:
            raise ChildFailedError(code, _tail(log))
    finally:
        child.kill()
        child.wait()
        with contextlib.suppress(OSError):
            child.stdin.close()  # type: ignore[union-attr]


def _tail(file: Path) -> str:
    with file.open("rb") as content:
        content.seek(max(0, file.stat().st_size - 16_384))
        return content.read().decode("utf-8", "replace")


def python_module(module: str, *arguments: str | Path) -> list[str]:
    """The command that runs a module of this package."""
    # -P: a folder named `core` in the working directory must not shadow this package.
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def child_environment() -> dict[str, str]:
    """The child's variables: it finds this package, writes UTF-8, uses no network, and leaves the GPU alone."""
    # Spinning is set for decoding in this process, not for a child.
    environment = {name: value for name, value in os.environ.items() if name not in SPIN_SETTINGS}
    paths = [str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    environment[PARENT] = str(os.getpid())
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "USE_TF": "0"}
    environment["PYTHONIOENCODING"] = "utf-8"  # As its log is read; Windows would use the language's own.
    return environment


# --- In the child -----------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Exit as soon as the parent is gone, which closes stdin; for a thread of its own."""
    with contextlib.suppress(OSError, KeyError, ValueError, psutil.Error):
        if sys.platform == "win32":
            # There, numpy's import would wait until a pending read of stdin is over.
            parent = psutil.Process(int(os.environ[PARENT]))
            if parent.create_time() <= psutil.Process().create_time():  # Else another program has its id by now.
                parent.wait()
        else:
            while os.read(0, 4096):
                pass
    os._exit(1)


def exit_code(error: Exception) -> ChildExit:
    """The code that tells the parent what an error means; its sentence goes to stderr."""
    print(first_line(error), file=sys.stderr)
    if ran_out_of_memory(error):
        return ChildExit.MEMORY
    is_full = isinstance(error, OSError) and error.errno in NO_SPACE
    return ChildExit.SPACE if is_full or "No space left" in str(error) else ChildExit.FAILED


def limit(*, memory_bytes: int, processor_s: int) -> None:
    """Limit what this process may take from now on, where the system can: more memory, and more processor time."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # Not on Windows, where the parent's limits apply alone.

        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + 1 + processor_s
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        num_bytes = psutil.Process().memory_info().vms + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
