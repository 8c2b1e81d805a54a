"""Carries out a check on the path that a run takes: texts that must be equal, then the sampled distribution."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from core.analysis.near_ties import lead, moved_margin, replay_margin
from core.controls import Cancelled, RunControls
from core.decode import autoregressive, speculative
from core.drafters.base import Drafter, DrafterSetup, is_own
from core.drafters.registry import build_drafter
from core.experiments.bench_plan import Pair, num_equal
from core.experiments.check_plan import (
    CheckFinished,
    CheckProgress,
    CheckReport,
    CheckRequest,
    Comparison,
    Divergence,
    IdentityResult,
)
from core.experiments.check_report import notes_on
from core.experiments.contenders import Generate
from core.experiments.distribution import judge_distribution
from core.experiments.prompt_suites import Prompt, default_first, encoded
from core.models.language_model import LanguageModel
from core.sampling import gumbel_noise, probabilities
from core.session import Loaded, Session
from core.settings import Coupling, SamplingParams, VerificationRule
from core.text import display_texts
from core.types import StageChanged, Step

MOST_ROUNDING = {torch.float32: 0.02, torch.float16: 0.5, torch.bfloat16: 2.0}
"""How far rounding may move a lead between two logits; more is a mistake in how blocks are scored."""

_TITLES = {
    Comparison.GREEDY: "Greedy text",
    Comparison.GUMBEL: "Gumbel-coupled text",
    Comparison.TRANSFORMERS: "transformers' text",
}

CheckEvent = StageChanged | CheckProgress | CheckFinished


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What all parts of a check share; make_drafter takes a capacity, prompts have their ids."""

    request: CheckRequest
    loaded: Loaded
    prompts: tuple[Prompt, ...]
    controls: RunControls
    make_drafter: Callable[[int], Drafter]

    @property
    def target(self) -> LanguageModel:
        """The target model."""
        return self.loaded.target


def check(session: Session, request: CheckRequest, controls: RunControls) -> Generator[CheckEvent, None, None]:
    """Check whether a pair and its settings give exactly what the target alone would.

    Yields:
        `StageChanged` while models are loaded, `CheckProgress`, and `CheckFinished`, also when it was stopped.

    Raises:
        OutriderError: it can't be checked, in one sentence.
    """
    try:
        loaded = yield from session.load(request.run, controls)
        run, own = request.run, controls.sharing_stop(request.run.sampling, request.run.draft_length)

        def make_drafter(capacity: int) -> Drafter:
            setup = DrafterSetup(loaded.target, loaded.draft, capacity, own.check_cancelled)
            return build_drafter(run.method, setup, run.method_options)

        yield from _checked(request, loaded, own, make_drafter)
    except Cancelled:
        yield CheckFinished(None)


def check_drafter(target: LanguageModel, make_drafter: Callable[[int], Drafter], request: CheckRequest) -> CheckReport:
    """Check a drafter that is made elsewhere, for a loaded target.

    Args:
        make_drafter: gives it for a text of this many positions, and may always give the same one.
        request: its settings; it names no models.

    Raises:
        OutriderError: it can't be checked, in one sentence.
    """
    controls = RunControls(request.run.sampling, request.run.draft_length)
    *_, last = _checked(request, Loaded(target, None, None), controls, make_drafter)
    assert isinstance(last, CheckFinished)
    assert last.report is not None
    return last.report


