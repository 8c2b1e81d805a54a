"""`outrider bench --ui`: the window beside runs without it, and how long its thread is kept from its events."""

import itertools
import re
import signal
import sys
import types
from dataclasses import replace

import pytest
from PySide6.QtWidgets import QApplication

from app.__main__ import build_parser
from app.bench_window import wait
from app.cli.bench.arguments import NEW_TOKENS_UI, build_settings
from app.cli.bench.ui import build_requests, ratio_text
from app.cli.run import print_run
from app.cli.text import _VISIBLE_CONTROLS
from app.clocked_runs import HeadlessProcess, Speeds
from app.scripted_run import TOKENS_PER_STEP, ScriptedRun
from app.turns import Turns
from core.bench.statistics import spread
from core.controls import RunControls
from core.errors import ModelNotFoundError, OutriderError, RunLogError
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.trace import read_run_log
from core.types import Finished, RunRequest, Step
from tests.fakes import save_model


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    import app.ui_bench
    import app.ui_long

    monkeypatch.setattr(app.ui_bench, "FIRST_LOOK_MS", 0)
    monkeypatch.setattr(app.ui_bench, "START_MS", 0)
    monkeypatch.setattr(app.ui_bench, "SETTLE_MS", 0)
    monkeypatch.setattr(app.ui_long, "SETTLE_MS", 50)


def settings_of(*arguments):
    return build_settings(build_parser().parse_args(["bench", *arguments]))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("models") / "a model", max_position_embeddings=512))


def test_the_windows_run_is_that_of_the_arguments():
    [first, *_] = build_requests(settings_of("--ui", "--temperature", "0,1", "-k", "2"), None)
    assert (first.target, first.draft, first.method) == (DEFAULT_TARGET, DEFAULT_DRAFT, "draft-model")
    assert (first.num_draft_tokens, first.sampling.temperature, first.max_new_tokens) == (2, 1.0, NEW_TOKENS_UI)
    assert build_requests(settings_of("--ui", "--target", "T"), None)[0].method == "prompt-lookup"


def request(**changes):
    return RunRequest(target="t", draft="d", prompt="Hi", max_new_tokens=40, **changes)


def test_a_scripted_run_is_a_run():
    events = list(ScriptedRun(10, 1e6).run(request(), RunControls()))
    steps = [event for event in events if isinstance(event, Step)]
    assert len(steps) == 10
    assert all(after.position == before.position + TOKENS_PER_STEP for before, after in itertools.pairwise(steps))
    assert isinstance(events[-1], Finished)
    assert events[-1].summary.num_tokens == 10 * TOKENS_PER_STEP


def test_stalls_are_the_longest_and_the_99th_percentile():
    from app.heartbeat import stalls

    beats = [(0.0, 0.006)] * 199 + [(1.0, 1.085)]
    found = stalls(beats)
    assert (found.longest_ms, found.with_halts_ms, found.num_beats) == (pytest.approx(80), pytest.approx(80), 200)
    assert 1.0 <= found.p99_ms < 80.0
    assert stalls([]).longest_ms == 0.0
    # Another core's halt overlaps this one's, and a third was before.
    halts = [(0.5, 0.6), (1.01, 1.03), (1.02, 1.04)]
    found = stalls(beats, halts)
    assert (found.longest_ms, found.with_halts_ms) == (pytest.approx(50), pytest.approx(80))
    assert stalls(beats, [(0.9, 2.0)]).longest_ms == pytest.approx(1)


def test_the_window_and_the_session_take_turns(sound_binding, qtbot):
    from app.ui_bench import bench_live, sum_up

    seen = []
    asked = []

    def outside(place, speeds):
        def run(wanted):
            asked.append((place, wanted.inspect))
            return speeds

        return run

    runs = bench_live(
        lambda: ScriptedRun(20, 1e6),
        outside("terminal", Speeds(40.0, 25.0, 80)),
        outside("alone", Speeds(50.0, 40.0, 80)),
        [request()],
        2,
        lambda what, done, total: seen.append(what),
    )
    figures = sum_up([runs])
    assert len(figures.window.values) == len(figures.headless.values) == len(figures.ratio.values) == 2
    assert (figures.terminal.values, figures.headless.values) == ((40.0, 40.0), (50.0, 50.0))
    assert figures.terminal_ratio.values == pytest.approx([told / 40 for told in figures.window.values])
    assert figures.ratio.values == pytest.approx([told / 50 for told in figures.window.values])
    assert figures.terminal_wall_ratio.values == pytest.approx([wall * 40 / 25 for wall in figures.wall_ratio.values])
    assert figures.stalls.num_beats > 0
    assert figures.environment == {"device_name": "script"}
    order = [what.split(", ")[1].split()[-1] for what in seen if what.startswith("Round")]
    assert order == ["window", "terminal", "alone", "terminal", "alone", "window", "alone", "window", "terminal"]
    # The same run in the terminal keeps what the window keeps; the engine alone keeps nothing.
    assert set(asked) == {("terminal", True), ("alone", False)}


