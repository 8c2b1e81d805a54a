"""Texts that have to be the same, token by token: speculative ones against plain ones, and where they part, why."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.bench.rival_transformers import Generate
from core.bench.types import Pair
from core.check.types import CheckProgress, CheckRequest, Comparison, IdentityResult, Parting
from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.draft_length import length_of
from core.drafters.base import Drafter
from core.models.language_model import LanguageModel
from core.near_ties import find_near_ties, replay_margin
from core.prompt_suites import Prompt
from core.sampling import gumbel_noise, probabilities
from core.session import Loaded
from core.text import display_texts
from core.types import Coupling, SamplingParams, Step

MOST_ROUNDING = {torch.float32: 0.02, torch.float16: 0.5, torch.bfloat16: 2.0}
"""How far rounding may move a lead between two logits. More than that is a mistake in how blocks are scored."""

_TITLES = {
    Comparison.GREEDY: "Greedy text",
    Comparison.GUMBEL: "Gumbel-coupled text",
    Comparison.TRANSFORMERS: "transformers' text",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What all parts of a check share.

    Attributes:
        request: what was asked.
        loaded: the models.
        prompts: with their ids.
        controls: the way to stop, and the run's sampling and K.
        make_drafter: from a capacity to the drafter that a run would use.
    """

    request: CheckRequest
    loaded: Loaded
    prompts: tuple[Prompt, ...]
    controls: RunControls
    make_drafter: Callable[[int], Drafter]

    @property
    def target(self) -> LanguageModel:
        return self.loaded.target


@dataclass(frozen=True, slots=True)
class _Text:
    """A decoded text, and of each step what was drafted and what was emitted."""

    ids: tuple[int, ...]
    blocks: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()


def compare_texts(setting: Setting, comparison: Comparison) -> Generator[CheckProgress, None, IdentityResult]:
    """Decode behind each prompt both ways, and hold the texts against each other.

    Raises:
        Cancelled: it was asked to stop.
        OutriderError: decoding failed.
    """
    partings, num_tokens = [], 0
    for index, prompt in enumerate(setting.prompts):
        total = len(setting.prompts)
        yield CheckProgress(f"{_TITLES[comparison]}, prompt {index + 1} of {total}", index, total)
        expected, found = _both(setting, comparison, prompt)
        same = _num_same(expected.ids, found.ids)
        num_tokens += same
        if same < max(len(expected.ids), len(found.ids)):
            partings.append(_parting(setting, comparison, prompt, expected, found, same))
    return IdentityResult(comparison, len(setting.prompts), num_tokens, tuple(partings))


def _both(setting: Setting, comparison: Comparison, prompt: Prompt) -> tuple[_Text, _Text]:
    """The text as it should be, and as it is."""
    run = setting.request.run
    sampling = run.sampling if comparison is Comparison.GUMBEL else SamplingParams(temperature=0.0)
    shared: dict[str, Any] = {
        "max_new_tokens": setting.request.num_tokens,
        "seed": run.seed,
        "coupling": Coupling.GUMBEL if comparison is Comparison.GUMBEL else Coupling.REJECTION,
    }
    controls = setting.controls.sharing_stop(sampling, 0)
    plain = _decoded(setting, autoregressive(setting.target, prompt.ids, controls=controls, **shared))
    if comparison is Comparison.TRANSFORMERS:
        return _generated(setting, prompt), plain
    controls = setting.controls.sharing_stop(sampling, length_of(run))
    drafter = setting.make_drafter(len(prompt.ids) + setting.request.num_tokens)
    drafted = speculative(setting.target, drafter, prompt.ids, controls=controls, **shared)
    return plain, _decoded(setting, drafted)


def _decoded(setting: Setting, events: Iterator[Any]) -> _Text:
    blocks: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for event in events:
        if isinstance(event, Step):
            setting.loaded.record(event)
            blocks.append((event.drafted, event.emitted))
    setting.controls.check_cancelled()
    return _Text(tuple(token for _, emitted in blocks for token in emitted), tuple(blocks))


