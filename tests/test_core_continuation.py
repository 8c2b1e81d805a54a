"""A run may branch off another: what is kept counts as written, what is forced stands, and the rest is the target's."""

import pytest

from core.controls import RunControls
from core.errors import PromptError, SettingsError
from core.runlog.log import to_record
from core.runlog.replay import request_from_config
from core.session import Session
from core.settings import Coupling, SamplingParams
from core.types import BaselineStep, Finished, FinishReason, PrefillDone, RunStarted, Step
from tests.fakes import byte_tokenizer, refusal, save_model
from tests.fakes_session import requests_of

LENGTH = 24


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tokenizer = byte_tokenizer([("a", "b"), ("ab", "c")])
    save_model(root / "target", tokenizer=tokenizer, eos_token_id=None)
    save_model(root / "draft", seed=1, tokenizer=tokenizer, eos_token_id=None)
    save_model(root / "ending", tokenizer=tokenizer, eos_token_id=256)
    return root


@pytest.fixture(scope="module")
def session():
    return Session()


@pytest.fixture
def request_for(models):
    values = {"prompt": "once", "sampling": SamplingParams(0.0), "max_new_tokens": LENGTH, "seed": 3}
    return lambda **changes: requests_of(models)(**{**values, **changes})


class Run:
    """A run that was played to its end."""

    def __init__(self, session, request):
        self.events = list(session.run(request, RunControls.from_request(request)))
        self.started = next(event for event in self.events if isinstance(event, RunStarted))
        self.steps = [event for event in self.events if isinstance(event, Step)]
        self.ids = tuple(token for step in self.steps for token in step.emitted)
        self.summary = self.events[-1].summary
        assert isinstance(self.events[-1], Finished)


@pytest.mark.parametrize("at", [0, 1, 7, LENGTH - 2])
def test_a_greedy_branch_that_forces_the_same_token_writes_the_same_text(session, request_for, at):
    whole = Run(session, request_for())
    kept, forced = whole.ids[:at], whole.ids[at : at + 1]
    branch = Run(session, request_for(continuation=kept, forced=forced, max_new_tokens=LENGTH - at - 1))
    assert (*kept, *forced, *branch.ids) == whole.ids
    config = branch.started.config
    assert config["continuation_text"] + config["forced_text"] + branch.summary.text == whole.summary.text


def test_a_reproducible_branch_with_the_same_seed_writes_the_same_text(session, request_for):
    drawn = {"sampling": SamplingParams(1.0), "coupling": Coupling.GUMBEL}
    whole = Run(session, request_for(**drawn))
    branch = Run(session, request_for(**drawn, continuation=whole.ids[:9], max_new_tokens=LENGTH - 9))
    assert whole.ids[:9] + branch.ids == whole.ids


def test_another_forced_token_leads_to_another_text_that_continues_it(session, request_for):
    whole = Run(session, request_for())
    other = (whole.ids[5] + 1) % 256
    branch = Run(session, request_for(continuation=whole.ids[:5], forced=(other,)))
    assert branch.ids != whole.ids[6:]
    again = Run(session, request_for(continuation=(*whole.ids[:5], other)))
    assert again.ids == branch.ids
    # Figures and positions are about what is new.
    branch = Run(session, request_for(continuation=whole.ids[:10], max_new_tokens=5))
    prompt = branch.started.config["prompt_token_ids"]
    prefill = next(event for event in branch.events if isinstance(event, PrefillDone))
    assert prefill.num_prompt_tokens == branch.steps[0].position == len(prompt) + 10
    assert branch.summary.num_tokens == len(branch.ids) == 5


