"""Trees with a continuation of the text in them: certain nodes beside drawn ones, and the target's distribution."""

import pytest
import torch

import core.drafters.prompt_lookup
from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.draft_tree import DraftTreeDrafter
from core.drafters.prompt_lookup import merged
from core.drafters.registry import DraftTreeOptions, TreeRule
from core.settings import Coupling, SamplingParams
from core.types import Draft
from core.verify import verify_block
from tests.exactness import SIGNIFICANCE, engine_p_value, joint_p_value, mutate, tree_step
from tests.fakes import GREEDY, play, tiny_model

SHAPE = [-1, -1, 0]


def continued(continuation, merge=merged):
    return lambda draft: merge(draft, continuation, 2, 3)


@pytest.mark.parametrize(("rule", "continuation"), [*((rule, (0, 1)) for rule in TreeRule), (TreeRule.WITHOUT, (2, 2))])
def test_a_tree_with_a_continuation_follows_the_target_jointly(rule, continuation):
    step = tree_step(verify_block, SHAPE, rule, merge=continued(continuation))
    assert joint_p_value(step, samples=2_500) > SIGNIFICANCE


def prunes(draft: Draft, continuation, most, vocab_size) -> Draft:
    """Keeps of the drawn siblings those that say the same as the continuation, if there are any."""
    kept = [node for node in (0, 1) if int(draft.tokens[node]) == continuation[0]][:1] or [0, 1]
    return Draft(draft.tokens[kept], draft.parents[kept], draft.probs[kept])


def test_a_tree_pruned_by_what_was_drawn_is_found():
    step = tree_step(verify_block, SHAPE, TreeRule.WITHOUT, merge=continued((0, 1), prunes))
    assert joint_p_value(step) < SIGNIFICANCE


def test_a_certain_node_that_is_said_to_be_drawn_is_found():
    wrong = mutate(core.drafters.prompt_lookup, "probs.device), 1.0)", "probs.device), 0.4)").merged
    step = tree_step(verify_block, [-1], TreeRule.WITHOUT, merge=continued((0, 1), wrong))
    assert joint_p_value(step) < SIGNIFICANCE


@pytest.mark.parametrize("rule", [TreeRule.WITHOUT, TreeRule.BEST])
def test_the_engine_follows_the_target_with_it(rule):
    def with_lookup(target, draft, *given, **settings):
        options = DraftTreeOptions(rule=rule, branching=2, lookup=2)
        return speculative(target, DraftTreeDrafter(DrafterSetup(target, draft), options), *given, **settings)

    assert engine_p_value(with_lookup, sampling=SamplingParams(), num_draft_tokens=5, vocab_size=4) > SIGNIFICANCE
    target, draft = (tiny_model(seed=seed, is_fused=rule is TreeRule.BEST) for seed in (0, 1))
    settings = {"coupling": Coupling.GUMBEL, "max_new_tokens": 40}
    shared = with_lookup(target, draft, [5, 6, 7, 5, 6], num_draft_tokens=5, **settings)
    assert play(shared).ids == play(autoregressive(target, [5, 6, 7, 5, 6], **settings)).ids


def test_where_the_draft_knows_nothing_the_text_repeats_itself():
    """A greedy text that repeats: the branch is accepted, although the draft is wrong, and nothing changes."""
    target, draft = tiny_model(seed=0, is_fused=True), tiny_model(seed=1, is_fused=True)
    prompt = [5, 6, 7, 8, 5, 6]
    text = play(autoregressive(target, prompt, sampling=GREEDY, max_new_tokens=40)).ids
    prompt, rest = prompt + text[:20] + prompt, None
    accepted = {}
    for lookup in (0, 4):
        drafter = DraftTreeDrafter(DrafterSetup(target, draft), DraftTreeOptions(lookup=lookup, int8=False))
        run = play(speculative(target, drafter, prompt, num_draft_tokens=8, sampling=GREEDY, max_new_tokens=24))
        rest = rest or run.ids
        assert run.ids == rest == play(autoregressive(target, prompt, sampling=GREEDY, max_new_tokens=24)).ids
        accepted[lookup] = run.summary.num_accepted_tokens
        assert all(step.num_draft_tokens <= 8 for step in run.steps)
    assert accepted[4] > accepted[0]


def test_a_branch_follows_drawn_nodes_and_then_leaves_them():
    drawn = Draft(torch.tensor([4, 7, 9]), torch.tensor([-1, -1, 1]), None)
    tree = merged(drawn, [7, 9, 1, 2, 3], 2, 10)
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([4, 7, 9, 1, 2], [-1, -1, 1, 2, 3])
    tree = merged(drawn, [7, 8, 9], 9, 10)
    assert (tree.tokens.tolist(), tree.parents.tolist()) == ([4, 7, 9, 8, 9], [-1, -1, 1, 1, 3])
    tree = merged(drawn, [7, 9], 9, 10)
    assert tree.tokens.tolist() == [4, 7, 9]
