"""Colours that can be read, in both themes and by everyone; a theme that can change at any time."""

from __future__ import annotations

import itertools
import re
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication

from app.run.text.tokens import KINDS, block
from app.theme import DARK, LIGHT, ThemeMode, contrast, style_sheet
from core.types import TokenKind
from tests.fakes_app import MIN_BAR_CONTRAST, MIN_CONTRAST, cursor_at

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


@THEMES
def test_text_can_be_read_bars_can_be_seen_and_no_two_kinds_share_a_line_style_or_a_colour(theme):
    grounds = (theme.window, theme.surface, theme.field)
    pairs = [(ink, ground) for ink in (theme.text, theme.muted, theme.faint) for ground in grounds]
    pairs += [(getattr(theme, kind), theme.surface) for kind in ("accepted", "correction", "bonus")]
    pairs += [(theme.correction, theme.correction_tint), (theme.bonus, theme.bonus_tint)]
    pairs += [(getattr(theme, kind), theme.selection) for kind in ("accepted", "correction", "bonus", "text")]
    pairs += [(theme.on_accent, ground) for ground in (theme.accent, theme.accent_hover, theme.accent_pressed)]
    pairs += [(theme.danger, theme.danger_surface), (theme.danger, theme.window), (theme.text, theme.hover)]
    pairs += [(theme.danger, theme.danger_border), (theme.muted, theme.hover), (theme.faint, theme.hover)]
    bad = {pair: round(contrast(*pair), 2) for pair in pairs if contrast(*pair) < MIN_CONTRAST}
    assert not bad
    for color in (theme.draft_bar, theme.target_bar, theme.sample_bar, theme.accent):
        assert contrast(color, theme.surface) >= MIN_BAR_CONTRAST
    # The bar of what was drafted stands behind that of what was accepted, so that it is between it and the card.
    assert min(contrast(theme.draft_tint, ground) for ground in (theme.surface, theme.draft_bar)) > 1.8
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    names = [item.name for item in fields(theme) if item.name != "name"]
    assert [name for name in names if not QColor(getattr(theme, name)).isValid()] == []
    styles = [theme.kind(kind) for kind in TokenKind]
    assert len({style.underline for style in styles}) == len(styles)
    assert len({style.color for style in styles}) == len(styles)


SIMULATIONS = {
    # Machado, Oliveira and Fernandes (2009), severity 1.0.
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


@THEMES
@pytest.mark.parametrize("matrix", SIMULATIONS.values(), ids=SIMULATIONS.keys())
def test_kinds_and_bars_stay_apart_for_colour_blind_eyes(theme, matrix):
    groups = [(theme.accepted, theme.correction, theme.bonus), (theme.draft_bar, theme.target_bar, theme.sample_bar)]
    for first, second in itertools.chain.from_iterable(itertools.combinations(group, 2) for group in groups):
        seen = [simulate(color, matrix) for color in (first, second)]
        assert sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5 > 0.12, (first, second)


def simulate(color, matrix):
    channels = [value / 255 for value in QColor(color).getRgb()[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    mixed = [min(1, max(0, sum(w * c for w, c in zip(row, linear, strict=True)))) for row in matrix]
    return [c * 12.92 if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055 for c in mixed]


@THEMES
def test_the_style_sheet_has_no_token_left_and_every_icon_is_there(theme):
    text = re.sub(r"/\*.*?\*/", "", style_sheet(theme), flags=re.DOTALL)
    assert "@" not in text
    icons = re.findall(r"url\(([^)]+)\)", text)
    assert icons
    assert all(Path(icon).is_file() for icon in icons)


def test_the_theme_can_change_in_the_middle_of_a_run(make_window, qtbot, session):
    session.gate = threading.Semaphore(3)
    window = make_window(is_shown=True)
    window.prompt.run_button.click()
    qtbot.waitUntil(lambda: window.run_view.counts.sums.num_steps == 3)
    text = window.transcript.view.toPlainText()
    for mode, theme in ((ThemeMode.DARK, DARK), (ThemeMode.LIGHT, LIGHT)):
        window.menus.theme_actions[mode].trigger()
        assert theme.window in QApplication.instance().styleSheet()
        assert window.transcript.view.toPlainText() == text
        token = block(window.run_view.steps[0], 0)[-1]
        first, _ = window.transcript.view.place_range(token.place)
        shown = cursor_at(window.transcript.view, first + 1).charFormat().foreground()
        assert shown.color().name() == theme.kind(KINDS[token.fate]).color
    session.gate.release(1000)
    with qtbot.waitSignal(window.live.run_shown):
        pass
    assert window.run_view.summary is not None