@pytest.mark.parametrize(("num_kept", "num_forced"), [(9, 0), (8, 1)])
def test_a_stop_text_that_begins_in_what_was_kept_or_forced_stops_a_branch_as_it_did_the_whole(
    session, request_for, num_kept, num_forced
):
    text = Run(session, request_for()).summary.text
    stop = text[6:12]
    whole = Run(session, request_for(stop=(stop,)))
    begins = text.index(stop)
    assert (whole.summary.finish_reason, whole.summary.text) == (FinishReason.STOP, text[:begins])
    kept, forced = whole.ids[:num_kept], whole.ids[num_kept : num_kept + num_forced]
    branch = Run(session, request_for(stop=(stop,), continuation=kept, forced=forced, baseline=True))
    assert begins < num_kept + num_forced < begins + len(stop), "the branch begins within the stop text"
    assert (*kept, *forced, *branch.ids) == whole.ids
    for part in (branch.summary.text, branch.summary.baseline_text):
        assert (branch.summary.finish_reason, part) == (FinishReason.STOP, "")


def test_a_stop_text_in_the_prompt_or_wholly_in_what_was_kept_stops_nothing(session, request_for):
    whole = Run(session, request_for())
    stops = ("once", "nce" + whole.summary.text[:6], whole.summary.text[:3])
    branch = Run(session, request_for(stop=stops, continuation=whole.ids[:4], max_new_tokens=4))
    assert (branch.summary.finish_reason, branch.ids) == (FinishReason.LENGTH, whole.ids[4:8])


def test_the_baseline_of_a_branch_continues_the_same(session, request_for):
    branch = Run(session, request_for(continuation=(97, 98, 99), max_new_tokens=6, baseline=True))
    plain = [event.step.emitted[0] for event in branch.events if isinstance(event, BaselineStep)]
    assert tuple(plain) == branch.ids
    assert branch.summary.baseline_text == branch.summary.text


def test_the_log_tells_what_was_continued_and_only_where_something_was(session, request_for):
    branch = Run(session, request_for(continuation=(104, 105), forced=(33,), max_new_tokens=1))
    record = to_record(branch.started)
    assert record["config"]["continuation_token_ids"] == [104, 105, 33]
    assert request_from_config(record["config"]).continuation == (104, 105, 33)
    plain = to_record(Run(session, request_for(max_new_tokens=1)).started)
    assert not {name for name in plain["config"] if "continuation" in name or "forced" in name}


@pytest.mark.parametrize("text", ["abc", " a\tb\n", "\n\nabc", "é 😀", "日本語", "שלום"])
def test_a_typed_text_becomes_tokens_that_read_as_it_does(session, request_for, text):
    tokenizer = byte_tokenizer([("a", "b"), ("ab", "c")])
    kept = tuple(tokenizer("x")["input_ids"])
    branch = Run(session, request_for(continuation=kept, forced_text=text, max_new_tokens=1))
    config = branch.started.config
    assert (config["continuation_text"], config["forced_text"]) == ("x", text)
    assert tokenizer.decode(config["continuation_token_ids"]) == "x" + text


def test_a_character_that_was_cut_in_two_is_whole_in_the_branch(session, request_for):
    halves = tuple(byte_tokenizer()("é")["input_ids"])
    branch = Run(session, request_for(continuation=halves[:1], forced=halves[1:], max_new_tokens=1))
    assert branch.started.config["continuation_text"] == ""
    assert branch.started.config["forced_text"] == "é"


@pytest.mark.parametrize(
    ("changes", "target"),
    [({"continuation": (70_000,)}, "target"), ({"forced": (999_999,)}, "target"),
     ({"continuation": (97,) * 200}, "target"), ({"forced": (256,)}, "ending")],
)  # fmt: skip
def test_what_cant_be_continued_is_said_before_the_run_starts(session, request_for, models, changes, target):
    said = refusal(PromptError, lambda: list(session.run(request_for(target=str(models / target), **changes))))
    assert target == "target" or "ends the text" in said


@pytest.mark.parametrize("ids", [(-1,), (1.5,), (True,)])
def test_ids_that_are_none_are_refused_at_once(request_for, ids):
    with pytest.raises(SettingsError):
        request_for(continuation=ids)
