"""What transformers does not read of a GGUF file: its rotary scaling, the ends of a turn, and some of its tokens."""

import math

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from core.decode import autoregressive
from core.models import load
from core.models.catalogue import resolve
from core.models.fit import pair_problem
from core.models.folder.gguf_child import unpack
from core.models.folder.vocabulary import read_special_tokens
from core.models.loading import check_pair
from core.models.prompting import encode_prompt
from tests.fakes import EOS, GREEDY, byte_tokenizer, play, save_model
from tests.fakes_gguf import CONTROL, UNUSED, USER_DEFINED, refusal, write_gguf

SCALING = "llama.rope.scaling."
FREQUENCIES = [5e5 ** (-index / 8) for index in range(0, 8, 2)]
SMOOTH = [min(1.0, max(0.0, (8192 * each / (2 * math.pi) - 1) / 3)) for each in FREQUENCIES]
LLAMA3 = {"llama.rope.freq_base": 5e5, "rope_freqs.weight": [1 / ((1 - each) / 8 + each) for each in SMOOTH]}
YARN = {SCALING + "type": "yarn", SCALING + "factor": 4.0, SCALING + "original_context_length": 32}
FACTORS = {"rope_factors_long.weight": [2.0, 3.0, 4.0, 5.0], "rope_factors_short.weight": [1.0, 1.0, 1.5, 2.0]}


