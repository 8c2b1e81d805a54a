"""A server as the window's engine: chosen, tested, run on, stopped; what it doesn't take is off."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from app.controller import RunState
from app.run.inspector.inspection import NOT_REPORTED, inspect
from app.run.measurements import UNKNOWN
from app.run.plots.position_plot import UNKNOWN_HINT
from app.run.speed.speed import ON_SERVER, speed_report
from app.run.text.tokens import Fate, Place
from app.settings import RunSettings, SettingsStore, runs_folder, settings_of
from app.setup.model_picker import ModelRole
from app.worker import run_task
from core.engines import steps
from core.engines.server import identify
from core.engines.session import ServerSession
from core.errors import SettingsError
from core.runlog.log import RunLogWriter
from core.types import RunStarted, StepSource, TokenKind
from tests.fake_servers import Answer, FakeServer, Fault, a_request, in_pairs, llama_server, recorded, vllm
from tests.fakes_runs import shown_whole, until

pytestmark = pytest.mark.usefixtures("keys")


def add(qtbot, window, url: str, name: str = "", key: str = "") -> None:
    """Add a server in the dialog, and wait until it has answered."""
    engine = window.controls.engine
    engine.add()
    engine.dialog.address.setText(url)
    engine.dialog.name.setText(name)
    engine.dialog.key.setText(key)
    engine.dialog.add_button.click()
    until(qtbot, lambda: engine.url == url and bool(engine.server or engine._failure))


def test_a_server_is_tested_and_added_and_its_key_is_kept_in_the_keyring_only(make_window, qtbot, keys):
    window = make_window()
    engine = window.controls.engine
    with FakeServer(vllm(), key="sesame") as fake:
        engine.add()
        dialog = engine.dialog
        dialog.address.setText(fake.url)
        dialog.key.setText("wrong")
        dialog.test_button.click()
        until(qtbot, lambda: dialog.found.property("role") == "problem")
        assert "key" in dialog.found.text()
        assert "wrong" not in dialog.found.text()
        dialog.key.setText("sesame")
        dialog.test_button.click()
        until(qtbot, lambda: "drafts up to 4 tokens per step" in dialog.found.text())
        dialog.reject()
        add(qtbot, window, fake.url, "Lab", "sesame")
        assert engine.combo.currentText() == "Lab"
        assert engine.server.product == "vllm"
    assert keys == {fake.url: "sesame"}
    window.state.save()
    saved = SettingsStore().load()
    assert saved.servers == {fake.url: "Lab"}
    assert saved.run.engine == fake.url
    assert "sesame" not in SettingsStore().path.read_text("utf-8")
    again = make_window()  # The server is down by now.
    until(qtbot, lambda: bool(again.controls.engine._failure))
    assert again.controls.problem("Go") == again.controls.engine._failure
    assert not again.controls.engine.note.text(), "the reason stands beside Run alone"
    assert again.controls.engine.combo.property("invalid")
    assert not again.prompt.run_button.isEnabled()
    again.controls.engine._remove()
    until(qtbot, lambda: again.jobs.is_idle)
    assert not keys
    assert not again.controls.engine.servers


def test_ticks_that_do_not_hold_on_a_server_and_an_empty_forecast_are_not_shown_until_this_machine_is_back(
    window, qtbot
):
    controls = window.controls
    hidden = (controls.fields["baseline"], controls.fields["coupling"], controls.models.verdict)
    controls.fields["baseline"].setChecked(True)
    with FakeServer(vllm()) as fake:
        add(qtbot, window, fake.url)
        assert [part.isHidden() for part in hidden] == [True] * 3
        assert controls.settings("Go").baseline, "it is kept for this machine"
        controls.engine.choose("")
        controls.engine.changed.emit()
    assert [part.isHidden() for part in hidden] == [False] * 3
    assert controls.request("Go").baseline


def test_a_kept_server_with_an_address_that_is_refused_can_be_removed(window, keys):
    engine = window.controls.engine
    engine.servers["http://me:pw@127.0.0.1:1"] = "old"
    engine.choose("http://me:pw@127.0.0.1:1")
    engine._remove()
    assert not engine.servers
    assert not engine.url


def test_a_log_of_a_stranger_is_not_run_again_on_the_server_that_it_names(window, monkeypatch):
    """The API key in the environment would be sent there."""
    started = []
    monkeypatch.setattr(window.controller, "start", started.append)
    request = window.controls.request("Go")
    window.starter.replay(replace(request, engine="http://stranger.example:8000"))
    assert not started
    assert "Add that server" in window.banner.sentence()


def test_a_password_in_an_address_is_refused(window):
    engine = window.controls.engine
    engine.add()
    engine.dialog.address.setText("http://user:pass@127.0.0.1:1")
    engine.dialog.add_button.click()
    assert "Leave it out" in engine.dialog.found.text()
    assert not engine.servers


def test_a_run_streams_from_the_server_with_its_own_counts_and_a_log(window, qtbot, run_to_end, session):
    controls = window.controls
    with FakeServer(vllm(chat=in_pairs(recorded("vllm-draft", "run-chat-sampled")))) as fake:
        add(qtbot, window, fake.url)
        assert controls.target.combo.currentText() == "smol"
        assert "drafts up to 4 tokens per step" in controls.engine.note.text()
        for name in ("num_draft_tokens", "length_policy"):
            assert not controls.fields[name].isVisibleTo(controls), "the note says what the server drafts"
        for name in ("device", "dtype", "baseline", "coupling"):
            assert not controls.fields[name].isEnabled()
            assert controls.fields[name].toolTip()
        assert not controls.draft.combo.isEnabled()
        with pytest.raises(SettingsError, match="needs the models on this machine"):
            controls.request_here("Go", "Check")
        controls.fields["max_new_tokens"].setValue(24)
        run_to_end(window)
    run = window.run_view
    assert not session.requests
    assert {step.source for step in run.steps[1:]} == {StepSource.SERVER}
    assert [step.num_accepted for step in run.steps[-5:]] == [0, 1, 0, 0, 1]
    assert run.counts.sums.accepted == run.summary.num_accepted_tokens == 5
    assert len(run.counts) == len(run.steps) == 19
    assert window.status.place.text().startswith("vLLM")
    window.side.setCurrentWidget(window.inspector)
    window.show()
    assert NOT_REPORTED in window.inspector._empty.text(), "it promises no distributions"
    rejected = next(step for step in run.steps if step.drafted and not step.num_accepted)
    seen = inspect([rejected], Place(0, 0))
    assert {chip.text for chip in seen.chips if chip.fate is not Fate.RESAMPLED} == {"?"}, "which, isn't reported"
    assert [fact.title for fact in seen.facts][:2] == ["Target p", "Draft q"]
    window.menus.race.trigger()
    assert "needs the models on this machine" in window.race.empty.text()
    assert "inferred" not in window.status.place.text()
    assert not window.measurements.tiles.chosen.isVisibleTo(window)
    latency = window.findChild(QWidget, "latencyPlot")
    first, second, *others = latency.whole.opts["height"]
    assert first == second == 0 < min(others), "the first two came with the prefill"
    assert latency.readout(0) == "step 1: 1 token"
    (log,) = runs_folder().glob("*.jsonl")
    head, *_, end = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert head["config"]["engine"]["address"] == fake.url
    assert end["num_accepted_tokens"] == 5
    controls.engine.choose("")
    controls.engine.changed.emit()
    assert controls.request("Go").engine == ""
    assert controls.fields["baseline"].isEnabled()
    assert controls.fields["length_policy"].isVisibleTo(controls)
    assert controls.draft.combo.isEnabled()


def test_inferred_steps_are_called_so_and_the_flag_that_reports_more_is_named(window, qtbot, run_to_end):
    chat = recorded("vllm-draft", "run-chat-sampled")
    plain = chat.cut(0, *(chunk.replace('"metrics"', '"left_out"') for chunk in chat.chunks))
    with FakeServer(vllm(chat=plain)) as fake:
        add(qtbot, window, fake.url)
        run_to_end(window)
    assert "inferred" in window.status.place.text()
    assert "--per-request-spec-decode-metrics" in window.status.stage.text()
    assert window.run_view.outcome[0] == "Done: stopped at the server's own length limit"


def test_a_draft_that_a_server_does_not_show_is_unknown_and_the_plot_by_position_is_empty(window, qtbot, run_to_end):
    chat = recorded("vllm-ngram", "run-chat-greedy")
    chat = chat.cut(0, *(chunk.replace('"metrics"', '"left_out"') for chunk in chat.chunks))
    with FakeServer(vllm("vllm-ngram", chat=chat)) as fake:
        add(qtbot, window, fake.url)
        run_to_end(window)
    page, found = window.measurements, window.run_view.steps
    hidden = next(step.index for step in found if step.may_hide_draft)
    assert page.acceptance.readout(hidden) == f"step {hidden + 1}: draft unknown"
    assert page.acceptance.details(hidden)[1] == ("accepted", "draft unknown")
    assert not page.acceptance.plain_bars.opts["height"].any()
    assert any(step.num_draft_tokens for step in found)
    assert (len(page.positions.counts), page.positions._hint.toPlainText()) == (0, UNKNOWN_HINT)


def test_a_text_that_comes_at_once_shows_no_speed(window, qtbot, run_to_end, monkeypatch):
    monkeypatch.setattr(steps, "SHORTEST_MS", 1e9)
    with FakeServer(vllm()) as fake:
        add(qtbot, window, fake.url)
        run_to_end(window)
    speed = window.measurements.tiles.speed
    assert (speed.value.text(), speed.note.toolTip().split("\n")[0]) == (UNKNOWN, "too few steps, or all came at once")


def test_stop_ends_the_request_on_the_server_and_keeps_the_text_so_far(window, qtbot):
    whole = llama_server()["/completion"]
    with FakeServer(llama_server(raw=whole.cut(4, Fault.WAITS))) as fake:
        add(qtbot, window, fake.url)
        window.prompt.run_button.click()
        until(qtbot, lambda: bool(window.run_view.steps))
        window.prompt.stop_button.click()
        until(qtbot, lambda: window.run_view.summary is not None and window.controller.state is RunState.IDLE)
        assert fake.hung_up.wait(10)
    assert window.run_view.outcome[1] == "Stopped"
    assert window.run_view.summary.text


def test_a_server_that_does_not_say_what_it_is_can_be_left_at_once(window, qtbot):
    page = "/v1/models"
    with FakeServer(llama_server()) as fake:
        add(qtbot, window, fake.url)
        fake.answers[page] = [Answer([Fault.WAITS])]
        window.prompt.run_button.click()
        until(qtbot, lambda: fake.requests[-1][0] == page)
        window.prompt.stop_button.click()
        until(qtbot, lambda: fake.hung_up.is_set() and window.controller.state is RunState.IDLE)
        assert (window.banner.sentence(), window.status.stage.text()) == ("", "The run did not start")
        dialog = window.controls.engine.dialog
        dialog.address.setText(fake.url)
        dialog.test_button.click()
        dialog.reject()
        until(qtbot, lambda: window.jobs.is_idle)


def test_a_key_on_the_closed_list_removes_no_server(make_window, qtbot, keys):
    window = make_window(is_shown=True)
    engine = window.controls.engine
    with FakeServer(vllm()) as fake:
        add(qtbot, window, fake.url, "Lab", "sesame")
        engine.combo.setFocus()
        qtbot.keyClick(engine.combo, Qt.Key.Key_End)
        qtbot.keyClick(engine.combo, Qt.Key.Key_R)
        assert (engine.url, list(engine.servers), keys) == (fake.url, [fake.url], {fake.url: "sesame"})
        assert engine.combo.currentText() == "Lab"
        served = window.controls.models.served_model
        window.controls.models.choose(ModelRole.TARGET, "HuggingFaceTB/SmolLM2-135M-Instruct")
        assert window.controls.models.served_model == served, "a model of this machine is none of the server's"


# --- Runs on servers -----------------------------------------------------------------------------------------------


ANSWERS = {"llama": llama_server(), "vllm": vllm(chat=recorded("vllm-draft", "run-chat-sampled"))}


def keep(folder: Path, fake: FakeServer) -> None:
    """Keep the log of a run on a server."""
    events = list(ServerSession(identify(fake.url)).run(a_request(engine=fake.url)))
    run_id = next(event.run_id for event in events if isinstance(event, RunStarted))
    folder.mkdir(parents=True)
    with RunLogWriter(folder / f"{run_id}.jsonl") as writer:
        for event in events:
            writer.write(event)


@pytest.mark.parametrize("name", list(ANSWERS))
def test_a_run_on_a_server_opens_on_every_page(name, open_runs, tmp_path, qtbot):
    with FakeServer(ANSWERS[name]) as fake:
        keep(tmp_path / "runs", fake)
    window, panel = open_runs(1)
    panel.table.activated.emit(panel.table.currentIndex())
    until(qtbot, lambda: shown_whole(window))
    steps = window.run_view.steps
    assert sum(len(step.emitted) for step in steps) == 24
    for index in range(window.side.count()):
        window.side.setCurrentIndex(index)
        for step in steps:
            window.selection.select(Place(step.index, step.slots[-1]))
            qtbot.wait(1)
    rejected = next(step for step in steps if step.num_draft_tokens)
    filters = replace(window.run_view.request.sampling, top_k=1_000_000, top_p=0.9)
    window.run_view.request = replace(window.run_view.request, sampling=filters)
    window.speed._show(speed_report(window.run_view))
    assert window.speed.headline.text() == ON_SERVER
    window.speed.copy_button.click()
    assert "\n" not in QGuiApplication.clipboard().text(), "not every shell continues a line with \\"
    words = shlex.split(QGuiApplication.clipboard().text())
    request = window.run_view.request
    asked = ["--target", request.target]
    asked += ["--temperature", str(request.sampling.temperature), "--top-k", "1000000", "--top-p", "0.9"]
    asked += [] if request.chat is None else ["--chat" if request.chat else "--raw"]
    assert words[:6] == ["outrider", "sweep", "--engine", request.engine, "--baseline-engine", "URL"]
    assert words[6:] == [*asked, "--max-new-tokens", str(request.max_new_tokens), "--out", "sweep.jsonl"]
    window.menus.show_ghosts.setChecked(True)
    assert window.run_view.summary.predicted_speedup is None
    assert window.run_view.target_step_ms is None
    assert rejected.emitted_kinds[-1] in {TokenKind.CORRECTION, TokenKind.BONUS}
    assert not window.run_view.busy_note


def test_a_request_for_a_server_runs_there_and_not_on_this_machine():
    with FakeServer(llama_server()) as fake:
        task = run_task(a_request(inspect=True, engine=fake.url), None)
        assert len(list(task.work(None, task.controls))) > 3  # Without an engine of this machine.
        assert fake.bodies("/completion")


def test_what_a_server_decides_stays_as_it_is_set_for_this_machine():
    current = RunSettings(method="prompt-lookup", num_draft_tokens=7, method_options={"draft-model": {"int8": False}})
    shown = settings_of(a_request(engine="http://box"), current)
    assert (shown.engine, shown.engine_model, shown.prompt, shown.max_new_tokens) == ("http://box", "smol", "Go", 24)
    assert replace(shown, engine="", engine_model="", prompt="", max_new_tokens=0, seed=0) == replace(
        current, engine="", engine_model="", prompt="", max_new_tokens=0, seed=0, temperature=shown.temperature
    )
