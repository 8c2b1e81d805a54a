"""From a person's prompt to the ids that the target continues."""

from __future__ import annotations

from typing import NamedTuple

from core.errors import PromptError, SettingsError, first_line
from core.models.loading import LanguageModel


class EncodedPrompt(NamedTuple):
    """ids, the text they were made from, and whether a chat template was applied."""

    ids: list[int]
    rendered: str
    is_chat: bool


def encode_prompt(target: LanguageModel, prompt: str, chat: bool | None = None) -> EncodedPrompt:
    """Apply the chat template where wanted, and tokenize.

    Args:
        target: whose tokenizer and context count.
        prompt: as typed.
        chat: True, False, or None for "if there is a template".

    Raises:
        SettingsError: chat is wanted and the tokenizer has no template.
        PromptError: nothing to continue, or no room left in the context to continue it.
    """
    # Lone surrogates, which a terminal or a clipboard can bring, are not text to a tokenizer.
    text = prompt.encode("utf-8", "replace").decode("utf-8")
    tokenizer = target.tokenizer
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_template:
        raise SettingsError(f"{target.ref} has no chat template. Run it raw, or choose an instruct model.")
    is_chat = has_template if chat is None else chat
    if is_chat:
        messages = [{"role": "user", "content": text}]
        try:
            rendered = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # A template is a program, and may do anything but work.
            raise PromptError(
                f"The chat template of {target.ref} failed ({first_line(error)}). Run the prompt raw instead."
            ) from error
        ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    else:
        rendered = text
        ids = tokenizer(text)["input_ids"]
    check_prompt_length(len(ids), target)
    return EncodedPrompt(list(ids), rendered, is_chat)


def check_prompt_length(num_ids: int, target: LanguageModel) -> None:
    """Raises:
    PromptError: nothing to continue, or no room left in the context to continue it.
    """
    if not num_ids:
        raise PromptError("The prompt is empty. Write a few words for the model to continue.")
    if num_ids >= target.context_length:
        raise PromptError(
            f"The prompt is {num_ids:,} tokens long, but {target.ref} reads {target.context_length:,} with its "
            "answer. Shorten the prompt."
        )
