"""The window Server: what it draws of a server's counters, at a restart, and when the server goes away."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from PySide6.QtGui import QColor, QImage, QPainter

from app.theme import DARK, LIGHT, contrast
from app.tools.server import FOLLOWING, LATE, NONE_CHOSEN
from app.tools.server_plots import DASHES, History, server_plots
from app.widgets.plots import TOP
from tests.fake_servers import FakeServer, as_json, llama_server, recorded, sglang, vllm
from tests.fakes_app import MIN_BAR_CONTRAST
from tests.fakes_runs import until
from tests.test_core_engine_requests import LOADED, router


@pytest.fixture(autouse=True)
def quick(monkeypatch, keys):
    """Reads without a pause, and with no key."""
    for name in ("POLL_MS", "NONE_POLL_MS"):
        monkeypatch.setattr(f"app.tools.server.{name}", 10)


def test_it_draws_what_grew_and_marks_a_restart_and_our_own_runs(window, qtbot, run_to_end, apply_theme):
    before, after = (recorded("vllm-draft", f"metrics-{when}") for when in ("before", "after"))
    apply_theme(LIGHT)
    view = window.server
    view.open()
    assert view.headline.text() == NONE_CHOSEN
    size = view.headline.font().pixelSize()
    assert view.begin.isVisible()
    assert view.plots.isHidden()
    engine, history = window.controls.engine, view.history
    with FakeServer(vllm(metrics=[after, before, after, before])) as fake:
        engine.choose(fake.url)
        until(qtbot, lambda: bool(history.restarts))
        assert history.values["tokens"][0] > 0
        assert view.begin.isHidden()
        assert view.plots.isVisible()
        assert view.other.isHidden()
        assert 0 < history.values["position 1"][0] <= 1
        assert math.isnan(history.values["tokens"][1])
        assert history.restarts == [history.times[1]]
        acceptance, drafts, tokens, _ = (card.plot for card in view.cards)
        assert [name for name, _ in drafts.details(0)[1:]] == ["drafted tokens", "accepted tokens", "drafting steps"]
        shown = [sample.accessibleName().split(":")[0] for sample in drafts.samples]
        assert shown == ["drafted tokens", "accepted tokens", "drafting steps", "this window's runs"]
        assert list(drafts.table()) == ["seconds", "drafted", "accepted", "drafts"], "saved figures keep their names"
        assert tokens.getAxis("left").tickStrings([500.5, 1_000.5], 1.0, 0.5) == ["500.5", "1,000.5"]
        first, second = tokens._lines["tokens"].getData()[1][:2]
        assert first == history.values["tokens"][0]
        assert math.isnan(second)
        assert acceptance.getViewBox().viewRange()[1] == pytest.approx([0, TOP]), "no empty fifth above 100 percent"
        assert acceptance._marks[0].label.format == "restarted"
        run_to_end(window)
        ((start, end),) = history.own
        assert 0 < start < end
        assert tokens._bands[0].getRegion() == (start, end)
    until(qtbot, lambda: view.headline.property("role") == "problem")
    assert fake.url in view.headline.text()
    assert view.headline.font().pixelSize() == size
    assert re.search(r"Unanswered since \d\d:\d\d; trying again 0\.01 s after each failure\.$", view.headline.text())
    assert view.subject.text().startswith("Last seen: vLLM ")
    assert view.other.isVisible()
    view.other.click()
    assert engine.dialog.isVisible()
    engine.dialog.reject()
    requests = len(fake.requests)
    view.close()
    assert not view._timer.isActive()
    until(qtbot, lambda: window.jobs.is_idle)
    assert len(fake.requests) == requests


@pytest.mark.parametrize(
    ("make", "flag", "is_late"),
    [(vllm, "--disable-log-stats", False), (sglang, "--enable-metrics", True), (llama_server, "--metrics", True)],
)
def test_without_counters_it_names_the_option_that_this_server_needs(window, qtbot, make, flag, is_late):
    view = window.server
    view.open()
    answers = make()
    none, some = as_json({}, 404), answers["/metrics"]
    with FakeServer({**answers, "/metrics": none}) as fake:
        window.controls.engine.choose(fake.url)
        until(qtbot, lambda: view.headline.property("role") == "problem")
        assert flag in view.headline.text()
        assert (LATE in view.subject.text()) == is_late
        # Started anew with that option, it is followed, and its counters are known to runs.
        fake.answers["/metrics"] = some if isinstance(some, list) else [some]
        until(qtbot, lambda: view.headline.text() == FOLLOWING)
        assert view.headline.property("role") == "title"
        assert window.controls.engine.server.metrics is not None
        until(qtbot, lambda: bool(view.history.times))
    view.close()


def test_values_are_joined_by_lines_only_where_no_poll_is_missing_and_equal_ones_stay_apart(qtbot):
    history = History()
    for at in (1.0, 2.5, 4.0, 508.46024216, 509.9):
        history.add(at, {"running": 0.0, "waiting": 0.0})
    history.add(511.0, {})
    history.add(512.5, {"running": 0.0, "waiting": 0.0})
    plot = server_plots(history)[3]
    qtbot.addWidget(plot)
    plot.refresh()
    running, waiting = (plot._lines[name] for name in ("running", "waiting"))
    times, values = running.getData()
    assert list(times[np.isnan(values)]) == [508.46024216, 511.0]
    assert list(times[running.opts["symbolSize"] > 0]) == [512.5], "alone, it would not be seen"
    assert list(history.times) == plot.table()["seconds"]
    assert (running.opts["pen"].dashPattern(), waiting.opts["pen"].dashPattern()) == ([], [4.0, 4.0])


def test_a_plot_of_what_the_server_does_not_count_says_so_once_it_drafts(qtbot):
    history = History()
    plot = server_plots(history)[0]
    qtbot.addWidget(plot)
    hints = []
    for drafts in (0.0, 2.0):
        history.add(float(len(hints)), {"tokens": 4.0, "drafts": drafts})
        plot.refresh()
        hints.append(plot._hint.toPlainText())
    assert hints == ["No data yet", "Not reported by this server"]


def pixels(sample, theme, width):
    """The colours of the first pixels of a legend's sample, row by row, in the middle rows of its mark."""
    picture = QImage(sample.sizeHint(), QImage.Format.Format_RGB32)
    picture.fill(theme.surface)
    painter = QPainter(picture)
    sample.draw(painter, picture.size())
    painter.end()
    middle = picture.height() // 2
    return [picture.pixelColor(x, y).name() for y in range(middle, middle + 5) for x in range(width)]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_legend_has_each_lines_own_dashes_and_the_fill_and_edge_of_the_bands(qtbot, apply_theme, theme):
    apply_theme(theme)
    history = History(own=[(2.0, 2.1)])
    for at in (1.0, 2.5, 4.0):
        history.add(at, {f"position {place}": 0.5 for place in range(1, 7)})
    plot = server_plots(history)[0]
    qtbot.addWidget(plot)
    plot.refresh()
    *lines, own = plot.samples
    assert [sample._dashes for sample in lines] == list(DASHES)
    for sample, line in zip(lines, plot._lines.values(), strict=True):
        assert line.opts["pen"].dashPattern() == list(sample._dashes)
    dashes = set()
    for sample in lines:
        row = pixels(sample, theme, sample._mark_width)[: sample._mark_width]
        drawn = "".join(" " if color == theme.surface else "-" for color in row).split()
        dashes.add((len(drawn), len(drawn[0])))
    assert len(dashes) == len(DASHES), "they look different, too"
    (band,) = plot._bands
    edge = band.lines[0].pen.color()
    assert contrast(edge.name(), theme.surface) >= MIN_BAR_CONTRAST, "the fill alone is pale, and thin in a short run"
    ground, fill = QColor(theme.surface), band.brush.color()
    mixed = [round(a + (b - a) * fill.alphaF()) for a, b in zip(ground.getRgb()[:3], fill.getRgb()[:3], strict=True)]
    drawn = [QColor(name).getRgb()[:3] for name in pixels(own, theme, 10)]
    for wanted in (edge.getRgb()[:3], mixed):
        assert min(max(abs(a - b) for a, b in zip(wanted, seen, strict=True)) for seen in drawn) <= 2


