"""Trees in the transcript: the path in the text, how many candidates stood where, and one tree's paths in a strip.

Whatever is shown beside it, the text is exactly what was emitted, and every token is where it says it is.
"""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication

from app.run.text.branches import choices
from app.run.text.tokens import Fate, Place, TokenStream
from app.run.text.transcript import TranscriptView, tooltip
from app.run.text.tree_lanes import LEAST_GAP, LINES, MARGIN, MOST_OTHERS, LanePicture, chosen_paths, lanes_of, paths_of
from app.run.text.tree_text import FADE_MS
from app.theme import DARK, LIGHT
from app.tools.step_picture import example, picture_of
from core.types import depths_of
from tests.fakes_app import make_step
from tests.fakes_trees import drafted, random_tree, tree_step

PROMPT = "Once upon"
#                0   1   2  3  4  5  6   7   8   9
PARENTS = [-1, -1, -1, 1, 1, 3, 3, 0, 4, -1]
PATH = [1, 3]
"""Of the first three candidates the second is accepted, then its first child; of that one's children none."""


@pytest.fixture
def stream():
    return TokenStream(PROMPT)


@pytest.fixture
def view(show_at, sound_binding, stream):
    view = TranscriptView()
    view.set_stream(stream)
    return show_at(view, 520, 360)


def add(view, stream, *steps):
    stream.steps += steps
    view.refresh()


def emitted(stream):
    return PROMPT + "".join(step.emitted_text for step in stream.steps)


def copied(view):
    view.selectAll()
    return view.createMimeDataFromSelection().text()


def forks(view):
    return [span.text[:1] for span in view._spans if span.fate is Fate.FORK]


# --- The text ---


def test_the_path_is_in_the_text_with_the_number_of_others_before_each_token_and_found_under_the_pointer(view, stream):
    add(view, stream, tree_step(0, 2, PARENTS, PATH))
    assert copied(view) == "Once upon n1 n3 end"
    assert [(span.fate, span.text[:1]) for span in view._spans[1::2]] == [
        (Fate.FORK, "3"),
        (Fate.FORK, "1"),
        (Fate.FORK, "2"),
    ]
    for span in (span for span in view._spans if span.step >= 0 and span.fate is not Fate.FORK):
        (frame,) = view.rectangles(*view.place_range(span.place))
        for x in (frame.left() + 0.5, frame.center().x(), frame.right() - 1):
            assert view.span_at(QPoint(round(x), round(frame.center().y()))).place == span.place
    token = view._spans[2]
    assert "Other candidates&nbsp;&nbsp;</td><td align='right'>3<" in tooltip(token, stream)
    add(view, stream, tree_step(1, 5, [-1] * 12 + [0], [0, 12]), make_step(2, 8))
    assert forks(view)[3:] == ["+"], "eleven others; a leaf's bonus and a chain have none"


def test_the_numbers_take_no_room_in_the_line_and_a_chain_has_none(view, stream, show_at):
    add(view, stream, tree_step(0, 2, PARENTS, PATH))
    plain = TokenStream(
        PROMPT, steps=[make_step(0, 2, num_accepted=2, texts=lambda at: (" n1", " n3", " end")[at - 2])]
    )
    chain = TranscriptView()
    chain.set_stream(plain)
    show_at(chain, 520, 360)
    lines = [one.document().firstBlock().layout().lineAt(0) for one in (view, chain)]
    assert lines[0].naturalTextWidth() == pytest.approx(lines[1].naturalTextWidth(), abs=0.5)
    assert lines[0].height() > lines[1].height(), "they stand above the text"
    assert (forks(chain), chain.toPlainText()) == ([], "Once upon n1 n3 end")


def test_a_number_does_not_cut_a_character_that_two_tokens_make_up(view, stream):
    add(view, stream, tree_step(0, 2, [-1, -1, 0, 0], [0, 2], texts=["e", "x", "\u0301", "y"], added="!"))
    assert "e\u0301!" in view.toPlainText()
    assert forks(view) == ["1", ""]


# --- Lanes ---


def test_the_accepted_path_comes_first_then_those_that_lost_a_test(stream):
    step = tree_step(0, 2, PARENTS, PATH)
    stream.steps.append(step)
    lanes = lanes_of(stream, 0)
    rows = {}
    for cell in lanes.cells:
        rows.setdefault(cell.lane, []).append((cell.column, cell.span.text, cell.span.fate))
    assert rows == {
        0: [(0, " n1", Fate.ACCEPTED), (1, " n3", Fate.ACCEPTED), (2, " end", Fate.RESAMPLED)],
        1: [(2, " n5", Fate.REJECTED)],
        2: [(2, " n6", Fate.REJECTED)],
        3: [(0, " n0", Fate.REJECTED), (1, " n7", Fate.UNTESTED)],
    }
    assert lanes.num_hidden == 3, "n2, n9, and n4 with n8"
    assert LanePicture(lanes).caption_at(QRectF(0, 0, 600, 120))[0] == "2 of 10 nodes accepted · 3 more paths"


