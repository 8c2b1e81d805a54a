"""GGUF: a file is unpacked by a process of its own, and whatever is wrong with it comes to a sentence."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import gguf
import numpy as np
import psutil
import pytest
import torch

import core.models.gguf as engine
from core.controls import Cancelled
from core.decode import autoregressive
from core.errors import ModelUnreadableError, OutOfMemoryError
from core.models import load
from core.models.catalogue import ModelFormat, resolve
from core.models.child_process import ChildFailedError, ChildFailure, Limits, supervise
from core.models.compatibility import pair_problem
from core.models.gguf import convert, converted_folder, converting, is_converted
from core.models.gguf_checks import check_file
from core.types import SamplingParams
from tests.fakes import byte_tokenizer, greedy_reference, is_sentence, play, tiny_module

GREEDY = SamplingParams(0.0)
PROMPT = [10, 20, 30, 40]
AMPLE = Limits(memory_bytes=2**33, stall_s=120)


def refusal(path, error=ModelUnreadableError) -> str:
    """Converts what can't be converted, and returns what a person is told."""
    with pytest.raises(error) as caught:
        convert(Path(path))
    assert is_sentence(str(caught.value)), str(caught.value)
    assert left_over() == []
    return str(caught.value)


def left_over() -> list[Path]:
    """What lies where converted files are kept, and is no converted file."""
    return sorted(path for path in engine._kept().glob("*") if not (path / "config.json").is_file())


def write_gguf(path) -> None:
    """A tiny llama in float32, as llama.cpp's converter writes it but for its rotary order, which is left as it is."""
    config = tiny_module("llama").config
    tokens = byte_tokenizer([("a", "b")]).convert_ids_to_tokens(range(258))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(258)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(257)
    random = np.random.default_rng(0)
    shapes = {"token_embd": (258, 32), "output_norm": (32,), "output": (258, 32)}
    for block in range(2):
        shapes |= {
            f"blk.{block}.{name}": shape
            for name, shape in {
                "attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32),
                "attn_output": (32, 32), "ffn_norm": (32,), "ffn_gate": (48, 32), "ffn_up": (48, 32),
                "ffn_down": (32, 48),
            }.items()
        }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape, scale=0.3).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny ü.gguf"
    write_gguf(path)
    return path


def test_a_gguf_file_is_converted_once_and_runs(gguf_file):
    entry = resolve(str(gguf_file))
    assert (entry.title, entry.format) == ("tiny ü", ModelFormat.GGUF)
    assert not is_converted(gguf_file)
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
    # Nothing half done is left beside it.
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert pair_problem(str(gguf_file), str(gguf_file)) is None


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_truncated_file(gguf_file, tmp_path, keep):
    content = gguf_file.read_bytes()
    (tmp_path / "torn.gguf").write_bytes(content[: int(len(content) * keep)])
    refusal(tmp_path / "torn.gguf")


@pytest.mark.parametrize(
    "content", [b"", b"GGU", b"not a model", b"GGUF", b"GGUF" + bytes(200), b"GGUF" + b"\xff" * 200]
)
def test_a_file_of_garbage(tmp_path, content):
    (tmp_path / "bad.gguf").write_bytes(content)
    refusal(tmp_path / "bad.gguf")
    with pytest.raises(ModelUnreadableError):
        load(str(tmp_path / "bad.gguf"), "cpu")


def test_a_folder_whose_name_ends_in_gguf(tmp_path):
    (tmp_path / "odd.gguf").mkdir()
    with pytest.raises(ModelUnreadableError, match="is a folder") as caught:
        load(str(tmp_path / "odd.gguf"), "cpu")
    assert is_sentence(str(caught.value))


# --- What is asked before anything is unpacked ---------------------------------------------------------------------


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


def test_whatever_is_changed_in_a_file_it_is_taken_or_refused(gguf_file, tmp_path):
    path, outcomes = tmp_path / "mutant.gguf", []
    for content in mutants(gguf_file.read_bytes(), 400):
        path.write_bytes(content)
        try:
            plan, told = check_file(path), None
        except ModelUnreadableError as error:
            plan, told = None, str(error)
        outcomes.append("refused" if plan is None else "taken")
        if plan is None:
            assert is_sentence(told)
        else:
            # What it is going to take stays within what is in it: float32 of at least a bit and a half a number.
            assert plan.disk_bytes <= 24 * len(content)
    assert {"refused", "taken"} == set(outcomes)


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


