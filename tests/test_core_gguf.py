"""GGUF: a file is unpacked once, by a child process that is watched, and what goes wrong comes to a sentence."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
from core.models.fit import pair_problem
from core.models.gguf import convert, converted_folder, converting, is_converted
from core.models.weight_files import check_file
from core.settings import SamplingParams
from tests.fakes import greedy_reference, is_sentence, play
from tests.fakes_gguf import AMPLE, fake, left_over, refusal, write_gguf

GREEDY = SamplingParams(0.0)

PROMPT = [10, 20, 30, 40]


@pytest.fixture(scope="module")
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


def test_a_folder_whose_name_ends_in_gguf(tmp_path):
    (tmp_path / "odd.gguf").mkdir()
    with pytest.raises(ModelUnreadableError, match="is a folder") as caught:
        load(str(tmp_path / "odd.gguf"), "cpu")
    assert is_sentence(str(caught.value))


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


# --- The child process ----------------------------------------------------------------------------------------------


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
