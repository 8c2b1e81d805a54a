"""Prompts to measure on: the suites that come with Outrider, and the user's own files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import PromptError
from core.files import parse_json, read_bounded
from core.models.catalogue import RESOURCES

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

FOLDER = RESOURCES / "prompts"
PRESETS = FOLDER / "presets.jsonl"
SUITES = ("code", "prose", "maths", "translation", "summarising", "chat")
"""The suites that come with Outrider, each a file with that name in `FOLDER`."""

_CODE = ("Methods of a class", "Unit tests", "Function like the one above")
_CHAT = ("Question", "Summary", "Function like the one above")
_MOST_BYTES = 256_000_000
_JSON_LINES = {".jsonl", ".ndjson", ".json"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A named text; its ids for the target, where they are known, and the suite or file that it is grouped by."""

    name: str
    text: str
    ids: tuple[int, ...] = ()
    suite: str = ""


def default_prompts(*, is_chat: bool) -> list[Prompt]:
    """Three of the presets: two that a model writes freely, and one that it can copy from."""
    presets = {prompt.name: prompt for prompt in read_prompts(PRESETS)}
    return [presets[name] for name in (_CHAT if is_chat else _CODE)]


def default_first(target: LanguageModel) -> list[Prompt]:
    """All presets, those of `default_prompts` for this target first."""
    suited = default_prompts(is_chat=is_chat_model(target))
    return [*suited, *(prompt for prompt in read_prompts(PRESETS) if prompt not in suited)]


def is_chat_model(target: LanguageModel) -> bool:
    """Whether a target has a chat template."""
    return bool(getattr(target.tokenizer, "chat_template", None))


def find_prompts(names: Iterable[str]) -> list[Prompt]:
    """The prompts of several suites and files, in their order; a file named like a suite needs its folder.

    A file that is named twice is read once; see `joined` for suites of the same name.

    Raises:
        PromptError: one of them is neither, can't be read, or holds no prompt.
    """
    found: dict[Path, list[Prompt]] = {}
    for name in dict.fromkeys(names):
        if name not in SUITES and not Path(name).exists() and not Path(name).suffix:
            raise PromptError(f"There is no prompt suite or file {name!r}; the suites are {', '.join(SUITES)}.")
        path = FOLDER / f"{name}.jsonl" if name in SUITES else Path(name)
        if path.resolve() not in found:
            found[path.resolve()] = read_prompts(path)
    return joined(found.values())


def joined(sources: Iterable[Iterable[Prompt]]) -> list[Prompt]:
    """The prompts of several sources in their order, none of which share a suite.

    A suite with the name of an earlier source's gets the first number that is free, such as "prompts (2)".
    """
    found: list[Prompt] = []
    for source in map(list, sources):
        earlier, own = {prompt.suite for prompt in found}, dict.fromkeys(prompt.suite for prompt in source)
        names: dict[str, str] = {}
        for suite in own:
            numbered = (f"{suite} ({number})" for number in itertools.count(2))
            used = {*earlier, *own, *names.values()}
            names[suite] = next(name for name in numbered if name not in used) if suite in earlier else suite
        found += [replace(prompt, suite=names[prompt.suite]) for prompt in source]
    return found


def encoded(
    prompts: Iterable[Prompt], target: LanguageModel, chat: bool | None = None, system: str = ""
) -> list[Prompt]:
    """The prompts with their ids, in the target's chat template unless `chat` says otherwise.

    Raises:
        PromptError: one is empty, or too long.
        SettingsError: there is a chat template or a system prompt to apply, and the target has no template.
    """
    from core.models.prompting import encode_prompt  # Imported late, so that parsing the command line is fast.

    return [replace(prompt, ids=tuple(encode_prompt(target, prompt.text, chat, system).ids)) for prompt in prompts]


def first_of_each(prompts: Iterable[Prompt], count: int) -> list[Prompt]:
    """No more than `count` prompts of each suite, the first ones."""
    taken: dict[str, int] = {}
    kept = []
    for prompt in prompts:
        taken[prompt.suite] = taken.get(prompt.suite, 0) + 1
        if taken[prompt.suite] <= count:
            kept.append(prompt)
    return kept


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file: JSON Lines with a `text` or `prompt` and perhaps a `name` each, or a line of text each.

    Of Spec-Bench's question.jsonl a line's first turn is the prompt, and its category the suite.

    Raises:
        PromptError: it can't be read, or holds none.
    """
    try:
        # Lines end at \n only: JSON may hold the other characters that str.splitlines takes for an end.
        lines = read_bounded(path, _MOST_BYTES).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise PromptError(f"The prompts in {str(path)!r} are not UTF-8 text; save them as UTF-8.") from None
    except (OSError, ValueError) as error:
        reason = "it is a folder" if path.is_dir() else getattr(error, "strerror", None) or error
        raise PromptError(f"The prompts in {str(path)!r} can't be read ({reason}); check the path.") from None
    lines = [line.removesuffix("\r") for line in lines]
    is_json = path.suffix.lower() in _JSON_LINES
    prompts = [
        _from_json(line, number, path) if is_json else Prompt(f"line {number}", line, suite=path.stem)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not prompts:
        raise PromptError(f"There is no prompt in {str(path)!r}; write one per line.")
    return prompts


def _from_json(line: str, number: int, path: Path) -> Prompt:
    try:
        record: Any = parse_json(line.encode())
    except ValueError:
        record = None
    text = _text(record) if isinstance(record, dict) else None
    if not isinstance(text, str) or not text:
        raise PromptError(
            f'Line {number} of {str(path)!r} is not a JSON object with a "text" or a "prompt"; write one per line.'
        )
    suite, number_of_question = record.get("category"), record.get("question_id")
    is_question = "turns" in record and isinstance(suite, str)
    fallback = f"line {number}" if number_of_question is None else f"question {number_of_question}"
    return Prompt(str(record.get("name") or fallback), text, suite=str(suite) if is_question else path.stem)


def _text(record: dict[str, Any]) -> Any:
    turns = record.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    return record.get("text") or record.get("prompt") or first
