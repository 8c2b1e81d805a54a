"""Runners: a cache that was read in parts and rewound gives the logits of one that was not."""

import importlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.runners import llama, llama_forward, matmul
from core.runners.base import FINAL, PREFILL_CHUNK, Runner, prefill
from core.runners.llama import FusedLlamaRunner, FusedLlamaWeights
from core.runners.module import ModuleRunner
from core.runners.scoring import TargetScorer
from core.sampling import draw, probabilities
from core.settings import SamplingParams
from tests.fakes import FAMILIES, failing, language_model, random_rows, table_model, tiny_model, tiny_module

FUSED = sorted(llama.LLAMA_MODEL_TYPES)
IDS = torch.randint(0, 257, (60,), generator=torch.Generator().manual_seed(0))
CASES = [(family, False) for family in FAMILIES] + [(family, True) for family in FUSED]


def runner_of(family: str, is_fused: bool, capacity: int = 128) -> Runner:
    runner = tiny_model(family, is_fused=is_fused).runner(capacity)
    assert isinstance(runner, FusedLlamaRunner if is_fused else ModuleRunner)
    return runner


def reference(family: str, ids: torch.Tensor) -> torch.Tensor:
    """All logits (n, V), by the module without a cache."""
    return logits_of(tiny_model(family).model, ids)


def logits_of(module, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.inference_mode():
        return module(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]


def in_parts(runner: Runner, counts=(40, 1, 4, 15)) -> torch.Tensor:
    """All logits (n, V), by a runner that reads the ids in parts."""
    return torch.cat([runner.forward(part, num_logits=len(part)).logits for part in IDS.split(list(counts))])


def is_close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours, theirs, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("groups_heads", [True, False])
def test_parts_read_without_a_mask_as_on_cuda_give_the_same(groups_heads, monkeypatch):
    importlib.import_module("torch.nn.attention.bias")  # Takes its own reference to what is replaced.
    monkeypatch.setattr("torch.backends.cuda.can_use_flash_attention", lambda _: groups_heads)
    runner = runner_of("llama", is_fused=True)
    runner._skips_mask, runner._longest_block = True, 0
    assert is_close(in_parts(runner, (20, 30, 1, 9)), reference("llama", IDS))


@pytest.mark.parametrize(("family", "is_fused"), CASES)
def test_parts_and_rewinds_give_the_logits_of_the_whole(family, is_fused):
    expected = reference(family, IDS)
    runner = runner_of(family, is_fused)
    plan = [(20, 20), (1, 20), (5, 23), (17, 30), (1, 31), (9, 33), (27, 60)]  # read so many, keep so many
    for count, kept in plan:
        start = runner.length
        part = IDS[start : start + count]
        rows = runner.forward(part, num_logits=len(part)).logits
        assert is_close(rows, expected[start : start + count])
        # A block that is rejected is another one than the text that comes in its place.
        runner.rewind(start)
        runner.forward(part.flip(0), num_logits=1)
        runner.rewind(start)
        runner.forward(part, num_logits=0)
        runner.rewind(min(kept, runner.length))
    assert runner.length == 60


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=8), st.sampled_from([True, False]))
@settings(max_examples=25)
def test_any_sequence_of_forwards_and_rewinds_counts_correctly(plan, is_fused):
    runner, length = runner_of("llama", is_fused), 0
    for count, back in plan:
        rows = runner.forward(IDS[length : length + count], num_logits=1).logits
        length += count
        assert (runner.length, rows.shape) == (length, (1, 257))
        length = max(0, length - back)
        runner.rewind(length)
        if length > 45:
            runner.rewind(length := 0)
    assert runner.length == length


@pytest.mark.parametrize(("family", "is_fused"), [("llama", True), ("llama", False), ("gpt2", False)])
@pytest.mark.parametrize("num_logits", [0, 1, 3, 5])
def test_the_requested_rows_and_hidden_states_are_returned(family, is_fused, num_logits):
    expected = reference(family, IDS[:5])
    output = runner_of(family, is_fused).forward(IDS[:5], num_logits=num_logits)
    assert output.logits.shape == (num_logits, 257)
    assert is_close(output.logits, expected[5 - num_logits :])
    assert output.states == ()
    (hidden,) = runner_of(family, is_fused).forward(IDS[:5], num_logits=1, layers=(FINAL,)).states
    assert is_close(tiny_model(family).model.get_output_embeddings()(hidden), expected)


