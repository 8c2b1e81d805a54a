"""Processes of a test's own."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run_code(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """What became of a process that ran this code to its end, in the project's folder."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def skip_if_ignored(name: str) -> None:
    """Skip a test of a signal that `nohup` has told these processes to ignore."""
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        pytest.skip(f"{name} is ignored here")


def imports_of(code: str, *names: str) -> list[str]:
    """Those of these modules that are imported once the code has run."""
    done = run_code(f"import sys\n{code}\nprint([name for name in {names!r} if name in sys.modules])")
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])
