"""`outrider sweep`: arguments, questions, streams, exit codes, stopping and resuming."""

import csv
import io
import re
import signal
import sys
from dataclasses import replace

import pytest

import app.cli.sweep as command
from app.__main__ import build_parser, main
from app.cli.sweep import FEW_PROMPTS, build_plan, write_results
from core.experiments.sweep_file import read_sweep
from core.experiments.sweep_plan import DrafterChoice
from core.experiments.sweep_results import SweepResults, verdicts
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, SMOLLM2_DRAFTER
from tests.fakes import is_sentence
from tests.fakes_cli import BrokenStream, refused
from tests.fakes_sweep import FakeSweepSession, events_of, fails_at, measured, plan_of

GRID = ["--k", "1-2", "--prompts", "code", "--num-prompts", "2", "--repeats", "2", "--max-new-tokens", "16"]
"""Two cells and a baseline, two prompts, twice: twelve runs."""

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def session(monkeypatch):
    fake = FakeSweepSession()
    monkeypatch.setattr(command, "make_engine", lambda: fake)
    return fake


@pytest.fixture
def terminal(monkeypatch):
    """A terminal on which somebody answers."""

    def answering(answer):
        monkeypatch.setattr(command, "is_terminal", lambda stream: True)
        monkeypatch.setattr("app.cli.console.is_terminal", lambda stream: True)
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer + "\n"))
        monkeypatch.setattr(command, "ASK_ABOVE", 5)

    return answering


def plan_for(*arguments):
    return build_plan(build_parser().parse_args(["sweep", "--out", "x", *arguments]))


# --- Arguments --------------------------------------------------------------------------------------------------


def test_with_no_flags_it_is_the_embedded_pair_on_a_few_prompts():
    plan = plan_for()
    assert (plan.target, plan.drafters) == (DEFAULT_TARGET, (DrafterChoice("draft-model", DEFAULT_DRAFT),))
    assert (plan.num_draft_tokens, plan.temperatures) == ((1, 2, 3, 4, 6, 8), (0.7,))
    assert len(plan.prompts) == FEW_PROMPTS
    assert {prompt.suite for prompt in plan.prompts} == {"code"}
    # The command of the README needs no question.
    plan = plan_for("--k", "1-8", "--temperature", "0,0.5,1")
    assert plan.num_cells == 24
    assert plan.num_runs <= command.ASK_ABOVE


def test_every_flag_reaches_the_plan(tmp_path):
    prompts = tmp_path / "own.txt"
    prompts.write_text("one\ntwo\n", "utf-8")
    grid = ["--k", "2,auto,4-5", "--temperature", "0, .5,0", "--prompts", str(prompts), "chat,maths", "--repeats", "5"]
    models = ["--target", "T", "--draft", "A,B", "--draft", "C", "--device", "cpu", "--dtype", "bfloat16", "--raw"]
    sampling = ["--top-k", "9", "--top-p", ".8", "--min-p", ".1", "--seed", "7", "--coupling", "gumbel"]
    sampling += ["--system", "Be brief."]
    assert plan_for("--draft", "A", "--verification", "block").verification == "block"
    plan = plan_for(*grid, *models, *sampling, "--max-new-tokens", "9", "--num-prompts", "1")
    assert [drafter.draft for drafter in plan.drafters] == ["A", "B", "C"]
    assert (plan.num_draft_tokens, plan.temperatures, plan.repeats) == ((2, "auto", 4, 5), (0.0, 0.5), 5)
    assert [prompt.suite for prompt in plan.prompts] == ["own", "chat", "maths"]
    assert (plan.target, plan.device, plan.dtype, plan.chat) == ("T", "cpu", "bfloat16", False)
    assert (plan.top_k, plan.top_p, plan.min_p, plan.seed, plan.coupling) == (9, 0.8, 0.1, 7, "gumbel")
    assert (plan.max_new_tokens, plan.system) == (9, "Be brief.")
    assert {plan.request(run).system for run in plan.order()} == {"Be brief."}


def test_methods_and_drafts_can_be_combined():
    plan = plan_for("--method", "draft-model:int8=no,prompt-lookup:max-ngram=5", "--draft", "A,B")
    assert [drafter.title for drafter in plan.drafters] == ["A:int8=no", "B:int8=no", "prompt-lookup:max-ngram=5"]
    assert plan_for("--target", "HuggingFaceTB/SmolLM2-135M-Instruct").drafters[0].draft == SMOLLM2_DRAFTER
    assert plan_for("--target", "T").drafters == (DrafterChoice("prompt-lookup"),)


