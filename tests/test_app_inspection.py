"""What the inspector says: a block with each token's fate, the test in words, the distributions as rows."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from app.run.inspection import (
    NOT_KEPT,
    UNKNOWN,
    Fate,
    inspect,
    next_slot,
    next_step,
    num_places,
    number,
    percent,
    shorten,
    show,
)
from app.run.tokens import Place
from core.evidence import PositionEvidence
from core.settings import Coupling
from core.types import Step
from tests.fakes_app import make_step

NUM_OTHERS = 30


def evidence(ids, texts, target, draft=None, residual=None) -> PositionEvidence:
    """Evidence with thirty more tokens that share a tenth of each distribution, and a hundredth that is not listed."""
    more = range(5000, 5000 + NUM_OTHERS)

    def spread(probs):
        return None if probs is None else array("f", [*probs, *[0.1 / NUM_OTHERS] * NUM_OTHERS])

    return PositionEvidence(
        ids=array("i", [*ids, *more]),
        texts=(*texts, *(f"w{token}" for token in more)),
        target_probs=spread(target),
        target_tail=0.01,
        target_entropy=1.25,
        draft_probs=spread(draft),
        draft_tail=None if draft is None else 0.01,
        draft_entropy=None if draft is None else 0.5,
        residual_mass=None if draft is None else 0.25,
        residual_probs=spread(residual),
        residual_tail=None if residual is None else 0.01,
    )


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
        Fate.ACCEPTED, Fate.ACCEPTED, Fate.REJECTED, Fate.DISCARDED, Fate.RESAMPLED,
    ]  # fmt: skip
    assert [chip.slot for chip in block] == [0, 1, 2, 3, 2]
    assert [chip.is_current for chip in block] == [True, False, False, False, False]
    assert block[-1].text == "␣last"
    assert [chip.fate for chip in inspect(STEPS, Place(0, 2)).chips if chip.is_current] == [
        Fate.REJECTED,
        Fate.RESAMPLED,
    ]
    assert [chip.fate for chip in inspect(STEPS, Place(1, 3)).chips] == [Fate.ACCEPTED] * 3 + [Fate.BONUS]


def test_the_test_of_an_accepted_token_is_spelled_out():
    seen = inspect(STEPS, Place(0, 1))
    assert seen.title == "Step 0 · draft 2 of 4"
    assert seen.subtitle == "position 10 · temperature 0.8"
    assert seen.verdict == "Accepted: u·q = 0.1500 < p = 0.6000."
    assert facts(seen) == {
        "Target p": "0.6000",
        "Draft q": "0.5000",
        "Acceptance probability, min(1, p/q)": "1.0000",
        "Uniform draw u": "0.3000",
        "Expected acceptance, 1 − TV": "0.8000",
        "Residual mass, TV": "0.2500",
        "Entropy of the target": "1.25 nats",
        "Entropy of the draft": "0.50 nats",
    }
    assert all(fact.how.endswith(".") for fact in seen.facts)


def test_a_rejection_names_what_was_drawn_from_the_residual_and_how():
    seen = inspect(STEPS, Place(0, 2))
    assert seen.verdict == (
        "Rejected: u·q = 0.1500 ≥ p = 0.1000. “␣last” was drawn from the residual instead, with a draw of 0.6250."
    )
    assert facts(seen)["Residual of the drawn token"] == "0.8900"
    assert [share.fate for share in seen.shares[:2]] == [Fate.REJECTED, Fate.RESAMPLED]
    assert seen.shares[1].residual == pytest.approx(0.89)


def test_a_discarded_token_was_never_tested():
    seen = inspect(STEPS, Place(0, 3))
    assert seen.verdict.startswith("Discarded, untested:")
    assert all(share.residual is None for share in seen.shares)


def test_the_targets_own_tokens_have_their_distribution_alone():
    bonus, plain = inspect(STEPS, Place(1, 3)), inspect(STEPS, Place(2, 0))
    assert bonus.verdict == (
        "All 3 drafted tokens were accepted, so one more was drawn from the target, with a draw of 0.6250."
    )
    assert plain.verdict == "Nothing was drafted: the token was drawn from the target, with a draw of 0.6250."
    assert plain.title == "Step 2 · plain"
    for seen in (bonus, plain):
        assert list(facts(seen)) == ["Target p", "Uniform draw", "Entropy of the target"]
        assert all(share.draft is share.residual is None for share in seen.shares)
        assert seen.shares[0].fate is Fate.BONUS


def test_under_shared_noise_there_is_no_draw_and_no_residual():
    steps = [replace(step, uniforms=(), next_uniform=None) for step in STEPS]
    accepted, rejected, bonus = (
        inspect(steps, place, Coupling.GUMBEL) for place in (Place(0, 0), Place(0, 2), Place(1, 3))
    )
    assert accepted.verdict == "Accepted: under the shared noise, the target draws the same token."
    assert rejected.verdict == "Rejected: under the shared noise, the target draws “␣last”."
    assert bonus.verdict.endswith("under the noise of its position.")
    assert not {"Uniform draw u", "Acceptance probability, min(1, p/q)"} & set(facts(accepted))


def test_a_run_without_evidence_shows_what_its_steps_hold():
    seen = inspect([make_step(0, 9)], Place(0, 2))
    assert (seen.note, seen.shares) == (NOT_KEPT, ())
    assert facts(seen)["Target p"] == "0.1000"
    assert "resampled" in {chip.fate for chip in seen.chips}


def test_under_shared_noise_no_figure_promises_what_rejection_sampling_would():
    facts = inspect(STEPS, Place(0, 0), Coupling.GUMBEL).facts
    assert not any(
        fact.title.startswith(("Expected acceptance", "Residual", "Uniform", "Acceptance probability"))
        for fact in facts
    )
    assert any(fact.title.startswith("Upper bound of acceptance") for fact in facts)


def test_figures_that_a_log_lacks_are_left_open():
    nan = (float("nan"),) * 4
    step = replace(make_step(0, 9), draft_probs=nan, target_probs=nan, acceptance_probs=nan, uniforms=())
    seen = inspect([step], Place(0, 0))
    assert seen.verdict == "Accepted."
    assert facts(seen)["Target p"] == facts(seen)["Uniform draw u"] == UNKNOWN


@pytest.mark.parametrize("place", [Place(0, 4), Place(0, -1), Place(3, 0), Place(-1, 0), Place(2, 1)])
def test_a_place_that_the_run_does_not_have_shows_nothing(place):
    assert inspect(STEPS, place) is None


def test_an_end_within_the_block_leaves_no_bonus_and_nothing_rejected():
    step = make_step(0, 9, num_draft_tokens=3, num_accepted=3)
    step = replace(step, emitted=step.emitted[:3], emitted_kinds=step.emitted_kinds[:3])
    assert num_places(step) == 3
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


def test_blanks_are_seen_and_long_runs_of_them_counted():
    assert show(" a\n\tb") == "␣a↵⇥b"
    assert show(" " * 12) == "␣×12"
    assert show("") == "∅"


def test_figures_have_the_digits_that_matter():
    figures = (0, 1, 0.12345, 0.00012345, 0.000012345, None)
    assert [number(value) for value in figures] == [
        "0.0000",
        "1.0000",
        "0.1235",
        "0.000123",
        "1.23\u00a0×\u00a010⁻⁵",
        UNKNOWN,
    ]
    assert [percent(value) for value in (0, 1, 0.4231, 0.0123, 0.00012, 1e-7)] == [
        "0", "100\u00a0%", "42.3\u00a0%", "1.23\u00a0%", "0.01\u00a0%", "<0.01\u00a0%",
    ]  # fmt: skip


def test_places_follow_each_other_across_steps():
    place, seen = Place(0, 0), []
    for _ in range(20):
        seen.append((place.step, place.slot))
        place = next_slot(STEPS, place, 1)
    assert seen[:9] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert place == Place(2, 0)
    assert next_slot(STEPS, Place(1, 0), -1) == Place(0, 3)
    assert next_slot(STEPS, Place(0, 0), -1) == Place(0, 0)
    assert next_step(STEPS, Place(1, 3), 1) == Place(2, 0)
    assert next_step(STEPS, Place(0, 1), -1) == Place(0, 1)
    assert next_slot(STEPS, None, 1) == Place(0, 0)
    assert next_step(STEPS, None, -1) == Place(2, 0)
    assert next_slot([], None, 1) is None
