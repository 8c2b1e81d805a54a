"""What is kept of a tree's step, of a block's and of temperature 0 is what decided: each is done again by hand."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from core.analysis.calibration import calibrate
from core.analysis.expectation import expected_accepted, expected_of
from core.decode import speculative
from core.drafters.base import DrafterSetup
from core.drafters.draft_tree import DraftTreeDrafter
from core.drafters.registry import DraftTreeOptions, TreeRule
from core.evidence import evidence_from_record, to_record
from core.runlog.log import to_line
from core.runlog.log import to_record as step_record
from core.runlog.replay import step_from_record
from core.runlog.tally import Tally
from core.sampling import draw, draw_uniforms
from core.settings import TYPICAL_FLOOR, TYPICAL_SHARE, Coupling, SamplingParams, VerificationRule
from core.types import Step, TokenKind
from core.verify import verify_block
from core.verify.backlog import capture
from core.verify.on_device import figures_of
from core.verify.other_rules import verify_as_block
from tests.fakes import fixed_rows, play, random_rows, table_model
from tests.test_core_evidence import names

VOCAB = 12


def left_by_hand(p: list[float], q: list[float]) -> list[float]:
    """The normalised positive part of p - q, in doubles."""
    rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    return [value / math.fsum(rest) for value in rest] if math.fsum(rest) > 0 else p


@settings(max_examples=60)
@given(
    parents=st.lists(st.integers(-1, 30), min_size=1, max_size=10),
    seed=st.integers(0, 10_000),
    has_probs=st.booleans(),
    size=st.sampled_from([3, 7]),
)
def test_p_after_each_rejection_is_what_the_rejections_leave(parents, seed, has_probs, size):
    tree = [min(parent, node - 1) for node, parent in enumerate(parents)]
    generator = torch.Generator().manual_seed(seed)
    target = torch.softmax(2 * torch.randn(len(tree) + 1, size, generator=generator), -1)
    draft = torch.softmax(2 * torch.randn(len(tree), size, generator=generator), -1)
    tokens = torch.multinomial(draft, 1, generator=generator).squeeze(1)
    probs = draft if has_probs else None
    outcome = verify_block(tokens, tree, probs, target, draw_uniforms(len(tree) + 1, generator))
    places = capture(tokens, tree, probs, target, outcome, names)
    # The recursion again, from the models' distributions.
    path, at = [], -1
    left = target[0].double().tolist()
    for node, parent in enumerate(tree):
        rejected = [other for other in range(node) if tree[other] == parent]
        p = target[parent + 1].double().tolist()
        for other in rejected:
            p = left_by_hand(p, row_of(other, tokens, probs, size))
        for token, shown in zip(places[node].ids, places[node].target_probs, strict=True):
            assert shown == pytest.approx(p[token], abs=1e-4)
        if parent == at:
            q = row_of(node, tokens, probs, size)
            token = int(tokens[node])
            assume(abs(outcome.uniforms[node] * q[token] - p[token]) > 1e-5)  # Rounding decides nearer than that.
            if outcome.uniforms[node] * q[token] < p[token]:
                path.append(node)
                at, left = node, target[node + 1].double().tolist()
            else:
                left = left_by_hand(p, q)
    assert list(outcome.path) == path
    last = places[max((node for node, parent in enumerate(tree) if parent == at), default=len(tree))]
    shown = last.target_probs if outcome.next_kind is TokenKind.BONUS else last.residual_probs
    assert [*shown] == pytest.approx([left[token] for token in last.ids], abs=1e-4)


def row_of(node: int, tokens: torch.Tensor, probs: torch.Tensor | None, size: int) -> list[float]:
    if probs is None:
        return [float(token == int(tokens[node])) for token in range(size)]
    return probs[node].double().tolist()


def a_run(count: int = 60, *, rule=VerificationRule.TOKEN, options=None, k=8, target=None, **changes):
    target = target or table_model(random_rows(VOCAB, 1, scale=2), VOCAB)
    draft = table_model(random_rows(VOCAB, 2, scale=2), VOCAB)
    drafter = draft if options is None else DraftTreeDrafter(DrafterSetup(target, draft), DraftTreeOptions(**options))
    given = {"num_draft_tokens": k, "max_new_tokens": count, "inspect": True, "seed": 5, "rule": rule}
    return play(speculative(target, drafter, [0, 1], **{**given, **changes}))


@pytest.mark.parametrize("rule", TreeRule)
def test_the_walk_through_a_tree_and_its_last_draw_can_be_done_again_from_what_is_kept(rule):
    steps = a_run(options={"depth": 3, "branching": 3, "rule": rule}).steps
    assert any(step.parents for step in steps)
    for step in steps:
        at, path = -1, []
        for node, parent in enumerate(step.parents):
            evidence = step.evidence[node]
            own = list(evidence.ids).index(step.drafted[node])
            assert evidence.target_probs[own] == pytest.approx(step.target_probs[node], abs=1e-6)
            assert evidence.draft_probs[own] == pytest.approx(step.draft_probs[node], abs=1e-6)
            if parent == at and step.uniforms[node] < step.acceptance_probs[node]:
                at, path = node, [*path, node]
        assert step.parents == () or tuple(path) == step.accepted_path
        if step.next_uniform is not None:
            evidence = step.evidence[step.slots[-1]]
            row, is_bonus = torch.zeros(VOCAB), step.emitted_kinds[-1] is TokenKind.BONUS
            shown = evidence.target_probs if is_bonus else evidence.residual_probs
            row[torch.tensor(list(evidence.ids))] = torch.tensor(list(shown))
            assert int(draw(row, torch.tensor(step.next_uniform))) == step.emitted[-1]


def test_a_trees_steps_are_read_back_from_a_log_as_trees_also_where_nothing_was_accepted():
    run = a_run(options={"depth": 2, "branching": 3}, k=3)
    assert any(step.parents and not step.accepted_path for step in run.steps)
    records = [json.loads(to_line(step_record(step))) for step in run.steps]
    read = [step_from_record(record) for record in records]
    for step, found in zip(run.steps, read, strict=True):
        assert (found.parents, found.accepted_path, found.slots) == (step.parents, step.accepted_path, step.slots)
    assert Tally(read).predicted_rate == pytest.approx(run.summary.expected_acceptance_rate)
    for record in records:
        if record.get("accepted_path") == []:
            del record["accepted_path"]
    assert [step_from_record(record).parents for record in records] == [step.parents for step in run.steps]


def test_the_first_candidates_evidence_also_lists_its_siblings_and_the_token_drawn_in_their_place():
    size = 400
    target, draft = (table_model(random_rows(size, seed), size) for seed in (1, 2))
    drafter = DraftTreeDrafter(DrafterSetup(target, draft), DraftTreeOptions(depth=3, branching=3))
    steps = play(speculative(target, drafter, [0, 1], num_draft_tokens=9, max_new_tokens=40, inspect=True)).steps
    kinds = set()
    for step in steps:
        for slot, token in (*enumerate(step.drafted), *zip(step.slots, step.emitted, strict=True)):
            first = step.parents.index(step.parents[slot]) if slot < len(step.parents) else slot
            assert token in step.evidence[first].ids
        kinds |= set(step.emitted_kinds)
    assert TokenKind.CORRECTION in kinds


def test_where_no_draw_decides_a_candidate_is_shown_with_the_targets_own_probability_and_no_residual():
    target = table_model(logits := random_rows(VOCAB, 1, scale=2), VOCAB)
    for changes in ({"coupling": Coupling.GUMBEL}, {"rule": VerificationRule.TYPICAL}):
        run = a_run(options={"depth": 3, "branching": 3}, target=target, **changes)
        ids = [0, 1]
        for step in run.steps:
            behind = {-1: list(ids)}
            for node, parent in enumerate(step.parents):
                p = torch.softmax(logits(behind[parent]), -1)
                assert step.target_probs[node] == pytest.approx(float(p[step.drafted[node]]), rel=1e-4)
                behind[node] = [*behind[parent], step.drafted[node]]
            assert step.uniforms == ()
            assert all(place.residual_probs is None for place in step.evidence)
            ids += step.emitted
        assert calibrate(run.steps) is None, "no bound holds for a single candidate"


def test_typical_acceptance_keeps_what_passes_its_floor_and_predicts_nothing():
    run = a_run(options={"depth": 3, "branching": 3}, rule=VerificationRule.TYPICAL)
    for step in run.steps:
        passes = [
            p > min(TYPICAL_FLOOR, TYPICAL_SHARE * math.exp(-place.target_entropy))
            for p, place in zip(step.target_probs, step.evidence, strict=False)
        ]
        reached: set[int] = {-1}
        for node, parent in enumerate(step.parents):
            if parent in reached and passes[node]:
                reached.add(node)
        longest = max((step.depths[node] + 1 for node in reached - {-1}), default=0)
        assert set(step.path) <= reached
        assert not step.parents or step.num_accepted == longest
        assert all(map(math.isnan, (*step.acceptance_probs, *step.expected_acceptance)))
        kept = {-1, *step.path}
        assert not step.parents or step.tested == tuple(n for n, parent in enumerate(step.parents) if parent in kept)
    assert run.summary.expected_acceptance_rate is None
    assert calibrate(run.steps) is None


def test_gumbel_coupled_candidates_name_the_distributions_of_a_sample_without_replacement():
    draft = random_rows(VOCAB, 2, scale=2)
    run = a_run(options={"depth": 3, "branching": 3}, coupling=Coupling.GUMBEL)
    ids = [0, 1]
    for step in run.steps:
        for first, parent in enumerate(step.parents):
            nodes = [node for node, each in enumerate(step.parents) if each == parent]
            if parent == -1 and nodes[0] == first:
                left = torch.softmax(draft(ids), -1)
                for node in nodes:
                    assert step.draft_probs[node] == pytest.approx(float(left[step.drafted[node]]), rel=1e-4)
                    left[step.drafted[node]] = 0.0
                    left /= left.sum()
        ids += step.emitted


# --- Block verification ---

DRAFT = {(): (0.6, 0.3, 0.1), (0,): (0.1, 0.1, 0.8), (1,): (0.3, 0.4, 0.3), (2,): (0.7, 0.2, 0.1)}
TARGET = {(): (0.2, 0.3, 0.5), (0,): (0.8, 0.1, 0.1), (1,): (0.3, 0.4, 0.3), (2,): (0.5, 0.3, 0.2)}


def block_of(x: int, y: int) -> Step:
    """A step's figures for two drafted tokens of three, tested as a block."""
    tokens, parents = torch.tensor([x, y]), (-1, 0)
    draft = torch.tensor([DRAFT[()], DRAFT[x,]])
    target = torch.tensor([TARGET[()], TARGET[x,], (1 / 3, 1 / 3, 1 / 3)])
    outcome = verify_as_block(tokens, draft, target, draw_uniforms(3, torch.Generator().manual_seed(0)))
    figures = figures_of(tokens, parents, draft, target, outcome)
    return type("Figures", (), {"block": outcome.block, **figures._asdict()})()


