"""What stands behind the prompt before a run begins: tokens kept from another run, and those a person put there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core.errors import PromptError
from core.models.prompting import check_prompt_length
from core.text import TextStream

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel
    from core.types import RunRequest

_LINE = "\n"


@dataclass(frozen=True, slots=True)
class Continuation:
    """Ids that count as already written, and their text: `kept_text` of the run before, then `forced_text`."""

    ids: tuple[int, ...] = ()
    kept_text: str = ""
    forced_text: str = ""

    def as_config(self) -> dict[str, Any]:
        """For the log's first line: nothing where nothing was continued."""
        if not self.ids:
            return {}
        return {
            "continuation_token_ids": list(self.ids),
            "continuation_text": self.kept_text,
            "forced_text": self.forced_text,
        }


def continue_prompt(target: LanguageModel, prompt_ids: Sequence[int], request: RunRequest) -> Continuation:
    """The ids behind the prompt, checked, and their text. A part of a character at the end is left to what follows.

    Raises:
        PromptError: an id that the target doesn't have, a forced token that ends the text, or no room left.
    """
    forced = request.forced or _ids_of(request.forced_text, target.tokenizer, [*prompt_ids, *request.continuation])
    ids = (*request.continuation, *forced)
    if not ids:
        return Continuation()
    if any(token >= target.vocab_size for token in ids):
        raise PromptError("A token to continue from is none of the target's. Branch from a run of the same target.")
    if target.eos_ids.intersection(ids):
        raise PromptError("That token ends the text, so nothing can follow it. Force another one.")
    check_prompt_length(len(prompt_ids) + len(ids), target)
    stream = TextStream(target.tokenizer, prompt_ids)
    kept_text = "".join([stream.push(token) for token in request.continuation])
    return Continuation(ids, kept_text, "".join([stream.push(token) for token in forced]))


def _ids_of(text: str, tokenizer: Any, before: Sequence[int]) -> tuple[int, ...]:
    """A typed text as tokens that read as it does behind what is there already."""
    if not text:
        return ()
    # Some tokenizers put a space before what they take for the start of a text, so it is tried behind a line as well.
    text = text.encode("utf-8", "replace").decode("utf-8")
    alone = _encode(tokenizer, text)
    line, behind = _encode(tokenizer, _LINE), _encode(tokenizer, _LINE + text)
    ways = [alone, behind[len(line) :]] if behind[: len(line)] == line else [alone]
    for ids in ways:
        stream = TextStream(tokenizer, before)
        if "".join([stream.push(token) for token in ids]) == text:
            return tuple(ids)
    return tuple(alone)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
