"""Distilling a draft: it gains acceptance, serves its target exactly, and goes on where it was stopped."""

import shutil

import numpy as np
import pytest
import torch

from core.controls import Cancelled
from core.decode import speculative
from core.distill.pipeline import distill
from core.distill.self_play import PlaySettings, Script, script_of
from core.distill.student import check_target, export_student, held_out_acceptance, new_student, train_student
from core.distill.texts import frequent_ids, parts_in, read_part, split, write_part
from core.errors import ModelUnreadableError, SettingsError
from core.models import load
from core.models.catalogue import resolve
from core.models.fit import pair_problem
from core.models.shared_draft import BORROWED
from core.training.train import Budget, Optimizers, Progress, load_checkpoint, save_checkpoint
from tests.fakes import greedy_reference, is_sentence, play, save_model, tiny_module
from tests.fakes_distill import END, GREEDY, chat_tokenizer, play_texts, quiet, save_target, settings, training_settings


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    return save_target(tmp_path_factory.mktemp("distill"))


@pytest.fixture(scope="module")
def target(target_folder):
    return load(str(target_folder), "cpu", "float32")


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_only_plain_llamas_can_be_teachers(family):
    with pytest.raises(ModelUnreadableError, match="plain Llama"):
        check_target(tiny_module(family))


def test_a_student_borrows_the_tables_and_begins_with_the_targets_layers(target):
    student = new_student(target.model, 1)
    assert student.get_input_embeddings() is target.model.get_input_embeddings()
    assert {name for name, parameter in student.named_parameters() if not parameter.requires_grad} == BORROWED
    layers = (model.model.layers[0].parameters() for model in (student, target.model))
    for ours, theirs in zip(*layers, strict=True):
        assert torch.equal(ours, theirs)
        assert ours is not theirs


def test_a_distilled_draft_gains_acceptance_and_serves_its_target_exactly(target, target_folder, tmp_path):
    plan = settings(num_texts=48, training=training_settings(budget=Budget(tokens=24000)))
    lines: list[str] = []
    figures = distill(target, plan, tmp_path / "work", tmp_path / "draft", lines.append)
    assert any("texts" in line for line in lines)
    parts = [read_part(path) for path in parts_in(tmp_path / "work")]
    train, held_out = split(parts)
    first = len(script_of(target.tokenizer, target.eos_ids).opening)
    draft = load(str(tmp_path / "draft"), target=target)
    assert draft.draft_ids is not None
    untrained = held_out_acceptance(new_student(target.model, 1), held_out, draft.draft_ids, first)
    assert figures["acceptance at 1"] > untrained + 0.02
    assert 0 <= figures["acceptance at 0"] <= 1

    assert draft.draft_ids.tolist() == frequent_ids((p.texts for p in train), 80, target.vocab_size, target.eos_ids)
    assert draft.model.get_input_embeddings().weight is target.model.get_input_embeddings().weight
    assert draft.fused_weights is not None
    prompt = list(b"once upon a time")
    run = play(speculative(target, draft, prompt, num_draft_tokens=3, max_new_tokens=30, sampling=GREEDY))
    assert run.ids == greedy_reference(target, prompt, 30)[: len(run.ids)]
    assert pair_problem(str(tmp_path / "draft"), str(target_folder)) is None


def test_a_stopped_training_goes_on_where_it_was(target, tmp_path):
    whole = distill(target, settings(), tmp_path / "a", tmp_path / "a-out", quiet)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "student.pt").unlink()
    count = 0

    def stop_at_the_third() -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        distill(target, settings(), tmp_path / "b", tmp_path / "b-out", quiet, stop_at_the_third)
    assert not (tmp_path / "b-out").exists()
    assert (tmp_path / "b" / "student.pt").is_file()
    again = distill(target, settings(), tmp_path / "b", tmp_path / "b-out", quiet)
    assert again == pytest.approx(whole)


def test_too_few_texts_are_told(target, tmp_path):
    plan = settings(num_texts=1, play=PlaySettings(rows=1, length=24, longest_prompt=4))
    with pytest.raises(SettingsError, match="too few texts"):
        distill(target, plan, tmp_path / "work", tmp_path / "draft", quiet)


