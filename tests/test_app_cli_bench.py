"""`outrider bench`: arguments, streams, exit codes, the file it writes, and the window's part."""

import itertools
import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

import core.bench.measure as measuring
from app.__main__ import build_parser, main
from app.cli.bench.arguments import NEW_TOKENS, NEW_TOKENS_UI, build_settings
from app.cli.bench.ui import build_requests
from app.clocked_runs import HeadlessProcess, Speeds
from app.scripted_run import TOKENS_PER_STEP, ScriptedRun
from core.controls import RunControls
from core.errors import ModelNotFoundError, OutriderError
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, SMOLLM2_DRAFTER
from core.types import Finished, RunRequest, Step
from tests.fakes import is_sentence, save_model

QUICK = ["--rounds", "1", "--max-new-tokens", "4", "--threads", "1", "--temperature", "0"]
OURS = ["--only", "generate,plain,prompt-lookup"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "OUTRIDER_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    # So that no test leaves them behind.
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("models") / "ein Modell", max_position_embeddings=512))


def settings_of(*arguments):
    return build_settings(build_parser().parse_args(["bench", *arguments]))


# --- Arguments --------------------------------------------------------------------------------------------------


def test_with_no_flags_it_is_the_embedded_pair():
    settings = settings_of()
    assert (settings.target, settings.draft, settings.num_draft_tokens) == (DEFAULT_TARGET, DEFAULT_DRAFT, 4)
    assert (settings.temperatures, settings.max_new_tokens, settings.only) == ((0.0, 1.0), NEW_TOKENS, ())


def test_every_flag_reaches_the_settings():
    models = ["--target", "T", "--draft", "D", "--device", "cpu", "--dtype", "bfloat16"]
    contest = ["-k", "2", "--temperature", "0, .5,0", "--max-new-tokens", "9", "--rounds", "3", "--seed", "7"]
    settings = settings_of(*models, *contest, "--threads", "2", "--only", "plain, auto,plain")
    assert (settings.target, settings.draft, settings.device, settings.dtype) == ("T", "D", "cpu", "bfloat16")
    assert (settings.num_draft_tokens, settings.temperatures, settings.max_new_tokens) == (2, (0.0, 0.5), 9)
    assert (settings.rounds, settings.seed, settings.threads, settings.only) == (3, 7, 2, ("plain", "auto"))


def test_the_draft_follows_from_the_target():
    assert settings_of("--target", "T").draft is None
    assert settings_of("--target", DEFAULT_TARGET).draft == DEFAULT_DRAFT
    assert settings_of("--target", "HuggingFaceTB/SmolLM2-135M-Instruct").draft == SMOLLM2_DRAFTER
    settings = settings_of("--draft-layers", "2")
    assert (settings.draft, settings.draft_layers) == (None, 2)


