"""GGUF: a file is checked, then unpacked once, by a child process that is watched; every failure is a sentence."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
import torch

import core.models.folder.gguf as engine
from core.controls import Cancelled
from core.decode import autoregressive
from core.errors import ModelUnreadableError, NoSpaceError, OutOfMemoryError, PromptError
from core.models import child, load
from core.models.catalogue import ModelFormat, resolve
from core.models.child import ChildExit, ChildFailedError, supervise
from core.models.fit import pair_problem
from core.models.folder.gguf import convert, converted_folder, converting, is_converted
from core.models.folder.gguf_child import unpack
from core.models.folder.weight_files import check_gguf
from core.models.prompting import encode_prompt
from tests import fakes
from tests.fakes import GREEDY, PROMPT, failing, greedy_reference, is_sentence, play
from tests.fakes_gguf import fake, left_over, refusal, write_gguf

NO_SIGNALS = pytest.mark.skipif(sys.platform == "win32", reason="no signals there")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny ü.gguf", template="{{ 'x' * 9000000000 }}")


def test_a_gguf_file_is_converted_once_and_runs(gguf_file, tmp_path, monkeypatch):
    """Whatever lies in the working directory, and beside the model."""
    for name in ("core", "torch", "transformers", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('taken')")
    gguf_file = Path(shutil.copy(gguf_file, tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "outlandish", "auto_map": {"AutoConfig": "e.C"}}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["e.T", None]}}))
    monkeypatch.chdir(tmp_path)
    entry = resolve(str(gguf_file))
    assert (entry.title, entry.format) == ("tiny ü", ModelFormat.GGUF)
    assert not is_converted(gguf_file)
    progress = []
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda scratch, **_: progress.append((scratch / "progress").read_text()))
        convert(Path(gguf_file.name))
    done, total = progress[0].splitlines()[-1].split()
    assert done == total
    model = load(str(gguf_file), "cpu")
    assert is_converted(gguf_file)
    assert (model.vocab_size, model.context_length, model.dtype) == (258, 128, torch.float32)
    run = play(autoregressive(model, PROMPT, sampling=GREEDY, max_new_tokens=8))
    assert run.ids == greedy_reference(model, PROMPT, 8)
    kept = converted_folder(gguf_file)
    changed = (kept / "model.safetensors").stat().st_mtime_ns
    again = load(str(gguf_file), "cpu")
    assert play(autoregressive(again, PROMPT, sampling=GREEDY, max_new_tokens=8)).ids == run.ids
    assert (kept / "model.safetensors").stat().st_mtime_ns == changed
    assert pair_problem(str(gguf_file), str(gguf_file)) is None
    fakes.refusal(PromptError, encode_prompt, model, "hi", chat=True, match="too much memory")


@pytest.fixture
def child_is(monkeypatch):
    """Replaces the real child by a script; `out` is the folder of its model, `progress` a function."""

    def put(script: str) -> None:
        def command(_source, scratch, *_limits):
            prelude = f"scratch = {str(scratch)!r}; out = os.path.join(scratch, 'model')\n"
            prelude += "def progress(text): open(os.path.join(scratch, 'progress'), 'a').write(text + '\\n')\n"
            return fake(prelude + script)

        monkeypatch.setattr(engine, "_command", command)

    return put


WRITES = """
os.mkdir(out)
for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
    open(os.path.join(out, name), "w").write("{}")
