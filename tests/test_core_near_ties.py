"""Half precision: where plain and speculative greedy texts part, the choice was a near-tie, and it is reported."""

import pytest
import torch

from core.analysis.near_ties import NearTie, find_near_ties
from core.controls import Cancelled
from core.decode import autoregressive, speculative
from core.errors import GenerationError, PromptError, SettingsError
from core.models.language_model import LanguageModel
from core.settings import SamplingParams
from tests.fakes import TableModel, is_sentence, language_model, play, random_law, table_model, tiny_model, tiny_module
from tests.faults import KeepsARejectedPosition, Wrapped, with_runners

GREEDY = SamplingParams(0.0)
NUM_PROMPT, LENGTH, K = 8, 40, 4


def half(family: str, is_fused: bool) -> LanguageModel:
    return language_model(tiny_module(family).bfloat16(), is_fused=is_fused)


def partings(plain_target: LanguageModel, target: LanguageModel, count: int) -> list[tuple[list[int], int, int]]:
    """The texts up to where plain and speculative greedy runs part, and the token that each goes on with."""
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(count):
        prompt = torch.randint(257, (NUM_PROMPT,), generator=generator).tolist()
        settings = {"max_new_tokens": LENGTH, "sampling": GREEDY}
        plain = play(autoregressive(plain_target, prompt, **settings)).ids
        for drafter in (tiny_model("gpt2", 5), plain_target):
            ours = play(speculative(target, drafter, prompt, num_draft_tokens=K, **settings)).ids
            at = next((at for at in range(LENGTH) if plain[at] != ours[at]), None)
            if at is not None:
                found.append(([*prompt, *plain[:at]], plain[at], ours[at]))
    return found


def is_explained(target: LanguageModel, parting: tuple[list[int], int, int]) -> bool:
    before, one, other = parting
    ties = find_near_ties(target, [*before, one], K, num_prompt_tokens=NUM_PROMPT)
    return bool(ties) and ties[-1].position == len(before) and {ties[-1].token, ties[-1].other} == {one, other}


@pytest.mark.parametrize(
    ("family", "is_fused"), [("llama", True), ("llama", False), ("gpt2", False)], ids=["fused", "llama", "gpt2"]
)
def test_in_half_precision_texts_part_at_near_ties_alone(family, is_fused):
    target = half(family, is_fused)
    found = partings(target, target, 5)
    assert [parting for parting in found if not is_explained(target, parting)] == []


def test_a_mistake_is_not_excused_as_a_near_tie():
    target = half("llama", True)
    found = partings(target, with_runners(target, KeepsARejectedPosition), 2)
    assert len(found) >= 2
    assert not any(is_explained(target, parting) for parting in found)


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "module"])
def test_in_float32_a_random_model_has_no_near_ties(is_fused):
    target = tiny_model("llama", is_fused=is_fused)
    prompt = list(range(10, 18))
    text = play(autoregressive(target, prompt, max_new_tokens=LENGTH, sampling=GREEDY)).ids
    assert find_near_ties(target, [*prompt, *text], K, num_prompt_tokens=len(prompt)) == ()


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


def wobbly(law) -> WobblyModel:
    model = table_model(law, 8)
    return WobblyModel(**{name: getattr(model, name) for name in TableModel.__dataclass_fields__})


def margins(ids):
    """Token 0 leads token 1 by 0.5, but by 0.125 after a text of 9, and lags behind by 0.125 after one of 12."""
    lead = {9: 0.125, 12: -0.125}.get(len(ids), 0.5)
    return torch.tensor([2.0 + lead, 2.0, *[0.0] * 6])


def test_a_near_tie_says_where_which_tokens_and_how_near():
    target = wobbly(margins)
    ids = [0] * 20
    first = NearTie(position=9, token=0, other=1, margin=0.125, difference=0.25)
    second = NearTie(position=12, token=1, other=0, margin=0.125, difference=0.25)
    assert find_near_ties(target, ids, K) == (first, second)
    # The prompt was not chosen, and a place that the last row of no block reaches is scored in one way alone.
    for count, expected in ((5, (first, second)), (6, (second,)), (8, (second,)), (9, ())):
        assert find_near_ties(target, ids, K, num_prompt_tokens=count) == expected
    assert find_near_ties(target, ids[:12], K) == (first,)
    assert find_near_ties(target, ids, K - 1) == find_near_ties(target, ids, 0) == ()
    assert find_near_ties(table_model(margins, 8), ids, K) == ()


@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_the_end_of_the_context_is_the_end(length):
    target = table_model(random_law(8, 1), 8, context_length=20)
    assert find_near_ties(target, [1] * length, K) == ()
    assert find_near_ties(target, [1] * length, K, num_prompt_tokens=length) == ()


def test_a_token_that_can_never_win_is_no_contender():
    target = wobbly(lambda ids: torch.tensor([3.0, 2.9, *[-torch.inf] * 6]))
    assert {(tie.token, tie.other) for tie in find_near_ties(target, [0] * 12, K)} == {(0, 1)}


def test_what_cant_be_looked_at_is_a_sentence():
    target = table_model(random_law(8, 1), 8, context_length=20)
    broken = table_model(lambda ids: torch.full((8,), torch.nan), 8)
    for error, model, count, settings in [
        (PromptError, target, 0, {}),
        (PromptError, target, 21, {}),
        (SettingsError, target, 5, {"num_prompt_tokens": 6}),
        (SettingsError, target, 5, {"num_draft_tokens": -1}),
        (GenerationError, broken, 5, {}),
    ]:
        with pytest.raises(error) as caught:
            find_near_ties(model, [0] * count, **{"num_draft_tokens": K, **settings})
        assert is_sentence(str(caught.value))


def test_it_can_be_given_up_between_forwards():
    target, looks = table_model(random_law(8, 1), 8), []

    def give_up() -> None:
        looks.append(1)
        if len(looks) == 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        find_near_ties(target, [0] * 30, K, check_cancelled=give_up)
