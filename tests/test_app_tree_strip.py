"""What stands in the strip of a tree is whole: its caption at every width, and its upper edge in a low view."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QFontMetricsF, QTextCursor

from app.run.text.tokens import TokenStream
from app.run.text.transcript import TranscriptView
from app.run.text.tree_lanes import LanePicture, lanes_of
from app.theme import ui_font
from tests.fakes_app import make_step
from tests.fakes_trees import tree_step

PARENTS = [-1, -1, -1, 1, 1, 3, 3, 0, 4, -1]


@pytest.mark.parametrize("width", range(120, 640, 40))
def test_the_caption_is_never_cut_below_the_number_of_paths_that_are_not_shown(qapp, width):
    stream = TokenStream("Once", steps=[tree_step(0, 2, PARENTS, [1, 3])])
    picture, area = LanePicture(lanes_of(stream, 0)), QRectF(10, 20, width, 120)
    text, place = picture.caption_at(area)
    assert text in {"2 of 10 nodes accepted · 3 more paths", "3 more paths"}
    assert QFontMetricsF(ui_font(10)).horizontalAdvance(text) <= place.width()
    assert area.contains(place)
    tokens = picture._places(area).values()
    assert not any(place.intersects(token) for token in tokens)


@pytest.mark.parametrize("num_after", [0, 1, 40])
def test_at_its_end_a_text_in_a_low_view_starts_with_the_upper_edge_of_the_tree_and_is_still_followed(
    show_at, sound_binding, num_after
):
    stream, view = TokenStream("Once"), TranscriptView()
    view.set_ghosts_shown(True)
    view.set_stream(stream)
    show_at(view, 400, 80)
    stream.steps += [make_step(n, 9 * n, texts=lambda _at: " word\n") for n in range(20)]
    stream.steps.append(tree_step(20, 200, PARENTS, [1, 3]))
    view.refresh()
    for number in range(21, 21 + num_after):
        stream.steps.append(
            make_step(number, 300 + 9 * number, num_draft_tokens=0, num_accepted=0, texts=lambda _at: "x\n")
        )
        view.refresh()
    area, bar = view._strip_area(), view.verticalScrollBar()
    assert view.follows_end
    assert view.is_at_end
    if num_after < 40:
        assert 0 <= area.top() < view.fontMetrics().height()
        bar.setValue(bar.maximum())
        assert view.follows_end
        bar.setValue(2)
        assert not view.follows_end
    else:
        assert bar.value() == bar.maximum()


def test_a_view_that_scrolls_before_its_strip_is_written_knows_where_its_end_is(show_at, sound_binding, monkeypatch):
    stream, view, ends = TokenStream("Once"), TranscriptView(), []
    stream.steps += [tree_step(number, 2 + 9 * number, PARENTS, [1, 3]) for number in range(2)]
    view.set_ghosts_shown(True)
    view.set_stream(stream)
    show_at(view, 400, 80)
    view.show_tree(0)

    class Cursor(QTextCursor):
        """Lays out lines as it moves, as Qt sometimes does, so that the view scrolls."""

        def setPosition(self, position):  # noqa: N802
            super().setPosition(position)
            ends.append(view.is_at_end)

    monkeypatch.setattr("app.run.text.tree_text.QTextCursor", Cursor)
    view.show_tree(None)
    assert view._shown_tree == 1
    assert len(ends) == 1


def test_a_text_that_is_written_anew_as_in_another_theme_does_not_fade_again(show_at):
    stream, view = TokenStream("Once", steps=[tree_step(0, 2, PARENTS, [1, 3])]), TranscriptView()
    view.set_ghosts_shown(True)
    view.set_stream(stream)
    show_at(view, 400, 200)
    view._changed_at = 0.0
    view._rebuild()
    assert view._picture.progress == 1.0
