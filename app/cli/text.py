"""Streams the generated text to standard output: coloured on a terminal, byte for byte in a pipe."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rich.segment import Segment, Segments
from rich.style import Style

from app.cli.console import is_terminal, plain_console
from app.cli.errors import writing_output
from core.experiments.bench_plan import num_equal
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

    Text that may be the beginning of a stop text is held back. Every method raises OutputClosed if the reader has gone,
    and OutputError if the text can't be written.
    """

    def __init__(self, sink: Sink, stops: Sequence[str] = ()) -> None:
        self._sink, self._stops = sink, tuple(stops)
        self._held: list[Piece] = []
        """Characters that are not shown yet."""
        self._written = ""
        self._ended = False

    def add(self, step: Step) -> None:
        """Show what a step emitted, except what may begin a stop text."""
        for text, kind in zip(step.emitted_texts, step.emitted_kinds, strict=True):
            self._held += [(letter, kind if step.drafted else None) for letter in text]
        tail = self._text_held()
        longest = min(len(tail), max(map(len, self._stops), default=1) - 1)
        undecided = (n for n in range(longest, 0, -1) if any(stop.startswith(tail[-n:]) for stop in self._stops))
        self._show(len(tail) - next(undecided, 0))

    def settle(self) -> None:
        """Show the rest and end the line: no more steps follow, but the summary has not come yet."""
        self.finish(self._written + self._text_held())

    def finish(self, text: str) -> None:
        """Show what is still missing from the run's final text."""
        if self._ended:
            return
        self._ended = True
        left = text.removeprefix(self._written) if text.startswith(self._written) else ""
        num_right = num_equal(self._text_held(), left)
        self._held[num_right:] = [(letter, None) for letter in f"{left[num_right:]}\n"]
        self._show(len(self._held))

    def _text_held(self) -> str:
        return "".join(letter for letter, _ in self._held)

    def _show(self, count: int) -> None:
        shown, self._held = self._held[:count], self._held[count:]
        with writing_output():
            for kind, letters in itertools.groupby(shown, key=lambda piece: piece[1]):
                text = "".join(letter for letter, _ in letters)
                self._written += text
                self._sink.write(text, kind)
            self._sink.flush()
