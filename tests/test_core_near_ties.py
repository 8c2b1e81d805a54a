"""Half precision: where plain and speculative greedy texts diverge, the choice was a near-tie, and it is reported."""

from dataclasses import fields

import pytest
import torch

from core.analysis.near_ties import lead, moved_margin, replay_margin
from core.controls import Cancelled
from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.registry import build_drafter
from core.errors import GenerationError
from core.models.language_model import LanguageModel
from core.settings import Coupling, SamplingParams
from tests.fakes import (
    GREEDY,
    TableModel,
    language_model,
    play,
    random_rows,
    refusal,
    table_model,
    tiny_model,
    tiny_module,
)
from tests.faults import KeepsARejectedPosition, Wrapped, with_runners
from tests.test_core_check import TableSession, checked, make_check, shifting

NUM_PROMPT, LENGTH, K = 8, 40, 4


def half(family: str, is_fused: bool) -> LanguageModel:
    return language_model(tiny_module(family).bfloat16(), is_fused=is_fused)


def are_near_ties(plain_target: LanguageModel, target: LanguageModel, count: int) -> list[bool]:
    """For each place where plain and speculative greedy texts diverge, whether it was a near-tie."""
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(count):
        prompt = torch.randint(257, (NUM_PROMPT,), generator=generator).tolist()
        settings = {"max_new_tokens": LENGTH, "sampling": GREEDY}
        plain = play(autoregressive(plain_target, prompt, **settings)).ids
        for drafter in (tiny_model("gpt2", 5), plain_target):
            ours = play(speculative(target, drafter, prompt, num_draft_tokens=K, **settings)).ids
            at = next((at for at in range(LENGTH) if plain[at] != ours[at]), None)
            if at is not None:
                moved = moved_margin(plain_target, prompt, plain[:at], (plain[at], ours[at]), K)
                found.append(moved is not None and moved[1] >= moved[0])
    return found


@pytest.mark.parametrize(
    ("family", "is_fused"), [("llama", True), ("llama", False), ("gpt2", False)], ids=["fused", "llama", "gpt2"]
)
def test_in_half_precision_texts_diverge_at_near_ties_alone(family, is_fused):
    target = half(family, is_fused)
    assert all(are_near_ties(target, target, 5))


def test_a_mistake_is_not_excused_as_a_near_tie():
    target = half("llama", True)
    found = are_near_ties(target, with_runners(target, KeepsARejectedPosition), 2)
    assert len(found) >= 2
    assert not any(found)


class Wobbles(Wrapped):
    """Likes token 1 more by 0.25 at the last position of each full block."""

    def forward(self, ids, **asked):
        output = super().forward(ids, **asked)
        if len(output.logits) == K + 1:
            output.logits[-1, 1] += 0.25
        return output


class WobblyModel(TableModel):
    def runner(self, capacity, **_):
        return Wobbles(TableModel.runner(self, capacity))


def margins(ids):
    """Token 0 leads token 1 by 0.5, but lags behind by 0.125 after a text of 12."""
    return torch.tensor([2.0 + (-0.125 if len(ids) == 12 else 0.5), 2.0, *[-torch.inf] * 6])


@pytest.mark.parametrize(
    ("length", "tokens", "k", "moved"),
    [
        (9, (0, 1), K, (0.5, 0.25)),
        (12, (0, 1), K, (0.125, 0.25)),
        (12, (1, 0), K, (0.125, 0.25)),
        (12, (1, 0), K - 1, (0.125, 0.0)),
        (3, (0, 1), K, (0.5, 0.0)),  # The last row of no block reaches so far back.
        (9, (1, 2), K, None),  # A third token leads.
    ],
)
def test_a_lead_and_how_far_blocks_move_it(length, tokens, k, moved):
    model = table_model(margins, 8)
    wobbly = WobblyModel(**{item.name: getattr(model, item.name) for item in fields(TableModel) if item.init})
    assert moved_margin(wobbly, [0], [0] * (length - 1), tokens, k) == moved


@pytest.mark.parametrize("method", ["draft-model", "draft-tree"])
def test_a_replayed_lead_is_that_after_the_text_whatever_was_drafted(method):
    target, prompt, capacity = tiny_model("llama", is_fused=True), [5, 6, 7], 27
    weights = tiny_module("llama")  # The target's, moved so that some drafts are rejected.
    with torch.no_grad():
        head = weights.lm_head.weight
        head += 0.3 * head.std() * torch.randn(head.shape, generator=torch.Generator().manual_seed(0))
    drafter = build_drafter(method, DrafterSetup(target, language_model(weights, is_fused=True), capacity))
    settings = {"num_draft_tokens": 6, "sampling": GREEDY, "max_new_tokens": capacity - len(prompt)}
    run = play(speculative(target, drafter, prompt, **settings))
    assert {0, 2} < {len(step.path) for step in run.steps}, "tokens are rejected at several places"
    for at in range(len(run.ids)):
        tokens = run.ids[at], (run.ids[at] + 1) % 257
        replayed = replay_margin(target, prompt, run.steps, at, tokens, capacity=capacity)
        assert replayed == pytest.approx(lead(target, [*prompt, *run.ids[:at]], tokens), abs=1e-3)


def test_nan_is_a_sentence_and_measuring_can_be_cancelled():
    broken = table_model(lambda ids: torch.full((8,), torch.nan), 8)
    refusal(GenerationError, moved_margin, broken, [0], [0] * 4, (0, 1), K)
    looks = []

    def cancel() -> None:
        looks.append(1)
        if len(looks) == 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        moved_margin(table_model(random_rows(8, 1), 8), [0], [0] * 29, (0, 1), K, check_cancelled=cancel)


def test_a_token_that_only_blocks_lose_is_no_near_tie():
    request = make_check(num_samples=200, coupling=Coupling.GUMBEL, sampling=SamplingParams(1.0))
    report = checked(request, TableSession(shifting(-torch.inf)))
    found = [parting for item in report.identities for parting in item.divergences]
    assert found
    assert not any(parting.is_near_tie for parting in found)
