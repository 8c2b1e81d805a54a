"""An extension module's library is read from the disk before Python loads it with its lock held."""

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

import core.read_ahead as read_ahead
from core.read_ahead import extensions_read_ahead


@pytest.fixture
def found(tmp_path, monkeypatch):
    """A folder with an extension module that nothing can load, and a module; what is read of it."""
    extension = tmp_path / f"outrider_extension{EXTENSION_SUFFIXES[0]}"
    extension.write_bytes(b"not a library")
    (tmp_path / "outrider_module.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    read = []
    monkeypatch.setattr(read_ahead, "read_ahead", read.append)
    yield extension, read
    sys.modules.pop("outrider_module", None)


def test_an_extension_module_is_read_before_it_is_loaded_and_no_other_file(found):
    extension, read = found
    with extensions_read_ahead():
        assert importlib.import_module("outrider_module").answer == 42
        assert read == []
        with pytest.raises(ImportError):
            importlib.import_module("outrider_extension")
    assert read == [extension]


def test_what_is_missing_is_missed_as_ever(found):
    with extensions_read_ahead(), pytest.raises(ModuleNotFoundError, match="outrider_nothing"):
        importlib.import_module("outrider_nothing")


def test_imports_are_as_they_were_afterwards_though_it_is_nested(found):
    extension, read = found
    before = list(sys.meta_path)
    with extensions_read_ahead():
        with extensions_read_ahead():
            pass
        assert importlib.util.find_spec("outrider_extension").origin == str(extension)
        assert read == [extension]
    assert sys.meta_path == before
    importlib.util.find_spec("outrider_extension")
    assert read == [extension]


def test_a_file_is_read_to_its_end_and_what_can_not_be_read_is_left_to_the_import(tmp_path, monkeypatch):
    monkeypatch.setattr(read_ahead, "_PIECE_BYTES", 2000)
    (tmp_path / "there.so").write_bytes(b"1" * 5000)
    assert read_ahead.read_ahead(tmp_path / "there.so") == 5000
    assert read_ahead.read_ahead(tmp_path / "nowhere.so") == 0
    assert read_ahead.read_ahead(tmp_path) == 0
