"""Lets the target write the training texts: prompts and answers, in batches, with its hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.distill.texts import Part, Texts
from core.errors import ModelUnreadableError
from core.models.prompting import render_chat
from core.training.model import BatchDecoder, arithmetic, sample

_PLACE = "outrider marks the place"
OWN_WORDS = 32
"""Tokens that a base model writes at temperature 1 before its answer: at 0, all its texts would be the same."""

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
"""Typical first words of a question to a model."""


@dataclass(frozen=True, slots=True)
class Script:
    """The fixed parts of a conversation.

    Attributes:
        opening: ids before the user's words; for a base model the id that begins a text.
        bridge: ids between the user's words and the answer; empty for a base model, which has no turns.
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
    """The fixed parts in the tokenizer's chat template; without a template, those of a base model.

    Raises:
        ModelUnreadableError: the template leaves the user's words out, or the model has no id that begins a text.
        PromptError: the template fails, such as one that demands a system prompt, or exceeds its limits.
    """
    if not getattr(tokenizer, "chat_template", None):
        begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else min(eos_ids, default=None)
        if begin is None:
            raise ModelUnreadableError("The target has no token that begins a text. Choose another target.")
        return Script((int(begin),), (), eos_ids)
    rendered = render_chat(tokenizer, "the target", _PLACE, advice="Choose another target.")
    before, mark, after = rendered.partition(_PLACE)
    if not mark:
        raise ModelUnreadableError("The target's chat template leaves out what the user says. Choose another target.")
    opening, bridge = (tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (before, after))
    if not opening:
        raise ModelUnreadableError("The target's chat template begins with the user's words. Choose another target.")
    first_words = tuple(tuple(tokenizer(words, add_special_tokens=False)["input_ids"]) for words in FIRST_WORDS)
    return Script(opening, bridge, eos_ids, first_words, _sentence_ends(tokenizer))


