"""The process that `core.bench.memory` starts: loads what one contender needs, runs it once, and says its peak."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.threads import limit_spinning

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def main() -> None:
    """Read a question from stdin, and write the answer as a line of JSON."""
    limit_spinning()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    question = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        peak = peak_of(question["name"], question["settings"], question["prompt_ids"])
    print(json.dumps({"peak_mb": peak}))


def peak_of(name: str, raw: dict[str, Any], prompt_ids: list[int]) -> float:
    """Load, run once, and measure, in MB of 10^6 bytes."""
    from core.bench.lineup import build, needs_draft
    from core.bench.loading import load_pair
    from core.bench.measure import threads
    from core.bench.names import RIVALS
    from core.bench.types import BenchSettings
    from core.models.devices import release_memory
    from core.timing import peak_memory_mb, reset_peak_memory

    settings = BenchSettings(**{**raw, "temperatures": tuple(raw["temperatures"]), "only": tuple(raw["only"])})
    if not needs_draft(name):
        settings = replace(settings, draft=None, draft_layers=None)
    _import_everything()
    bare_mb = resident_mb()
    pair = load_pair(settings)
    if name in RIVALS:
        # What our own forward arranged for itself is no part of what a rival takes.
        for model in (pair.target, pair.draft):
            if model is not None:
                model.lean_weights = None
    contender = build(name, pair, settings)
    release_memory()
    reset_peak_memory(pair.target.device)
    with contextlib.suppress(OSError):
        _RESET.write_text("5")  # The highest mark so far, which is that of loading, is forgotten.
    with threads(settings.threads):
        contender.run(prompt_ids, temperature=settings.temperatures[0], seed=settings.seed)
    if pair.target.device.type == "cuda":
        return peak_memory_mb(pair.target.device) or 0.0
    return (_of_status("VmHWM") or peak_memory_mb(pair.target.device) or 0.0) - bare_mb


def _import_everything() -> None:
    """What is imported late would otherwise count as the contender's."""
    import transformers
    import transformers.generation

    assert transformers.AutoModelForCausalLM


def resident_mb() -> float:
    """Resident memory of this process now."""
    import psutil

    return float(psutil.Process().memory_info().rss) / 1e6


def _of_status(key: str) -> float | None:
    with contextlib.suppress(OSError):
        found = re.search(rf"^{key}:\s+(\d+) kB", _STATUS.read_text("ascii", "replace"), re.MULTILINE)
        if found:
            return int(found[1]) * 1024 / 1e6
    return None


if __name__ == "__main__":
    main()
