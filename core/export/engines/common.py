"""What the engines' files share: what an engine is, text that can't break out of its place, precisions."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from core.errors import OutriderError
from core.export.choice import Choice, ModelSource, SourceKind
from core.models.catalogue import resolve
from core.models.folder.details import read_config
from core.runlog.reading import mapping_of
from core.settings import SamplingParams

DRAWN_AND_COMPARED = (
    "At temperatures above 0 the target draws its own token at each position, and accepts a draft token if it equals "
    "that draw. The output still follows the target's distribution, but fewer draft tokens are accepted than with "
    "Outrider's rejection sampling: expect less acceptance than measured."
)
PROMPT = "Write your prompt here."
OUTTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
"""The precisions, and llama.cpp's names for them."""


class UnsupportedError(Exception):
    """The engine can't serve the choice; the message says why."""


Recipe = tuple[str, list[str]]
"""The command or program, and notes on what differs from Outrider."""


@dataclass(frozen=True, slots=True)
class Project:
    """An engine.

    Attributes:
        name, title: on the command line, and in the window.
        suffix: of its configuration files.
        sources: the project's files that document the flags.
        write: writes the recipe for a choice, given the sources of target and draft.
    """

    name: str
    title: str
    suffix: str
    sources: str
    write: Callable[[Choice, ModelSource, ModelSource | None], Recipe]


def plain(text: str) -> str:
    """Remove characters that end a line or a string in some shell."""
    return "".join(character if character.isprintable() else " " for character in text)


def shell_command(*words: Iterable[str]) -> str:
    """A POSIX shell command, one group of words per line."""
    return " \\\n    ".join(shlex.join(plain(word) for word in group) for group in words if group) + "\n"


def local_command(*words: Iterable[str]) -> str:
    """A command for this machine's shell: on Windows one line, for PowerShell; without $, ` and ", for cmd, too."""
    if sys.platform != "win32":
        return shell_command(*words)
    return " ".join(_quoted(plain(word)) for group in words for word in group) + "\n"


def _quoted(word: str) -> str:
    if re.search(r"\$[\w({:?^$]|[`\"“”„]", word):  # In double quotes, PowerShell would read these.
        return "'" + re.sub(r"(['‘’‚‛])", r"\1\1", word) + "'"
    # A space forces the quotes, which PowerShell also needs around ; & ( and others.
    is_safe = re.fullmatch(r"[\w.:/\\=-]+", word)
    return word if is_safe else subprocess.list2cmdline([f" {word}"]).replace(" ", "", 1)


def as_json(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def refuse_gguf(reason: str, *models: ModelSource | None) -> None:
    """Raises:
    UnsupportedError: a model is a GGUF file.
    """
    if any(model is not None and model.kind is SourceKind.GGUF for model in models):
        raise UnsupportedError(f"{reason} Use the models that the GGUF files were made from instead.")


def config_of(source: ModelSource) -> dict[str, Any]:
    """A model's config.json; empty if it isn't on this machine."""
    try:
        return read_config(resolve(source.name).path)
    except OutriderError:
        return {}


def tables_differ(choice: Choice) -> bool:
    """Whether target and draft are known to have tables of different sizes, if only by their padding."""
    configs = [config_of(source) for source in choice.sources if source is not None]
    sizes = [(mapping_of(config.get("text_config")) or config).get("vocab_size") for config in configs]
    return all(isinstance(size, int) for size in sizes) and sizes[0] != sizes[-1]


def dtype_flag(choice: Choice, target: ModelSource, notes: list[str]) -> list[list[str]]:
    """The precision as a flag for vLLM and SGLang, whose drafts follow their target; none if it isn't known."""
    if choice.dtype not in OUTTYPES:
        return []
    if "quantization_config" in config_of(target):
        notes.append(
            f"Outrider computed in {choice.dtype}; the server chooses a precision that suits the quantised target."
        )
        return []
    notes.append(precision_note(choice, "--dtype auto"))
    return [["--dtype", choice.dtype]]


def precision_note(choice: Choice, auto: str) -> str:
    """What to know about a known precision; `auto` is how the engine is told to choose one."""
    return (
        f"{choice.dtype} is Outrider's precision here. {auto} takes that of the weights, which may need less memory, "
        "but then greedy texts may differ, too."
    )


def sampling_flags(sampling: SamplingParams) -> list[str]:
    """The temperature and filters as flags for llama.cpp and MLX."""
    filters = ["--top-k", str(sampling.top_k), "--top-p", f"{sampling.top_p:g}", "--min-p", f"{sampling.min_p:g}"]
    return ["--temp", f"{sampling.temperature:g}", *([] if sampling.is_greedy else filters)]
