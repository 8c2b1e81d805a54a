"""How close a call it was where two greedy texts part."""

from __future__ import annotations

from collections.abc import Sequence

from core.bench.results import Margin
from core.bench.types import Pair, Prompt
from core.target import prefill


def margin_of(pair: Pair, prompts: Sequence[Prompt], reference: Sequence[Sequence[int]]) -> Margin:
    """A function that looks up the target's logits for two ids at one place of a reference text."""

    def margin(index: int, at: int, right: int, other: int) -> float:
        import torch

        ids = [*prompts[index].ids, *reference[index][:at]]
        runner = pair.target.runner(len(ids))
        prefill(runner, ids[:-1], lambda: None)
        logits = runner.forward(torch.tensor(ids[-1:]), num_logits=1).logits[0].float()
        return float(logits[right] - logits[other])

    return margin
