"""Text as it comes, and figures as people read them: no torn characters, no powers of ten as programs write them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from core.text import TextStream, display_texts, percent_text, significant_text, spaced_percent
from tests.fakes import EOS, byte_tokenizer

TOKENIZER = byte_tokenizer([("h", "e"), ("l", "l"), ("Ġ", "w"), ("Ã", "©")], specials=(EOS, "<|user|>"))
SAMPLES = [
    "hello world",
    "naïve café, déjà vu",
    "日本語のテキスト",
    "🙂🙃👩‍👩‍👧‍👦 flags 🇩🇪",
    "mixed 🙂 текст\n\tand\r\n日本",
    "\N{REPLACEMENT CHARACTER} stands here as itself",
    "a" * 40,
]


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]


def byte_fallback_tokenizer():
    """Of Llama 2's kind: one torn character makes the whole ones beside it torn, too."""
    vocab = {
        name: number for number, name in enumerate(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc,"])
    }
    tokenizer = Tokenizer(BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def stream_of(ids, prompt=(), tokenizer=TOKENIZER) -> tuple[TextStream, list[str]]:
    stream = TextStream(tokenizer, prompt)
    return stream, [*(stream.push(token) for token in ids), stream.flush()]


@given(st.sampled_from(SAMPLES) | st.text(max_size=30), st.sampled_from(["", "prompt é ", "日本", "🙂"]))
@settings(max_examples=150)
def test_pieces_of_any_text_join_to_the_text(text, prompt):
    stream, pieces = stream_of(ids_of(text), ids_of(prompt))
    assert "".join(pieces) == stream.text == TOKENIZER.decode(ids_of(text))


@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=80))
@settings(max_examples=300)
def test_pieces_of_any_ids_join_to_what_the_tokenizer_makes_of_them(ids):
    stream, pieces = stream_of(ids)
    assert "".join(pieces) == stream.text == TOKENIZER.decode(ids, skip_special_tokens=True)


@given(st.text("abc, \n日é🙂👩\u200d", max_size=20), st.text("aé日🙂", max_size=14))
@settings(max_examples=150)
def test_whole_characters_are_shown_by_a_tokenizer_that_writes_others_in_bytes(text, prompt):
    tokenizer = byte_fallback_tokenizer()
    ids, before = (tokenizer(given_text)["input_ids"] for given_text in (text, prompt))
    assert "".join(stream_of(ids, before, tokenizer)[1]) == text


def test_a_character_torn_by_the_end_of_the_prompt_is_completed():
    ids = ids_of("a🙂b")
    for cut in range(1, len(ids)):
        stream, pieces = stream_of(ids[cut:], ids[:cut])
        assert "".join(pieces) == stream.text
        assert TOKENIZER.decode(ids[:cut]).rstrip("\N{REPLACEMENT CHARACTER}") + stream.text == "a🙂b"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_character_that_never_got_its_rest_shows_when_the_text_ends(length):
    ids = ids_of("ok🙂")[: 2 + length]
    stream, pieces = stream_of(ids)
    assert pieces[:-1] == ["o", "k"] + [""] * length
    assert stream.text == TOKENIZER.decode(ids) == "ok\N{REPLACEMENT CHARACTER}"
    assert stream.flush() == ""


def test_special_tokens_have_no_text_but_a_name_and_hide_nothing_that_follows():
    special = TOKENIZER.convert_tokens_to_ids("<|user|>")
    stream, pieces = stream_of([*ids_of("a"), special, *ids_of("b"), TOKENIZER.eos_token_id])
    assert pieces == ["a", "", "b", "", ""]
    assert stream.text == "ab"
    assert display_texts(TOKENIZER, [special, *ids_of("a")]) == ("<|user|>", "a")
    assert stream_of([*ids_of("x"), *[special] * 20, *ids_of(" wé")])[0].text == "x wé"
    assert stream_of(ids_of(" wé"), [special] * 20)[0].text == " wé"


def test_a_leading_space_survives_a_tokenizer_that_strips_it():
    words = ["▁hello", "▁world", "s", "▁", "<0xE2>", "<0x82>", "<0xAC>", "<s>"]
    backend = Tokenizer(BPE(vocab={word: index for index, word in enumerate(words)}, merges=[], byte_fallback=True))
    backend.normalizer = normalizers.Prepend("▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    ids = [0, 1, 2, 1, 3, 4, 5, 6, 1] * 4
    assert stream_of(ids, [7], tokenizer)[0].text == tokenizer.decode(ids)
    assert stream_of(ids, [7, 0], tokenizer)[0].text == " " + tokenizer.decode(ids)
    assert stream_of([4, 5], [7, 0], tokenizer)[0].text == "\N{REPLACEMENT CHARACTER}" * 2


def test_stop_texts_are_found_where_they_begin_and_only_once_complete():
    stream = TextStream(TOKENIZER, [])
    found = []
    for token in ids_of("one\n\ntwo"):
        new = stream.push(token)
        found.append(stream.find_stop(("\n\n", "x"), len(new)))
    assert found == [None, None, None, None, 3, None, None, None]
    stream.cut(3)
    assert stream.text == "one"


@pytest.mark.parametrize(
    ("shown", "text"),
    [(significant_text(0.123456, 3), "0.123"), (significant_text(0.00012345, 3), "0.000123"),
     (significant_text(1.2345e-5, 3), "1.23\u00a0×\u00a010⁻⁵"), (significant_text(1e-12, 3), "1\u00a0×\u00a010⁻¹²"),
     (significant_text(0.0, 3), "0"), (significant_text(-2.5e-7, 3), "-2.5\u00a0×\u00a010⁻⁷"),
     (percent_text(0.795, 1), "79.5\u00a0%"), (percent_text(1.0, 0), "100\u00a0%"),
     (percent_text(0.999), ">99\u00a0%"), (percent_text(0.9996, 1), ">99.9\u00a0%"), (percent_text(0.004), "<1\u00a0%"),
     (percent_text(0.0), "0\u00a0%"), (percent_text(0.996, 1), "99.6\u00a0%"),
     (percent_text(-0.1, 0), "−10\u00a0%"), (spaced_percent("50%"), "50\u00a0%"), (spaced_percent("1.50×"), "1.50×")],
)  # fmt: skip
def test_numbers_and_shares_read_as_a_person_writes_them_and_do_not_break(shown, text):
    assert shown == text