def test_of_a_router_it_names_the_model_and_does_not_wake_one_that_sleeps(window, qtbot):
    answers, view = router(), window.server
    awake = answers["/v1/models"]
    asleep = json.loads(awake.chunks[0].replace('"loaded"', '"sleeping"'))
    view.open()
    with FakeServer({**answers, "/v1/models": as_json(asleep)}) as fake:
        window.controls.engine.choose(fake.url)
        until(qtbot, lambda: "isn't loaded" in view.headline.text())
        until(qtbot, lambda: [path for path, _, _ in fake.requests].count("/v1/models") > 3)
        assert not [path for path, _, _ in fake.requests if "metrics" in path or "slots" in path]
        fake.answers["/v1/models"] = [awake]
        until(qtbot, lambda: bool(view.history.times))
        assert f"counts are those of {LOADED}" in view.subject.text()
        assert f"{LOADED} drafts" in window.controls.engine.drafting()
    view.close()


def test_after_a_restart_it_says_what_runs_there_now_and_keeps_what_it_drew(window, qtbot):
    before, after = (recorded("vllm-draft", f"metrics-{when}") for when in ("before", "after"))
    view, engine = window.server, window.controls.engine
    view.open()
    with FakeServer(vllm(metrics=[before, before, after])) as fake:
        engine.choose(fake.url)
        until(qtbot, lambda: len(view.history.times) > 1)
        fake.answers |= {"/metrics": [before], "/version": [as_json({"version": "99.1"})]}
        until(qtbot, lambda: "vLLM 99.1" in view.subject.text())
        assert engine.server.version == "99.1"
        assert view.history.restarts
        assert view.history.restarts[0] > view.history.times[0]
    view.close()


def test_a_server_that_does_not_answer_is_named_and_the_way_to_add_one_goes(window, qtbot):
    with FakeServer(vllm()) as fake:
        url = fake.url
    view = window.server
    view.open()
    window.controls.engine.choose(url)
    until(qtbot, lambda: url in view.headline.text())
    assert view.begin.isHidden()
    view.close()