def test_a_text_that_ends_early_is_not_timed(sound_binding, qtbot):
    from app.ui_bench import bench_live

    short, long = replace(request(), prompt="short", max_new_tokens=80), replace(request(), max_new_tokens=80)
    asked = []

    def run_headless(wanted):
        asked.append(wanted.prompt)
        return Speeds(50.0, 40.0, 3 if wanted.prompt == "short" else 80)

    bench_live(lambda: ScriptedRun(20, 1e6), lambda _: Speeds(50.0, 40.0, 80), run_headless, [short, long], 3)
    assert asked == ["short", long.prompt, *[long.prompt] * 3]


def test_several_windows_are_summed_up_round_by_round_and_by_the_worst_stall():
    from app.heartbeat import Stalls
    from app.ui_bench import LiveRuns, sum_up

    rounds = [
        ((90.0, 80.0), (90.0, 100.0), (100.0, 100.0)),
        ((99.0, 95.0), (90.0, 100.0), (100.0, 100.0)),
        ((50.0, 48.0), (40.0, 40.0), (50.0, 50.0)),
    ]
    windows = [
        LiveRuns(
            *((Speeds(*speeds, 256),) for speeds in places),
            Stalls(2 * longest, 1.0, 5),
            Stalls(longest, 1.0, 10),
            growth,
            {"torch": "2"},
        )
        for places, longest, growth in zip(rounds, (5.0, 30.0, 7.0), (1.0, -2.0, 3.0), strict=True)
    ]
    figures = sum_up(windows)
    assert figures.ratio.values == pytest.approx((0.9, 0.99, 1.0))
    assert figures.wall_ratio.values == pytest.approx((0.8, 0.95, 0.96))
    assert figures.terminal_ratio.values == pytest.approx((1.0, 1.1, 1.25))
    assert figures.terminal_wall_ratio.values == pytest.approx((0.8, 0.95, 1.2))
    assert (figures.started, figures.stalls) == (Stalls(60.0, 1.0, 15), Stalls(30.0, 1.0, 30))
    assert (figures.memory_growth_mb, figures.environment) == (3.0, {"torch": "2"})


def test_what_goes_wrong_in_the_process_of_a_window_is_told_in_a_sentence(monkeypatch):
    from app.ui_visits import bench_visits

    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    with pytest.raises(OutriderError, match="nowhere"):
        bench_visits([replace(request(), target="nowhere")], 1, lambda *_: None)


def test_a_long_text_is_shown_scrolled_and_redrawn(sound_binding, qtbot, monkeypatch):
    import app.ui_long as ui_long

    monkeypatch.setattr(ui_long, "NUM_STOPS", 5)
    seen = set()

    def is_busy():
        return any(turns.is_going for top in QApplication.topLevelWidgets() for turns in top.findChildren(Turns))

    def look(show):
        show()
        wait(50)
        qtbot.waitUntil(lambda: not is_busy())
        seen.update(widget.objectName() for widget in QApplication.topLevelWidgets() if widget.isVisible())

    monkeypatch.setattr(ui_long, "_open", look)
    figures = ui_long.bench_long(request(), num_steps=50, steps_per_second=1e6)
    assert (figures.num_steps, figures.num_tokens) == (50, 200)
    assert {"Inspector", "Race", "How it works", "Runs", "Get models", "Sweep"} <= figures.opened.keys()
    assert not {"Live", "Transcript"} & figures.opened.keys(), "they are in front by themselves"
    tools = {"sweepWindow", "checkWindow", "probeWindow", "productionPage"}
    assert {"mainWindow", "helpPage", "runsWindow", "modelsWindow", *tools} <= seen
    measured = [getattr(figures, name) for name in ("shown", "scrolled", "redrawn", "dressed", "all_dressed")]
    assert figures.memory_mb > 0
    measured += [figures.kept, figures.inspected, figures.scrubbed]
    assert all(part.num_beats > 0 for part in (*measured, *figures.opened.values()))


