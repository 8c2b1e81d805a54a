"""How much of the processor the window leaves to the engine."""

import os

import pytest
from app.frame_pace import FRAME_MS, SLOWEST_FRAME_MS
from PySide6.QtCore import QEvent, QObject, QPoint, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from app.controller import RunState
from app.run import live as live_view
from app.run.run_view import RunView
from app.run.token_text import TokenText
from core.runlog.store import RunStore
from core.types import Finished, FinishReason, RunRequest, RunStarted, StageChanged
from tests.fakes_app import make_step, make_summary
from tests.fakes_runs import keep_run


def started(device: str, threads: object) -> RunView:
    run = RunView()
    run.started = RunStarted("id", "now", "1", {"device": device}, {"threads": threads})
    return run


@pytest.mark.parametrize(
    ("device", "threads", "takes_all"),
    [("cpu", os.cpu_count(), True), ("cpu", 0, False), ("cuda:0", os.cpu_count(), False), ("cpu", None, False)],
)
def test_drawing_holds_back_where_the_engine_computes_on_every_processor(device, threads, takes_all):
    assert live_view._takes_all_processors(started(device, threads)) is takes_all


def test_before_a_run_has_started_nothing_is_taken():
    assert not live_view._takes_all_processors(RunView())


def test_a_flood_of_events_is_taken_over_several_frames(window, monkeypatch):
    monkeypatch.setattr(live_view, "APPLY_S", 0.0)
    for index in range(3):
        window.controller._inbox.put(make_step(index, 3 * index))
    for number in (1, 2, 3, 3):
        window.live._on_frame()
        assert len(window.run_view.steps) == number


@pytest.fixture
def racing(window, monkeypatch):
    monkeypatch.setattr(live_view, "_takes_all_processors", lambda run: True)
    monkeypatch.setattr(window.controller, "_state", RunState.RUNNING)
    usual = QApplication.cursorFlashTime()
    QApplication.setCursorFlashTime(900)
    yield window
    QApplication.setCursorFlashTime(usual)


def test_beside_a_racing_engine_a_frame_waits_for_the_end_of_a_step_and_no_longer_than_for_one(racing, monkeypatch):
    live, drawn = racing.live, []
    monkeypatch.setattr(live, "_draw", lambda: drawn.append(live))
    live._on_frame()
    assert drawn == []
    live._on_frame()
    assert len(drawn) == 1
    racing.controller._state = RunState.PAUSED
    live._on_frame()
    assert len(drawn) == 2
    assert not racing.controller.handover.is_wanted


def test_what_a_turn_shows_is_painted_when_it_is_over(racing, qtbot, monkeypatch):
    painted = []
    real = TokenText.paintEvent
    monkeypatch.setattr(TokenText, "paintEvent", lambda view, event: (painted.append(view), real(view, event))[1])
    with qtbot.waitExposed(racing):
        racing.show()
    QApplication.processEvents()
    painted.clear()
    racing.controller._inbox.put(make_step(0, 0))
    racing.live._on_turn()
    assert racing.transcript.view in painted


def test_in_a_whole_run_each_turn_shows_the_step_that_the_engine_has_just_taken(window, session, qtbot, monkeypatch):
    monkeypatch.setattr(live_view, "_takes_all_processors", lambda run: run.started is not None)
    handover, counts = window.controller.handover, []
    offer, num_put = handover.offer, []

    def wanted_and_offered():
        num_put.append(None)
        handover.want()
        offer()
        counts.append((len(num_put), len(window.run_view.steps)))

    monkeypatch.setattr(handover, "offer", wanted_and_offered)
    monkeypatch.setattr("app.handover.MOST_S", 10.0)
    with qtbot.waitSignal(window.live.run_shown):
        window.prompt.run_button.click()
    shown = [steps for _, steps in counts]
    assert max(shown) == len(window.run_view.steps) > 1
    assert set(range(max(shown) + 1)) <= set(shown)
    assert not handover.is_wanted


