"""K as text: the one place that reads it for the terminal, requests and logs."""

from functools import partial

import pytest

from core.controls import RunControls
from core.draft_length import config_fields, parse_draft_length, parse_draft_lengths, request_fields, shown_draft_length
from core.errors import SettingsError
from core.runlog.replay import request_from_config
from core.settings import LengthPolicy, RunRequest
from tests.fakes import refusal

WRITTEN = {"1": 1, " 16 ": 16, "auto": LengthPolicy.AUTO, "Adaptive": LengthPolicy.ADAPTIVE}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_length_survives_the_way_through_request_and_log(text):
    length = parse_draft_length(text)
    assert length == WRITTEN[text]
    request = RunRequest("t", "d", "p", **request_fields(length))
    assert RunControls.from_request(request).num_draft_tokens == length
    config = {"target": "t", "draft": "d", "prompt": "p", "seed": 0, **config_fields(length)}
    assert request_from_config(config) == request
    assert shown_draft_length(config) == length


BAD = ["", "0", "65", "-1", "4.5", "many", "fixed", "9" * 500, "auto-adaptive"]
BAD_LISTS = ["1-", "-4", "3-1", "1-65", "1-auto", "1,,2", "1--2"]


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_draft_length, text) for text in BAD] + [(parse_draft_lengths, each) for each in BAD + BAD_LISTS],
)
def test_what_is_no_length_is_refused_in_a_sentence(parse, text):
    said = refusal(SettingsError, parse, text, "-k")
    assert "-k" in said
    assert len(said) < 160


def test_where_plain_decoding_can_be_chosen_the_refusal_says_so():
    assert parse_draft_length("0", least=0) == 0
    assert "from 0 to 64" in refusal(SettingsError, partial(parse_draft_length, least=0), "65")


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("4", (4,)), ("1-3,auto, adaptive,2", (1, 2, 3, "auto", "adaptive")), ("8,2 - 2", (8, 2)), ("16", (16,))],
)
def test_several_lengths_are_written_with_commas_and_ranges(text, lengths):
    assert parse_draft_lengths(text) == lengths


@pytest.mark.parametrize(("written", "length"), [("auto", LengthPolicy.AUTO), (None, LengthPolicy.AUTO), (7, 7)])
def test_a_log_from_before_there_were_policies_is_read_as_it_was(written, length):
    config = {"target": "t", "prompt": "p", "seed": 0, "num_draft_tokens": written}
    assert request_from_config(config).draft_length == length


def test_controls_begin_with_no_length_that_they_would_refuse():
    with pytest.raises(SettingsError):
        RunControls(num_draft_tokens=1000)


@pytest.mark.parametrize("length", [2.5, 4.0, True, None, "4", "fixed", "many"])
def test_a_length_of_another_type_is_refused_in_a_sentence(length):
    assert "K" in refusal(SettingsError, RunControls, num_draft_tokens=length)
    assert "K" in refusal(SettingsError, RunControls().set_num_draft_tokens, length)


@pytest.mark.parametrize("policy", [LengthPolicy.AUTO, LengthPolicy.ADAPTIVE])
def test_a_policy_named_by_its_text_is_that_policy(policy):
    assert RunControls(num_draft_tokens=str(policy)).num_draft_tokens is policy


def test_controls_take_a_policy_in_the_middle_of_a_run_and_refuse_what_is_none():
    controls = RunControls()
    for length in (LengthPolicy.ADAPTIVE, LengthPolicy.AUTO, 0, 16):
        controls.set_num_draft_tokens(length)
        assert controls.num_draft_tokens == length
    for length in (65, -1, LengthPolicy.FIXED):
        with pytest.raises(SettingsError):
            controls.set_num_draft_tokens(length)
    for temperature in (-1.0, float("nan")):
        with pytest.raises(SettingsError):
            controls.set_temperature(temperature)
    assert (controls.num_draft_tokens, controls.sampling) == (16, RunControls().sampling)
    with pytest.raises(SettingsError, match="fixed"):
        RunRequest("t", "d", "p", num_draft_tokens=None, length_policy=LengthPolicy.FIXED)
