"""The page of formulas: no figure of the log or of a page is without one, and the Help shows it in both themes."""

from __future__ import annotations

import re

import pytest
from PySide6.QtGui import QTextDocument

from app.run.pages.theory import study_of, whole_report
from app.theme import DARK, LIGHT
from app.tools.help import MISSING, FormulaPage, figures_text
from core.analysis.calibration import Predictor
from core.runlog.log import BASELINE_FIELDS, STEP_FIELDS, SUMMARY_FIELDS
from tests.test_app_why import view
from tests.test_core_diagnosis import drawn

TEXT = figures_text()
NO_FIGURES = {"index", "position", "temperature", "drafted", "emitted", "emitted_kinds", "emitted_text",
              "finish_reason", "text"}  # fmt: skip
"""Fields of the log that are settings, places and texts."""


@pytest.mark.parametrize("name", [*STEP_FIELDS, *SUMMARY_FIELDS, *BASELINE_FIELDS])
def test_every_figure_of_the_log_is_there_by_its_name(name):
    assert name in NO_FIGURES or f"`{name}`" in TEXT


def test_every_figure_of_the_page_theory_and_every_predictor_is_there():
    run = view(drawn(0.8, 4, count=40))
    for row in whole_report(run, study_of(run)()).rows:
        words = re.split(r"[ ,(]", row.title)[0].lower()
        assert words in TEXT.lower(), row.title
    for predictor in Predictor:
        assert predictor.value.replace("||", r"\|\|") in TEXT


def test_every_table_row_has_a_formula_and_a_unit():
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "Formula" not in line]
    assert len(rows) > 50
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 4, row
        assert cells[0], row
        assert cells[1], row


def test_the_help_shows_it_as_a_page_of_tables(make_window, qtbot):
    window = make_window(is_shown=True)
    window.menus.formulas.trigger()
    page = window.help.page
    qtbot.waitUntil(lambda: "The probe" in page.formulas.toPlainText(), timeout=30_000)
    assert page.tabs.tabText(page.tabs.currentIndex()) == "Formulas"
    assert "Every figure and its formula" in page.formulas.toPlainText()
    assert "|---" not in page.formulas.toPlainText()
    for theme in (DARK, LIGHT):
        page.set_theme(theme)
        assert page.formulas.document().rootFrame().childFrames()
        assert page.formulas.horizontalScrollBar().maximum() == 0


def test_the_page_has_every_block_of_the_text_in_its_place(make_window, qtbot):
    window = make_window(is_shown=True)
    window.menus.formulas.trigger()
    page = window.help.page.formulas
    qtbot.waitUntil(lambda: "The probe" in page.toPlainText(), timeout=30_000)
    whole = QTextDocument()
    whole.setMarkdown(TEXT)
    qtbot.waitUntil(lambda: page.document().blockCount() == whole.blockCount())

    def blocks(document):
        return [
            (block.blockFormat().headingLevel(), block.text())
            for block in (document.findBlockByNumber(index) for index in range(document.blockCount()))
        ]

    assert blocks(page.document()) == blocks(whole)


def test_an_installation_without_the_page_says_so(qtbot, monkeypatch, tmp_path):
    monkeypatch.setattr("app.tools.help.figures_text", lambda: figures_text(tmp_path / "none.md"))
    page = FormulaPage()
    qtbot.addWidget(page)
    page.set_theme(LIGHT)
    page.show()
    qtbot.waitUntil(lambda: page.toPlainText() == MISSING)
