"""The generated text on standard output: as it comes, coloured on a terminal, exactly its bytes in a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from app.cli.console import is_terminal
from app.cli.errors import writing_output
from core.types import Step, TokenKind

STYLES: dict[TokenKind, Style] = {
    TokenKind.ACCEPTED: Style(color="#3280b8"),
    TokenKind.CORRECTION: Style(color="#c5580c", underline=True),
    TokenKind.BONUS: Style(color="#b0529e", underline2=True),
}
"""Colour and line of each kind. Told apart by every common colour vision, legible on black and on white, and, where
colour is off, still told apart by the line."""

# Text from a model must not be able to move the cursor or rename the window.
_VISIBLE_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_VISIBLE_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class StopTail:
    """Passes text on as soon as it can't be the beginning of a stop text; nothing from a stop text on gets through."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held: list[tuple[str, TokenKind]] = []
        self._stopped = False

    def add(self, text: str, kind: TokenKind) -> list[tuple[str, TokenKind]]:
        """The pieces that are decided, now that `text` has followed."""
        if self._stopped or not text:
            return []
        self._held.append((text, kind))
        tail = "".join(piece for piece, _ in self._held)
        found = [index for stop in self._stops if (index := tail.find(stop)) >= 0]
        if found:
            self._stopped = True
            decided = self._release(min(found))
            self._held.clear()
            return decided
        return self._release(len(tail) - self._undecided(tail))

    def release_all(self) -> list[tuple[str, TokenKind]]:
        """What is still held back, once it is known that no more text comes."""
        decided, self._held = self._held, []
        return decided

    def _undecided(self, tail: str) -> int:
        """Length of the longest end of `tail` that a stop text may begin with."""
        longest = min(len(tail), max(map(len, self._stops), default=1) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(tail[-length:]) for stop in self._stops):
                return length
        return 0

    def _release(self, length: int) -> list[tuple[str, TokenKind]]:
        decided = []
        while length > 0:
            piece, kind = self._held.pop(0)
            if len(piece) > length:
                self._held.insert(0, (piece[length:], kind))
            decided.append((piece[:length], kind))
            length -= len(piece)
        return decided


class Sink(Protocol):
    """Where text goes, piece by piece."""

    def write(self, text: str, kind: TokenKind | None) -> None: ...

    def flush(self) -> None: ...


class PlainSink:
    """Exactly the text's bytes in UTF-8, its line ends included, whatever the platform."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._buffer = getattr(stream, "buffer", None)

    def write(self, text: str, kind: TokenKind | None) -> None:
        if self._buffer is None:
            self._stream.write(text)
        else:
            self._buffer.write(text.encode("utf-8", "replace"))

    def flush(self) -> None:
        self._stream.flush()


class TerminalSink:
    """Each token in its kind's colour and line; control characters made visible."""

    def __init__(self, stream: TextIO, *, styled: bool = True) -> None:
        self._console = Console(file=stream, highlight=False, emoji=False, markup=False)
        self._styled = styled

    def write(self, text: str, kind: TokenKind | None) -> None:
        style = STYLES[kind] if self._styled and kind is not None else None
        # A bare segment, because rich would turn the tabs of a string into spaces.
        segment = Segment(text.translate(_VISIBLE_CONTROLS), style)
        self._console.print(Segments([segment]), end="", soft_wrap=True)

    def flush(self) -> None:
        self._console.file.flush()


class Transcript:
    """Feeds a sink with a run's text, so that in the end it has got exactly the run's text and a line end.

    Raises:
        OutputClosed: from every method, once the reader has gone.
        OutputError: from every method, if the text can't be written.
    """

    def __init__(self, sink: Sink, stops: Sequence[str] = ()) -> None:
        self._sink = sink
        self._tail = StopTail(stops)
        self._written: list[str] = []
        self._ended = False

    def add(self, step: Step) -> None:
        """Show what a step emitted, as far as it is decided."""
        for text, kind in zip(step.emitted_texts, step.emitted_kinds, strict=True):
            self._write(self._tail.add(text, kind))
        self._flush()

    def settle(self) -> None:
        """No more steps come: show the rest and end the line, although the run's summary is still to come."""
        if self._ended:
            return
        self._write(self._tail.release_all())
        self._end()

    def finish(self, text: str) -> None:
        """The run's text is final: show what of it is missing."""
        if self._ended:
            return
        written = "".join(self._written)
        if text.startswith(written):
            left = text[len(written) :]
            for piece, kind in self._tail.release_all():
                if not left.startswith(piece):
                    break
                self._write([(piece, kind)])
                left = left[len(piece) :]
            self._write([(left, None)])
        self._end()

    def _write(self, pieces: Sequence[tuple[str, TokenKind | None]]) -> None:
        for text, kind in pieces:
            if text:
                self._written.append(text)
                with writing_output():
                    self._sink.write(text, kind)

    def _end(self) -> None:
        self._ended = True
        with writing_output():
            self._sink.write("\n", None)
        self._flush()

    def _flush(self) -> None:
        with writing_output():
            self._sink.flush()


def open_sink(*, styled: bool) -> tuple[Sink, bool]:
    """The sink for this process's standard output, and whether it is a terminal."""
    stream = sys.stdout
    if stream is None:  # Closed by whoever started the process: the text is not wanted, its log may be.
        return PlainSink(io.StringIO()), False
    if is_terminal(stream):
        return TerminalSink(stream, styled=styled), True
    return PlainSink(stream), False
