"""A child process is watched: its messages come through, and it is ended where it goes wrong or is given up."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import core.models.gguf as engine
from core.controls import Cancelled
from core.models.child_process import ChildFailedError, ChildFailure, Limits, supervise
from tests.fakes_gguf import AMPLE, fake


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
