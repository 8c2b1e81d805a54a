"""Exactness on demand of trees and of the other rules of verification: mutants of each rule must fail."""

import itertools
from dataclasses import replace

import pytest

import core.drafters.draft_tree
import core.rounds
import core.verify.other_rules
import core.verify.rejection
from core.controls import RunControls
from core.decode import sample_blocks
from core.drafters.base import DrafterSetup
from core.drafters.registry import TreeRule, build_drafter, rule_problem
from core.errors import SettingsError
from core.experiments.check import CheckContext
from core.experiments.check_plan import Divergence, Verdict
from core.experiments.check_report import drafting_text, notes_on, report_json, report_text, verdict_sentence
from core.experiments.distribution import DraftDistribution
from core.session import Loaded
from core.settings import LOSSY, Coupling, LengthPolicy, SamplingParams, VerificationRule
from tests.exactness import mutate
from tests.fakes import is_sentence, tiny_model
from tests.fakes_check import TableSession, checked, make_check
from tests.fakes_medusa import heads_for
from tests.test_core_check import break_engine
from tests.test_core_trees import BLOCK_MUTANTS, DRAWS, MUTANTS

SHAPES = {
    "siblings": {"num_draft_tokens": 3, "depth": 1, "branching": 3},
    "levels of two": {"num_draft_tokens": 6, "depth": 2, "branching": 2},
    "deep": {"num_draft_tokens": 8, "depth": 4, "branching": 3},
}


def tree_check(rule: TreeRule, num_draft_tokens: int = 6, *, depth: int = 2, branching: int = 2, **more):
    options = {"rule": rule, "depth": depth, "branching": branching}
    return make_check(method="draft-tree", method_options=options, num_draft_tokens=num_draft_tokens, **more)


# --- What is exact passes ---


@pytest.mark.parametrize(
    ("rule", "shape"), [*zip([*TreeRule, TreeRule.WITHOUT], itertools.cycle(SHAPES), strict=False)]
)
def test_every_rule_and_shape_of_a_tree_is_exact(rule, shape):
    report = checked(tree_check(rule, **SHAPES[shape], num_samples=300))
    assert report.verdict is Verdict.EXACT
    trees, wanted = report.distribution.trees, SHAPES[shape]
    assert (trees.most_nodes, trees.most_children) == (wanted["num_draft_tokens"], wanted["branching"])
    assert trees.most_depth == wanted["depth"]
    assert shape != "siblings" or any(test.name == "bonus" for test in report.distribution.tests), "behind a leaf"
    text = report_text(report)
    assert f"draft-tree (depth {wanted['depth']}, branching {wanted['branching']}, lookup 0, rule {rule}), K" in text
    assert f"up to {trees.most_nodes} nodes, {trees.most_depth} in a row, {trees.most_children} siblings." in text


def medusa_check(target, **more):
    options = {"heads": heads_for(target), "int8": False}
    return make_check(method="medusa", draft=None, method_options=options, num_draft_tokens=6, **more)


@pytest.fixture
def target():
    return tiny_model("llama", is_fused=True)


def test_medusa_heads_are_exact(target):
    report = checked(medusa_check(target), TableSession(target))
    assert report.verdict is Verdict.EXACT
    assert report.distribution.trees.most_nodes == 6


def test_medusa_blocks_and_their_bias_are_drafted_from_the_state_of_their_own_prompt(target):
    request = medusa_check(target)
    run, controls = request.run, RunControls(request.run.sampling, 6)

    def make_drafter(_capacity):
        return build_drafter("medusa", DrafterSetup(target), run.method_options)

    context = CheckContext(request, Loaded(target, None, None), (), controls, make_drafter)
    expected = DraftDistribution(context, (5, 6, 7), 12)
    for block in ((), (9,), (9, 10), ()):
        blocks = sample_blocks(target, make_drafter(0), [5, 6, 7, *block], seed=1, controls=controls)
        drafted = {(step.drafted, step.parents) for step, _ in zip(blocks, range(6), strict=False)}
        assert len(drafted) == 1, "heads draw nothing"
        assert expected.after(block).argmax() == drafted.pop()[0][0]


RULES = {
    "block": {"num_draft_tokens": 4},
    "block, adaptive": {"num_draft_tokens": None, "length_policy": LengthPolicy.ADAPTIVE},
    "block, filtered": {"num_draft_tokens": 3, "sampling": SamplingParams(0.8, 4, 0.95, 0.02)},
    "block, one-hots": {"method": "prompt-lookup", "draft": None},
}


@pytest.mark.parametrize("settings", RULES.values(), ids=RULES)
def test_block_verification_is_exact(settings):
    report = checked(make_check(verification=VerificationRule.BLOCK, **settings))
    assert report.verdict is Verdict.EXACT
    assert "block verification" in report_text(report)


# --- What is broken fails ---


