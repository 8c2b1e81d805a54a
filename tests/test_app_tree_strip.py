"""What stands in the strip of a tree is whole: its caption at every width, and its upper edge in a low view."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QRectF
from PySide6.QtGui import QFontMetricsF

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
