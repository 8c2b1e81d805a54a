"""Where blocks are sampled: behind texts at which drafts are rejected often, and yet one that is accepted recurs.

A mistake shows where draft and target differ; but the tokens behind an accepted one are tested only where blocks begin
alike.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import torch

from core.check.identity import Setting
from core.check.reference import DraftLaws, TargetLaws
from core.check.types import LAW_PROMPTS, CheckProgress
from core.prompt_suites import Prompt

_SHARES = (1.0, 0.75, 0.5, 0.3)
"""Of each prompt, how much is read before a block; its own end is often a place where all is clear."""

_MOST_PROMPTS = 12
_LEAST_IDS = 4


def choose_places(setting: Setting) -> Generator[CheckProgress, None, tuple[Prompt, ...]]:
    """The first prompt as it is, and the beginnings of prompts behind which a block tells most.

    Raises:
        Cancelled: it was asked to stop.
        OutriderError: decoding failed.
    """
    prompts = setting.prompts[:_MOST_PROMPTS]
    found: list[tuple[float, Prompt]] = []
    for index, prompt in enumerate(prompts):
        yield CheckProgress("Looking for places where draft and target differ", index, len(prompts))
        places = [(_worth(setting, place), place) for place in _beginnings(prompt)]
        found.append(max(places, key=lambda item: item[0]))
    found.sort(key=lambda item: -item[0])
    differing = [place for _, place in found if place.ids != prompts[0].ids]
    return (prompts[0], *differing[: LAW_PROMPTS - 1])


def _beginnings(prompt: Prompt) -> list[Prompt]:
    """The prompt, and cut short in several places."""
    lengths = {round(share * len(prompt.ids)) for share in _SHARES} - {len(prompt.ids)}
    cut = [
        replace(prompt, name=f"{prompt.name}, first {length} tokens", ids=prompt.ids[:length])
        for length in sorted(lengths)
        if length >= _LEAST_IDS
    ]
    return [prompt, *cut]


def _worth(setting: Setting, prompt: Prompt) -> float:
    """How often a first drafted token would be rejected, times how often the commonest one is accepted."""
    check_cancelled, sampling = setting.controls.check_cancelled, setting.controls.sampling
    law = TargetLaws(setting.target, prompt.ids, 1, sampling, check_cancelled).law(())
    drafter = setting.make_drafter(len(prompt.ids) + 2)
    draft_law = DraftLaws(drafter, prompt.ids, sampling, setting.target.vocab_size, check_cancelled).law(())
    if draft_law is None:
        return 0.0
    accepted = torch.minimum(law, draft_law)
    return float((1.0 - accepted.sum()) * accepted.max())
