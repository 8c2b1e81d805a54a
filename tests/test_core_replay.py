"""A kept run comes back as it was: its events field by field, and the request that runs it again."""

import json
import math
from dataclasses import fields, replace

import pytest

from core.controls import RunControls
from core.errors import RunLogError
from core.runlog.log import RunLogWriter, event_line, to_line, to_record
from core.runlog.reading import read_run_log
from core.runlog.replay import CUT_OFF, events, request_from_config, step_from_record
from core.runlog.tally import Tally
from core.session import Session
from core.settings import Coupling, Device, DType, LengthPolicy, RunRequest, SamplingParams
from core.types import BaselineStep, BlockTest, Finished, FinishReason, PrefillDone, RunStarted, StageChanged, Step
from tests.fakes_app import FakeSession
from tests.fakes_log import STEP_EVENT
from tests.fakes_session import requests_of, save_pair


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("models"))


def run_and_read(session, asked, folder):
    """A run's events as they came, and its log."""
    path = folder / "run.jsonl"
    came = []
    with RunLogWriter(path) as log:
        for event in session.run(asked, RunControls.from_request(asked)):
            log.write(event)
            came.append(event)
    return [event for event in came if not isinstance(event, StageChanged)], read_run_log(path)


STEP_NAMES = [item.name for item in fields(Step)]
REQUESTS = {
    "rejection": {"sampling": SamplingParams(0.9, top_k=40, top_p=0.95, min_p=0.01), "baseline": True, "seed": 11},
    "gumbel": {"coupling": Coupling.GUMBEL, "chat": False, "stop": ("\x00\x00",)},
    "greedy, auto K": {"sampling": SamplingParams(0.0), "num_draft_tokens": None, "dtype": DType.FLOAT32},
    "draft tree": {"method": "draft-tree", "method_options": {"depth": 3}, "num_draft_tokens": 7, "seed": 3},
    "prompt lookup": {"draft": None, "method": "prompt-lookup", "method_options": {"max_ngram": 5, "min_ngram": 2}},
    "plain": {"draft": None, "num_draft_tokens": 0},
}


@pytest.mark.parametrize("changes", REQUESTS.values(), ids=REQUESTS.keys())
def test_a_real_run_comes_back_field_by_field_and_asks_for_the_same_again(models, tmp_path, changes):
    asked = requests_of(models)(prompt="def f(x, x, x):", max_new_tokens=14, **changes)
    session = Session()
    came, log = run_and_read(session, asked, tmp_path)
    back = list(events(log))
    assert [type(event) for event in back] == [type(event) for event in came]
    for old, new in zip(came, back, strict=True):
        if isinstance(old, Step):
            assert {name: getattr(new, name) for name in STEP_NAMES} == {
                name: getattr(old, name) for name in STEP_NAMES
            }
        elif isinstance(old, BaselineStep):
            for name in ("index", "position", "emitted", "emitted_kinds", "emitted_texts", "total_ms"):
                assert getattr(new.step, name) == getattr(old.step, name)
        elif isinstance(old, RunStarted):
            assert to_record(new) == to_record(old)
        elif isinstance(old, PrefillDone) and old.target_step_ms is None:
            # With K on auto a plain step measures it, after the prefill; the log has it at the end.
            assert new == replace(old, target_step_ms=log.summary["target_step_ms"])
        else:
            assert new == old
    again = request_from_config(log.run["config"])
    assert replace(again, method_options={}, chat=None) == replace(asked, method_options={}, chat=None)
    assert again.method_options.items() >= asked.method_options.items()
    repeated = [event for event in session.run(again) if isinstance(event, Finished)]
    session.close()
    if asked.num_draft_tokens is not None or asked.sampling.is_greedy:
        assert repeated[0].summary.text == came[-1].summary.text


@pytest.fixture
def log(tmp_path):
    """A log of the scripted session."""
    return run_and_read(FakeSession(), RunRequest(target="t", draft="d", prompt="p", max_new_tokens=24), tmp_path)[1]


def test_a_log_that_was_cut_off_ends_with_figures_added_up_from_its_steps(log):
    log.summary = None
    *_, last = events(log)
    assert isinstance(last, Finished)
    summary = last.summary
    assert (summary.finish_reason, summary.error) == (FinishReason.CANCELLED, CUT_OFF)
    assert summary.num_steps == len(log.steps)
    assert summary.text == "".join(step["emitted_text"] for step in log.steps)
    assert summary.tokens_per_second > 0
    log.steps = []
    first, prefill, last = events(log)
    assert (type(first), type(prefill), last.summary.num_tokens) == (RunStarted, PrefillDone, 0)


