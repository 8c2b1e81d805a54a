"""The Inspector on trees and other ways of testing: the picture, its keys, and each verdict with its own figures."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace
from itertools import starmap

import pytest
from PySide6.QtCore import Qt

from app.run.inspector.inspection import inspect
from app.run.inspector.inspector import InspectorPanel
from app.run.inspector.places import next_candidate, next_slot, next_step
from app.run.inspector.step_tree import lay_out
from app.run.measurements import MetricTiles
from app.run.run_view import RunView
from app.run.text.tokens import Fate, Place, Selection, TokenStream, block
from app.run.text.transcript import tooltip
from app.theme import DARK, LIGHT
from app.widgets.fields import boxed, column
from core.evidence import PositionEvidence, packed
from core.settings import Coupling, RunRequest, VerificationRule
from core.types import BlockTest, TokenKind, depths_of
from tests.fakes_app import make_step

PARENTS = (-1, -1, 1, 1, 0)
"""Two candidates for the first token, the second of which is accepted, and two after it, which are both rejected."""
WORDS = ("the", "a", "cat", "dog", "end")


def seen(ids, target, draft, **more) -> PositionEvidence:
    texts = tuple(f"#{token}" for token in ids)
    found = PositionEvidence(array("i", ids), texts, array("f", target), 0.0, 1.0, array("f", draft), 0.0, 0.5, 0.25)
    return replace(found, **more)


def tree(parents=PARENTS, path=(1,), kind=TokenKind.CORRECTION, **changes):
    count = len(parents)
    step = make_step(0, 9, num_draft_tokens=count, num_accepted=count)
    numbers = random.Random(1)
    q, p = (tuple(numbers.uniform(0.1, 0.9) for _ in parents) for _ in range(2))
    given = {
        "drafted_texts": tuple(WORDS[node % len(WORDS)] for node in range(count)),
        "draft_probs": q, "target_probs": p,
        "acceptance_probs": tuple(min(1.0, b / a) for a, b in zip(q, p, strict=True)),
        "uniforms": (0.5,) * count, "parents": tuple(parents), "accepted_path": tuple(path), "num_accepted": len(path),
        "emitted": (*(step.drafted[node] for node in path), 7),
        "emitted_kinds": (*(TokenKind.ACCEPTED for _ in path), kind),
        "emitted_texts": (*(WORDS[node % len(WORDS)] for node in path), " last"), "next_uniform": 0.25,
    }  # fmt: skip
    return replace(step, **{**given, **changes})


TREE = tree(
    draft_probs=(0.5, 0.4, 0.5, 0.6, 0.7), target_probs=(0.1, 0.3, 0.2, 0.05, 0.3),
    acceptance_probs=(0.2, 0.75, 0.4, 1 / 12, 3 / 7), uniforms=(0.63, 0.11, 0.9, 0.8, 0.5),
)  # fmt: skip
IDS = TREE.drafted
EVIDENCE = (
    seen([IDS[0], IDS[1], 70], (0.1, 0.6, 0.3), (0.5, 0.3, 0.2)),
    seen([IDS[1], 70], (0.66, 0.34), (0.4, 0.6)),
    seen([IDS[2], IDS[3]], (0.2, 0.8), (0.2, 0.8)),
    seen([IDS[3], 7], (0.05, 0.95), (0.6, 0.4), residual_probs=array("f", (0.0, 1.0)), residual_tail=0.0),
    seen([IDS[4]], (0.3,), (0.7,)),
)


def nodes_of(step):
    shown = inspect([step], Place(0, 0))
    return lay_out(step, shown.chips, shown.draft_shares, shown.target_shares)


def shape(count: int):
    """A tree of at least two branches, up to four deep."""
    source, parents = random.Random(count), [-1, -1]
    while len(parents) < count:
        parent = source.randrange(-1, len(parents))
        if depths_of([*parents, parent])[-1] < 4:
            parents.append(parent)
    return parents[:count]


@pytest.mark.parametrize("count", [2, 5, 20, 64])
def test_a_trees_columns_are_depths_and_no_two_tokens_share_a_place(count):
    step = tree(shape(count), path=())
    nodes = nodes_of(step)
    assert [node.level for node in nodes] == [*step.depths, 0]
    assert len({(node.level, node.row) for node in nodes}) == count + 1
    for index, node in enumerate(nodes):
        family = [other.row for other in nodes if other.parent == node.parent]
        assert node.row >= (nodes[node.parent].row if node.parent >= 0 else 0)
        assert min(family) == (nodes[node.parent].row if node.parent >= 0 else 0), "the first stands beside its parent"
        assert node.chip.fate is Fate.RESAMPLED if index == count else node.chip.slot == index


def test_siblings_stand_in_the_order_of_the_drafts_probability_and_without_evidence_as_they_are_tested():
    assert [node.row for node in nodes_of(TREE)[:4]] == [0, 1, 1, 2]
    known = replace(TREE, evidence=EVIDENCE)
    rows = [node.row for node in nodes_of(known)]
    assert rows[3] < rows[2] < rows[5], "the draft gave .8 to the second; what the target added stands below"
    assert nodes_of(known)[3].q == pytest.approx(0.8), "its own probability, not the one after the first was drawn"
    assert [node.p for node in nodes_of(known)[:5]] == list(TREE.target_probs)
    certain = replace(known, draft_probs=(1.0,) * 5)
    assert [node.row for node in nodes_of(certain)[:4]] == [0, 1, 1, 2]


def test_the_ordered_tests_of_a_place_are_shown_with_p_after_each_rejection():
    step = replace(TREE, evidence=packed(EVIDENCE))
    assert inspect([step], Place(0, 0)).tests == (
        "Candidates in the order of their tests:",
        "▸ 1 “the”: u 0.630 ≥ 0.200, rejected",
        f"    p is now “#{IDS[1]}”\u00a00.660, “#70”\u00a00.340",
        "2 “a”: u 0.110 < 0.750, accepted",
    )
    last = inspect([step], Place(0, 3))
    assert last.tests[-2:] == (
        "▸ 2 “dog”: u 0.800 ≥ 0.083, rejected",
        f"    p is now “#7”\u00a01.000, “#{IDS[3]}”\u00a00.000",
    )
    assert last.verdict == (
        "Rejected: u·q = 0.4800 ≥ p = 0.0500. “#7” was drawn from the residual instead, with a draw of 0.2500."
    )
    assert "the residual that earlier, rejected candidates leave" in last.note
    assert (last.title, last.subtitle) == (
        "Step 1 · node\u00a04\u00a0of\u00a05",
        "text position 10 · depth 2 · temperature\u00a00.8",
    )
    assert "against the residual" in inspect([step], Place(0, 0)).verdict
    unreached = inspect([step], Place(0, 4))
    assert unreached.verdict == "Never reached: “the”, which it follows, was not accepted."
    assert unreached.tests == ()
    assert "    p is now “a” 0.300" in inspect([TREE], Place(0, 0)).tests, "without evidence: of the next one"


def test_the_residuals_p_of_a_later_candidate_is_named_as_what_is_left_and_not_in_tooltips():
    left = "in a tree, of what earlier candidates leave."
    for step, is_left in ((TREE, True), (replace(TREE, uniforms=()), False)):
        stream = TokenStream("", steps=[step])
        of_nodes = {span.slot: tooltip(span, stream) for span in block(step, 0) if span.fate is not Fate.RESAMPLED}
        assert [slot for slot, tip in of_nodes.items() if "Target probability" not in tip] == [1, 3] * is_left
        assert all("Draft probability" in tip for tip in of_nodes.values())
    assert inspect([TREE], Place(0, 1)).facts[0].how.endswith(left)
    assert left not in inspect([TREE], Place(0, 1), Coupling.GUMBEL).facts[0].how


def test_without_replacement_a_later_candidate_that_was_not_tested_says_why():
    step = tree((-1, -1, -1), path=(0,), kind=TokenKind.BONUS)
    found = inspect([step], Place(0, 2))
    assert found.verdict == "Not tested: an earlier candidate, “the”, was accepted."
    assert found.tests[-1] == "▸ 3 “cat”: not tested"
    bonus = inspect([step], Place(0, 3))
    said = "A path of a single drafted token was accepted to its end, so one more was drawn from the target"
    assert bonus.verdict == f"{said}, with a draw of 0.2500."
    assert bonus.tests == ()


def test_at_temperature_0_the_argmax_decides_and_probabilities_are_those_at_temperature_1():
    raw = [replace(item, raw_probs=array("f", [0.4, 0.3, 0.2][: len(item)]), raw_tail=0.1) for item in EVIDENCE]
    step = replace(TREE, temperature=0.0, evidence=tuple(raw))
    rejected, last = inspect([step], Place(0, 0)), inspect([step], Place(0, 3))
    assert rejected.verdict == "Rejected: the target's most likely token is “a”, which was taken."
    assert last.verdict == "Rejected: the target's most likely token is “#7”, which was taken."
    assert rejected.tests[1:] == ("▸ 1 “the”: p 0.400, rejected", "2 “a”: p 0.400, accepted")
    assert {fact.title: fact.value for fact in rejected.facts} == {
        "Target p at temperature 1": "0.4000", "Largest p at temperature 1": "0.4000",
    }  # fmt: skip
    assert [share.target for share in rejected.shares] == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert all(share.draft is share.residual is None for share in (*rejected.shares, *last.shares))
    assert "temperature 1" in rejected.note
    known = [replace(item, raw_draft_probs=array("f", [0.1, 0.7, 0.2][: len(item)])) for item in raw]
    shares = inspect([replace(step, evidence=tuple(known))], Place(0, 0)).draft_shares
    assert shares == pytest.approx((0.1, 0.7, 0.1, 0.7, 0.1))
    for place in range(5):
        assert "residual" not in inspect([step], Place(0, place)).verdict
    plain = replace(make_step(0, 9, num_draft_tokens=0, num_accepted=0), temperature=0.0)
    assert inspect([plain], Place(0, 0)).verdict == "Nothing was drafted: the target's most likely token was taken."


def test_under_shared_noise_a_candidate_is_rejected_for_the_token_that_the_target_draws():
    step = replace(TREE, uniforms=(), next_uniform=None, evidence=EVIDENCE)
    rejected, last = (inspect([step], Place(0, slot), Coupling.GUMBEL) for slot in (0, 2))
    assert rejected.verdict == "Rejected: under the shared noise, the target draws “a”."
    assert last.verdict == "Rejected: under the shared noise, the target draws “#7”."
    assert rejected.tests[1:] == ("▸ 1 “the”: p 0.100, rejected", "2 “a”: p 0.300, accepted")
    assert not any("p is now" in line for line in rejected.tests), "no rejection changes p"


def test_typical_acceptance_names_what_it_asks_for_and_is_called_lossy():
    items = [replace(item, target_entropy=math.log(5), residual_probs=None) for item in EVIDENCE]
    step = replace(TREE, uniforms=(), evidence=tuple(items), target_probs=(0.05, 0.3, 0.05, 0.2, 0.3))
    said = [inspect([step], Place(0, slot), is_typical=True, typical=(0.09, 0.3)) for slot in range(5)]
    assert said[0].verdict == "Rejected: p = 0.0500 ≤ 0.0600, the threshold here (lossy)."
    assert said[1].verdict == "Accepted: p = 0.3000 > 0.0600, the threshold here (lossy)."
    assert said[3].verdict.startswith("Passes, but is not on the longest path")
    assert "“#7” was drawn from the target's whole distribution, with a draw of" in said[3].verdict
    assert said[3].tests[-1] == "▸ 2 “dog”: p 0.200 > 0.060, passes"
    typical = replace(step, acceptance_probs=(math.nan,) * 5)
    for slot, fate, verdict in ((3, Fate.REJECTED, "Passes, but is not"), (4, Fate.UNTESTED, "Never reached:")):
        shown = inspect([typical], Place(0, slot), is_typical=True, typical=(0.09, 0.3))
        assert shown.verdict.startswith(verdict)
        assert next(chip.fate for chip in shown.chips if chip.slot == slot) is fate
    titles = {fact.title for item in said for fact in item.facts}
    assert not any("Residual" in title or "draw" in title or "Acceptance" in title for title in titles)
    older = [inspect([step], Place(0, slot), is_typical=True) for slot in range(5)]  # Its log holds no threshold.
    assert (older[1].verdict, older[1].tests[-1]) == ("Accepted.", "▸ 2 “a”: p 0.300, accepted")
    assert older[0].verdict == "Not accepted."
    assert not any("hreshold" in str(part) for item in older for part in (item.verdict, item.tests, item.facts))


BLOCK = replace(
    make_step(0, 9, num_draft_tokens=4, num_accepted=2), next_uniform=0.5, uniforms=(0.9, 0.2, 0.7, 0.6),
    block=tuple(starmap(BlockTest, ((1.0, 0.0), (0.9, 0.3), (0.8, 0.4, 0.3), (0.25, 0.2), (0.1, 0.1)))),
    acceptance_probs=(0.9, 0.8, 0.25, 0.1), expected_acceptance=(0.95, 0.7, 0.5, 0.2),
)  # fmt: skip


def test_block_verification_is_explained_by_its_texts_weights_and_own_residual():
    kept, last, later = (inspect([BLOCK], Place(0, slot)) for slot in (0, 2, 3))
    assert kept.verdict == (
        "Accepted: the prefix up to “␣t10” passed as a whole, u = 0.2000 < h = 0.4000, and none of the longer ones did."
    )
    assert last.verdict.startswith(
        "Rejected: the prefix up to here failed as a whole, u = 0.7000 ≥ h = 0.2000, and so did"
    )
    assert "max(0, w p − q) with w = 0.8000, with a draw of 0.5000." in last.verdict
    assert later.verdict == "Rejected: the prefix up to here failed as a whole, u = 0.6000 ≥ h = 0.1000."
    assert [line.rpartition(": ")[2] for line in kept.tests[1:]] == [
        "u 0.900 ≥ h 0.300, fails", "u 0.200 < h 0.400, accepted", "u 0.700 ≥ h 0.200, fails",
        "u 0.600 ≥ h 0.100, fails",
    ]  # fmt: skip
    facts = {fact.title: fact.value for fact in last.facts}
    assert facts["Weight before it, w"] == "0.8000"
    assert facts["Acceptance of this prefix, h"] == "0.2000"
    assert facts["Residual mass, Σ max(0, w p − q)"] == "0.3000"
    of_drawn = seen([BLOCK.emitted[-1]], (0.5,), (0.3,), residual_probs=array("f", [1 / 3]), residual_tail=2 / 3)
    *_, drawn, _, _ = inspect([replace(BLOCK, evidence=(of_drawn,) * 4)], Place(0, 2)).facts
    assert (drawn.value, drawn.how) == ("0.3333", "Of the token drawn instead: its share of the residual.")
    assert {chip.fate for chip in last.chips} == {Fate.ACCEPTED, Fate.REJECTED, Fate.RESAMPLED}

    cut = replace(
        BLOCK, emitted=BLOCK.emitted[:2], emitted_kinds=BLOCK.emitted_kinds[:2], uniforms=(0.9, 0.9, 0.1, 0.1)
    )
    assert inspect([cut], Place(0, 0)).verdict.startswith("Accepted: a longer prefix passed as a whole")
    cold = replace(BLOCK, temperature=0.0)
    assert inspect([cold], Place(0, 3)).verdict.startswith("Not tested: it follows")
    assert inspect([cold], Place(0, 2)).tests == ()
    assert Fate.UNTESTED in {chip.fate for chip in block(cold, 0)}


# --- Keys and the picture ---

STEPS = [replace(TREE, evidence=EVIDENCE), make_step(1, 11), replace(TREE, index=2)]


def test_keys_move_in_depth_and_between_candidates_and_on_to_other_steps():
    moves = (
        (next_candidate, 1), (next_slot, 1), (next_candidate, 1), (next_slot, -1), (next_candidate, -1),
        (next_slot, 1), (next_slot, 1),
    )  # fmt: skip
    place, walk = Place(0, 0), []
    for move, by in moves:
        place = move(STEPS, place, by)
        walk.append(place)
    # "dog", node 3, stands above "cat"; a leaf leads to the next step.
    assert walk == [*(Place(0, slot) for slot in (1, 3, 2, 1, 0, 4)), Place(1, 0)]
    assert next_slot(STEPS, Place(1, 0), -1) == Place(0, 3), "back to the newest token"
    assert next_slot(STEPS, Place(1, 3), 1) == Place(2, 1), "the accepted one of the first candidates"
    assert next_slot(STEPS, Place(0, 0), -1) == Place(0, 0)
    assert next_candidate(STEPS, Place(0, 1), 1) == next_step(STEPS, Place(0, 1), 1) == Place(1, 0)
    assert next_step(STEPS, Place(1, 3), -1) == Place(0, 3)
    full = tree((-1, 0, 0), path=(0, 2), kind=TokenKind.BONUS)
    assert next_slot([full], Place(0, 2), 1) == Place(0, 3)
    assert next_slot([full], Place(0, 3), -1) == Place(0, 2)
    assert next_slot([full], Place(0, 0), 1) == Place(0, 2), "along the accepted path"


def test_up_and_down_leave_a_bonus_or_plain_token_which_has_no_other_candidates():
    bonus, plain = TokenKind.BONUS, make_step(1, 13, num_draft_tokens=0, num_accepted=0)
    full = make_step(0, 9, num_draft_tokens=3, num_accepted=3)
    for step, slot in ((full, 3), (plain, 0), (tree((-1, -1, 0), path=(0, 2), kind=bonus), 3)):
        place = Place(1, slot)
        inspected = replace(step, evidence=tuple(seen([token], (1.0,), (1.0,)) for token in (*step.drafted, 7)))
        for by in (-1, 1):
            assert next_candidate([TREE, inspected, TREE], place, by) == next_step([TREE, inspected, TREE], place, by)


REQUEST = RunRequest(target="t", draft="d", prompt="x")


def make_panel():
    run = RunView()
    run.begin(REQUEST)
    for step in STEPS:
        run.apply(step)
    return InspectorPanel(run, Selection())


@pytest.fixture
def panel(show_at):
    return show_at(make_panel(), 340, 700)


def test_a_tree_is_drawn_and_a_click_selects_and_a_chain_looks_as_before(qtbot, panel):
    panel._selection.select(Place(0, 1))
    assert panel.tree.area.isVisible()
    assert not panel.block.isVisible()
    assert "“a” accepted at depth 1 (shown)" in panel.tree.accessibleDescription()
    assert "“#7” resampled at depth 2" in panel.tree.accessibleDescription()
    for slot in (3, 4, 0):
        qtbot.mouseClick(panel.tree, Qt.MouseButton.LeftButton, pos=panel.tree.boxes()[slot].center().toPoint())
        assert panel._selection.place == Place(0, slot)
    qtbot.mouseClick(panel.tree, Qt.MouseButton.LeftButton, pos=panel.tree.boxes()[5].center().toPoint())
    assert panel._selection.place == Place(0, 3), "what was drawn instead belongs to the last test"
    assert panel.tree.tip_at(panel.tree.boxes()[1].center()).startswith("“a”, accepted.")
    panel._selection.select(Place(1, 0))
    assert panel.block.isVisible()
    assert not any(part.isVisible() for part in (panel.tree.area, panel.tree_hint, panel.tests))


def test_the_current_token_is_marked_while_the_panel_has_the_focus_and_not_its_window(qtbot, show_at):
    panel = make_panel()
    window = show_at(boxed(column(panel)), 340, 700)
    panel._selection.select(Place(0, 1))
    for focused, num_marked in ((panel, 1), (window, 0)):
        focused.setFocus()
        qtbot.waitUntil(focused.hasFocus)
        fills = panel.tree._fills()
        assert [fills.count(LIGHT.hover), fills.count(LIGHT.surface)] == [num_marked, len(fills) - num_marked]
        assert (fills[1] == LIGHT.hover) is bool(num_marked)


@pytest.mark.parametrize(("theme", "scale"), [(LIGHT, 1.0), (DARK, 1.5)])
def test_large_trees_stay_within_the_panel_and_show_the_selected_token(qtbot, panel, apply_theme, theme, scale):
    apply_theme(theme, scale)
    panel._run.apply(replace(tree(shape(64), path=()), index=3))
    for slot in (0, 40, 63):
        panel._selection.select(Place(3, slot))
        body = panel.scroll_area.widget()
        qtbot.waitUntil(lambda body=body: body.width() <= panel.scroll_area.viewport().width())
        assert body.minimumSizeHint().width() <= 340 - 12
        viewport = panel.tree.area.viewport()

        def is_in_view(slot=slot, viewport=viewport):
            middle = panel.tree.boxes()[slot].center().toPoint()
            return viewport.rect().contains(panel.tree.mapTo(viewport, middle))

        qtbot.waitUntil(is_in_view)
        panel.grab()


def test_a_run_without_a_prediction_says_so_in_its_tile(qtbot):
    run = RunView()
    run.begin(replace(REQUEST, verification=VerificationRule.TYPICAL))
    run.apply(replace(TREE, acceptance_probs=(math.nan,) * 5, expected_acceptance=(math.nan,) * 5))
    tiles = MetricTiles()
    qtbot.addWidget(tiles)
    tiles.show_run(run)
    assert run.predicted_acceptance is None
    assert tiles.acceptance.note.text() == "lossy, at most 40\u00a0%"
    assert not any("nan" in tooltip(span, run.tokens) for span in block(run.steps[0], 0))
