"""c and v(n), from a few forwards of both models on this machine, taken in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from core.drafters.draft_model import DraftModelDrafter
from core.errors import GenerationError
from core.models.language_model import LanguageModel
from core.probe.types import Costs
from core.target import prefill
from core.timing import Stopwatch
from core.types import DraftContext, SamplingParams, TokenKind, Verification

POSITIONS = (2, 3, 5, 9, 17)
"""How many positions are scored at once: blocks of 1, 2, 4, 8 and 16 tokens."""

_DRAFTED = 4
_ROUNDS, _LEAST_ROUNDS = 7, 3
_SECONDS = 3.0
"""After so long no further round is begun."""


@torch.inference_mode()
def measure(
    target: LanguageModel,
    draft: LanguageModel,
    ids: Sequence[int],
    sampling: SamplingParams,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Costs:
    """Time both models behind a text, of which as much is read as leaves room for the longest block.

    Each round takes every forward once, so that what slows the machine down for a while weighs on all of them; the
    first one, in which caches fill and graphs are captured, does not count.

    Raises:
        GenerationError: the draft proposes nothing here.
    """
    room = min(target.context_length, draft.context_length)
    ids = list(ids[: max(1, room - POSITIONS[-1])])
    runner = target.runner(len(ids) + POSITIONS[-1])
    prefill(runner, ids[:-1], check_cancelled)
    drafter = DraftModelDrafter(draft, capacity=len(ids) + _DRAFTED + 1, check_cancelled=check_cancelled)
    drafter.start(torch.tensor(ids))
    context = DraftContext(
        ids=ids,
        num_draft_tokens=_DRAFTED,
        sampling=sampling,
        generator=torch.Generator().manual_seed(0),
        vocab_size=target.vocab_size,
        check_cancelled=check_cancelled,
    )
    widths = [1, *(width for width in POSITIONS if len(ids) - 1 + width <= runner.capacity)]
    laps: dict[int, list[float]] = {width: [] for width in widths}
    drafting: list[float] = []
    began = time.perf_counter()
    for index in range(_ROUNDS + 1):
        if index > _LEAST_ROUNDS and time.perf_counter() - began > _SECONDS:
            break
        for width in widths:
            check_cancelled()
            block = torch.tensor((ids[-1:] * width)[:width], device=target.device)
            watch = Stopwatch(target.device)
            runner.forward(block, num_logits=width)
            laps[width].append(watch.lap())
            runner.rewind(len(ids) - 1)
        watch = Stopwatch(draft.device)
        drafted = len(drafter.propose(context))
        if not drafted:
            raise GenerationError(f"{draft.ref} drafts nothing behind this text. Choose another text or draft.")
        drafting.append(watch.lap() / drafted)
        drafter.observe(Verification(num_accepted=0, next_token=ids[-1], next_kind=TokenKind.CORRECTION))
    medians = {width: statistics.median(times[1:]) for width, times in laps.items()}
    return Costs(
        target_step_ms=medians[1],
        draft_step_ms=statistics.median(drafting[1:]),
        verify_ms=tuple((width, medians[width]) for width in widths[1:]),
    )
