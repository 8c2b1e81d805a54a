"""Files are written whole or not at all: replaced with their rights, and refused in a sentence."""

import errno
import os
import sys

import pytest

from app.cli.console import check_out
from app.cli.errors import UsageError
from core.errors import RunLogError
from core.files import write_atomically
from tests.errors import failing


def test_a_file_is_replaced_whole_with_its_rights(tmp_path):
    path = tmp_path / "f.txt"
    write_atomically(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    if os.name == "posix":
        umask = os.umask(0)
        os.umask(umask)
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask
        path.chmod(0o640)
    write_atomically(path, b"\x00\r\n")
    assert path.read_bytes() == b"\x00\r\n"
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["f.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "f.txt"
    path.write_text("old")
    monkeypatch.setattr(os, step, failing(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(RunLogError, match="no space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f.txt"]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [(errno.EACCES, "not allowed"), (errno.ENAMETOOLONG, "too long"), (errno.EIO, "can't be written")],
)
def test_each_refusal_says_what_to_do(tmp_path, monkeypatch, code, sentence):
    monkeypatch.setattr(os, "open", failing(OSError(code, os.strerror(code))))
    with pytest.raises(RunLogError, match=sentence) as caught:
        write_atomically(tmp_path / "f.txt", "new")
    assert "choose" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_and_a_folder_are_refused(tmp_path):
    with pytest.raises(RunLogError, match="no folder"):
        write_atomically(tmp_path / "missing" / "f.txt", "new")
    with pytest.raises(RunLogError, match="is a folder"):
        write_atomically(tmp_path, "new")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_keeps_pointing_at_its_file(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_device_is_written_to_and_not_replaced():
    with pytest.raises(RunLogError, match="no space left"):
        write_atomically("/dev/full", "new")
    assert not os.path.isfile("/dev/full")


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="no /dev/fd here")
def test_a_pipe_is_written_to_by_its_descriptors_name():
    reader, writer = os.pipe()
    with os.fdopen(reader) as file, os.fdopen(writer):
        check_out(f"/dev/fd/{writer}", "ours")
        write_atomically(f"/dev/fd/{writer}", "new")
        assert os.read(file.fileno(), 9) == b"new"


def test_only_an_empty_file_and_results_of_the_same_kind_may_be_replaced(tmp_path):
    path = tmp_path / "out"
    for contents in ("", '{"schema": "ours/1"', "\n" * 4000 + "ours/1"):
        path.write_text(contents)
        check_out(path, "ours/1")
    path.write_text(" " * 5000 + "ours/1")
    with pytest.raises(UsageError, match="something other"):
        check_out(path, "ours/1")
