"""The registry of drafting methods, as data that the window and the command line can read without loading torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Parameters of a method that has none."""


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Parameters of drafting with a model."""

    int8: bool = field(
        default=True,
        metadata={
            "label": "Draft in int8",
            "help": "On the processor, the draft's products run in int8 where that is faster. "
            "The text follows the target's law exactly all the same.",
        },
    )


@dataclass(frozen=True, slots=True)
class PromptLookupOptions:
    """Parameters of prompt lookup. A field's metadata builds its form in the window and its command-line flag."""

    max_ngram: int = field(
        default=3,
        metadata={
            "label": "Longest n-gram",
            "help": "How many of the last tokens are looked up first; shorter ones are tried when they are not found.",
            "min": 1,
            "max": 10,
            "step": 1,
        },
    )
    min_ngram: int = field(
        default=1,
        metadata={
            "label": "Shortest n-gram",
            "help": "The fewest tokens that must match before anything is proposed.",
            "min": 1,
            "max": 10,
            "step": 1,
        },
    )

    def __post_init__(self) -> None:
        _check_ranges(self)
        if self.min_ngram > self.max_ngram:
            raise SettingsError("The shortest n-gram must not be longer than the longest.")


def _check_ranges(options: Any) -> None:
    for item in fields(options):
        value, low, high = getattr(options, item.name), item.metadata["min"], item.metadata["max"]
        if not isinstance(value, int | float) or not low <= value <= high:
            raise SettingsError(f"{item.metadata['label']} must be from {low} to {high}, not {value!r}.")


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft.

    Attributes:
        name: what the command line and the run log call it.
        title: what the window calls it.
        summary: one sentence for a tooltip.
        needs_draft_model: whether a second model has to be chosen.
        needs_target: whether it drafts with the target itself.
        options: dataclass of the method's parameters.
        factory: "module:Class" of its `Drafter`, imported when a run needs it.
    """

    name: str
    title: str
    summary: str
    needs_draft_model: bool
    options: type
    factory: str
    needs_target: bool = False


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "draft-model",
            "Draft model",
            "A smaller model with the same tokenizer proposes the next K tokens.",
            True,
            DraftModelOptions,
            "core.drafters.draft_model:DraftModelDrafter",
        ),
        Method(
            "prompt-lookup",
            "Prompt lookup",
            "Looks up the last few tokens earlier in the text and proposes what followed them there.",
            False,
            PromptLookupOptions,
            "core.drafters.prompt_lookup:PromptLookupDrafter",
        ),
        Method(
            "self-draft",
            "Self-draft (int8)",
            "The target itself proposes the next K tokens, from an int8 copy of its weights. On the processor only.",
            False,
            NoOptions,
            "core.drafters.self_draft:SelfDraftDrafter",
            needs_target=True,
        ),
    )
}


def get_method(name: str) -> Method:
    """Raises:
    SettingsError: if there is no such method, with the names that there are.
    """
    try:
        return METHODS[name]
    except KeyError:
        raise SettingsError(f"There is no method {name!r}. Choose one of: {', '.join(METHODS)}.") from None
