"""The process that `core.bench.memory` starts: loads what one contender needs, runs it once, and says its peak."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.experiments.bench import Memory, drop_read_weights, forget_peak, peak_mb, private_mb
from core.machine import limit_spinning

if TYPE_CHECKING:
    from core.experiments.bench import Pair
    from core.models.language_model import LanguageModel


def main() -> None:
    """Read a question from stdin, and write the answer as a line of JSON."""
    limit_spinning()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    question = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        memory = measured(question["name"], question["settings"], question["prompt_ids"])
    print(json.dumps(memory._asdict()))


def measured(name: str, raw: dict[str, Any], prompt_ids: list[int]) -> Memory:
    """Load, run once, and measure."""
    from core.experiments.bench import RIVALS, BenchSettings
    from core.experiments.benching import build, load_pair, needs_draft, threads
    from core.models.devices import release_memory
    from core.runners.timing import peak_memory_mb, reset_peak_memory

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
                model.fused_weights = None
    contender = build(name, pair, settings)
    release_memory()
    drop_read_weights()
    with threads(settings.threads):
        for _ in range(2):  # The first one brings back what it needs of files; the second one is measured.
            forget_peak()
            reset_peak_memory(pair.target.device)
            contender.run(prompt_ids, temperature=settings.temperatures[0], seed=settings.seed)
    drafting = getattr(getattr(contender, "drafter", None), "model", None)
    needed = needed_mb(pair, drafting, len(prompt_ids) + settings.max_new_tokens)
    if pair.target.device.type == "cuda":
        return Memory(peak_memory_mb(pair.target.device) or 0.0, needed)
    # What was given back meanwhile may be more than a model of a few kilobytes takes.
    return Memory(max(0.0, (peak_mb() or peak_memory_mb(pair.target.device) or 0.0) - bare_mb), needed)


def needed_mb(pair: Pair, drafting: LanguageModel | None, length: int) -> float:
    """What a run with a text of `length` can't do without: weights, and a cache for each model that reads the text.

    Args:
        pair: the models that were loaded.
        drafting: the model that drafted, which may be the target itself; None where none did.
        length: positions of the text.
    """
    from core.models.loading import bytes_per_position

    models = [pair.target] + ([pair.draft] if pair.draft is not None else [])
    readers = [pair.target] + ([drafting] if drafting is not None else [])
    size = sum(weight.nbytes for model in models for weight in model.model.parameters())
    fused = drafting.fused_weights if drafting is not None else None
    copies = fused.int8_bytes if fused is not None else 0
    return (size + copies + length * sum(bytes_per_position(model) for model in readers)) / 1e6


def _import_everything() -> None:
    """What is imported late, with the first model and tokenizer, would otherwise count as the contender's."""
    import transformers
    import transformers.generation

    from core.models.catalogue import DEFAULT_DRAFT
    from core.models.devices import release_memory
    from core.models.loading import load

    assert transformers.AutoModelForCausalLM
    load(DEFAULT_DRAFT, "cpu")
    release_memory()


if __name__ == "__main__":
    main()