def _checked(
    request: CheckRequest, loaded: Loaded, controls: RunControls, make_drafter: Callable[[int], Drafter]
) -> Iterator[CheckProgress | CheckFinished]:
    began, target = time.monotonic(), loaded.target
    # Sampled blocks follow the first prompts.
    prompts = tuple(encoded(request.prompts or default_first(target), target, request.run.chat, request.run.system))
    are_own = set[bool]()

    def make(capacity: int) -> Drafter:
        drafter = make_drafter(capacity)
        are_own.add(is_own(drafter))
        return drafter

    context = CheckContext(request, loaded, prompts, controls, make)
    sampling = request.run.sampling
    comparisons = [Comparison.GREEDY]
    if request.run.coupling is Coupling.GUMBEL and not sampling.is_greedy:
        comparisons.append(Comparison.GUMBEL)
    if request.with_transformers:
        comparisons.append(Comparison.TRANSFORMERS)
    identities, distribution, num_parts = [], None, len(comparisons) + (not sampling.is_greedy)
    for number, comparison in enumerate(comparisons, 1):
        identities.append((yield from _numbered(compare_texts(context, comparison), number, num_parts)))
    if not sampling.is_greedy:
        distribution = yield from _numbered(judge_distribution(context), num_parts, num_parts)
    report = CheckReport(
        request=replace(request, prompts=tuple(replace(prompt, ids=()) for prompt in prompts)),
        device=str(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
        identities=tuple(identities),
        distribution=distribution,
        notes=(),
        seconds=time.monotonic() - began,
    )
    yield CheckFinished(replace(report, notes=notes_on(report, is_of_others=False in are_own)))


def _numbered(
    part: Generator[CheckProgress, None, Any], number: int, count: int
) -> Generator[CheckProgress, None, Any]:
    """A part of the check, whose progress says which of how many it is."""
    while True:
        try:
            event = next(part)
        except StopIteration as end:
            return end.value
        yield replace(event, part=number, num_parts=count)


# --- Texts that must be equal -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """A decoded text and its steps."""

    ids: tuple[int, ...]
    steps: tuple[Step, ...] = ()


def compare_texts(context: CheckContext, comparison: Comparison) -> Generator[CheckProgress, None, IdentityResult]:
    """Decode after each prompt both ways, and compare the texts."""
    divergences, num_tokens, total = [], 0, len(context.prompts)
    for index, prompt in enumerate(context.prompts):
        yield CheckProgress(f"{_TITLES[comparison]}, prompt {index + 1} of {total}", index, total)
        expected, found = _decode_both(context, comparison, prompt)
        same = num_equal(expected.ids, found.ids)
        num_tokens += same
        if same < max(len(expected.ids), len(found.ids)):
            divergences.append(_divergence(context, comparison, prompt, (expected, found), same))
    return IdentityResult(comparison, total, num_tokens, tuple(divergences))


def _decode_both(context: CheckContext, comparison: Comparison, prompt: Prompt) -> tuple[_Text, _Text]:
    """The expected text and the actual one."""
    run, target, num_tokens = context.request.run, context.target, context.request.num_tokens
    is_gumbel = comparison is Comparison.GUMBEL
    sampling = run.sampling if is_gumbel else SamplingParams(temperature=0.0)
    shared: dict[str, Any] = {
        "max_new_tokens": num_tokens,
        "seed": run.seed,
        "coupling": Coupling.GUMBEL if is_gumbel else Coupling.REJECTION,
    }
    controls = context.controls.sharing_stop(sampling, 0)
    plain = _decoded(context, autoregressive(target, prompt.ids, controls=controls, **shared))
    if comparison is Comparison.TRANSFORMERS:
        room = min(num_tokens, target.context_length - len(prompt.ids))
        ids = Generate(Pair(target, None), room).run(prompt.ids, temperature=0.0, seed=0).ids
        end = next((index + 1 for index, token in enumerate(ids) if token in target.eos_ids), len(ids))
        return _Text(ids[:end]), plain
    controls = context.controls.sharing_stop(sampling, run.draft_length)
    drafter = context.make_drafter(len(prompt.ids) + num_tokens)
    rule = VerificationRule.TOKEN if is_gumbel else run.verification
    return plain, _decoded(context, speculative(target, drafter, prompt.ids, controls=controls, rule=rule, **shared))


def _decoded(context: CheckContext, events: Iterator[Any]) -> _Text:
    steps: list[Step] = []
    for event in events:
        if isinstance(event, Step):
            context.loaded.record(event)
            steps.append(event)
    context.controls.check_cancelled()
    return _Text(tuple(token for step in steps for token in step.emitted), tuple(steps))


def _divergence(
    context: CheckContext, comparison: Comparison, prompt: Prompt, texts: tuple[_Text, _Text], at: int
) -> Divergence:
    """Why two texts differ: a near-tie only where the lead and its movement are within what rounding does."""
    target = context.target
    margin = difference = None
    if all(at < len(text.ids) for text in texts):
        if comparison is Comparison.TRANSFORMERS:
            tokens = texts[0].ids[at], texts[1].ids[at]
            capacity = min(len(prompt.ids) + context.request.num_tokens, target.context_length)
            margin, difference = _measure_against_module(target, (*prompt.ids, *texts[0].ids[:at]), tokens, capacity)
        else:
            margin, difference = _measure(context, comparison, prompt, texts, at)
    is_near_tie = difference is not None and (margin or 0.0) <= difference <= MOST_ROUNDING[target.dtype]
    shown = ["".join(display_texts(target.tokenizer, text.ids[at : at + 1])) for text in texts]
    return Divergence(prompt.name, at, shown[0], shown[1], margin, difference, is_near_tie)


def _measure(
    context: CheckContext, comparison: Comparison, prompt: Prompt, texts: tuple[_Text, _Text], at: int
) -> tuple[float | None, float]:
    """The lead of the expected token where one position is scored at a time, and how far it moves in blocks.

    The lead is None where blocks move a token over the edge of a filter, and all logits tell how far.
    """
    target, tokens = context.target, (texts[0].ids[at], texts[1].ids[at])
    options: dict[str, Any] = {
        "check_cancelled": context.controls.check_cancelled,
        "capacity": min(len(prompt.ids) + context.request.num_tokens, target.context_length),
    }
    rows: list[Tensor] = []
    if comparison is Comparison.GUMBEL:
        noise = gumbel_noise(context.request.run.seed, len(prompt.ids) + at, target.vocab_size, target.device)

        def scores(logits: Tensor) -> Tensor:
            rows.append(logits)
            return probabilities(logits, context.controls.sampling).log() + noise

        options["scores"] = scores
    margin, in_run = (replay_margin(target, prompt.ids, text.steps, at, tokens, **options) for text in texts)
    difference = abs(margin - in_run)
    if rows and math.isinf(difference) and in_run < 0:  # A token that both drop, as by a wrong filter, gives NaN.
        return None, _largest_move(rows)
    if difference >= margin:
        return margin, difference
    # The run may have used another number of threads, which sums in another order, as blocks do at any position.
    longest = max(step.num_draft_tokens for step in texts[1].steps)
    moved = moved_margin(target, prompt.ids, texts[0].ids[:at], tokens, longest, **options)
    if rows and moved is not None and math.isinf(moved[1]):
        return None, _largest_move(rows)
    return moved if moved is not None and moved[1] >= moved[0] else (margin, difference)


def _largest_move(rows: Sequence[Tensor]) -> float:
    """How far a lead can move between the last two logits, of which the last may have several rows."""
    return 2.0 * float((rows[-1] - rows[-2]).abs().nan_to_num(0.0, posinf=math.inf).max())  # NaN: both are -inf.


@torch.inference_mode()
def _measure_against_module(
    target: LanguageModel, ids: Sequence[int], tokens: tuple[int, int], capacity: int
) -> tuple[float, float]:
    """The lead of the first token in the transformers module's logits, and how far it differs in ours."""
    inputs = torch.tensor([list(ids)], device=target.device)
    row = target.model(input_ids=inputs).logits[0, -1].float()
    margin = float(row[tokens[0]] - row[tokens[1]])
    return margin, abs(margin - lead(target, ids, tokens, capacity=capacity))