@pytest.mark.parametrize(
    ("extra", "rope"),
    [
        (
            LLAMA3,
            {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 8192},
        ),
        ({SCALING + "type": "linear", SCALING + "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"llama.rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({SCALING + "type": "none", SCALING + "factor": 4.0}, {"rope_type": "default"}),
        ({SCALING + "type": "none", SCALING + "yarn_ext_factor": 0.0}, {"rope_type": "default"}),
        ({SCALING + "type": "yarn"}, {"rope_type": "default"}),
        (YARN | {SCALING + "factor": 1.0}, {"rope_type": "default"}),
        (YARN, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
        (
            YARN | {SCALING + "yarn_attn_factor": 1.5, SCALING + "yarn_beta_fast": 8.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.5,
             "beta_fast": 8.0},
        ),
        (
            FACTORS | {SCALING + "attn_factor": 1.25, SCALING + "original_context_length": 32},
            {"rope_type": "longrope", "long_factor": [2.0, 3.0, 4.0, 5.0], "short_factor": [1.0, 1.0, 1.5, 2.0],
             "attention_factor": 1.25, "original_max_position_embeddings": 32},
        ),
    ],
)  # fmt: skip
def test_a_converted_model_rotates_as_its_file_says(tmp_path, extra, rope):
    unpack(write_gguf(tmp_path / "m.gguf", extra=extra), tmp_path / "model", lambda done, total: None)
    rope = {"rope_theta": 1e4, **rope}
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "model", rope_parameters=rope)
    ids = torch.arange(100)[None]
    with torch.inference_mode():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        assert torch.allclose(loaded(ids).logits, expected(ids).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({SCALING + "type": "ntk"}, "'ntk'"),
        (LLAMA3 | {"llama.rope.freq_base": 1e4}, "frequencies"),
        ({"rope_freqs.weight": [1.0, 1.0, 1.0, 1e30]}, "frequencies"),
        (YARN | {SCALING + "yarn_log_multiplier": 0.1}, "as the file says"),
        (YARN | {SCALING + "attn_factor": 2.0}, "as the file says"),
        (YARN | {SCALING + "factor": 1.0, SCALING + "yarn_attn_factor": 2.0}, "as the file says"),
        (YARN | {SCALING + "yarn_ext_factor": 0.0}, "as the file says"),
        (YARN | {"rope_freqs.weight": [1.0, 2.0, 3.0, 8.0]}, "as the file says"),
        (YARN | FACTORS, "as the file says"),
        (YARN | {SCALING + "factor": math.nan}, "frequencies"),
        (YARN | {SCALING + "factor": math.inf}, "frequencies"),
    ],
)
def test_a_rotary_scaling_that_would_be_another_one_is_refused(tmp_path, extra, words):
    with pytest.raises(NotImplementedError, match=words):
        unpack(write_gguf(tmp_path / "m.gguf", extra=extra), tmp_path / "model", lambda done, total: None)


@pytest.mark.parametrize("name", FACTORS)
def test_a_file_that_has_only_one_of_two_lists_of_factors_says_so(tmp_path, name):
    with pytest.raises(ValueError, match="one of its tensors rope_factors_long and rope_factors_short is missing"):
        unpack(write_gguf(tmp_path / "m.gguf", extra={name: FACTORS[name]}), tmp_path / "model", lambda *_: None)


def test_a_file_that_no_download_will_mend_is_refused_without_that_advice(tmp_path):
    said = refusal(write_gguf(tmp_path / "m.gguf", extra={SCALING + "type": "ntk"}))
    assert "'ntk', is not known). Choose another file." in said
    assert "ownload" not in said


def test_a_converted_model_ends_at_every_end_that_its_file_names(tmp_path):
    def converted(name, **extra):
        path = write_gguf(tmp_path / f"{name}.gguf", extra=extra)
        unpack(path, tmp_path / name, lambda done, total: None)
        return path, load(str(tmp_path / name), "cpu", "float32")

    _, plain = converted("plain")
    assert plain.eos_ids == {257}
    prompt = [72, 101]
    text = play(autoregressive(plain, prompt, sampling=GREEDY, max_new_tokens=8)).ids
    assert 257 not in text
    # The first token that it chooses becomes the end of a turn.
    turn, message = text[0], next(token for token in range(257) if token != text[0])
    path, chat = converted("chat", **{"tokenizer.ggml.eot_token_id": turn, "tokenizer.ggml.eom_token_id": message})
    assert chat.eos_ids == {257, turn, message}
    assert len(read_special_tokens(resolve(str(path))).ends) == 3
    run = play(autoregressive(chat, prompt, sampling=GREEDY, max_new_tokens=8))
    assert (run.ids, run.summary.finish_reason) == ([turn], "eos")


@pytest.mark.parametrize(("role", "end"), [("eot", 4294967295), ("eot", "x"), ("eom", 300), ("eom", 258)])
def test_an_end_that_is_no_token_is_left_out(tmp_path, role, end):
    path = write_gguf(tmp_path / "m.gguf", extra={f"tokenizer.ggml.{role}_token_id": end})
    unpack(path, tmp_path / "model", lambda done, total: None)
    assert load(str(tmp_path / "model"), "cpu", "float32").eos_ids == {257}


# --- Tokens -----------------------------------------------------------------------------------------------------


def converted(path, **options):
    """The model that a file becomes."""
    unpack(write_gguf(path, **options), path.with_suffix(""), lambda done, total: None)
    return load(str(path.with_suffix("")), "cpu", "float32")


def test_control_tokens_of_any_spelling_are_read_whole_and_have_their_own_ids(tmp_path):
    last = [("<｜end▁of▁sentence｜>", CONTROL), ("<｜User｜>", CONTROL), ("<｜begin▁of▁sentence｜>", CONTROL)]
    last += [("<｜Assistant｜>", CONTROL), ("<｜hole｜>", USER_DEFINED)]
    template = "{{ bos_token }}<｜User｜>{{ messages[0].content }}<｜Assistant｜>"
    extra = {"tokenizer.ggml.bos_token_id": 259, "tokenizer.ggml.add_bos_token": True}
    model = converted(tmp_path / "m.gguf", last=last, template=template, extra=extra)
    assert (model.vocab_size, len(model.tokenizer), model.eos_ids) == (262, 262, {257})
    chat = encode_prompt(model, "hi", chat=True)
    assert (chat.ids[:2], chat.ids[-1], len(chat.ids)) == ([259, 258], 260, 5)
    assert play(autoregressive(model, chat.ids, sampling=GREEDY, max_new_tokens=2)).ids
    assert encode_prompt(model, "<｜hole｜>", chat=False).ids == [259, 261]
    assert model.tokenizer.decode(chat.ids) == chat.rendered
    assert model.tokenizer.decode([258, 261], skip_special_tokens=True) == "<｜hole｜>"


def test_an_added_token_of_spaces_stands_beside_an_ordinary_one(tmp_path):
    last = [(EOS, CONTROL), ("ĠĠ", 1), ("  ", USER_DEFINED)]
    model = converted(tmp_path / "m.gguf", last=last, merges=("a b", "Ġ Ġ"))
    assert len(model.tokenizer) == 260
    assert encode_prompt(model, "a  b", chat=False).ids[-2:] == [259, 65]


def test_models_whose_tables_are_padded_differently_work_together(tmp_path):
    def padded(name, until, kind):
        last = [(EOS, CONTROL), *((f"[PAD{index}]", kind) for index in range(258, until))]
        return converted(tmp_path / name, last=last)

    folder = save_model(tmp_path / "folder", tokenizer=byte_tokenizer([("a", "b")]))
    target = padded("large.gguf", 272, UNUSED)
    drafts = (padded("small.gguf", 264, UNUSED), padded("old.gguf", 266, USER_DEFINED), load(str(folder), "cpu"))
    for draft in drafts:
        check_pair(draft, target)
        assert draft.vocab_size == target.vocab_size == 258
    for path in (folder, tmp_path / "small.gguf", tmp_path / "old.gguf"):
        assert pair_problem(str(path), str(tmp_path / "large.gguf")) is None, "as is said before they are loaded"


@pytest.mark.parametrize("pre", ["llama-bpe", "gpt-2"])
def test_nothing_is_added_beyond_the_tokens_of_a_file(tmp_path, pre):
    model = converted(tmp_path / "m.gguf", extra={"tokenizer.ggml.pre": pre})
    other = save_model(tmp_path / "other", tokenizer=byte_tokenizer([("a", "b")]))
    check_pair(load(str(other), "cpu", "float32"), model)
    assert max(encode_prompt(model, "<|endoftext|>", chat=False).ids) < 258


@pytest.mark.parametrize(
    ("pre", "flag", "ids"),
    [
        ("llama-bpe", {}, [258, 259]),
        ("tekken", {}, [258, 259]),
        ("minicpm5", {}, [259]),
        ("glm4", {}, [66, 67]),
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, [259]),
        ("qwen2", {}, [66, 67]),
        ("qwen2", {"tokenizer.ggml.add_bos_token": True}, [258, 66, 67]),
    ],
)
def test_texts_begin_and_words_that_are_tokens_are_kept_as_in_llama_cpp(tmp_path, pre, flag, ids):
    last = [(EOS, CONTROL), ("<|begin|>", CONTROL), ("cd", 1)]  # No merge makes "cd".
    extra = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.bos_token_id": 258, **flag}
    assert encode_prompt(converted(tmp_path / "m.gguf", last=last, extra=extra), "cd", chat=False).ids == ids


