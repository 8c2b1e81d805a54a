"""Shapes of trees: what is predicted before anything is drafted comes true in the verifier, for every rule."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from core.analysis.advice import advise
from core.analysis.agreement import agreement, compare_over
from core.analysis.diagnosis import PlainStep, diagnose
from core.analysis.theory import speedup_theory
from core.analysis.tree_forecast import NUM_RANKS, PathAcceptance, best_shapes, compare_siblings
from core.decode import speculative
from core.drafters.base import DrafterSetup
from core.drafters.draft_tree import DraftTreeDrafter, _children
from core.drafters.registry import DraftTreeOptions, TreeRule
from core.runlog.tally import Tally
from core.sampling import draw_uniforms
from core.settings import SamplingParams
from core.types import TokenKind, depths_of
from core.verify import verify_block
from tests.fakes import fixed_rows, play, random_rows, table_model
from tests.test_core_analysis import make_step

V, STARTS = 5, 1_200
PARENTS = [-1, -1, -1, 0, 0, 1, 3]
PATHS = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


def rows(seed, scale=1.5):
    """(V, V) the distribution of the token after each token."""
    return (torch.randn(V, V, generator=torch.Generator().manual_seed(seed)) * scale).softmax(-1)


def text_of(target, count, generator):
    text = [0]
    while len(text) <= count:
        text.append(int(target[text[-1]].multinomial(1, generator=generator)))
    return torch.tensor(text)


def accepted_path(rule, last, draft, target, generator):
    """A round after token `last`: the tree is drawn by the rule, and verified."""
    tokens, sources = [0] * len(PARENTS), [torch.empty(0)] * len(PARENTS)
    for parent in dict.fromkeys(PARENTS):
        nodes = [node for node, each in enumerate(PARENTS) if each == parent]
        row = draft[tokens[parent] if parent >= 0 else last]
        children = (
            [(token, row) for token in row.topk(len(nodes)).indices]
            if rule == TreeRule.BEST
            else _children(row, draw_uniforms(len(nodes), generator), rule)
        )
        for node, (token, source) in zip(nodes, children, strict=True):
            tokens[node], sources[node] = int(token), source
    probs = None if rule == TreeRule.BEST else torch.stack(sources)
    target_probs = target[[last, *tokens]]
    uniforms = draw_uniforms(len(PARENTS) + 1, generator)
    return verify_block(torch.tensor(tokens), PARENTS, probs, target_probs, uniforms).path


def predicted(rule, text, draft, target, *, is_own_text=True):
    generator = torch.Generator().manual_seed(9)
    found = compare_siblings(target[text[:-1]], draft[text[:-1]], text[1:], None, rule, generator)
    return PathAcceptance([found], is_own_text=is_own_text)


@pytest.mark.parametrize("rule", TreeRule)
def test_each_node_is_accepted_as_often_as_predicted_from_the_targets_own_text(rule):
    generator = torch.Generator().manual_seed(3)
    draft, target = rows(1), rows(2)
    text = text_of(target, STARTS, generator)
    counts = np.zeros(len(PARENTS))
    for last in text[:-1].tolist():
        counts[list(accepted_path(rule, last, draft, target, generator))] += 1

    def differences(rule):
        acceptance = predicted(rule, text, draft, target)
        found = np.array([acceptance.of(path) for path in PATHS])
        # Both are means over as many starts, and independent given these.
        return (counts / STARTS - found) / np.sqrt(2 * np.maximum(found * (1 - found), 1e-3) / STARTS)

    assert np.abs(differences(rule)).max() < 4.0
    others = [np.abs(differences(other)).max() for other in TreeRule if other != rule]
    assert max(others) > 6.0, "the prediction of another rule does not hold"


def test_the_first_candidates_alone_are_a_chain():
    target, draft = (table_model(random_rows(V, seed, scale=1.5), V) for seed in (1, 2))
    ids = torch.randint(0, V, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    for is_own_text in (True, False):
        texts = [compare_over(target, draft, part, 3, SamplingParams(0.8)) for part in (ids[:120], ids[120:])]
        acceptance = PathAcceptance(
            [(text.siblings, text.siblings_kept) for text in texts], is_own_text=is_own_text
        )  # fmt: skip
        found = [acceptance.of((0,) * length) for length in range(1, 9)]
        assert found == pytest.approx(agreement(texts, is_own_text=is_own_text).survival[:8], abs=1e-5)
        rates = acceptance.rates
        assert rates == sorted(rates, reverse=True)


def test_at_temperature_0_the_candidates_are_the_drafts_most_likely_tokens():
    target, draft = table_model(fixed_rows([0, 0, 9, 0, 0]), V), table_model(fixed_rows([3, 4, 2, 1, 0]), V)
    found = compare_over(target, draft, [2] * 12, 1, SamplingParams(0.0))
    assert found.siblings.tolist() == [[0, 0, 1, 0]] * 11
    assert found.siblings_kept.tolist() == [[0, 0, 1, 0]] * 11


def acceptance_of(*rates):
    """Of a pair that accepts each candidate with these probabilities, everywhere."""
    sums = np.tile([*rates, *[0.0] * (NUM_RANKS - len(rates))], (200, 1))
    return PathAcceptance([(sums, sums)], is_own_text=False)


def test_shapes_follow_what_levels_and_nodes_cost():
    acceptance = acceptance_of(0.5, 0.2, 0.1)
    free = best_shapes(acceptance, 0.0, [1.0] * 17)
    assert (free[0].num_nodes, free[0].depth > 2) == (16, True)
    assert best_shapes(acceptance, 2.0, [1.0] * 17)[0].depth == 1
    steep = best_shapes(acceptance, 0.05, [1.0 + nodes for nodes in range(17)])
    assert steep[0].num_nodes == 2
    for shape in (*free, *steep):
        assert shape.num_nodes >= shape.depth >= 1
        assert shape.branching > 1
    assert len({shape.depth for shape in free}) == len(free)
    (one,) = (shape for shape in best_shapes(acceptance, 0.1, [1.0] * 17) if shape.depth == 1)
    assert one.tokens == pytest.approx(1.8)
    assert one.speedup == pytest.approx(1.8 / 1.1)


# --- What a run tells about other shapes ------------------------------------------------------------------------

PLAIN = PlainStep(forward_ms=10.0, total_ms=10.5, is_measured=False)


def tree_step(parents, path, *, draft_ms=1.0, verify_ms=12.0):
    """A step with this tree and accepted path; each level takes `draft_ms`."""
    levels = max(depths_of(parents)) + 1
    step = make_step(len(parents), len(path), verify_ms=verify_ms)
    return replace(step, parents=tuple(parents), accepted_path=path, draft_ms=levels * draft_ms)


def test_a_tree_tells_what_its_first_nodes_would_have_given_at_every_depth():
    parents = (-1, 0, -1, 1, 2)
    steps = [
        tree_step(parents, path) for path, count in (((0, 1, 3), 20), ((2, 4), 20), ((), 10)) for _ in range(count)
    ]
    found = speedup_theory(Tally(steps), PLAIN, num_resamples=50)
    # Of 50 blocks, 20 accept node 0, then 1 and 3; 20 node 2, then 4.
    assert found.cost.value == pytest.approx(0.1)
    assert found.trees.chain_tokens.values == pytest.approx([1, 1.4, 1.8, 2.2, 2.2, 2.2])
    assert found.trees.depths == (0, 1, 1, 2, 2, 3)
    assert found.tokens.values == pytest.approx([1, 1.4, 1.8, 2.2, 2.6, 3.0])
    assert found.verify.values[5] == pytest.approx(1.2)
    shapes = {shape.title: shape for shape in found.trees.shapes}
    assert shapes["tree, K = 2, depth 1"].tokens == pytest.approx(1.8)
    assert shapes["tree, K = 4, depth 2"].tokens == pytest.approx(2.6)
    best = shapes["tree, K = 5, depth 3"]
    assert best.speedup.value == pytest.approx(3.0 / (3 * 0.1 + 1.2)) == pytest.approx(found.measured_verify.values[5])
    assert best.speedup.low < best.speedup.value < best.speedup.high
    assert found.trees.shapes[0] == best
    useless = speedup_theory(Tally([tree_step(parents, ())] * 40), PLAIN)
    assert useless.trees.shapes[0].speedup.value < 1
    cut = replace(tree_step(parents, (0,)), emitted_kinds=(TokenKind.ACCEPTED,))
    assert speedup_theory(Tally([cut]), PLAIN) is None, "no block has times of its own"
    assert speedup_theory(Tally([tree_step(parents, (0,)), cut]), PLAIN).longest == 5


def test_a_smaller_shape_that_pays_more_is_advised_with_its_settings():
    parents = (-1, 0, -1, 1, 2)
    sums = Tally([tree_step(parents, path, verify_ms=22.0) for path in ((0,), (0,), ()) for _ in range(20)])
    config, theory = {"method": "draft-tree", "num_draft_tokens": 5}, speedup_theory(sums, PLAIN, num_resamples=0)
    best, found = theory.trees.shapes[0], diagnose(sums, PLAIN)
    advice = next(item for item in advise(sums, found, config, (), theory) if item.text.startswith("Draft a "))
    assert best.title in advice.text
    assert advice.settings["num_draft_tokens"] == best.num_nodes < 5
    assert advice.speedup == pytest.approx(found.speedup * best.speedup.value / theory.measured_verify.values[5])
    auto = advise(sums, found, {**config, "num_draft_tokens": "auto"}, (), theory)
    assert not any(item.text.startswith("Draft a ") for item in auto)


def test_a_smaller_tree_gives_what_a_larger_ones_run_predicted():
    target, draft = (table_model(random_rows(4, seed, scale=1.2), 4) for seed in (10, 20))

    def run(count, **options):
        drafter = DraftTreeDrafter(DrafterSetup(target, draft), DraftTreeOptions(**options))
        events = speculative(target, drafter, [0, 0], num_draft_tokens=count, max_new_tokens=1_000, seed=4)
        # Drafting that takes no time makes the deepest trees the best.
        return [replace(step, draft_ms=0.0, verify_ms=10.0, total_ms=10.0) for step in play(events).steps]

    sums = Tally(run(9, depth=4))
    theory = speedup_theory(sums, PLAIN, num_resamples=0)
    smaller = [len(step.emitted) for step in run(4, depth=4)]
    error = math.hypot(np.std(smaller) / len(smaller) ** 0.5, 1.5 / sums.num_blocks**0.5)
    assert abs(np.mean(smaller) - theory.tokens.values[4]) < 4 * error
    assert theory.tokens.values[9] - theory.tokens.values[4] > 4 * error, "else nothing could fail"


def test_a_chain_longer_than_the_window_offers_has_its_point_on_the_curves():
    found = speedup_theory(Tally([make_step(20, 12)] * 30), PLAIN, num_resamples=0)
    assert len(found.tokens.values) == len(found.verify.values) == 21
    assert found.ran_k == 20