def test_with_the_window_runs_are_longer():
    assert settings_of("--ui").max_new_tokens == NEW_TOKENS_UI
    assert settings_of("--ui", "--max-new-tokens", "5").max_new_tokens == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ["-k", "0"],
        ["-k", "17"],
        ["-k", "auto"],
        ["--rounds", "0"],
        ["--max-new-tokens", "0"],
        ["--temperature", "hot"],
        ["--temperature", ","],
        ["--temperature=-1"],
        ["--threads", "0"],
        ["--seed", "-1"],
        ["--only", "nobody"],
        ["--only", "plain:x=1"],
        ["--draft-layers", "0"],
        ["--draft-layers", "2", "--draft", "D"],
        ["--out", "{tmp}"],
        ["--out", "{tmp}/none/x.json"],
        ["--prompts", "{tmp}/none"],
        ["--prompts", "{tmp}/empty"],
        ["--device", "tpu"],
        ["--target", "{tmp}/none"],
        ["--target", "{target}", "--draft-layers", "3"],
        ["--target", "{target}", "--max-new-tokens", "512"],
        ["--target", "{target}", "--only", "assisted"],
        ["--ui", "--only", "plain"],
        ["--ui", "--draft-layers", "1"],
        ["--ui", "--memory"],
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(arguments, tmp_path, target, capsys):
    (tmp_path / "empty").write_text("\n")
    arguments = [argument.format(tmp=tmp_path, target=target) for argument in arguments]
    assert main(["bench", *arguments]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert is_sentence(said.splitlines()[-1])
    assert "unexpectedly" not in said


# --- A whole bench ----------------------------------------------------------------------------------------------


def test_the_table_goes_to_stdout_and_the_rest_to_stderr(target, capsys):
    assert main(["bench", "--target", target, *QUICK, *OURS]) == 0
    out, said = capsys.readouterr()
    lines = out.splitlines()
    assert "ein Modell, drafted by no draft model, K = 4" in lines[0]
    header = next(line for line in lines if line.startswith("contender"))
    assert "× generate" in header
    assert "× assisted" not in header  # It did not run.
    for title in ("transformers generate", "plain decoding", "prompt lookup"):
        assert sum(line.startswith(title) for line in lines) == 1
    assert "Round 1 of 1" in said
    assert "tokens/s" not in said


def test_who_is_absent_is_told_with_the_reason(target, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashspec", None)
    assert main(["bench", "--target", target, *QUICK]) == 0
    out = capsys.readouterr().out
    assert "Not run: assisted. There is no draft model" in out
    assert "Not run: flashspec." in out


def test_a_truncated_draft_is_made_and_named(target, capsys):
    assert main(["bench", "--target", target, *QUICK, "--draft-layers", "1", "--only", "assisted,draft-model"]) == 0
    out = capsys.readouterr().out
    assert "1 layers, K = 4" in " ".join(out.split())  # However long the paths before it are.
    assert "overhead" in out


def test_the_file_is_written_whole(target, tmp_path, capsys):
    path = tmp_path / "out.json"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    arguments = ["--target", target, *QUICK, *OURS, "--prompts", str(prompts), "--out", str(path)]
    assert main(["bench", *arguments]) == 0
    document = json.loads(path.read_text("utf-8"))
    assert document["schema"] == "outrider.bench/1"
    assert [item["name"] for item in document["results"]] == OURS[1].split(",")
    assert [item["text"] for item in document["config"]["prompts"]] == ["one", "two"]
    assert document["environment"]["threads"] == 1
    assert sorted(item.name for item in tmp_path.iterdir()) == ["out.json", "prompts.txt"]


def test_stopped_by_hand_it_leaves_no_file(target, tmp_path, capsys, monkeypatch):
    path = tmp_path / "out.json"
    path.write_text("before")

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring._Conductor, "_round", interrupted)
    assert main(["bench", "--target", target, *QUICK, *OURS, "--out", str(path)]) == 130
    out, said = capsys.readouterr()
    assert (out, path.read_text()) == ("", "before")
    assert said.endswith("Stopped.\n")


@pytest.mark.slow
def test_memory_is_asked_of_a_process_for_each(target, tmp_path):
    path = tmp_path / "out.json"
    arguments = ["--target", target, *QUICK, "--only", "plain", "--memory", "--out", str(path)]
    assert main(["bench", *arguments]) == 0
    [row] = json.loads(path.read_text("utf-8"))["results"]
    assert row["peak_memory_mb"] >= 0
    assert row["needed_memory_mb"] > 0


def test_arguments_are_read_without_torch():
    code = "import app.__main__, sys; app.__main__.build_parser(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- The window -------------------------------------------------------------------------------------------------


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

    found = stalls([1.0] * 199 + [80.0])
    assert (found.longest_ms, found.num_beats) == (80.0, 200)
    assert 1.0 <= found.p99_ms < 80.0
    assert stalls([]).longest_ms == 0.0


def test_the_window_and_the_session_take_turns(sound_binding, qtbot):
    from app.ui_bench import bench_live, sum_up

    seen = []
    headless = iter([Speeds(50.0, 40.0, 80)] * 3)
    runs = bench_live(
        lambda: ScriptedRun(20, 1e6),
        lambda _: next(headless),
        [request()],
        2,
        lambda what, done, total: seen.append(what),
    )
    figures = sum_up([runs])
    assert len(figures.window.values) == len(figures.headless.values) == len(figures.ratio.values) == 2
    assert figures.headless.values == (50.0, 50.0)
    assert figures.ratio.median == pytest.approx(figures.window.median / 50, rel=0.5)
    assert figures.stalls.num_beats > 0
    assert figures.environment == {"device_name": "script"}
    order = ["in" in what.split(", ")[1].split() for what in seen if what.startswith("Round")]
    assert order == [False, True, True, False, False, True]


def test_a_text_that_ends_early_is_not_timed(sound_binding, qtbot):
    from app.ui_bench import bench_live

    short, long = replace(request(), prompt="short", max_new_tokens=80), replace(request(), max_new_tokens=80)
    asked = []

    def run_headless(wanted):
        asked.append(wanted.prompt)
        return Speeds(50.0, 40.0, 3 if wanted.prompt == "short" else 80)

    bench_live(lambda: ScriptedRun(20, 1e6), run_headless, [short, long], 3)
    assert asked == ["short", long.prompt, *[long.prompt] * 3]


def test_several_windows_are_summed_up_round_by_round_and_by_the_worst_stall():
    from app.heartbeat import Stalls
    from app.ui_bench import LiveRuns, sum_up

    pairs = [((90.0, 80.0), (100.0, 100.0)), ((99.0, 95.0), (100.0, 100.0)), ((50.0, 48.0), (50.0, 50.0))]
    windows = [
        LiveRuns((Speeds(*inside, 256),), (Speeds(*outside, 256),), Stalls(longest, 1.0, 10), growth, {"torch": "2"})
        for (inside, outside), longest, growth in zip(pairs, (5.0, 30.0, 7.0), (1.0, -2.0, 3.0), strict=True)
    ]
    figures = sum_up(windows)
    assert figures.ratio.values == pytest.approx((0.9, 0.99, 1.0))
    assert figures.wall_ratio.values == pytest.approx((0.8, 0.95, 0.96))
    assert figures.stalls == Stalls(30.0, 1.0, 30)
    assert (figures.memory_growth_mb, figures.environment) == (3.0, {"torch": "2"})


def test_what_goes_wrong_in_the_process_of_a_window_is_told_in_a_sentence(monkeypatch):
    from app.ui_visits import bench_visits

    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    with pytest.raises(OutriderError, match="nowhere"):
        bench_visits([replace(request(), target="nowhere")], 1, lambda *_: None)


def test_a_long_text_is_shown_scrolled_and_redrawn(sound_binding, qtbot, monkeypatch):
    import app.ui_bench as ui_bench

    monkeypatch.setattr(ui_bench, "SETTLE_MS", 50)
    monkeypatch.setattr(ui_bench, "SCROLL_STOPS", 5)
    figures = ui_bench.bench_long(request(), num_steps=50, steps_per_second=1e6)
    assert (figures.num_steps, figures.num_tokens) == (50, 200)
    assert all(part.num_beats > 0 for part in (figures.shown, figures.scrolled, figures.redrawn, figures.dressed))


def test_a_run_that_fails_in_the_window_is_an_error(sound_binding, qtbot):
    from app.ui_bench import bench_live

    class Failing(ScriptedRun):
        def run(self, request, controls):
            raise ModelNotFoundError("There is no model 't' here.")
            yield

    with pytest.raises(OutriderError, match="no model 't'"):
        bench_live(lambda: Failing(1, 1.0), lambda _: Speeds(1.0, 1.0, 1), [request()], 1)


def test_a_process_of_its_own_runs_a_request_and_hands_its_errors_back(target):
    with HeadlessProcess() as headless:
        speeds = headless.run(replace(request(), target=target, draft=None, method="prompt-lookup", max_new_tokens=4))
        assert speeds.told > 0
        assert speeds.wall > 0
        with pytest.raises(OutriderError, match="nowhere"):
            headless.run(replace(request(), target="nowhere"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals reach a process differently there")
def test_ctrl_c_ends_a_run_in_the_window(sound_binding, qtbot):
    from app.ui_bench import bench_long

    class Interrupted(ScriptedRun):
        def run(self, request, controls):
            for event in super().run(request, controls):
                if isinstance(event, Step) and event.index == 3:
                    signal.raise_signal(signal.SIGINT)
                yield event

    import app.ui_bench as ui_bench

    before = signal.getsignal(signal.SIGINT)
    original, ui_bench.ScriptedRun = ui_bench.ScriptedRun, Interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            bench_long(request(), num_steps=500, steps_per_second=1_000)
    finally:
        ui_bench.ScriptedRun = original
    assert signal.getsignal(signal.SIGINT) is before
