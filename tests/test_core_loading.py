"""Where models go, which forward they use, what happens without room, and how a prompt becomes ids."""

import json
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

import core.models.loading as loading
import core.models.placement as placement
from core.controls import Cancelled
from core.decode import autoregressive
from core.errors import (
    DeviceError,
    ModelUnreadableError,
    OutOfMemoryError,
    PairMismatchError,
    PromptError,
    SettingsError,
)
from core.models.catalogue import ModelEntry, ModelFormat, resolve
from core.models.devices import resolve_device
from core.models.folder.checks import empty_model
from core.models.folder.details import read_details
from core.models.loading import load
from core.models.placement import (
    bytes_per_position,
    choose_place,
    does_not_fit,
    free_by_device,
    need_of,
    run_does_not_fit,
    spread,
)
from core.models.prompting import encode_prompt, render_prompt
from core.runners import forward_choice, llama
from core.runners.forward_choice import choose_reading, find_fused_weights
from core.text import bytes_text
from tests.fakes import (
    GREEDY,
    PROMPT,
    byte_tokenizer,
    edit_json,
    failing,
    greedy_reference,
    is_sentence,
    language_model,
    play,
    refusal,
    save_model,
    tiny_model,
    tiny_module,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

GB = 10**9


@pytest.mark.parametrize(
    ("need", "device", "available", "place"),
    [
        (5, "cpu", {"cpu": 5}, "cpu"),
        (6, "cpu", {"cpu": 5}, None),
        (5, "mps", {"mps": 9}, "mps"),
        (5, "cuda", {0: 5, "cpu": 99}, "cuda"),
        (5, "cuda", {0: 4, 1: 6, "cpu": 99}, "cuda:1"),
        (5, "cuda:1", {0: 9, 1: 9, "cpu": 99}, "cuda:1"),
        (5, "cuda:1", {0: 9, 1: 4, "cpu": 99}, "cuda:0"),
        (5, "cuda", {0: 4, 1: 4, "cpu": 99}, None),
    ],
)
def test_one_device_is_chosen_where_one_has_room(need, device, available, place):
    assert choose_place(need, torch.device(device), available) == (torch.device(place) if place else None)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model of 3.2 GB in bfloat16 that exists as a configuration only."""
    path = tmp_path_factory.mktemp("large")
    save_model(path)
    edit_json(path / "config.json", hidden_size=4096, intermediate_size=11_008, num_hidden_layers=8,
              num_attention_heads=32, num_key_value_heads=32, head_dim=128)  # fmt: skip
    return empty_model(path, torch.bfloat16)


@pytest.mark.parametrize(
    ("available", "places"),
    [
        ({0: 3 * GB, 1: 3 * GB, "cpu": 9 * GB}, {0, 1}),
        ({0: 3 * GB, "cpu": 9 * GB}, {0, "cpu"}),
        ({0: 2 * GB, 1: 2 * GB, "cpu": 9 * GB}, {0, 1, "cpu"}),
        ({0: 2 * GB, 1: 2 * GB, "cpu": GB // 10}, None),
        ({0: GB // 10, "cpu": 99 * GB}, None),
    ],
)
def test_a_model_too_large_for_one_gpu_is_spread_in_its_order_and_never_to_disk(large, available, places):
    device_map = spread(large, torch.bfloat16, available)
    if places is None:
        assert device_map is None
        return
    assert set(device_map.values()) == places
    order = [0, 1, "cpu"]
    ranks = [order.index(device_map[f"model.layers.{layer}"]) for layer in range(8)]
    assert ranks == sorted(ranks)
    # The room left on each GPU is for caches.
    taken = sum(parameter.nbytes for parameter in large.model.layers[0].parameters())
    assert all(ranks.count(gpu) * taken < available[gpu] - 500e6 for gpu in (0, 1) if gpu in available)


def test_a_spread_model_runs_through_its_modules_with_the_same_logits(saved, tmp_path, monkeypatch):
    expected = greedy_reference(load(str(saved), "cpu"), PROMPT, 12)
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu",
              "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip
    monkeypatch.setattr(loading, "_device_map", lambda *_: places)
    model = load(str(saved), "cpu")
    assert model.is_spread
    assert model.fused_weights is None
    assert model.device == CPU
    assert play(autoregressive(model, PROMPT, sampling=GREEDY, max_new_tokens=12)).ids == expected


def test_every_place_of_this_machine_has_a_size():
    assert free_by_device(CPU).keys() == {"cpu"}
    assert free_by_device(CPU)["cpu"] > 0


@pytest.fixture
def advice(monkeypatch):
    """Says what would fit on a machine with so much memory and these other models."""

    def say(device, free, *, processor=0, others=(), on_cuda=torch.bfloat16) -> str:
        shorter = {"cuda": on_cuda, "mps": torch.float16}
        monkeypatch.setattr(placement, "resolve_dtype", lambda _, where: shorter[where.type])
        monkeypatch.setattr(placement, "free_memory", lambda _: processor)
        monkeypatch.setattr(placement, "local_models", lambda: others)
        big = ModelEntry("big", "Big", Path("big"), ModelFormat.SAFETENSORS, 0)
        details = SimpleNamespace(loaded_bytes=lambda size: 1_700_000_000 * size)
        monkeypatch.setattr(placement, "read_details", lambda each: details if each is big else read_details(each))
        error = does_not_fit(big, torch.float32, torch.device(device), free)
        assert is_sentence(str(error))
        return str(error)

    return say


def test_the_error_says_what_would_fit(saved, advice):
    message = advice("cuda:0", 4 * GB)
    assert message == "Big needs 7.1 GB in float32, but only 4.0 GB is free on cuda:0. Choose bfloat16 (3.7 GB)."
    assert "float16 (3.7 GB)" in advice("mps", 4 * GB)
    assert "Choose float16 (3.7 GB)" in advice("cuda:0", 4 * GB, on_cuda=torch.float16)
    assert advice("cuda:0", 4 * GB, processor=9 * GB).endswith("Choose bfloat16 (3.7 GB) or the CPU.")
    tiny = replace(resolve(str(saved)), title="Tiny")
    message = advice("cuda:0", 3 * GB, others=(tiny, replace(tiny, title="Drafter", serves="x")))
    assert "Choose Tiny (" in message
    assert "Drafter" not in message
    assert "bfloat16" not in message
    assert "a smaller model" in advice("cuda:0", 1)


def test_sizes_are_those_of_the_files(saved):
    entry = resolve(str(saved))
    num_parameters = sum(p.numel() for p in load(str(saved), "cpu").model.parameters())
    assert need_of(entry, torch.bfloat16) == 2 * num_parameters * 5 // 4
    assert (bytes_text(2_340_000_000), bytes_text(4_200_000)) == ("2.3 GB", "4.2 MB")


def test_a_model_without_room_is_refused_before_its_weights_are_read(saved, monkeypatch):
    monkeypatch.setattr(loading, "free_by_device", lambda _: {"cpu": 1_000})
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    refusal(OutOfMemoryError, load, str(saved), "cpu", match=r"needs .* in float32")


def test_a_model_of_an_unknown_kind_that_is_too_large_for_a_gpu_is_a_sentence(saved, tmp_path, monkeypatch):
    other = shutil.copytree(saved, tmp_path / "other")
    edit_json(other / "config.json", model_type="outlandish")
    monkeypatch.setattr(loading, "free_by_device", lambda _: {0: 1_000, "cpu": 1_000})
    given = (resolve(str(other)), other, CUDA, torch.float32)
    assert "unknown kind" in refusal(ModelUnreadableError, loading._device_map, *given)


def test_a_fused_forward_that_fails_falls_back_to_the_module(saved, monkeypatch):
    monkeypatch.setattr(llama.FusedLlamaRunner, "forward", failing(RuntimeError("a kernel is missing")))
    model = load(str(saved), "cpu")
    assert model.fused_weights is None
    assert play(autoregressive(model, PROMPT, sampling=GREEDY, max_new_tokens=3)).ids


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("MPS backend out of memory (1 GB)"),
     RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")],
    ids=["cuda", "python", "mps", "cpu"],
)  # fmt: skip
def test_a_load_that_runs_out_of_memory_frees_what_it_took(saved, monkeypatch, error):
    seen = []

    def fail(loaded) -> None:
        seen.extend(weakref.ref(thing) for thing in (loaded, loaded.model, loaded.model.lm_head.weight))
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(forward_choice, "choose_reading", fail)
        with pytest.raises(OutOfMemoryError) as caught:
            load(str(saved), "cpu")
    # pytest's own record of the raised error, and the error's traceback, are still here.
    error.__traceback__ = None
    assert is_sentence(str(caught.value))
    assert caught.value.__context__ is None
    assert [ref() for ref in seen] == [None, None, None]
    assert load(str(saved), "cpu").vocab_size == 257


def test_the_error_says_which_length_would_fit():
    model = tiny_model()
    # 2 layers of 2 heads of 8, keys and values, in float32.
    assert bytes_per_position(model) == 2 * 2 * 2 * 8 * 4
    message = run_does_not_fit([model, model], 5_000, 1_000 * 2 * bytes_per_position(model))
    assert is_sentence(message)
    assert "about 800 tokens would fit" in message
    assert "bfloat16 or a smaller model" in message
    assert "would fit" not in run_does_not_fit([model], 5_000, 10**9)


@pytest.fixture
def borrower(saved, tmp_path):
    """A drafter that has a target's name in place of tables."""
    path = shutil.copytree(saved, tmp_path / "borrower")
    edit_json(path / "config.json", shares_tables_with={"model": "someone/target"})
    return path


def test_a_drafter_that_borrows_is_not_loaded_alone(borrower):
    assert resolve(str(borrower)).serves == "someone/target"
    assert "drafts only for someone/target" in refusal(PairMismatchError, load, str(borrower), "cpu")


def test_loading_can_be_cancelled_before_the_weights_are_read(saved, monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(Cancelled):
        load(str(saved), "cpu", check_cancelled=failing(Cancelled()))


def test_the_revision_of_a_model_goes_with_it(saved, monkeypatch):
    entry = replace(resolve(str(saved)), revision="c0ffee")
    monkeypatch.setattr(loading, "resolve", lambda _: entry)
    assert load(str(saved), "cpu").revision == "c0ffee"
    assert tiny_model().revision is None


def test_a_prompt_is_rendered_as_it_will_be_encoded_without_the_weights(chatty, tmp_path, monkeypatch):
    path = shutil.copytree(chatty, tmp_path / "chat")
    model = load(str(path), "cpu")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    (path / "model.safetensors").write_bytes(b"")
    for prompt, is_chat in (("hello", None), ("hello", False), ("", True), ("\ud83d", None)):
        rendered = render_prompt(str(path), prompt, is_chat)
        if rendered.num_tokens:
            encoded = encode_prompt(model, prompt, is_chat)
            assert (rendered.num_tokens, rendered.is_chat) == (len(encoded.ids), encoded.is_chat)
    assert render_prompt(str(path), "hi").text == "<user>hi<assistant>"


def test_a_raw_prompt_is_shown_with_the_special_tokens_that_its_tokenizer_adds_and_its_own_once(saved, tmp_path):
    tokenizer = byte_tokenizer(specials=("</s>", "<s>", AddedToken("<u>", lstrip=True, rstrip=True, special=True)))
    ends = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    path = save_model(tmp_path / "adds", tokenizer=tokenizer)
    for text in ("hi", "", "<s>", "<s>hi</s>", "<u>hi", "<s><u>hi", " <u> <u> hi <u> ", ">hi<"):
        rendered = render_prompt(str(path), text)
        assert rendered.text == f"<s>{text}</s>"
        assert len(tokenizer(rendered.text, add_special_tokens=False)["input_ids"]) == rendered.num_tokens
        assert render_prompt(str(saved), text).text == text


def test_a_prompt_that_cant_be_rendered_is_a_sentence(saved, tmp_path):
    with pytest.raises(SettingsError, match="chat template"):
        render_prompt(str(saved), "hi", True)
    path = shutil.copytree(saved, tmp_path / "damaged")
    (path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelUnreadableError, match="tokenizer"):
        render_prompt(str(path), "hi")
    (tmp_path / "x.gguf").write_bytes(b"GGUF" + json.dumps({}).encode())
    assert "not been converted yet" in refusal(ModelUnreadableError, render_prompt, str(tmp_path / "x.gguf"), "hi")


def test_models_with_equal_tokenizer_files_share_one_tokenizer(saved, tmp_path):
    draft = save_model(tmp_path / "draft", seed=1, num_hidden_layers=1)
    target = load(str(saved), "cpu")
    assert load(str(draft), "cpu").tokenizer is target.tokenizer
    edit_json(draft / "tokenizer_config.json", model_max_length=7)
    assert load(str(draft), "cpu").tokenizer is not target.tokenizer


def test_a_tokenizer_that_changed_is_read_again(saved, tmp_path):
    path = shutil.copytree(saved, tmp_path / "changing")
    before = render_prompt(str(path), "ab").num_tokens
    assert before == 2
    byte_tokenizer([("a", "b")]).save_pretrained(path)
    assert render_prompt(str(path), "ab").num_tokens == 1


# --- The forward ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def model(request):
    return language_model(tiny_module("llama").to(request.param))


@pytest.mark.parametrize(("spread", "is_used"), [(0.0, True), (1.0, False)])
def test_the_fused_forward_is_used_if_its_logits_equal_the_modules(model, spread, is_used):
    expected = choose_reading(model)
    others = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)) * expected.std()
    assert (find_fused_weights(model, expected + spread * others) is not None) is is_used


