"""A plot is saved whole: as a picture twice its size, as lines, or as figures; or not at all."""

from __future__ import annotations

import csv
import os
import xml.etree.ElementTree as ET

import pytest
from PySide6.QtGui import QImage

from app.theme import LIGHT
from app.widgets.pictures import SCALE
from app.widgets.plot_card import PlotFormat
from tests.errors import failing


@pytest.fixture
def finished(window, run_to_end, qtbot):
    with qtbot.waitExposed(window):
        window.show()
    run_to_end(window)
    window.race.open()
    return window


@pytest.fixture
def save(finished, dialogs, qtbot):
    """Saves a plot, by its title, through its menu."""

    def save(title, kind, path):
        dialogs.export_path = path
        card = cards(finished)[title]
        next(action for action in card.menu.actions() if action.data() == kind).trigger()
        qtbot.waitUntil(lambda: finished.jobs.is_idle, timeout=20_000)
        return card

    return save


def cards(window):
    return {card.title: card for card in (*window.measurements.cards, window.race.timeline) if not card.isHidden()}


TITLES = ("Acceptance by step", "Latency per token, by step", "Acceptance by position", "Tokens over time")


def test_every_plot_can_be_saved_in_every_format_and_says_where(finished, save, dialogs, tmp_path):
    assert tuple(cards(finished)) == TITLES
    run_id = finished.run_view.started.run_id
    for title in TITLES:
        for kind in PlotFormat:
            path = tmp_path / f"{title}.{kind.value}"
            save(title, kind, path)
            assert path.stat().st_size > 100
            assert str(path) in finished.status.stage.text()
            assert dialogs.asked[-1] == f"{run_id}-{title.lower().replace(' ', '-')}.{kind.value}"
        elements = list(ET.parse(tmp_path / f"{title}.svg").getroot().iter())
        tags = {element.tag.rpartition("}")[2] for element in elements}
        assert {"path", "text"} <= tags
        assert "image" not in tags
        assert title in {element.text for element in elements if element.tag.endswith("text")}
    assert finished.banner.sentence() == ""


def test_a_png_has_twice_the_pixels_and_the_plots_colours_and_does_not_change_the_plot(finished, save, tmp_path):
    plot = cards(finished)["Acceptance by position"].plot
    axis = plot.getPlotItem().getAxis("left")
    before = (axis.grid, axis.cacheMode(), plot.getViewBox().viewRange())
    card = save("Acceptance by position", PlotFormat.PNG, tmp_path / "out.png")
    image = QImage(str(tmp_path / "out.png"))
    assert image.width() >= SCALE * card.plot.width()
    colors = {image.pixelColor(x, y).name() for x in range(0, image.width(), 3) for y in range(0, image.height(), 3)}
    assert {LIGHT.surface, LIGHT.draft_bar} <= colors
    assert (axis.grid, axis.cacheMode(), plot.getViewBox().viewRange()) == before


def test_the_tables_hold_the_runs_own_figures(finished, save, tmp_path):
    run, found = finished.run_view, {}
    for title in TITLES:
        save(title, PlotFormat.CSV, tmp_path / title)
        with (tmp_path / title).open(newline="") as file:
            found[title] = list(csv.DictReader(file))
    assert [int(row["accepted_tokens"]) for row in found["Acceptance by step"]] == [
        step.num_accepted for step in run.steps
    ]
    assert found["Acceptance by step"][0]["running_rate_low_95"] == ""
    assert float(found["Latency per token, by step"][3]["verify_ms"]) == pytest.approx(run.steps[3].verify_ms, rel=1e-5)
    assert float(found["Latency per token, by step"][0]["baseline_mean_step_ms"]) == pytest.approx(
        run.baseline_step_ms, rel=1e-5
    )
    runs = [row["run"] for row in found["Tokens over time"]]
    assert (runs.count("speculative"), runs.count("baseline")) == (len(run.steps), len(run.baseline_steps))
    assert found["Tokens over time"][0]["step"] == found["Acceptance by step"][0]["step"] == "1"
    assert int(found["Tokens over time"][-1]["tokens"]) == run.baseline.sums.tokens
    by_place = found["Acceptance by position"]
    assert sum(int(row["accepted_tokens"]) for row in by_place) == run.counts.sums.accepted
    assert [int(row["draft_position"]) for row in by_place] == [1, 2, 3]


def test_a_failure_is_reported_and_the_file_before_is_kept(finished, save, tmp_path, monkeypatch):
    folder = tmp_path / "plots"  # The window saves its settings beside it.
    folder.mkdir()
    path = folder / "old"
    path.write_text("precious")
    monkeypatch.setattr(os, "replace", failing(OSError(28, "No space left on device")))
    for kind in PlotFormat:
        finished.banner.dismiss()
        save("Latency per token, by step", kind, None)
        assert list(folder.iterdir()) == [path], "a dialog that was dismissed"
        save("Latency per token, by step", kind, path)
        assert "no space left" in finished.banner.sentence()
        assert path.read_text() == "precious"


def test_the_menu_can_be_reached_and_named_by_keyboard_and_shows_all_again(finished):
    for title, card in cards(finished).items():
        assert card.menu_button.focusPolicy() & 0x1
        assert title in card.menu_button.accessibleName()
        texts = [action.text() for action in card.menu.actions() if action.text()]
        assert texts == ["Reset view", "Save as PNG…", "Save as SVG…", "Save as CSV…"]
    card = cards(finished)["Latency per token, by step"]
    whole = card.plot.getViewBox().viewRange()[0]
    card._zoom(0.5)
    assert card.plot.getViewBox().viewRange()[0] != pytest.approx(whole)
    card.menu.actions()[0].trigger()
    assert card.plot.getViewBox().viewRange()[0] == pytest.approx(whole)