@pytest.mark.parametrize(
    ("family", "is_fused"), [("llama", True), ("qwen3", False), ("gpt2", False), ("mamba2", False)]
)
def test_the_states_that_enter_chosen_layers_are_returned(family, is_fused):
    sizes = {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1} if family == "mamba2" else {}
    sizes |= {"hidden_size": 32, "num_hidden_layers": 2} if sizes else {}
    model = tiny_model(family, is_fused=is_fused, **sizes)
    with torch.inference_mode():
        expected = model.model(input_ids=IDS[None], use_cache=False, output_hidden_states=True).hidden_states
    runner, found = model.runner(128), []
    for part in IDS.split([40, 1, 4, 15]):
        layers = (FINAL, 0, 1) if len(part) == 4 else (0, 1)
        states = runner.forward(part, num_logits=1, layers=layers).states
        assert len(states) == len(layers)
        found.append(states[-2:])
    for layer, states in enumerate(zip(*found, strict=True)):
        assert is_close(torch.cat(states), expected[layer][0])


def test_the_cache_goes_by_the_name_that_the_model_has_for_it(monkeypatch):
    model = tiny_model("llama")
    expected, usual = reference("llama", IDS), model.model.forward

    def newer(*, cache=None, **given):
        assert cache is not None
        return usual(past_key_values=cache, **given)

    def recurrent(*, cache_params=None, **given):
        assert cache_params is not None
        return usual(past_key_values=cache_params, **given)

    for forward in (newer, recurrent):
        monkeypatch.setattr(model.model, "forward", forward)
        assert is_close(in_parts(model.runner(128)), expected)


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_cache_is_its_own_runners_and_refuses_to_be_rewound_or_filled_beyond_what_it_holds(is_fused):
    runner, other = runner_of("llama", is_fused, capacity=8), runner_of("llama", is_fused)
    runner.forward(IDS[:4], num_logits=1)
    other.forward(IDS[20:40], num_logits=1)
    for length in (5, -1, -10):
        with pytest.raises(ValueError, match="4 positions"):
            runner.rewind(length)
    if is_fused:
        with pytest.raises(ValueError, match="room for 8"):
            runner.forward(IDS[4:9], num_logits=1)
    assert runner.length == 4
    assert is_close(runner.forward(IDS[4:5], num_logits=1).logits, reference("llama", IDS[:5])[-1:])
    runner.rewind(0)
    assert is_close(runner.forward(IDS[:3], num_logits=3).logits, reference("llama", IDS[:3]))


def test_a_module_that_fails_amid_a_forward_leaves_a_whole_cache():
    model = tiny_model("llama", 7)
    runner = model.runner(64)
    runner.forward(IDS[:6], num_logits=1)
    handle = model.model.model.layers[1].register_forward_pre_hook(failing(RuntimeError("a kernel failed")))
    try:
        with pytest.raises(RuntimeError, match="kernel"):
            runner.forward(IDS[6:9], num_logits=1)
    finally:
        handle.remove()
    assert runner.length == 6
    expected = model.runner(64).forward(IDS[:9], num_logits=3).logits
    assert torch.allclose(runner.forward(IDS[6:9], num_logits=3).logits, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("mistral", {"sliding_window": 8}), ("llama", {"hidden_act": "gelu"}), ("llama", {"mlp_bias": True}),
     ("llama", {"attention_bias": True}), ("gpt2", {}), ("gemma2", {})],
)  # fmt: skip
def test_the_fused_forward_declines_what_it_does_not_compute(family, changes):
    assert not llama.supports(tiny_module(family, **changes))


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
     ("llama", {"num_key_value_heads": 4}), ("llama", {"num_key_value_heads": 1, "head_dim": 16}),
     ("llama", {"tie_word_embeddings": True}),
     ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})],
)  # fmt: skip
def test_the_fused_forward_computes_the_variants_it_takes(family, changes):
    module = tiny_module(family, **changes)
    expected = logits_of(module)
    assert llama.supports(module)
    assert is_close(in_parts(FusedLlamaRunner(FusedLlamaWeights(module), 64)), expected)
    # Fusing has pointed the module's own weights into the fused ones, without changing them.
    assert torch.allclose(logits_of(module), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FUSED)
def test_without_scripts_the_fused_forward_is_the_same(family, monkeypatch):
    assert isinstance(llama.scripted(llama_forward.forward), torch.jit.ScriptFunction)
    assert isinstance(llama.scripted(llama_forward.draw_next), torch.jit.ScriptFunction)
    scripted = in_parts(runner_of(family, True))
    monkeypatch.setattr(torch.jit, "script", failing(RuntimeError("no TorchScript here")))
    monkeypatch.setattr(llama, "scripted", llama.scripted.__wrapped__)
    assert llama.scripted(llama_forward.forward) is llama_forward.forward
    plain = in_parts(runner_of(family, True))
    assert is_close(plain, reference(family, IDS))
    assert torch.allclose(plain, scripted, atol=1e-5)


