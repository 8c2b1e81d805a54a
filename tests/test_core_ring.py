"""Copies that share one piece of memory: none ever takes another's, and what is given back is used again."""

import random

import pytest
import torch

from core.ring import DistributionRing

LINE = 16


def of(value: float, lines: int = 1) -> torch.Tensor:
    return torch.full((lines, LINE), value)


def ring_of(lines: int) -> DistributionRing:
    return DistributionRing(lines * LINE * 4)


def is_within(copy: torch.Tensor, other: torch.Tensor) -> bool:
    return copy.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def test_a_copy_stays_what_it_was():
    ring, tensor = ring_of(4), of(1.0)
    copy = ring.copy(tensor)
    tensor.fill_(2.0)
    assert torch.equal(copy, of(1.0))


def test_copies_lie_in_one_piece_of_memory_and_those_it_has_no_room_for_elsewhere():
    ring = ring_of(3)
    first, second, third = (ring.copy(of(float(index), lines)) for index, lines in enumerate((2, 1, 1)))
    assert is_within(first, second)
    assert not is_within(first, third)
    assert [copy[0, 0].item() for copy in (first, second, third)] == [0.0, 1.0, 2.0]


def test_what_is_given_back_is_used_again_from_the_front():
    ring = ring_of(3)
    first, second = ring.copy(of(0.0, 2)), ring.copy(of(1.0))
    ring.give_back()
    third = ring.copy(of(2.0, 2))
    assert third.data_ptr() == first.data_ptr()
    assert torch.equal(second, of(1.0))


def test_a_ring_without_memory_copies_all_the_same():
    ring = ring_of(0)
    assert torch.equal(ring.copy(of(1.0)), of(1.0))
    ring.give_back()
    with pytest.raises(IndexError):
        ring.give_back()


@pytest.mark.parametrize("tensor", [torch.ones(LINE, dtype=torch.float64), torch.ones(0, LINE), torch.ones(3, 5)[:, 1]])
def test_any_tensor_is_copied_as_it_is(tensor):
    copy = ring_of(4).copy(tensor)
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
    assert torch.equal(ring_of(4).copy(of(1.0)), of(1.0))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_every_copy_is_whole_until_it_is_given_back(seed):
    choose = random.Random(seed)
    ring, held = ring_of(choose.choice([5, 17, 40])), []
    for value in range(400):
        if held and choose.random() < choose.choice([0.3, 0.5, 0.7]):
            held.pop(0)
            ring.give_back()
        tensor = torch.full((choose.randrange(0, 9 * LINE),), float(value))
        held.append((ring.copy(tensor), tensor))
        assert all(torch.equal(copy, expected) for copy, expected in held)


def test_one_that_is_emptied_again_and_again_never_runs_out():
    ring = ring_of(10)
    first = ring.copy(of(0.0, 4))
    for value in range(100):
        second = ring.copy(of(float(value), 3))
        ring.give_back()
        assert is_within(first, second)
        assert torch.equal(second, of(float(value), 3))
    ring.give_back()
    assert ring.copy(of(7.0, 10)).data_ptr() == first.data_ptr()
