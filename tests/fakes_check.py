"""A pair of tables to check, and the settings to check it with."""

from dataclasses import replace

from core.controls import RunControls
from core.experiments import check_plan as checks
from core.experiments.check_plan import CheckFinished, CheckProgress, CheckReport, CheckRequest, Comparison
from core.experiments.check_report import notes_on
from core.experiments.prompt_suites import Prompt
from core.settings import RunRequest, SamplingParams
from core.types import StageChanged
from tests.fakes import random_rows, table_model

PROMPTS = (Prompt("first", "abc"), Prompt("second", "fed"))
VOCAB_SIZE = 6


class TableSession:
    """Has one pair, and loads nothing."""

    def __init__(self, target=None, draft=None):
        self.target = target or table_model(random_rows(VOCAB_SIZE, 10, memory=2), VOCAB_SIZE, ref="target")
        self.draft = draft or table_model(random_rows(VOCAB_SIZE, 20, memory=2), VOCAB_SIZE, ref="draft")

    def load(self, request, controls):
        from core.session import Loaded

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
    from core.experiments.check import check

    *_, last = check(session or TableSession(), request or make_check(), RunControls())
    assert isinstance(last, CheckFinished)
    return last.report


def make_report(request, *, broken=False, near=False, seconds=27.4):
    """A report as the engine would send it, without a model."""
    ties = (checks.Divergence("Read a file", 17, " path", " name", 2.1e-6, 4.4e-6, is_near_tie=True),) if near else ()
    p_values = (0.563, 2.7e-5, 7.7e-12) if broken else (0.563, 0.462, 0.558)
    tests = (
        checks.DistributionTest("token 1", 1, 3000, 18, 16.4, p_values[0]),
        checks.DistributionTest("token 2", 2, 565, 13, 48.8 if broken else 12.8, p_values[1], is_failed=broken),
        checks.DistributionTest("token 3", 3, 21, 0, 0.0, None),
        checks.DistributionTest("bonus", None, 576, 13, 18.1, 0.152),
        checks.DistributionTest("bias", None, 4162, 1, 46.9 if broken else 0.3, p_values[2], is_failed=broken),
    )
    tokens = (("    ", 499, 497.9), ("return", 233, 244.1), ("):", 140, 132.7), ("x", 13, 11.9), ("", 115, 113.4))
    distribution = checks.DistributionResult(
        3000,
        tests,
        0.093 if broken else 0.006,
        0.0103,
        0,
        8.4e-7,
        1e-3,
        first_tokens=tuple(
            checks.FirstTokens(name, tuple(checks.TokenCount(*item) for item in tokens))
            for name in ("Fibonacci", "Read a file")
        ),
    )
    greedy = checks.IdentityResult(Comparison.GREEDY, 9, 576 - 46 * near, ties)
    report = CheckReport(request, "cpu", "float32", (greedy,), distribution, (), seconds)
    return replace(report, notes=notes_on(report))


class FakeTask:
    """Work of the engine that answers what a test says; waits before each piece while there is a gate."""

    def __init__(self):
        self.gate = self.error = None
        self.requests = []

    def __call__(self, _session, request, controls):
        self.requests.append(request)
        yield StageChanged("Loading…")
        if self.error is not None:
            raise self.error
        yield from self.answer(request, controls)

    def goes_on(self, controls):
        """Wait for the gate, and return whether to continue."""
        while self.gate is not None and not self.gate.acquire(timeout=0.005) and not controls.is_cancelled:
            pass
        return not controls.is_cancelled


class FakeCheck(FakeTask):
    """Answers with a report."""

    def __init__(self, **report):
        super().__init__()
        self.report = report

    def answer(self, request, controls):
        for done in (0, 1000, 2000):
            yield CheckProgress("Blocks", done, 3000, 2, 2)
            if not self.goes_on(controls):
                yield CheckFinished(None)
                return
        yield CheckFinished(make_report(request, **self.report))
