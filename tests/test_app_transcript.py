"""The transcript shows each token as what it is, explains it, and copies clean."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QPoint
from PySide6.QtGui import QHelpEvent, QTextCursor

from app.run.paged_text import Written
from app.run.tokens import Ghost, TokenStream
from app.run.transcript import TranscriptView, tooltip
from app.theme import DARK, LIGHT
from core.types import Coupling, TokenKind
from tests.fakes_app import make_step


@pytest.fixture
def stream():
    stream = TokenStream()
    stream.clear("Once upon")
    return stream


@pytest.fixture
def view(qtbot, sound_binding, stream):
    view = TranscriptView()
    qtbot.addWidget(view)
    view.resize(500, 300)
    view.set_theme(LIGHT)
    view.set_stream(stream)
    return view


def add(view, stream, *steps):
    for step in steps:
        stream.append(step)
    view.refresh()


def format_at(view, position):
    cursor = QTextCursor(view.document())
    cursor.setPosition(position + 1)
    return cursor.charFormat()


def select_all_and_copy(view):
    view.selectAll()
    return view.createMimeDataFromSelection().text()


def test_tokens_come_after_the_prompt_in_order(view, stream):
    add(view, stream, make_step(0, 2, num_accepted=2), make_step(1, 5, num_accepted=4))
    assert view.toPlainText() == "Once upon t2 t3 t4 t5 t6 t7 t8 t9"


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_each_kind_has_its_colour_and_its_line(view, stream, theme):
    view.set_theme(theme)
    add(view, stream, make_step(0, 2, num_accepted=1), make_step(1, 4, num_accepted=4))
    for position, kind in ((2, TokenKind.ACCEPTED), (3, TokenKind.CORRECTION), (8, TokenKind.BONUS)):
        assert stream.at(position).kind is kind
        first, last = view.token_range(position)
        assert last > first
        shown = format_at(view, first)
        assert shown.foreground().color().name() == theme.kind(kind).color
        assert shown.underlineStyle() == theme.kind(kind).underline
    assert format_at(view, 0).foreground().color().name() == theme.muted


def test_ghosts_are_struck_through_where_the_draft_was_rejected_and_only_when_wanted(view, stream):
    add(view, stream, make_step(0, 2, num_draft_tokens=4, num_accepted=1))
    before = view.toPlainText()
    assert before == "Once upon t2 t3"
    view.set_ghosts_shown(True)
    ghosts = [ghost.text for ghost in stream.steps[0].ghosts]
    assert len(ghosts) == 3
    assert view.toPlainText().startswith("Once upon t2")
    assert view.toPlainText().endswith(" t3")
    assert format_at(view, len("Once upon t2")).fontStrikeOut()
    assert not format_at(view, len("Once upon")).fontStrikeOut()
    view.set_ghosts_shown(False)
    assert view.toPlainText() == before


def test_the_first_ghost_was_rejected_and_the_rest_discarded(stream):
    stream.append(make_step(0, 2, num_draft_tokens=4, num_accepted=1))
    assert [ghost.tested for ghost in stream.steps[0].ghosts] == [True, False, False]


def test_a_text_that_ends_within_the_block_leaves_no_ghosts(stream):
    from dataclasses import replace

    step = make_step(0, 2, num_draft_tokens=4, num_accepted=2)
    stream.append(replace(step, emitted=step.emitted[:2], emitted_kinds=step.emitted_kinds[:2]))
    assert stream.steps[0].ghosts == ()
    assert stream.num_tokens == 2


def test_ghosts_break_no_lines_and_are_not_copied(view, stream):
    from dataclasses import replace

    step = replace(make_step(0, 2, num_accepted=1), drafted_texts=(" t2", "\n\n", "\tx", " y"))
    view.set_ghosts_shown(True)
    add(view, stream, step)
    assert "\n" not in view.toPlainText()
    assert "↵↵" in view.toPlainText()
    assert select_all_and_copy(view) == "Once upon t2 t3"


@pytest.mark.parametrize("text", [" 😀", " é", "\n", "\n    \t", " 𝔘𝔫", ""])
def test_copies_are_exact_whatever_the_text(view, stream, text):
    view.set_ghosts_shown(True)
    add(view, stream, make_step(0, 2, num_accepted=1, texts=lambda position: text), make_step(1, 4, num_accepted=4))
    assert select_all_and_copy(view) == "Once upon" + text * 2 + " t4 t5 t6 t7 t8"


def test_a_part_that_cuts_through_a_ghost_copies_only_what_was_emitted(view, stream):
    view.set_ghosts_shown(True)
    add(view, stream, make_step(0, 2, num_accepted=1))
    ghost_start = len("Once upon t2")
    assert view.plain_text(ghost_start + 1, view.document().characterCount() - 1) == " t3"
    assert view.plain_text(5, ghost_start + 2) == "upon t2"
    assert view.plain_text(ghost_start + 1, ghost_start + 2) == ""


def test_the_tooltip_tells_step_kind_and_probabilities(stream):
    stream.append(make_step(0, 2, num_accepted=1))
    accepted = tooltip(stream.at(2))
    for part in ("accepted", "Step", ">0<", "0.6000", "0.5000", "1.0000", "1002", "t2"):
        assert part in accepted
    resampled = tooltip(stream.at(3))
    for part in ("resampled", "In place of", "0.1000", "0.2000", "residual"):
        assert part in resampled
    ghost = tooltip(stream.steps[0].ghosts[0])
    assert "rejected" in ghost
    discarded = tooltip(stream.steps[0].ghosts[1])
    assert "discarded" in discarded
    assert "counts as drafted, not as rejected" in discarded


def test_with_shared_gumbel_noise_the_tooltip_tells_of_the_targets_own_draw(view, stream, monkeypatch):
    stream.clear("Once upon", Coupling.GUMBEL)
    view.set_stream(stream)
    add(view, stream, make_step(0, 2, num_accepted=1))
    rejected, discarded = stream.steps[0].ghosts[:2]
    told = [tooltip(span, stream.coupling) for span in (stream.at(2), stream.at(3), rejected, discarded)]
    assert not any("esidual" in text or "Acceptance probability" in text for text in told)
    assert "own draw under the shared noise equals" in told[0]
    assert all("own draw under the shared noise" in text and "differs" in text for text in told[1:3])
    shown = []
    monkeypatch.setattr("app.run.transcript.QToolTip.showText", lambda _place, text, _widget: shown.append(text))
    monkeypatch.setattr(view, "span_at", lambda _point: stream.at(2))
    view.viewportEvent(QHelpEvent(QEvent.Type.ToolTip, QPoint(5, 5), QPoint(5, 5)))
    assert shown == told[:1]


def test_the_legend_explains_the_coupling_of_the_run(window, run_to_end):
    resampled = window.transcript._samples[TokenKind.CORRECTION]
    assert "residual" in resampled.toolTip()
    window.controls.sampling.coupling.choose(Coupling.GUMBEL)
    run_to_end(window)
    assert window.run_view.tokens.coupling is Coupling.GUMBEL
    assert "residual" not in resampled.toolTip()
    assert "differs" in resampled.accessibleName()
    window.controls.sampling.coupling.choose(Coupling.REJECTION)
    run_to_end(window)
    assert "residual" in resampled.toolTip()


def test_the_tooltip_of_a_bonus_token_has_no_probabilities_to_tell(stream):
    stream.append(make_step(0, 2, num_accepted=4))
    text = tooltip(stream.at(6))
    assert "bonus" in text
    assert "probability" not in text


def test_a_token_that_looks_like_markup_is_shown_as_it_is(stream):
    stream.append(make_step(0, 2, num_accepted=4, texts=lambda _position: "<b>&"))
    assert "&lt;b&gt;&amp;" in tooltip(stream.at(2))


def test_every_token_is_found_under_the_pointer(view, stream, qtbot):
    view.set_ghosts_shown(True)
    with qtbot.waitExposed(view):
        view.show()
    add(view, stream, make_step(0, 2, num_accepted=1), make_step(1, 4, num_accepted=4))
    for index, span in enumerate(view._page.spans):
        first, last = view._page.extent(index)
        for position in range(first, last) if not isinstance(span, Written) else ():
            left, right = (view.cursorRect(cursor_at(view, place)) for place in (position, position + 1))
            if left.top() == right.top():
                assert view.span_at(QPoint((left.x() + right.x()) // 2 + 1, left.center().y())) is span
    assert view.span_at(view.cursorRect(cursor_at(view, 2)).center()) is None
    assert any(isinstance(span, Ghost) for span in view._page.spans)


def cursor_at(view, position):
    cursor = QTextCursor(view.document())
    cursor.setPosition(position)
    return cursor


def test_the_token_under_the_pointer_is_highlighted(view, stream, qtbot):
    with qtbot.waitExposed(view):
        view.show()
    add(view, stream, make_step(0, 2, num_accepted=1))
    first, last = view.token_range(2)
    place = view.cursorRect(cursor_at(view, first + 1)).center()
    qtbot.mouseMove(view.viewport(), place)
    (selection,) = view.extraSelections()
    assert (selection.cursor.selectionStart(), selection.cursor.selectionEnd()) == (first, last)


def test_the_text_is_followed_unless_the_reader_scrolled_away(view, stream, qtbot):
    with qtbot.waitExposed(view):
        view.show()
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


def test_a_new_run_starts_with_its_prompt_alone(view, stream):
    add(view, stream, make_step(0, 2))
    stream.clear("Other")
    view.set_stream(stream)
    assert view.toPlainText() == "Other"
    assert stream.at(2) is None


def test_refreshing_adds_only_what_is_new(view, stream, monkeypatch):
    add(view, stream, make_step(0, 2))
    inserted = []
    page = view._page
    insert = page._insert
    monkeypatch.setattr(page, "_insert", lambda *args: (inserted.append(args[1].text), insert(*args)))
    view.refresh()
    assert inserted == []
    add(view, stream, make_step(1, 5))
    assert inserted == [" t5", " t6", " t7"]


def test_the_legend_shows_kinds_as_the_transcript_does(make_window):
    window = make_window(is_shown=True)
    samples = window.transcript._samples
    assert set(samples) == set(TokenKind)
    assert not window.transcript._ghost_sample.isVisibleTo(window)
    window.menus.show_ghosts.setChecked(True)
    assert window.transcript._ghost_sample.isVisibleTo(window)
    assert "kept" in samples[TokenKind.ACCEPTED].toolTip()
