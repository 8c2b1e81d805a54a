"""The ids of a run and their text, which grow token by token until an end is met."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import PromptError, SettingsError
from core.models.language_model import LanguageModel
from core.models.prompting import check_prompt_length
from core.text import TextStream
from core.types import FinishReason


class RunText:
    """A prompt and what is written behind it.

    Attributes:
        ids: all of it, the prompt included.
        limit: how many ids there may be.
    """

    def __init__(
        self, target: LanguageModel, prompt_ids: Sequence[int], max_new_tokens: int, stop: Sequence[str]
    ) -> None:
        """Begin behind a prompt.

        Raises:
            PromptError: no ids, ids that the target doesn't have, or too many for its context.
            SettingsError: fewer than one new token.
        """
        check_prompt_length(len(prompt_ids), target)
        if not all(0 <= token < target.vocab_size for token in prompt_ids):
            raise PromptError(f"The prompt holds an id outside 0 to {target.vocab_size - 1}.")
        if max_new_tokens < 1:
            raise SettingsError(f"The number of new tokens must be 1 or more, not {max_new_tokens!r}.")
        self.ids = list(prompt_ids)
        self.limit = min(len(self.ids) + max_new_tokens, target.context_length)
        self._eos_ids = target.eos_ids
        self._stop = tuple(stop)
        self._stream = TextStream(target.tokenizer, self.ids)

    @property
    def text(self) -> str:
        """What was written, without the prompt."""
        return self._stream.text

    @property
    def room(self) -> int:
        """How many ids may still come."""
        return self.limit - len(self.ids)

    def write(self, tokens: Sequence[int]) -> tuple[list[str], FinishReason | None]:
        """Add tokens up to an end, if one is among them: the texts of those that were added, and the end."""
        texts: list[str] = []
        for token in tokens:
            texts.append(self._stream.push(token))
            self.ids.append(token)
            if (ended := self._end_at(token, texts)) is not None:
                return texts, ended
        return texts, None

    def _end_at(self, token: int, texts: list[str]) -> FinishReason | None:
        """Whether the text ends with the token just added; the last of `texts` is its own, and may be cut."""
        at = self._stream.find_stop(self._stop, len(texts[-1])) if self._stop else None
        if at is not None:
            surplus = len(self._stream.text) - at
            self._stream.cut(at)
            # What began in earlier tokens was emitted with them; the summary's text is the one that counts.
            texts[-1] = texts[-1][: max(0, len(texts[-1]) - surplus)]
            return FinishReason.STOP
        is_eos = token in self._eos_ids
        if is_eos or self.room <= 0:
            texts[-1] += self._stream.flush()
            return FinishReason.EOS if is_eos else FinishReason.LENGTH
        return None
