"""Mistakes that speculative decoders make, made here on purpose: each must be found, else the suite proves nothing."""

import math

import pytest
import torch

import core.decode
import core.drafters.draft_model
import core.rounds
import core.sampling
import core.verify.rejection
from core.sampling import draw, draw_uniforms
from core.settings import Coupling, SamplingParams
from core.verify import verify_block
from tests.exactness import (
    SIGNIFICANCE,
    always,
    certain_step,
    drafter_step,
    engine_p_value,
    joint_p_value,
    mutate,
    stops_at_the_unsure,
    verify_step,
)
from tests.fakes import CacheError, fixed_rows, play, table_model

VERIFIERS = {
    "lenience": ("u[node] * q[node] < chance", "u[node] * q[node] < 1.3 * chance"),
    "a little lenience": ("u[node] * q[node] < chance", "u[node] * q[node] < chance + 0.03"),
    "accepts with p, not p / q": ("u[node] * q[node] < chance", "u[node] < chance"),
    "accepts the other way round": ("u[node] * q[node] < chance", "u[node] * chance < q[node]"),
    "accepts the likely alone": ("u[node] * q[node] < chance", "chance >= q[node]"),
    "accepts all": ("u[node] * q[node] < chance", "chance >= 0"),
    "accepts nothing, yet corrects from the residual": ("u[node] * q[node] < chance", "chance < 0"),
    "one draw for the whole block": (
        "u = uniforms.tolist()\n    at, left", "u = uniforms[:1].tolist() * len(uniforms)\n    at, left"
    ),
    "the correction's draw tests the last token too": (
        "u = uniforms.tolist()\n    at, left", "u = [*uniforms[1:].tolist(), 0.5]\n    at, left"
    ),
    "tests what stands behind a rejection": ("if parent != at:", "if False:"),
    "corrects from the target": ("left = residual(left,", "residual(left,"),
    "corrects from the target without the rejected token": (
        "left, None if draft_probs is None else draft_probs[node]", "left, None"
    ),
    "corrects from |p - q|": ("(rows - drafted).clamp_(min=0.0)", "(rows - drafted).abs()"),
    "corrects with q - p": ("(rows - drafted).clamp_(min=0.0)", "(drafted - rows).clamp_(min=0.0)"),
    "corrects at the next position": ("left = residual(left,", "left = residual(target_probs[node + 1],"),
    "draws the bonus from the row before": ("left = node, target_probs[node + 1]", "left = node, target_probs[node]"),
    "takes the likeliest bonus": (
        "int(draw(left, uniforms[-1]))", "int(left.argmax())"
    ),
    "compares with the draft's row of the position before": (
        "draft_probs[range(count), draft_tokens]", "draft_probs[[0, *range(count - 1)], draft_tokens]"
    ),
}  # fmt: skip

CERTAIN_VERIFIERS = {
    "accepts certain drafts": ("[1.0] * count if draft_probs is None", "p[:count] if draft_probs is None"),
    "certain drafts may be drawn again": (".scatter_(1, tokens, torch.inf)", ""),
}

DRAFTERS = {
    "drafts by argmax, tested with the softmax": ("drawn = draw(row, uniform)", "drawn = row.argmax()"),
    "draws from the top 2, tested with the raw draft": (
        "drawn = draw(row, uniform)",
        "drawn = draw(row.where(row >= row.topk(2).values[-1], 0), uniform)",
    ),
    "drops a token that came out improbable": (
        "            tokens.append(token)",
        "            if index and float(row[token]) < 0.4: break\n            tokens.append(token)",
    ),
    "draws colder than it says": ("drawn = draw(row, uniform)", "drawn = draw(row ** 1.5, uniform)"),
    "says a smoother distribution than it draws from": ("rows.append(row)", "rows.append(0.8 * row + 0.2 / len(row))"),
    "says the distribution of the position before": ("rows.append(row)", "rows.append(rows[-1] if rows else row)"),
    "one draw for the whole draft": ("else uniforms[index]", "else uniforms[0]"),
}

STOPPING_DRAFTERS = {
    "drops the token that made it stop": (
        "not keep(float(confidence)):",
        "not keep(float(confidence)):\n                del rows[max(1, index) :], tokens[max(1, index) :]",
    ),
    "stops before a token that it has seen": (
        "            tokens.append(token)",
        "            if index and float(row[drawn]) < 0.45: break\n            tokens.append(token)",
    ),
}
"""Mistakes of a drafter that ends its blocks where it is unsure."""

WORKING_SETTINGS = SamplingParams(1.5, 4, 0.95, 0.02)