def test_a_kept_run_that_does_not_open_is_an_error(sound_binding, qtbot, monkeypatch):
    import app.run_reader as run_reader
    import app.ui_long as ui_long

    def refuse(*_args, **_kwargs):
        raise RunLogError("It is damaged.")

    monkeypatch.setattr(run_reader, "read_run_log", refuse)
    monkeypatch.setattr(ui_long, "NUM_STOPS", 2)
    monkeypatch.setattr(ui_long, "_change_look", lambda window: None)
    monkeypatch.setattr(ui_long, "_first_openings", lambda window: [("Runs", window.menus.runs.trigger)])
    with pytest.raises(OutriderError, match="damaged"):
        ui_long.bench_long(request(), num_steps=20, steps_per_second=1e6)


def test_a_run_that_fails_in_the_window_is_an_error(sound_binding, qtbot):
    from app.ui_bench import bench_live

    class Failing(ScriptedRun):
        def run(self, request, controls):
            raise ModelNotFoundError("There is no model 't' here.")
            yield

    with pytest.raises(OutriderError, match="no model 't'"):
        bench_live(lambda: Failing(1, 1.0), *[lambda _: Speeds(1.0, 1.0, 1)] * 2, [request()], 1)


def test_a_process_of_its_own_runs_a_request_and_hands_its_errors_back(target, capfd):
    wanted = replace(request(), target=target, draft=None, method="prompt-lookup", max_new_tokens=4, inspect=True)
    with HeadlessProcess() as headless:
        for run in (headless.run, headless.run_in_terminal):
            speeds = run(wanted)
            assert speeds.told > 0
            assert speeds.wall > 0
            assert speeds.num_tokens == 4
            with pytest.raises(OutriderError, match="nowhere"):
                run(replace(request(), target="nowhere"))
    assert capfd.readouterr() == ("", "")


def test_a_run_in_the_terminal_is_printed_in_colour_and_kept_whole(target, tmp_path, monkeypatch):
    import app.clocked_runs as clocked

    seen, logs = [], []

    class Screen(clocked._Screen):
        def write(self, text):
            seen.append(text)
            return super().write(text)

    def keep(wanted, engine, log_path):
        print_run(wanted, engine, log_path)
        logs.append(read_run_log(log_path))

    monkeypatch.setattr(clocked, "_Screen", Screen)
    monkeypatch.setattr(clocked, "print_run", keep)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    wanted = replace(request(), target=target, draft=None, method="prompt-lookup", max_new_tokens=4, inspect=True)
    clocked.run_in_terminal_here(wanted)
    (log,) = logs
    shown = log.summary["text"].translate(_VISIBLE_CONTROLS)
    assert shown in re.sub(r"\x1b\[[\d;]*m", "", "".join(seen))
    assert "\x1b[" in "".join(seen)
    assert all(step["evidence"] for step in log.steps)


@pytest.mark.skipif(sys.platform == "win32", reason="signals reach a process differently there")
def test_ctrl_c_ends_a_run_in_the_window(sound_binding, qtbot):
    from app.ui_long import bench_long

    class Interrupted(ScriptedRun):
        def run(self, request, controls):
            for event in super().run(request, controls):
                if isinstance(event, Step) and event.index == 3:
                    signal.raise_signal(signal.SIGINT)
                yield event

    import app.ui_long as ui_long

    before = signal.getsignal(signal.SIGINT)
    original, ui_long.ScriptedRun = ui_long.ScriptedRun, Interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            bench_long(request(), num_steps=500, steps_per_second=1_000)
    finally:
        ui_long.ScriptedRun = original
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("median", "apart", "told"),
    [
        (0.97, 0.01, "as wanted, at least 0.97"),
        (0.96, 0.02, "too unsure to tell it from what is wanted, at least 0.97"),
        (0.96, 0.005, "not as wanted, at least 0.97"),
    ],
)
def test_a_ratio_is_told_with_how_sure_it_is(median, apart, told):
    text = ratio_text(spread([median + apart * (index - 4) / 3 for index in range(9)]))
    # Of nine, one lies beyond on each side.
    sure = f"{median - apart:.3f}–{median + apart:.3f} with 95 % confidence, 9 rounds in several processes"
    assert text.split("; ") == [sure, told]


def test_a_window_is_measured_when_it_imports_nothing_any_more(monkeypatch):
    from app import ui_bench

    names = iter(["nowhere.first", "nowhere.second"])
    waits = []

    def import_another(milliseconds):
        waits.append(milliseconds)
        if name := next(names, None):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    monkeypatch.setattr(ui_bench, "wait", import_another)
    ui_bench._wait_for_imports()
    assert len(waits) == 3
