"""The transcript shows each token as what it is, explains it, copies exactly, and can be walked through.

Whatever the script: characters stay whole, and every token can be reached.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QHelpEvent, QTextCursor

from app.run.text.token_colors import token_formats
from app.run.text.token_text import num_joined
from app.run.text.tokens import GHOSTS, KINDS, Fate, Place, Span, TokenStream, block, num_units
from app.run.text.transcript import TranscriptView, tooltip
from app.theme import DARK, LIGHT
from core.settings import Coupling
from core.types import TokenKind
from tests.fakes_app import cursor_at, make_step

PROMPT = "Once upon"


@pytest.fixture
def stream():
    return TokenStream(PROMPT)


@pytest.fixture
def view(show_at, sound_binding, stream):
    view = TranscriptView()
    view.set_stream(stream)
    return show_at(view, 500, 300)


def at(stream, position):
    """The token at a position of the sequence."""
    number, step = next((i, s) for i, s in enumerate(stream.steps) if position < s.position + len(s.emitted))
    return next(s for s in block(step, number) if s.fate in KINDS and s.slot == position - step.position)


def ghosts(stream, number):
    return [span for span in block(stream.steps[number], number) if span.fate in GHOSTS]


def add(view, stream, *steps):
    stream.steps += steps
    view.refresh()


def format_at(view, position):
    return cursor_at(view, position + 1).charFormat()


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_each_kind_has_its_colour_and_its_line(view, stream, theme, apply_theme):
    apply_theme(theme)
    add(view, stream, make_step(0, 2, num_accepted=1), make_step(1, 4, num_accepted=4))
    for position, kind in ((2, TokenKind.ACCEPTED), (3, TokenKind.CORRECTION), (8, TokenKind.BONUS)):
        assert KINDS[at(stream, position).fate] is kind
        first, last = view.place_range(at(stream, position).place)
        assert last > first
        shown = format_at(view, first)
        assert shown.foreground().color().name() == theme.kind(kind).color
        assert shown.underlineStyle() == theme.kind(kind).underline
    assert format_at(view, 0).foreground().color().name() == theme.muted


def test_a_token_of_a_step_that_drafted_nothing_looks_like_any_text_and_says_so(view, stream):
    add(view, stream, make_step(0, 2, num_draft_tokens=0, num_accepted=0), make_step(1, 3, num_accepted=4))
    plain, bonus = at(stream, 2), at(stream, 7)
    assert (plain.fate, bonus.fate) == (Fate.PLAIN, Fate.BONUS)
    shown = format_at(view, view.place_range(plain.place)[0])
    assert shown.background().style() is Qt.BrushStyle.NoBrush
    assert shown.underlineStyle() is shown.UnderlineStyle.NoUnderline
    assert shown.foreground().color().name() == LIGHT.text
    assert "Nothing was drafted" in tooltip(plain, stream)


def test_ghosts_are_struck_through_break_no_lines_are_not_copied_and_go_again(view, stream):
    add(view, stream, replace(make_step(0, 2, num_accepted=1), drafted_texts=(" t2", "no\n\n", "    ", "x\n  y")))
    before = view.toPlainText()
    assert before == "Once upon t2 t3"
    view.set_ghosts_shown(True)
    shown = view.toPlainText()
    assert shown.startswith("Once upon t2")
    assert shown.endswith(" t3")
    assert "no↵↵⇥x↵⇥y" in shown, "without the indents, which would be gaps in the line"
    assert "\n" not in shown
    assert format_at(view, len("Once upon t2")).fontStrikeOut()
    assert not format_at(view, len(PROMPT)).fontStrikeOut()
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == before
    view.set_ghosts_shown(False)
    assert view.toPlainText() == before
    view._insert([Span(Fate.DRAFTED, text) for text in ("\n", "        ", "return")])
    assert view.toPlainText().endswith("↵⇥return"), "the same while a draft waits"


def test_the_first_ghost_was_rejected_and_the_rest_not_tested(view, stream):
    view.set_ghosts_shown(True)
    ended = make_step(1, 4, num_draft_tokens=4, num_accepted=2)
    ended = replace(ended, emitted=ended.emitted[:2], emitted_kinds=ended.emitted_kinds[:2], emitted_texts=(" a", "."))
    add(view, stream, make_step(0, 2, num_draft_tokens=4, num_accepted=1), ended)
    assert [ghost.fate for ghost in ghosts(stream, 0)] == [Fate.REJECTED, Fate.UNTESTED, Fate.UNTESTED]
    assert view.toPlainText().endswith(" a."), "a text that ends within the block leaves none"


def test_the_tooltip_gives_step_kind_and_probabilities(stream):
    stream.steps.append(make_step(0, 2, num_accepted=1))
    stream.steps.append(make_step(1, 4, num_accepted=4, texts=lambda _position: "<b>&"))
    spans = (at(stream, 2), at(stream, 3), *ghosts(stream, 0)[:2], at(stream, 4))
    for span, parts in zip(
        spans,
        (
            ("accepted", "Step", ">1<", "0.6000", "0.5000", "1.0000", "1002", "t2"),
            ("resampled", "In place of", "0.1000", "0.2000", "Drawn in place of the rejected token."),
            ("rejected",),
            ("not tested",),
            ("&lt;b&gt;&amp;",),
        ),
        strict=True,
    ):
        assert [part for part in parts if part not in tooltip(span, stream)] == []
    bonus = tooltip(at(stream, 8), stream)
    assert "bonus" in bonus
    assert "probability" not in bonus
    unknown = (math.nan,) * 4
    changes = {"draft_probs": unknown, "target_probs": unknown, "acceptance_probs": unknown}
    stream.steps.append(replace(make_step(2, 9, num_accepted=1), **changes))
    assert "nan" not in tooltip(at(stream, 9), stream), "a server doesn't report them"


def test_with_shared_noise_the_tooltip_shows_the_targets_own_draw(view, stream, monkeypatch):
    stream.coupling = Coupling.GUMBEL
    view.set_stream(stream)
    add(view, stream, make_step(0, 2, num_accepted=1))
    spans = (at(stream, 2), at(stream, 3), *ghosts(stream, 0)[:2])
    texts = [tooltip(span, stream) for span in spans]
    assert not any("esidual" in text or "Acceptance probability" in text for text in texts)
    assert all("own draw under the shared noise" in text for text in texts[:3])
    shown = []
    monkeypatch.setattr("app.run.text.transcript.QToolTip.showText", lambda _place, text, _widget: shown.append(text))
    monkeypatch.setattr(view, "span_at", lambda _point: spans[0])
    view.viewportEvent(QHelpEvent(QEvent.Type.ToolTip, QPoint(5, 5), QPoint(5, 5)))
    assert shown == texts[:1]


def test_every_token_is_found_under_the_pointer_and_highlighted(view, stream, qtbot):
    view.set_ghosts_shown(True)
    add(view, stream, make_step(0, 2, num_accepted=1), make_step(1, 4, num_accepted=4))
    for index, span in enumerate(view._spans):
        first, last = view._extent(index)
        for position in range(first, last) if span.step >= 0 else ():
            left, right = (view.cursorRect(cursor_at(view, place)) for place in (position, position + 1))
            if left.top() == right.top():
                assert view.span_at(QPoint((left.x() + right.x()) // 2 + 1, left.center().y())) is span
    assert view.span_at(view.cursorRect(cursor_at(view, 2)).center()) is None
    assert any(span.fate in GHOSTS for span in view._spans)
    first, last = view.place_range(at(stream, 2).place)
    qtbot.mouseMove(view.viewport(), view.cursorRect(cursor_at(view, first + 1)).center())
    (selection,) = view.extraSelections()
    assert (selection.cursor.selectionStart(), selection.cursor.selectionEnd()) == (first, last)


def test_the_text_is_followed_unless_the_reader_scrolled_away(view, stream, qtbot):
    bar = view.verticalScrollBar()
    for index in range(40):
        add(view, stream, make_step(index, 2 + 3 * index, texts=lambda position: f"line {position}\n"))
    assert bar.maximum() > 0
    assert bar.value() == bar.maximum()
    bar.setValue(3)
    add(view, stream, make_step(40, 200, texts=lambda position: f"line {position}\n"))
    assert bar.value() == 3


def test_a_selection_does_not_grow_with_the_text(view, stream):
    add(view, stream, make_step(0, 2, num_accepted=2))
    view.selectAll()
    add(view, stream, make_step(1, 5, num_accepted=2))
    assert view.createMimeDataFromSelection().text() == "Once upon t2 t3 t4"


# --- Any script ---

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


def write(view, stream, pieces):
    """Steps of two accepted tokens and a resampled one, with these texts."""
    add(view, stream, *(make_step(i // 3, i, texts=lambda at: pieces[at]) for i in range(0, len(pieces), 3)))


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("name", PIECES)
def test_copies_are_exactly_what_was_emitted(view, stream, name, shown):
    view.set_ghosts_shown(shown)
    write(view, stream, PIECES[name])
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == PROMPT + "".join(PIECES[name])
    assert view._extent(len(view._spans) - 1)[1] == view.document().characterCount() - 1


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


def test_a_token_without_text_has_a_frame_too(view, stream):
    write(view, stream, PIECES["parts"])
    view.choose(Place(0, 0))
    (frame,) = view.rectangles(*view.place_range(Place(0, 0)))
    assert 0 < frame.width() < 10
    assert "(no text)" in view.accessibleDescription()


@pytest.mark.parametrize(
    ("tail", "text", "joined"),
    [("e", "\u0301x", 1), ("a", "b", 0), ("👍", "🏽!", 1), (FAMILY[:1], FAMILY[1:], len(FAMILY) - 1), ("中", "文", 0)],
)
def test_what_completes_a_character_is_joined_to_it(tail, text, joined):
    assert num_joined(tail, text) == joined


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


def test_untested_drafts_are_walked_through_where_they_are_shown(view, stream, qtbot):
    view.set_ghosts_shown(True)
    stream.steps.append(make_step(0, 0, num_draft_tokens=4, num_accepted=1))
    stream.steps.append(make_step(1, 2, num_draft_tokens=2, num_accepted=2))
    view.refresh()
    view.choose(Place(0, 0))
    walked = []
    for _ in range(5):
        qtbot.keyClick(view, Qt.Key.Key_Right)
        walked.append(view._selected)
    assert walked == [Place(0, 1), Place(0, 2), Place(0, 3), Place(1, 0), Place(1, 1)]
    view.choose(Place(0, 1))
    assert view.selected_span().fate is Fate.RESAMPLED, "the token that was drawn, not the one that was rejected there"


def test_a_click_brings_the_inspector_to_the_front_and_the_keys_leave_the_page_that_is_read(
    make_window, run_to_end, qtbot
):
    window = make_window(is_shown=True)
    run_to_end(window)
    view = window.transcript.view
    window.side.setCurrentWidget(window.speed)
    qtbot.keyClick(view, Qt.Key.Key_Left)
    window.playback._on_step_clicked(0)
    assert window.side.currentWidget() is window.speed
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
        (frame,) = view.rectangles(*view.place_range(at(stream, index).place))
        assert view.span_at(frame.center().toPoint()).text == text


@pytest.mark.parametrize("name", ["emoji", "accents"])
def test_a_character_that_tokens_cut_up_is_drawn_as_one(view, stream, name):
    pieces = PIECES[name]
    write(view, stream, pieces)
    whole = QTextCursor(view.document())
    whole.setPosition(num_units(PROMPT) + 1)
    first = whole.charFormat()
    # Its parts are of several kinds, but look like its beginning, or they would be drawn apart.
    count = num_units(FAMILY) if name == "emoji" else 2
    for unit in range(count):
        whole.setPosition(num_units(PROMPT) + unit + 1)
        assert whole.charFormat() == first


def test_prompt_kept_text_and_forced_text_look_different(view, stream):
    stream.kept, stream.forced = " kept", " forced"
    write(view, stream, [" a", " b", " c"])
    formats = []
    for text in (PROMPT, " kept", " forced", " a"):
        cursor = view.document().find(text)
        formats.append(cursor.charFormat())
    assert len({(one.foreground().color().name(), one.background().color().name()) for one in formats}) == 4
    view.selectAll()
    assert view.createMimeDataFromSelection().text() == PROMPT + " kept forced a b c"


def test_a_long_text_keeps_its_scroll_position_in_another_theme(view, stream, apply_theme):
    for index in range(2000):
        stream.steps.append(
            make_step(index, 4 * index, num_accepted=3, texts=lambda at: ".\n" if at % 12 == 11 else " w")
        )
    view.refresh()
    assert view.toPlainText() == PROMPT + "".join(step.emitted_text for step in stream.steps)
    view.verticalScrollBar().setValue(300)
    top = view.cursorForPosition(QPoint(0, 0)).position()
    apply_theme(DARK)
    assert format_at(view, len(PROMPT)).foreground().color().name() == DARK.accepted
    assert abs(view.cursorForPosition(QPoint(0, 0)).position() - top) < 40


def test_a_selected_token_stays_in_view_in_a_smaller_window_and_at_another_size_of_the_text(view, stream, apply_theme):
    steps = [make_step(index, 4 * index, num_accepted=3, texts=lambda at: ".\n") for index in range(200)]
    add(view, stream, *steps)
    view.verticalScrollBar().setValue(300)
    bottom = view.span_at(QPoint(5, view.viewport().height() - 30))
    view.choose(bottom.place)
    for change in (
        lambda: view.resize(view.width(), view.height() // 2),
        lambda: view.resize(view.width() // 3, view.height() // 2),
        lambda: apply_theme(LIGHT, 1.5),
    ):
        change()
        (frame,) = view.rectangles(*view.place_range(bottom.place))
        assert view.viewport().rect().contains(frame.center().toPoint())


def test_the_end_stays_in_view_at_another_size_of_the_text(view, stream, apply_theme):
    add(view, stream, *(make_step(index, 4 * index, num_accepted=3, texts=lambda at: ".\n") for index in range(200)))
    assert view.is_at_end
    for scale in (1.5, 1.0):
        apply_theme(LIGHT, scale)
        assert view.is_at_end


def test_the_legend_has_every_kind_and_the_ghosts_where_they_are_shown(make_window):
    window = make_window(is_shown=True)
    words = window.transcript._words
    assert list(words) == [*KINDS, Fate.DRAFTED, Fate.REJECTED, Fate.UNTESTED]
    ghosts = {fate: words[fate] for fate in (Fate.REJECTED, Fate.UNTESTED)}
    assert not any(sample.isVisibleTo(window) for sample in ghosts.values())
    window.menus.show_ghosts.setChecked(True)
    assert all(sample.isVisibleTo(window) for sample in ghosts.values())
    formats = [token_formats()[fate] for fate in (*ghosts, Fate.PROMPT)]
    assert [(each.fontStrikeOut(), each.fontItalic()) for each in formats] == [(1, 0), (0, 1), (0, 0)]


@pytest.mark.parametrize("length", [5, 20, 60])
def test_a_text_that_is_shown_all_at_once_is_shown_at_its_end(view, qapp, length):
    for width in range(300, 520, 20):
        view.resize(width, 200)
        shown = TokenStream(PROMPT)
        shown.steps += [make_step(n, 9 + 3 * n, texts=lambda at: " word" * length + "\n" * (at % 3)) for n in range(9)]
        shown.steps += [make_step(9 + n, 36 + 3 * n, texts=lambda at: f"{at}\n") for n in range(4)]
        view.set_stream(shown)
        view.grab()  # Lines are laid out when they are painted.
        qapp.processEvents()
        assert view.is_at_end
