"""What commands print, tables and figures on standard output, progress on stderr; and the prompt that they read."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import gc
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.errors import UsageError, say, writing_output
from core.errors import PromptError, RunLogError
from core.experiments.bench_plan import Spread
from core.files import explain_read_error, explain_write_error, open_regular, open_to_write, read_bounded, read_rest
from core.runners.threads import limit_spinning, without_collection
from core.text import duration_text, spaced_percent, visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from core.session import Session

Row = TypeVar("Row")
PIPE_WIDTH = 140
"""Width in characters of a table in a file or a pipe."""
WIDE = 112
"""From this width on, every figure of a table has quartiles or extremes."""
NONE = "–"
_BEGINNING = 4096
"""Bytes of a file in which its kind is found."""


def is_terminal(stream: Any) -> bool:
    """Whether the stream is a terminal."""
    with contextlib.suppress(AttributeError, ValueError):  # Closed or missing.
        return bool(stream.isatty())
    return False


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Print no more on stderr, and leave standard output to `writing_output`; rich would end the process."""
        if self.file is not sys.stderr:
            raise BrokenPipeError
        self.quiet = True


def plain_console(stream: Any, width: int | None = None, *, quiet: bool = False) -> Console:
    """A console that prints text as it is, without markup, highlighting or emoji codes."""
    return _Console(file=stream, highlight=False, markup=False, emoji=False, width=width, quiet=quiet)


def printable(text: str) -> str:
    """Text on one line, without control characters: the name of a model or file must not move the cursor."""
    return visible(text).replace("\n", "\ufffd")


class Printer:
    """Prints lines and tables on standard output, if there is one.

    Attributes:
        is_wide: whether each figure of a table has room for its quartiles or extremes.
    """

    def __init__(self) -> None:
        stream = sys.stdout or io.StringIO()
        self._console = plain_console(stream, None if stream.isatty() else PIPE_WIDTH)
        self.width = self._console.width
        self.is_wide = self.width >= WIDE

    def __call__(self, item: str | Table = "", style: str = "") -> None:
        self._console.print(Text(printable(item), style) if isinstance(item, str) else item)


@contextlib.contextmanager
def printing() -> Iterator[Printer]:
    """A printer whose output is flushed at the end."""
    with writing_output():
        yield Printer()
        if sys.stdout is not None:
            sys.stdout.flush()


def figure_table(
    rows: Sequence[Row],
    columns: Sequence[tuple[str, Callable[[Row], str]]],
    style: Callable[[Row], str] = lambda row: "",
) -> Table:
    """A table with a column for each title and function, the first left-aligned, the others right-aligned."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for index, (title, _) in enumerate(columns):
        table.add_column(title, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(show(row)), style(row)) for _, show in columns))
    return table


def figure_text(value: Any, form: str, unit: str = "") -> str:
    """A figure in a format such as ".2f"; a dash for None."""
    return NONE if value is None else f"{spaced_percent(format(value, form))}{unit}"


def spread_text(spread: Spread | None, form: str, unit: str = "", ends: str = "quartiles") -> str:
    """A median with its quartiles or its extremes in brackets, or alone; a dash for None."""
    if spread is None or not ends:
        return figure_text(spread and spread.median, form, unit)
    low, high = (figure_text(value, form) for value in getattr(spread, ends))
    return f"{figure_text(spread.median, form, unit)} ({low}–{high})"


class Progress:
    """Progress on stderr: on a terminal one line with a bar, otherwise a line for each new text and first estimate.

    Only `show` redraws the bar: a drawing thread would be timed along with the engine.
    """

    def __init__(self) -> None:
        self.is_terminal = is_terminal(sys.stderr)
        self._bar: RichProgress | None = None
        self._last = ("", 0, False)
        self._begun = (0, 0, 0.0)
        self._said = set[str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def show(self, text: str, done: int = 0, total: int | None = None, details: str = "") -> None:
        """Show the current stage and how much of it is done; without a terminal, each tenth and first details once."""
        counted = f"{done:,} of {total:,}" if total else ""
        if self.is_terminal:
            self.show_figures(text, done, total, ", ".join(filter(None, (counted, details))))
        elif (key := (text, 10 * done // total if total else 0, bool(details))) != self._last:
            self._last = key
            say(f"{text}: {', '.join(filter(None, (counted, details)))}" if counted else text)

    def show_left(self, text: str, done: int, total: int) -> None:
        """As `show`, with the time left as far as it is known: the rest takes as long as what was done before."""
        now, (known, first, since) = time.monotonic(), self._begun
        if total != known or done < first:
            self._begun = (total, done, now)
        is_known = total == known and first < done < total
        left = (now - since) / (done - first) * (total - done) if is_known else 0.0
        self.show(text, done, total or None, f"about {duration_text(left)} left" if is_known else "")

    def show_figures(self, text: str, done: int, total: int | None, figures: str) -> None:
        """Draw the line on a terminal: a text, the bar, and figures after it."""
        bar = self._bar or self._open()
        text, figures = printable(text), printable(figures)
        bar.update(bar.task_ids[0], description=text, completed=done, total=total, figures=figures, refresh=True)

    def say(self, sentence: str) -> None:
        """Print a sentence that stays."""
        self.close()
        say(sentence)

    def say_once(self, sentence: str, key: str = "") -> None:
        """Print a sentence, unless it, or one with its key, was printed before."""
        if (key or sentence) not in self._said:
            self._said.add(key or sentence)
            self.say(sentence)

    def close(self) -> None:
        """Remove the bar; the next `show` brings it back."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def _open(self) -> RichProgress:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
            TextColumn("{task.fields[figures]}", markup=False),
            console=plain_console(sys.stderr),
            transient=True,
            expand=True,
            auto_refresh=False,
        )
        self._bar.add_task("", total=None, figures="")
        self._bar.start()
        return self._bar


