"""Figures as the terminal's tables write them."""

from __future__ import annotations

from typing import Any

from core.bench.statistics import Spread
from core.figures import spaced_percent

NONE = "–"


def figure_text(value: Any, form: str, unit: str = "") -> str:
    """A figure in a format's form, such as ".2f"; a dash for None."""
    return NONE if value is None else f"{spaced_percent(format(value, form))}{unit}"


def spread_text(spread: Spread | None, form: str, unit: str = "") -> str:
    """A median, its quartiles in brackets; a dash for None."""
    if spread is None:
        return NONE
    low, high = (figure_text(value, form) for value in spread.quartiles)
    return f"{figure_text(spread.median, form, unit)} ({low}–{high})"
