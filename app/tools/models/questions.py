"""What the window asks about model files, and the answers: plain data that crosses threads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from core.models.catalogue import ModelEntry

if TYPE_CHECKING:
    from core.models.fit import PairVerdict


class ModelRole(StrEnum):
    """What a model is opened as."""

    TARGET = "target"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A reference that names a model. `role` None: remembered from an earlier time."""

    entry: ModelEntry
    role: ModelRole | None


@dataclass(frozen=True, slots=True)
class FoundModels:
    """The models on this computer, and the free bytes of the disk that downloads go to; None: it doesn't tell."""

    entries: tuple[ModelEntry, ...]
    folder: Path
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class PairVerdicts:
    """Which drafts can't work with a target: by reference, a sentence why, or None."""

    target: str
    problems: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class VerdictQuestion:
    """A pair, and where it is to run.

    Attributes:
        context: positions of the caches.
        with_memory: whether memory is asked for, which imports torch.
        held_bytes: of the device, that loaded models would make room with.
    """

    draft: str
    target: str
    device: str
    dtype: str
    context: int
    with_memory: bool = False
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class VerdictAnswer:
    """What is known of a pair before it is loaded; `verdict` None: nothing."""

    question: VerdictQuestion
    verdict: PairVerdict | None


@dataclass(frozen=True, slots=True)
class RenderQuestion:
    """A prompt, and the model that is to read it. `chat`: as in `RunRequest`."""

    target: str
    prompt: str
    chat: bool | None


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What a model reads: the text with its special tokens, and how many tokens it is. `problem`: why there is none."""

    question: RenderQuestion
    text: str = ""
    num_tokens: int = 0
    is_chat: bool = False
    special_tokens: tuple[str, ...] = ()
    problem: str = ""
