"""The inspector: a block with each token's fate, the test in words, the distributions as rows; and its panel."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt

from app.run.inspector.distribution_bars import PALE, DistributionBars
from app.run.inspector.inspection import NOT_KEPT, NOT_YET, inspect
from app.run.inspector.inspector import FEW_ROWS, InspectorPanel
from app.run.inspector.places import next_slot, next_step, num_places
from app.run.inspector.shares import UNKNOWN, Share, number, percent, shorten, show
from app.run.run_view import RunView
from app.run.text.tokens import FATE_HELP, Fate, Place, Selection, fate_help
from app.theme import DARK, LIGHT, mixed
from core.evidence import PositionEvidence
from core.settings import Coupling, RunRequest
from core.types import Finished, FinishReason, Inspected, Step
from tests.fakes_app import make_step, make_summary

NUM_OTHERS = 30


def evidence(ids, texts, target, draft=None, residual=None) -> PositionEvidence:
    """Evidence with thirty more tokens that share a tenth of each distribution, and a hundredth that is not listed."""
    more = range(5000, 5000 + NUM_OTHERS)
    seen = PositionEvidence(array("i", [*ids, *more]), (*texts, *(f"w{token}" for token in more)), (), 0.01, 1.25)
    if draft is not None:
        seen = replace(seen, draft_tail=0.01, draft_entropy=0.5, residual_mass=0.25)
    if residual is not None:
        seen = replace(seen, residual_tail=0.01)
    probs = {"target_probs": target, "draft_probs": draft, "residual_probs": residual}
    rest = [0.1 / NUM_OTHERS] * NUM_OTHERS
    return replace(seen, **{name: array("f", [*of, *rest]) for name, of in probs.items() if of is not None})


def inspected(step: Step) -> Step:
    """The step with the evidence and the draw that an inspected run keeps."""
    places = []
    for slot in range(num_places(step)):
        last = step.emitted[-1]
        if slot == len(step.drafted):
            places.append(evidence([last], [" last"], [0.89]))
        elif slot == step.num_accepted:
            places.append(evidence([step.drafted[slot], last], [" no", " last"], [0.1, 0.79], [0.5, 0.39], [0.0, 0.89]))
        else:
            places.append(evidence([step.drafted[slot]], [" yes"], [0.89], [0.89]))
    return replace(step, evidence=tuple(places), next_uniform=0.625)


REJECTED, FULL, PLAIN = (
    inspected(make_step(0, 9, num_draft_tokens=4, num_accepted=2)),
    inspected(make_step(1, 12, num_draft_tokens=3, num_accepted=3)),
    inspected(make_step(2, 16, num_draft_tokens=0, num_accepted=0)),
)
STEPS = [REJECTED, FULL, PLAIN]


def facts(inspection) -> dict[str, str]:
    return {fact.title: fact.value for fact in inspection.facts}


def test_a_block_is_shown_with_each_tokens_fate():
    block = inspect(STEPS, Place(0, 0)).chips
    assert [chip.fate for chip in block] == [
        Fate.ACCEPTED, Fate.ACCEPTED, Fate.REJECTED, Fate.UNTESTED, Fate.RESAMPLED,
    ]  # fmt: skip
    assert [chip.slot for chip in block] == [0, 1, 2, 3, 2]
    assert block[-1].text == "␣last"
    assert [chip.fate for chip in inspect(STEPS, Place(1, 3)).chips] == [Fate.ACCEPTED] * 3 + [Fate.BONUS]


def test_the_test_of_an_accepted_token_is_explained_with_its_figures():
    seen = inspect(STEPS, Place(0, 1))
    assert seen.title == "Step 1 · draft token\u00a02\u00a0of\u00a04"
    assert seen.subtitle == "text position 10 · temperature\u00a00.8"
    assert seen.verdict == "Accepted: u·q = 0.1500 < p = 0.6000."
    assert facts(seen) == {
        "Target p": "0.6000",
        "Draft q": "0.5000",
        "Acceptance probability, min(1,\u00a0p\u00a0/\u00a0q)": "1.0000",
        "Uniform draw u": "0.3000",
        "Expected acceptance over all drafts, 1 − TV": "0.7500",
        "Residual mass, TV": "0.2500",
        "Entropy of the target": "1.25 nats",
        "Entropy of the draft": "0.50 nats",
    }


def test_a_rejection_names_what_was_drawn_instead_and_one_after_it_was_never_tested():
    seen = inspect(STEPS, Place(0, 2))
    assert seen.verdict == (
        "Rejected: u·q = 0.1500 ≥ p = 0.1000. “␣last” was drawn from the residual instead, with a draw of 0.6250."
    )
    assert facts(seen)["Residual probability of the token drawn"] == "0.8900"
    assert [share.fate for share in seen.shares[:2]] == [Fate.REJECTED, Fate.RESAMPLED]
    assert seen.shares[1].residual == pytest.approx(0.89)
    seen = inspect(STEPS, Place(0, 3))
    assert seen.verdict.startswith("Not tested: it follows")
    assert all(share.residual is None for share in seen.shares)


def test_at_temperature_0_both_models_distributions_at_temperature_1_stand_beside_the_rule():
    def raw(place):
        return replace(place, raw_probs=place.target_probs, raw_tail=0.0, raw_draft_probs=place.draft_probs,
                       raw_draft_tail=0.25, residual_probs=None, residual_tail=None)  # fmt: skip

    step = replace(STEPS[0], temperature=0.0, evidence=tuple(map(raw, STEPS[0].evidence)))
    seen = inspect([step], Place(0, 2))
    assert seen.verdict == "Rejected: the target's most likely token is “␣last”, which was taken."
    assert "at temperature 1" in seen.note
    assert "residual" not in seen.verdict + seen.note
    assert [share.draft for share in seen.shares[:-1]] == list(STEPS[0].evidence[2].draft_probs)
    assert seen.shares[-1].draft == 0.25
    assert "Draft q at temperature 1" in facts(seen)


def test_the_targets_own_tokens_have_their_distribution_alone():
    bonus, plain = inspect(STEPS, Place(1, 3)), inspect(STEPS, Place(2, 0))
    assert bonus.verdict == (
        "All 3 drafted tokens were accepted, so one more was drawn from the target, with a draw of 0.6250."
    )
    assert plain.verdict == "Nothing was drafted: the token was drawn from the target, with a draw of 0.6250."
    assert plain.title == "Step 3 · plain"
    for seen in (bonus, plain):
        assert list(facts(seen)) == ["Target p", "Uniform draw", "Entropy of the target"]
        assert all(share.draft is share.residual is None for share in seen.shares)
    assert (bonus.shares[0].fate, plain.shares[0].fate) == (Fate.BONUS, Fate.PLAIN)


def test_under_shared_noise_there_is_no_draw_and_no_residual():
    steps = [replace(step, uniforms=(), next_uniform=None) for step in STEPS]
    accepted, rejected, bonus = (
        inspect(steps, place, Coupling.GUMBEL) for place in (Place(0, 0), Place(0, 2), Place(1, 3))
    )
    assert accepted.verdict == "Accepted: under the shared noise, the target draws the same token."
    assert rejected.verdict == "Rejected: under the shared noise, the target draws “␣last”."
    assert bonus.verdict.endswith("under the noise of its position.")
    titles = list(facts(accepted))
    assert not any(
        title.startswith(("Expected acceptance", "Residual", "Uniform", "Acceptance probability")) for title in titles
    )
    assert any(title.startswith("Upper bound of acceptance") for title in titles)


def test_a_run_without_evidence_shows_what_its_steps_hold_and_leaves_open_what_its_log_lacks():
    seen = inspect([make_step(0, 9)], Place(0, 2))
    assert (seen.note, seen.shares) == (NOT_KEPT, ())
    assert facts(seen)["Target p of “␣print”"] == "0.1000", "the drafted token's, not the one drawn in its place"
    assert "resampled" in {chip.fate for chip in seen.chips}
    nan = (float("nan"),) * 4
    step = replace(make_step(0, 9), draft_probs=nan, target_probs=nan, acceptance_probs=nan, uniforms=())
    seen = inspect([step], Place(0, 0))
    assert seen.verdict == "Accepted."
    assert facts(seen)["Target p"] == facts(seen)["Uniform draw u"] == UNKNOWN


@pytest.mark.parametrize("place", [Place(0, 4), Place(0, -1), Place(3, 0), Place(-1, 0), Place(2, 1)])
def test_a_place_that_the_run_does_not_have_shows_nothing(place):
    assert inspect(STEPS, place) is None


def test_an_end_within_the_block_leaves_no_bonus_and_nothing_rejected():
    step = FULL
    step = replace(step, index=0, emitted=step.emitted[:3], emitted_kinds=step.emitted_kinds[:3])
    assert {chip.fate for chip in inspect([step], Place(0, 2)).chips} == {Fate.ACCEPTED}


def test_few_rows_hold_the_first_tokens_what_happened_and_the_sum_of_the_others():
    shares = inspect(STEPS, Place(0, 2)).shares
    unlikely = (*shares[2:-1], *shares[:2], shares[-1])
    for order in (shares, unlikely):
        few = shorten(order, 5)
        assert len(few) == 6
        assert {Fate.REJECTED, Fate.RESAMPLED} <= {share.fate for share in few}
        for of in (lambda s: s.target, lambda s: s.draft, lambda s: s.residual):
            assert sum(map(of, few)) == pytest.approx(sum(map(of, shares)))
    assert shorten(shares, 100) == shares


def test_spaces_are_visible_and_figures_have_the_significant_digits():
    assert [show(text) for text in (" a\n\tb", " " * 12, "")] == ["␣a↵⇥b", "␣×12", "∅"]
    figures = (0, 1, 0.12345, 0.0012345, 0.00012345, 0.000012345, None)
    assert [number(value) for value in figures] == [
        "0.0000", "1.0000", "0.1235", "0.00123", "0.000123", "1.23\u00a0×\u00a010⁻⁵", UNKNOWN,
    ]  # fmt: skip
    assert [percent(value) for value in (0, 1, 0.9996, 0.4231, 0.0123, 0.00012, 1e-7)] == [
        "0", "100.0\u00a0%", ">99.9\u00a0%", "42.3\u00a0%", "1.23\u00a0%", "0.01\u00a0%", "<0.01\u00a0%",
    ]  # fmt: skip


def test_places_follow_each_other_across_steps():
    place, seen = Place(0, 0), []
    while place not in seen:
        seen.append(place)
        place = next_slot(STEPS, place, 1)
    assert seen == [Place(step, slot) for step, slots in enumerate((4, 4, 1)) for slot in range(slots)]
    assert next_slot(STEPS, Place(1, 0), -1) == Place(0, 3)
    assert next_slot(STEPS, Place(0, 0), -1) == Place(0, 0)
    assert next_step(STEPS, Place(1, 3), 1) == Place(2, 0)
    assert next_step(STEPS, Place(0, 1), -1) == Place(0, 1)
    assert next_slot(STEPS, None, 1) == Place(0, 0)
    assert next_step(STEPS, None, -1) == Place(2, 0)
    assert next_slot([], None, 1) is None


# --- On screen ---

REQUEST = RunRequest(target="t", draft="d", prompt="x", inspect=True)


@pytest.fixture
def run() -> RunView:
    view = RunView()
    view.begin(replace(REQUEST, inspect=False))
    for step in STEPS:
        view.apply(step)
    return view


@pytest.fixture
def panel(show_at, run):
    return show_at(InspectorPanel(run, Selection()), 340, 700)


def test_without_a_run_the_page_says_to_run_first_and_then_what_to_click(show_at, run):
    nothing = RunView()
    for shown, words in ((nothing, "Run the prompt first"), (run, "Click a token")):
        assert show_at(InspectorPanel(shown, Selection()), 340, 700)._empty.text().startswith(words)


def test_keys_and_buttons_go_from_token_to_token_and_from_step_to_step(qtbot, panel):
    panel.setFocus()
    keys = (Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_Left, Qt.Key.Key_Up)
    places = []
    for key in keys:
        qtbot.keyClick(panel, key)
        places.append(panel._selection.place)
    assert places == [Place(0, 0), Place(0, 1), Place(1, 1), Place(1, 0), Place(0, 0)]
    panel._selection.select(Place(0, 3))
    qtbot.mouseClick(panel.behind, Qt.MouseButton.LeftButton)
    assert panel._selection.place == Place(1, 3)
    qtbot.mouseClick(panel.before, Qt.MouseButton.LeftButton)
    assert panel._selection.place == Place(0, 3)
    assert panel.hasFocus(), "and the arrow keys with it"
    panel.behind.setFocus(Qt.FocusReason.TabFocusReason)
    assert panel.behind.hasFocus()
    places = []
    for key in keys[2:]:
        qtbot.keyClick(panel.behind, key)
        places.append(panel._selection.place)
    assert places == [Place(1, 3), Place(1, 2), Place(0, 2)]
    assert panel.behind.hasFocus()


@pytest.mark.parametrize(
    ("coupling", "is_greedy", "choice"),
    [
        (Coupling.REJECTION, True, "target's most likely token"),
        (Coupling.GUMBEL, True, "target's most likely token"),
        (Coupling.GUMBEL, False, "target's own draw under the shared noise"),
    ],
)
def test_where_the_target_decides_the_meaning_of_a_fate_begins_with_its_choice(coupling, is_greedy, choice):
    assert {fate: fate_help(fate, coupling, is_greedy=is_greedy) for fate in FATE_HELP} == FATE_HELP | {
        Fate.ACCEPTED: f"The {choice}: drafted, tested and accepted.",
        Fate.RESAMPLED: f"The {choice}, in place of the rejected one.",
        Fate.BONUS: f"The {choice}, after a fully accepted block.",
        Fate.PLAIN: f"The {choice}, as in plain decoding: nothing was drafted.",
        Fate.REJECTED: f"Not the {choice}: drafted, tested and rejected.",
    }


def test_a_click_on_a_chip_selects_its_place(qtbot, panel):
    panel._selection.select(Place(0, 0))
    for index, slot in ((4, 2), (3, 3), (1, 1)):
        point = panel.block.boxes()[index].center().toPoint()
        qtbot.mouseClick(panel.block, Qt.MouseButton.LeftButton, pos=point)
        assert panel._selection.place == Place(0, slot)
    qtbot.mouseClick(panel.block, Qt.MouseButton.LeftButton, pos=QPoint(panel.block.width() - 1, 1))
    assert panel._selection.place == Place(0, 1)


def test_a_selected_place_is_shown_and_described_and_the_other_listed_tokens_are_a_click_away(qtbot, panel):
    assert not panel.scroll_area.isVisible()
    panel._selection.select(Place(0, 2))
    assert panel.title.text() == "Step 1 · draft token\u00a03\u00a0of\u00a04"
    assert "“␣last” resampled (shown)" in panel.block.accessibleDescription()
    assert "“␣no” (id " in panel.bars.accessibleDescription()
    assert "rejected here" in panel.bars.accessibleDescription()
    few = panel.bars.sizeHint().height()
    assert panel.more.text() == f"Show all {NUM_OTHERS + 2}"
    qtbot.mouseClick(panel.more, Qt.MouseButton.LeftButton)
    assert panel.bars.sizeHint().height() > 2 * few
    assert panel.more.text() == f"Show the first {FEW_ROWS}"
    qtbot.mouseClick(panel.more, Qt.MouseButton.LeftButton)
    assert panel.bars.sizeHint().height() == few
    panel._selection.clear()
    assert not panel.scroll_area.isVisible()


@pytest.mark.parametrize(("theme", "width"), [(LIGHT, 340), (DARK, 384), (DARK, 620)])
def test_nothing_is_wider_than_the_panel(qtbot, panel, apply_theme, theme, width):
    apply_theme(theme)
    panel.resize(width, 700)
    wide = replace(make_step(3, 40, num_draft_tokens=16, num_accepted=3), drafted_texts=("x" * 80,) * 16)
    panel._run.apply(inspected(wide))
    for place in (Place(0, 2), Place(1, 3), Place(3, 3), Place(3, 5)):
        panel._selection.select(place)
        body = panel.scroll_area.widget()
        qtbot.waitUntil(lambda body=body: body.width() <= panel.scroll_area.viewport().width())
        assert body.minimumSizeHint().width() <= 340 - 12
        assert all(panel.block.boxes()[i].right() <= panel.block.width() for i in range(len(panel.block._chips)))
        panel.grab()


def test_evidence_that_comes_later_is_shown_as_soon_as_it_is_there_until_the_run_is_over(panel, run):
    run.begin(REQUEST)
    step = inspected(make_step(0, 9))
    run.apply(replace(step, evidence=()))
    panel._selection.select(Place(0, 0))
    assert panel.note.text() == NOT_YET
    panel.refresh(has_news=True)
    assert panel.note.text() == NOT_YET
    run.apply(Inspected(0, step.evidence))
    panel.refresh(has_news=True)
    assert panel.bars.isVisible()
    assert not panel.note.isVisible()
    run.apply(make_step(1, 20))
    run.apply(Finished(make_summary(run.steps, FinishReason.LENGTH)))
    panel.end()
    panel._selection.select(Place(1, 0))
    assert panel.note.text() == NOT_KEPT


def test_evidence_of_a_missing_step_is_not_given_to_another(run):
    run.begin(REQUEST)
    run.apply(make_step(1, 9))
    for index in (0, 1, 7):
        run.apply(Inspected(index, inspected(make_step(0, 9)).evidence))
    assert run.steps == [make_step(1, 9)]


def test_runs_send_their_evidence_at_once_while_the_inspector_is_the_chosen_page_and_only_then(qtbot, window):
    window.side.setCurrentWidget(window.inspector)
    assert window.controller.start(REQUEST)
    controls = window.controller._controls
    assert controls.is_inspected
    for page, is_wanted in ((window.speed, False), (window.inspector, True)):
        window.side.setCurrentWidget(page)
        assert controls.is_inspected is is_wanted
    window.controller.stop()


def test_bars_of_all_columns_have_one_scale_whatever_the_room_for_their_numbers(qtbot):
    bars = DistributionBars()
    qtbot.addWidget(bars)
    bars.resize(420, 100)
    bars.show_shares([Share(1, "a", 0.5, 0.5, None), Share(2, "b", 0.25, 1e-9, None)])
    image = bars.grab().toImage()
    lengths = [
        max(sum(image.pixelColor(x, y).name() == color for x in range(image.width())) for y in range(27, 31))
        for color in (mixed(LIGHT.surface, bar, PALE).name() for bar in (LIGHT.draft_bar, LIGHT.target_bar))
    ]
    assert lengths[0] == pytest.approx(lengths[1], abs=2)
    assert lengths[0] > 20
