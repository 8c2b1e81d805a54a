"""Colours, line styles and fonts: one set of design tokens for the palette, the style sheet and the plots.

Blue marks the draft's tokens, green the target's own, orange where the two disagreed; transcript, plots and
legends share this code. The three hues follow Okabe and Ito's colour-blind-safe set, adjusted in lightness until
they are readable as text. Each kind also has its own line style, so that colour is never the only cue.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Qt, Slot
from PySide6.QtGui import QColor, QFont, QFontDatabase, QFontInfo, QGuiApplication, QPalette, QTextCharFormat
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QWidget

from core.types import TokenKind

RESOURCES = Path(__file__).resolve().parents[1] / "resources"

UnderlineStyle = QTextCharFormat.UnderlineStyle


class ThemeMode(StrEnum):
    """The chosen theme; SYSTEM follows the desktop."""

    SYSTEM = "system"
    LIGHT = "light"
    DARK = "dark"


class ColorBy(StrEnum):
    """What the transcript's colours say of a token."""

    KIND = "kind"
    PROBABILITY = "probability"
    ENTROPY = "entropy"
    SURPRISE = "surprise"


@dataclass(frozen=True, slots=True)
class KindStyle:
    """How a token of one kind looks."""

    label: str
    color: str
    underline: UnderlineStyle
    tint: str | None


def _both(light: str, dark: str) -> Any:
    return field(default=light, metadata={"dark": dark})


@dataclass(frozen=True, slots=True)
class Theme:
    """The design tokens, as #rrggbb; the defaults are the light theme's."""

    name: ThemeMode = ThemeMode.LIGHT
    window: str = _both("#f5f6f8", "#121316")
    surface: str = _both("#ffffff", "#1a1c20")
    field: str = _both("#ffffff", "#212429")
    field_border: str = _both("#b1b7c2", "#4c525e")
    hover: str = _both("#eceef2", "#282b32")
    border: str = _both("#e2e5ea", "#2a2d34")
    text: str = _both("#1a1c21", "#e7e9ed")
    muted: str = _both("#565c69", "#a6acb8")
    faint: str = _both("#646a77", "#9097a4")
    accent: str = _both("#3d4fd0", "#93a1ff")
    accent_hover: str = _both("#3344bd", "#a6b1ff")
    accent_pressed: str = _both("#2a39a4", "#7f8ef2")
    on_accent: str = _both("#ffffff", "#0f1220")
    selection: str = _both("#dde2fc", "#323a70")
    danger: str = _both("#a3210f", "#ff9d92")
    danger_surface: str = _both("#fdf0ee", "#2e1c1b")
    danger_border: str = _both("#f1c4bd", "#5c312d")
    accepted: str = _both("#07629e", "#62b8f2")
    correction: str = _both("#a84300", "#f3a35c")
    correction_tint: str = _both("#fdf0e4", "#35281c")
    bonus: str = _both("#006b52", "#4bcfa5")
    bonus_tint: str = _both("#e5f5ef", "#1a3029")
    heat: str = _both("#f2a144", "#8f4d06")
    track: str = _both("#e9ecf1", "#282b31")
    draft_bar: str = _both("#3d8ccb", "#4f9fdb")
    draft_tint: str = _both("#8fbfe6", "#2f5573")
    target_bar: str = _both("#2a9c78", "#37ab86")
    sample_bar: str = _both("#d9742a", "#e0904a")
    run_1: str = _both("#0b6fb3", "#5cb3ef")
    run_2: str = _both("#c9570c", "#ef8d4a")
    run_3: str = _both("#00805f", "#3cc79c")
    run_4: str = _both("#a6408a", "#e08cc3")
    run_5: str = _both("#8a6a00", "#d9c04a")
    run_6: str = _both("#4a4f5a", "#c3c8d1")

    def kind(self, kind: TokenKind | None) -> KindStyle:
        """Colour and line style of a token kind; None: of a plain step's token, which looks like any text."""
        if kind is None:
            return KindStyle("plain", self.text, UnderlineStyle.NoUnderline, None)
        if kind is TokenKind.ACCEPTED:
            return KindStyle("accepted", self.accepted, UnderlineStyle.SingleUnderline, None)
        if kind is TokenKind.CORRECTION:
            return KindStyle("resampled", self.correction, UnderlineStyle.WaveUnderline, self.correction_tint)
        return KindStyle("bonus", self.bonus, UnderlineStyle.DotLine, self.bonus_tint)


