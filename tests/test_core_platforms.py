"""What holds on Windows and macOS: what is peculiar to them is imitated here."""

import ctypes
import sys

import pytest

from core.experiments.bench_memory import _drop_read_weights
from core.models.devices import release_memory, trim_heap


@pytest.fixture
def windows(monkeypatch):
    """`sys.platform` of Windows, where there is no library of the process itself."""

    def load(name, *_):
        raise TypeError(f"argument of type {type(name).__name__!r} is not iterable")

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(sys, "platform", "win32")


def test_windows_has_no_heap_to_trim(windows):
    trim_heap()
    release_memory()
    _drop_read_weights()
