"""Settings that change during a run take effect from the next step, and are recorded with it."""

import math

import pytest

from core.controls import RunControls
from core.decode import speculative
from core.errors import SettingsError
from core.types import SamplingParams, Step
from tests.fakes_decode import tables


def test_k_and_temperature_apply_from_the_next_step_and_are_recorded():
    model = tables()[0]
    controls = RunControls(SamplingParams(1.0, top_k=3), 2)
    seen = []
    for event in speculative(model, model, [0], controls=controls, max_new_tokens=60):
        if not isinstance(event, Step):
            continue
        seen.append((event.num_draft_tokens, event.temperature))
        if len(seen) == 2:
            controls.set_num_draft_tokens(5)
        if len(seen) == 3:
            controls.set_temperature(0.0)
            greedy_from = event.position + len(event.emitted)
        if len(seen) == 5:
            controls.set_num_draft_tokens(0)
        if len(seen) == 6:
            break
    assert seen == [(2, 1.0), (2, 1.0), (5, 1.0), (5, 0.0), (5, 0.0), (0, 0.0)]
    assert greedy_from < 60
    assert controls.sampling.top_k == 3


@pytest.mark.parametrize("k", [-1, 17])
def test_live_settings_out_of_range_change_nothing(k):
    controls = RunControls(SamplingParams(0.5), 3)
    with pytest.raises(SettingsError):
        controls.set_num_draft_tokens(k)
    with pytest.raises(SettingsError):
        controls.set_temperature(-1.0)
    with pytest.raises(SettingsError):
        controls.set_temperature(math.nan)
    assert (controls.num_draft_tokens, controls.sampling.temperature) == (3, 0.5)


def test_a_temperature_that_moves_keeps_greedy_steps_greedy():
    target, draft = tables()
    controls = RunControls(SamplingParams(1.0), 3)
    ids = [0]
    for event in speculative(target, draft, [0], controls=controls, max_new_tokens=80):
        if isinstance(event, Step):
            for token in event.emitted:
                if event.temperature == 0.0:
                    assert token == int(target.law(ids).argmax())
                ids.append(token)
            controls.set_temperature(0.0 if controls.sampling.temperature else 1.0)