LIGHT = Theme()
DARK = Theme(ThemeMode.DARK, **{item.name: item.metadata["dark"] for item in fields(Theme) if item.metadata})


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours according to WCAG 2.2, from 1 to 21."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    found = QColor(color)
    channels = (found.redF(), found.greenF(), found.blueF())
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def current_theme() -> Theme:
    """The theme that is applied to the application."""
    application = QApplication.instance()
    return DARK if application is not None and application.property("theme") == ThemeMode.DARK else LIGHT


def text_scale() -> float:
    """The factor by which the application's text is enlarged."""
    application = QApplication.instance()
    return float((application.property("textScale") if application is not None else None) or 1.0)


def scaled(pixels: int) -> int:
    """A length that scales with the text."""
    return round(pixels * text_scale())


def _scale_text(rules: str) -> str:
    """Scale font sizes, widths and heights, among them those of arrows and ticks, and corners that make a circle.

    Borders, other corners, gaps, sliders and scroll bars keep their size.
    """
    pattern = r"QSlider::[^}]*|QScrollBar:[^}]*|(font-size|width|height|border-radius(?=: 2)): (\d{2,})px"
    return re.sub(pattern, lambda match: f"{match[1]}: {scaled(int(match[2]))}px" if match[1] else match[0], rules)


def mixed(start: str, end: str, share: float) -> QColor:
    """The colour at a share of the way from one to another."""
    a, b = QColor(start), QColor(end)
    parts = zip((a.redF(), a.greenF(), a.blueF()), (b.redF(), b.greenF(), b.blueF()), strict=True)
    return QColor.fromRgbF(*(first + (last - first) * share for first, last in parts))


def style_sheet(theme: Theme) -> str:
    """The style sheet, with the theme's colours filled in and text at the current scale."""
    text = _scale_text((RESOURCES / "outrider.qss").read_text("utf-8"))
    tokens = {item.name: str(getattr(theme, item.name)) for item in fields(theme)}
    tokens["icons"] = (RESOURCES / "icons").as_posix()
    return re.sub(r"@(\w+)", lambda match: tokens.get(match[1], match[0]), text)


def palette(theme: Theme) -> QPalette:
    """The palette, for what the style sheet doesn't cover: tooltips, selections, placeholders, disabled text."""
    result = QPalette(QColor(theme.surface), QColor(theme.window))
    role = QPalette.ColorRole
    for target, color in {
        role.Window: theme.window,
        role.WindowText: theme.text,
        role.Base: theme.field,
        role.AlternateBase: theme.hover,
        role.Text: theme.text,
        role.Button: theme.surface,
        role.ButtonText: theme.text,
        role.BrightText: theme.danger,
        role.Highlight: theme.selection,
        role.HighlightedText: theme.text,
        role.Link: theme.accent,
        role.LinkVisited: theme.accent,
        role.PlaceholderText: theme.faint,
        role.ToolTipBase: theme.surface,
        role.ToolTipText: theme.text,
        role.Accent: theme.accent,
        role.Midlight: theme.border,
    }.items():
        result.setColor(target, QColor(color))
    for target in (role.WindowText, role.Text, role.ButtonText):
        result.setColor(QPalette.ColorGroup.Disabled, target, QColor(theme.faint))
    return result


def ui_font(pixels: int = 13, *, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    """The interface font, with digits of equal width, so that changing numbers don't move."""
    return QFont(_ui_font(scaled(pixels), weight))


@lru_cache
def _ui_font(pixels: int, weight: QFont.Weight) -> QFont:
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)
    if sys.platform.startswith("linux"):
        font.setFamilies(["Inter", "Inter Variable", "Cantarell", "Ubuntu", "Noto Sans", font.family(), "DejaVu Sans"])
    font.setPixelSize(pixels)
    font.setWeight(weight)
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


def mono_font(pixels: int = 13) -> QFont:
    """The font of the prompt and the transcript."""
    return QFont(_mono_font(scaled(pixels)))


@lru_cache
def _mono_font(pixels: int) -> QFont:
    system = QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)
    families = ["JetBrains Mono", "SF Mono", "Menlo", "Cascadia Mono", "Consolas", system.family(), "DejaVu Sans Mono"]
    font = QFont(families)
    font.setPixelSize(pixels)
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setFixedPitch(True)
    # Ligatures would join characters of adjacent tokens.
    font.setFeature(QFont.Tag("liga"), 0)
    font.setFeature(QFont.Tag("calt"), 0)
    if not QFontInfo(font).fixedPitch():
        font.setFamilies([system.family()])
    return font


