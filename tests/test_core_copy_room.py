"""Copies that share one piece of memory: none ever takes another's, and what is given back is used again."""

import random

import pytest
import torch

from core.capture import CopyRoom

LINE = 16


def of(value: float, lines: int = 1) -> torch.Tensor:
    return torch.full((lines, LINE), value)


def room_of(lines: int) -> CopyRoom:
    return CopyRoom(lines * LINE * 4)


def is_within(copy: torch.Tensor, other: torch.Tensor) -> bool:
    return copy.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def test_a_copy_stays_what_it_was():
    room, tensor = room_of(4), of(1.0)
    copy = room.copy(tensor)
    tensor.fill_(2.0)
    assert torch.equal(copy, of(1.0))


def test_copies_lie_in_one_piece_of_memory_and_those_it_has_no_room_for_elsewhere():
    room = room_of(3)
    first, second, third = (room.copy(of(float(index), lines)) for index, lines in enumerate((2, 1, 1)))
    assert is_within(first, second)
    assert not is_within(first, third)
    assert [copy[0, 0].item() for copy in (first, second, third)] == [0.0, 1.0, 2.0]


def test_the_front_is_used_again_when_all_is_given_back_and_not_before():
    room = room_of(3)
    first, second = room.copy(of(0.0, 2)), room.copy(of(1.0))
    room.give_back()
    assert not is_within(room.copy(of(2.0)), first)
    assert torch.equal(second, of(1.0))
    room.give_back()
    room.give_back()
    assert room.copy(of(3.0, 3)).data_ptr() == first.data_ptr()


def test_a_room_without_memory_copies_all_the_same():
    room = room_of(0)
    assert torch.equal(room.copy(of(1.0)), of(1.0))


@pytest.mark.parametrize("tensor", [torch.ones(LINE, dtype=torch.float64), torch.ones(0, LINE), torch.ones(3, 5)[:, 1]])
def test_any_tensor_is_copied_as_it_is(tensor):
    copy = room_of(4).copy(tensor)
    assert copy.dtype is tensor.dtype
    assert torch.equal(copy, tensor)
    assert copy.data_ptr() != tensor.data_ptr() or not tensor.numel()


def test_memory_that_the_system_does_not_give_is_done_without(monkeypatch):
    empty = torch.empty

    def refuse(size):
        if size:
            raise RuntimeError("DefaultCPUAllocator: not enough memory")
        return empty(size)

    monkeypatch.setattr(torch, "empty", refuse)
    assert torch.equal(room_of(4).copy(of(1.0)), of(1.0))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_every_copy_is_whole_until_it_is_given_back(seed):
    choose = random.Random(seed)
    room, held = room_of(choose.choice([5, 17, 40])), []
    for value in range(400):
        if held and choose.random() < choose.choice([0.3, 0.5, 0.7]):
            held.pop(0)
            room.give_back()
        tensor = torch.full((choose.randrange(0, 9 * LINE),), float(value))
        held.append((room.copy(tensor), tensor))
        assert all(torch.equal(copy, expected) for copy, expected in held)
