"""Threads that use torch for the first time at the same moment do not wait for each other for ever."""

import subprocess
import sys

import pytest

TWO_AT_ONCE = """
import sys, threading
{first}
import torch

sys.setswitchinterval(1e-6)
arrived = threading.Barrier(2)

class Import:
    # As PySide's, Python code that runs at each import: the lock may pass to the other thread there.
    def __call__(self, name, *args, **kwargs):
        for _ in range(20_000):
            pass
        return plain(name, *args, **kwargs)

import builtins
plain, builtins.__import__ = builtins.__import__, Import()

def use():
    arrived.wait()
    torch.tensor(1.0)

threads = [threading.Thread(target=use) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("through")
"""


def outcome(first):
    """What the two come to. A thread that waits with the lock leaves none of it to say so."""
    code = TWO_AT_ONCE.format(first=first)
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "stuck"
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize("module", ["core.torch_ready", "core.session", "core.models.devices"])
def test_two_threads_may_be_the_first_to_make_a_tensor(module):
    assert outcome(f"import {module}") == "through"