def test_shapes_of_trees_are_cells_beside_a_chain(session, out, tmp_path, capsys):
    shapes = ["--method", "draft-model,draft-tree", "--draft", "A,B", "--depth", "2-3", "--rule", "independent,best"]
    plan = plan_for(*shapes, "--target", "T")
    assert len(plan.drafters) == 2 + 2 * 2 * 2
    assert plan.drafters[2].title == "A, draft-tree depth=2 rule=independent"
    assert plan.drafters[2].shape == {"depth": 2, "branching": 3, "rule": "independent"}
    assert set(plan.drafters[0].shape.values()) == {None}
    table = tmp_path / "cells.csv"
    arguments = ["--method", "draft-model,draft-tree", "--depth", "2,4", "--csv", str(table), "--out", str(out)]
    assert main(["sweep", *GRID, *arguments]) == 0
    assert "draft-tree depth=4" in capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(table.read_text("utf-8"))))
    assert [(row["depth"], row["rule"]) for row in rows[1:7:2]] == [
        ("", ""), ("2", "without-replacement"), ("4", "without-replacement")
    ]  # fmt: skip
    assert main(["export", str(out), "--csv", str(tmp_path / "runs.csv")]) == 0
    runs = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text("utf-8"))))
    assert {row["depth"] for row in runs if row["method"] == "draft-tree"} == {"2", "4"}


BAD = {
    "--k": ("65", "8-1", "1-8-9"),
    "--temperature": ("", "warm", "99", "nan"),
    "--repeats": ("0", "99999999"),
    "--max-new-tokens": ("0",),
    "--prompts": ("cod", "missing.jsonl"),
    "--num-prompts": ("0",),
    "--method": ("guessing", "generate", "prompt-lookup:max-ngram=99", "prompt-lookup:magic=1"),
    "--target": ("nobody/nothing",),
    "--draft": ("nobody/nothing",),
    "--out": ("", " ", "-", "missing/x", "."),
    "--csv": ("", "missing/x.csv", "./x"),
    "--logs": ("",),
    "--seed": ("-1",),
    "--depth": ("2",),
}
TOGETHER = [
    [],
    ["--out", "x", "--prompts"],
    ["--out", "x", "--method", "prompt-lookup", "--draft", "D"],
    ["--out", "x", "--method", "draft-model", "--target", "T"],
    *(
        ["--out", "x", "--method", "draft-tree", flag, value]
        for flag, value in (("--depth", "17"), ("--depth", "deep"), ("--depth", "4-2"), ("--rule", "worst"))
    ),
]


@pytest.mark.parametrize(
    "arguments", [*TOGETHER, *(["--out", "x", flag, value] for flag, values in BAD.items() for value in values)]
)
def test_bad_input_is_one_sentence(arguments, capsys, session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, "sweep", *arguments)
    assert is_sentence(said)
    assert "contender" not in said
    assert not session.calls
    assert not list(tmp_path.iterdir())


# --- A sweep ----------------------------------------------------------------------------------------------------


def test_a_sweep_prints_a_table_and_an_answer_and_writes_both_files(capsys, session, out, tmp_path):
    table = tmp_path / "t.csv"
    assert main(["sweep", *GRID, "--out", str(out), "--csv", str(table), "--logs", str(tmp_path / "logs")]) == 0
    captured = capsys.readouterr()
    words = captured.out.replace("\n", " ")
    assert "K = 2 with outrider-code-draft leads with 3.00× the speed of plain decoding" in words
    assert "* marks the cell with the highest median speedup at its temperature" in words
    assert [line.split()[0] for line in captured.out.splitlines()[3:7]] == ["K", "plain", "1", "2"]
    assert "Runs: 12 of 12, done" in captured.err
    assert "Loading T…" in captured.err
    assert len(captured.err.splitlines()) < 20
    assert len(read_sweep(out).measurements) == 12
    assert [row["speedup"] for row in csv.DictReader(table.open(encoding="utf-8"))] == ["", "2.0", "3.0"]
    assert len(list((tmp_path / "logs").iterdir())) == 12


def test_a_reader_that_goes_away_loses_no_table(monkeypatch, session, out, tmp_path):
    monkeypatch.setattr(sys, "stdout", BrokenStream())
    assert main(["sweep", *GRID, "--out", str(out), "--csv", str(tmp_path / "t.csv")]) == 130
    assert len((tmp_path / "t.csv").read_text("utf-8").splitlines()) == 4


def test_the_table_of_a_resumed_sweep_has_the_suites_of_its_file(session, out, tmp_path):
    table, files = tmp_path / "t.csv", [tmp_path / folder / "own.txt" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"{file}\n")
    sweep = ["sweep", *GRID, "--prompts", *map(str, files), "--out", str(out), "--csv", str(table)]
    assert main(sweep) == 0
    out.write_text(out.read_text("utf-8").replace("own (2)", "own of b"), "utf-8")
    assert main(sweep) == 0
    assert {row["suite"] for row in csv.DictReader(table.open(encoding="utf-8"))} == {"", "code", "own", "own of b"}


