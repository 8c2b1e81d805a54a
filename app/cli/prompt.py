"""Where a run's prompt comes from."""

from __future__ import annotations

import sys
from pathlib import Path

from app.cli.errors import UsageError, say


def read_prompt(text: str | None, file: str | None, *, quiet: bool) -> str:
    """The prompt from --prompt, --prompt-file or a pipe.

    One line end at the end of a file or a pipe is dropped, because editors and `echo` add it unasked.

    Raises:
        UsageError: there is none, or it can't be read.
    """
    if text is not None:
        return text
    if file is not None and file != "-":
        return _decode(_read_file(file), repr(file))
    stream = sys.stdin
    if stream is None or stream.closed or (stream.isatty() and file is None):
        raise UsageError("There is no prompt; give it with --prompt TEXT or --prompt-file FILE, or pipe it in.")
    if not quiet:
        say("Reading the prompt from standard input.")
    buffer = getattr(stream, "buffer", None)
    try:
        data = buffer.read() if buffer else stream.read().encode()
    except OSError as error:
        raise UsageError(f"Standard input can't be read ({error}); give the prompt with --prompt TEXT.") from None
    return _decode(data, "standard input")


def read_text_file(file: str, *, quiet: bool) -> str:
    """A text to read as it is; - for a pipe.

    Raises:
        UsageError: it is empty, or can't be read.
    """
    text = read_prompt(None, file, quiet=quiet)
    if not text.strip():
        raise UsageError(f"There is no text in {file!r}; name a file that holds some.")
    return text


def _read_file(name: str) -> bytes:
    path = Path(name)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"There is no prompt file {name!r}; check the path.") from None
    except OSError as error:
        if path.is_dir():
            raise UsageError(f"{name!r} is a folder; name a text file with the prompt.") from None
        raise UsageError(f"The prompt file {name!r} can't be read ({error.strerror}); check its permissions.") from None


def _decode(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"The prompt in {source} is not UTF-8 text; save it as UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")
