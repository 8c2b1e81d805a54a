"""`outrider bench`: arguments, streams, exit codes, the file it writes."""

import json
import re
import sys

import pytest

import core.experiments.bench as measuring
from app.__main__ import build_parser, main
from app.cli.bench import build_settings
from core.drafters.registry import METHODS
from core.experiments.contenders import Generate
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, SMOLLM2_DRAFTER
from tests.fakes import failing, is_sentence, save_model

QUICK = ["--rounds", "1", "--max-new-tokens", "4", "--threads", "1", "--temperature", "0"]
OURS = ["--only", "generate,plain,prompt-lookup"]

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("models") / "ein Modell", max_position_embeddings=512))


def settings_of(*arguments):
    return build_settings(build_parser().parse_args(["bench", *arguments]))


# --- Arguments --------------------------------------------------------------------------------------------------


def test_without_flags_the_embedded_pair_is_used_and_otherwise_the_draft_follows_from_the_target():
    settings = settings_of()
    assert (settings.target, settings.draft, settings.num_draft_tokens) == (DEFAULT_TARGET, DEFAULT_DRAFT, 4)
    assert (settings.temperatures, settings.max_new_tokens, settings.only) == ((0.0, 1.0), 64, ())
    assert settings_of("--target", "T").draft is None
    assert settings_of("--target", DEFAULT_TARGET).draft == DEFAULT_DRAFT
    assert settings_of("--target", "HuggingFaceTB/SmolLM2-135M-Instruct").draft == SMOLLM2_DRAFTER
    settings = settings_of("--draft-layers", "2")
    assert (settings.draft, settings.draft_layers) == (None, 2)


def test_every_flag_reaches_the_settings():
    models = ["--target", "T", "--draft", "D", "--device", "cpu", "--dtype", "bfloat16"]
    contest = ["-k", "2", "--temperature", "0, .5,0", "--max-new-tokens", "9", "--rounds", "3", "--seed", "7"]
    contest += ["--verification", "block"]
    settings = settings_of(*models, *contest, "--threads", "2", "--only", "plain, auto,plain", "--llama-cpp", "L")
    assert (settings.target, settings.draft, settings.device, settings.dtype) == ("T", "D", "cpu", "bfloat16")
    assert (settings.num_draft_tokens, settings.temperatures, settings.max_new_tokens) == (2, (0.0, 0.5), 9)
    assert (settings.rounds, settings.seed, settings.threads, settings.only) == (3, 7, 2, ("plain", "auto"))
    assert (settings.llama_cpp, settings.verification) == ("L", "block")


BAD = {
    "-k": ("0", "65", "auto"),
    "--rounds": ("0",),
    "--max-new-tokens": ("0",),
    "--temperature": ("hot", ",", "-1"),
    "--threads": ("0",),
    "--seed": ("-1",),
    "--only": ("nobody", "plain:x=1"),
    "--draft-layers": ("0",),
    "--out": ("{tmp}", "{tmp}/none/x.json"),
    "--llama-cpp": ("{tmp}", "{tmp}/empty"),
    "--prompts": ("{tmp}/none", "{tmp}/empty"),
    "--device": ("tpu",),
    "--target": ("{tmp}/none",),
}
TOGETHER = [
    ["--draft-layers", "2", "--draft", "D"],
    ["--target", "{target}", "--draft-layers", "3"],
    ["--target", "{target}", "--max-new-tokens", "512"],
    ["--target", "{target}", "--only", "assisted"],
]