@pytest.mark.parametrize("family", FUSED)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draw_in_one_script_is_the_draw_in_steps(family, temperature):
    stepwise, fused = runner_of(family, True), runner_of(family, True)
    uniforms = torch.linspace(0, 1, 40, dtype=torch.float64) * (1 - 1e-9)
    for start, part in ((0, IDS[:7]), (7, IDS[7:8]), (8, IDS[8:10])):
        distribution = probabilities(stepwise.forward(part, num_logits=1).logits[0, :200], SamplingParams(temperature))
        for uniform in uniforms:
            fused.rewind(start)
            token, row, _ = fused.draw_next(part, uniform, temperature, 200)
            assert int(token) == int(draw(distribution, uniform))
        assert torch.allclose(row, distribution, atol=1e-6)
        assert fused.length == stepwise.length


def test_int8_products_are_near_the_plain_ones_and_for_drafting_alone(monkeypatch):
    monkeypatch.setattr(matmul, "_remembered", lambda key, _: int(key.startswith("int8")))
    model = language_model(tiny_module("llama"), is_fused=True)
    expected = reference("llama", IDS)
    for drafting, quantise, is_exact in ((False, True, True), (True, False, True), (True, True, False)):
        runner = model.runner(64, drafting=drafting, quantise=quantise)
        rows = torch.cat([runner.forward(token, num_logits=1).logits for token in IDS.split(1)])
        off = float((rows - expected).norm() / expected.norm())
        assert (off < 1e-4) == is_exact
        assert off < 0.1


