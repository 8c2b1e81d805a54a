"""How a model's own chat template lets it write both sides of a conversation.

An instruct model that is given just the opening of a user's turn writes one; given the opening of its own turn after
that, it answers (the observation of Magpie, Xu et al. 2024, 2406.08464).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.errors import ModelUnreadableError

_PLACE = "outrider marks the place"


@dataclass(frozen=True, slots=True)
class Script:
    """The fixed parts of a conversation.

    Attributes:
        opening: ids before the user's words; for a base model the id that begins a text.
        bridge: ids from the end of the user's words to the first of the answer; empty for a base model, which has no
            turns and just writes.
        end_ids: ids that end an answer.
    """

    opening: tuple[int, ...]
    bridge: tuple[int, ...]
    end_ids: frozenset[int]


def script_of(tokenizer: Any, eos_ids: frozenset[int]) -> Script:
    """Read the fixed parts off the tokenizer's chat template; without one, of a base model.

    Raises:
        ModelUnreadableError: the template leaves the user's words out, or the model has no id to begin a text with.
    """
    if not getattr(tokenizer, "chat_template", None):
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else min(eos_ids, default=None)
        if begin is None:
            raise ModelUnreadableError("The target has no token that begins a text. Choose another target.")
        return Script((int(begin),), (), eos_ids)
    turn = [{"role": "user", "content": _PLACE}]
    rendered = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    before, mark, after = rendered.partition(_PLACE)
    if not mark:
        raise ModelUnreadableError("The target's chat template leaves out what the user says. Choose another target.")
    opening, bridge = (tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (before, after))
    return Script(opening, bridge, eos_ids)
