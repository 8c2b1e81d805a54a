"""The memory of one contender, measured in a separate process that loads what it needs and runs it twice."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from core.drafters.registry import METHODS, split_options
from core.experiments.bench_plan import LLAMA_CPP, LLAMA_CPP_DRAFT, PEERS, BenchSettings, Pair, takes_draft
from core.models.child import child_environment, python_module
from core.runners.threads import limit_spinning

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

_TIMEOUT_S = 900
_PROCESS = Path("/proc/self")
_DONT_NEED = 4
"""Linux's MADV_DONTNEED."""


def memory_of(name: str, settings: BenchSettings, prompt_ids: Sequence[int]) -> dict[str, float]:
    """The memory of one run of a contender, in MB of 10^6 bytes; empty if it could not be measured.

    peak_memory_mb is, on CUDA, what torch allocated there; else the process's own memory and the pages of weight files
    that it reads, minus the memory before any model was loaded. needed_memory_mb: both models' weights in the run's
    precision, int8 copies included, and both caches at the run's end. Also empty for llama.cpp, which has its own.
    """
    if name in {LLAMA_CPP, LLAMA_CPP_DRAFT}:
        return {}
    question = {"name": name, "settings": asdict(settings), "prompt_ids": list(prompt_ids)}
    command = python_module("core.experiments.bench_memory")
    environment = child_environment()
    del environment["CUDA_VISIBLE_DEVICES"]  # It measures the device's memory, too.
    environment |= {name: value for name, value in os.environ.items() if name == "CUDA_VISIBLE_DEVICES"}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
            check=True,
            env=environment,
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError):
        return {}


def main() -> None:
    """Read a question from stdin, and write the answer as a line of JSON."""
    limit_spinning()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    question = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        memory = measured(question["name"], question["settings"], question["prompt_ids"])
    print(json.dumps(memory))


def measured(name: str, raw: dict[str, Any], prompt_ids: list[int]) -> dict[str, float]:
    """Load, run twice, and measure the second run."""
    import transformers.generation

    from core.experiments.contenders import build, load_pair
    from core.models.catalogue import DEFAULT_DRAFT
    from core.models.devices import release_memory
    from core.models.loading import load
    from core.runners.threads import threads
    from core.runners.timing import peak_memory_mb, reset_peak_memory

    if ":" in (path := split_options(name)[0]):
        METHODS.add_class(path)  # The user named it to the process that started this one.
    settings = BenchSettings(**{**raw, "temperatures": tuple(raw["temperatures"]), "only": (name,)})
    if not takes_draft(name):
        settings = replace(settings, draft=None, draft_layers=None)
    # Late imports, made with the first model, would otherwise count as the contender's.
    assert transformers.AutoModelForCausalLM
    load(DEFAULT_DRAFT, "cpu")
    release_memory()
    bare_mb = _status_mb("RssAnon") or psutil.Process().memory_info().rss / 1e6
    pair = load_pair(settings)
    if name in PEERS:
        for model in (pair.target, pair.draft):
            if model is not None:
                model.fused_weights = None  # Arranged for our own forward only.
    contender = build(name, pair, settings)
    release_memory()
    _drop_read_weights()
    with threads(settings.threads):
        for _ in range(2):  # The first run brings back the pages of files that it needs.
            with contextlib.suppress(OSError):
                (_PROCESS / "clear_refs").write_text("5")  # Linux: reset the peak.
            reset_peak_memory(pair.target.device)
            contender.run(prompt_ids, temperature=settings.temperatures[0], seed=settings.seed)
    drafting = getattr(getattr(contender, "drafter", None), "model", None)
    needed = needed_mb(pair, drafting, len(prompt_ids) + settings.max_new_tokens)
    peak = peak_memory_mb(pair.target.device) or 0.0
    if pair.target.device.type != "cuda":
        highest, files = _status_mb("VmHWM"), _status_mb("RssFile")
        if highest is not None and files is not None:
            peak = highest - files + sum(pages.rss for pages in _weight_pages()) / 1e6
        peak = max(0.0, peak - bare_mb)
    return {"peak_memory_mb": peak, "needed_memory_mb": needed}


def needed_mb(pair: Pair, drafting: LanguageModel | None, length: int) -> float:
    """What a run with a text of `length` positions keeps: weights, copies of them, and a cache for each reader.

    drafting is the model that drafted, which may be the target itself; None where none did.
    """
    from core.models.placement import bytes_per_position

    models = [pair.target] + ([pair.draft] if pair.draft is not None else [])
    readers = [pair.target] + ([drafting] if drafting is not None else [])
    size = sum(weight.nbytes for model in models for weight in model.model.parameters())
    copies = sum(model.fused_weights.copied_bytes for model in models if model.fused_weights is not None)
    return (size + copies + length * sum(bytes_per_position(model) for model in readers)) / 1e6


def _status_mb(key: str) -> float | None:
    """A value of Linux's /proc/self/status; None elsewhere."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^{key}:\s+(\d+) kB", (_PROCESS / "status").read_text("utf-8", "replace"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024 / 1e6
    return None


def _weight_pages() -> list[Any]:
    """The mapped weight files, where the system can list them."""
    try:
        mappings: list[Any] = psutil.Process().memory_maps(grouped=False)
    except (AttributeError, OSError, psutil.Error):
        return []
    return [item for item in mappings if item.path.endswith(".safetensors")]


def _drop_read_weights() -> None:
    """Release the pages of weight files that loading read; those in use are read again. On Linux alone."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for pages in _weight_pages():
            if not pages.anonymous:  # Written pages would be lost.
                start, end = (int(address, 16) for address in pages.addr.split("-"))
                advise(start, end - start, _DONT_NEED)


if __name__ == "__main__":
    main()
