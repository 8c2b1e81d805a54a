"""Any script, any length: characters stay whole, copies are exact, every token can be reached, nothing holds still."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QTextCursor, QTextDocument

from app.run.paged_text import CHUNK, SLICE_MS, TranscriptPage
from app.run.tokens import Place, Token, TokenStream, num_joined, num_units
from app.run.transcript import TranscriptView
from app.theme import DARK, LIGHT
from core.types import TokenKind
from tests.fakes_app import make_step

FAMILY = "👨‍👩‍👧"
PIECES = {
    "chinese": ["中", "文字", "，", "很", "好", "。"],
    "arabic": ["مر", "حبا", " ", "بال", "عالم", "!"],
    "hebrew": ["של", "ום", " abc ", "עול", "ם", "."],
    "emoji": [FAMILY[:1], FAMILY[1:2], FAMILY[2:], "👍", "🏽", "🇩🇪"[0]],
    "accents": ["e", "\u0301", "a\u0308", "o", "\u0302\u0323", "!"],
    "parts": ["", "é", "", "", "😀", ""],
    "lines": ["\n", "\t", "\r\n", "\n\n\tx", "\r", " "],
    "controls": ["\x00", "\x1b[0m", "\x0c", "\u2028", "\u2029", "\ufffc"],
    "spaces": ["\u00a0", "\u3000", "  ", "\u200b", "\u202f", " "],
}


@pytest.fixture
def stream():
    stream = TokenStream()
    stream.clear("P:")
    return stream


@pytest.fixture
def view(show_at, stream):
    view = TranscriptView()
    view.set_stream(stream)
    return show_at(view, 420, 300)


def write(view, stream, pieces, *, each=3):
    """Steps of two accepted tokens and a resampled one, with these texts."""
    for index in range(0, len(pieces), each):
        part = pieces[index : index + each]
        stream.append(make_step(index // each, index, num_accepted=each - 1, texts=lambda at: pieces[at], ms=1.0))
        assert len(part) == each
    view.refresh()


@pytest.mark.parametrize("ghosts", [False, True])
@pytest.mark.parametrize("name", PIECES)
def test_copies_are_exactly_what_was_emitted(view, stream, name, ghosts):
    view.set_ghosts_shown(ghosts)
    write(view, stream, PIECES[name])
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == "P:" + "".join(PIECES[name])


@pytest.mark.parametrize("ghosts", [False, True])
def test_long_lines_wrap_also_where_nothing_parts_them(view, stream, qtbot, ghosts):
    view.set_ghosts_shown(ghosts)
    write(view, stream, ["x" * 500, " word" * 100, "中" * 300])
    qtbot.waitUntil(lambda: view.verticalScrollBar().maximum() > 0)
    assert view.horizontalScrollBar().maximum() == 0


@pytest.mark.parametrize("name", PIECES)
def test_positions_count_as_the_document_does(view, stream, name):
    write(view, stream, PIECES[name])
    end = view._page.extent(len(view._page.spans) - 1)[1]
    assert end == view.document().characterCount() - 1


@pytest.mark.parametrize("name", PIECES)
def test_every_token_is_reached_with_the_keyboard_in_order(view, stream, qtbot, name):
    write(view, stream, PIECES[name])
    view.choose(Place(0, 0))
    walked = [view.selected_span()]
    for _ in range(len(PIECES[name]) - 1):
        qtbot.keyClick(view, Qt.Key.Key_Right)
        walked.append(view.selected_span())
    assert [token.text for token in walked] == PIECES[name]
    qtbot.keyClick(view, Qt.Key.Key_Right)
    assert view.selected_span() is walked[-1]
    for token in reversed(walked[:-1]):
        qtbot.keyClick(view, Qt.Key.Key_Left)
        assert view.selected_span() is token


def test_a_token_without_text_has_a_frame_too_and_counts(view, stream):
    write(view, stream, PIECES["parts"])
    view.choose(Place(0, 0))
    (frame,) = view.rectangles(*view.place_range(Place(0, 0)))
    assert 0 < frame.width() < 10
    assert stream.num_tokens == 6
    assert "no text of its own" in view.accessibleDescription()


def test_up_and_down_go_from_step_to_step_and_shift_selects_text(view, stream, qtbot):
    write(view, stream, [f" w{index}" for index in range(12)])
    view.choose(Place(1, 2))
    qtbot.keyClick(view, Qt.Key.Key_Down)
    assert view.selected_span().place == Place(2, 0)
    qtbot.keyClick(view, Qt.Key.Key_Up)
    assert view.selected_span().place == Place(1, 0)
    qtbot.keyClick(view, Qt.Key.Key_Right, Qt.KeyboardModifier.ShiftModifier)
    assert view.textCursor().selectedText() == " "
    assert view.selected_span().place == Place(1, 0)


def test_discarded_drafts_are_walked_through_where_they_are_shown(view, stream, qtbot):
    view.set_ghosts_shown(True)
    stream.append(make_step(0, 0, num_draft_tokens=4, num_accepted=1))
    stream.append(make_step(1, 2, num_draft_tokens=2, num_accepted=2))
    view.refresh()
    view.choose(Place(0, 0))
    walked = []
    for _ in range(5):
        qtbot.keyClick(view, Qt.Key.Key_Right)
        walked.append(view._selected)
    assert walked == [Place(0, 1), Place(0, 2), Place(0, 3), Place(1, 0), Place(1, 1)]
    view.choose(Place(0, 1))
    assert isinstance(view.selected_span(), Token), "the token that was drawn, not the one that was rejected there"


def test_a_click_selects_the_token_under_it(view, stream, qtbot):
    write(view, stream, ["中", "文字", "，", " abc", " def", " ghi"])
    chosen = []
    view.place_chosen.connect(chosen.append)
    for place in (Place(0, 1), Place(1, 2)):
        (frame,) = view.rectangles(*view.place_range(place))
        qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=frame.center().toPoint())
        assert chosen[-1] == place


def test_a_click_brings_the_inspector_to_the_front_and_the_keys_leave_the_page_that_is_read(
    make_window, run_to_end, qtbot
):
    window = make_window(is_shown=True)
    run_to_end(window)
    view = window.transcript.view
    window.side.show_page(window.why)
    qtbot.keyClick(view, Qt.Key.Key_Left)
    window.playback._on_step_clicked(0)
    assert window.side.currentWidget() is window.why
    assert window.selection.place == Place(0, 0)
    view.mark(Place(1, 0))
    frame = view.rectangles(*view.place_range(Place(1, 0)))[0]
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=frame.center().toPoint())
    assert window.selection.place == Place(1, 0)
    assert window.side.currentWidget() is window.inspector


@pytest.mark.parametrize("name", ["hebrew", "arabic", "chinese"])
def test_the_token_under_the_pointer_is_found_whichever_way_the_text_runs(view, stream, name):
    pieces = PIECES[name]
    write(view, stream, pieces)
    for index, text in enumerate(pieces):
        if text.strip() != text:
            continue
        (frame,) = view.rectangles(*view.token_range(index))
        assert view.span_at(frame.center().toPoint()).text == text


@pytest.mark.parametrize("name", ["emoji", "accents"])
def test_a_character_that_tokens_cut_up_is_drawn_as_one(view, stream, name):
    pieces = PIECES[name]
    write(view, stream, pieces)
    whole = QTextCursor(view.document())
    whole.setPosition(num_units("P:") + 1)
    first = whole.charFormat()
    # Its parts are of several kinds, but look like its beginning, or they would be drawn apart.
    assert stream.at(2).kind is TokenKind.CORRECTION if name == "emoji" else stream.at(1).kind is TokenKind.ACCEPTED
    count = num_units(FAMILY) if name == "emoji" else 2
    for unit in range(count):
        whole.setPosition(num_units("P:") + unit + 1)
        assert whole.charFormat() == first


@pytest.mark.parametrize(
    ("tail", "text", "joined"),
    [("e", "\u0301x", 1), ("a", "b", 0), ("👍", "🏽!", 1), (FAMILY[:1], FAMILY[1:], len(FAMILY) - 1), ("中", "文", 0)],
)
def test_what_completes_a_character_is_told_from_what_begins_one(tail, text, joined):
    assert num_joined(tail, text) == joined


def test_kept_and_forced_text_look_unlike_the_prompt_and_unlike_each_other(view, stream):
    stream.kept, stream.forced = " kept", " forced"
    write(view, stream, [" a", " b", " c"])
    formats = []
    for text in ("P:", " kept", " forced", " a"):
        cursor = view.document().find(text)
        formats.append(cursor.charFormat())
    assert len({(one.foreground().color().name(), one.background().color().name()) for one in formats}) == 4
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == "P: kept forced a b c"


# --- Long texts ---

NUM_STEPS = 5000


@pytest.fixture(scope="module")
def long_stream():
    stream = TokenStream()
    stream.clear("P:")
    for index in range(NUM_STEPS):
        stream.append(
            make_step(index, 4 * index, num_accepted=3, texts=lambda at: ".\n" if at % 12 == 11 else f" w{at % 9}")
        )
    return stream


def test_a_long_text_is_built_in_slices_and_drawn_anew_out_of_sight(view, qtbot, long_stream):
    view.set_stream(long_stream)
    qtbot.waitUntil(lambda: view.is_whole)
    whole = view.toPlainText()
    assert whole == "P:" + long_stream.text
    view.verticalScrollBar().setValue(300)
    top = view.cursorForPosition(QPoint(0, 0)).position()
    view.set_theme(DARK)
    assert not view.is_whole
    assert view.toPlainText() == whole, "the text that is there stays until the new one is whole"
    qtbot.waitUntil(lambda: view.is_whole)
    assert view.toPlainText() == whole
    first, _ = view.token_range(0)
    cursor = QTextCursor(view.document())
    cursor.setPosition(first + 1)
    assert cursor.charFormat().foreground().color().name() == DARK.accepted
    assert view.cursorForPosition(QPoint(0, 0)).position() == top


def test_steps_that_come_while_a_long_text_is_drawn_anew_are_not_lost(view, qtbot, long_stream):
    stream = TokenStream()
    stream.clear("P:")
    for index in range(3000):
        stream.append(make_step(index, 4 * index, num_accepted=3))
    view.set_stream(stream)
    view.set_ghosts_shown(True)
    stream.append(make_step(3000, 12_000, num_accepted=3))
    view.refresh()
    qtbot.waitUntil(lambda: view.is_whole)
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == "P:" + stream.text


@pytest.fixture
def built(monkeypatch):
    """The steps that are built into pages, while a millisecond passes between two looks at the clock."""
    milliseconds, steps, build = itertools.count(), [], TranscriptPage._append

    def note(page, cursor, step):
        steps.append(step)
        build(page, cursor, step)

    monkeypatch.setattr(TranscriptPage, "_append", note)
    monkeypatch.setattr("app.run.paged_text.time", SimpleNamespace(perf_counter=lambda: next(milliseconds) / 1000))
    return steps


def test_no_single_call_holds_the_window_up_in_a_long_text(view, qtbot, long_stream, built):
    view.set_stream(long_stream)
    qtbot.waitUntil(lambda: view.is_whole)
    calls = {
        "hover": lambda: view.mark_step(4321),
        "select": lambda: view.mark(Place(17, 1)),
        "scrub by one": lambda: view.set_limit(NUM_STEPS - 1),
        "scrub back": lambda: view.set_limit(100),
        "scrub on": lambda: view.set_limit(None),
        "theme": lambda: view.set_theme(DARK),
    }
    for name, call in calls.items():
        built.clear()
        call()
        assert len(built) <= CHUNK * SLICE_MS, name
    qtbot.waitUntil(lambda: view.is_whole)
    assert len(built) == NUM_STEPS


def test_a_page_that_is_given_up_while_it_is_built_leaves_nothing(view, stream, qtbot):
    for index in range(6_000):
        stream.append(make_step(index, 3 * index))
    for theme in (DARK, LIGHT, DARK, LIGHT):
        view.set_theme(theme)
        assert not view.is_whole
    view.set_stream(stream)
    qtbot.waitUntil(lambda: view.is_whole and len(view.findChildren(QTextDocument)) == 1, timeout=20_000)
