"""Models that are kept for the next run, and drafts that borrow the tables of one of them."""

import shutil
from dataclasses import replace

import pytest
import torch

from core.distill.student import export_student, new_student
from core.errors import ModelUnreadableError, OutOfMemoryError, PairMismatchError
from core.models import load
from core.models.catalogue import resolve
from core.models.fit import pair_problem
from core.models.shared_draft import load_shared_draft
from core.models.shelf import ModelShelf, ShelfKey
from tests.fakes import edit_json, failing, refusal, save_model, tiny_model
from tests.fakes_distill import chat_tokenizer

CPU = torch.device("cpu")


def key(name: str, beside: ShelfKey | None = None) -> ShelfKey:
    return ShelfKey(name, frozenset(), "cpu", torch.float32, beside)


class Room:
    """A device of ten places, of which each model on the shelf takes three."""

    def __init__(self) -> None:
        self.shelf = ModelShelf()

    def names(self) -> list[str]:
        return [name for name in "abcd" if any(k.path == name for k in self.shelf._models)]


@pytest.fixture
def room(monkeypatch):
    room = Room()
    monkeypatch.setattr("core.models.shelf.free_memory", lambda _: 10 - 3 * len(room.names()))
    return room


def test_models_used_least_recently_make_room_first(room):
    shelf = room.shelf
    for name in "abc":
        shelf.add(key(name), tiny_model())
    assert shelf.make_room(1, CPU, keep=[])
    assert room.names() == ["a", "b", "c"]
    assert shelf.get(key("a")) is tiny_model()
    assert shelf.make_room(3, CPU, keep=[])
    assert room.names() == ["a", "c"]
    assert not shelf.make_room(99, CPU, keep=[key("a")])
    assert room.names() == ["a"]
    assert shelf.get(key("c")) is None


def test_a_dropped_model_is_gone_in_each_precision(room):
    for name, ref in (("a", "tiny"), ("b", "tiny"), ("c", "other")):
        room.shelf.add(key(name), replace(tiny_model(), ref=ref))
    room.shelf.drop("tiny")
    assert room.names() == ["c"]


def test_what_borrows_goes_with_what_it_borrows_from_and_keeps_it(room):
    shelf = room.shelf
    shelf.add(key("a"), tiny_model())
    shelf.add(key("b", beside=key("a")), tiny_model())
    shelf.add(key("c"), tiny_model())
    assert shelf.held_bytes([key("a"), key("b", key("a"))]) == shelf.held_bytes([key("a")]) > 0
    assert not shelf.make_room(99, CPU, keep=[key("b", key("a"))])
    assert room.names() == ["a", "b"]
    assert shelf.make_room(10, CPU, keep=[])
    assert room.names() == []


def test_a_model_that_was_written_anew_takes_the_place_of_the_old_one_and_of_what_borrows_from_it(room):
    shelf = room.shelf
    shelf.add(key("a"), tiny_model())
    shelf.add(key("b", beside=key("a")), tiny_model())
    shelf.add(key("c"), tiny_model())
    newer = key("a")._replace(files=frozenset({("model.safetensors", 1, 1)}))
    shelf.add(newer, tiny_model())
    assert (key("a") in shelf, newer in shelf, room.names()) == (False, True, ["a", "c"])
    assert shelf.held_bytes(device_type="cpu") == shelf.held_bytes() > 0 == shelf.held_bytes(device_type="cuda")


# --- Drafts that borrow their target's tables -----------------------------------------------------------------------


@pytest.fixture
def drafter(target, tmp_path):
    export_student(new_student(target.model, 1), target.tokenizer, "owner/target", list(range(40)), tmp_path / "draft")
    return tmp_path / "draft"


def test_a_target_of_another_width_is_reported_before_and_at_loading(drafter, tmp_path):
    other = save_model(tmp_path / "wide", hidden_size=64, tokenizer=chat_tokenizer())
    assert "64" in pair_problem(str(drafter), str(other))
    with pytest.raises(PairMismatchError, match="owner/target"):
        load_shared_draft(resolve(str(drafter)), load(str(other), "cpu"))


def test_a_target_with_other_tokens_is_reported(drafter, target_folder, tmp_path):
    other = shutil.copytree(target_folder, tmp_path / "other")
    tokenizer = (other / "tokenizer.json").read_text("utf-8")
    (other / "tokenizer.json").write_text(tokenizer.replace("<|end|>", "<|stop|>"), "utf-8")
    assert "vocabulary" in pair_problem(str(drafter), str(other))


def test_a_damaged_draft_is_a_sentence(drafter, target):
    weights = drafter / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelUnreadableError, match="damaged"):
        load_shared_draft(resolve(str(drafter)), target)


def test_a_draft_that_finds_no_memory_is_not_called_damaged(drafter, target, monkeypatch):
    monkeypatch.setattr("safetensors.torch.load_file", failing(torch.OutOfMemoryError("CUDA out of memory")))
    refusal(OutOfMemoryError, load, str(drafter), "cpu", target=target)


def test_a_draft_without_one_of_its_layers_is_a_sentence(drafter, target):
    edit_json(drafter / "config.json", num_hidden_layers=2)
    with pytest.raises(ModelUnreadableError, match="incomplete"):
        load_shared_draft(resolve(str(drafter)), target)
