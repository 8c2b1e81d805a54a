"""Streams the generated text to standard output: coloured on a terminal, byte for byte in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.segment import Segment, Segments
from rich.style import Style

from app.cli.console import is_terminal, plain_console
from app.cli.errors import writing_output
from core.types import Step, TokenKind

STYLES: dict[TokenKind, Style] = {
    TokenKind.ACCEPTED: Style(color="#3280b8"),
    TokenKind.CORRECTION: Style(color="#c5580c", underline=True),
    TokenKind.BONUS: Style(color="#b0529e", underline2=True),
}
"""Colour and line of each kind: distinct for any colour vision or without colour, legible on black and on white."""

# A model's text must not move the cursor or rename the window.
_VISIBLE_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_VISIBLE_CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

Piece = tuple[str, TokenKind | None]
"""A text and its kind; None: of a plain step, which looks like any text."""


class StopTail:
    """Holds back text that may be the beginning of a stop text, and drops everything from a stop text on."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held: list[Piece] = []
        self._stopped = False

    def add(self, text: str, kind: TokenKind | None) -> list[Piece]:
        """Add `text`, and return the pieces that can be shown."""
        if self._stopped or not text:
            return []
        self._held.append((text, kind))
        tail = "".join(piece for piece, _ in self._held)
        found = [index for stop in self._stops if (index := tail.find(stop)) >= 0]
        if found:
            self._stopped = True
            shown = self._release(min(found))
            self._held.clear()
            return shown
        longest = min(len(tail), max(map(len, self._stops), default=1) - 1)
        undecided = (n for n in range(longest, 0, -1) if any(stop.startswith(tail[-n:]) for stop in self._stops))
        return self._release(len(tail) - next(undecided, 0))

    def release_all(self) -> list[Piece]:
        """Return what is still held back, once no more text follows."""
        shown, self._held = self._held, []
        return shown

    def _release(self, length: int) -> list[Piece]:
        shown: list[Piece] = []
        while length > 0:
            piece, kind = self._held.pop(0)
            if len(piece) > length:
                self._held.insert(0, (piece[length:], kind))
            shown.append((piece[:length], kind))
            length -= len(piece)
        return shown


class Sink:
    """Writes pieces of text to a stream.

    To a terminal in each kind's colour and line, with control characters made visible; to anything else exactly the
    text's bytes in UTF-8, line ends included. Does nothing without a stream.
    """

    def __init__(self, stream: Any, *, styled: bool = True) -> None:
        self.is_terminal = is_terminal(stream)
        self._stream = stream
        self._console = plain_console(stream) if self.is_terminal else None
        self._styled = styled

    def write(self, text: str, kind: TokenKind | None) -> None:
        """Write a piece."""
        if self._console is not None:
            style = STYLES[kind] if self._styled and kind is not None else None
            # A bare segment, because rich would turn tabs in a string into spaces.
            segment = Segment(text.translate(_VISIBLE_CONTROLS), style)
            self._console.print(Segments([segment]), end="", soft_wrap=True)
        elif buffer := getattr(self._stream, "buffer", None):
            buffer.write(text.encode("utf-8", "replace"))
        elif self._stream is not None:
            self._stream.write(text)

    def flush(self) -> None:
        """Have all of it written."""
        if self._stream is not None:
            self._stream.flush()


class Transcript:
    """Streams a run's text to a sink, which ends up with exactly the text and a line end.

    Every method raises OutputClosed if the reader has gone, and OutputError if the text can't be written.
    """

    def __init__(self, sink: Sink, stops: Sequence[str] = ()) -> None:
        self._sink = sink
        self._tail = StopTail(stops)
        self._written = ""
        self._ended = False

    def add(self, step: Step) -> None:
        """Show what a step emitted, except what may begin a stop text."""
        for text, kind in zip(step.emitted_texts, step.emitted_kinds, strict=True):
            self._write(self._tail.add(text, kind if step.drafted else None))
        with writing_output():
            self._sink.flush()

    def settle(self) -> None:
        """Show the rest and end the line: no more steps follow, but the summary has not come yet."""
        if not self._ended:
            self._end(self._tail.release_all())

    def finish(self, text: str) -> None:
        """Show what is still missing from the run's final text."""
        if self._ended:
            return
        left = text.removeprefix(self._written) if text.startswith(self._written) else ""
        pieces: list[Piece] = []
        for piece, kind in self._tail.release_all():
            if not left.startswith(piece):
                break
            pieces.append((piece, kind))
            left = left[len(piece) :]
        self._end([*pieces, (left, None)])

    def _end(self, pieces: Sequence[Piece]) -> None:
        self._ended = True
        self._write([*pieces, ("\n", None)])
        with writing_output():
            self._sink.flush()

    def _write(self, pieces: Sequence[Piece]) -> None:
        for text, kind in pieces:
            if text:
                self._written += text
                with writing_output():
                    self._sink.write(text, kind)