def test_until_the_first_step_has_come_the_window_looks_for_it_at_every_frame(racing):
    live = racing.live
    live._pace.begin()
    live._on_turn()
    assert live._timer.interval() == FRAME_MS
    racing.controller._inbox.put(make_step(0, 0))
    live._on_turn()
    assert live._timer.interval() == SLOWEST_FRAME_MS


def test_a_caret_blinks_only_while_drawing_it_keeps_no_processor_from_the_engine(racing):
    racing.controller._inbox.put(make_step(0, 0))
    racing.live._on_turn()
    assert QApplication.cursorFlashTime() == 0
    racing.controller._state = RunState.PAUSED
    racing.live._on_turn()
    assert QApplication.cursorFlashTime() == 900
    racing.controller._state = RunState.RUNNING
    racing.live._on_turn()
    racing.live._on_run_ended()
    assert QApplication.cursorFlashTime() == 900


def test_with_the_first_text_the_status_says_that_text_comes(racing):
    racing.run_view.begin(RunRequest(target="t", draft="d", prompt="p"))
    racing.run_view.apply(started("cpu", os.cpu_count()).started)
    racing.run_view.apply(StageChanged("Reading the prompt…"))
    racing.live._on_turn()
    assert racing.status.stage.text() == "Reading the prompt…"
    for index in range(2):
        racing.controller._inbox.put(make_step(index, 3 * index))
        racing.live._on_turn()
        assert racing.status.stage.text() != "Reading the prompt…"


class NotedPanel(QWidget):
    """A panel that notes when it is told of a run, and in which turn of the event loop."""

    def __init__(self, told, turns):
        super().__init__()
        self._told, self._turns = told, turns

    def begin(self):
        self._told.append(("begin", len(self._turns)))

    def refresh(self, *, has_news):
        self._told.append(("refresh", len(self._turns)))

    def end(self):
        self._told.append(("end", len(self._turns)))


@pytest.fixture
def told(window, qtbot):
    """What two more panels of a window are told, with the number of the turn."""
    told, turns = [], []
    panels = [NotedPanel(told, turns), NotedPanel(told, turns)]
    for panel in panels:
        qtbot.addWidget(panel)
    window.live.attach(*panels)
    timer = QTimer(window)
    timer.timeout.connect(lambda: turns.append(None))
    timer.start(0)
    return told


def test_panels_begin_a_run_one_after_another_each_in_a_turn_of_its_own(window, told, qtbot):
    window.live._begin(RunRequest("t", "d", "p"))
    window.live._timer.stop()
    qtbot.waitUntil(lambda: len(told) == 2)
    (_, first), (_, second) = told
    assert 0 < first < second


@pytest.mark.parametrize("then", ["_on_frame", "_on_run_ended"])
def test_no_panel_is_shown_a_run_or_its_end_before_its_beginning(window, told, then):
    window.live._begin(RunRequest("t", "d", "p"))
    assert not told
    getattr(window.live, then)()
    window.live._endings.finish()
    assert [what for what, _ in told][:2] == ["begin", "begin"]
    assert len(told) == 4


def test_panels_show_the_end_of_a_run_one_after_another_before_it_is_said_that_it_is_shown(window, told, qtbot):
    window.live._begin(RunRequest("t", "d", "p"))
    window.live._beginnings.finish()
    told.clear()
    with qtbot.waitSignal(window.live.run_shown, timeout=20_000):
        window.live._on_run_ended()
        assert not told
    assert [what for what, _ in told] == ["end", "end"]


def test_a_run_that_begins_before_all_panels_show_the_end_of_the_one_before_has_them_show_it_first(window, told):
    shown = []
    window.live._begin(RunRequest("t", "d", "p"))
    window.live.run_shown.connect(lambda: shown.append(window.run_view.request.prompt))
    window.live._on_run_ended()
    window.live._begin(RunRequest("t", "d", "other"))
    assert shown == ["p"]
    assert [what for what, _ in told] == ["begin", "begin", "end", "end"]


