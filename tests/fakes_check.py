"""A pair of tables to check, and the settings to check it with."""

from core.check.engine import check
from core.check.types import CheckFinished, CheckRequest
from core.controls import RunControls
from core.prompt_suites import Prompt
from core.session import Loaded
from core.types import RunRequest, SamplingParams
from tests.fakes import random_law, table_model

PROMPTS = (Prompt("first", "abc"), Prompt("second", "fed"))
VOCAB_SIZE = 6


class TableSession:
    """Has one pair, and loads nothing."""

    def __init__(self, target=None, draft=None):
        self.target = target or table_model(random_law(VOCAB_SIZE, 10, memory=2), VOCAB_SIZE, ref="target")
        self.draft = draft or table_model(random_law(VOCAB_SIZE, 20, memory=2), VOCAB_SIZE, ref="draft")

    def load(self, request, controls):
        controls.check_cancelled()
        return Loaded(self.target, self.draft if request.draft else None, None)
        yield


def make_check(*, num_samples=400, num_tokens=12, prompts=PROMPTS, with_transformers=False, **run):
    """A check that takes a moment."""
    run = {"sampling": SamplingParams(0.9), "num_draft_tokens": 2, "draft": "draft", **run}
    request = RunRequest(target="target", prompt="any", **run)
    return CheckRequest(request, prompts, num_samples, num_tokens, with_transformers)


def checked(request=None, session=None):
    """The report of a check that goes to its end."""
    *_, last = check(session or TableSession(), request or make_check(), RunControls())
    assert isinstance(last, CheckFinished)
    return last.report
