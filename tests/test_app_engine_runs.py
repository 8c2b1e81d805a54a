"""Runs on servers in the window: opened with what the server told, on every page, and run again on their server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.run.speed.speed import ON_SERVER, speed_report
from app.run.text.tokens import Place
from app.settings import RunSettings
from app.setup.settings_panel import settings_of
from app.worker import run_task
from core.engines import ServerSession, identify
from core.runlog.log import RunLogWriter
from core.types import RunStarted, TokenKind
from tests.fake_servers import FakeServer, a_request, llama_server, recorded, vllm
from tests.fakes_runs import shown_whole, until

pytestmark = pytest.mark.usefixtures("keys")

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
    assert speed_report(window.run_view).headline == ON_SERVER
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
