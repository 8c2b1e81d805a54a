"""Drafts that borrow their target's tables: whatever does not fit or is damaged is told, before and at loading."""

import shutil

import pytest
import torch

from core.distill.student import export_student, new_student
from core.errors import ModelUnreadableError, OutOfMemoryError, PairMismatchError
from core.models import load
from core.models.catalogue import resolve
from core.models.fit import pair_problem
from core.models.shared_draft import load_shared_draft
from tests.fakes import edit_json, is_sentence, save_model
from tests.fakes_distill import chat_tokenizer, save_target


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    return save_target(tmp_path_factory.mktemp("distill"))


@pytest.fixture(scope="module")
def target(target_folder):
    return load(str(target_folder), "cpu", "float32")


@pytest.fixture
def drafter(target, tmp_path):
    export_student(new_student(target.model, 1), target.tokenizer, "owner/target", list(range(40)), tmp_path / "draft")
    return tmp_path / "draft"


def test_a_target_of_another_width_is_told_before_and_at_loading(drafter, tmp_path):
    other = save_model(tmp_path / "wide", hidden_size=64, tokenizer=chat_tokenizer())
    assert "64" in pair_problem(str(drafter), str(other))
    with pytest.raises(PairMismatchError, match="owner/target"):
        load_shared_draft(resolve(str(drafter)), load(str(other), "cpu"))


def test_a_target_with_other_tokens_is_told(drafter, target_folder, tmp_path):
    other = shutil.copytree(target_folder, tmp_path / "other")
    tokenizer = (other / "tokenizer.json").read_text("utf-8")
    (other / "tokenizer.json").write_text(tokenizer.replace("<|end|>", "<|stop|>"), "utf-8")
    assert "vocabulary" in pair_problem(str(drafter), str(other))


def test_a_damaged_draft_is_a_sentence(drafter, target):
    weights = drafter / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelUnreadableError, match="damaged"):
        load_shared_draft(resolve(str(drafter)), target)


def test_a_draft_whose_configuration_is_damaged_is_a_sentence(drafter, target):
    edit_json(drafter / "config.json", model_type="outlandish")
    with pytest.raises(ModelUnreadableError, match="distil it again") as caught:
        load_shared_draft(resolve(str(drafter)), target)
    assert is_sentence(str(caught.value))


def test_a_draft_that_finds_no_memory_is_not_called_damaged(drafter, target, monkeypatch):
    def run_out(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("safetensors.torch.load_file", run_out)
    with pytest.raises(OutOfMemoryError) as caught:
        load(str(drafter), "cpu", target=target)
    assert is_sentence(str(caught.value))


def test_a_draft_without_one_of_its_layers_is_a_sentence(drafter, target):
    edit_json(drafter / "config.json", num_hidden_layers=2)
    with pytest.raises(ModelUnreadableError, match="incomplete"):
        load_shared_draft(resolve(str(drafter)), target)
