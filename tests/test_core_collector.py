"""What the garbage collector looks at while a run goes."""

import gc

import pytest

from core.collector import only_new_objects


def test_what_was_there_is_left_alone_within_and_looked_at_again_after():
    with only_new_objects():
        frozen = gc.get_freeze_count()
        with only_new_objects():
            assert gc.get_freeze_count() >= frozen
        assert gc.get_freeze_count() >= frozen > 1_000
    assert gc.get_freeze_count() == 0


def test_an_error_within_ends_it_too():
    with pytest.raises(KeyError), only_new_objects():
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_a_cycle_that_was_dropped_within_is_collected_after():
    class Node:
        alive = 0

        def __init__(self) -> None:
            self.me = self
            Node.alive += 1

        def __del__(self) -> None:
            Node.alive -= 1

    node = Node()
    with only_new_objects():
        del node
        gc.collect()
        assert Node.alive == 1
    gc.collect()
    assert Node.alive == 0
