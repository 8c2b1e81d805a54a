"""The race's arithmetic: two runs on one clock, and a speedup that adds up."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from app.run.pages.race import MOVED, SAME, SAME_DISTRIBUTION, Race, seconds_text
from app.run.run_counts import Timeline
from core.settings import Coupling
from tests.fakes_app import make_step


def speculative(count=30, seed=1, **changes):
    source, position, steps = random.Random(seed), 9, []
    for index in range(count):
        k = source.choice((0, 3, 5))
        step = make_step(
            index, position, num_draft_tokens=k, num_accepted=source.randint(0, k), ms=source.uniform(8, 12)
        )
        steps.append(replace(step, **changes))
        position += len(step.emitted)
    return steps


def plainly(steps, ms=9.0, **changes):
    """The same tokens, one a step."""
    ids = [token for step in steps for token in step.emitted]
    blank = make_step(0, 0, num_draft_tokens=0, num_accepted=0, ms=ms)
    return [replace(blank, index=i, position=9 + i, emitted=(token,), **changes) for i, token in enumerate(ids)]


def race(ours=None, plain=None, coupling=Coupling.REJECTION, speedup=1.5):
    ours = ours or speculative()
    return Race(ours, plain or plainly(ours), coupling=coupling, speedup=speedup)


def timeline_of(steps):
    timeline = Timeline()
    for step in steps:
        timeline.add(step)
    return timeline


def test_a_steps_tokens_are_there_when_it_ends_and_not_before():
    steps = speculative(3)
    timeline = timeline_of(steps)
    first = steps[0].total_ms
    assert timeline.tokens_at(0) == 0
    assert timeline.tokens_at(first - 1e-6) == 0
    assert timeline.tokens_at(first) == len(steps[0].emitted)
    assert timeline.tokens_at(1e9) == timeline.num_tokens == sum(len(step.emitted) for step in steps)
    assert timeline.end_ms == pytest.approx(sum(step.total_ms for step in steps))


def test_a_step_without_a_time_takes_none():
    timeline = timeline_of([replace(step, total_ms=math.nan) for step in speculative(2)])
    assert timeline.end_ms == 0.0
    assert timeline.tokens_at(0.0) == timeline.num_tokens > 0


def test_efficiency_over_cost_is_the_speedup():
    ours = speculative()
    plain = plainly(ours)
    tokens = sum(len(step.emitted) for step in ours)
    ours_ms, plain_ms = (sum(step.total_ms for step in steps) for steps in (ours, plain))
    measured = (tokens / ours_ms) / (len(plain) / plain_ms)
    found = race(ours, plain, speedup=measured)
    efficiency, cost = tokens / len(ours), (ours_ms / len(ours)) / (plain_ms / len(plain))
    assert efficiency / cost == pytest.approx(measured)
    assert f"{efficiency:.2f} / {cost:.2f} = {measured:.2f}×." in found.source
    assert f"{efficiency:.2f} tokens per forward" in found.source


def test_who_leads_and_by_how_much_follows_the_clock():
    ours = [make_step(0, 9, num_draft_tokens=4, num_accepted=4, ms=10.0)]
    plain = plainly(ours, ms=10.0)
    found = race(ours, plain)
    plain_ms, ours_ms = plain[0].total_ms, ours[0].total_ms
    assert found.lead_text(0) == "Level"
    assert found.lead_text(plain_ms + 0.01) == "The baseline is 1 token ahead"
    assert found.lead_text(ours_ms) == "Speculative is 4 tokens ahead"
    gap = seconds_text(5 * plain_ms - ours_ms)
    assert found.lead_text(found.duration_ms) == f"Speculative finished {gap} earlier"
    assert found.duration_ms == pytest.approx(5 * plain_ms)


def test_two_texts_are_compared_in_one_sentence():
    ours, other = speculative(), plainly(speculative(seed=2))
    assert race(ours).texts == SAME
    assert race(ours, other).texts == SAME_DISTRIBUTION
    ours[5] = replace(ours[5], temperature=0.0)
    assert race(ours, other).texts == MOVED


@pytest.mark.parametrize("coupling", list(Coupling))
def test_texts_that_should_be_equal_and_are_not_say_where_they_part(coupling):
    ours = speculative(temperature=0.0 if coupling is Coupling.REJECTION else 0.8)
    plain = plainly(ours)
    plain[6] = replace(plain[6], emitted=(-1,))
    assert race(ours, plain, coupling).texts == "The texts part at token 7: rounding decided a near-tie."


def test_a_baseline_that_was_stopped_gives_no_speedup_but_a_race():
    ours = speculative()
    found = race(ours, plainly(ours)[:4], speedup=None)
    assert found.source == "The baseline was stopped after 4 tokens, so no speedup was measured."
    assert found.texts == "Same text, token for token, as far as the baseline got: 4 tokens."


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (84.4, "84 ms"), (999.6, "1.00 s"), (1250, "1.25 s"), (74_120, "74.1 s")]
)
def test_times_read_well(ms, text):
    assert seconds_text(ms) == text
