"""What `--serve` writes: a script that a shell reads as meant, and a compose file that runs it."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from dataclasses import replace

import pytest
import yaml

from app.__main__ import main
from core.errors import SettingsError
from core.export.choice import Choice
from core.export.configurations import PROJECTS
from core.export.serving import SERVERS, serving_files
from core.settings import RunRequest, SamplingParams

HUB = RunRequest("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", "any", "draft-model", num_draft_tokens=5)
NASTY = 'it\'s a "model" $(touch pwned) `y` \\'
HAS_SHELL = pytest.mark.skipif(not shutil.which("sh"), reason="needs a POSIX shell")


def files_of(request, name="vllm", **more):
    return serving_files(Choice(request), PROJECTS[name], **more)


def arguments(folder, script, **environment):
    """The arguments that the server would get: a stand-in for it writes them down."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("vllm", "python3"):
        stand_in = folder / "bin" / name
        stand_in.write_text('#!/bin/sh\npwd\nfor word in "$@"; do printf "%s\\0" "$word"; done\n')
        stand_in.chmod(stand_in.stat().st_mode | stat.S_IEXEC)
    (folder / "serve.sh").write_text(script, "utf-8")
    found = subprocess.run(
        ["sh", str(folder / "serve.sh"), "--more"],
        env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    where, _, words = found.stdout.partition("\n")
    return found.returncode, where, words.split("\0")[:-1], found.stderr


def value(words, flag):
    return words[words.index(flag) + 1]


@HAS_SHELL
def test_the_script_serves_the_pair_with_its_k_and_the_metrics_of_each_step(tmp_path):
    _, _, words, _ = arguments(tmp_path, files_of(HUB, gpus=4)["serve-vllm.sh"])
    assert words[:2] == ["serve", "Qwen/Qwen3-8B"]
    settings = json.loads(value(words, "--speculative-config"))
    assert (settings["model"], settings["num_speculative_tokens"]) == ("Qwen/Qwen3-0.6B", 5)
    assert value(words, "--per-request-spec-decode-metrics") == "detailed"
    assert value(words, "--tensor-parallel-size") == "4"
    assert value(words, "--host") == "127.0.0.1", "only this machine, unless told otherwise"
    script = files_of(HUB)["serve-vllm.sh"]
    _, _, open_words, _ = arguments(tmp_path, script, HOST="0.0.0.0")
    assert value(open_words, "--host") == "127.0.0.1", "some shells export HOST"
    _, _, open_words, _ = arguments(tmp_path, script, OUTRIDER_HOST="0.0.0.0")
    assert value(open_words, "--host") == "0.0.0.0"
    assert "OUTRIDER_HOST" in yaml.safe_load(files_of(HUB)["compose-vllm.yaml"])["services"]["vllm"]["environment"]
    assert "--nnodes" not in words
    assert words[-1] == "--more"
    ngram = replace(HUB, draft=None, method="prompt-lookup", sampling=SamplingParams(0))
    _, _, words, _ = arguments(tmp_path, files_of(ngram)["serve-vllm.sh"])
    assert json.loads(value(words, "--speculative-config"))["method"] == "ngram"


@HAS_SHELL
@pytest.mark.parametrize(
    ("name", "tp", "address"),
    [
        ("vllm", "--tensor-parallel-size", ("--master-addr", "10.0.0.1")),
        ("sglang", "--tp-size", ("--dist-init-addr", "10.0.0.1:20000")),
    ],
)
def test_several_machines_share_one_model_and_know_their_rank(tmp_path, name, tp, address):
    script = files_of(HUB, name, gpus=8, machines=2)[f"serve-{name}.sh"]
    code, _, words, problem = arguments(tmp_path, script)
    assert code != 0
    assert "Set HEAD to the address" in problem
    _, _, first, _ = arguments(tmp_path, script, HEAD="10.0.0.1")
    _, _, second, _ = arguments(tmp_path, script, HEAD="10.0.0.1", RANK="1")
    for rank, words in (("0", first), ("1", second)):
        assert (value(words, tp), value(words, "--nnodes"), value(words, "--node-rank")) == ("16", "2", rank)
        assert value(words, address[0]) == address[1]
    assert "--headless" not in first
    assert ("--headless" in second) == (name == "vllm"), "only vLLM's other machines start without a server"


@HAS_SHELL
def test_a_local_model_is_named_by_its_folder_only_and_nothing_of_its_name_runs(tmp_path):
    target, draft = tmp_path / "one" / NASTY, tmp_path / "two" / NASTY
    target.mkdir(parents=True)
    draft.mkdir(parents=True)
    files = files_of(replace(HUB, target=str(target), draft=str(draft)))
    assert not any(str(tmp_path) in text for text in files.values())
    code, _, _, problem = arguments(tmp_path, files["serve-vllm.sh"])
    assert code != 0
    assert "Set MODELS" in problem
    models = tmp_path / "models"
    models.mkdir()
    _, where, words, _ = arguments(tmp_path, files["serve-vllm.sh"], MODELS=str(models))
    assert where == str(models.resolve())
    assert words[1] == "target", "two folders of one name are told apart"
    assert json.loads(value(words, "--speculative-config"))["model"] == "draft"
    one = files_of(replace(HUB, target=str(target)))
    assert arguments(tmp_path, one["serve-vllm.sh"], MODELS=str(models))[2][1] == NASTY
    assert not list(tmp_path.rglob("pwned"))
    assert "/models:ro" in yaml.safe_load(one["compose-vllm.yaml"])["services"]["vllm"]["volumes"][2]


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("name", SERVERS)
def test_every_script_is_one_that_a_shell_can_read(shell, name, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    local = replace(HUB, target=str(tmp_path / NASTY))
    (tmp_path / NASTY).mkdir()
    for request, machines in ((HUB, 1), (local, 2)):
        script = files_of(request, name, machines=machines)[f"serve-{name}.sh"]
        found = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVERS)
def test_the_compose_file_runs_the_script_on_all_gpus(name):
    files = files_of(HUB, name)
    service = yaml.safe_load(files[f"compose-{name}.yaml"])["services"][name]
    assert service["entrypoint"] == ["sh", f"/serve-{name}.sh"]
    assert f"./serve-{name}.sh:/serve-{name}.sh:ro" in service["volumes"]
    assert not any("MODELS" in text for text in service["volumes"])
    assert all("=" not in variable for variable in service["environment"]), "keys stay in the environment"
    device = service["deploy"]["resources"]["reservations"]["devices"][0]
    assert (device["count"], device["capabilities"]) == ("all", ["gpu"])


def test_what_an_engine_cannot_serve_is_refused_in_a_sentence():
    with pytest.raises(SettingsError, match=r"for vllm and sglang, not for mlx"):
        files_of(HUB, "mlx")
    with pytest.raises(SettingsError, match="no equivalent"):
        files_of(replace(HUB, method="self-draft", draft=None))


def test_the_command_writes_both_files_or_none(tmp_path, capsys):
    command = ["export", "--config", "vllm", "--target", "a/b", "--draft", "a/c", "--serve", str(tmp_path / "new")]
    assert main([*command, "--gpus", "2"]) == 0
    written = {path.name: path.read_text("utf-8") for path in (tmp_path / "new").iterdir()}
    assert set(written) == {"serve-vllm.sh", "compose-vllm.yaml"}
    assert "GPUS=${GPUS:-2}" in written["serve-vllm.sh"]
    (tmp_path / "new" / "serve-vllm.sh").unlink()
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert not (tmp_path / "new" / "serve-vllm.sh").exists()
    assert main([*command, "--force"]) == 0
    assert main([*command[:-2], "--gpus", "2"]) == 2
    assert "add --serve" in capsys.readouterr().err
    assert main([*command[:2], "all", *command[3:]]) == 2
