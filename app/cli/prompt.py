"""Reads the prompt that a command is given: as text, from a file, or from a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

from app.cli.errors import UsageError, say
from core.files import read_bounded, shown_path

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
        data = buffer.read() if buffer else stream.read().encode()
    except OSError as error:
        raise UsageError(f"Standard input can't be read ({error}); give the prompt with --prompt TEXT.") from None
    return _decode(data, "standard input")


def read_text_file(file: str, *, quiet: bool) -> str:
    """The text of a file; - is standard input."""
    text = read_prompt(None, file, quiet=quiet)
    if not text.strip():
        raise UsageError(f"{file!r} contains no text; choose another file.")
    return text


def _read_file(name: str) -> bytes:
    try:
        # Process substitution, as in bash's <(...), gives a pipe under /dev/fd.
        is_given = name.startswith(("/dev/fd/", "/dev/stdin"))
        return Path(name).read_bytes() if is_given else read_bounded(name, MOST_PROMPT_BYTES)
    except FileNotFoundError:
        raise UsageError(f"There is no prompt file {shown_path(name)}; check the path.") from None
    except IsADirectoryError:
        raise UsageError(f"{name!r} is a folder; name a text file with the prompt.") from None
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"The prompt file {shown_path(name)} can't be read ({reason}); check its permissions."
        ) from None


def _decode(data: bytes, source: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"The prompt in {source} is not UTF-8 text; save it as UTF-8.") from None
    return text.removesuffix("\n").removesuffix("\r")
