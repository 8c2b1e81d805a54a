"""How a command ends: exit codes, errors as one sentence on stderr, Ctrl-C and the signals that end a program."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING

from core.errors import (
    DownloadError,
    GenerationError,
    OutOfMemoryError,
    OutriderError,
    ServerError,
    ServerRefusedError,
    TokenizerError,
    is_panic,
    ran_out_of_memory,
)
from core.files import explain_write_error
from core.text import visible

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


PATIENCE_S = 1.0
"""How long Python may take to handle a signal that ends the process."""
_ENDING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
_FAILURES = (DownloadError, GenerationError, OutOfMemoryError, OutputError, ServerError, TokenizerError)


def exit_code(error: OutriderError) -> Exit:
    """FAILED for errors during a run or download, BAD_INPUT for those that the user can correct in the command."""
    is_failure = isinstance(error, _FAILURES) and not isinstance(error, ServerRefusedError)
    return Exit.FAILED if is_failure else Exit.BAD_INPUT


def say(sentence: str) -> None:
    """Print to stderr, with control characters made visible; do nothing if that is closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(visible(sentence) + "\n")
        sys.stderr.flush()


def guard(command: Callable[[], int]) -> int:
    """Run a command and turn any exception into one sentence on stderr and an exit code.

    SIGTERM and SIGHUP act as Ctrl-C does, with exit codes of their own: 143 and 129.
    """
    with _ending_signals() as received:
        code = _guard(command)
    return 128 + received[-1] if received and code in {Exit.DONE, Exit.STOPPED} else code


def _guard(command: Callable[[], int]) -> int:
    try:
        return command()
    except OutputClosed:
        return Exit.STOPPED
    except KeyboardInterrupt:
        exec("")  # Python would otherwise end itself by the signal if it came in code that a library compiles.
        say("Stopped.")
        return Exit.STOPPED
    except OutriderError as error:
        _show_traceback()
        say(str(error))
        return exit_code(error)
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if _show_traceback():
            return Exit.FAILED
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG and error.filename:
            say(explain_write_error(error, error.filename))
            return Exit.BAD_INPUT
        if isinstance(error, FileNotFoundError) and not _has_folder():
            say("The current folder no longer exists; change to another.")
            return Exit.BAD_INPUT
        if ran_out_of_memory(error):
            say("Out of memory. Close other programs, or choose a smaller model.")
        else:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
            say(f"Outrider failed unexpectedly ({cause}); set OUTRIDER_DEBUG=1 to see the traceback.")
        return Exit.FAILED


def _has_folder() -> bool:
    """Whether the current folder exists."""
    try:
        return bool(os.getcwd())
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def _show_traceback() -> bool:
    if os.environ.get("OUTRIDER_DEBUG", "") in {"", "0"}:
        return False
    traceback.print_exc()
    return True


@contextlib.contextmanager
def _ending_signals() -> Iterator[list[int]]:
    """Pass SIGTERM and SIGHUP to what handles Ctrl-C at the time; yields the numbers of those that were received."""
    received: list[int] = []

    def act(number: int, frame: FrameType | None) -> None:
        received.append(number)
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # Ctrl-C is ignored by programs that a script starts in the background.
            raise KeyboardInterrupt
        handler(number, frame)

    previous = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP.
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # `nohup` ignores SIGHUP on purpose.
            previous[number] = signal.signal(number, act)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
        if isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL):
            raise OutputClosed from None
        reason = error.strerror or str(error)
        raise OutputError(f"Standard output can't be written ({reason}); redirect it elsewhere.") from error


def write_output(text: str) -> None:
    """Write to standard output, if there is one; on a terminal, control characters are made visible."""
    if sys.stdout is not None:
        with writing_output():
            sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()


@contextlib.contextmanager
def _ending_if_stuck(handled: list[int], can_wait: Callable[[], bool]) -> Iterator[None]:
    """End the process if no handler runs after a second signal because a library call, such as a forward, hangs.

    The first signal is enough where there is nothing to keep, such as while a name is looked up. Handlers run in the
    main thread, between two of its bytecodes; the signals' numbers reach this thread at once.
    """
    reader, writer = socket.socketpair()  # Not a pipe, which Windows can't make non-blocking.
    writer.setblocking(False)
    ended = threading.Event()

    def watch() -> None:
        count = 0
        while number := reader.recv(1):
            count += number[0] in _ENDING
            if (count > 1 or not can_wait()) and not ended.wait(PATIENCE_S) and len(handled) < count:
                say("Stopped: a library did not return. The log, if any, is complete up to its last step.")
                os._exit(128 + number[0])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        ended.set()
        writer.close()
        watcher.join()
        reader.close()


@contextlib.contextmanager
def stop_on_interrupt(
    controls: RunControls | None = None, *, can_wait: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Make the first Ctrl-C ask the engine to stop, and the second exit at once, as the first does unless `can_wait`.

    Without controls, the first interrupts the command, and the second ends it even within a library.
    """

    handled: list[int] = []

    def act(number: int, _frame: object) -> None:
        handled.append(number)
        if controls is None or controls.is_cancelled or not can_wait():
            raise KeyboardInterrupt
        controls.cancel()

    previous = signal.signal(signal.SIGINT, act)
    try:
        with _ending_if_stuck(handled, can_wait):
            yield
    finally:
        signal.signal(signal.SIGINT, previous)
