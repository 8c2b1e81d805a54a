"""What is asked of a GGUF file before anything is unpacked: whatever is in it, it is taken or refused."""

import random
import shutil
import struct
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

import core.models.folder.gguf as engine
from core.errors import ModelUnreadableError, NoSpaceError, OutOfMemoryError
from core.models import load
from core.models.folder.weight_files import check_gguf
from tests.fakes import is_sentence
from tests.fakes_gguf import refusal, write_gguf


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny ü.gguf")


@pytest.mark.parametrize(
    "content", [b"", b"GGU", b"not a model", b"GGUF", b"GGUF" + bytes(200), b"GGUF" + b"\xff" * 200]
)
def test_a_file_of_garbage(tmp_path, content):
    (tmp_path / "bad.gguf").write_bytes(content)
    refusal(tmp_path / "bad.gguf")
    with pytest.raises(ModelUnreadableError):
        load(str(tmp_path / "bad.gguf"), "cpu")


def mutants(content: bytes, count: int):
    """Versions of a file with bytes changed, most of them in its head, parts cut out, or an end too soon."""
    draw = random.Random(0)
    for _ in range(count):
        mutant = bytearray(content)
        for _ in range(draw.choice((1, 1, 2, 8))):
            at = draw.randrange(min(len(mutant), draw.choice((64, 600, 4_000, len(mutant)))))
            kind = draw.randrange(4)
            if kind == 0:
                mutant[at] = draw.randrange(256)
            elif kind == 1:
                mutant[at : at + 8] = struct.pack("<Q", draw.choice((0, 1, 2**31, 2**40, 2**63, 2**64 - 1)))
            elif kind == 2:
                del mutant[max(at, 1) : at + draw.randrange(1, 64)]
            else:
                del mutant[max(at, 1) :]
        yield bytes(mutant)


def test_a_changed_file_is_either_accepted_or_refused(gguf_file, tmp_path):
    path, outcomes = tmp_path / "mutant.gguf", []
    for content in mutants(gguf_file.read_bytes(), 400):
        path.write_bytes(content)
        try:
            # What it takes stays within what it contains: float32 of at least a bit and a half a number.
            assert check_gguf(path) <= 24 * len(content)
            outcomes.append("")
        except ModelUnreadableError as error:
            outcomes.append(str(error))
    assert 0 < outcomes.count("") < len(outcomes)
    assert all(is_sentence(message) for message in outcomes if message)


def header(path, *, tensors=((b"a", (32,), 0),), keys=(), version=3, num_tensors=None, num_keys=None) -> Path:
    """A file of just a head: tensors as (name, shape, offset) of float32, keys as (name, type, bytes)."""

    def text(value):
        return struct.pack("<Q", len(value)) + value

    keys = ((b"general.architecture", 8, text(b"llama")), *keys)
    content = b"GGUF" + struct.pack("<IQQ", version, num_tensors or len(tensors), num_keys or len(keys))
    content += b"".join(text(name) + struct.pack("<I", kind) + value for name, kind, value in keys)
    for name, shape, offset in tensors:
        content += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", 0, offset)
    path.write_bytes(content.ljust(-(-len(content) // 32) * 32, b"\0") + bytes(4 * 32))
    return path


def test_a_consistent_header_is_accepted(tmp_path):
    assert check_gguf(header(tmp_path / "good.gguf")) == 4 * 32


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 1},
        {"version": 3 << 24},
        {"num_tensors": 2**62},
        {"num_keys": 2**62},
        {"tensors": ()},
        {"tensors": ((b"a", (0,), 0),)},
        {"tensors": ((b"a", (2**40,), 0),)},
        {"tensors": ((b"a", (2**20, 2**20, 2**20, 2**20), 0),)},
        {"tensors": ((b"a", (32,), 2**62),)},
        {"tensors": ((b"a", (32,), 0), (b"a", (1,), 0))},
        {"tensors": tuple((f"t{index}".encode(), (32,), 0) for index in range(500))},
        {"keys": ((b"llama.block_count", 4, struct.pack("<I", 2**31)),)},
        {"keys": ((b"split.count", 2, struct.pack("<H", 3)),)},
        {"keys": ((b"list", 9, struct.pack("<IQ", 0, 2**60)),)},
        {"keys": ((b"list", 9, struct.pack("<IQ", 8, 2**60)),)},
        {"keys": ((b"list", 9, struct.pack("<IQ", 9, 1) * 1_000),)},
        {"keys": ((b"text", 8, struct.pack("<Q", 2**63)),)},
        {"keys": ((b"odd", 77, b""),)},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_an_impossible_header_is_refused_at_once(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(engine, "supervise", None)
    assert "bad.gguf" in refusal(header(tmp_path / "bad.gguf", **changes))


def test_missing_space_is_reported_before_it_runs_out(gguf_file, monkeypatch):
    monkeypatch.setattr(engine, "supervise", None)
    usage = namedtuple("usage", "free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(1_000))
        assert "Free some space" in refusal(gguf_file, NoSpaceError)
    memory = namedtuple("memory", "available free")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(1_000, 1_000))
    monkeypatch.setattr(psutil, "swap_memory", lambda: memory(0, 0))
    assert "of memory is free" in refusal(gguf_file, OutOfMemoryError)


def test_the_items_of_all_arrays_together_are_limited(tmp_path, monkeypatch):
    arrays = tuple((name, 9, struct.pack("<IQ", 0, 2) + bytes(2)) for name in (b"a", b"b", b"c"))
    path = header(tmp_path / "many.gguf", keys=arrays)
    assert check_gguf(path) == 4 * 32
    monkeypatch.setattr("core.models.folder.weight_files._MAX_ITEMS", 5)
    refusal(header(tmp_path / "more.gguf", keys=arrays))