header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
open(os.path.join(out, "model.safetensors"), "wb").write(len(header).to_bytes(8, "little") + header + bytes(4))
"""


def test_progress_is_reported_and_the_result_is_kept(gguf_file, child_is):
    child_is("for i in range(5): progress(f'{i} 5'); time.sleep(0.1)\nprogress('x')\nprogress('9 0')" + WRITES)
    shares = list(converting(gguf_file, lambda: None))
    assert 0 <= min(shares) < max(shares) <= 1
    assert is_converted(gguf_file)
    assert left_over() == []
    child_is("sys.exit('not again')")
    assert convert(gguf_file) == converted_folder(gguf_file)


def test_a_kept_conversion_that_was_cut_short_is_made_again(gguf_file, child_is):
    child_is(WRITES)
    folder = convert(gguf_file)
    whole = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(whole) == 5, "what the child wrote, and the list of it"
    for path, content in whole.items():
        for left in (content[:-1], None):
            path.unlink() if left is None else path.write_bytes(left)
            assert not is_converted(gguf_file), (path, left)
            assert convert(gguf_file) == folder
            assert {path: path.read_bytes() for path in folder.iterdir()} == whole
    (folder / engine._SIZES).rename(folder / "sizes.json")
    assert not is_converted(gguf_file), "an older version made it, without the rotary scaling"


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("sys.exit('GGUF model with architecture x is not supported')", ModelUnreadableError, "architecture x"),
        ("sys.exit(1)", ModelUnreadableError, "gave no reason"),
        (f"sys.exit({ChildExit.SPACE})", NoSpaceError, "disk is full"),
        (f"sys.exit({ChildExit.MEMORY})", OutOfMemoryError, "does not fit in memory"),
        (f"sys.exit({ChildExit.STALLED})", ModelUnreadableError, "no progress"),
        ("pass", ModelUnreadableError, "not unpacked completely"),
        ("os.mkdir(out); open(os.path.join(out, 'config.json'), 'w').close()", ModelUnreadableError, "completely"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", ModelUnreadableError, "crashed", marks=NO_SIGNALS),
    ],
)
def test_a_failed_conversion_is_a_sentence_and_leaves_nothing(gguf_file, child_is, script, error, words):
    child_is(script)
    assert words in refusal(gguf_file, error)
    assert not is_converted(gguf_file)


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_conversion_that_is_cancelled_leaves_nothing(gguf_file, child_is, how):
    child_is(WRITES + "progress('1 2')\ntime.sleep(600)")
    is_cancelled = []

    def check_cancelled() -> None:
        if is_cancelled:
            raise Cancelled

    steps = converting(gguf_file, check_cancelled)
    assert any(share > 0.3 for share in steps)
    assert len(left_over()) == 1
    (child,) = (process for process in psutil.Process().children() if "progress" in " ".join(process.cmdline()))
    if how == "cancelled":
        is_cancelled.append(True)
        with pytest.raises(Cancelled):
            list(steps)
    else:
        steps.close()
    assert not child.is_running()
    assert left_over() == []
    assert not is_converted(gguf_file)


def test_cancelling_works_while_a_file_is_read(gguf_file):
    engine._digests.clear()
    with pytest.raises(Cancelled):
        convert(gguf_file, failing(Cancelled()))


def test_what_a_crash_left_behind_is_removed_and_what_is_running_is_not(gguf_file, child_is):
    kept = engine._kept()
    # The process that converts may be another machine's, whose number nothing has here.
    crashed, running = kept / ".converting-a", kept / ".converting-4194305-b"
    for folder in (crashed, running):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(b"x")
    os.utime(crashed, (0, 0))
    child_is(WRITES)
    convert(gguf_file)
    assert left_over() == [running]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="permissions don't bind this user")
def test_a_cache_without_write_permission_is_a_sentence(gguf_file):
    engine._kept().mkdir(parents=True)
    engine._kept().chmod(0o500)
    assert "not allowed" in refusal(gguf_file)


def test_a_file_where_the_cache_should_be_is_a_sentence(gguf_file):
    engine._kept().parent.mkdir(parents=True, exist_ok=True)
    engine._kept().write_text("in the way")
    fakes.refusal(ModelUnreadableError, convert, gguf_file)


def test_weights_that_only_the_child_misses_are_named(gguf_file, tmp_path):
    # One tensor has a name that no model knows.
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf_file.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_no.weight"))
    check_gguf(path)
    with pytest.raises(ValueError, match=r"it lacks 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        unpack(path, tmp_path / "model", lambda done, total: None)


# --- The child process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "memory", "code"),
    [
        ("print('o' * 1_000_000); sys.exit('the reason')", 2**33, ChildExit.FAILED),
        ("time.sleep(600)", 2**33, ChildExit.STALLED),
        ("while True: pass", 2**33, ChildExit.STALLED),
        ("kept = bytearray(b'x') * 2**28; time.sleep(600)", 2**27, ChildExit.MEMORY),
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", 2**33, -11, marks=NO_SIGNALS),
    ],
)
def test_a_failing_child_is_killed(tmp_path, monkeypatch, script, memory, code):
    monkeypatch.setattr(child, "STALL_S", 0.5 if code == ChildExit.STALLED else 60)
    with pytest.raises(ChildFailedError) as caught:
        list(supervise(fake(script), environment=os.environ, folder=tmp_path, memory_bytes=memory))
    assert caught.value.code == code
    assert caught.value.last_line == ("the reason" if code == ChildExit.FAILED else "")
    assert len(caught.value.output) < 20_000


def test_the_child_takes_no_more_memory_than_it_was_given(gguf_file, monkeypatch):
    command = engine._command
    monkeypatch.setattr(engine, "_command", lambda source, scratch, _, seconds: command(source, scratch, 1, seconds))
    assert "does not fit in memory" in refusal(gguf_file, OutOfMemoryError)


def test_the_child_ends_when_the_process_that_started_it_is_gone():
    code = "from core.models.child import end_with_parent; end_with_parent()"
    root = str(Path(engine.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, cwd=root, timeout=120, check=False)
    assert done.returncode == 1


# --- What is asked of a file before anything is unpacked -----------------------------------------------------------


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
    for content in mutants(gguf_file.read_bytes(), 539):
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
