"""What holds for every command line: other names of flags, lists, misspelt names, examples, and shell completion."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.__main__ import COMMANDS, build_parser, main
from app.cli import check
from app.cli.console import Progress
from app.cli.errors import write_output
from app.cli.parsing import named_pair
from core.drafters.registry import METHODS
from core.settings import DType, declared
from tests.fakes_cache import Terminal
from tests.fakes_cli import outrider, refused, request_of

pytestmark = pytest.mark.usefixtures("clean_environment")
DOCUMENTS = [Path(__file__).parents[1] / name for name in ("README.md", "resources/docs/drafters.md")]
ACTIONS = [("models", action) for action in ("list", "get", "info", "remove", "check")]


def parsed(*arguments):
    return build_parser(arguments[0]).parse_args(arguments)


def help_of(capsys, *command):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


# --- Files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "run --prompt-file {read} --log {written} --force",
        "run Hi --target {read} --log {written} --force",
        "check --prompts code,{read} --json {written}",
        "check D {read} --json {written}",
        "sweep --prompts {read} --out new --csv {written}",
        "sweep --prompts {read} --out {written} --restart",
        "sweep --engine localhost:1 --prompts {read} --out {written}",
        "bench --prompts {read} --out {written}",
        "bench --llama-cpp {read} --out {written}",
        "run Hi --method medusa --heads {read} --log {written} --force",
        "probe --prompt-file {read} --json {written}",
        "probe --text-file {read} --json {written}",
        "probe --log {read} --draft a,b --json {written}",
        "export other {read} --html {written} --force",
        "export {read} --csv {written} --force",
        "distill T --texts-from {folder}/a --out {folder}",
        "distill {folder} --out {folder}",
    ],
)
def test_no_command_replaces_what_it_reads(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    read = tmp_path / "folder" / "a"
    read.write_text("precious")
    (tmp_path / "link").symlink_to(read)
    os.link(read, tmp_path / "twin")
    for written in (read, "link", "twin", "folder/../folder/a"):
        words = command.format(read="folder/a", written=written, folder="folder").split()
        assert re.search(
            r"would replace|choose another name|Choose a new|name another|is not a", refused(capsys, *words)
        )
    assert read.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "folder", "link", "twin"]


@pytest.mark.parametrize(
    "command",
    [
        "run --log notes.txt Hi",
        "check --json notes.txt",
        "check --engine localhost:1 --json notes.txt",
        "bench --out notes.txt",
        "probe --json notes.txt",
        "sweep --out new --csv notes.txt",
        "sweep --engine localhost:1 --target T --out notes.txt",
    ],
)
def test_results_replace_only_results_of_their_kind(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    for contents in ("precious", '{"schema": "outrider.other/1"}'):
        Path("notes.txt").write_text(contents)
        assert "choose another name" in refused(capsys, *command.split())
        assert Path("notes.txt").read_text() == contents
    assert os.listdir() == ["notes.txt"]


@pytest.mark.parametrize("command", ["check --json", "bench --out", "probe --json", "sweep --out new --csv"])
def test_a_dash_is_no_file_for_results(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert "in place of -" in refused(capsys, *command.split(), "-")


def test_a_text_is_no_file_and_a_device_holds_nothing_to_lose(play, tmp_path, monkeypatch):
    (tmp_path / "draft").touch()
    monkeypatch.chdir(tmp_path)
    for more in (["--stop", "draft", "--log", "draft"], ["--draft", os.devnull, "--log", os.devnull]):
        play()
        assert main(["run", "draft", *more]) == 0


# --- Names ------------------------------------------------------------------------------------------------------


def test_flags_have_the_names_that_other_programs_give_them():
    usual = ["--target", "T", "--draft", "D", "--max-new-tokens", "9", "--temperature", ".5", "-k", "3"]
    others = ["-m", "T", "-md", "D", "-n", "9", "--temp", ".5", "--num-draft-tokens", "3"]
    assert request_of(*others) == request_of(*usual)
    assert request_of("-m", "T", "-md", "D", "--max-tokens", "9").max_new_tokens == 9
    assert parsed("run", "-p", "Hi").prompt == "Hi"
    for command in ("bench", "sweep"):
        args = parsed(command, "-m", "T", "-md", "D", "--temp", "0", "-n", "5", "-k", "2", "--out", "x")
        assert (args.target, args.temperature, args.max_new_tokens) == ("T", (0.0,), 5)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", DType.BFLOAT16), ("fp16", DType.FLOAT16), ("fp32", "float32")])
def test_precisions_and_devices_have_short_names_and_indexes(name, dtype):
    assert request_of("--dtype", name).dtype is DType(dtype)
    for command in (["run"], ["check"], ["bench"], ["probe"], ["models", "check"], ["sweep", "--out", "x"]):
        args = parsed(*command, "--dtype", name, "--device", "cuda:1")
        assert (args.dtype, args.device) == (dtype, "cuda:1")


def test_the_prompt_needs_no_flag_and_is_given_once(play, capsys):
    engine = play()
    assert main(["run", "def f():", "-k", "0"]) == 0
    request = engine.requests[0]
    assert (request.prompt, request.num_draft_tokens, request.draft) == ("def f():", 0, None)
    assert outrider("again") == 2
    assert main(["run", "a", "--prompt-file", "f"]) == 2
    assert capsys.readouterr().err.count("There are two prompts") == 2


@pytest.mark.parametrize("command", [["check"], ["models", "check"]], ids=" ".join)
def test_models_are_named_by_flags_or_as_before_in_the_order_draft_target(command):
    expected = ("T", "D")
    for given in (["--target", "T", "--draft", "D"], ["-md", "D", "-m", "T"], ["D", "T"]):
        assert named_pair(parsed(*command, *given)) == expected
    assert named_pair(parsed(*command, "T")) == ("T", None)
    for wrong in (["D", "T", "X"], ["D", "--target", "T"]):
        assert main([*command, *wrong]) == 2


def test_lists_are_written_with_commas_by_repetition_or_both():
    args = parsed("sweep", "-k", "1-2", "-k", "auto,2", "--temp", "0,1", "--temp", ".5", "--out", "x")
    assert (args.k, args.temperature) == ((1, 2, "auto"), (0.0, 1.0, 0.5))
    for command in ("sweep --out x", "probe"):
        assert parsed(*command.split(), "--draft", "A,B", "--draft", "C,A").draft == ("A", "B", "C")
    for command in ("sweep --out x", "check"):
        given = parsed(*command.split(), "--prompts", "code,chat", "--prompts", "maths").prompts
        assert given == ("code", "chat", "maths")
    assert parsed("bench", "--only", "plain", "--only", "auto,plain").only == ("plain", "auto")
    assert parsed("bench", "--temperature", "1").temperature == (1.0,)
    assert parsed("bench").temperature == (), "nothing is left from before"


# --- Mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "meant", "command"),
    [
        (["run", "--temprature", "1", "--prompt", "Hi"], "--temperature", "outrider run"),
        (["sweep", "--promts", "code", "--out", "x"], "--prompts", "outrider sweep"),
        (["models", "lst"], "list", "outrider models"),
        (["models", "list", "--sugested"], "--suggested", "outrider models list"),
        (["export", "run.jsonl", "--cvs", "x"], "--csv", "outrider export"),
        (["distill", "T", "--otu", "x"], "--out", "outrider distill"),
        (["rnu"], "run", "outrider"),
        (["run", "--method", "medsua", "--prompt", "Hi"], "medusa", "outrider run"),
        (["run", "--target", "SmolLM2-135M-Instruct", "--prompt", "Hi"], "HuggingFaceTB/SmolLM2-135M-Instruct", ""),
        (["models", "info", "outrider-code-taget"], "outrider-code-target", ""),
    ],
)
def test_a_misspelt_name_is_answered_with_the_one_meant_and_the_commands_own_help(capsys, arguments, meant, command):
    error = refused(capsys, *arguments)
    assert f"Did you mean {meant}?" in error
    assert not command or f"See {command} --help." in error


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("run -k 99", "run"), ("run --temp hot", "run"), ("run --temp 50", "run"), ("run --device tpu", "run"),
        ("run --depth 2 Hi", "run"), ("sweep", "sweep"), ("check a b c", "check"),
        ("models check a b c", "models check"), ("bench --only nobody", "bench"),
        ("probe --places 0", "probe"), ("export", "export"), ("distill T", "distill"),
    ],
)  # fmt: skip
def test_a_bad_value_is_answered_in_a_short_sentence_with_the_commands_own_help(capsys, arguments, command):
    said = refused(capsys, *arguments.split())
    assert re.search(rf"(\. See|; see) outrider {command} --help\.$", said), said
    assert said.count("--help") == 1


NAMED_BY_FLAGS = ("run Hi", "sweep --out x", "check", "bench", "probe", "models check", "export --config vllm")
NAMED_BY_PLACE = ("distill --out x", "models get", "models info", "models remove")


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize(
    "command",
    [*(f"{command} {flag}" for command in NAMED_BY_FLAGS for flag in ("--target", "--draft")), *NAMED_BY_PLACE],
)
def test_an_empty_name_of_a_model_is_refused_by_every_command(capsys, command, empty):
    said = refused(capsys, *command.split(), empty)
    assert re.search(rf"must be a name(, or several)?, not {empty!r}\.", said), said


def test_words_without_quotes_are_explained(capsys):
    said = refused(capsys, "run", "write", "a", "poem")
    assert "'a' is one argument too many; put a text of several words in quotes" in said


# --- Control characters -----------------------------------------------------------------------------------------

EVIL = "a\x1b]0;owned\x07\x9b2Jb"
SEEN = "a\ufffd]0;owned\ufffd\ufffd2Jb"


def test_reports_stages_and_names_show_control_characters_on_a_terminal(monkeypatch):
    for name in ("stdout", "stderr"):  # Not in a fixture: pytest replaces both streams once more before the test.
        monkeypatch.setattr(sys, name, Terminal())
    monkeypatch.setattr(check, "_follow", lambda _: SimpleNamespace(is_right=True))
    monkeypatch.setattr(check.check_report, "report_text", lambda _: f"target {EVIL}\n")
    assert main(["check"]) == 0
    assert sys.stdout.getvalue() == f"target {SEEN}\n"
    with Progress() as progress:
        progress.show(f"Loading {EVIL}…", 1, 2, EVIL)
    assert SEEN in sys.stderr.getvalue()
    write_output(f"{EVIL}\n")
    assert main(["run", EVIL, EVIL]) == 2
    assert main(["run", "--target", EVIL, "--prompt", "Hi"]) == 2
    seen = sys.stdout.getvalue() + sys.stderr.getvalue()
    assert not any(hidden in seen for hidden in ("\x1b]", "\x07", "\x9b"))


def test_without_a_terminal_the_time_left_is_said_as_soon_as_it_is_known(capsys):
    with Progress() as progress:
        for done in range(40):
            progress.show_left("Warming up", done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Warming up: 0 of 1,000"
    assert len(lines) == 2
    assert re.fullmatch(r"Warming up: 1 of 1,000, about .+ left", lines[1])


# --- Help, documents and completion -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), *ACTIONS], ids=" ".join)
def test_every_help_ends_with_examples_that_are_parsed(capsys, command):
    text = help_of(capsys, *command)
    examples = [shlex.split(line) for line in re.findall(r"^  (outrider.*)$", text, re.MULTILINE)]
    assert examples
    for _, *arguments in examples:
        assert tuple(arguments[: len(command)]) == command
        build_parser().parse_args(arguments)


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_what_a_methods_option_means_is_said_wherever_it_can_be_given(capsys, command):
    text = " ".join(help_of(capsys, command).split())
    options = declared(METHODS["draft-tree"].options)
    for name in ("depth", "branching", "rule"):
        assert options[name].metadata["help"][1:].rstrip(".") in text


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_commands_in_the_documents_are_parsed(document):
    text = document.read_text("utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ outrider")]
    lines += re.findall(r"`(outrider [a-z]+ [^`]*)`", text)
    assert lines
    for line in lines:
        _, *arguments = shlex.split(line.removeprefix("$ "), comments=True)
        if "COMMAND" not in arguments and "module:Class" not in arguments:
            build_parser().parse_args(arguments)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(capsys, shell):
    assert main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    assert "num-draft-tokens" in script
    assert "bfloat16" in script


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize("way", ['source "$1"', 'eval "$(cat "$1")"'])
def test_zsh_registers_the_completion_however_it_reads_the_script(capsys, tmp_path, way):
    assert main(["--completion", "zsh"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out, "utf-8")
    line = f"autoload -Uz compinit && compinit -u -D; {way}; print -r -- $_comps[outrider]"
    command = ["zsh", "-f", "-c", line, "zsh", str(tmp_path / "script")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("_shtab_outrider", "")
