"""What a check says about the bias that it would have found, and why it sometimes can't measure one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

from core.drafters.base import chain
from core.errors import DrafterError
from core.experiments.check import check_drafter
from core.experiments.check_plan import BiasLimit, Verdict
from core.experiments.check_report import (
    distribution_remarks,
    exact_sentence,
    is_loose,
    report_json,
    report_text,
)
from core.experiments.distribution_statistics import DistributionTally
from core.settings import SamplingParams
from core.text import percent_text
from tests.fakes import table_model
from tests.fakes_check import VOCAB_SIZE, TableSession, checked, make_check


def test_the_sentence_says_how_large_a_bias_would_have_shown_which_more_blocks_make_smaller():
    found = checked(make_check()).distribution
    for error, words, start in (
        (0.05, "enough to find only a bias towards the draft of 20.0\u00a0% or more", "Exact as far as tested: "),
        (0.01, "where a bias towards the draft of 4.0\u00a0% would", "Exact: "),
    ):
        said = exact_sentence(Verdict.EXACT, replace(found, bias_error=error))
        assert said.startswith(f"{start}no difference in {found.num_blocks:,} blocks, {words}")
        assert said.endswith("Sample more, for instance 3,000.") is (error == 0.05)
        remark = distribution_remarks(replace(found, bias=0.0, bias_error=error))[0]
        assert "(about 4 standard errors) nine times in ten." in remark, "which is the figure of the sentence"
        assert remark.split("finds a bias of ")[1].split(" (")[0] in said
    unmeasured = replace(found, bias_error=None)
    assert "bias" not in exact_sentence(Verdict.EXACT, unmeasured, has_draft=False)


def test_after_a_second_test_the_bias_that_would_have_shown_is_that_of_the_first_samples(monkeypatch):
    monkeypatch.setattr("core.experiments.distribution.BEYOND_DOUBT", 0.0)
    seen = []
    monkeypatch.setattr(
        "core.experiments.distribution._suspects",
        lambda found: seen.append(found) or ({"token 1"} if len(seen) == 1 else set()),
    )
    report = checked(make_check())
    found = report.distribution
    assert found.first_bias_error == seen[0].bias_error > 1.5 * found.bias_error
    least = f"a bias towards the draft of {percent_text(4 * seen[0].bias_error, 1)}"
    assert least in exact_sentence(Verdict.EXACT, found)
    assert "standard errors of its first samples" in distribution_remarks(found)[0]
    assert is_loose(replace(found, first_bias_error=0.05, bias_error=0.01))
    assert "too few to show a bias" in exact_sentence(Verdict.EXACT, replace(found, first_bias_error=None))
    assert json.loads(report_json(report))["law"]["first_lean_error"] == seen[0].bias_error


@pytest.mark.parametrize(
    ("settings", "limit", "words"),
    [
        (
            {"num_samples": 200, "sampling": SamplingParams(0.15)},
            BiasLimit.SAMPLES,
            "Exact as far as tested: no difference in 200 blocks, too few to show a bias towards the draft. Sample "
            "more, for instance 3,000.",
        ),
        (
            {"draft": "same"},
            BiasLimit.ALIKE,
            "Exact as far as tested: no difference in 400 blocks; draft and target agree too closely to measure a "
            "bias.",
        ),
        (
            {"method": "prompt-lookup", "draft": None},
            BiasLimit.DRAFTS,
            "Exact as far as tested: no difference in 400 blocks; too few tokens were drafted to measure a bias.",
        ),
        (
            {"draft": "never"},
            BiasLimit.UNWRITTEN,
            "Exact as far as tested: no difference in 400 blocks; the target hardly ever writes what the draft "
            "prefers.",
        ),
    ],
    ids=["samples", "alike", "drafts", "unwritten"],
)
def test_where_no_bias_can_be_measured_the_true_reason_is_given(settings, limit, words):
    session = TableSession()
    session.draft = session.target if settings.get("draft") == "same" else session.draft
    if settings.get("draft") == "never":
        rows = 100.0 * torch.eye(VOCAB_SIZE)
        session = TableSession(*(table_model(lambda _, row=row: row, VOCAB_SIZE) for row in rows[:2]))
    report = checked(make_check(**settings), session)
    assert report.distribution.bias_limit is limit
    assert report_text(report).splitlines()[0] == words
    law = json.loads(report_json(report))["law"]
    assert (law["lean"], law["lean_error"], law["lean_limit"]) == (None, None, str(limit))


def test_more_blocks_are_advised_only_where_there_are_more_and_a_near_tie_keeps_its_name():
    found = replace(checked(make_check()).distribution, bias_error=None, bias_limit=BiasLimit.SAMPLES)
    for count, advice in (
        (3_000, "Sample more, for instance 12,000."),
        (100_000, "Sample more, for instance 200,000."),
        (200_000, "Sample more."),
        (1_000_000, "Sample more."),
    ):
        said = exact_sentence(Verdict.NEAR_TIES, replace(found, num_blocks=count))
        assert said == (
            "Exact up to near-ties as far as tested: texts diverge only where rounding decides; no difference in "
            f"{count:,} blocks, too few to show a bias towards the draft. {advice}"
        )


def test_undrafted_tokens_that_are_left_out_at_the_edge_of_a_filter_are_not_counted_as_tested():
    tally, probs = DistributionTally(), torch.full((4,), 0.25, dtype=torch.float64)
    tally.add(1, Counter({0: 100, 3: 900}), probs, None, [3])
    tally.add(1, Counter({3: 900}), probs, None, [3])
    tally.add(2, Counter({0: 100, 1: 100}), probs, probs)
    assert tally.num_undrafted == 100
    assert tally.result(1_000, 0.0).bias_limit is BiasLimit.ALIKE, "200 tokens were drafted"


class Strict:
    """A drafter of somebody else that relies on what its documentation promises: contexts grow from one start on."""

    needs = frozenset()

    def start(self, prompt):
        self.read = len(prompt)

    def propose(self, context):
        assert len(context.ids) >= self.read, "nothing was taken back"
        self.read = len(context.ids) + 1
        return chain(torch.zeros(1, dtype=torch.int64), torch.eye(context.vocab_size)[:1])

    def observe(self, outcome):
        self.read -= 1 - outcome.num_accepted


def test_a_drafter_of_somebody_else_is_asked_by_its_contract_and_named_where_it_fails():
    target = TableSession().target
    request = make_check()
    assert check_drafter(target, lambda _: Strict(), request).verdict is Verdict.EXACT
    failing = Strict()
    failing.propose = None
    with pytest.raises(DrafterError, match="Strict failed"):
        check_drafter(target, lambda _: failing, request)


class Misreported(Strict):
    """It reports a distribution that it doesn't draw from."""

    def propose(self, context):
        return replace(super().propose(context), probs=torch.full((1, context.vocab_size), 1 / context.vocab_size))


def test_a_report_on_a_drafter_of_somebody_else_says_what_was_tested_and_where_to_look_first():
    target = TableSession().target
    for drafter, first in ((Strict, "Only typical"), (Misreported, "First make sure that the drafter draws")):
        report = check_drafter(target, lambda _, drafter=drafter: drafter(), make_check())
        assert report.notes[0].startswith(first)
        assert any(note.startswith("Only this drafter's first proposal") for note in report.notes)