SCALES = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
DEFAULT_SCALE = 1.0
_LENGTHS = {"width": "setFixedWidth", "height": "setFixedHeight", "least_width": "setMinimumWidth",
            "least_height": "setMinimumHeight"}  # fmt: skip


def nearest_scale(scale: float) -> float:
    """One of `SCALES`."""
    return min(SCALES, key=lambda known: abs(known - scale))


def next_scale(scale: float, steps: int) -> float:
    """The scale this many steps larger or smaller, limited to the ends of `SCALES`."""
    index = SCALES.index(nearest_scale(scale)) + steps
    return SCALES[max(0, min(index, len(SCALES) - 1))]


def hold(widget: QWidget, **lengths: int) -> None:
    """Give a widget fixed or minimum lengths that scale with the text.

    Args:
        lengths: width, height: fixed; least_width, least_height: minima. Pixels at the scale of 1.
    """
    widget.setProperty("heldLengths", lengths)
    for name, pixels in lengths.items():
        getattr(widget, _LENGTHS[name])(scaled(pixels))


def hold_font(widget: QWidget, pixels: int, is_mono: bool = False, weight: QFont.Weight = QFont.Weight.Normal) -> None:
    """Give a widget its own font, which scales with the text; other widgets use the style sheet's."""
    widget.setProperty("heldFont", (pixels, is_mono, weight))
    widget.setFont(mono_font(pixels) if is_mono else ui_font(pixels, weight=weight))
    if isinstance(widget, QAbstractScrollArea):  # It draws the placeholder.
        widget.viewport().setFont(widget.font())


class Appearance(QObject):
    """The application's theme and text size: one style sheet, palette and font for all windows.

    The style sheet comes with the first `set`, when the window is shown: with a style sheet, Qt styles all that is in
    a panel each time that the panel is put into another, which is more than half of what building a window takes.
    """

    def __init__(self, mode: ThemeMode, scale: float, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.set(mode, scale, has_sheet=False)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._on_color_scheme_changed)

    def set(self, mode: ThemeMode, scale: float, *, has_sheet: bool = True) -> None:
        """Set the theme, which may follow the desktop's, and the size of all text."""
        self.mode = mode
        hints, dark = QGuiApplication.styleHints(), Qt.ColorScheme.Dark
        # The desktop draws title bars and the like in the same mode.
        if mode is ThemeMode.SYSTEM:
            hints.unsetColorScheme()
        else:
            hints.setColorScheme(dark if mode is ThemeMode.DARK else Qt.ColorScheme.Light)
        follows_dark = mode is ThemeMode.SYSTEM and hints.colorScheme() is dark
        apply_style(DARK if mode is ThemeMode.DARK or follows_dark else LIGHT, scale, has_sheet=has_sheet)

    @Slot()
    def _on_color_scheme_changed(self) -> None:
        if self.mode is ThemeMode.SYSTEM:
            self.set(self.mode, text_scale())


def apply_style(theme: Theme, scale: float = DEFAULT_SCALE, *, has_sheet: bool = True) -> None:
    """Apply a theme's style sheet, palette and font, and the text size, to the application and all its widgets.

    Widgets that hold colours or lengths of their own have a method `restyle`, which is called after each change; those
    that paint themselves ask for `current_theme` when they paint.
    """
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    before, theme_before = text_scale(), application.property("theme")
    application.setProperty("textScale", scale)
    application.setProperty("theme", theme.name.value)
    sheet = style_sheet(theme) if has_sheet else ""
    if has_sheet and application.styleSheet() == sheet and scale == before:
        return
    if scale != before:
        for widget in application.allWidgets():  # First: a label remembers the width that it needs in the new style.
            if lengths := widget.property("heldLengths"):
                hold(widget, **lengths)
    # Qt takes three times as long to replace a style sheet as to remove it and set another.
    application.setStyleSheet("")
    if application.style().objectName() != "fusion":
        application.setStyle("Fusion")
    application.setPalette(palette(theme))
    application.setFont(ui_font())
    application.setStyleSheet(sheet)
    if (scale, theme.name.value) == (before, theme_before):
        return
    widgets = application.allWidgets()
    for widget in widgets:
        if font := widget.property("heldFont"):  # Without the style sheet, it has the one from before that again.
            hold_font(widget, *font)
    for widget in widgets:
        if restyle := getattr(widget, "restyle", None):
            restyle()
