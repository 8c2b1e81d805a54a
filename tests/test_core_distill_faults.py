"""Distilling where something fails: a full disk, a stranger's template, options that changed between two calls."""

import errno
from dataclasses import replace

import numpy as np
import pytest
import torch

import core.distill.student as student
import core.models.medusa_heads as medusa_heads
from core.distill.pipeline import Kind, distill
from core.distill.self_play import script_of
from core.errors import DeviceError, PromptError, SettingsError
from tests.fakes import refusal
from tests.fakes_distill import END, LONG, chat_tokenizer, quiet, settings, texts_file


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


def test_a_target_on_several_devices_is_refused(target, tmp_path, monkeypatch):
    monkeypatch.setattr(target.model, "hf_device_map", {"model": 0, "lm_head": "cpu"}, raising=False)
    assert "--device cpu" in refusal(DeviceError, distill, target, settings(), tmp_path / "work", tmp_path / "out")


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


def test_options_that_differ_from_what_the_work_folder_holds_are_refused(target, tmp_path):
    folders = tmp_path / "work", tmp_path / "out"
    distill(target, settings(), *folders, quiet)

    def refused(**changes):
        return refusal(SettingsError, distill, target, settings(**changes), *folders, quiet)

    assert "have 48 tokens, not 60. Give --length 48" in refused(play=LONG)
    assert "is of 80 ids, not 70. Give --vocabulary 80" in refused(vocabulary_size=70)
    file = texts_file(tmp_path / "texts.npz", np.random.default_rng(0).integers(1, 200, (8, 48)))
    assert "are not those of --texts-from" in refused(start_from=file)


@pytest.mark.parametrize("kind", Kind)
def test_a_used_up_budget_is_told_and_the_trained_vocabulary_stays(target, tmp_path, kind):
    plan, work, out, lines = settings(kind=kind), tmp_path / "work", tmp_path / "out", []
    distill(target, plan, work, out, lines.append)
    assert any(line.startswith("training on") for line in lines)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    lines.clear()
    # More texts, whose most frequent ids are others; the last ones stay held out.
    distill(target, replace(plan, num_texts=40, seed=5), work, out, lines.append)
    assert not any(line.startswith("training on") for line in lines)
    assert any(line.startswith("already trained for ") for line in lines)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_input_that_training_cannot_use_is_refused_before_it(target, tmp_path):
    folders = tmp_path / "work", tmp_path / "out"
    for start in (0, 49):
        file = texts_file(tmp_path / "texts.npz", np.full((16, 48), 5), start)
        plan = settings(start_from=file)
        assert "begin before index 1" in refusal(SettingsError, distill, target, plan, *folders, quiet)
    plan = settings(kind=Kind.MEDUSA, num_heads=65)
    assert "at most 64 Medusa heads" in refusal(SettingsError, distill, target, plan, *folders, quiet)
    assert not list((tmp_path / "work").glob("part-*"))
