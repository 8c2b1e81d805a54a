"""How a model's own chat template lets it write both sides of a conversation.

An instruct model that is given just the opening of a user's turn writes one; given the opening of its own turn after
that, it answers (the observation of Magpie, Xu et al. 2024, 2406.08464).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.errors import ModelUnreadableError

_PLACE = "outrider marks the place"

FIRST_WORDS = tuple(
    """\
What is|What are the|What does|What would happen if|What's a good way to|What should I
How do I|How does|How can I|How many|How long|How to|How would you
Why is|Why do|Why does|When did|When should I|Where is|Where can I|Who was|Which
Explain|Explain how|Explain to a child|Describe|Describe a|Define|Compare|Summarize
Write a|Write a short|Write a poem about|Write a Python function that|Write an email to
Give me|Give me three|Give an example of|List|List five|Name three|Suggest|Recommend
Tell me about|Tell me a story about|Tell me how|Can you|Can you explain|Could you help me
Translate|Rewrite|Fix|Correct the|Is it|Is there|Are there|Does|Do I need|Should I
I want to|I need|I'm trying to|I have a|My|Help me|Please|Hello|Hi,|Create a|Make a
The|In|If|A|Solve|Calculate|Find the|Generate|Plan a|Teach me|Show me how to""".replace("\n", "|").split("|")
)
"""How people begin what they ask a model."""


@dataclass(frozen=True, slots=True)
class Script:
    """The fixed parts of a conversation.

    Attributes:
        opening: ids before the user's words; for a base model the id that begins a text.
        bridge: ids from the end of the user's words to the first of the answer; empty for a base model, which has no
            turns and just writes.
        end_ids: ids that end an answer.
        first_words: ids of words that a user may begin with.
        sentence_ends: ids of words that end a sentence.
    """

    opening: tuple[int, ...]
    bridge: tuple[int, ...]
    end_ids: frozenset[int]
    first_words: tuple[tuple[int, ...], ...] = ()
    sentence_ends: frozenset[int] = frozenset()


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
    first_words = tuple(tuple(tokenizer(words, add_special_tokens=False)["input_ids"]) for words in FIRST_WORDS)
    return Script(opening, bridge, eos_ids, first_words, _sentence_ends(tokenizer))


def _sentence_ends(tokenizer: Any) -> frozenset[int]:
    """Ids whose text ends with a mark that ends a sentence."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return frozenset(token for token, text in enumerate(texts) if text.endswith((".", "?", "!")))