def test_the_predicted_acceptance_by_token_and_by_block_is_exactly_its_mean_and_that_of_blocks_higher():
    expected = accepted = expected_by_token = by_token = 0.0
    for x, y in itertools.product(range(3), repeat=2):
        step, weight = block_of(x, y), DRAFT[()][x] * DRAFT[x,][y]
        _, first, second = (test.acceptance for test in step.block)
        accepted += weight * (2 * second + (1 - second) * first)
        expected += weight * expected_of(step)
        own = [min(1.0, TARGET[c][t] / DRAFT[c][t]) for c, t in (((), x), ((x,), y))]
        overlaps = [sum(map(min, TARGET[c], DRAFT[c])) for c in ((), (x,))]
        expected_by_token += weight * expected_accepted(own, overlaps)
        # Kept are: neither token, the first alone, or both.
        by_token += weight * (own[0] * (1 - own[1]) + 2 * own[0] * own[1])
    assert expected == pytest.approx(accepted, abs=1e-6)
    assert expected_by_token == pytest.approx(by_token, abs=1e-12)
    assert expected > by_token + 0.01


def test_a_blocks_figures_are_those_of_its_distributions():
    for x, y in itertools.product(range(3), repeat=2):
        step, weight = block_of(x, y), 1.0
        for slot, (context, token) in enumerate((((), x), ((x,), y))):
            p, q = TARGET[context], DRAFT[context]
            overlap = sum(min(weight * a, b) for a, b in zip(p, q, strict=True))
            assert step.expected_acceptance[slot] == pytest.approx(overlap, abs=1e-6)
            assert step.block[slot].residual == pytest.approx(
                sum(max(0.0, weight * a - b) for a, b in zip(p, q, strict=True)), abs=1e-6
            )
            weight = min(1.0, weight * p[token] / q[token])
            assert step.acceptance_probs[slot] == pytest.approx(weight, abs=1e-6)


