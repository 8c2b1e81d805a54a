"""The process that `core.bench.memory` starts: loads what one contender needs, runs it once, and says its peak."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from typing import Any

from core.bench.resident import drop_read_weights, forget_peak, peak_mb, private_mb
from core.threads import limit_spinning


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
    bare_mb = private_mb()
    pair = load_pair(settings)
    if name in RIVALS:
        # What our own forward arranged for itself is no part of what a rival takes.
        for model in (pair.target, pair.draft):
            if model is not None:
                model.lean_weights = None
    contender = build(name, pair, settings)
    release_memory()
    drop_read_weights()
    with threads(settings.threads):
        for _ in range(2):  # The first one brings back what it needs of files; the second one is measured.
            forget_peak()
            reset_peak_memory(pair.target.device)
            contender.run(prompt_ids, temperature=settings.temperatures[0], seed=settings.seed)
    if pair.target.device.type == "cuda":
        return peak_memory_mb(pair.target.device) or 0.0
    return (peak_mb() or peak_memory_mb(pair.target.device) or 0.0) - bare_mb


def _import_everything() -> None:
    """What is imported late would otherwise count as the contender's."""
    import transformers
    import transformers.generation

    assert transformers.AutoModelForCausalLM


if __name__ == "__main__":
    main()