ENGINES = {
    "the target's cache keeps what was rejected": (
        Coupling.REJECTION, "self.scorer.keep(position - 1, outcome.path)", "pass"
    ),
    "the target reads the text anew, but for its last token twice": (
        Coupling.REJECTION, "self.scorer.score(ids[-1], draft,",
        "self.scorer.score(ids[-2], draft,",
    ),
    "the target's cache loses one position too many": (
        Coupling.REJECTION,
        "self.scorer.keep(position - 1, outcome.path)",
        "self.scorer.keep(position - 2, outcome.path)",
    ),
    "the target is not filtered": (
        Coupling.REJECTION,
        "probabilities(logits[:, : self._target.vocab_size], sampling)",
        "probabilities(logits[:, : self._target.vocab_size], SamplingParams(sampling.temperature))",
    ),
    "every token of a block has the same noise": (
        Coupling.GUMBEL, "self._noise(at)) for row, at", "self._noise(position)) for row, at"
    ),
    "the noise of all texts starts anew": (
        Coupling.GUMBEL, "lambda at: gumbel_noise(seed, at,", "lambda at: gumbel_noise(seed, at % 5,"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_wrong_verifier_is_found(name):
    mutant = mutate(core.verify.rejection, *VERIFIERS[name])
    assert joint_p_value(verify_step(mutant.verify_block)) < SIGNIFICANCE


@pytest.mark.parametrize("name", CERTAIN_VERIFIERS)
def test_a_wrong_verifier_of_certain_drafts_is_found(name):
    mutant = mutate(core.verify.rejection, *CERTAIN_VERIFIERS[name])
    assert joint_p_value(certain_step(mutant.verify_block)) < SIGNIFICANCE


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_wrong_drafter_is_found(name):
    mutant = mutate(core.drafters.draft_model, *DRAFTERS[name])
    assert joint_p_value(drafter_step(mutant.DraftModelDrafter, verify_block), seed=10) < SIGNIFICANCE


@pytest.mark.parametrize("name", STOPPING_DRAFTERS)
def test_a_drafter_that_stops_wrongly_is_found(name):
    mutant = mutate(core.drafters.draft_model, *STOPPING_DRAFTERS[name])
    step = drafter_step(mutant.DraftModelDrafter, verify_block, stops_at_the_unsure)
    assert joint_p_value(step, seed=10) < SIGNIFICANCE


def test_one_that_keeps_the_token_that_made_it_stop_passes():
    confidences = []

    def stops(confidence: float) -> bool:
        confidences.append(confidence)
        return stops_at_the_unsure(confidence)

    step = drafter_step(core.drafters.draft_model.DraftModelDrafter, verify_block, stops)
    assert joint_p_value(step, samples=5_000, seed=10) > SIGNIFICANCE
    # Both kinds of block came up.
    assert 6_000 < len(confidences) < 9_000


def test_the_draws_of_the_draft_used_again_for_its_test_are_found():
    step = verify_step(verify_block)

    def cheat(draft_probs, target_probs, generator):
        # The verifier draws K + 1 numbers of which the first K are the draft's own.
        state = generator.get_state()
        tokens = []
        for uniform in torch.rand(2, generator=generator, dtype=torch.float64):
            tokens.append(int(draw(draft_probs[tuple(tokens)], uniform)))
        generator.set_state(state)
        draft_probs = torch.stack([draft_probs[tuple(tokens[:i])] for i in range(2)])
        rows = torch.stack([target_probs[tuple(tokens[:i])] for i in range(3)])
        uniforms = draw_uniforms(3, generator)
        outcome = verify_block(torch.tensor(tokens), range(-1, 1), draft_probs, rows, uniforms)
        return [*tokens[: outcome.num_accepted], outcome.next_token]

    assert joint_p_value(cheat) < SIGNIFICANCE < joint_p_value(step, samples=2_000)


def test_accepting_where_u_equals_the_ratio_is_found():
    mutant = mutate(core.verify.rejection, "u[node] * q[node] < chance", "u[node] * q[node] <= chance")
    rows = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    for module, expected in ((core.verify.rejection, 0), (mutant, 1)):
        outcome = module.verify_block(torch.tensor([0]), [-1], None, rows, torch.zeros(2, dtype=torch.float64))
        assert outcome.num_accepted == expected


def test_drawing_an_id_without_mass_is_found():
    mutant = mutate(core.sampling, "torch.searchsorted(cdf, point, right=True)", "torch.searchsorted(cdf, point)")
    weights, zero = torch.tensor([0.0, 1.0]), torch.tensor(0.0, dtype=torch.float64)
    assert (int(draw(weights, zero)), int(mutant.draw(weights, zero))) == (1, 0)


@pytest.mark.parametrize("coupling", Coupling)
def test_the_engine_itself_passes(coupling):
    p_value = engine_p_value(core.decode.speculative, sampling=WORKING_SETTINGS, coupling=coupling)
    assert p_value > SIGNIFICANCE


@pytest.mark.parametrize("name", ENGINES)
def test_a_wrong_engine_is_found(name, monkeypatch):
    coupling, old, new = ENGINES[name]
    monkeypatch.setattr(core.decode, "Rounds", mutate(core.rounds, old, new).Rounds)
    try:
        p_value = engine_p_value(core.decode.speculative, sampling=WORKING_SETTINGS, coupling=coupling)
    except CacheError:
        return  # The model itself noticed.
    assert p_value < SIGNIFICANCE


def test_a_mutation_must_find_its_place_and_a_certain_draft_is_tested():
    with pytest.raises(AssertionError, match="stands 0 times"):
        mutate(core.verify.rejection, "no such line", "")
    target = table_model(fixed_rows([math.log(0.2), math.log(0.8)]), 2)
    run = play(core.decode.speculative(target, always([0, 0]), [0], num_draft_tokens=2, max_new_tokens=50))
    assert 0 < run.summary.num_accepted_tokens < run.summary.num_draft_tokens
