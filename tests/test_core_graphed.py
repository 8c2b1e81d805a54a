"""The graph runner's logic, with functions that are run again in place of graphs that are launched."""

from functools import partial

import pytest
import torch

import core.decode
import core.models.language_model
from core.decode import speculative
from core.drafters.draft_model import DraftModelDrafter
from core.models.language_model import LanguageModel
from core.runners.graphed import GraphedRunner
from core.runners.llama import LLAMA_MODEL_TYPES
from core.sampling import draw, probabilities
from core.settings import SamplingParams
from core.types import DraftContext
from tests.fakes import NoLook, play, tiny_model

IDS = torch.randint(0, 257, (60,), generator=torch.Generator().manual_seed(0))


class Captures:
    """Counts captures, and does without: the function is run again, and its outputs copied to where they were."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, function):
        self.number += 1
        with NoLook():
            outputs = function()

        def replay():
            for output, fresh in zip(outputs, function(), strict=True):
                output.copy_(fresh)

        return outputs, replay


def graphed(family: str = "llama", capacity: int = 128, capture=None) -> GraphedRunner:
    return GraphedRunner(tiny_model(family, is_fused=True).runner(capacity), capture or Captures())


@pytest.mark.parametrize("family", sorted(LLAMA_MODEL_TYPES))
def test_parts_and_rewinds_give_the_fused_runners_logits(family):
    eager, runner = tiny_model(family, is_fused=True).runner(128), graphed(family)
    for count, kept in [(20, 20), (1, 20), (5, 23), (1, 24), (17, 40), (1, 41), (5, 46)]:
        part = IDS[eager.length : eager.length + count]
        expected = eager.forward(part, num_logits=min(3, count), with_hidden=True)
        for _ in range(2):  # The second time, what was captured is launched.
            output = runner.forward(part, num_logits=min(3, count), with_hidden=True)
            for ours, theirs in ((output.logits, expected.logits), (output.hidden, expected.hidden)):
                assert torch.allclose(ours, theirs, atol=2e-3, rtol=1e-3)
            assert runner.length == eager.length
            runner.rewind(runner.length - count)
        runner.forward(part, num_logits=0)
        eager.rewind(kept)
        runner.rewind(kept)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("proposed", [None, torch.arange(0, 200, 2)])
def test_a_block_is_drawn_as_it_is_step_by_step(temperature, proposed):
    eager, runner = tiny_model(is_fused=True).runner(128), graphed()
    limit = 200 if proposed is None else len(proposed)
    for both in (eager, runner):
        both.forward(IDS[:10], num_logits=0)
    for seed in range(6):
        uniforms = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        pending = IDS[10:12]
        tokens, rows = runner.draw_block(pending, uniforms, temperature, limit, proposed)
        assert runner.length == 10 + 2 + 3
        for index in range(4):
            logits = eager.forward(pending, num_logits=1).logits[0, :limit]
            distribution = probabilities(logits, SamplingParams(temperature))
            token = draw(distribution, uniforms[index])
            token = token if proposed is None else proposed[token]
            assert int(tokens[index]) == int(token)
            assert torch.allclose(rows[index], distribution, atol=1e-5)
            pending = token.view(1)
        eager.rewind(10)
        runner.rewind(10)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_that_is_asked_after_each_token_is_that_of_the_whole_block(temperature, monkeypatch):
    runners = iter([graphed() for _ in range(3)])
    monkeypatch.setattr(LanguageModel, "runner", lambda *_, **__: next(runners))
    drafts = []
    for keep in (None, lambda _: True, lambda _: False):
        drafter = DraftModelDrafter(tiny_model(is_fused=True), capacity=100)
        drafter.start(IDS[:10])
        context = DraftContext(
            ids=IDS[:10].tolist(), num_draft_tokens=4, sampling=SamplingParams(temperature), vocab_size=257,
            generator=torch.Generator().manual_seed(1), check_cancelled=lambda: None, keep_drafting=keep,
        )  # fmt: skip
        with torch.inference_mode():
            drafts.append(drafter.propose(context))
    whole, asked, cut = drafts
    assert asked.tokens.tolist() == whole.tokens.tolist()
    assert torch.allclose(asked.probs, whole.probs, atol=1e-5)
    assert cut.tokens.tolist() == whole.tokens[:1].tolist()


def test_a_shape_is_captured_once_for_each_bucket_of_the_cache():
    captures = Captures()
    runner = graphed(capacity=600, capture=captures)
    for _ in range(40):
        runner.forward(IDS[:5], num_logits=5)
    assert captures.number == 1
    runner.forward(IDS[:1], num_logits=1)
    assert captures.number == 2
    while runner.length < 300:
        runner.forward(IDS[:5], num_logits=5)
    assert captures.number == 3
    assert runner.forward(IDS, num_logits=1).logits.shape == (1, 257)  # A prefill, which no graph is made for.
    assert captures.number == 3


def test_where_capturing_fails_everything_runs_without(caplog):
    def refuse(_):
        raise RuntimeError("no graphs on this device")

    expected = tiny_model(is_fused=True).runner(128).forward(IDS[:5], num_logits=5).logits
    runner = graphed(capture=refuse)
    assert torch.allclose(runner.forward(IDS[:5], num_logits=5).logits, expected, atol=1e-5)
    assert runner.length == 5
    assert runner.draw_block(IDS[:1], torch.rand(3), 1.0, 257) is None
    assert runner.length == 5
    assert "without" in caplog.text


def run(temperature: float = 1.0, on_event=lambda event: None) -> list[int]:
    target = tiny_model(is_fused=True)
    drafter = DraftModelDrafter(tiny_model(seed=1, is_fused=True), capacity=60)
    settings = {"sampling": SamplingParams(temperature), "max_new_tokens": 24, "num_draft_tokens": 3, "seed": 5}
    events = speculative(target, drafter, IDS[:10].tolist(), **settings)
    return play(on_event(event) or event for event in events).ids


@pytest.fixture
def captures(monkeypatch) -> Captures:
    """Every fused model is run by a graph runner, as on a GPU."""
    captures = Captures()
    for module in (core.decode, core.models.language_model):
        monkeypatch.setattr(module, "captures_graphs", lambda _: True)
    monkeypatch.setattr(core.models.language_model, "GraphedRunner", partial(GraphedRunner, capture=captures))
    return captures


def test_what_the_first_step_launches_was_captured_before_it(captures):
    known = []
    run(0.0, lambda event: known.append(captures.number))
    # Drafting and scoring of the block, and the one-position forward that is the unit of cost.
    assert known[:2] == [3, 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_of_a_seed_is_the_same_with_graphs_and_without(temperature, request):
    plain = run(temperature)
    request.getfixturevalue("captures")
    assert run(temperature) == plain
