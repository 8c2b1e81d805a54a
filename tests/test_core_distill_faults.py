"""Distilling where something fails: a full disk, a stranger's template, options that changed between two calls."""

import errno

import numpy as np
import pytest
import torch

import core.distill.student as student
import core.models.medusa_heads as medusa_heads
from core.distill.pipeline import Kind, distill
from core.distill.self_play import PlaySettings, script_of
from core.errors import PromptError
from tests.fakes import refusal
from tests.fakes_distill import END, chat_tokenizer, quiet, settings

LONG = PlaySettings(rows=8, length=60, longest_prompt=10)


def on_a_full_disk(save):
    """The same function, while no file may grow beyond a few bytes."""
    resource = pytest.importorskip("resource")  # Not on Windows.

    def call(*arguments, **named):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            return save(*arguments, **named)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return call


@pytest.mark.parametrize("kind", Kind)
def test_a_checkpoint_that_finds_no_space_is_reported_and_the_result_is_written(target, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(torch, "save", on_a_full_disk(torch.save))
    work, out, lines = tmp_path / "work", tmp_path / "out", []
    assert distill(target, settings(kind=kind, play=LONG), work, out, lines.append)
    assert "could not be saved: There is no space left to write" in lines[-1]
    assert sorted(path.name for path in work.iterdir()) == ["part-0000", "part-0001", "target.sha256"]
    assert (out / "config.json").is_file()


@pytest.mark.parametrize(
    ("kind", "where", "name"),
    [(Kind.DRAFT, np, "save"), (Kind.DRAFT, student, "save_file"), (Kind.MEDUSA, medusa_heads, "save_file")],
)
def test_a_full_disk_is_told_as_one_and_leaves_nothing_half_written(target, tmp_path, monkeypatch, kind, where, name):
    plan, folders = settings(kind=kind, play=LONG), (tmp_path / "work", tmp_path / "out")
    with monkeypatch.context() as full:
        full.setattr(where, name, on_a_full_disk(getattr(where, name)))
        with pytest.raises(OSError, match="No space left") as caught:
            distill(target, plan, *folders, quiet)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert distill(target, plan, *folders, quiet), "the same call resumes"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% set x = 'x' * 3000000000 %}{{ messages[0]['content'] }}", "it needs too much memory"),
        ("{{ raise_exception('A system message is required') }}", "A system message is required"),
        ("{{ messages[0]['nope']['x'] }}", "has no attribute 'nope'"),
    ],
)
def test_a_strangers_template_runs_within_the_limits_of_a_run(template, reason):
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = template
    text = refusal(PromptError, script_of, tokenizer, frozenset({END}))
    assert text.startswith("The chat template of the target failed (")
    assert reason in text
    assert text.endswith("Choose another target.")