@pytest.mark.parametrize("seed", range(40))
def test_every_node_is_in_one_lane_and_no_branch_crosses_a_lane(seed):
    source = random.Random(seed)
    parents, path = random_tree(source, source.randint(1, 40))
    found = paths_of(parents, path)
    assert found[0] == path
    assert sorted(node for lane in found for node in lane) == list(range(len(parents)))
    shown, hidden = chosen_paths(parents, path, tree_step(0, 2, parents, path).tested)
    assert (len(shown), len(shown) + hidden) == (min(len(found), 1 + MOST_OTHERS), len(found))
    depths, row_of = depths_of(parents), {node: row for row, lane in enumerate(shown) for node in lane}
    for row, lane in enumerate(shown[1:], start=1):
        start, column = row_of.get(parents[lane[0]], 0), depths[lane[0]]
        assert start < row
        for between in shown[start + 1 : row]:
            assert min(depths[node] for node in between) >= column


# --- The strip ---


@pytest.mark.parametrize("added", [" end", " end\n"])
def test_show_rejected_opens_a_strip_under_the_line_of_the_latest_tree_and_nothing_of_it_is_copied(view, stream, added):
    add(view, stream, tree_step(0, 2, PARENTS, PATH, added=added), tree_step(1, 5, [-1, -1, 0], [1]))
    before = view.toPlainText()
    assert view._strip_area().isEmpty()
    view.set_ghosts_shown(True)
    assert view._shown_tree == 1
    area, end = view._strip_area(), view.rectangles(*view.place_range(Place(1, 3)))[-1]
    assert end.bottom() <= area.top() < end.bottom() + 4
    assert copied(view) == emitted(stream)
    assert " n0" not in view.toPlainText(), "not in the text, as a chain's would be"
    view.show_tree(0)
    area, after = view._strip_area(), view.rectangles(*view.place_range(Place(1, 1)))[0]
    assert view._shown_tree == 0
    assert after.top() == pytest.approx(area.bottom(), abs=1.5), "the text goes on right below it"
    assert area.top() >= view.rectangles(*view.place_range(Place(0, 3)))[-1].bottom() - 1
    view.set_ghosts_shown(False)
    assert view.toPlainText() == before


def test_a_chains_rejected_drafts_are_in_the_text_as_before_and_open_no_strip(view, stream):
    view.set_ghosts_shown(True)
    add(view, stream, make_step(0, 2, num_accepted=1))
    assert view._strip is None
    assert " t2" in view.toPlainText()
    assert sum(span.fate is Fate.UNTESTED for span in view._spans) == 2
    view.show_tree(0)
    assert view._strip is None


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_shown_the_text_is_what_was_emitted_and_each_token_is_at_its_place(view, stream, seed):
    source, pieces = (
        random.Random(seed),
        [" a", "\n", "b\n\n", "    ", "e", "\u0301", "", " long word", "👍", "🏽", "\n\nx"],
    )
    for _ in range(30):
        act = source.randrange(6)
        number, position = len(stream.steps), 2 + sum(len(step.emitted) for step in stream.steps)
        parents, path = random_tree(source, source.randint(1, 9))
        made = tree_step(number, position, parents, path, texts=source.choices(pieces, k=len(parents)),
                         added=source.choice(pieces))  # fmt: skip
        if act < 2:
            stream.pending = ()
            add(view, stream, source.choice([made, make_step(number, position, texts=lambda _: source.choice(pieces))]))
        elif act == 2:
            stream.draft(drafted(made))
            view.refresh()
        elif act == 3:
            view.set_ghosts_shown(source.random() < 0.7)
        elif act == 4 and stream.steps:
            view.mark(Place(source.randrange(number), 0))
        else:
            view.set_limit(source.choice([None, source.randint(0, number)]))
            view.set_limit(None)
        text = view.toPlainText()
        assert view._extent(len(view._spans) - 1)[1] == view.document().characterCount() - 1
        assert view._starts == sorted(view._starts)
        assert view.plain_text(0, view._length) == emitted(stream)
        assert (view._strip is not None) == (view._shows_ghosts and view._wanted_tree() is not None)
        for index, span in enumerate(view._spans):
            if span.fate in {Fate.ACCEPTED, Fate.RESAMPLED, Fate.BONUS}:
                assert view.place_range(span.place) == view._extent(index)
        if text.isascii():
            for index, span in enumerate(view._spans):
                if span.fate not in {Fate.FORK, Fate.STRIP}:
                    first, last = view._extent(index)
                    assert text[first:last] == span.text or span.fate in {Fate.REJECTED, Fate.UNTESTED, Fate.DRAFTED}