def test_work_of_another_kind_is_not_gone_on_with(target, tmp_path):
    work, out = tmp_path / "work", tmp_path / "draft"

    def told(**changes) -> str:
        model = changes.pop("target", target)
        with pytest.raises(SettingsError) as caught:
            distill(model, settings(**changes), work, out, quiet)
        assert is_sentence(str(caught.value))
        return str(caught.value)

    distill(target, settings(), work, out, quiet)
    assert "another model" in told(num_layers=2)
    other = load(str(save_model(tmp_path / "other", tokenizer=chat_tokenizer(), eos_token_id=END)), "cpu")
    torch.nn.init.constant_(other.model.model.norm.weight, 2.0)
    assert "another target" in told(target=other)
    file = tmp_path / "texts.npz"
    ids = np.full((9, 20), 5)
    np.savez(file, ids=ids, answer_start=np.ones(9), answer_temperature=np.ones(9))
    assert "another length" in told(start_from=file)
    np.savez(file, ids=ids + 9_999, answer_start=np.ones(9), answer_temperature=np.ones(9))
    assert "outside the target's vocabulary" in told(start_from=file)
    (work / "part-0000" / "ids.npy").write_bytes(b"")
    with pytest.raises(ModelUnreadableError, match="part-0000"):
        distill(target, settings(), work, out, quiet)


def test_texts_that_are_written_are_as_long_as_those_that_were_given(target, tmp_path):
    file = tmp_path / "texts.npz"
    np.savez(file, ids=np.full((9, 30), 5), answer_start=np.full(9, 4), answer_temperature=np.ones(9))
    distill(target, settings(start_from=file, num_texts=12), tmp_path / "work", tmp_path / "draft", quiet)
    assert [read_part(path).texts.ids.shape for path in parts_in(tmp_path / "work")] == [(9, 30), (8, 30)]


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_half_written(target, tmp_path, monkeypatch):
    student = new_student(target.model, 1)
    optimizers = Optimizers(student)
    save_checkpoint(tmp_path / "student.pt", student, optimizers, Progress(step=3), BORROWED)

    def fill_up(_state, path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_up)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path / "student.pt", student, optimizers, Progress(step=4), BORROWED)
    assert [path.name for path in tmp_path.iterdir()] == ["student.pt"]
    assert load_checkpoint(tmp_path / "student.pt", student, optimizers, BORROWED).step == 3


def test_a_folder_of_somebody_elses_is_not_replaced(target, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("kept")
    with pytest.raises(SettingsError, match="letters"):
        distill(target, settings(), tmp_path / "work", tmp_path / "letters", quiet)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "kept"
    assert not (tmp_path / "work").exists()


def test_checkpoints_and_drafts_hold_the_layers_alone(target, tmp_path):
    student = new_student(target.model, 1)
    export_student(student, target.tokenizer, "owner/target", [1, 2, 3], tmp_path / "draft")
    from safetensors.torch import load_file

    names = set(load_file(tmp_path / "draft" / "model.safetensors"))
    assert names
    assert not names & BORROWED
    (tmp_path / "draft" / "README.md").write_text("card")
    export_student(student, target.tokenizer, "owner/target", [1, 2, 3], tmp_path / "draft")
    assert (tmp_path / "draft" / "README.md").read_text() == "card"
    assert resolve(str(tmp_path / "draft")).serves == "owner/target"


def test_training_reads_the_same_rows_at_the_same_step(target, tmp_path):
    texts = play_texts(Script((7,), (3,), frozenset()))
    write_part(target.model, texts, tmp_path / "part-0000", compiled=False)
    part = read_part(tmp_path / "part-0000")
    students = [new_student(target.model, 1) for _ in range(2)]
    for index, student in enumerate(students):
        arguments = (student, [part], part, torch.arange(50), 1, training_settings(), tmp_path / f"{index}.pt", quiet)
        train_student(*arguments)
    for ours, theirs in zip(*(student.parameters() for student in students), strict=True):
        assert torch.equal(ours, theirs)
