"""What the garbage collector looks at, and when."""

import contextlib
import gc
import sys
import threading
import types

import pytest

from core import machine as collector
from core.machine import (
    SoleCollector,
    collect_all,
    collect_new,
    importing,
    making_what_stays,
    only_new_objects,
    paused,
    set_aside,
    short_pauses,
)
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


def is_set_aside(item):
    return all(known is not item for known in gc.get_objects())


def test_what_is_made_to_stay_is_set_aside_and_what_was_rubbish_before_is_collected():
    Ring()
    with making_what_stays():
        assert Ring.alive == 0
        assert not gc.isenabled()
        made = [[]]
        assert not is_set_aside(made)
    assert is_set_aside(made)


def test_while_a_run_goes_neither_what_is_made_to_stay_nor_what_the_run_holds_is_set_aside():
    with short_pauses(), only_new_objects():
        held = [[]]
        with making_what_stays():
            made = [[]]
        assert not is_set_aside(made)
        assert not is_set_aside(held)


def test_what_fails_to_be_made_is_not_set_aside():
    made = [[]]
    with contextlib.suppress(KeyError), making_what_stays():
        made = [made]
        raise KeyError
    assert not is_set_aside(made)


def test_memory_that_is_released_includes_what_was_set_aside_only_if_it_is_to():
    ring = Ring()
    set_aside()
    del ring
    Ring()
    release_memory()
    assert Ring.alive == 1
    release_memory(of_models=True)
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


@pytest.fixture
def sole():
    """A collector of this thread alone, which is woken by an event."""
    woken = threading.Event()
    sole = SoleCollector(woken.set)
    sole.woken = woken
    sole.begin()
    yield sole
    if sole in collector._soles:
        sole.end()


@pytest.fixture
def collecting_threads():
    """The threads that collect anything."""
    threads = []

    def note(phase, _info):
        if phase == "start":
            threads.append(threading.get_ident())

    gc.callbacks.append(note)
    yield threads
    gc.callbacks.remove(note)


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def make_rings():
    for _ in range(5_000):
        Ring()


def test_what_another_thread_leaves_is_collected_by_the_one_that_alone_collects(sole, collecting_threads):
    in_thread(make_rings).join()
    assert Ring.alive == 5_000
    assert not collecting_threads
    sole.collect_due()
    assert Ring.alive == 0
    assert set(collecting_threads) == {threading.get_ident()}


def test_less_than_python_would_collect_is_left(sole):
    sole.collect_due()
    gc.collect()
    Ring()
    sole.collect_due()
    assert Ring.alive == 1
    gc.collect()


def test_nothing_is_due_while_it_is_paused(sole):
    make_rings()
    with paused():
        sole.collect_due()
        assert Ring.alive == 5_000
    assert not gc.isenabled()
    sole.collect_due()
    assert Ring.alive == 0


@pytest.mark.parametrize("collect", [collect_new, collect_all])
def test_who_wants_all_collected_in_another_thread_waits_for_the_one_that_does(collect, sole, collecting_threads):
    alive = []

    def work():
        Ring()
        collect()
        alive.append(Ring.alive)

    thread = in_thread(work)
    assert sole.woken.wait(20)
    sole.collect_wanted()
    thread.join()
    assert alive == [0]
    assert set(collecting_threads) == {threading.get_ident()}


def test_what_a_run_in_another_thread_leaves_is_collected_before_the_next_sets_it_aside(sole, monkeypatch):
    monkeypatch.setattr(collector, "_PATIENCE_S", 60.0)

    def run_twice():
        with only_new_objects():
            Ring()
        with only_new_objects():
            alive.append(Ring.alive)

    alive = []
    thread = in_thread(run_twice)
    while thread.is_alive():
        if sole.woken.wait(0.01):
            sole.woken.clear()
            sole.collect_wanted()
    assert alive == [0]


def test_while_a_run_goes_what_it_holds_is_not_set_aside_for_good(sole):
    thresholds = gc.get_threshold()
    gc.set_threshold(5, 1, 1)
    try:
        with short_pauses():
            with only_new_objects():
                ring = Ring()
                for _ in range(20):
                    made = [[] for _ in range(50)]
                    sole.collect_due()
                del ring, made
            assert Ring.alive == 0
            made = []
            for _ in range(20):
                made.extend([] for _ in range(50))
                sole.collect_due()
            assert gc.get_count()[2] < 5, "all is collected again"
    finally:
        gc.set_threshold(*thresholds)


def test_nobody_waits_for_ever_and_what_was_wanted_is_done_at_the_end(sole):
    wanted = []
    in_thread(lambda: collector._collect(lambda: wanted.append(threading.get_ident()), wait_s=0.01)).join()
    assert not wanted
    sole.end()
    assert wanted == [threading.get_ident()]


def test_the_thread_that_collects_does_at_once_what_it_wants_itself(sole):
    Ring()
    collect_new()
    assert Ring.alive == 0
    assert not sole.woken.is_set()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_behind_it_all_is_collected_and_python_goes_on_as_before(was_enabled):
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        one = SoleCollector(lambda: None)
        one.begin()
        assert not gc.isenabled()
        Ring()
        one.end()
        assert Ring.alive == 0
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()