def test_several_suites_and_drafters_have_tables_of_their_own(capsys, monkeypatch, session, out):
    monkeypatch.setenv("COLUMNS", "160")
    several = ["--prompts", "code", "chat", "--num-prompts", "1", "--repeats", "1"]
    several += ["--method", "draft-model,prompt-lookup"]
    assert main(["sweep", *GRID, *several, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    for words in (
        "speedup by suite",
        "Temperature 0.7, outrider-code-draft",
        "Temperature 0.7, prompt-lookup",
        "A verdict needs",
    ):
        assert words in " ".join(text.split())
    _, _, by_suite = text.partition("speedup by suite")
    assert re.search(r"K = 2 with outrider-code-draft +3\.00× \(3\.00–3\.00\)", by_suite)


def test_the_terminal_says_once_and_before_the_verdicts_that_the_machine_was_busy(capsys):
    plan = plan_of(temperatures=(0.0, 1.0))
    runs = [replace(item, unsteadiness=0.9) for item in measured(events_of(plan, FakeSweepSession()))]
    results = SweepResults(plan, runs)
    write_results(results, verdicts(results))
    before, *after = " ".join(capsys.readouterr().out.split()).split("The machine was busy in 12 of 12 runs ")
    assert len(after) == 1
    assert "At temperature" not in before
    assert "At temperature 0: " in after[0]


def test_a_cell_that_fails_is_reported_and_the_rest_is_shown(capsys, session, out):
    session.on_run = fails_at(2)
    assert main(["sweep", *GRID, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("ran out of memory") == 1
    assert "Failed in K = 2" in captured.out
    assert "0 of 4" in captured.out
    session.on_run = lambda request, controls: fails_at(controls.num_draft_tokens or 99)(request, controls)
    assert main(["sweep", *GRID, "--out", str(out.with_name("none.jsonl"))]) == 1, "only the baseline was measured"


# --- Stopping and resuming --------------------------------------------------------------------------------------


def interrupting(session, at):
    """Press Ctrl-C in the middle of a run."""
    session.on_run = lambda *_: signal.raise_signal(signal.SIGINT) if len(session.calls) == at else None


def test_ctrl_c_stops_with_a_table_and_the_same_command_resumes(capsys, session, out):
    arguments = ["sweep", *GRID, "--out", str(out)]
    before = signal.getsignal(signal.SIGINT)
    interrupting(session, 5)
    assert main(arguments) == 130
    captured = capsys.readouterr()
    assert "Stopped after 4 of 12 runs; the same command resumes." in captured.err
    assert "runs" in captured.out
    assert signal.getsignal(signal.SIGINT) is before
    session.on_run = lambda *_: None
    assert main(arguments) == 0
    assert "already has 4 of 12 runs" in capsys.readouterr().err
    assert len(session.calls) == 5 + 8


def test_ctrl_c_while_models_load_exits_at_once(capsys, session, out):
    session.run = lambda request, controls: iter(signal.raise_signal(signal.SIGINT) or ())
    assert main(["sweep", *GRID, "--out", str(out)]) == 130
    assert capsys.readouterr().err.endswith("Stopped after 0 of 12 runs.\n")
    assert not out.exists()


def test_a_restart_that_is_stopped_resumes_without_the_flag(capsys, session, out):
    assert main(["sweep", *GRID, "--out", str(out)]) == 0
    interrupting(session, len(session.calls) + 3)
    assert main(["sweep", *GRID, "--out", str(out), "--restart"]) == 130
    assert "the same command without --restart resumes" in capsys.readouterr().err
    assert len(read_sweep(out).measurements) == 2


# --- Long sweeps ------------------------------------------------------------------------------------------------


def test_without_a_terminal_a_long_sweep_needs_yes(capsys, session, out, monkeypatch):
    message = refused(capsys, "sweep", *GRID, "--repeats", "120", "--out", out)
    assert is_sentence(message)
    assert "720 runs" in message
    assert "--yes" in message
    assert not session.warm_ups
    assert not out.exists()
    monkeypatch.setattr(command, "ASK_ABOVE", 5)
    assert main(["sweep", *GRID, "--yes", "--out", str(out)]) == 0
    assert "Continue?" not in capsys.readouterr().err
    # The file holds that sweep now, and no other may be written to it.
    message = refused(capsys, "sweep", *GRID, "--yes", "--temperature", "0", "--out", out)
    assert is_sentence(message)
    assert "the temperatures (0.7 there, 0 here)" in message


@pytest.mark.parametrize(("answer", "code", "count"), [("y", 0, 12), ("n", 130, 1), ("", 130, 1)])
def test_a_long_sweep_is_confirmed_once_its_duration_is_known(capsys, session, out, terminal, answer, code, count):
    terminal(answer)
    assert main(["sweep", *GRID, "--out", str(out)]) == code
    message = capsys.readouterr().err
    assert "11 runs are left, which will take about" in message
    assert len(session.calls) == count
    assert len(read_sweep(out).measurements) == count
