"""A prompt as a model reads it, for the window: rendered by the engine's own code, the special tokens made visible."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from app.model_questions import RenderedPrompt, RenderQuestion
from core.models import large_json
from core.models.catalogue import ModelFormat, resolve


def render_prompt(question: RenderQuestion) -> RenderedPrompt:
    """Put a prompt through a model's chat template and tokenizer; nothing else of the model is loaded.

    Raises:
        OutriderError: it can't be rendered, with a sentence that says why.
    """
    from core.models.prompting import render

    encoded = render(question.target, question.prompt, question.chat)
    special = _special_tokens_of(question.target)
    text = encoded.rendered if encoded.is_chat else with_unwritten(encoded.rendered, encoded.ids, special)
    return RenderedPrompt(question, text, len(encoded.ids), encoded.is_chat, tuple(special.values()))


def with_unwritten(text: str, ids: Sequence[int], special: Mapping[int, str]) -> str:
    """Write out the special tokens that a tokenizer sets before or after a text, such as one for its beginning."""
    before = "".join(special[token] for token in takewhile(special.__contains__, ids))
    if len(before) and all(token in special for token in ids):
        return text if text else before
    after = "".join(reversed([special[token] for token in takewhile(special.__contains__, reversed(ids))]))
    return f"{'' if text.startswith(before) else before}{text}{'' if text.endswith(after) else after}"


def _special_tokens_of(ref: str) -> Mapping[int, str]:
    entry = resolve(ref)
    folder = entry.path
    if entry.format is ModelFormat.GGUF:
        from core.models.gguf import converted_folder

        folder = converted_folder(entry.path)
    file = folder / "tokenizer.json"
    try:
        return _special_tokens(file, file.stat().st_mtime_ns)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}  # They are only set apart in colour; a tokenizer of another form renders all the same.


@functools.lru_cache(maxsize=4)
def _special_tokens(file: Path, _modified_ns: int) -> Mapping[int, str]:
    added = large_json.read(file).get("added_tokens") or ()
    return {int(token["id"]): str(token["content"]) for token in added if token.get("special")}