def test_the_strip_moves_with_the_selection_and_what_stood_at_the_top_stays(view, stream):
    steps = [tree_step(n, 2 + 3 * n, PARENTS, PATH, added=f" s{n}\n") for n in range(60)]
    add(view, stream, *steps)
    view.set_ghosts_shown(True)
    view.mark(Place(30, 1))
    top = view._spans[view._index_at(view.cursorForPosition(QPoint(0, 0)).position())].step
    view.mark(Place(31, 1))
    assert view._shown_tree == 31
    assert view._spans[view._index_at(view.cursorForPosition(QPoint(0, 0)).position())].step == top
    assert view.viewport().rect().contains(view._strip_area().toRect())
    view.mark(Place(0, 1))
    assert view.viewport().rect().contains(view._strip_area().toRect())
    add(view, stream, tree_step(60, 200, PARENTS, PATH))
    assert view._shown_tree == 0, "a run that goes on leaves it there"
    view.mark(None)
    assert view._shown_tree == 60


def test_a_rejected_candidate_can_be_chosen_in_the_strip_by_mouse_and_by_keyboard(view, stream, qtbot):
    add(view, stream, tree_step(0, 2, PARENTS, PATH))
    view.set_ghosts_shown(True)
    chosen = []
    view.place_chosen.connect(chosen.append)
    area = view._strip_area()
    places = view._picture._places(area)
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=places[5].center().toPoint())
    assert chosen == [Place(0, 5)]
    assert "rejected" in view.accessibleDescription()
    assert "Rejected" in tooltip(view.span_at(places[5].center().toPoint()), stream).title()
    for _ in range(3):
        qtbot.keyClick(view, Qt.Key.Key_Left)
    assert chosen[1:] == [Place(0, 3), Place(0, 1), Place(0, 0)]
    assert view.selected_span().fate is Fate.REJECTED
    assert view.span_at((area.bottomLeft() - area.topLeft() / 1e9).toPoint()) is None


