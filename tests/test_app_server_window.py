"""The window Server: what it draws of a server's counters, at a restart, and when the server goes away."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from app.theme import DARK, LIGHT, contrast
from app.tools.server import FOLLOWING, NONE_CHOSEN
from app.tools.server_plots import OWN_HELP, History, server_plots
from app.widgets.legend import Mark
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
        assert shown == ["drafted tokens", "accepted tokens", "drafting steps", "own runs"]
        assert list(drafts.table()) == ["seconds", "drafted", "accepted", "drafts"], "saved figures keep their names"
        first, second = tokens._lines["tokens"].getData()[1][:2]
        assert first == history.values["tokens"][0]
        assert math.isnan(second)
        assert acceptance.getViewBox().viewRange()[1] == pytest.approx([0, TOP]), "no empty fifth above 100 percent"
        assert acceptance._marks[0].label.format == "restarted"
        own = next(sample for sample in view.cards[0].samples if sample.toolTip() == OWN_HELP)
        assert own._mark is Mark.BAR, "a band without a line"
        assert min(contrast(theme.muted, theme.surface) for theme in (LIGHT, DARK)) >= MIN_BAR_CONTRAST
        run_to_end(window)
        ((start, end),) = history.own
        assert 0 < start < end
        assert tokens._bands[0].getRegion() == (start, end)
    until(qtbot, lambda: view.headline.property("role") == "problem")
    assert fake.url in view.headline.text()
    assert view.headline.font().pixelSize() == size
    assert re.search(r"No answer since \d\d:\d\d; trying again 0\.01 s after each failure\.$", view.headline.text())
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
    ("make", "flag"), [(vllm, "--disable-log-stats"), (sglang, "--enable-metrics"), (llama_server, "--metrics")]
)
def test_without_counters_it_names_the_option_that_this_server_needs(window, qtbot, make, flag):
    view = window.server
    view.open()
    answers = make()
    none, some = as_json({}, 404), answers["/metrics"]
    with FakeServer({**answers, "/metrics": none}) as fake:
        window.controls.engine.choose(fake.url)
        until(qtbot, lambda: view.headline.property("role") == "problem")
        assert flag in view.headline.text()
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


def test_a_server_that_does_not_answer_is_named_and_the_way_to_add_one_goes(window, qtbot):
    with FakeServer(vllm()) as fake:
        url = fake.url
    view = window.server
    view.open()
    window.controls.engine.choose(url)
    until(qtbot, lambda: url in view.headline.text())
    assert view.begin.isHidden()
    view.close()
