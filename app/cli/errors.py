"""Ctrl-C as a request to end in order."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Protocol

from core.errors import DownloadError, GenerationError, OutOfMemoryError, OutriderError

DEBUG_VARIABLE = "OUTRIDER_DEBUG"


class Exit(IntEnum):
    """Exit codes that scripts rely on."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    STOPPED = 130


class UsageError(OutriderError):
    """The command line itself is wrong."""


class OutputError(OutriderError):
    """Standard output can't be written, for example because the disk behind it is full."""


class OutputClosed(Exception):  # noqa: N818 - a message to unwind, not an error
    """Whoever read standard output, such as `head`, has gone; nothing is wrong."""


_FAILURES = (DownloadError, GenerationError, OutOfMemoryError, OutputError)


def exit_code(error: OutriderError) -> Exit:
    """FAILED for what only a run or a download can meet, BAD_INPUT for what the user can mend in the command."""
    return Exit.FAILED if isinstance(error, _FAILURES) else Exit.BAD_INPUT


def say(sentence: str) -> None:
    """Print to stderr; if that is closed too, there is nobody left to tell."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(sentence + "\n")
        sys.stderr.flush()


def guard(command: Callable[[], int]) -> int:
    """Run a command and turn whatever it raises into one sentence on stderr and an exit code."""
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
            message = " ".join(str(error).split())
            cause = f"{type(error).__name__}: {message}" if message else type(error).__name__
            say(f"Outrider failed unexpectedly ({cause}); set {DEBUG_VARIABLE}=1 to see the traceback.")
        return Exit.FAILED


def _show_traceback() -> bool:
    if os.environ.get(DEBUG_VARIABLE, "") in {"", "0"}:
        return False
    traceback.print_exc()
    return True


@contextlib.contextmanager
def writing_output() -> Iterator[None]:
    """Around every write to standard output.

    Raises:
        OutputClosed: the reader has gone.
        OutputError: the text can't be written, with a sentence.
    """
    try:
        yield
    except OSError as error:
        # Python flushes standard output once more when it exits, which would fail again, and loudly.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Windows reports a closed pipe as an invalid argument.
        if isinstance(error, BrokenPipeError) or (sys.platform == "win32" and isinstance(error, OSError)):
            raise OutputClosed from None
        reason = error.strerror or str(error)
        raise OutputError(f"The text can't be written to standard output ({reason}); send it elsewhere.") from error


class CanStop(Protocol):
    """What asks the work at hand to end, such as `core.controls.RunControls`."""

    @property
    def is_cancelled(self) -> bool: ...

    def cancel(self) -> None: ...


@contextlib.contextmanager
def handle_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Have Ctrl-C do this for a while. Outside of the main thread, where there are no signals, nothing is changed."""
    try:
        previous = signal.signal(signal.SIGINT, lambda _number, _frame: act())
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def stop_on_interrupt(controls: CanStop, *, can_wait: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """The first Ctrl-C asks the engine to stop, the second one leaves at once.

    Args:
        controls: to stop through.
        can_wait: whether there is anything to end in order; where there is not, the first one leaves at once as well.
    """

    def act() -> None:
        if controls.is_cancelled or not can_wait():
            raise KeyboardInterrupt
        controls.cancel()

    with handle_interrupt(act):
        yield