def test_null_stands_for_nan(log):
    record = {**log.steps[0], "draft_probs": [None] * 4, "target_probs": [0.5], "total_ms": None}
    step = step_from_record(json.loads(to_line(record)))
    assert all(math.isnan(value) for value in step.draft_probs)
    assert step.target_probs[0] == 0.5
    assert math.isnan(step.target_probs[3])
    assert step.total_ms == 0.0


IMPOSSIBLE = {
    "emitted": ([], "abc", [True]),
    "emitted_kinds": (["accepted"], ["new kind"], "new"),
    "num_accepted": (9, -1),
    "drafted": (None,),
    "index": ("0",),
    "position": (1.5,),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_a_step_that_no_run_could_have_written_is_left_out(log, name, value):
    next(step for step in log.steps if len(step["emitted"]) > 1)[name] = value
    assert sum(isinstance(event, Step) for event in events(log)) == len(log.steps) - 1


@pytest.mark.parametrize("value", [None, -1, 65, 3.0, True, "fixed", "often", [4]])
def test_a_k_that_no_step_can_have_is_unknown(log, value):
    assert step_from_record({**log.steps[0], "draft_length": "adaptive"}).draft_length is LengthPolicy.ADAPTIVE
    assert step_from_record({**log.steps[0], "draft_length": value}).draft_length is None


def test_odd_figures_in_a_summary_become_unknown_and_counts_are_added_up(log):
    log.summary = {"type": "summary", "finish_reason": "tired", "tokens_per_second": "fast", "num_tokens": None}
    summary = list(events(log))[-1].summary
    assert (summary.finish_reason, summary.num_steps) == (FinishReason.CANCELLED, len(log.steps))
    assert summary.tokens_per_second is None
    assert summary.num_tokens == sum(len(step["emitted"]) for step in log.steps)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": None}, "lacks target"),
        ({"prompt": None, "seed": None}, "lacks prompt and seed"),
        ({"prompt": ""}, "prompt is empty"),
        *(({"num_draft_tokens": value}, "from 0 to 64") for value in (99, [4])),
        ({"temperature": "hot"}, "Temperature"),
        *(({name: "magic"}, "can't read") for name in ("coupling", "device", "chat")),
        *(({name: 5}, "can't read") for name in ("target", "stop")),
        *(({name: [1]}, "can't read") for name in ("method_options", "stop", "prompt", "draft")),
    ],
    ids=str,
)
def test_a_log_that_can_not_be_replayed_says_why(log, changes, words):
    log.run["config"].update(changes)
    with pytest.raises(RunLogError, match=words):
        request_from_config(log.run["config"])


def test_a_gpus_index_a_system_prompt_and_auto_come_back_and_without_them_a_log_is_replayed_where_it_ran(log):
    log.run["config"] |= {"device": "cuda:0", "dtype": "bfloat16"}
    again = request_from_config(log.run["config"])
    assert (again.device, again.dtype, again.baseline, again.system) == (Device.CUDA, DType.BFLOAT16, False, "")
    assert request_from_config(log.run["config"] | {"chat": True}).chat is True, "an older log has what came of it"
    log.run["config"] |= {"requested_device": "cuda:1", "system": "Be brief.", "chat": True, "requested_chat": None}
    again = request_from_config(log.run["config"])
    assert (again.device, again.system, again.chat) == ("cuda:1", "Be brief.", None), "Auto stays Auto"
    log.run["config"]["system"] = ["Be brief."]
    with pytest.raises(RunLogError, match="can't read"):
        request_from_config(log.run["config"])


def test_the_tests_of_a_block_are_read_if_there_is_one_for_each_text():
    record = json.loads(event_line(replace(STEP_EVENT, block=(BlockTest(1.0, 0.0, 0.3), *[BlockTest(0.5, 0.2)] * 2))))
    assert step_from_record(record).block[0].residual == 0.3
    assert step_from_record(record | {"block": record["block"] * 2}).block == step_from_record(record).block
    assert step_from_record(record | {"block": record["block"][:1]}).block == ()


def test_a_block_of_an_older_log_has_weights_but_no_predictions():
    """Its figures were those of token verification; `expected_of` would add them up."""
    record = json.loads(event_line(STEP_EVENT)) | {"block": [[1.0, 0.0], [0.5, 0.2], [0.25, 0.25]]}
    step = step_from_record(record)
    assert [test.weight for test in step.block] == [1.0, 0.5, 0.25]
    assert step.acceptance_probs == (0.5, 0.25)
    assert all(map(math.isnan, (*step.expected_acceptance, step.block[0].residual)))
    assert Tally([step]).predicted_rate is None
