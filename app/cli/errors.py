"""How a command ends: exit codes, errors as one sentence on stderr, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

from core.errors import DownloadError, GenerationError, OutOfMemoryError, OutriderError

if TYPE_CHECKING:
    from core.controls import RunControls


class Exit(IntEnum):
    """Exit codes that scripts rely on."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    STOPPED = 130


class UsageError(OutriderError):
    """The command line itself is wrong."""


class OutputError(OutriderError):
    """Standard output can't be written, for example because the disk is full."""


class OutputClosed(Exception):  # noqa: N818 - a message to unwind, not an error
    """The reader of standard output, such as `head`, has closed it, which is not an error."""


_FAILURES = (DownloadError, GenerationError, OutOfMemoryError, OutputError)


def exit_code(error: OutriderError) -> Exit:
    """FAILED for errors during a run or download, BAD_INPUT for those that the user can correct in the command."""
    return Exit.FAILED if isinstance(error, _FAILURES) else Exit.BAD_INPUT


def say(sentence: str) -> None:
    """Print to stderr; do nothing if that is closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(sentence + "\n")
        sys.stderr.flush()


def guard(command: Callable[[], int]) -> int:
    """Run a command and turn any exception into one sentence on stderr and an exit code."""
    try:
        return command()
    except OutputClosed:
        return Exit.STOPPED
    except KeyboardInterrupt:
        say("Stopped.")
        return Exit.STOPPED
    except OutriderError as error:
        _show_traceback()
        say(str(error))
        return exit_code(error)
    except Exception as error:
        if not _show_traceback():
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
            say(f"Outrider failed unexpectedly ({cause}); set OUTRIDER_DEBUG=1 to see the traceback.")
        return Exit.FAILED


def _show_traceback() -> bool:
    if os.environ.get("OUTRIDER_DEBUG", "") in {"", "0"}:
        return False
    traceback.print_exc()
    return True


@contextlib.contextmanager
def writing_output() -> Iterator[None]:
    """Wrap every write to standard output; raises OutputClosed or OutputError."""
    try:
        yield
    except OSError as error:
        # Python flushes standard output again when it exits, which would fail again with a traceback.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Windows reports a closed pipe as an invalid argument.
        if isinstance(error, BrokenPipeError) or sys.platform == "win32":
            raise OutputClosed from None
        reason = error.strerror or str(error)
        raise OutputError(f"Standard output can't be written ({reason}); redirect it elsewhere.") from error


@contextlib.contextmanager
def stop_on_interrupt(controls: RunControls, *, can_wait: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Make the first Ctrl-C ask the engine to stop, and the second exit at once, as the first does unless `can_wait`.

    Has no effect outside the main thread, which alone receives signals.
    """

    def act(_number: int, _frame: object) -> None:
        if controls.is_cancelled or not can_wait():
            raise KeyboardInterrupt
        controls.cancel()

    try:
        previous = signal.signal(signal.SIGINT, act)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
