"""Trees: one verdict for every rule of drawing siblings, caches that keep a path, shapes, and mutants of each."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import core.drafters.draft_tree
import core.verify.other_rules
import core.verify.rejection
from core.analysis.calibration import calibrate
from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.draft_tree import DraftTreeDrafter
from core.drafters.registry import DraftTreeOptions, TreeRule
from core.drafters.tree_shape import ShapeChoice, grow, node_gains
from core.errors import DrafterError
from core.runners.base import tree_rows
from core.sampling import draw_uniforms
from core.settings import VerificationRule
from core.types import Draft, TokenKind, depths_of, is_chain
from core.verify import verify, verify_block, verify_tree
from core.verify.on_device import figures_of, verify_gumbel_on_device, verify_on_device
from core.verify.other_rules import passes_typically, verify_as_block, verify_gumbel, verify_typically
from tests.exactness import SIGNIFICANCE, V, chi_squared_p_value, joint_p_value, mutate, tree_step, verify_step
from tests.fakes import GREEDY, NoLook, StubDrafter, fixed_rows, play, random_rows, table_model, tiny_model

PARENTS = [-1, -1, -1, 0, 0, 1]
"""As many siblings as there are tokens, and branches of two and of one."""
RULES = (*TreeRule, "mixed")


@pytest.mark.parametrize("rule", RULES)
def test_a_tree_follows_the_target_jointly(rule):
    assert joint_p_value(tree_step(verify_block, PARENTS, rule), samples=3_000, seed=2) > SIGNIFICANCE


MUTANTS = {
    "a sibling is tested against the whole target": (
        "float(left[draft_tokens[node]]) if has_tested else p[node]", "p[node]"
    ),
    "corrects from what the first sibling left": (
        "left = residual(left,", "left = residual(target_probs[at + 1],"
    ),
    "the last child decides": ("if parent != at:", "if parent != (path[-2] if len(path) > 1 else -1):"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_verifier_of_trees_is_found(name):
    mutant = mutate(core.verify.rejection, *MUTANTS[name])
    try:
        p_value = joint_p_value(tree_step(mutant.verify_block, PARENTS, TreeRule.WITHOUT), seed=2)
    except (AssertionError, KeyError):
        return  # It emitted what no tree could.
    assert p_value < SIGNIFICANCE


DRAWS = {
    "siblings without replacement are said to be independent": (
        "yield token, left\n        if", "yield token, row\n        if"
    ),
    "independent siblings are said to be without replacement": (
        "token = draw(left, uniform)", "token = draw(row, uniform)"
    ),
    "the top one is said to be drawn": ("torch.zeros_like(left).index_fill_(0, token, 1.0)", "left"),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWS)
def test_a_wrong_way_to_draw_siblings_is_found(name):
    mutant = mutate(core.drafters.draft_tree, *DRAWS[name])
    rule = TreeRule.TOP if "top" in name else TreeRule.WITHOUT

    def step(*given):
        while True:
            try:
                return tree_step(verify_block, [-1] * 3, rule, mutant._children)(*given)
            except DrafterError:
                continue  # It says a probability of 0: found in any case.

    assert joint_p_value(step, seed=2) < SIGNIFICANCE


@st.composite
def trees(draw_from):
    count = draw_from(st.integers(1, 10))
    parents = [draw_from(st.integers(-1, node - 1)) for node in range(count)]
    return parents, draw_from(st.integers(2, 9)), draw_from(st.integers(0, 2**31)), draw_from(st.booleans())


@given(trees())
@settings(max_examples=80)
def test_the_verdict_on_a_device_equals_the_hosts(tree):
    parents, vocab_size, seed, is_certain = tree
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(len(parents) + 1, vocab_size, generator=generator).pow(3).softmax(-1)
    probs = torch.rand(len(parents), vocab_size, generator=generator).pow(3).softmax(-1)
    tokens = probs.multinomial(1, generator=generator).squeeze(1)
    given_probs = None if is_certain else probs
    uniforms = draw_uniforms(len(parents) + 1, torch.Generator().manual_seed(seed))
    for rule, on_host in hosts(parents).items():
        outcome = on_host(tokens, parents, given_probs, target, uniforms)
        with NoLook():
            found, figures = verify_on_device(tokens, parents, given_probs, target, uniforms, rule=rule)
        assert found == outcome
        is_typical = rule is VerificationRule.TYPICAL
        expected = figures_of(tokens, parents, given_probs, target, outcome, is_typical=is_typical)
        assert repr(figures) == repr(expected)  # NaN is no equal of itself.
        assert all(parent in (-1, *outcome.path) for parent in (parents[node] for node in outcome.path))
    drawn = target.multinomial(1, generator=generator).squeeze(1)
    found, _ = verify_gumbel_on_device(tokens, parents, given_probs, target, drawn)
    assert found == verify_gumbel(tokens, parents, drawn)


def hosts(parents: Sequence[int]) -> dict:
    """What verifies a block by each rule on the host."""
    rules = {
        VerificationRule.TOKEN: verify_block,
        VerificationRule.TYPICAL: lambda tokens, parents, _, *rest: verify_typically(tokens, parents, *rest),
    }
    as_block = {VerificationRule.BLOCK: lambda tokens, _, *rest: verify_as_block(tokens, *rest)}
    return rules | as_block if is_chain(parents) else rules


def test_a_chain_is_a_tree_with_one_child_each():
    rows = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)).softmax(-1)
    probs = torch.rand(3, 5, generator=torch.Generator().manual_seed(2)).softmax(-1)
    for seed in range(50):
        tokens = probs.multinomial(1, generator=torch.Generator().manual_seed(seed)).squeeze(1)
        as_chain = verify(tokens, probs, rows, generator=torch.Generator().manual_seed(seed))
        as_tree = verify_tree(
            tokens, torch.arange(-1, 2), probs, rows, generator=torch.Generator().manual_seed(seed)
        )  # fmt: skip
        assert as_chain == as_tree
        assert as_chain.path == tuple(range(as_chain.num_accepted))


@pytest.mark.parametrize("parents", [[0], [-2], [-1, 1], [-1, 2], [-1, -1, -1], [-1.0, 0.0]])
def test_parents_that_are_no_tree_are_refused(parents):
    count = 1 if len(parents) == 1 else 2
    rows = torch.full((count + 1, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"parents must be.*\.$"):
        verify_tree(torch.zeros(count, dtype=torch.long), torch.tensor(parents), None, rows)


# --- Other rules ------------------------------------------------------------------------------------------------


def block_verifier(module=core.verify.other_rules):
    def verified(tokens, parents, *rest):
        return module.verify_as_block(tokens, *rest)

    return verified


def test_block_verification_follows_the_target_jointly_and_accepts_no_less():
    assert joint_p_value(verify_step(block_verifier()), samples=5_000, seed=2) > SIGNIFICANCE
    lengths = dict.fromkeys((VerificationRule.TOKEN, VerificationRule.BLOCK), 0)
    for seed, rule in itertools.product(range(500), lengths):
        generator = torch.Generator().manual_seed(seed)
        probs, target = (torch.rand(n, 4, generator=generator).pow(3) + 0.02 for n in (4, 5))
        probs, target = probs / probs.sum(-1, keepdim=True), target / target.sum(-1, keepdim=True)
        tokens = probs.multinomial(1, generator=generator).squeeze(1)
        uniforms = draw_uniforms(5, generator)
        outcome = hosts([-1, 0, 1, 2])[rule](tokens, [-1, 0, 1, 2], probs, target, uniforms)
        lengths[rule] += outcome.num_accepted
    assert lengths[VerificationRule.BLOCK] > lengths[VerificationRule.TOKEN]


BLOCK_MUTANTS = {
    "corrects without the weight": ("scale * target_probs[:count]", "target_probs[:count]"),
    "accepts by the weight alone": ("chances[1:], weight[count:]))", "chances[1:], weight[count:])); chances = weight"),
    "stops at the first text that fails": (
        "torch.where(tests[:count] < chances[1:], lengths, 0).amax(0, keepdim=True)",
        "(tests[:count] < chances[1:]).long().cumprod(0).sum().view(1)",
    ),
}


@pytest.mark.parametrize("name", BLOCK_MUTANTS)
def test_a_wrong_block_verifier_is_found(name):
    mutant = mutate(core.verify.other_rules, *BLOCK_MUTANTS[name])
    assert joint_p_value(verify_step(block_verifier(mutant)), seed=2) < SIGNIFICANCE


def test_typical_acceptance_keeps_the_longest_likely_path():
    target = torch.tensor([[0.9, 0.05, 0.05], [0.4, 0.3, 0.3], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    uniforms = draw_uniforms(4, torch.Generator().manual_seed(0))
    outcome = verify_typically(torch.tensor([1, 0, 0]), [-1, -1, 1], target, uniforms)
    # Token 1 has .05 where .09 is asked for; token 0 has .9, but behind it everything but 2 is impossible.
    assert (outcome.path, outcome.next_token) == ((1,), 2)


@pytest.mark.parametrize(
    ("row", "is_passed"),
    [((0.08, 0.92), False), ((0.1, 0.9), True), ((0.03, *[0.097] * 10), True), ((0.02, *[0.098] * 10), False)],
)
def test_a_token_is_typical_as_in_medusa_above_the_smaller_of_epsilon_and_delta_of_the_entropy(row, is_passed):
    """Epsilon is .09 and delta .3: where ten tokens share nearly all of the mass, the least is close to .03."""
    assert passes_typically(torch.tensor([0]), [-1], torch.tensor([row, row])).tolist() == [is_passed]


# --- The engine -------------------------------------------------------------------------------------------------


def drafted_by_tree(draft, target, **options) -> DraftTreeDrafter:
    return DraftTreeDrafter(DrafterSetup(target, draft), DraftTreeOptions(**options))


@pytest.mark.parametrize(
    ("rule", "verification"),
    [*((rule, VerificationRule.TOKEN) for rule in TreeRule), (TreeRule.WITHOUT, VerificationRule.BLOCK)],
)
def test_three_tokens_follow_the_target_through_the_whole_loop(rule, verification):
    """As `engine_p_value`, for trees of a draft model: one long text stands for many of three tokens."""
    logits = random_rows(V, 10, period=3, scale=1.2)
    target = table_model(logits, V)
    drafter = drafted_by_tree(table_model(random_rows(V, 20, period=3, scale=1.2), V), target, rule=rule, branching=2)
    run = play(
        speculative(target, drafter, [0, 0, 0], num_draft_tokens=5, max_new_tokens=1_800, seed=3, rule=verification)
    )
    assert any(step.parents for step in run.steps)
    found = calibrate(run.steps)
    assert found is not None
    assert found.overall.num_tested == sum(len(step.tested) for step in run.steps)
    assert abs(found.z) < 4.5, "nodes are accepted as often as their distributions say"
    tokens = np.array(run.ids).reshape(-1, 3)
    counts = np.bincount(np.ravel_multi_index(tokens.T, (V, V, V)), minlength=V**3)
    expected = np.zeros((V, V, V))
    for context in itertools.product(range(V), repeat=3):
        rows = [torch.softmax(logits([0, 0, 0, *context[:size]]).double(), -1) for size in range(3)]
        expected[context] = np.prod([float(rows[size][context[size]]) for size in range(3)])
    assert chi_squared_p_value(counts, expected.ravel() * len(tokens)) > SIGNIFICANCE


def test_a_large_tree_grows_to_the_end_of_a_text_for_whose_length_its_cache_is_made():
    target, draft = (table_model(random_rows(16, seed, period=3, scale=3.0), 16) for seed in (10, 20))
    prompt, count = [0, 0, 0], 40
    expected = play(autoregressive(target, prompt, sampling=GREEDY, max_new_tokens=count)).ids
    drafter = DraftTreeDrafter(
        DrafterSetup(target, draft, len(prompt) + count), DraftTreeOptions(depth=12, branching=6)
    )
    run = play(speculative(target, drafter, prompt, num_draft_tokens=64, sampling=GREEDY, max_new_tokens=count))
    assert run.ids == expected


MODELS = [
    ("llama", True),
    ("llama", False),
    ("qwen3", True),
    ("gpt2", False),
    ("gemma2", False),
    ("gemma3_text", False),
]


@pytest.mark.parametrize(("family", "is_fused"), MODELS)
def test_greedy_text_is_plain_for_every_shape(family, is_fused):
    target, draft = (tiny_model(family, seed, is_fused=is_fused) for seed in (0, 1))
    prompt = [5, 6, 7, 8, 5, 6]
    expected = play(autoregressive(target, prompt, sampling=GREEDY, max_new_tokens=30)).ids
    accepted = 0
    for count, depth, branching in ((2, 1, 2), (12, 4, 3), (40, 5, 3)):
        for drafting in (target, draft):
            drafter = drafted_by_tree(drafting, target, depth=depth, branching=branching, int8=False)
            run = play(speculative(target, drafter, prompt, num_draft_tokens=count, sampling=GREEDY, max_new_tokens=30))
            assert run.ids == expected
            accepted += run.summary.num_accepted_tokens
    assert accepted > 40


def test_a_branch_is_kept_and_read_as_if_written_in_a_row():
    """After a path that jumps over nodes, the cache continues as that of the same text does."""
    for is_fused in (True, False):
        model = tiny_model("llama", is_fused=is_fused)
        runner, plain = model.runner(40, spare=8), model.runner(40)
        text = torch.tensor([3, 4, 5])
        for each in (runner, plain):
            each.forward(text, num_logits=1)
        parents = [-1, -1, 1, 1]
        logits = runner.forward(
            torch.tensor([9, 20, 21, 22, 23]), num_logits=5, tree=tree_rows(parents, 3, 5)
        ).logits  # fmt: skip
        expected = plain.forward(torch.tensor([9, 21, 23]), num_logits=3).logits
        torch.testing.assert_close(logits[[0, 2, 4]], expected, rtol=1e-4, atol=1e-4)
        runner.keep([3, 5, 7])
        assert runner.length == plain.length == 6
        after = [each.forward(torch.tensor([30]), num_logits=1).logits for each in (runner, plain)]
        torch.testing.assert_close(*after, rtol=1e-4, atol=1e-4)


def test_the_end_of_the_text_cuts_a_tree_with_its_figures():
    target = tiny_model(seed=0, is_fused=True)
    for count in (2, 3, 5):
        drafter = drafted_by_tree(target, target, int8=False, depth=6)
        run = play(speculative(target, drafter, [1, 2], num_draft_tokens=12, sampling=GREEDY, max_new_tokens=count))
        assert len(run.ids) == count
        for step in run.steps:
            assert all(parent < node for node, parent in enumerate(step.parents))
            sizes = {len(step.drafted), len(step.draft_probs), len(step.target_probs), len(step.expected_acceptance)}
            assert sizes == {step.num_draft_tokens}
            assert step.depth <= len(step.emitted)
            path = [step.drafted[node] for node in step.path]
            assert path == list(step.emitted[: step.num_accepted])
        assert run.summary.num_accepted_tokens == run.kinds.count(TokenKind.ACCEPTED)


class OneTree(StubDrafter):
    """A drafter that proposes the same draft every time."""

    proposes_trees = True

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def propose(self, context) -> Draft:
        return self._draft


@pytest.mark.parametrize(
    ("parents", "probs", "message"),
    [
        ([0, -1], None, "don't form a tree"),
        ([-1, 0], torch.tensor([[0.5, 0.5, 0, 0], [0.9, 0.9, 0, 0]]), "aren't distributions"),
        ([-1, 0], torch.tensor([[1.5, -0.5, 0, 0], [1.0, 0, 0, 0]]), "aren't distributions"),
    ],
)
def test_a_drafter_of_others_that_breaks_exactness_is_named(parents, probs, message):
    draft = Draft(torch.tensor([0, 0]), torch.tensor(parents), probs)
    target = table_model(random_rows(4, 1), 4)
    with pytest.raises(DrafterError, match=message):
        play(speculative(target, OneTree(draft), [0, 1], num_draft_tokens=4, max_new_tokens=8))


@pytest.mark.parametrize("scale", [0.992, 1.008])
def test_rows_of_others_that_half_precision_has_rounded_are_normalised_before_they_are_verified(scale):
    target = table_model(fixed_rows(torch.tensor([0.5, 0.3, 0.2]).log().tolist()), 3)
    draft = Draft(torch.tensor([0]), torch.tensor([-1]), torch.tensor([[0.5, 0.3, 0.2]]) * scale)
    run = play(speculative(target, OneTree(draft), [0], num_draft_tokens=1, max_new_tokens=9))
    for step in run.steps[:-1]:
        assert step.draft_probs == pytest.approx((0.5,), abs=1e-6)
        assert step.acceptance_probs == pytest.approx((1.0,), abs=1e-6)


# --- Shapes -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 5), st.integers(0, 1000))
def test_a_shape_keeps_its_limits_and_begins_like_smaller_ones(count, depth, branching, seed):
    rates = sorted(torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist(), reverse=True)
    nodes = grow(rates, count, depth, branching)
    parents = [node.parent for node in nodes]
    assert all(-1 <= parent < node for node, parent in enumerate(parents))
    assert len(nodes) <= count
    assert max(depths_of(parents)) < depth
    assert max(node.rank for node in nodes) < branching
    assert nodes[: count // 2] == grow(rates, count // 2, depth, branching)
    if branching == 1:
        assert is_chain(parents)


def test_a_sure_draft_grows_a_chain_and_an_unsure_one_siblings():
    assert is_chain([node.parent for node in grow([0.95, 0.2], 4, 4, 3)])
    assert [node.parent for node in grow([0.3, 0.28, 0.26], 3, 4, 3)] == [-1, -1, -1]


def test_the_gain_of_a_node_is_the_probability_that_it_is_accepted():
    assert node_gains([0.5, 0.2], [-1, 0, -1, -1, 0]) == pytest.approx([0.5, 0.25, 0.1, 0.08, 0.05])


def test_a_shape_is_chosen_by_what_nodes_and_levels_cost():
    choice = ShapeChoice()
    assert choice.choose([1.0] * 8, 7) == 4, "the first level's, before a deeper one was seen"
    assert choice.depth == 1
    assert choice.choose([1.0 + nodes for nodes in range(8)], 7) == 0
    assert choice.choose([1.0 + nodes for nodes in range(8)], 7, hope=4.0) > 0
