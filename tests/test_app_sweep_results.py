"""A sweep that was measured: its cells, their runs, earlier sweeps, and exports."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QLabel

from app.settings import sweeps_folder
from app.theme import DARK, LIGHT, ThemeMode, contrast
from app.tools.sweep.files import SweepExport
from app.tools.sweep.heatmap import shade
from app.tools.sweep.results import RUN_COLUMNS
from app.tools.sweep.sweep_view import make_scale
from app.widgets.rows import Row
from app.widgets.tables import Table
from core.experiments.bench_plan import spread
from core.experiments.prompt_suites import Prompt
from core.experiments.sweep_plan import Cell, CellResult, DrafterChoice
from core.experiments.sweep_results import ACCEPTANCE, BLOCK, FIGURES, SPEEDUP, TOKENS
from core.settings import LengthPolicy
from tests.fakes_app import MIN_CONTRAST, FakeSession, cell, texts
from tests.fakes_sweep import keep_sweep, plan_of

LOOKUP = DrafterChoice("prompt-lookup")
DRAFT = DrafterChoice("draft-model", "tiny-draft")


@pytest.fixture
def opened(window, qtbot, tmp_path):
    """The window of sweeps with an earlier sweep in it: two drafters, two temperatures."""

    def build(path=None, engine=None, **changes):
        values = {"target": "tiny-target", "drafters": (DRAFT, LOOKUP), "temperatures": (0.0, 0.5), "repeats": 1}
        path = path or keep_sweep(sweeps_folder() / "20260102-030405-T.jsonl", plan_of(**values | changes), engine)
        window.menus.sweep.trigger()
        window.sweep.open_sweep(path)
        qtbot.waitUntil(lambda: window.sweep.view.plan is not None, timeout=10_000)
        return window.sweep

    return build


def test_an_earlier_sweep_is_opened_from_the_list(window, qtbot, opened, tmp_path):
    path = keep_sweep(sweeps_folder() / "20260102-030405-pair.jsonl")
    window.menus.sweep.trigger()
    window.sweep.list_earlier()
    first = window.sweep.earlier.menu().actions()[0]
    assert first.text() == "2 Jan 2026, 03:04 · pair"
    first.trigger()
    qtbot.waitUntil(lambda: window.sweep.view.path == path)
    assert window.sweep.progress.text() == "All 12 runs done"
    before = window.sweep.view.verdicts
    assert [(line.word, line.pays) for line in window.sweep.verdicts.lines] == [("Too few runs", None)]
    for state, word in (
        ({"is_ahead": True}, ("K = 2", True)),
        ({}, ("Pays, best K unclear", True)),
        ({"is_partial": True}, ("Pays so far", True)),
        ({"was_busy": True}, ("Seems to pay (busy)", None)),
        ({"was_busy": True, "is_sure": None}, ("Too few runs", None)),
        ({"was_busy": True, "is_sure": False}, ("Not sure it pays", None)),
        ({"speculates": False}, ("Don't speculate", False)),
        ({"best": None}, ("No answer", None)),
        ({"best": None, "is_partial": True}, ("Not complete", None)),
    ):
        window.sweep.view.verdicts = [replace(verdict, **{"is_sure": True} | state) for verdict in before]
        assert [(line.word, line.pays) for line in window.sweep.view.verdict_lines()] == [word]


def test_above_the_verdicts_it_is_said_once_that_the_machine_was_busy(qtbot, opened):
    sweeps = opened()
    view = sweeps.view
    for result in view._results.values():
        for item in result.measurements:
            view._runs.add(replace(item, unsteadiness=0.9))
    sweeps._show()
    first, *others = sweeps.verdicts.lines
    said = "The machine was busy in 10 of 10 runs at temperature 0 and 10 of 10 runs at temperature 0.5;"
    assert first.sentence.startswith(said)
    assert [bool(line.word) for line in (first, *others)] == [False, True, True]
    assert not any("busy in" in line.sentence for line in others)
    badges = [label for label in sweeps.verdicts.findChildren(QLabel) if label.property("role") == "badge"]
    assert len(badges) == 2
    view._runs.add(replace(item, error="The draft ran out of memory.", summary=None))
    sweeps._show()
    assert sweeps.verdicts.lines[-1].sentence == "Why runs failed: The draft ran out of memory."


@pytest.mark.parametrize(("size", "scale"), [((1024, 700), 1.5), ((1280, 800), 1.5), ((1024, 700), 1.0)])
def test_the_verdicts_at_two_temperatures_are_all_in_view(qtbot, opened, apply_theme, size, scale):
    sweeps = opened()
    for result in sweeps.view._results.values():
        for item in result.measurements:
            sweeps.view._runs.add(replace(item, unsteadiness=0.9))
    sentence = (
        "At temperature {}: K = 4 with Outrider Code draft leads with 1.95× the speed of plain decoding (95 % "
        "interval 1.34 to 3.32 on this prompt); whether it is faster than K = 2 at 1.47× is not settled (97 % sure; "
        "97.5 % needed)."
    )
    apply_theme(LIGHT, scale)
    sweeps.restyle()
    sweeps.resize(*size)
    state = {"was_busy": True, "is_sure": True}  # The longest word.
    sweeps.view.verdicts = tuple(
        replace(verdict, sentence=sentence.format(verdict.temperature), **state) for verdict in sweeps.view.verdicts
    )
    sweeps._show()
    bar = sweeps.verdicts.verticalScrollBar()
    qtbot.waitUntil(lambda: sweeps.verdicts.height() > 40 and bar.maximum() == 0 and not bar.isVisible())
    is_above = sweeps.verdicts.mapTo(sweeps, QPoint()).x() < sweeps.form.mapTo(sweeps, QPoint()).x() + 20
    assert is_above is (size == (1024, 700) and scale == 1.5)


def test_a_torn_line_is_reported_and_any_other_file_is_a_sentence(window, qtbot, opened, tmp_path):
    path = keep_sweep(tmp_path / "sweep.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    sweeps = opened(path)
    assert "cut off" in sweeps.banner.sentence()
    assert sweeps.continue_button.isEnabled()
    (tmp_path / "other.jsonl").write_text("{}\n", "utf-8")
    window.sweep.open_sweep(tmp_path / "other.jsonl")
    qtbot.waitUntil(lambda: "is not a sweep" in sweeps.banner.sentence())
    assert window.sweep.view.path == path


def test_arrows_move_and_enter_opens_the_runs_of_a_cell(qtbot, opened):
    sweeps = opened()
    sweeps.heatmap.setCurrentCell(0, 1)
    qtbot.keyClick(sweeps.heatmap, Qt.Key.Key_Right)
    assert sweeps.heatmap.current_cell() == Cell(DRAFT, 2, 0.0)
    assert sweeps.cell.title.text() == "T = 0, K = 2 with Tiny draft\u00a0· 2\u00a0of\u00a02\u00a0runs"
    qtbot.keyClick(sweeps.heatmap, Qt.Key.Key_Return)
    assert sweeps.cell.table.count() == 2
    assert sweeps.cell.selected_run() is not None
    assert texts(sweeps.cell.table)[0][:5] == ["a: one", "1", "30.0", "3.00×", "50\u00a0%"]
    # Plain decoding is one cell for all drafters of a temperature.
    assert [sweeps.heatmap.rowSpan(row, 0) for row in (0, 2)] == [2, 2]
    sweeps.heatmap.setCurrentCell(2, 0)
    assert sweeps.cell.title.text().startswith("T = 0.5, plain decoding")
    assert not sweeps.cell.use_button.isEnabled()


def test_a_run_opens_in_the_main_window(window, qtbot, opened):
    prompts = (Prompt("one", "def f", suite="a"),)
    sweeps = opened(engine=FakeSession(), prompts=prompts, max_new_tokens=24)
    sweeps.heatmap.setCurrentCell(0, 2)
    qtbot.keyClick(sweeps.heatmap, Qt.Key.Key_Return)
    with qtbot.waitSignal(window.live.run_shown, timeout=10_000):
        qtbot.keyClick(sweeps.cell.table, Qt.Key.Key_Return)
    assert window.live.kept_title == "K = 2 with Tiny draft, temperature 0, repeat 1"
    assert window.run_view.steps
    sweeps.cell.selected_run().log.unlink()
    sweeps.cell.open_button.click()
    assert "not kept, or is gone" in sweeps.banner.sentence()


def test_use_this_cell_sets_k_temperature_and_draft_and_leaves_the_rest(window, opened):
    sweeps = opened(num_draft_tokens=(1, 2, LengthPolicy.ADAPTIVE))
    window.prompt.set_text("mine")
    window.controls.fields["seed"].setText("77")
    window.controls.apply(replace(window.controls.settings("mine"), system="Be brief."))
    sweeps.heatmap.setCurrentCell(2, 2)
    sweeps.cell.use_button.click()
    settings = window.controls.settings(window.prompt.text())
    assert (settings.num_draft_tokens, settings.temperature, settings.draft) == (2, 0.5, "tiny-draft")
    assert (settings.method, settings.prompt, settings.seed) == ("draft-model", "mine", 77)
    assert settings.system == "Be brief."
    sweeps.heatmap.setCurrentCell(1, 3)
    sweeps.cell.use_button.click()
    settings = window.controls.settings("")
    assert (settings.method, settings.length_policy) == ("prompt-lookup", LengthPolicy.ADAPTIVE)


def test_use_this_cell_says_what_the_main_window_does_not_have(window, opened):
    here = window.controls.target.ref
    sweeps = opened(target="gone", temperatures=(3.0,))
    sweeps.heatmap.setCurrentCell(0, 2)
    sweeps.cell.use_button.click()
    settings = window.controls.settings("")
    assert (window.controls.target.ref, settings.temperature, settings.num_draft_tokens) == (here, 2.0, 2)
    assert "doesn't have this cell's target, temperature;" in sweeps.progress.text()


def test_the_figure_can_be_switched_and_the_scale_has_its_unit(opened):
    sweeps = opened()
    seen = {}
    for figure in FIGURES:
        sweeps.figures.choose(figure)
        seen[figure] = (cell(sweeps.heatmap, 0, 2), sweeps.legend.accessibleName())
    assert seen[SPEEDUP] == ("3.00×", "Speedup over plain decoding, logarithmic: 0.33× to 1.00× to "
                                         "3.00×")  # fmt: skip
    assert seen[ACCEPTANCE][0] == "50\u00a0%"
    assert seen[TOKENS] == ("30.0", "Tokens per second: 10.0 to 30.0 tokens/s")
    assert seen[BLOCK][1].endswith("tokens/forward")


def test_a_sweep_is_exported_in_every_form_or_a_sentence_says_why_not(qtbot, opened, dialogs, tmp_path):
    sweeps = opened()
    assert "HTML" in sweeps.export_button.menu().actions()[0].text(), "what most people want comes first"
    for kind, beginning in {
        SweepExport.CELLS: b"target,",
        SweepExport.RUNS: b"method,",
        SweepExport.JSONL: b'{"schema',
        SweepExport.HTML: b"<!doctype html>",
        SweepExport.PNG: b"\x89PNG",
        SweepExport.SVG: b"<?xml",
    }.items():
        dialogs.export_path = tmp_path / f"away-{kind.name}"
        sweeps.export(kind)
        qtbot.waitUntil(lambda: sweeps.progress.text() == f"Saved to {dialogs.export_path}", timeout=10_000)
        assert (data := dialogs.export_path.read_bytes()).startswith(beginning)
    assert b"K = 2" in data
    assert b"3.00" in data
    for kind in (SweepExport.CELLS, SweepExport.PNG):
        sweeps.banner.dismiss()
        dialogs.export_path = tmp_path / "missing" / "file"
        sweeps.export(kind)
        qtbot.waitUntil(lambda: bool(sweeps.banner.sentence()))


# --- Shades -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_figures_can_be_read_on_every_shade(theme, apply_theme):
    apply_theme(theme)
    shades = [shade(level / 10).name() for level in range(-10, 11)]
    assert min(contrast(theme.text, ground) for ground in shades) >= MIN_CONTRAST


def result_with(speed):
    return CellResult(Cell(LOOKUP, 1, 0.0), 1, speedup=spread([speed]), tokens_per_second=spread([speed]))


def test_twice_as_fast_is_as_far_from_the_middle_as_half_as_fast_and_a_scale_of_one_value_has_a_shade():
    scale = make_scale(SPEEDUP, [result_with(1.9), result_with(0.7)])
    assert (scale.low, scale.high) == (0.5, 2.0)
    assert scale.level(1.0) == 0.0
    assert scale.level(2.0) == pytest.approx(-scale.level(0.5))
    assert scale.level(100.0) == 1.0
    assert make_scale(TOKENS, []).ticks()
    scale = make_scale(TOKENS, [result_with(3.0)])
    assert scale.level(3.0) == 0.5
    assert len(scale.ticks()) == 1
    found = [result_with(1.9), replace(result_with(9.0), block_efficiency=spread([2.0]))]
    assert make_scale(SPEEDUP, found).high == 2.0, "a speedup that can't be sets no scale"
    assert make_scale(TOKENS, found).high == 9.0


def test_a_cell_that_is_left_out_has_no_shade(opened):
    view = opened().view
    where = view.cell(0, 2)
    result = view.result(where)
    assert view.shown(where, view.scale(SPEEDUP)).level is not None
    view._results[where] = replace(result, block_efficiency=spread([2.0]))
    shown = view.shown(where, view.scale(SPEEDUP))
    assert (shown.text, shown.level, shown.is_left_out) == ("3.00×", None, True)
    assert view.shown(where, view.scale(TOKENS)).level is not None


def test_while_a_sweep_runs_a_cell_that_is_left_out_says_so_and_why(opened):
    view = opened().view
    view.verdicts, where = (), view.cell(0, 2)
    half = replace(view.result(where), num_planned=4)
    for tokens, note in ((4.0, "2 of 4"), (2.0, "left out")):
        view._take([replace(half, block_efficiency=spread([tokens]))])
        assert view.shown(where, view.scale(SPEEDUP)).note == note
        assert view.shown(where, view.scale(TOKENS)).note == "2 of 4"
    first, second = [line.sentence for line in view.verdict_lines()]
    assert "K = 2 with Tiny draft is left out. At 2.00 tokens per forward of the target, 3.00× is impossible" in first
    view.is_running, view.seconds_left, view.stage = True, None, ""
    assert view.progress_text().endswith(" runs"), "there is no stage between two events"
    assert first.startswith("At temperature 0: K = 2 with prompt-lookup leads with 3.00× the speed of plain decoding")
    assert "left out" not in second
    view._take([replace(result, block_efficiency=spread([0.5])) for result in view._results.values()])
    sentence = view.verdict_lines()[0].sentence
    assert sentence.startswith(
        "At temperature 0: there is no ranking yet. 4 cells are left out: their speedups are higher"
    )
    assert sentence.endswith(" during the baseline.")


def test_with_large_text_in_a_narrow_window_no_button_progress_or_heading_is_cut(qtbot, opened, window):
    sweeps = opened()
    sweeps.view.is_complete = False
    sweeps._show()
    window.appearance.set(ThemeMode.DARK, 1.5)
    for width in (1024, 1280):
        sweeps.resize(width, 700)
        for button in (sweeps.continue_button, sweeps.earlier, sweeps.export_button):
            qtbot.waitUntil(lambda button=button: button.width() >= button.sizeHint().width())
            right = button.mapTo(sweeps, button.rect().topRight()).x()
            assert right <= sweeps.parts.mapTo(sweeps, sweeps.parts.rect().topRight()).x()
    sweeps.resize(1024, 700)
    sweeps.heatmap.setCurrentCell(1, 2)
    long = "3 of 36 runs · failed; Continue tries again what failed and measures the rest"
    for text in (long, f"Saved to {'/folder' * 20}"):
        sweeps.progress.setText(text)
        for label in (sweeps.progress, sweeps.cell.title):
            line = label.fontMetrics().height()
            qtbot.waitUntil(lambda label=label: label.height() >= label.heightForWidth(label.width()))
            assert label.height() >= 2 * line, "it takes two lines"
    assert sweeps._area.widget().width() == sweeps._area.viewport().width()


@pytest.mark.parametrize(("size", "scale"), [((1280, 800), 1.0), ((1024, 700), 1.5)])
def test_the_heads_and_two_rows_of_the_heatmap_stay_in_view_above_a_cells_runs(qtbot, opened, apply_theme, size, scale):
    sweeps = opened(temperatures=(0.0, 0.5, 1.0))
    for result in sweeps.view._results.values():
        for item in result.measurements:
            sweeps.view._runs.add(replace(item, unsteadiness=0.9))
    apply_theme(LIGHT, scale)
    sweeps.resize(*size)
    sweeps._show()
    heatmap, area = sweeps.heatmap, sweeps._area
    heatmap.setCurrentCell(1, 2)

    def is_in_view(widget, least=0):
        return widget.visibleRegion().boundingRect().height() >= (least or widget.height())

    qtbot.waitUntil(
        lambda: (
            is_in_view(heatmap.horizontalHeader())
            and is_in_view(heatmap.viewport(), 2 * heatmap.rowHeight(0))
            and is_in_view(sweeps.cell)
        )
    )
    assert (area.verticalScrollBar().maximum() > 0) is (scale > 1), "it scrolls only where there is no room"
    assert area.widget().width() == area.viewport().width(), "nothing is cut at the right"


def test_columns_that_were_left_out_for_room_stay_so_and_the_outcome_of_a_run_is_whole(qtbot):
    table = Table("runs", "Runs", RUN_COLUMNS, stretched=len(RUN_COLUMNS) - 1)
    qtbot.addWidget(table)
    table.show()
    outcome = "failed: The draft ran out of memory."
    table.show_rows([Row(None, 0, ("the window's prompt", "1", *"–––––", outcome), "The draft ran out of memory.")])
    table.resize(2_000, 200)
    wide = sum(map(table.columnWidth, range(7))) + table.sizeHintForColumn(7)
    for less in (10, 11, 12):
        table.resize(wide - less, 200)
        assert table.isColumnHidden(6)
        assert table.columnWidth(7) >= table.sizeHintForColumn(7)
    table.resize(wide // 2, 200)
    assert table.isColumnHidden(7)
    assert table.horizontalHeader().length() == table.viewport().width(), "the others fill the table"
