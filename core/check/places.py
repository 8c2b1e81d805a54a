"""Where blocks are sampled: behind the texts at which draft and target differ most, for a mistake shows there first."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from core.check.identity import Setting
from core.check.reference import DraftLaws, TargetLaws
from core.check.types import LAW_PROMPTS, CheckProgress
from core.prompt_suites import Prompt

_SHARES = (1.0, 0.75, 0.5, 0.3)
"""Of each prompt, how much is read before a block; its own end is often a place where all is clear."""

_MOST_PROMPTS = 12
_LEAST_IDS = 4


def choose_places(setting: Setting) -> Generator[CheckProgress, None, tuple[Prompt, ...]]:
    """The first prompt as it is, and the beginnings of prompts behind which the draft would be rejected most often.

    Raises:
        Cancelled: it was asked to stop.
        OutriderError: decoding failed.
    """
    prompts = setting.prompts[:_MOST_PROMPTS]
    found: list[tuple[float, Prompt]] = []
    for index, prompt in enumerate(prompts):
        yield CheckProgress("Looking for places where draft and target differ", index, len(prompts))
        places = [(_distance(setting, place), place) for place in _beginnings(prompt)]
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


def _distance(setting: Setting, prompt: Prompt) -> float:
    """Total variation between draft and target for the first token: how often a drafted one would be rejected."""
    check_cancelled, sampling = setting.controls.check_cancelled, setting.controls.sampling
    law = TargetLaws(setting.target, prompt.ids, 1, sampling, check_cancelled).law(())
    drafter = setting.make_drafter(len(prompt.ids) + 2)
    draft_law = DraftLaws(drafter, prompt.ids, sampling, setting.target.vocab_size, check_cancelled).law(())
    return 0.0 if draft_law is None else 0.5 * float((law - draft_law).abs().sum())
