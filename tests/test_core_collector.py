"""What the garbage collector looks at, and when."""

import contextlib
import gc
import sys
import types

import pytest

from core.collector import collect_all, importing, only_new_objects, paused, set_aside, short_pauses
from core.models.devices import release_memory


class Ring:
    """An object that only the collector can free."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Ring.alive += 1

    def __del__(self) -> None:
        Ring.alive -= 1


@pytest.fixture(autouse=True)
def nothing_set_aside():
    Ring.alive = 0
    yield
    gc.unfreeze()


def test_what_is_set_aside_is_passed_over_until_all_is_collected():
    ring = Ring()
    set_aside()
    assert gc.get_freeze_count() > 1_000
    del ring
    gc.collect()
    assert Ring.alive == 1
    collect_all()
    assert Ring.alive == 0
    # And goes on being set aside: the libraries are as large as before.
    assert gc.get_freeze_count() > 1_000


def test_what_is_set_aside_is_freed_when_nothing_refers_to_it():
    ring = Ring()
    ring.me = None
    set_aside()
    del ring
    assert Ring.alive == 0


def test_rings_that_a_run_leaves_are_collected_at_its_end():
    with only_new_objects():
        Ring()
        assert gc.get_freeze_count() > 1_000
    assert Ring.alive == 0


def test_an_error_within_ends_it_too():
    with contextlib.suppress(KeyError), only_new_objects():
        Ring()
        raise KeyError
    assert Ring.alive == 0


def test_memory_that_is_released_includes_what_was_set_aside():
    ring = Ring()
    set_aside()
    del ring
    release_memory()
    assert Ring.alive == 0


def test_within_short_pauses_a_full_collection_sets_aside_what_it_found_in_use():
    ring = Ring()
    with short_pauses():
        Ring()
        gc.collect()
        assert Ring.alive == 1
        assert gc.get_freeze_count() > 1_000
        del ring
        gc.collect()
        assert Ring.alive == 1
    collect_all()
    assert Ring.alive == 0
    gc.unfreeze()
    gc.collect()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("was_enabled", [True, False])
def test_nothing_is_collected_while_it_is_paused_also_where_it_ends_in_an_error(was_enabled):
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with contextlib.suppress(ValueError), paused():
            assert not gc.isenabled()
            raise ValueError
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_of_several_that_pause_it_the_last_lets_it_go_on():
    before = gc.isenabled()
    gc.enable()
    try:
        first, second = paused(), paused()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not gc.isenabled()
        second.__exit__(None, None, None)
        assert gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize(("num_modules", "is_set_aside"), [(60, True), (2, False)])
def test_what_many_imports_brought_is_set_aside_also_where_the_last_of_them_fails(
    num_modules, is_set_aside, monkeypatch
):
    gc.unfreeze()
    with contextlib.suppress(ImportError), importing():
        for index in range(num_modules):
            monkeypatch.setitem(sys.modules, f"nowhere.{index}", types.ModuleType("nowhere"))
        raise ImportError
    assert (gc.get_freeze_count() > 1_000) is is_set_aside
