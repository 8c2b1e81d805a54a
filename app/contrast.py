"""How well two colours can be told apart."""

from __future__ import annotations

from PySide6.QtGui import QColor

MIN_CONTRAST = 4.5
"""WCAG AA for text; every pair of text and ground below keeps to it."""
MIN_BAR_CONTRAST = 3.0
"""WCAG AA for graphics: a plot's bars against the panel behind them."""


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours after WCAG 2.2, from 1 to 21."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    channels = (channel / 255 for channel in QColor(color).getRgb()[:3])  # type: ignore[index]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
