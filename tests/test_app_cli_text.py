"""Text as it streams: held back where a stop text may begin, styled on a terminal, whole in the end."""

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import Color

from app.cli.text import STYLES, Sink, Transcript
from app.theme import contrast
from core.types import TokenKind as Kind
from tests.fakes_cache import Terminal
from tests.fakes_cli import step


class Pieces:
    """A sink that remembers."""

    def __init__(self):
        self.pieces = []

    def write(self, text, kind):
        self.pieces.append((text, kind))

    def flush(self):
        pass

    @property
    def text(self):
        return "".join(text for text, _ in self.pieces)


def until_stop(text, stops):
    return text[: min([text.find(stop) for stop in stops if stop in text], default=len(text))]


# --- Stop texts -------------------------------------------------------------------------------------------------


def test_text_that_may_begin_a_stop_text_is_held_back_until_that_is_decided():
    sink = Pieces()
    transcript = Transcript(sink, ["\n\ndef"])
    for text, kind, shown in [
        ("a\n", Kind.ACCEPTED, [("a", Kind.ACCEPTED)]),
        ("\nd", Kind.CORRECTION, []),
        ("o", Kind.BONUS, [("\n", Kind.ACCEPTED), ("\nd", Kind.CORRECTION), ("o", Kind.BONUS)]),
        ("\n", Kind.BONUS, []),
    ]:
        transcript.add(replace(step(text), drafted=(5,), emitted_kinds=(kind,)))
        assert sink.pieces == shown
        sink.pieces.clear()
    transcript.settle()
    assert sink.pieces == [("\n", Kind.BONUS), ("\n", None)]


def test_a_token_of_a_plain_step_has_no_kind_and_so_no_colour():
    sink = Pieces()
    transcript = Transcript(sink)
    for drafted in ((), (5,)):
        transcript.add(replace(step("x"), drafted=drafted, emitted_kinds=(Kind.BONUS,)))
    assert sink.pieces == [("x", None), ("x", Kind.BONUS)]


@given(
    pieces=st.lists(st.text("ab", max_size=3), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4)).map(tuple),
)
def test_what_is_printed_is_the_text_up_to_the_stop(pieces, stops):
    sink = Pieces()
    transcript = Transcript(sink, stops)
    so_far = ""
    for piece in pieces:
        new = until_stop(so_far + piece, stops)[len(so_far) :]  # The engine cuts the last text at the stop.
        so_far += piece
        transcript.add(step(new))
        # Never more than what the text turns out to be, whichever stop text comes first.
        assert until_stop(so_far, stops).startswith(sink.text)
        if any(stop in so_far for stop in stops):
            break
    final = until_stop(so_far, stops)
    transcript.finish(final)
    assert sink.text == final + "\n"


# --- Terminal and pipe ------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    return Terminal()


def shown(stream, *, styled=True):
    sink = Sink(stream, styled=styled)
    for text, kind in [("acc", Kind.ACCEPTED), ("cor", Kind.CORRECTION), ("bon", Kind.BONUS)]:
        sink.write(text, kind)
    return dict(re.findall(r"\x1b\[([\d;]*)m(\w+)\x1b\[0m", stream.getvalue()))


def test_kinds_differ_by_colour_and_by_line(terminal):
    codes = {text: set(code.split(";")) for code, text in shown(terminal).items()}
    assert set(codes) == {"acc", "cor", "bon"}
    lines = {text: code & {"4", "21"} for text, code in codes.items()}
    assert lines == {"acc": set(), "cor": {"4"}, "bon": {"21"}}
    assert all("38" in code for code in codes.values())


def test_no_color_keeps_the_lines(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(terminal) == {"4": "cor", "21": "bon"}
    assert "acc" in terminal.getvalue()


@pytest.mark.parametrize(("term", "styled"), [("xterm-256color", False), ("dumb", True)])
def test_quiet_text_and_that_of_a_dumb_terminal_is_plain(terminal, monkeypatch, term, styled):
    monkeypatch.setenv("TERM", term)
    shown(terminal, styled=styled)
    assert terminal.getvalue() == "acccorbon"


def test_a_model_cannot_steer_the_terminal_and_its_lines_and_markup_stay_as_they_are(terminal):
    Sink(terminal).write("\x1b]0;title\x07\r\x9b2J\ttab\n", None)
    assert terminal.getvalue() == "␛]0;title␇␍�2J\ttab\n"
    text = "[bold]word[/bold] " * 50 + ":smile:"
    Sink(terminal, styled=False).write(text, Kind.BONUS)
    assert terminal.getvalue().endswith("\n" + text)


def test_only_a_terminal_is_styled(terminal, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Sink(terminal).is_terminal
    stream = io.StringIO()
    Sink(stream).write("a\x07", Kind.BONUS)
    assert stream.getvalue() == "a\x07"
    Sink(None).write("a", None)


@pytest.mark.parametrize("kind", Kind)
def test_colours_are_legible_on_black_and_on_white(kind):
    color = Color.parse(STYLES[kind].color.name).triplet.hex
    assert min(contrast(color, "#000000"), contrast(color, "#ffffff")) >= 4
