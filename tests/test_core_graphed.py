"""The graph runner's logic, with functions that are run again in place of graphs that are launched."""

import gc
import weakref
from functools import partial

import pytest
import torch

import core.models.language_model
from core.analysis.near_ties import moved_margin
from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.draft_tree import DraftTreeDrafter
from core.drafters.length_policy import DraftLengthPolicy
from core.errors import GenerationError
from core.experiments.distribution import TargetDistribution
from core.models.language_model import LanguageModel
from core.models.loading import prepare
from core.runners.base import FINAL
from core.runners.graphed import GraphedRunner, GraphPool
from core.runners.llama import LLAMA_MODEL_TYPES, FusedLlamaRunner
from core.sampling import draw, probabilities
from core.settings import LengthPolicy, SamplingParams
from core.types import DraftContext, Step
from tests.fakes import NoLook, failing, play, shared_tokenizer, tiny_model, tiny_module

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
    weights = tiny_model(family, is_fused=True).fused_weights
    return GraphPool(capture or Captures()).runner("", capacity, partial(FusedLlamaRunner, weights))


@pytest.mark.parametrize("family", sorted(LLAMA_MODEL_TYPES))
def test_parts_and_rewinds_give_the_fused_runners_logits(family):
    eager, runner = tiny_model(family, is_fused=True).runner(128), graphed(family)
    for count, kept in [(20, 20), (1, 20), (5, 23), (1, 24), (17, 40), (1, 41), (5, 46)]:
        part = IDS[eager.length : eager.length + count]
        expected = eager.forward(part, num_logits=min(3, count), layers=(FINAL, 0, 1))
        for _ in range(2):  # The second time, what was captured is launched.
            output = runner.forward(part, num_logits=min(3, count), layers=(FINAL, 0, 1))
            pairs = zip((output.logits, *output.states), (expected.logits, *expected.states), strict=True)
            for ours, theirs in pairs:
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
        model = tiny_model(is_fused=True)
        drafter = DraftModelDrafter(DrafterSetup(model, model, capacity=100))
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
    for count in (5, 1, 3, 8, 2) * 8:
        runner.forward(IDS[:count], num_logits=1)
    assert captures.number == runner.num_captures == 1
    runner.forward(IDS[:9], num_logits=9)
    assert captures.number == 2
    while runner.length < 300:
        runner.forward(IDS[:5], num_logits=5)
    assert captures.number == 3
    assert runner.forward(IDS, num_logits=1).logits.shape == (1, 257)  # A prefill, which no graph is made for.
    assert captures.number == 3


def test_a_row_does_not_depend_on_how_many_are_scored_with_it():
    """Plain and speculative decoding run the same kernel, so that they agree to the last bit."""
    runner = graphed()
    runner.forward(IDS[:20], num_logits=0)
    block = runner.forward(IDS[20:25], num_logits=5).logits.clone()
    runner.rewind(20)
    for index in range(5):
        assert torch.equal(runner.forward(IDS[20 + index : 21 + index], num_logits=1).logits[0], block[index])


def test_graphs_and_caches_outlive_a_run_unless_a_longer_one_needs_more():
    captures = Captures()
    pool = GraphPool(captures)
    make = partial(FusedLlamaRunner, tiny_model(is_fused=True).fused_weights)
    first, second = (pool.runner("", 100, make) for _ in range(2))
    expected = first.forward(IDS[:5], num_logits=5).logits.clone()
    second.forward(IDS[5:10], num_logits=5)
    assert captures.number == 2, "two runs at once have a cache each"
    del first
    third = pool.runner("", 200, make)
    assert third.length == 0
    assert torch.equal(third.forward(IDS[:5], num_logits=5).logits, expected)
    assert captures.number == 2
    longer = pool.runner("", 2000, make)
    longer.forward(IDS[:5], num_logits=5)
    assert captures.number == 3


