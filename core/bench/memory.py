"""How much memory each contender takes at its peak: asked of a process that runs it alone.

In one process all contenders' models, copies and caches lie side by side, and a peak says nothing about any of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from core.bench.types import BenchSettings

_TIMEOUT_S = 900


class Memory(NamedTuple):
    """What a contender's run took, in MB of 10^6 bytes.

    Attributes:
        peak_mb: at its highest mark.
        needed_mb: both models' weights in the run's precision, int8 copies included, and both caches at the run's end.
    """

    peak_mb: float
    needed_mb: float


def memory_of(name: str, settings: BenchSettings, prompt_ids: Sequence[int]) -> Memory | None:
    """The memory of one run of a contender; None where it could not be had.

    On CUDA what torch allocated there; else the process's own memory and the weight files' pages that it reads, less
    what it was before any model was loaded.
    """
    question = {"name": name, "settings": asdict(settings), "prompt_ids": list(prompt_ids)}
    command = [sys.executable, "-m", "core.bench.memory_child"]
    try:
        done = subprocess.run(
            command, input=json.dumps(question), capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        answer: Any = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return Memory(float(answer["peak_mb"]), float(answer["needed_mb"]))