def _generated(setting: Setting, prompt: Prompt) -> _Text:
    target = setting.target
    room = min(setting.request.num_tokens, target.context_length - len(prompt.ids))
    ids = Generate(Pair(target, None), room).run(prompt.ids, temperature=0.0, seed=0).ids
    end = next((index + 1 for index, token in enumerate(ids) if token in target.eos_ids), len(ids))
    return _Text(ids[:end])


def _num_same(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _parting(
    setting: Setting, comparison: Comparison, prompt: Prompt, expected: _Text, found: _Text, at: int
) -> Parting:
    target = setting.target
    margin = difference = None
    if at < min(len(expected.ids), len(found.ids)):
        tokens = expected.ids[at], found.ids[at]
        if comparison is Comparison.TRANSFORMERS:
            margin, difference = _against_module(target, (*prompt.ids, *expected.ids[:at]), tokens)
        else:
            margin, difference = _measure(setting, comparison, prompt, (expected, found), at)
    is_near_tie = (
        margin is not None
        and difference is not None
        and margin <= difference <= MOST_ROUNDING.get(target.dtype, MOST_ROUNDING[torch.float32])
    )
    shown = ["".join(display_texts(target.tokenizer, text.ids[at : at + 1])) for text in (expected, found)]
    return Parting(prompt.name, at, shown[0], shown[1], margin, difference, is_near_tie)


def _measure(
    setting: Setting, comparison: Comparison, prompt: Prompt, texts: tuple[_Text, _Text], at: int
) -> tuple[float, float]:
    """The lead of the expected token where one position is scored at a time, and how far it moves in blocks."""
    tokens = texts[0].ids[at], texts[1].ids[at]
    options: dict[str, Any] = {"check_cancelled": setting.controls.check_cancelled}
    if comparison is Comparison.GUMBEL:
        options["scores"] = _noisy(setting)
    margin, lead = (replay_margin(setting.target, prompt.ids, text.blocks, at, tokens, **options) for text in texts)
    difference = abs(margin - lead)
    if difference >= margin:
        return margin, difference
    # Another number of threads than in the run may sum in another order: as blocks of this length do at any place.
    longest = max(len(drafted) for drafted, _ in texts[1].blocks)
    ids = (*prompt.ids, *texts[0].ids[: at + 1])
    ties = find_near_ties(setting.target, ids, longest, num_prompt_tokens=len(prompt.ids), **options)
    tie = next((tie for tie in ties if tie.position == len(prompt.ids) + at), None)
    return (tie.margin, tie.difference) if tie and {tie.token, tie.other} == set(tokens) else (margin, difference)


def _noisy(setting: Setting) -> Callable[[int, Tensor], Tensor]:
    """What a Gumbel-coupled draw is the argmax of."""
    seed, sampling = setting.request.run.seed, setting.controls.sampling

    @functools.lru_cache(maxsize=8)
    def noise(position: int) -> Tensor:
        return gumbel_noise(seed, position, setting.target.vocab_size).to(setting.target.device)

    return lambda position, logits: probabilities(logits, sampling).log() + noise(position)


@torch.inference_mode()
def _against_module(target: LanguageModel, ids: Sequence[int], tokens: tuple[int, int]) -> tuple[float, float]:
    """How far the module's first token leads in its own logits, and how far that lead is another in ours."""
    inputs = torch.tensor([list(ids)], device=target.device)
    theirs = target.model(input_ids=inputs).logits[0, -1].float()
    runner = target.runner(len(ids))
    ours = runner.forward(torch.tensor(ids), num_logits=1).logits[0].float()
    margin, lead = (float(row[tokens[0]] - row[tokens[1]]) for row in (theirs, ours))
    return margin, abs(margin - lead)