def test_what_gives_way_to_a_longer_cache_is_freed_before_that_is_made():
    """Also where a window collects garbage late: nothing refers to itself."""
    kept = []

    def capture(function):
        function()
        return function(), lambda: None

    def make(num_positions):
        assert not [cache for cache in kept if cache() is not None]
        runner = FusedLlamaRunner(weights, num_positions)
        kept.extend(weakref.ref(store) for store in runner.cache)
        return runner

    weights, pool = tiny_model(is_fused=True).fused_weights, GraphPool(capture)
    gc.disable()
    try:
        for number, capacity in enumerate((100, 400, 300, 200)):  # The last three as if frequencies depended on it.
            runner = pool.runner(number, capacity, make)
            runner.forward(IDS[:5], num_logits=5)
            runner.draw_block(IDS[5:7], torch.rand(3, dtype=torch.float64), 1.0, 100, torch.arange(100))
            del runner
    finally:
        gc.enable()


def test_evidence_of_a_block_is_not_overwritten_by_the_next():
    runner = graphed()
    runner.forward(IDS[:10], num_logits=0)
    uniforms = torch.rand(3, dtype=torch.float64)
    tokens, rows = runner.draw_block(IDS[10:12], uniforms, 1.0, 257)
    kept = tokens.clone(), rows.clone()
    runner.draw_block(IDS[12:14], uniforms, 1.0, 257)
    assert torch.equal(tokens, kept[0])
    assert torch.equal(rows, kept[1])


def test_where_capturing_fails_everything_runs_without(caplog):
    expected = tiny_model(is_fused=True).runner(128).forward(IDS[:5], num_logits=5).logits
    runner = graphed(capture=failing(RuntimeError("no graphs on this device")))
    assert torch.allclose(runner.forward(IDS[:5], num_logits=5).logits, expected, atol=1e-5)
    assert runner.length == 5
    assert runner.draw_block(IDS[:2], torch.rand(3), 1.0, 257) is None
    assert runner.length == 5
    assert "without" in caplog.text


def run(temperature: float = 1.0, on_event=lambda event: None, kind=DraftModelDrafter, **changes) -> list[int]:
    target = tiny_model(is_fused=True)
    drafter = kind(DrafterSetup(target, tiny_model(seed=1, is_fused=True), capacity=60))
    settings = {"sampling": SamplingParams(temperature), "max_new_tokens": 24, "num_draft_tokens": 3, "seed": 5}
    settings |= changes
    events = speculative(target, drafter, IDS[:10].tolist(), **settings)
    return play(on_event(event) or event for event in events).ids


@pytest.fixture
def captures(monkeypatch) -> Captures:
    """Every fused model is run by a graph runner, as on a GPU."""
    captures = Captures()
    monkeypatch.setattr(core.models.language_model, "captures_graphs", lambda _: True)
    monkeypatch.setattr(core.models.language_model, "CudaCapture", lambda _: captures)
    tiny_model.cache_clear()
    yield captures
    tiny_model.cache_clear()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("length", "kind", "number"),
    [
        (3, DraftModelDrafter, 3),
        (LengthPolicy.AUTO, DraftModelDrafter, 3),
        (LengthPolicy.ADAPTIVE, DraftModelDrafter, 4),
        (3, DraftTreeDrafter, 4),
    ],
)
def test_all_is_captured_before_the_first_step(captures, temperature, length, kind, number):
    known = []
    run(temperature, lambda event: known.append(captures.number), num_draft_tokens=length, kind=kind)
    # Two numbers of rows to score, and a draft step, or, with a look at each token, the draft's own two.
    assert set(known) == {number}
    run(temperature, lambda event: known.append(captures.number), num_draft_tokens=length, kind=kind)
    assert set(known) == {number}, "the next run uses them again"


@pytest.mark.parametrize("room", range(1, 26))
def test_graphs_are_prepared_for_a_prompt_that_nearly_fills_their_part_of_the_cache(room):
    """On a device, a place beyond that part would end the process."""
    runner = graphed(capacity=600)
    runner.forward(torch.ones(256 - room, dtype=torch.long), num_logits=0)
    runner.prepare(300)
    runner.prepare(300, draws=(True, 257, None))
    runner.draw_block(IDS[:2], torch.rand(1, dtype=torch.float64), 1.0, 257, None)


