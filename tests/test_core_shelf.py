"""Models that are kept for the next run, and dropped when there is no room."""

import torch

from core.models.shelf import ModelShelf, ShelfKey
from tests.fakes import tiny_model

CPU = torch.device("cpu")


def key(name: str, beside: ShelfKey | None = None) -> ShelfKey:
    return ShelfKey(name, 0, "cpu", torch.float32, beside)


class Room:
    """A device of ten places, of which each model on the shelf takes three."""

    def __init__(self) -> None:
        self.shelf = ModelShelf(lambda _: 10 - 3 * len(self.names()))

    def names(self) -> list[str]:
        return [name for name in "abcd" if any(k.path == name for k in self.shelf._models)]


def test_models_used_least_recently_make_room_first():
    room = Room()
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


def test_what_borrows_goes_with_what_it_borrows_from_and_keeps_it():
    room = Room()
    shelf = room.shelf
    shelf.add(key("a"), tiny_model())
    shelf.add(key("b", beside=key("a")), tiny_model())
    shelf.add(key("c"), tiny_model())
    assert shelf.held_bytes([key("a"), key("b", key("a"))]) == shelf.held_bytes([key("a")]) > 0
    assert not shelf.make_room(99, CPU, keep=[key("b", key("a"))])
    assert room.names() == ["a", "b"]
    assert shelf.make_room(10, CPU, keep=[])
    assert room.names() == []


def test_a_model_that_was_written_anew_takes_the_place_of_the_old_one_and_of_what_borrows_from_it():
    room = Room()
    shelf = room.shelf
    shelf.add(key("a"), tiny_model())
    shelf.add(key("b", beside=key("a")), tiny_model())
    shelf.add(key("c"), tiny_model())
    newer = key("a")._replace(written_at=1)
    shelf.add(newer, tiny_model())
    assert (key("a") in shelf, newer in shelf, room.names()) == (False, True, ["a", "c"])
    assert shelf.held_bytes(device_type="cpu") == shelf.held_bytes() > 0 == shelf.held_bytes(device_type="cuda")
