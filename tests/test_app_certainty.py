"""The transcript's colours by figures, and the alternatives that it names."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QLabel, QMenu

from app.run.text.certainty import alternatives, doubt, entropy, probability, surprise
from app.run.text.token_colors import doubt_format, token_format
from app.run.text.tokens import KINDS, Fate, Place, TokenStream
from app.run.text.transcript import TranscriptView, tooltip
from app.theme import DARK, LIGHT, ColorBy, contrast
from core.evidence import PositionEvidence
from core.settings import RunRequest
from core.types import Inspected
from tests.fakes_app import cursor_at, make_step

STEP = make_step(0, 9, num_draft_tokens=2, num_accepted=1)


def evidence(token, probs=(0.5, 0.25, 0.125), **changes):
    ids = array("i", (token, 1, 2))
    place = PositionEvidence(ids, ("own", "one", "two"), array("f", probs), 0.125, 1.2)
    return replace(place, **changes)


REQUEST = RunRequest(target="t", draft="d", prompt="x")
SEEN = replace(STEP, evidence=tuple(evidence(token) for token in STEP.emitted))


@pytest.mark.parametrize(
    ("text", "is_struck"), [(" word", True), ("()", True), ("  ", True), ("\n\n", False), ("\t", False), (" =", False)]
)
def test_a_rejected_sign_that_a_line_would_change_is_hatched_also_where_its_step_is_marked(
    qtbot, sound_binding, text, is_struck
):
    shown = token_format(Fate.REJECTED, text)
    assert (shown.fontStrikeOut(), shown.background().style() is Qt.BrushStyle.BDiagPattern) == (
        is_struck,
        not is_struck,
    )
    view = TranscriptView()
    qtbot.addWidget(view)
    view.set_ghosts_shown(True)
    view.set_stream(TokenStream("Once", steps=[replace(STEP, drafted_texts=(STEP.drafted_texts[0], text))]))
    view.mark(Place(0, 0))
    last = view.extraSelections()[-1]
    first = view._span_range(next(span for span in view._spans if span.fate is Fate.REJECTED))
    is_hatched = (last.cursor.selectionStart(), last.cursor.selectionEnd()) == first
    assert is_hatched is not is_struck


def test_without_evidence_only_an_accepted_tokens_probability_is_known():
    assert probability(STEP, 0) == STEP.target_probs[0]
    assert [probability(STEP, 1), entropy(STEP, 0), surprise(STEP, 1)] == [None] * 3
    assert probability(replace(STEP, temperature=0.0), 0) is None
    assert alternatives(STEP, 0, 3) == []


def test_with_evidence_each_measure_is_that_of_the_emitted_token():
    assert probability(SEEN, 1) == 0.5
    assert surprise(SEEN, 1) == pytest.approx(math.log(2))
    assert entropy(SEEN, 1) == 1.2
    assert [doubt(SEEN, 1, by) for by in list(ColorBy)[1:]] == pytest.approx([0.5, 1.2 / 4, math.log(2) / 6])
    assert [found[1:] for found in alternatives(SEEN, 1, 2)] == [("own", 0.5), ("one", 0.25)]


def test_at_temperature_0_the_measures_are_those_at_temperature_1():
    raw = {"raw_probs": array("f", (0.25, 0.5, 0.125)), "raw_tail": 0.125}
    certain = evidence(STEP.emitted[0], (1.0, 0.0, 0.0), target_entropy=0.0, target_tail=0.0, **raw)
    step = replace(STEP, temperature=0.0, evidence=(certain, certain))
    assert probability(step, 0) == 0.25
    assert entropy(step, 0) == pytest.approx(0.25 * math.log(4) + 0.5 * math.log(2) + 0.25 * math.log(8))
    assert alternatives(step, 0, 1)[0][1] == "one"


def test_a_candidate_of_a_tree_is_measured_by_what_the_target_gave_before_earlier_ones_were_rejected():
    tree = replace(
        STEP, parents=(-1, -1), accepted_path=(1,), emitted=STEP.drafted[1:], emitted_kinds=STEP.emitted_kinds[:1]
    )
    whole, left = evidence(tree.drafted[1], (0.25, 0.5, 0.125)), evidence(tree.drafted[1], (0.5, 0.25, 0.125))
    assert probability(replace(tree, evidence=(whole, left)), 1) == 0.25


@pytest.fixture
def view(show_at, run):
    made = TranscriptView()
    made.set_stream(run.tokens)
    return show_at(made, 500, 300)


def format_of(view, place):
    return cursor_at(view, view.place_range(place)[0] + 1).charFormat()


def test_a_token_is_coloured_when_its_evidence_arrives_and_its_line_keeps_its_kind(view, run):
    view.color_by(ColorBy.SURPRISE)
    run.apply(STEP)
    view.refresh()
    own = [span for span in view._spans if span.fate in KINDS]
    known, unknown = (format_of(view, span.place) for span in own)
    assert known.background().style() is not Qt.BrushStyle.NoBrush
    assert unknown.background().style() is Qt.BrushStyle.NoBrush
    run.apply(Inspected(0, SEEN.evidence))
    view.refresh()
    found = [format_of(view, span.place) for span in own]
    shade = doubt_format(Fate.RESAMPLED, math.log(2) / 6).background().color()
    assert [each.background().color() for each in found] == [shade, shade]
    assert [each.underlineStyle() for each in found] == [LIGHT.kind(KINDS[span.fate]).underline for span in own]
    text = view.toPlainText()
    view.color_by(ColorBy.KIND)
    assert format_of(view, own[0].place).background().style() is Qt.BrushStyle.NoBrush
    assert view.toPlainText() == text


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_is_legible_on_every_shade_and_shades_get_steadily_stronger(theme, apply_theme):
    apply_theme(theme)
    shades = [doubt_format(Fate.ACCEPTED, share / 10).background().color() for share in range(11)]
    assert all(contrast(theme.text, shade.name()) >= 4.5 for shade in shades)
    light = [shade.lightnessF() for shade in shades]
    assert light == sorted(light, reverse=theme is LIGHT), "also without colour vision"


def test_the_tooltip_names_what_else_the_target_found_likely_and_is_not_too_wide(view, run, qtbot):
    run.apply(replace(SEEN, emitted_texts=(" " * 80, "own")))
    view.refresh()
    span = next(span for span in view._spans if span.fate is Fate.RESAMPLED)
    text = tooltip(span, run.tokens)
    rows = text.partition("most likely tokens here")[2]
    assert [word in rows for word in ("<b>“own”</b>", "“one”", "50.0\u00a0%", "25.0\u00a0%")] == [True] * 4
    for each in view._spans[-2:]:
        label = QLabel(tooltip(each, run.tokens), wordWrap=True)
        qtbot.addWidget(label)
        assert label.sizeHint().width() <= 400


def test_the_menu_copies_the_generated_text_and_opens_the_inspector(view, run, qtbot):
    run.apply(SEEN)
    view.refresh()
    menu = QMenu(view)
    view.fill_menu(menu)
    copy, inspect = (menu.findChild(QAction, name) for name in ("copyTextAction", "inspectAction"))
    copy.trigger()
    assert QGuiApplication.clipboard().text() == "".join(SEEN.emitted_texts)
    assert not inspect.isEnabled()
    view.choose(Place(0, 0))
    view.fill_menu(menu := QMenu(view))
    with qtbot.waitSignal(view.place_clicked):
        menu.findChild(QAction, "inspectAction").trigger()


def test_the_choice_is_remembered_and_the_legend_follows(make_window):
    window = make_window()
    window.show()
    panel = window.transcript
    assert not panel._scale.isVisible()
    panel.colors.choose(ColorBy.ENTROPY)
    assert panel._scale.isVisible()
    assert "entropy" in panel._scale.accessibleName()
    window.close()
    again = make_window()
    assert again.transcript.colors.member() is ColorBy.ENTROPY
    assert again.transcript.view._by is ColorBy.ENTROPY