def test_int8_products_do_not_overflow_on_any_processor():
    """Where a processor adds in 16 bits, rows and weights that are all large are halved."""
    row, weight = torch.ones(1, 256), torch.full((8, 256), 0.5)
    product = torch.ops.quantized.linear_dynamic(row, matmul._to_int8(weight), False)
    assert torch.allclose(product, row @ weight.T, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fewest", [1, 2, 5])
def test_packed_weights_give_the_modules_logits(fewest, dtype, monkeypatch):
    try:
        matmul.pack(torch.ones(16, 16, dtype=dtype))
    except (RuntimeError, AttributeError, NotImplementedError):
        pytest.skip("this processor, or its torch, packs no such weights")
    monkeypatch.setattr(matmul, "_remembered", lambda key, _: fewest if key.startswith("packed") else 0)
    taken, packed = set(), llama_forward.in_packed

    def in_packed(x, weight):
        taken.add(len(x))
        return packed(x, weight)

    monkeypatch.setattr(llama_forward, "in_packed", in_packed)
    monkeypatch.setattr(llama, "scripted", lambda function: function)
    module = tiny_module("qwen2").to(dtype)
    expected = logits_of(module).float()
    model = language_model(module, is_fused=True)
    for parts in ([60], [20, 1, 5, 17, 2, 15]):
        rows = in_parts(model.runner(64), parts).float()
        assert float((rows - expected).norm() / expected.norm()) < (1e-4 if dtype is torch.float32 else 0.05)
    assert taken == {count for count in (60, 20, 1, 5, 17, 2, 15) if count >= fewest}
    assert torch.equal(logits_of(module).float(), expected), "the module's own weights are left as they were"


@pytest.fixture
def others(monkeypatch):
    """Whether other programs compute, as far as the choice of kernels knows."""
    others = SimpleNamespace(disturb=False)
    monkeypatch.setattr(matmul, "OtherPrograms", lambda: others)
    return others


def test_a_kernel_is_chosen_once_on_a_machine_and_kept(monkeypatch, others):
    monkeypatch.setattr(matmul, "_choices", {})
    assert matmul._remembered("packed 3x4 float32", lambda: 2) == 2
    monkeypatch.setattr(matmul, "_choices", {})  # Another start.
    assert matmul._remembered("packed 3x4 float32", lambda: pytest.fail("measured again")) == 2
    matmul._choices_path().write_text("{damaged", "utf-8")
    monkeypatch.setattr(matmul, "_choices", {})
    assert matmul._remembered("packed 3x4 float32", lambda: 5) == 5


def test_a_kernel_that_was_measured_beside_other_programs_is_used_and_not_kept(monkeypatch, others):
    for choice, others.disturb, kept in [(3, True, 0), (4, True, 0), (5, False, 1), (6, True, 1)]:
        monkeypatch.setattr(matmul, "_choices", {})
        for _ in range(2):
            assert matmul._remembered("packed 3x4 float32", lambda choice=choice: choice) == min(choice, 5)
        assert len(matmul._read_choices()) == kept
    monkeypatch.setattr(matmul, "_choices", {})
    others.disturb = True
    matmul._remembered("a", lambda: 1)
    others.disturb = False
    matmul._remembered("b", lambda: 2)
    assert [sorted(choices) for choices in matmul._read_choices().values()] == [["b", "packed 3x4 float32"]]


def test_machines_that_share_a_home_keep_their_own_choices(monkeypatch, others):
    for machine, choice in [("a", 1), ("b", 2), ("a", 1), ("b", 2)]:
        monkeypatch.setattr(matmul, "device_name", lambda _, machine=machine: machine)
        monkeypatch.setattr(matmul, "_choices", {})
        assert matmul._remembered("packed 3x4 float32", lambda choice=choice: choice) == choice
    assert len(matmul._read_choices()) == 2


def test_a_kernel_is_chosen_only_where_it_is_clearly_faster(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(matmul, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def product(seconds):
        return lambda: setattr(clock, "now", clock.now + seconds)

    assert matmul._beats(product(0.001), product(0.002))
    assert not matmul._beats(product(0.002), product(0.001))
    assert not matmul._beats(product(0.00199), product(0.002))


def test_no_kernel_is_chosen_for_good_where_memory_was_too_short_to_measure(monkeypatch):
    monkeypatch.setattr(matmul, "_choices", {})
    weight = torch.ones(512, 256)
    with monkeypatch.context() as patch:
        patch.setattr(matmul, "_measure_packed", failing(RuntimeError("DefaultCPUAllocator: not enough memory")))
        assert matmul._fewest_packed([weight]) == 0
    assert matmul._fewest_packed([weight]) == 1


def test_a_models_own_layers_are_timed_as_far_as_a_limit(monkeypatch):
    weights = [torch.ones(4, 8) for _ in range(5)]
    monkeypatch.setattr(matmul, "_MEASURED_BYTES", 3 * weights[0].nbytes)
    assert list(map(id, matmul._measured(weights))) == list(map(id, weights[:3]))


def test_weights_are_packed_only_where_memory_is_left(monkeypatch):
    monkeypatch.setattr(matmul, "_remembered", lambda key, _: 1)
    monkeypatch.setattr(llama, "_MEMORY_SHARE", 0.0)
    assert not FusedLlamaWeights(tiny_module("llama")).head.packed


def test_an_error_in_the_layers_says_what_happened(monkeypatch):
    runner = runner_of("llama", True)
    runner.forward(IDS[:3], num_logits=1)
    monkeypatch.setattr(runner, "rotary", tuple(table[..., :-1] for table in runner.rotary))
    with pytest.raises(RuntimeError) as caught:
        runner.forward(IDS[3:6], num_logits=1)
    assert "TorchScript" not in str(caught.value)
    assert "size" in str(caught.value).splitlines()[0]
    assert runner.length == 3


def test_memory_that_runs_out_in_the_layers_is_reported_as_such(monkeypatch):
    run_out = failing(
        RuntimeError(
            "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript:\n"
            "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        )
    )
    runner = runner_of("llama", True)
    monkeypatch.setattr(llama, "scripted", lambda _: run_out)
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory"):
        runner.forward(IDS[:3], num_logits=1)


def test_a_prefill_runs_in_chunks_and_checks_for_a_stop_before_each():
    model = table_model(random_rows(8, 1), 8)
    forwards, looks = [], []
    model.on_forward = lambda runner, ids: forwards.append(len(ids))
    runner = model.runner(5_000)
    prefill(runner, [1] * (2 * PREFILL_CHUNK + 5), lambda: looks.append(runner.length))
    assert forwards == [PREFILL_CHUNK, PREFILL_CHUNK, 5]
    assert looks == [0, PREFILL_CHUNK, 2 * PREFILL_CHUNK]
    prefill(runner, [1] * (2 * PREFILL_CHUNK + 7), lambda: None)
    assert forwards[3:] == [2]


def test_a_head_covers_the_requested_ids():
    weights = tiny_model("llama", is_fused=True).fused_weights
    for number in range(20):  # Tensors that are gone leave their place, and their id, to new ones.
        ids = torch.arange(number, number + 5)
        assert torch.equal(weights.draft_head(ids, is_quantised=False).weights[0], weights.head.weights[0][ids])
        del ids


def test_what_the_first_forward_of_a_shape_does_is_done_before_the_clock_runs_once(monkeypatch):
    model, rows = tiny_model("llama", is_fused=True), []
    monkeypatch.setattr(model, "known_rows", set())
    call = FusedLlamaRunner.forward
    monkeypatch.setattr(
        FusedLlamaRunner, "forward", lambda self, ids, **more: rows.append(len(ids)) or call(self, ids, **more)
    )
    for _ in range(2):
        scorer = TargetScorer(model, limit=7)
        scorer.prefill([1, 2, 3, 4], lambda: None)
        scorer.prepare(6, range(2, 6), lambda: None)
        assert scorer._runner.length == 3
    assert sorted(rows) == [2, 3, 3, 3, 4], "five rows have no room"
