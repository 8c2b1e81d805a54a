"""What holds on Windows and macOS: what is peculiar to them is imitated here."""

import ctypes
import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from core.decode import speculative
from core.drafters.base import DrafterSetup
from core.drafters.registry import build_drafter
from core.experiments.bench_memory import _drop_read_weights
from core.files import explain_read_error
from core.models import devices
from core.models.child import PARENT, ChildExit, ChildFailedError, child_environment, supervise
from core.models.devices import device_name, release_memory, trim_heap
from core.models.folder.gguf import _explain
from core.settings import SamplingParams
from core.types import Draft
from tests.children import run_code
from tests.errors import failing
from tests.fakes import play, tiny_model


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


WATCHER = """
import sys, threading, time
from core.models.child import end_with_parent
sys.platform = "win32"
threading.Thread(target=end_with_parent, daemon=True).start()
print(sys.stdin.readline(), end="", flush=True)
time.sleep(600)
"""


def test_on_windows_a_child_ends_with_its_parent_without_reading_stdin():
    """While one thread reads the pipe, numpy's import by another hangs there."""
    python = [sys.executable, "-c"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*python, "input()"], stdin=subprocess.PIPE) as parent:
        environment = child_environment() | {PARENT: str(parent.pid)}
        with subprocess.Popen([*python, WATCHER], env=environment, **pipes) as child:
            try:
                child.stdin.write("still here\n")
                child.stdin.flush()
                assert child.stdout.readline() == "still here\n"
                parent.communicate(b"\n")
                assert child.wait(60) == 1
            finally:
                child.kill()
                parent.kill()
    assert child_environment()[PARENT] == str(os.getpid())


LATE_WATCHER = """
import os, sys, threading, time
from core.models.child import PARENT, end_with_parent
sys.platform = "win32"
print(flush=True)
os.environ.pop(PARENT, None)
os.environ.update(eval(sys.stdin.readline()))
threading.Thread(target=end_with_parent, daemon=True).start()
time.sleep(600)
"""


@pytest.mark.parametrize("is_known", [False, True])
def test_on_windows_a_child_ends_whose_parent_is_unknown_or_whose_id_a_later_program_has(is_known):
    python = [sys.executable, "-c"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*python, LATE_WATCHER], env=child_environment(), **pipes) as child:
        assert child.stdout.readline() == "\n"
        with subprocess.Popen([*python, "input()"], stdin=subprocess.PIPE) as later:
            try:
                child.stdin.write(f"{ {PARENT: str(later.pid)} if is_known else {} }\n")
                child.stdin.flush()
                assert child.wait(60) == 1
            finally:
                child.kill()
                later.kill()


def test_on_windows_the_memory_limit_sees_through_the_launcher_of_a_venv(windows, tmp_path):
    script = "import sys; kept = bytearray(b'x') * 2**28; sys.stdin.read()"
    launcher = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {script!r}]))"
    with pytest.raises(ChildFailedError) as caught:
        list(supervise([sys.executable, "-c", launcher], folder=tmp_path, memory_bytes=2**27, stall_s=60))
    assert caught.value.code == ChildExit.MEMORY


def test_the_processor_of_a_mac_is_named_by_its_brand(monkeypatch):
    """`platform.processor()` is "arm" on all of them."""
    name = devices._processor_name.__wrapped__
    monkeypatch.setattr(sys, "platform", "darwin")
    answers = ["Apple M2 Pro\n", "\n"]

    def run(command, **_):
        if command[1:] != ["-n", "machdep.cpu.brand_string"] or not answers:
            raise FileNotFoundError(2, "No such file")
        return subprocess.CompletedProcess(command, 0, answers.pop(0), "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(devices, "_processor_name", name)
    monkeypatch.setattr(devices, "open", failing(FileNotFoundError(2, "No such file")), raising=False)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert [device_name(torch.device("mps")), name(), name()] == ["Apple M2 Pro GPU", "arm", "arm"]


def test_without_onednn_as_on_some_macs_the_forward_is_still_a_script():
    code = """
import torch
torch.ops.mkldnn = torch.ops.not_in_this_torch
from core.runners.llama_forward import draw_next, forward, scripted
print(*(type(scripted(function)).__name__ for function in (forward, draw_next)))
"""
    done = run_code(code)
    assert done.stdout == "ScriptFunction ScriptFunction\n", done.stderr


class Doubles:
    """A drafter of somebody else: its rows come from NumPy, and are float64."""

    needs = frozenset()
    rows = None

    def start(self, _prompt):
        pass

    def observe(self, _outcome):
        pass

    def propose(self, context):
        self.rows = torch.full((1, context.vocab_size), 1 / context.vocab_size, dtype=torch.float64)
        return Draft(torch.tensor([3]), torch.tensor([-1]), self.rows)


def test_a_drafters_float64_rows_go_to_apples_gpu_as_float32(monkeypatch):
    drafter, move = Doubles(), torch.Tensor.to

    def to(tensor, *given, **settings):
        if tensor is drafter.rows:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        return move(tensor, *given, **settings)

    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr("core.rounds.has_double", lambda _: False, raising=False)
    list(speculative(tiny_model(), drafter, [5, 6, 7], num_draft_tokens=1, max_new_tokens=6))
    assert drafter.rows is not None


@pytest.mark.parametrize("method", ["draft-model", "draft-tree"])
def test_loading_a_gpus_kernels_takes_ties_in_any_order(monkeypatch, method):
    sort = torch.Tensor.sort

    def backwards(rows, **settings):
        values, order = sort(rows.flip(-1), **settings)
        return torch.return_types.sort((values, rows.shape[-1] - 1 - order))

    for user in ("core.rounds", "core.decode"):
        monkeypatch.setattr(f"{user}.is_asynchronous", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "sort", backwards)
    target = tiny_model()
    drafter = build_drafter(method, DrafterSetup(target, tiny_model(seed=1)))
    run = play(speculative(target, drafter, [5, 6], sampling=SamplingParams(1.0, top_p=0.5), max_new_tokens=4))
    assert run.summary.num_tokens == 4


def test_a_folder_that_windows_does_not_open_is_called_so(tmp_path):
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert "is a folder" in explain_read_error(denied, tmp_path)
    assert "check its permissions" in explain_read_error(denied, tmp_path / "file")
    assert "choose another file" in explain_read_error(OSError(errno.EINVAL, "no file can have this name"), "a\0b")


def test_a_child_that_crashed_on_windows_is_called_so():
    assert "crashed" in str(_explain(ChildFailedError(0xC0000005, ""), Path("model.gguf")))