def colors(view):
    image = view.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    area = view._strip_area().translated(view.viewport().pos()).toRect()
    return {
        image.pixelColor(x, y).name()
        for x in range(area.left(), area.right())
        for y in range(area.top(), area.bottom())
    }


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_pending_block_is_dashed_and_at_the_verdict_the_losers_fade_and_the_winner_comes_first(
    view, stream, theme, apply_theme, qtbot
):
    apply_theme(theme)
    step = tree_step(0, 2, PARENTS, PATH)
    view.set_ghosts_shown(True)
    stream.draft(drafted(step))
    view.refresh()
    view._fade.stop()
    pending = view._picture
    assert pending.lanes.is_pending
    assert {cell.node for cell in pending.lanes.cells if cell.lane == 0} == {0, 7}, "the likeliest path first"
    assert all(pending._pen(cell).dashPattern() for cell in pending.lanes.cells)
    assert view.toPlainText().replace("\u2060", "").startswith("Once upon3 n0 n7")
    assert copied(view) == PROMPT
    view._changed_at = 0.0
    stream.pending = ()
    add(view, stream, step)
    picture, area = view._picture, view._strip_area()
    loser = next(cell for cell in picture.lanes.cells if cell.node == 0)
    assert picture.progress == 0.0
    assert picture._moving_places(area)[0].top() == pending._places(area)[0].top() < picture._places(area)[0].top()
    before, stages = picture._pen(loser).color(), []
    for moment in (FADE_MS // 3, FADE_MS):
        view._fade.setCurrentTime(moment)
        stages.append(picture.progress)
    assert 0.0 < stages[0] < stages[1] == 1.0
    assert before == QColor(theme.accepted) != picture._pen(loser).color() == QColor(theme.field_border)
    styles = {cell.node: picture._pen(cell) for cell in picture.lanes.cells}
    assert styles[1].widthF() > styles[0].widthF(), "not by colour alone"
    assert {theme.accepted, theme.window} <= colors(view)


def test_verdicts_that_follow_each_other_at_once_do_not_flicker(view, stream):
    view.set_ghosts_shown(True)
    add(view, stream, tree_step(0, 2, PARENTS, PATH))
    add(view, stream, tree_step(1, 5, PARENTS, PATH))
    assert view._picture.progress == 1.0
    assert view._fade.state() is view._fade.State.Stopped


def test_in_a_view_lower_than_the_strip_its_place_is_known_from_either_end(view, stream):
    add(view, stream, *(tree_step(n, 2 + 3 * n, PARENTS, PATH, added=f" s{n}\n") for n in range(20)))
    view.set_ghosts_shown(True)
    view.mark(Place(10, 1))
    view.resize(520, 60)
    bar, tops = view.verticalScrollBar(), []
    view._scroll_to(view._starts[view._strip] - 1, lines_above=0)
    for _ in range(LINES):
        tops.append(view._strip_area().top())
        bar.setValue(bar.value() + 1)
    assert all(15 <= before - after <= 30 for before, after in pairwise(tops)), "a line at a time"
    assert tops[-1] < -40


def test_many_columns_are_narrowed_to_the_width(view, stream):
    add(view, stream, tree_step(0, 2, [-1, *range(15)], range(16), texts=[" a long token"] * 16))
    view.set_ghosts_shown(True)
    area = view._strip_area()
    places = view._picture._places(area)
    assert len(places) == 17
    assert all(place.right() <= area.right() for place in places.values())
    assert all(
        left.right() < right.left() for left, right in zip(places.values(), [*places.values()][1:], strict=False)
    )


# --- Beside the text ---


def test_branches_move_together_before_a_token_is_cut(view, stream):
    add(view, stream, tree_step(0, 2, PARENTS, PATH))
    picture = LanePicture(lanes_of(stream, 0))
    own, columns = picture._widths()
    least = 2 * MARGIN + sum(columns.values()) + len(columns) * LEAST_GAP
    whole, cut = (picture._places(QRectF(0, 0, width, 120)) for width in (least, least - 20))
    assert {node: place.width() for node, place in whole.items()} == pytest.approx(own)
    assert any(place.width() < own[node] - 1 for node, place in cut.items())


def test_the_numbers_are_explained_above_the_text_while_a_method_proposes_trees(make_window, run_to_end):
    window = make_window(is_shown=True)
    sample = window.transcript._fork_sample
    run_to_end(window)
    assert not sample.isVisibleTo(window)
    window.controls.method.choose("draft-tree")
    run_to_end(window)
    assert sample.isVisibleTo(window)


def test_the_other_candidates_can_be_forced(stream):
    step = tree_step(0, 2, PARENTS, PATH)
    run = SimpleNamespace(steps=[step])
    assert {choice.text for choice in choices(run, Place(0, 3))} == {" n3", " n4"}
    assert {choice.text for choice in choices(run, Place(0, 6))} == {" end", " n5", " n6"}
    assert {choice.text for choice in choices(SimpleNamespace(steps=[make_step(0, 2)]), Place(0, 1))} == {" t3"}


def test_the_picture_of_the_method_is_of_a_chain_since_a_tree_is_none():
    steps = [make_step(0, 2, num_accepted=1), tree_step(1, 4, PARENTS, PATH)]
    assert picture_of(steps).caption == "Step 1 of this run"
    assert picture_of(steps[1:]) == example()


def test_a_step_chosen_in_a_plot_selects_its_first_token_and_no_candidate_that_lost(window):
    window.run_view.steps.append(tree_step(0, 2, PARENTS, PATH))
    window.playback._on_step_clicked(0)
    assert window.selection.place == Place(0, 1)


def test_a_run_with_a_prompt_longer_than_the_view_is_followed(view):
    view.set_stream(stream := TokenStream("line\n" * 80))
    assert view.is_at_end
    add(view, stream, tree_step(0, 2, PARENTS, PATH, added="\n\n\n"))
    assert view.is_at_end


def test_the_end_stays_in_view_while_trees_are_added_and_painted_and_the_view_is_resized(view, stream, apply_theme):
    apply_theme(LIGHT, 1.5)
    view.restyle()
    view.resize(660, 300)
    view.set_ghosts_shown(True)

    def paint():
        view.grab()  # Lines are laid out when they are painted.
        QApplication.processEvents()

    for n in range(0, 60, 3):
        texts = [f" word{number}" + "\n" * (number % 7 == 0) for number in range(n, n + 3)]
        add(view, stream, *(tree_step(n + i, 2 + 3 * (n + i), PARENTS, PATH, added=t) for i, t in enumerate(texts)))
        paint()
        assert view.is_at_end
        view.resize(420 + 5 * n, 260 + 3 * n)
        paint()
    view.verticalScrollBar().setValue(3)
    add(view, stream, tree_step(60, 200, PARENTS, PATH, added="\n"))
    paint()
    assert view.verticalScrollBar().value() == 3, "where the user scrolled to"
