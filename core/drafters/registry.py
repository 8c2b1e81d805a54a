"""Builds the drafter that a request names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from core.drafters.base import Drafter
from core.drafters.methods import get_method
from core.errors import SettingsError

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


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
        name: of a method in `core.drafters.methods.METHODS`.
        draft: the draft model, for methods that need one.
        target: the target, for methods that draft with it.
        options: values for the method's options dataclass.
        capacity: positions that a draft model's cache gets.
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
            f"{method.title} does not know one of these options: {', '.join(options or {})}. It knows: {known}."
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