COLDER = "token = draw(left, uniform)", "token = draw((left**3) / (left**3).sum(), uniform)"
HALF_SURE = "q = [1.0] * count if draft_probs", "q = [0.5] * count if draft_probs"
# One for each rule: `test_core_trees` has more, for the verifier and the drafter alone.
TREE_MUTANTS = {
    "a sibling is tested against the whole target": (
        core.verify.rejection, MUTANTS["a sibling is tested against the whole target"], TreeRule.WITHOUT,
    ),
    "independent siblings are drawn colder than they say": (core.drafters.draft_tree, COLDER, TreeRule.INDEPENDENT),
    "the top one is said to be drawn": (
        core.drafters.draft_tree, DRAWS["the top one is said to be drawn"], TreeRule.TOP,
    ),
    "the best ones are tested as if drawn half of the time": (core.verify.rejection, HALF_SURE, TreeRule.BEST),
}  # fmt: skip


@pytest.mark.parametrize("name", TREE_MUTANTS)
def test_a_mutant_of_each_rule_of_a_tree_is_not_exact(name, monkeypatch):
    module, mutation, rule = TREE_MUTANTS[name]
    if module is core.verify.rejection:
        break_engine(monkeypatch, module, mutation)
    else:
        monkeypatch.setattr(module, "_children", mutate(module, *mutation)._children)
    report = checked(tree_check(rule, 6, branching=3, num_samples=1_000))
    assert report.verdict is Verdict.NOT_EXACT


def test_a_mutant_of_block_verification_is_not_exact(monkeypatch):
    mutant = mutate(core.verify.other_rules, *BLOCK_MUTANTS["corrects without the weight"])
    monkeypatch.setattr(core.rounds, "verify_as_block", mutant.verify_as_block)
    request = make_check(verification=VerificationRule.BLOCK, num_draft_tokens=3, num_samples=1_000)
    assert checked(request).verdict is Verdict.NOT_EXACT


# --- What is lossy is never called exact ---


@pytest.mark.parametrize("method", ["draft-model", "draft-tree"])
def test_typical_acceptance_is_proved_to_be_lossy(method):
    report = checked(make_check(method=method, verification=VerificationRule.TYPICAL, num_samples=1_200))
    assert report.verdict is Verdict.NOT_EXACT
    assert not report.distribution.is_exact
    text = report_text(report)
    assert text.startswith("Not exact: typical acceptance")
    assert "these 1,200 blocks show it" in text
    assert LOSSY in text
    assert "keeps the distribution" not in text
    assert not report.is_unexplained
    parting = Divergence("a", 3, " x", " y", 2.0, 0.1, is_near_tie=False)
    report = replace(report, identities=(replace(report.identities[0], divergences=(parting,)),))
    assert report.is_unexplained, "no rule of acceptance changes a greedy text"
    assert notes_on(report)[0] == "Save the report, and file a bug with it."
    assert verdict_sentence(report).endswith("plain decoding: 1 of 2 texts differs by more than rounding.")


def test_typical_acceptance_is_not_exact_even_where_the_samples_cannot_tell():
    pair = TableSession().target
    report = checked(make_check(verification=VerificationRule.TYPICAL, num_samples=200), TableSession(pair, pair))
    # A draft like its target is accepted by the exact rule, too: nearly everything that it drafts is typical.
    assert report.distribution.is_exact
    assert "these 200 blocks don't show it" in report_text(report)
    assert report.verdict is Verdict.NOT_EXACT
    assert '"verdict": "not exact"' in report_json(report)


def test_at_temperature_0_typical_acceptance_gives_the_greedy_text():
    report = checked(make_check(verification=VerificationRule.TYPICAL, sampling=SamplingParams(0.0)))
    assert report.verdict is Verdict.EXACT
    assert "still the greedy one" in report_text(report)


def test_a_rule_that_would_not_act_is_refused_in_a_sentence():
    assert not rule_problem("draft-model", Coupling.REJECTION, VerificationRule.BLOCK)
    assert not rule_problem("medusa", Coupling.REJECTION, VerificationRule.TYPICAL)
    assert not rule_problem("medusa", Coupling.GUMBEL, VerificationRule.TOKEN)
    for refused in (
        ("draft-model", Coupling.GUMBEL, VerificationRule.BLOCK),
        ("draft-tree", Coupling.GUMBEL, VerificationRule.TYPICAL),
        ("draft-tree", Coupling.REJECTION, VerificationRule.BLOCK),
        ("medusa", Coupling.REJECTION, VerificationRule.BLOCK),
    ):
        assert is_sentence(rule_problem(*refused))
    with pytest.raises(SettingsError, match="There is no method"):
        rule_problem("nothing", Coupling.REJECTION, VerificationRule.TOKEN)


def test_a_report_names_no_folder_of_heads():
    text = drafting_text(medusa_check(tiny_model("llama")).run)
    assert text == "medusa, K = 6, token verification"