def check_out(path: str | os.PathLike[str] | None, mark: str) -> None:
    """Report a file that can't be written, or that holds something else, before minutes of measuring.

    Args:
        path: where the results go; None: nowhere.
        mark: what the beginning of such results contains.

    Raises:
        UsageError: the file holds something else, or is "-".
        RunLogError: it can't be written.
    """
    if path is None:
        return
    if path == "-":
        raise UsageError("The results go into a file: name one in place of -.")
    if holds_other(path, mark):
        raise UsageError(
            f"{os.fspath(path)!r} holds something other than results of this command; choose another name."
        )
    try:
        try:
            os.stat(path)  # A name that is too long is an error here.
        except FileNotFoundError:
            tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))).close()
        else:
            os.close(open_to_write(path))
    except OSError as error:
        raise RunLogError(explain_write_error(error, path)) from error


def holds_other(path: str | os.PathLike[str], mark: str) -> bool:
    """Whether a file has contents, and `mark` isn't in their beginning."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        start = file.read(_BEGINNING)
        return bool(start) and mark.encode() not in start
    return False


def prepare_libraries() -> None:
    """Before torch is imported: let its threads spin only briefly, and keep bars and warnings off stderr."""
    limit_spinning()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def make_engine() -> Session:
    """An engine with nothing loaded. Imports torch, which takes seconds."""
    prepare_libraries()
    # Python would look for garbage among all that torch and transformers make: during the import, and at exit.
    atexit.register(gc.freeze)
    with without_collection():
        from core.session import Session

    return Session(while_loading=functools.partial(without_collection, freezes=False))


# --- The prompt -------------------------------------------------------------------------------------------------

MOST_PROMPT_BYTES = 256_000_000
"""More than any model reads."""


def read_prompt(text: str | None, file: str | None, *, quiet: bool) -> str:
    """The prompt from --prompt, --prompt-file or a pipe; one final line end of a file or pipe is dropped."""
    if text is not None:
        return text
    if file is not None and file != "-":
        return _decode(_read_file(file), repr(file))
    stream = sys.stdin
    if stream is None or stream.closed or (stream.isatty() and file is None):
        raise UsageError("There is no prompt; give one with --prompt TEXT or --prompt-file FILE, or pipe it in.")
    if not quiet:
        say("Reading the prompt from standard input.")
    buffer = getattr(stream, "buffer", None)
    try:
        data = read_rest(buffer, MOST_PROMPT_BYTES) if buffer else stream.read().encode()
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise PromptError(f"The prompt can't be read: {error.strerror}. Shorten it.") from None
        raise UsageError(f"Standard input can't be read ({error}); give the prompt with --prompt TEXT.") from None
    return _decode(data, "standard input")


def _read_file(name: str) -> bytes:
    try:
        # Process substitution, as in bash's <(...), gives a pipe under /dev/fd.
        if name.startswith(("/dev/fd/", "/dev/stdin")):
            with open(name, "rb") as file:
                return read_rest(file, MOST_PROMPT_BYTES)
        return read_bounded(name, MOST_PROMPT_BYTES)
    except OSError as error:
        raise PromptError(explain_read_error(error, name, "text file with the prompt")) from None


def _decode(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PromptError(f"The prompt in {source} is not UTF-8 text; save it as UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")
