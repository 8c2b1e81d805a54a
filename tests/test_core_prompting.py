"""A prompt becomes ids: in the chat template where there is one, and whatever its characters."""

import pytest

from core.errors import SettingsError
from core.models.loading import load
from core.models.prompting import encode_prompt
from tests.fakes import byte_tokenizer, save_model

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model with a chat template, and one without."""
    folder = tmp_path_factory.mktemp("models")
    chat = byte_tokenizer()
    chat.chat_template = TEMPLATE
    save_model(folder / "chat", tokenizer=chat)
    save_model(folder / "target")
    return folder


def test_the_chat_template_is_applied_where_there_is_one(models):
    chat, plain = load(str(models / "chat"), "cpu"), load(str(models / "target"), "cpu")
    prompt = encode_prompt(chat, "hello")
    assert prompt.is_chat
    assert prompt.rendered == chat.tokenizer.decode(prompt.ids) == "<user>hello<assistant>"
    raw = encode_prompt(chat, "hello", False)
    assert (raw.is_chat, raw.rendered, chat.tokenizer.decode(raw.ids)) == (False, "hello", "hello")
    assert encode_prompt(plain, "hello") == raw
    with pytest.raises(SettingsError, match="chat template"):
        encode_prompt(plain, "hello", True)


def test_lone_surrogates_and_odd_characters_are_taken_as_text(models):
    plain = load(str(models / "target"), "cpu")
    for text in ("\ud83d", "a\x00b", "\N{ZERO WIDTH JOINER}", "🙂"):
        assert encode_prompt(plain, text).ids