def test_a_head_that_adds_up_is_taken(tmp_path):
    assert check_file(header(tmp_path / "good.gguf")).disk_bytes == 4 * 32


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
def test_a_head_that_claims_what_cant_be_is_refused_at_once(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(engine, "supervise", None)
    assert "bad.gguf" in refusal(header(tmp_path / "bad.gguf", **changes))


def test_a_lack_of_room_is_said_before_it_is_met(gguf_file, monkeypatch):
    monkeypatch.setattr(engine, "supervise", None)
    usage = namedtuple("usage", "free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(1_000))
        assert "Free some space" in refusal(gguf_file)
    memory = namedtuple("memory", "available free")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(1_000, 1_000))
    monkeypatch.setattr(psutil, "swap_memory", lambda: memory(0, 0))
    assert "of memory is free" in refusal(gguf_file, OutOfMemoryError)


# --- The child ---------------------------------------------------------------------------------------------------


def fake(script: str) -> list[str]:
    """A command that runs a few lines of Python, which start sooner than the real child."""
    prelude = "import json, os, signal, sys, time\ndef send(**m): print(json.dumps(m), flush=True)\n"
    return [sys.executable, "-S", "-c", prelude + script]


def watch(script: str, limits: Limits = AMPLE, check_cancelled=lambda: None) -> list[dict]:
    """The messages of a fake child."""
    child = supervise(fake(script), environment=os.environ, limits=limits, check_cancelled=check_cancelled)
    return [message for message in child if message is not None]


def test_messages_come_through_and_noise_does_not():
    script = "print('noise'); print('[1]'); print('{'); print('x' * 100_000); send(a=1); send(b=2); print('end')"
    assert watch(script) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("script", "limits", "failure"),
    [
        ("sys.exit('told at last')", AMPLE, ChildFailure.ERROR),
        ("time.sleep(600)", Limits(2**33, 0.2), ChildFailure.STALL),
        ("while True: pass", Limits(2**33, 0.2), ChildFailure.STALL),
        ("kept = bytearray(b'x') * 2**28; time.sleep(600)", Limits(2**27, 120), ChildFailure.MEMORY),
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", AMPLE, ChildFailure.SIGNAL,
                     marks=pytest.mark.skipif(sys.platform == "win32", reason="no signals there")),
    ],
    ids=["error", "sleeps", "loops", "memory", "signal"],
)  # fmt: skip
def test_a_child_that_goes_wrong_is_ended(script, limits, failure):
    with pytest.raises(ChildFailedError) as caught:
        watch(script, limits)
    assert caught.value.failure is failure
    assert caught.value.said == ("told at last" if failure is ChildFailure.ERROR else "")


def test_a_flood_on_both_pipes_neither_hangs_nor_fills_memory():
    with pytest.raises(ChildFailedError) as caught:
        watch("for _ in range(300): print('o' * 10_000); print('e' * 10_000, file=sys.stderr)\nsys.exit('end')")
    assert caught.value.said == "end"


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_child_is_gone_as_soon_as_it_is_given_up(how):
    is_cancelled = []

    def check_cancelled() -> None:
        if is_cancelled:
            raise Cancelled

    child = supervise(
        fake("send(pid=os.getpid()); time.sleep(600)"),
        environment=os.environ,
        limits=AMPLE,
        check_cancelled=check_cancelled,
    )
    pid = next(message["pid"] for message in child if message)
    assert psutil.pid_exists(pid)
    if how == "cancelled":
        is_cancelled.append(True)
        with pytest.raises(Cancelled):
            list(child)
    else:
        child.close()
    assert not psutil.pid_exists(pid)