def test_a_step_that_captures_a_graph_does_not_count_as_its_cost(captures, monkeypatch):
    """The temperature is changed in mid-run, and with it the kind of draws: a new graph."""
    recorded, controls = [], RunControls(SamplingParams(0.0), 3)
    monkeypatch.setattr(DraftLengthPolicy, "record", lambda self, step: recorded.append(step.index))

    def change(event) -> None:
        if isinstance(event, Step) and event.index == 1:
            controls.set_temperature(1.0)

    run(0.0, change, controls=controls)
    assert 2 not in recorded
    assert {0, 1, 3} <= set(recorded)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_of_a_seed_is_the_same_with_graphs_and_without(temperature, request):
    plain = run(temperature)
    request.getfixturevalue("captures")
    assert run(temperature) == plain


def test_margins_are_not_of_logits_that_a_later_forward_has_overwritten(request):
    settings = {"sampling": SamplingParams(0.0), "max_new_tokens": 9}
    *text, last = play(autoregressive(tiny_model(is_fused=True), [1, 2, 3], **settings)).ids
    margins = partial(moved_margin, prompt_ids=[1, 2, 3], text=text, tokens=(last, 0), num_draft_tokens=4)
    eager = margins(tiny_model(is_fused=True))
    request.getfixturevalue("captures")
    assert margins(tiny_model(is_fused=True)) == pytest.approx(eager, abs=1e-4)


@pytest.mark.usefixtures("captures")
def test_the_check_at_load_is_not_misled_by_outputs_that_the_next_forward_overwrites():
    model = prepare("tiny", tiny_module("llama"), shared_tokenizer(), torch.device("cpu"), torch.float32)
    assert model.fused_weights is not None


@pytest.mark.usefixtures("captures")
@pytest.mark.parametrize("is_first", [True, False])
def test_the_check_at_load_notices_a_mistake_in_a_prompts_first_chunk_or_a_later_one(is_first, monkeypatch):
    forward = FusedLlamaRunner.forward

    def wrong(self, ids, **asked):
        start = self.length
        output = forward(self, ids, **asked)
        if not asked["num_logits"] and (start == 0) is is_first:
            self.cache[0][start : self.length] += 1.0
        return output

    monkeypatch.setattr(FusedLlamaRunner, "forward", wrong)
    model = prepare("tiny", tiny_module("llama"), shared_tokenizer(), torch.device("cpu"), torch.float32)
    assert model.fused_weights is None


@pytest.mark.usefixtures("captures")
def test_a_run_with_nan_leaves_none_for_the_next():
    model, settings = tiny_model(is_fused=True), {"sampling": SamplingParams(0.0), "max_new_tokens": 12}
    expected = play(autoregressive(model, [1, 2, 3], **settings)).ids
    table = model.model.get_input_embeddings().weight
    sound = table.clone()

    def poison(event):
        if isinstance(event, Step):
            table.fill_(torch.nan)
        return event

    with pytest.raises(GenerationError):
        play(map(poison, autoregressive(model, IDS[:20].tolist(), **settings)))
    table.copy_(sound)
    assert play(autoregressive(model, [1, 2, 3], **settings)).ids == expected


def test_distributions_are_not_taken_from_memory_that_another_graph_has_overwritten(captures, monkeypatch):
    """Graphs of one model share memory: launching one may overwrite the outputs of the others."""
    known = []

    def capture(function):
        outputs = function()
        known.append(outputs)

        def replay():
            for others in known:
                for each in others:
                    each.fill_(7.0)
            for output, fresh in zip(outputs, function(), strict=True):
                output.copy_(fresh)

        return outputs, replay

    monkeypatch.setattr(core.models.language_model, "CudaCapture", lambda _: capture)
    found = TargetDistribution(tiny_model(is_fused=True), tuple(IDS[:20].tolist()), 4, SamplingParams(), lambda: None)
    assert bool(found.after((1, 2)).isfinite().all())
    assert 0.0 <= found.rounding < 1e-4