def test_a_mouse_over_plots_of_the_run_before_does_no_harm(window, run_to_end, qtbot):
    with qtbot.waitExposed(window):
        window.show()
    run_to_end(window)
    window.live._begin(RunRequest("t", "d", "p"))
    for plot in (window.measurements.acceptance, window.measurements.latency):
        for x in range(0, plot.viewport().width(), 20):
            QTest.mouseMove(plot.viewport(), QPoint(x, plot.viewport().height() // 2))
            QApplication.sendPostedEvents()


def test_a_window_is_polished_and_laid_out_before_its_first_event(make_window, qapp):
    window = make_window()
    left = []

    class Counter(QObject):
        def eventFilter(self, watched, event):  # noqa: N802
            if event.type() == QEvent.Type.PolishRequest:
                left.append(watched)
            return False

    counter = Counter()
    window.show()
    qapp.installEventFilter(counter)
    QApplication.sendPostedEvents()
    qapp.removeEventFilter(counter)
    assert not left


def test_a_run_whose_last_events_are_a_flood_ends_when_all_of_it_is_shown(window, monkeypatch, qtbot):
    monkeypatch.setattr(live_view, "APPLY_S", 0.0)
    for index in range(4):
        window.controller._inbox.put(make_step(index, 3 * index))
    window.controller._inbox.put(Finished(make_summary([make_step(0, 0)], FinishReason.LENGTH)))
    shown, said = [], set()
    window.live.run_shown.connect(lambda: shown.append(len(window.run_view.steps)))
    show_stage = window.status.show_stage
    monkeypatch.setattr(window.status, "show_stage", lambda text: (said.add(text), show_stage(text)))
    window.run_view.begin(RunRequest("t", "d", "p"))
    window.controller._set_state(RunState.RUNNING)
    with qtbot.waitSignal(window.live.run_shown, timeout=20_000):
        window.controller._on_finished()
        assert shown == []
    assert shown == [4]
    assert said == {"Preparing…", "Done: reached the end of the model's context"}, "and at no time that nothing was run"
    assert window.run_view.summary is not None
    assert not window.live._timer.isActive()


def test_a_run_that_begins_while_the_end_of_the_one_before_is_being_shown_has_that_shown_first(window, monkeypatch):
    monkeypatch.setattr(live_view, "APPLY_S", 0.0)
    for index in range(4):
        window.controller._inbox.put(make_step(index, 3 * index))
    shown = []
    window.live.run_shown.connect(lambda: shown.append(len(window.run_view.steps)))
    window.live._on_run_ended()
    assert shown == []
    window.live._begin(RunRequest(target="t", draft="d", prompt="x"))
    window.live._on_frame()
    assert shown == [4]
    assert window.run_view.steps == []


def test_what_begins_a_run_when_the_one_before_is_shown_does_so_before_a_kept_run_is_opened(
    window, monkeypatch, qtbot, tmp_path
):
    """A branch waits for `run_shown`; a kept run that was asked for earlier may come in just then."""
    monkeypatch.setattr(live_view, "APPLY_S", 0.0)
    for index in range(4):
        window.controller._inbox.put(make_step(index, 3 * index))
    window.live._on_run_ended()
    begun = []
    window.live.run_shown.connect(lambda: begun.append(window.controller.start(RunRequest("t", "d", "branch"))))
    shown = []
    monkeypatch.setattr(window.live, "show_kept", lambda *args: shown.append(args))
    keep_run(tmp_path / "kept")
    (kept,) = RunStore(tmp_path / "kept").runs()
    window.runs.show(kept, RunRequest("t", "d", "kept"), (), [])
    assert begun == [True]
    assert shown == [], "the engine is busy by now"


def test_a_run_that_ends_before_the_engine_is_warmed_up_leaves_no_frames_behind(make_window, run_to_end):
    """They would say again and again that it is done, over what else there is to say."""
    window = make_window()
    run_to_end(window)
    window.live.watch_warm_up()
    assert not window.live._timer.isActive()