def test_a_few_logits_that_rounding_moves_far_rule_it_out_in_float32_alone(model):
    expected = choose_reading(model).clone()
    expected[::3, ::50] += 2 * expected.std()
    assert (find_fused_weights(model, expected) is not None) is (model.dtype is torch.bfloat16)


# --- Encoded prompts ------------------------------------------------------------------------------------------------

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A model with a chat template."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return save_model(tmp_path_factory.mktemp("models") / "chat", tokenizer=tokenizer)


def test_the_chat_template_is_applied_where_there_is_one(chatty, saved, monkeypatch):
    chat, plain = load(str(chatty), "cpu"), load(str(saved), "cpu")
    prompt = encode_prompt(chat, "hello")
    assert prompt.is_chat
    assert prompt.rendered == chat.tokenizer.decode(prompt.ids) == "<user>hello<assistant>"
    raw = encode_prompt(chat, "hello", False)
    assert (raw.is_chat, raw.rendered, chat.tokenizer.decode(raw.ids)) == (False, "hello", "hello")
    assert encode_prompt(plain, "hello") == raw
    with pytest.raises(SettingsError, match="chat template"):
        encode_prompt(plain, "hello", True)
    # So is a system prompt; without a template it is refused.
    assert encode_prompt(chat, "hello", system="Be brief.").rendered == "<system>Be brief.<user>hello<assistant>"
    for model, template, words in ((plain, None, "has no chat template"), (chat, False, "is run raw")):
        said = refusal(SettingsError, encode_prompt, model, "hello", template, "Be brief.")
        assert f"{words}, so it takes no system prompt" in said
    failing_template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}"
    monkeypatch.setattr(chat.tokenizer, "chat_template", failing_template)
    with pytest.raises(PromptError, match=r"failed \(no\).*without a system prompt"):
        encode_prompt(chat, "hello", system="Be brief.")


