"""The pair of a bench: loaded, or cut out of the target itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from core.bench.truncated import truncated_draft
from core.bench.types import BenchSettings, Pair, Prompt
from core.errors import PairMismatchError
from core.models.compatibility import pair_problem
from core.models.loading import check_pair, load
from core.models.prompting import encode_prompt

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


def load_pair(settings: BenchSettings, on_stage: Callable[[str], None] = lambda text: None) -> Pair:
    """Load the models that the settings name.

    Raises:
        OutriderError: one can't be loaded, or they don't go together.
    """
    if settings.draft is not None and (problem := pair_problem(settings.draft, settings.target)) is not None:
        raise PairMismatchError(problem)
    on_stage(f"Loading {settings.target}…")
    target = load(settings.target, settings.device, settings.dtype)
    draft: LanguageModel | None = None
    if settings.draft_layers is not None:
        draft = truncated_draft(target, settings.draft_layers)
    elif settings.draft is not None:
        on_stage(f"Loading {settings.draft}…")
        draft = load(settings.draft, settings.device, settings.dtype, target=target)
        check_pair(draft, target)
    return Pair(replace(target, eos_ids=frozenset()), draft)


def encode_prompts(target: LanguageModel, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with their ids, in the target's chat template where it has one.

    Raises:
        PromptError: one is empty, or too long.
    """
    return [replace(prompt, ids=tuple(encode_prompt(target, prompt.text).ids)) for prompt in prompts]
