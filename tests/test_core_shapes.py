"""Shapes of trees: what is predicted before anything is drafted comes true in the verifier, for every rule."""

import numpy as np
import pytest
import torch

from core.analysis.probing import agreement, compare_over, compare_siblings
from core.analysis.shapes import NUM_RANKS, PathAcceptance, best_shapes
from core.drafters.draft_tree import _children
from core.drafters.registry import TreeRule
from core.sampling import draw_uniforms
from core.settings import SamplingParams
from core.verify import verify_block
from tests.fakes import fixed_rows, random_rows, table_model

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
    return verify_block(torch.tensor(tokens), PARENTS, probs, target_probs, generator=generator).path


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
