"""Recurrent and hybrid models: greedy text is transformers' own, plain and speculative, though a state can't be cut."""

import functools

import pytest
import torch

from core.decode import autoregressive, speculative
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.errors import ModelUnreadableError, SettingsError
from core.models.language_model import LanguageModel
from core.runners import base, module
from core.runners.forward_choice import choose_reading
from core.runners.module import Reading
from core.session import Session
from core.settings import RunRequest, SamplingParams
from tests.fakes import failing, greedy_reference, language_model, play, refusal, save_model, tiny_module

LENGTH = 16
GREEDY = {"sampling": SamplingParams(0.0), "max_new_tokens": LENGTH}
PROMPTS = [torch.randint(257, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (1, 9, 30)]

_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
}  # fmt: skip
_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_ssm": 64}
HYBRIDS: dict[str, tuple[dict, Reading]] = {
    "qwen3_next": ({**_LINEAR, **_EXPERTS}, Reading.BLOCKS),
    "qwen3_5_text": (_LINEAR, Reading.BLOCKS),
    "lfm2": ({"layer_types": ["conv", "full_attention"] * 2}, Reading.BLOCKS),
    "bamba": ({**_MAMBA, "attn_layer_indices": [1, 3]}, Reading.BLOCKS),
    "falcon_h1": (_MAMBA, Reading.BLOCKS),
    "granitemoehybrid": (
        {**_MAMBA, "layer_types": ["mamba", "attention"] * 2, "num_local_experts": 4, "num_experts_per_tok": 2,
         "shared_intermediate_size": 32}, Reading.BLOCKS,
    ),
    "nemotron_h": (
        {"hybrid_override_pattern": "M*M-", "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8,
         "n_groups": 1}, Reading.BLOCKS,
    ),
    "jamba": (
        {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 8, "num_experts": 2,
         "num_experts_per_tok": 1}, Reading.TOKENS,
    ),
    "mamba2": ({"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1}, Reading.BLOCKS),
    "minimax": ({"layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 16}, Reading.WHOLE),
}  # fmt: skip
"""By transformers' model type: the values of its configuration, and how its module continues a text."""


@functools.cache
def hybrid(name: str, *, noise: float = 0.0) -> LanguageModel:
    torch.manual_seed(0)  # Some modules draw their decay rates themselves.
    module = tiny_module(name, **{**_SIZES, **HYBRIDS[name][0], "tie_word_embeddings": False})
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * noise)
    model = language_model(module)
    choose_reading(model)
    return model


def looking_up(target, prompt, **settings):
    return speculative(target, PromptLookupDrafter(), prompt, num_draft_tokens=3, **settings)


@pytest.mark.parametrize("name", HYBRIDS)
def test_greedy_text_is_that_of_transformers_plain_and_speculative(name):
    target, draft = hybrid(name), hybrid(name, noise=0.01)
    assert target.reading is HYBRIDS[name][1]
    drafted = 0
    for prompt in (PROMPTS[0], PROMPTS[2]):
        expected = greedy_reference(target, prompt, LENGTH)
        run = play(looking_up(target, prompt, **GREEDY))
        assert run.ids == expected
        drafted += sum(len(step.drafted) for step in run.steps)
        run = play(speculative(target, draft, prompt, num_draft_tokens=4, **GREEDY))
        assert run.ids == expected
        assert run.summary.num_accepted_tokens > 0
    assert drafted, "one of the prompts has something to look up"
    assert play(autoregressive(target, prompt, **GREEDY)).ids == expected


def test_a_draft_equal_to_its_hybrid_target_accepts_everything():
    model = hybrid("qwen3_next")
    run = play(speculative(model, model, PROMPTS[1], num_draft_tokens=4, max_new_tokens=30))
    assert run.summary.draft_acceptance_rate == 1.0


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1", "jamba", "nemotron_h"])
def test_any_rewind_gives_the_logits_of_the_whole(name):
    model = hybrid(name)
    ids = torch.randint(257, (60,), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = model.model(input_ids=ids.unsqueeze(0), use_cache=False).logits[0]
    runner = model.runner(100)
    for count, kept in [(20, 20), (1, 20), (5, 23), (17, 30), (9, 12), (1, 5), (30, 3), (40, 43), (1, 44), (16, 60)]:
        start = runner.length
        rows = runner.forward(ids[start : start + count], num_logits=count).logits
        assert torch.allclose(rows, expected[start : start + count], atol=2e-3)
        runner.rewind(min(kept, runner.length))
        runner.forward(ids[:3], num_logits=1)  # Rejected.
        runner.rewind(min(kept, start + count))


def reads_of(runner, monkeypatch) -> list[tuple[int, int]]:
    """The positions from and to which a runner's forwards read, as they happen."""
    reads, call = [], runner._call
    monkeypatch.setattr(runner, "_call", lambda *given: reads.append(given[:2]) or call(*given))
    return reads


def test_a_long_prompt_is_read_once_and_in_chunks(monkeypatch):
    model, prompt = hybrid("lfm2"), [5] * 160
    runner, draft_runner = model.runner(200), model.runner(200)
    reads, drafted = reads_of(runner, monkeypatch), reads_of(draft_runner, monkeypatch)
    draft = hybrid("lfm2", noise=0.003)
    monkeypatch.setattr(base, "PREFILL_CHUNK", 64)
    monkeypatch.setattr(LanguageModel, "runner", lambda self, *_, **__: draft_runner if self is draft else runner)
    for _ in speculative(model, draft, prompt, num_draft_tokens=4, max_new_tokens=8):
        pass
    for reader in (reads, drafted):
        assert reader[:3] == [(0, 64), (64, 128), (128, 159)]
        assert min(start for start, _ in reader[3:]) == 159


def test_what_a_failure_dropped_is_read_again_in_chunks(monkeypatch):
    model, ids = hybrid("lfm2"), torch.tensor([5] * 160)
    runner = model.runner(200)
    base.prefill(runner, ids[:159].tolist(), lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(model.model, "forward", failing(RuntimeError("a kernel failed")))
        with pytest.raises(RuntimeError, match="kernel"):
            runner.forward(ids[159:], num_logits=1)
    monkeypatch.setattr(module, "PREFILL_CHUNK", 64)
    reads = reads_of(runner, monkeypatch)
    runner.forward(ids[159:], num_logits=1)
    assert reads == [(0, 64), (64, 128), (128, 159), (159, 160)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, sizes = tmp_path_factory.mktemp("models"), {**_SIZES, **HYBRIDS["lfm2"][0], "tie_word_embeddings": False}
    save_model(root / "target", family="lfm2", eos_token_id=None, **sizes)
    save_model(root / "draft", eos_token_id=None)
    return {"hybrid": str(root / "target"), "plain": str(root / "draft")}


TREE, CHAIN = {"method": "draft-tree"}, {"method_options": {"depth": 4, "branching": 1}}


@pytest.mark.parametrize("length", [4, None])
@pytest.mark.parametrize(
    ("target", "draft", "changes"),
    [("hybrid", "plain", TREE), ("plain", "hybrid", TREE), ("plain", "hybrid", TREE | CHAIN),
     ("hybrid", None, {"method": "medusa"})],
)  # fmt: skip
def test_a_tree_that_a_model_cant_read_is_refused_before_the_run_starts(folders, target, draft, changes, length):
    request = RunRequest(folders[target], folders.get(draft), "x", num_draft_tokens=length, device="cpu", **changes)
    assert "several candidates for one position" in refusal(SettingsError, lambda: list(Session().run(request)))


def test_a_tree_without_branches_is_read_by_a_hybrid_target(folders):
    request = RunRequest(folders["hybrid"], folders["plain"], "x", device="cpu", max_new_tokens=8, **TREE, **CHAIN)
    summary = [*Session().run(request)][-1].summary
    assert (summary.error, summary.num_tokens) == (None, 8)


def test_an_encoder_is_refused_because_its_tokens_depend_on_later_ones():
    sizes = {name: _SIZES[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    with pytest.raises(ModelUnreadableError, match="later ones"):
        choose_reading(language_model(tiny_module("bert", num_hidden_layers=2, **sizes)))
    choose_reading(language_model(tiny_module("bert", num_hidden_layers=2, is_decoder=True, **sizes)))


def test_a_module_that_reads_the_whole_text_reads_it_once_a_forward_and_not_for_a_prefill(monkeypatch):
    model = hybrid("minimax")
    runner = model.runner(60)
    reads = reads_of(runner, monkeypatch)
    for begin, end in [(0, 40), (40, 41), (41, 46), (46, 47)]:
        runner.forward(torch.arange(begin, end), num_logits=1)
        runner.rewind(runner.length)
    assert reads == [(0, 40), (0, 41), (0, 46), (0, 47)]
    runner.rewind(0)
    base.prefill(runner, range(20), lambda: None)
    output = runner.forward(torch.arange(20, 40), num_logits=0)
    assert (runner.length, output.logits.shape, len(reads)) == (40, (0, 257), 4)
    rows = runner.forward(torch.arange(40, 41), num_logits=1).logits
    assert reads[4:] == [(0, 41)]
    assert torch.equal(rows, model.runner(60).forward(torch.arange(41), num_logits=1).logits)


def test_a_forward_that_fails_halfway_leaves_no_trace():
    model = hybrid("qwen3_next")
    ids = torch.tensor(PROMPTS[2])
    expected = model.runner(40).forward(ids, num_logits=5).logits
    runner = model.runner(40)
    runner.forward(ids[:20], num_logits=1)
    handle = model.model.model.layers[2].register_forward_pre_hook(failing(RuntimeError("a kernel failed")))
    try:
        with pytest.raises(RuntimeError, match="kernel"):
            runner.forward(ids[20:25], num_logits=1)
    finally:
        handle.remove()
    assert torch.allclose(runner.forward(ids[20:], num_logits=5).logits, expected, atol=1e-4)
