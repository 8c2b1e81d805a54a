"""`outrider distill`: a draft of one's own, and what it says to bad input."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import core.distill.pipeline as pipeline
from app.__main__ import main
from core.experiments.api import measure
from core.experiments.bench_plan import spread
from core.models import load
from core.models.catalogue import resolve
from core.models.medusa_heads import load_heads
from tests.fakes import failing, save_model

QUICK = ["--texts", "6", "--batch", "6", "--length", "40", "--vocabulary", "64", "--minutes", "0.02", "--threads", "1"]


@pytest.fixture
def target(tmp_path):
    return save_model(tmp_path / "ein Modell", eos_token_id=256, max_position_embeddings=512)


def measured(*args, **settings):
    """A bench whose rounds happen to give these."""
    return replace(measure(*args, **settings), speedup=spread([1.2, 1.5]))


def test_medusa_heads_are_made_and_reported(target, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("core.experiments.api.measure", measured)
    out = tmp_path / "heads"
    assert main(["distill", str(target), "--out", str(out), "--kind", "medusa", "--heads", "2", *QUICK]) == 0
    written, said = capsys.readouterr()
    assert written.strip() == str(out)
    assert "held out, head 1, top 4: " in said
    found = "1.35× the speed of plain decoding at K = 2 (1.20 to 1.50 in two rounds)"
    assert f"measured speedup, here with one prompt in float32: {found}\n" in said
    assert "predicted" not in said
    assert f"next: outrider run --target '{target}' --method medusa --heads {out} -k " in said.splitlines()[-1]
    assert " --temperature 1 " in said.splitlines()[-1], "as what was measured"
    assert len(load_heads(out, load(str(target), "cpu"))) == 2


def test_a_draft_is_made_and_reported(target, tmp_path, capsys, monkeypatch):
    out = tmp_path / "draft"
    monkeypatch.setattr("app.cli.distill.can_compile", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)  # Where it isn't chosen.
    assert main(["distill", str(target), "--out", str(out), "--layers", "1", *QUICK]) == 0
    written, said = capsys.readouterr()
    assert written.strip() == str(out)
    assert "held out, acceptance at 1: " in said
    assert "nan" not in said
    assert "predicted speedup, from the acceptance above and both models' times here in float32: " in said
    assert f"next: outrider run --target '{target}' --draft {out} -k " in said.splitlines()[-1]
    assert " --temperature 1 --device cpu " in said.splitlines()[-1], "as what was predicted"
    assert resolve(str(out)).serves == str(target)
    assert (tmp_path / "draft-work" / "student.pt").is_file()


def test_a_compiler_that_cannot_compile_is_told_and_done_without(target, tmp_path, capsys, monkeypatch):
    """It is there, as are Python's header files, which aren't those of any version, and what a stopped one left."""
    whole, torn = (tmp_path / "cache" / "52" / name for name in ("whole.so", "torn.so"))
    whole.parent.mkdir(parents=True)
    whole.touch(0o755)
    torn.touch(0o644)
    for name in ("g++", "Python.h"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    with monkeypatch.context() as broken:
        broken.setenv("PATH", str(tmp_path))
        broken.setenv("CXX", str(tmp_path / "g++"))
        broken.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
        broken.setattr("sysconfig.get_paths", lambda *_: {"include": str(tmp_path)})
        broken.setattr("core.export.engines.common.sys", SimpleNamespace(platform="win32"))
        assert main(["distill", str(target), "--out", str(tmp_path / "draft"), "--layers", "1", *QUICK]) == 0
    assert whole.exists()
    assert not torn.exists() or os.name == "nt", "which has no such mode"
    said = capsys.readouterr().err
    assert "several times slower" in said
    assert f'next: outrider run --target "{target}" --draft ' in said, "as the shells of Windows take it"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--out"),
        (["--out", "{tmp}/new", "--layers", "0"], "--layers"),
        (["--out", "{tmp}/new", "--layers", "two"], "--layers"),
        (["--out", "{tmp}/new", "--kind", "eagle"], "--kind"),
        (["--out", "{tmp}/new", "--kind", "medusa", "--heads", "0"], "--heads"),
        (["--out", "{tmp}/new", "--minutes", "-1"], "--minutes"),
        (["--out", "{tmp}/new", "--minutes", "nan"], "--minutes"),
        (["--out", "outrider-code-draft"], "embedded model"),
        (["--out", "{tmp}"], "already exists"),
        (["--out", "{tmp}/file"], "already exists"),
        (["--out", "{tmp}/other"], "already exists"),
        (["--out", "{tmp}/file/new"], "file"),
        (["--out", "{tmp}/new", "--texts-from", "{tmp}/file"], "no readable texts"),
        (["--out", "{tmp}/new", "--texts-from", "{tmp}/pipe"], "no readable texts"),
        (["--out", "{tmp}/new", "--seed", "-1"], "from 0 to 2,147,483,647"),
        (["--out", "{tmp}/new", "--device", "gpu"], "must be one of auto"),
    ],
)
def test_bad_input_is_a_sentence(target, tmp_path, capsys, monkeypatch, arguments, word):
    monkeypatch.setattr("app.cli.distill.can_compile", lambda: True)
    (tmp_path / "other").mkdir()
    for path in (tmp_path / "file", tmp_path / "other" / "file"):
        path.write_text("x")
    if hasattr(os, "mkfifo"):  # Not on Windows, where there is no such file then.
        os.mkfifo(tmp_path / "pipe")
    assert main(["distill", str(target), *(argument.format(tmp=tmp_path) for argument in arguments)]) in {1, 2}
    out, said = capsys.readouterr()
    assert out == ""
    assert word in said
    assert said.removeprefix(f"Loading {target}…\n").count("\n") == 1
    assert "unexpectedly" not in said
    assert not (tmp_path / "new").exists()


def test_other_architectures_are_refused_and_stopped_by_hand_it_says_so(target, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "write_texts", failing(KeyboardInterrupt()))
    other = save_model(tmp_path / "gpt", family="gpt2")
    for folder, code, words in ((other, 2, "plain Llama"), (target, 130, "Stopped.\n")):
        assert main(["distill", str(folder), "--out", str(tmp_path / "new")]) == code
        assert words in capsys.readouterr().err


def test_a_gpu_without_the_memory_says_what_helps(target, tmp_path, capsys, monkeypatch):
    def on_a_gpu(*args):
        return replace(load(*args), device=torch.device("cuda:0"))

    monkeypatch.setattr("core.models.load", on_a_gpu)
    monkeypatch.setattr(pipeline, "write_texts", failing(torch.OutOfMemoryError()))
    assert main(["distill", str(target), "--out", str(tmp_path / "new")]) == 1
    assert "cuda:0 ran out. Give a smaller --batch, or --device cpu." in capsys.readouterr().err
