"""Finds models, checks whether two work together, and loads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel
    from core.models.loading import load

__all__ = ["LanguageModel", "load"]


def __getattr__(name: str) -> Any:
    # The catalogue is read by the window before torch is imported, so loading is imported on first use.
    if name in __all__:
        from core.models import loading

        return getattr(loading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
