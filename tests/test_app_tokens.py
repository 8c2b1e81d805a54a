"""A run's text as tokens: what became of each, and what its tooltip says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.run.token_notes import tooltip
from app.run.tokens import TokenStream, num_joined
from tests.fakes_app import make_step

FAMILY = "👨‍👩‍👧"


@pytest.fixture
def stream():
    stream = TokenStream()
    stream.clear("Once upon")
    return stream


def at(stream, position):
    """The token at a position of the sequence."""
    return next(token for step in stream.steps for token in step.tokens if token.position == position)


def test_the_first_ghost_was_rejected_and_the_rest_discarded(stream):
    stream.append(make_step(0, 2, num_draft_tokens=4, num_accepted=1))
    assert [ghost.tested for ghost in stream.steps[0].ghosts] == [True, False, False]


def test_a_text_that_ends_within_the_block_leaves_no_ghosts(stream):
    step = make_step(0, 2, num_draft_tokens=4, num_accepted=2)
    stream.append(replace(step, emitted=step.emitted[:2], emitted_kinds=step.emitted_kinds[:2]))
    assert stream.steps[0].ghosts == ()
    assert stream.num_tokens == 2


def test_the_tooltip_tells_step_kind_and_probabilities(stream):
    stream.append(make_step(0, 2, num_accepted=1))
    accepted = tooltip(at(stream, 2))
    for part in ("accepted", "Step", ">0<", "0.6000", "0.5000", "1.0000", "1002", "t2"):
        assert part in accepted
    resampled = tooltip(at(stream, 3))
    for part in ("resampled", "In place of", "0.1000", "0.2000", "residual"):
        assert part in resampled
    ghost = tooltip(stream.steps[0].ghosts[0])
    assert "rejected" in ghost
    discarded = tooltip(stream.steps[0].ghosts[1])
    assert "discarded" in discarded
    assert "counts as drafted, not as rejected" in discarded


def test_the_tooltip_of_a_bonus_token_has_no_probabilities_to_tell(stream):
    stream.append(make_step(0, 2, num_accepted=4))
    text = tooltip(at(stream, 6))
    assert "bonus" in text
    assert "probability" not in text


def test_a_token_that_looks_like_markup_is_shown_as_it_is(stream):
    stream.append(make_step(0, 2, num_accepted=4, texts=lambda _position: "<b>&"))
    assert "&lt;b&gt;&amp;" in tooltip(at(stream, 2))


@pytest.mark.parametrize(
    ("tail", "text", "joined"),
    [("e", "\u0301x", 1), ("a", "b", 0), ("👍", "🏽!", 1), (FAMILY[:1], FAMILY[1:], len(FAMILY) - 1), ("中", "文", 0)],
)
def test_what_completes_a_character_is_distinguished_from_what_begins_one(tail, text, joined):
    assert num_joined(tail, text) == joined