def _sentence_ends(tokenizer: Any) -> frozenset[int]:
    """Ids whose text ends with a mark that ends a sentence."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return frozenset(token for token, text in enumerate(texts) if text.endswith((".", "?", "!")))


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """How many texts, and how long.

    Attributes:
        longest_prompt: tokens after which a user's turn is cut.
        temperatures: of the answers, cycled by row; prompts are always written at 1.
        begun_share: share of rows whose user turn starts with given words and ends with its first sentence, because
            a model left alone writes longer and odder questions than people do.
    """

    rows: int = 192
    length: int = 400
    longest_prompt: int = 120
    temperatures: tuple[float, ...] = (1.0, 1.0, 0.0)
    begun_share: float = 0.5


@torch.no_grad()
def write_texts(
    target: Any,
    script: Script,
    settings: PlaySettings,
    generator: torch.Generator,
    dtype: torch.dtype | None = None,
    *,
    vocab_size: int | None = None,
) -> Part:
    """Let the target write `settings.rows` texts of at most `settings.length` tokens, and keep its states.

    The first `vocab_size` rows of its head stand for tokens; all if None.
    """
    rows, length, device = settings.rows, settings.length, target.device
    decoder = BatchDecoder(target, rows, length, dtype or arithmetic(device))
    ids = torch.zeros(rows, length, dtype=torch.long)
    ids[:, : len(script.opening)] = torch.tensor(script.opening)
    answer_temperature = torch.tensor([settings.temperatures[i % len(settings.temperatures)] for i in range(rows)])
    course = _Course(script, settings, generator)
    states = np.zeros((rows, length, target.config.hidden_size), dtype=np.float16)
    log_norms = np.zeros((rows, length), dtype=np.float32)
    written = ids[:, : len(script.opening)]
    for position in range(len(script.opening), length):
        state, logits = decoder(written.to(device))
        logits = logits[:, :vocab_size]
        states[:, position - 1] = state.half().cpu().numpy()
        log_norms[:, position - 1] = logits.float().logsumexp(-1).cpu().numpy()
        is_answer = course.is_answering & (course.answer_start <= position)
        temperature = torch.where(is_answer, answer_temperature, torch.ones(rows))
        ids[:, position] = course.follow(position, sample(logits, temperature.to(device), generator).cpu())
        if bool(course.is_done.all()):
            break
        written = ids[:, position : position + 1]
    texts = Texts(
        ids.numpy().astype(np.int32),
        course.answer_start.numpy().astype(np.int32),
        course.end.numpy().astype(np.int32),
        answer_temperature.numpy(),
    )
    return Part(texts, states, log_norms)


class _Course:
    """The state of each row: in its prompt, on the bridge, in its answer, or done."""

    def __init__(self, script: Script, settings: PlaySettings, generator: torch.Generator) -> None:
        rows = settings.rows
        self._bridge = torch.tensor(script.bridge)
        self._ends = torch.tensor(sorted(script.end_ids) or [-1])
        self._last_prompt = len(script.opening) + settings.longest_prompt
        self._on_bridge = torch.zeros(rows, dtype=torch.long)  # bridge tokens written so far
        first = settings.length if script.bridge else min(len(script.opening) + OWN_WORDS, settings.length)
        self.answer_start = torch.full((rows,), first)
        self.end = torch.full((rows,), settings.length)
        self.is_answering = torch.full((rows,), not script.bridge)
        self.is_done = torch.zeros(rows, dtype=torch.bool)
        self._sentence_ends = torch.tensor(sorted(script.sentence_ends))
        self._is_turn_over = torch.zeros(rows, dtype=torch.bool)
        self._first_words, self._is_begun = _first_words(script, settings, generator)

    def follow(self, position: int, drawn: Tensor) -> Tensor:
        """The tokens (rows,) at a position: those drawn, unless the script fixes them."""
        tokens = torch.where(self.is_done, self._ends[0].clamp_min(0), drawn)
        given = self._first_words[:, position] if position < self._first_words.shape[1] else torch.tensor(-1)
        tokens = torch.where(given >= 0, given, tokens)
        is_end = torch.isin(tokens, self._ends)
        ended = self.is_answering & ~self.is_done & is_end
        self.end[ended] = position + 1
        self.is_done |= ended
        return self._cross(position, tokens, is_end) if len(self._bridge) else tokens

    def _cross(self, position: int, tokens: Tensor, is_end: Tensor) -> Tensor:
        in_prompt = ~self.is_answering & (self._on_bridge == 0)
        # A turn ends where the model ends it, at any end of text, or at the longest prompt.
        is_over = self._is_turn_over | (tokens == self._bridge[0]) | is_end | (position >= self._last_prompt)
        starts = in_prompt & is_over
        crossing = starts | (~self.is_answering & (self._on_bridge > 0))
        tokens = torch.where(crossing, self._bridge[self._on_bridge.clamp_max(len(self._bridge) - 1)], tokens)
        self._is_turn_over |= self._is_begun & in_prompt & torch.isin(tokens, self._sentence_ends)
        self._on_bridge += crossing
        arrived = crossing & (self._on_bridge == len(self._bridge))
        self.answer_start[arrived] = position + 1
        self.is_answering |= arrived
        return tokens


def _first_words(script: Script, settings: PlaySettings, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids (rows, n) fixed at the first n positions, -1 where free, and which rows (rows,) are begun."""
    start, rows = len(script.opening), settings.rows
    width = start + max(map(len, script.first_words), default=0)
    given, is_begun = torch.full((rows, width), -1), torch.zeros(rows, dtype=torch.bool)
    if not script.first_words:
        return given, is_begun
    is_begun = torch.rand(rows, generator=generator) < settings.begun_share
    chosen = torch.randint(len(script.first_words), (rows,), generator=generator)
    for row in is_begun.nonzero().flatten().tolist():
        words = script.first_words[int(chosen[row])]
        given[row, start : start + len(words)] = torch.tensor(words)
    return given, is_begun