@pytest.mark.parametrize("arguments", [*TOGETHER, *([flag, value] for flag, values in BAD.items() for value in values)])
def test_bad_input_is_a_sentence_and_exit_code_2(arguments, tmp_path, target, capsys):
    (tmp_path / "empty").write_text("\n")
    assert main(["bench", *(argument.format(tmp=tmp_path, target=target) for argument in arguments)]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert is_sentence(said.splitlines()[-1])
    assert "unexpectedly" not in said


# --- A whole bench ----------------------------------------------------------------------------------------------


def test_the_table_goes_to_stdout_and_the_rest_to_stderr(target, capsys):
    assert main(["bench", "--target", target, *QUICK, *OURS]) == 0
    out, said = capsys.readouterr()
    lines = out.splitlines()
    assert "ein Modell, without a draft model, K = 4" in lines[0]
    header = next(line for line in lines if line.startswith("contender"))
    assert "× generate" in header
    assert "× assisted" not in header  # It did not run.
    for title in ("transformers generate", "plain decoding", "prompt lookup"):
        assert sum(line.startswith(title) for line in lines) == 1
    assert "Round 1 of 1" in said
    assert "tokens/s" not in said


STALLS = """
import torch
from core.drafters.base import chain

class Stalls:
    needs = frozenset()
    count = 0
    def __init__(self, setup, options): pass
    def start(self, prompt): pass
    def propose(self, context):
        self.count += 1
        sum(range(3_000_000 if self.count % 4 == 0 else 0))
        return chain(torch.full((context.num_draft_tokens,), 1), None)
    def observe(self, outcome): pass
"""


def test_a_bench_of_short_runs_says_that_the_machine_was_busy_and_how_long_it_takes(
    target, tmp_path, capsys, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(METHODS, "_methods", dict(METHODS))
    (tmp_path / "stalls.py").write_text(STALLS)
    only = ["--only", "stalls:Stalls", "-k", "1", "--rounds", "3", "--max-new-tokens", "6"]
    assert main(["bench", "--target", target, *QUICK, *only]) == 0
    out, said = capsys.readouterr()
    assert (
        "The machine was busy: steps with the same work varied widely in time. Repeat the bench when it is idle." in out
    )
    assert re.search(r"^Round 1 of 3 .*, about .+ left$", said, re.MULTILINE)


@pytest.mark.parametrize(("only", "is_lossy"), [("generate,plain", False), ("plain,prompt-lookup", True)])
def test_a_bench_is_called_lossy_only_where_a_contender_drafts(target, capsys, only, is_lossy):
    assert main(["bench", "--target", target, *QUICK, "--verification", "typical", "--only", only]) == 0
    assert ("Lossy: " in capsys.readouterr().out) is is_lossy


def test_absent_contenders_are_listed_with_the_reason(target, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashspec", None)
    assert main(["bench", "--target", target, *QUICK]) == 0
    out = capsys.readouterr().out
    assert "Not run: assisted. There is no draft model" in out
    assert "Not run: flashspec." in out
    assert "Not run: llama.cpp. Name a build" in out


def test_a_contender_is_absent_where_it_fails_with_each_reason(target, tmp_path, capsys, monkeypatch):
    run, reasons = Generate.run, ("no kernel", "probability tensor contains inf")

    def fail_when_warm(self, ids, *, temperature, seed):
        if temperature:
            raise RuntimeError(reasons[temperature >= 1])
        return run(self, ids, temperature=temperature, seed=seed)

    monkeypatch.setattr(Generate, "run", fail_when_warm)
    arguments = ["--target", target, *QUICK, "--temperature", "0,0.5,1,2", *OURS, "--out", str(tmp_path / "out.json")]
    assert main(["bench", *arguments]) == 0
    out = capsys.readouterr().out
    assert f"Not run at temperature 0.5: generate. It failed: {reasons[0]}." in out
    assert f"Not run at temperature 1, 2: generate. It failed: {reasons[1]}." in out
    document = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert document["absent"] == [
        {"name": "generate", "reason": f"It failed: {reason}.", "temperatures": at}
        for reason, at in zip(reasons, ([0.5], [1.0, 2.0]), strict=True)
    ]
    assert [row["temperature"] for row in document["results"] if row["name"] == "generate"] == [0.0]


def test_the_file_is_written_completely(target, tmp_path, capsys):
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


@pytest.mark.parametrize(("only", "draft"), [("plain,prompt-lookup", None), ("plain,auto", DEFAULT_DRAFT)])
def test_the_embedded_draft_is_neither_loaded_nor_named_where_no_contender_drafts_with_it(
    tmp_path, capsys, only, draft
):
    path = tmp_path / "out.json"
    assert main(["bench", *QUICK, "--only", only, "--out", str(path)]) == 0
    named = f"drafted by {draft}" if draft else "without a draft model"
    assert f"{named}, K = 4" in " ".join(capsys.readouterr().out.split())
    assert json.loads(path.read_text("utf-8"))["config"]["draft"] == draft


@pytest.mark.parametrize(("flag", "name"), [("--draft", "no/such-model"), ("--draft-layers", "3")])
def test_a_draft_that_the_user_names_is_loaded_or_refused_even_if_no_contender_drafts_with_it(
    target, capsys, flag, name
):
    asked = ["bench", "--target", target, *QUICK, "--only", "plain", flag]
    assert main([*asked, name]) != 0
    assert {"--draft": name, "--draft-layers": "not 3"}[flag] in " ".join(capsys.readouterr().err.split())
    if flag == "--draft-layers":
        assert main([*asked, "1"]) == 0
        assert f"drafted by {target}, 1 layers" in " ".join(capsys.readouterr().out.split())


def test_a_stopped_bench_leaves_no_file(target, tmp_path, capsys, monkeypatch):
    path = tmp_path / "out.json"
    before = '{"schema": "outrider.bench/1"}'
    path.write_text(before)
    monkeypatch.setattr(measuring.Bench, "_run", failing(KeyboardInterrupt()))
    assert main(["bench", "--target", target, *QUICK, *OURS, "--out", str(path)]) == 130
    out, said = capsys.readouterr()
    assert (out, path.read_text()) == ("", before)
    assert said.endswith("Stopped.\n")


@pytest.mark.slow
def test_memory_is_measured_in_a_separate_process(target, tmp_path):
    path = tmp_path / "out.json"
    arguments = ["--target", target, *QUICK, "--only", "plain", "--memory", "--out", str(path)]
    assert main(["bench", *arguments]) == 0
    [row] = json.loads(path.read_text("utf-8"))["results"]
    assert row["peak_memory_mb"] >= 0
    assert row["needed_memory_mb"] > 0