@pytest.mark.parametrize("count", [1, 2])
def test_a_gpu_can_be_named_by_its_index(monkeypatch, count):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr(placement, "free_memory", lambda device: 9)
    if count == 2:
        assert resolve_device("cuda:1") == torch.device("cuda:1")
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    else:
        with pytest.raises(DeviceError, match="no cuda:1; its last GPU is cuda:0"):
            resolve_device("cuda:1")
    assert free_by_device(torch.device("cuda:1")).keys() == {1, "cpu"}, "no other GPU takes its place"
    assert free_by_device(torch.device("cuda")).keys() == {*range(count), "cpu"}
    with pytest.raises(SettingsError, match="no device 'cuda:x'"):
        resolve_device("cuda:x")


def test_lone_surrogates_and_odd_characters_are_taken_as_text(saved):
    plain = load(str(saved), "cpu")
    for text in ("\ud83d", "a\x00b", "\N{ZERO WIDTH JOINER}", "🙂"):
        assert encode_prompt(plain, text).ids


def test_threads_load_models_at_once(tmp_path):
    refs = [str(save_model(tmp_path / name, tie_word_embeddings=True)) for name in ("one", "two")] * 4
    with ThreadPoolExecutor(2) as pool:
        assert len({model.num_parameters for model in pool.map(load, refs)}) == 1
