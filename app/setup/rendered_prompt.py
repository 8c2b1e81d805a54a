"""The prompt as the target reads it: in its chat template, with its special tokens written out."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from core.models import catalogue
from core.models.catalogue import ModelFormat


@dataclass(frozen=True, slots=True)
class RenderQuestion:
    """A prompt, and the model that reads it. `chat`: as in `RunRequest`."""

    target: str
    prompt: str
    chat: bool | None


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What a model reads, and how many tokens it is. `problem`: why there is none."""

    text: str = ""
    num_tokens: int = 0
    is_chat: bool = False
    special_tokens: tuple[str, ...] = ()
    problem: str = ""


def render_prompt(question: RenderQuestion) -> RenderedPrompt:
    """Put a prompt through a model's chat template and tokenizer; loads nothing else of the model.

    Raises:
        OutriderError: it can't be rendered.
    """
    from core.models.prompting import render

    encoded = render(question.target, question.prompt, question.chat)
    special = _special_tokens_of(question.target)
    text = encoded.rendered if encoded.is_chat else with_special_tokens(encoded.rendered, encoded.ids, special)
    return RenderedPrompt(text, len(encoded.ids), encoded.is_chat, tuple(special.values()))


def with_special_tokens(text: str, ids: Sequence[int], special: Mapping[int, str]) -> str:
    """Write out the special tokens that a tokenizer adds before or after a text."""
    before = "".join(special[token] for token in takewhile(special.__contains__, ids))
    if before and all(token in special for token in ids):
        return text if text else before
    after = "".join(reversed([special[token] for token in takewhile(special.__contains__, reversed(ids))]))
    return f"{'' if text.startswith(before) else before}{text}{'' if text.endswith(after) else after}"


def _special_tokens_of(ref: str) -> Mapping[int, str]:
    entry = catalogue.resolve(ref)
    folder = entry.path
    if entry.format is ModelFormat.GGUF:
        from core.models.gguf import converted_folder

        folder = converted_folder(entry.path)
    file = folder / "tokenizer.json"
    try:
        return _special_tokens(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # They are only coloured; a tokenizer of another form renders all the same.


@functools.lru_cache(maxsize=4)
def _special_tokens(file: Path, _modified_ns: int) -> Mapping[int, str]:
    added = json.loads(file.read_bytes()).get("added_tokens") or ()
    return {int(token["id"]): str(token["content"]) for token in added if token.get("special")}