def test_the_child_ends_when_the_process_that_started_it_is_gone():
    code = "from core.models.gguf_child import _end_with_parent; _end_with_parent()"
    root = str(Path(engine.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, cwd=root, timeout=120, check=False)
    assert done.returncode == 1


# --- Conversion with a fake child ----------------------------------------------------------------------------------


@pytest.fixture
def child_is(monkeypatch):
    """Puts a script in the real child's place; it finds its destination in `out`."""

    def put(script: str) -> None:
        def command(_source, destination, _memory):
            return fake(f"out = {str(destination)!r}\n{script}")

        monkeypatch.setattr(engine, "_command", command)

    return put


WRITES = """
os.mkdir(out)
for name in ("config.json", "model.safetensors"):
    open(os.path.join(out, name), "w").write("{}")
"""


def test_progress_is_told_and_the_result_is_kept(gguf_file, child_is):
    child_is("for i in range(5): send(done=i + 1, total=5)\nsend(done='x')\nsend(other=1)" + WRITES)
    shares = []
    folder = convert(gguf_file, on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] >= 0.7
    assert max(shares) <= 1
    assert folder == converted_folder(gguf_file)
    assert is_converted(gguf_file)
    assert left_over() == []
    child_is("sys.exit('not again')")
    assert convert(gguf_file) == folder


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("send(failure='file', reason='GGUF model with architecture x is not supported'); sys.exit(1)",
         ModelUnreadableError, "architecture x"),
        ("sys.exit('a last word')", ModelUnreadableError, "a last word"),
        ("sys.exit(1)", ModelUnreadableError, "gave no reason"),
        ("send(failure='space', reason='x'); sys.exit(1)", ModelUnreadableError, "no space left"),
        ("send(failure='memory', reason='x'); sys.exit(1)", OutOfMemoryError, "does not fit in memory"),
        ("pass", ModelUnreadableError, "not unpacked whole"),
        ("os.mkdir(out); open(os.path.join(out, 'config.json'), 'w').close()", ModelUnreadableError, "whole"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", ModelUnreadableError, "crashed",
                     marks=pytest.mark.skipif(sys.platform == "win32", reason="no signals there")),
    ],
)  # fmt: skip
def test_a_failed_conversion_is_a_sentence_and_leaves_nothing(gguf_file, child_is, script, error, words):
    child_is(script)
    assert words in refusal(gguf_file, error)
    assert not is_converted(gguf_file)


def test_a_child_that_hangs_is_a_sentence(gguf_file, child_is, monkeypatch):
    monkeypatch.setattr(engine, "_STALL_S", 0.2)
    child_is("time.sleep(600)")
    assert "no progress" in refusal(gguf_file)


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_a_conversion_that_is_given_up_leaves_nothing(gguf_file, child_is, how):
    child_is(WRITES + "send(done=1, total=2)\ntime.sleep(600)")
    is_cancelled = []

    def check_cancelled() -> None:
        if is_cancelled:
            raise Cancelled

    steps = converting(gguf_file, check_cancelled)
    assert any(share > 0.3 for share in steps)
    assert len(left_over()) == 1
    if how == "cancelled":
        is_cancelled.append(True)
        with pytest.raises(Cancelled):
            list(steps)
    else:
        steps.close()
    assert left_over() == []
    assert not is_converted(gguf_file)


def test_a_stop_is_seen_while_a_file_is_read(gguf_file):
    def check_cancelled() -> None:
        raise Cancelled

    engine._digests.clear()
    with pytest.raises(Cancelled):
        convert(gguf_file, check_cancelled)


def test_what_a_crash_left_behind_is_swept_and_what_is_at_work_is_not(gguf_file, child_is):
    kept = engine._kept()
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    crashed, at_work = kept / f".converting-{ended.pid}-a", kept / f".converting-{os.getpid()}-b"
    for folder in (crashed, at_work):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(b"x")
    child_is(WRITES)
    convert(gguf_file)
    assert left_over() == [at_work]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="rights don't bind this user")
def test_a_cache_that_may_not_be_written_is_a_sentence(gguf_file):
    engine._kept().mkdir(parents=True)
    engine._kept().chmod(0o500)
    assert "not allowed" in refusal(gguf_file)


def test_a_cache_whose_place_is_taken_by_a_file_is_a_sentence(gguf_file):
    engine._kept().parent.mkdir(parents=True, exist_ok=True)
    engine._kept().write_text("in the way")
    with pytest.raises(ModelUnreadableError) as caught:
        convert(gguf_file)
    assert is_sentence(str(caught.value))


# --- Conversion by the real child ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_file_that_only_the_child_can_judge_is_a_sentence(gguf_file, tmp_path):
    # It does not say how many layers it has, and holds fewer than is usual.
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf_file.read_bytes().replace(b"llama.block_count", b"llama.block_c0unt"))
    check_file(path)
    assert "odd.gguf" in refusal(path)


def test_code_and_files_where_the_app_was_started_are_not_taken_for_its_own(gguf_file, tmp_path, monkeypatch):
    for name in ("core", "torch", "transformers", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('taken')")
    # Nor is what lies beside the file.
    shutil.copy(gguf_file, tmp_path / "model.gguf")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "outlandish", "auto_map": {"AutoConfig": "e.C"}}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["e.T", None]}}))
    monkeypatch.chdir(tmp_path)
    shares = []
    folder = convert(Path("model.gguf"), on_progress=shares.append)
    assert (folder / "tokenizer.json").is_file()
    assert any(0 < share < 1 for share in shares)
    assert left_over() == []