def test_a_run_of_blocks_predicts_what_it_accepts_and_keeps_every_texts_test():
    run = a_run(3000, rule=VerificationRule.BLOCK, k=4, inspect=False)
    drafted = sum(step.num_draft_tokens for step in run.steps)
    accepted = sum(step.num_accepted for step in run.steps)
    spread = math.sqrt(sum((step.num_accepted - expected_of(step)) ** 2 for step in run.steps))
    predicted = run.summary.expected_acceptance_rate * drafted
    assert abs(accepted - predicted) < 4.5 * spread
    assert calibrate(run.steps) is None
    for step in run.steps:
        assert len(step.block) == step.num_draft_tokens + 1 or not step.num_draft_tokens
        passed = [i for i in range(1, len(step.block)) if step.uniforms[i - 1] < step.block[i].acceptance]
        assert max(passed, default=0) == step.num_accepted


# --- Temperature 0 ---


def test_at_temperature_0_the_evidence_also_holds_temperature_1_in_chains_and_trees_and_in_logs():
    target, draft_logits = table_model(logits := random_rows(VOCAB, 1, scale=2), VOCAB), random_rows(VOCAB, 2, scale=2)
    for options in (None, {"depth": 3, "branching": 2}):
        run = a_run(30, options=options, target=target, sampling=SamplingParams(0.0))
        ids = [0, 1]
        for step in run.steps:
            parents = step.parents or range(-1, step.num_draft_tokens - 1)
            behind = {-1: list(ids)}
            for node, parent in enumerate(parents):
                behind[node] = [*behind[parent], step.drafted[node]]
            for slot, place in enumerate(step.evidence):
                context = behind[parents[slot]] if slot < len(parents) else behind[step.path[-1] if step.path else -1]
                row = torch.softmax(logits(context), -1)
                assert [*place.raw_probs] == pytest.approx([float(row[token]) for token in place.ids], abs=1e-6)
                assert math.fsum(place.raw_probs) + place.raw_tail == pytest.approx(1.0, abs=1e-5)
                assert int(row.argmax()) in place.ids
                (read,) = evidence_from_record({"evidence": [to_record(place)]})
                assert [*read.raw_probs] == pytest.approx([*place.raw_probs], rel=1e-5)
                assert (place.raw_draft_probs is None) == (slot >= len(parents)), "a bonus has no draft"
                if slot < len(parents):
                    of_draft = torch.softmax(draft_logits(context), -1)
                    expected = [float(of_draft[token]) for token in place.ids]
                    assert [*place.raw_draft_probs] == pytest.approx(expected, abs=1e-6)
                    assert math.fsum(expected) + place.raw_draft_tail == pytest.approx(1.0, abs=1e-5)
                    assert int(of_draft.argmax()) in place.ids
                    assert [*read.raw_draft_probs] == pytest.approx(expected, rel=1e-5, abs=1e-6)
            ids += step.emitted
    warm = a_run(10)
    assert all(place.raw_probs is None for step in warm.steps for place in step.evidence)


@pytest.mark.parametrize(
    ("rule", "options"),
    [(VerificationRule.TOKEN, None), (VerificationRule.BLOCK, None), (VerificationRule.TOKEN, {"depth": 3})],
    ids=["chain", "block", "tree"],
)
def test_nothing_is_expected_behind_a_drafted_token_that_ends_the_text(rule, options):
    """The draft is eager to end, so that blocks go on behind its end more often than texts end."""
    end, draft = 3, table_model(fixed_rows([0.4, 0.3, 0.2, -0.4]), 4)
    target = table_model(fixed_rows([0.4, 0.1, 0.3, -2.5]), 4, eos_ids=[end])
    missed = []
    for seed in range(120):
        drafter = (
            draft if options is None else DraftTreeDrafter(DrafterSetup(target, draft), DraftTreeOptions(**options))
        )
        run = speculative(target, drafter, [0, 1], num_draft_tokens=8, max_new_tokens=40, seed=seed, rule=rule)
        missed += [step.num_accepted - expected_of(step) for step in play(run).steps if step.num_draft_tokens]
    assert len(missed) > 150
    assert abs(sum(missed)) < 4 * math.hypot(*missed)
