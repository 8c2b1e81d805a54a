"""A plot is saved whole: as a picture twice its size, as lines, or as figures; or not at all."""

from __future__ import annotations

import csv
import os
import xml.etree.ElementTree as ET
from threading import get_ident

import pytest
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtGui import QImage

from app.run.run_view import RunView
from app.widgets import plot_card
from app.widgets.plot_card import PlotDesk, PlotFormat
from app.widgets.plots import SCALE

PATIENCE_MS = 20_000


@pytest.fixture
def finished(window, run_to_end, qtbot):
    with qtbot.waitExposed(window):
        window.show()
    run_to_end(window)
    window.side.show_page(window.plots)
    return window


def cards(window):
    return {card.title: card for card in (*window.measurements.cards, *window.plots.cards)}


def save(window, card, kind):
    action = next(action for action in card.menu.actions() if action.data() == kind)
    action.trigger()
    loop = QEventLoop()
    window.jobs.became_idle.connect(loop.quit)
    if not window.jobs.is_idle:
        QTimer.singleShot(PATIENCE_MS, loop.quit)
        loop.exec()
    assert window.jobs.is_idle, "the plot was never written"


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_plot_can_be_saved_in_every_format_and_says_where(finished, dialogs, tmp_path):
    for title, card in cards(finished).items():
        for kind in PlotFormat:
            dialogs.plot_path = tmp_path / f"{title}.{kind.value}"
            save(finished, card, kind)
            assert dialogs.plot_path.stat().st_size > 100
            assert str(dialogs.plot_path) in finished.status.stage.text()
            run_id = finished.run_view.started.run_id
            assert dialogs.asked[-1] == f"{run_id}-{title.lower().replace(' ', '-')}.{kind.value}"
    assert finished.banner.sentence() == ""
    assert len(cards(finished)) == 4


def test_a_png_has_twice_the_pixels_and_the_plots_colours(finished, dialogs, tmp_path):
    dialogs.plot_path = tmp_path / "out.png"
    card = cards(finished)["Acceptance by position"]
    save(finished, card, PlotFormat.PNG)
    image = QImage(str(dialogs.plot_path))
    assert image.width() >= SCALE * card.plot.width()
    colors = {image.pixelColor(x, y).name() for x in range(0, image.width(), 3) for y in range(0, image.height(), 3)}
    theme = card.plot._theme
    assert {theme.surface, theme.draft_bar} <= colors


def test_an_svg_is_made_of_lines_and_text_alone(finished, dialogs, tmp_path):
    for title, card in cards(finished).items():
        dialogs.plot_path = tmp_path / f"{title}.svg"
        save(finished, card, PlotFormat.SVG)
        root = ET.parse(dialogs.plot_path).getroot()
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert {"path", "text"} <= tags
        assert "image" not in tags
        texts = {element.text for element in root.iter() if element.tag.endswith("text")}
        assert title in texts


def test_saving_leaves_the_plot_on_screen_as_it_was(finished, dialogs, tmp_path):
    card = cards(finished)["Acceptance"]
    axis = card.plot.getPlotItem().getAxis("left")
    before = (axis.grid, axis.cacheMode(), card.plot.getViewBox().viewRange(), card.plot.getViewBox().opacity())
    dialogs.plot_path = tmp_path / "out.svg"
    save(finished, card, PlotFormat.SVG)
    assert (axis.grid, axis.cacheMode(), card.plot.getViewBox().viewRange(), card.plot.getViewBox().opacity()) == before


def test_the_tables_hold_the_runs_own_figures(finished, dialogs, tmp_path):
    run = finished.run_view
    found = {}
    for title, card in cards(finished).items():
        dialogs.plot_path = tmp_path / f"{title}.csv"
        save(finished, card, PlotFormat.CSV)
        found[title] = rows(dialogs.plot_path)
    assert [int(row["accepted_tokens"]) for row in found["Acceptance"]] == [step.num_accepted for step in run.steps]
    assert found["Acceptance"][0]["running_rate_low_95"] == ""
    assert float(found["Latency"][3]["verify_ms"]) == pytest.approx(run.steps[3].verify_ms, rel=1e-5)
    assert float(found["Latency"][0]["baseline_mean_step_ms"]) == pytest.approx(run.baseline_step_ms, rel=1e-5)
    runs = [row["run"] for row in found["Tokens over time"]]
    assert (runs.count("speculative"), runs.count("baseline")) == (len(run.steps), len(run.baseline_steps))
    assert int(found["Tokens over time"][-1]["tokens"]) == run.baseline_tokens
    by_place = found["Acceptance by position"]
    assert sum(int(row["accepted_tokens"]) for row in by_place) == run.metrics.totals.accepted
    assert [int(row["draft_position"]) for row in by_place] == [1, 2, 3, 4]


def test_a_dismissed_dialog_writes_nothing(finished, dialogs, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    save(finished, cards(finished)["Latency"], PlotFormat.PNG)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", list(PlotFormat))
def test_a_file_that_can_not_be_written_is_explained_and_the_one_before_is_kept(
    finished, dialogs, tmp_path, monkeypatch, kind
):
    dialogs.plot_path = tmp_path / "old"
    dialogs.plot_path.write_text("precious")

    def no_space(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    save(finished, cards(finished)["Latency"], kind)
    assert "no space left" in finished.banner.sentence()
    assert dialogs.plot_path.read_text() == "precious"


def test_a_plot_is_written_by_another_thread_than_the_windows_and_told_of_where_it_was_asked_for(
    finished, dialogs, tmp_path, monkeypatch
):
    threads = []
    write = plot_card.write_atomically
    monkeypatch.setattr(plot_card, "write_atomically", lambda *args: (threads.append(get_ident()), write(*args)))
    other = PlotDesk(finished, dialogs, RunView(), finished.jobs, ())
    told = []
    other.saved.connect(told.append)
    dialogs.plot_path = tmp_path / "out.csv"
    save(finished, cards(finished)["Latency"], PlotFormat.CSV)
    assert len(threads) == 1
    assert get_ident() not in threads
    assert str(dialogs.plot_path) in finished.status.stage.text()
    assert told == []


def test_the_menu_can_be_reached_and_named_by_keyboard(finished):
    for title, card in cards(finished).items():
        assert card.menu_button.focusPolicy() & 0x1
        assert title in card.menu_button.accessibleName()
        assert [action.text() for action in card.menu.actions() if action.text()] == [
            "Reset view",
            "Save as PNG…",
            "Save as SVG…",
            "Save as CSV…",
        ]


def test_reset_view_in_the_menu_shows_all_again(finished):
    card = cards(finished)["Latency"]
    whole = card.plot.getViewBox().viewRange()[0]
    card._zoom(0.5)
    assert card.plot.getViewBox().viewRange()[0] != pytest.approx(whole)
    card.menu.actions()[0].trigger()
    assert card.plot.getViewBox().viewRange()[0] == pytest.approx(whole)
