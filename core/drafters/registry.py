"""The drafting methods: their names, options and factories. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from core.errors import SettingsError
from core.settings import validate

if TYPE_CHECKING:
    from core.drafters.base import Drafter
    from core.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class NoOptions:
    """For a method without options."""


@dataclass(frozen=True, slots=True)
class DraftModelOptions:
    """Options of drafting with a model."""

    int8: bool = field(
        default=True,
        metadata={
            "label": "Draft in int8",
            "help": "On the CPU, compute the draft in int8 if that is faster. The output still follows the target's "
            "distribution exactly.",
        },
    )


@dataclass(frozen=True, slots=True)
class PromptLookupOptions:
    """Options of prompt lookup. A field's metadata builds its form in the window and its command-line flag."""

    max_ngram: int = field(
        default=3,
        metadata={
            "label": "Longest n-gram",
            "help": "How many of the last tokens to look up first. Shorter n-grams are tried if they are not found.",
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
        validate(self)
        if self.min_ngram > self.max_ngram:
            raise SettingsError("The shortest n-gram must not be longer than the longest.")


@dataclass(frozen=True, slots=True)
class Method:
    """One way to draft.

    Attributes:
        name: what the command line and the run log call it.
        title: what the window calls it.
        summary: one sentence for a tooltip.
        needs_draft_model: whether it needs a second model.
        options: dataclass of the method's options.
        factory: "module:Class" of its `Drafter`, imported when a run needs it.
        needs_target: whether it drafts with the target itself.
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
            "The target itself proposes the next K tokens, from an int8 copy of its weights. CPU only.",
            False,
            NoOptions,
            "core.drafters.self_draft:SelfDraftDrafter",
            needs_target=True,
        ),
    )
}


def get_method(name: str) -> Method:
    """The method called `name`.

    Raises:
        SettingsError: there is none; the message lists the methods.
    """
    try:
        return METHODS[name]
    except KeyError:
        raise SettingsError(f"There is no method {name!r}. Choose one of: {', '.join(METHODS)}.") from None


def build_drafter(
    name: str,
    *,
    draft: LanguageModel | None,
    target: LanguageModel | None = None,
    options: Mapping[str, Any] | None = None,
    capacity: int | None = None,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Drafter:
    """Make a drafter of the method called `name`.

    Args:
        name: a key of `METHODS`.
        draft: the draft model, for methods that need one.
        target: the target, for methods that draft with it.
        options: values for the method's options dataclass.
        capacity: positions of a draft model's cache.
        check_cancelled: raises to abandon the drafter's work between two forwards.

    Raises:
        SettingsError: an unknown method or option, a value out of range, or a missing draft model.
    """
    method = get_method(name)
    try:
        parsed = method.options(**(options or {}))
    except TypeError:
        known = ", ".join(item.name for item in fields(method.options)) or "none"
        raise SettingsError(
            f"{method.title} doesn't have all of these options: {', '.join(options or {})}. It has: {known}."
        ) from None
    module, _, attribute = method.factory.partition(":")
    factory = getattr(import_module(module), attribute)
    if method.needs_target:
        if target is None:
            raise SettingsError(f"{method.title} needs a target. Choose one.")
        return factory(target, parsed, capacity=capacity, check_cancelled=check_cancelled)
    if not method.needs_draft_model:
        return factory(parsed)
    if draft is None:
        raise SettingsError(
            f"{method.title} needs a draft model. Choose one, or choose prompt lookup, which needs none."
        )
    return factory(draft, parsed, capacity=capacity, check_cancelled=check_cancelled)