@pytest.mark.parametrize(
    ("family", "num_layers", "scalar"), [("gemma2", 2, 16), ("gemma2", 46, 8), ("gemma3", 2, 16), ("gemma3", 62, 8)]
)
def test_gemma_scales_its_attention_by_its_heads_or_as_its_27b_by_its_width(
    tmp_path, monkeypatch, family, num_layers, scalar
):
    path, scalars = write_gguf(tmp_path / "m.gguf", family=family, num_layers=num_layers), []

    def build(*_, config, **__):
        scalars.append(config.query_pre_attn_scalar)
        raise InterruptedError  # 62 layers would take seconds.

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", build)
    with pytest.raises(InterruptedError):
        unpack(path, tmp_path / "model", lambda done, total: None)
    assert scalars == [scalar]


_NO_SPACE = {"tokenizer.ggml.add_space_prefix": False}


@pytest.mark.parametrize("family", ["llama", "phi3"])
@pytest.mark.parametrize(
    ("extra", "text", "token"), [({}, "ab", "▁ab"), (_NO_SPACE, "ab", "ab"), (_NO_SPACE, " ab", "▁ab")]
)
def test_a_space_is_put_before_a_text_only_as_the_file_says(tmp_path, family, extra, text, token):
    kind = gguf.TokenType
    pieces = [("<unk>", kind.UNKNOWN, 0.0), ("<s>", kind.CONTROL, 0.0), ("</s>", kind.CONTROL, 0.0)]
    pieces += [(f"<0x{byte:02X}>", kind.BYTE, 0.0) for byte in range(256)]
    pieces += [(text, kind.NORMAL, float(-score)) for score, text in enumerate(["▁ab", "ab", "▁a", "▁", "a", "b"], 1)]
    extra = {**extra, "tokenizer.ggml.padding_token_id": 0}  # Phi-3's default is far beyond these.
    tokenizer = converted(tmp_path / "m.gguf", family=family, pieces=pieces, extra=extra).tokenizer
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert (tokenizer.convert_ids_to_tokens(ids), tokenizer.decode(ids)) == ([token], text)
