"""Runs a probe: both models read a text, their agreement is measured, a few forwards are timed."""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from core.analysis.agreement import agreement, compare_over, paths_of
from core.analysis.diagnosis import KS, verify_over_k
from core.analysis.expectation import Curve
from core.analysis.probe import Costs, DraftProbe, ProbeDone, ProbeRequest, ProbeText, Shape
from core.analysis.tree_forecast import best_shapes
from core.controls import Cancelled, RunControls
from core.decode import autoregressive
from core.drafters.base import DrafterSetup
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.draft_tree import DraftTreeDrafter
from core.drafters.registry import DraftTreeOptions
from core.errors import GenerationError, OutOfMemoryError, OutriderError, PromptError, SettingsError
from core.models.catalogue import resolve
from core.models.language_model import LanguageModel
from core.models.prompting import encode_prompt
from core.runners.base import prefill, tree_rows
from core.runners.timing import Stopwatch
from core.settings import RunRequest, SamplingParams
from core.types import DraftContext, StageChanged, Step, TokenKind, Verification, depths_of

if TYPE_CHECKING:
    from core.session import Session

_log = logging.getLogger(__name__)

# --- Timing -----------------------------------------------------------------------------------------------------

POSITIONS = (2, 3, 5, 9, 17)
"""How many positions are scored at once: blocks of 1, 2, 4, 8 and 16 tokens."""
_DRAFTED, _NODES = 4, 8
"""Tokens of a chain, and nodes of a tree of that depth."""
_ROUNDS, _LEAST_ROUNDS = 7, 3
_SECONDS = 3.0
"""No further round starts after this time."""


@torch.inference_mode()
def measure(
    target: LanguageModel,
    draft: LanguageModel,
    ids: Sequence[int],
    sampling: SamplingParams,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Costs:
    """Time both models after a text, which is cut to leave room for the longest block.

    Each round times every forward once, so that a slow moment affects all of them; the first one does not count.

    Raises:
        GenerationError: the draft proposes nothing here.
    """
    room = min(target.context_length, draft.context_length)
    ids = list(ids[: max(1, room - POSITIONS[-1])])
    runner = target.runner(len(ids) + POSITIONS[-1])
    prefill(runner, ids[:-1], check_cancelled)
    context = DraftContext(
        ids=ids,
        num_draft_tokens=_DRAFTED,
        sampling=sampling,
        generator=torch.Generator().manual_seed(0),
        vocab_size=target.vocab_size,
        check_cancelled=check_cancelled,
    )
    setup = DrafterSetup(target, draft, len(ids) + _DRAFTED + 1, check_cancelled)
    chains, trees = DraftModelDrafter(setup), DraftTreeDrafter(setup, DraftTreeOptions(depth=_DRAFTED))
    has_trees = False
    with contextlib.suppress(SettingsError):  # Models with a state read chains only.
        trees.start(torch.tensor(ids))
        _level_ms(trees, replace(context, num_draft_tokens=_NODES))
        runner.forward(torch.tensor(ids[-1:] * 2), num_logits=2, tree=tree_rows([-1], len(ids) - 1, 2))
        has_trees = True
    runner.rewind(len(ids) - 1)
    chains.start(torch.tensor(ids))
    widths = [1, *(width for width in POSITIONS if len(ids) - 1 + width <= runner.capacity)]
    laps: dict[int, list[float]] = {width: [] for width in widths}
    drafting, levels = list[float](), list[float]()
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
        drafting.append(_level_ms(chains, context))
        if has_trees:
            levels.append(_level_ms(trees, replace(context, num_draft_tokens=_NODES)))
    medians = {width: statistics.median(times[1:]) for width, times in laps.items()}
    verify_ms = tuple((width, medians[width]) for width in widths[1:])
    level_ms = statistics.median(levels[1:]) if levels else None
    return Costs(medians[1], statistics.median(drafting[1:]), verify_ms, level_ms)


def _level_ms(drafter: DraftModelDrafter, context: DraftContext) -> float:
    """The time to draft a block, divided by its tokens in a row.

    Raises:
        GenerationError: nothing is drafted here.
    """
    watch = Stopwatch(drafter.model.device)
    parents = drafter.propose(context).parents.tolist()
    if not parents:
        raise GenerationError(f"{drafter.model.ref} drafts nothing after this text. Choose another text or draft.")
    spent = watch.lap() / (max(depths_of(parents)) + 1)
    drafter.observe(Verification(num_accepted=0, next_token=context.ids[-1], next_kind=TokenKind.CORRECTION))
    return spent


def speedup(tokens: Curve, costs: Costs) -> tuple[Curve, Curve]:
    """v(K+1), and tau(K) / (K c + v(K+1)) with the interval of tau, for K from 0 to 16."""
    lengths = [positions - 1 for positions, _ in costs.verify_ms]
    measured = np.array([[milliseconds / costs.target_step_ms for _, milliseconds in costs.verify_ms]])
    verify = verify_over_k(lengths, measured)[0]
    spent = KS * costs.cost + verify
    parts = (
        tuple((np.array(part) / spent).tolist()) if part else () for part in (tokens.values, tokens.low, tokens.high)
    )
    return Curve(tuple(verify.tolist())), Curve(*parts)


# --- The probe --------------------------------------------------------------------------------------------------

_WINDOW = 1024
"""Most tokens read in one forward."""
_NO_ROOM = "There is no memory left to probe this pair. Choose a smaller model, or a shorter text."

ProbeEvent = StageChanged | DraftProbe | ProbeDone


class Passage(NamedTuple):
    """Ids to read, the index of the first that counts, and whether the target wrote those that count."""

    ids: list[int]
    first: int
    is_own: bool

    def cut(self, length: int) -> Passage:
        return self._replace(ids=self.ids[:length])


def probe(session: Session, request: ProbeRequest, controls: RunControls) -> Generator[ProbeEvent, None, None]:
    """Run a probe. A draft that can't be used is reported as its probe's problem.

    Yields:
        `StageChanged`, a `DraftProbe` for each draft, and `ProbeDone`, also when stopped through `controls`.

    Raises:
        OutriderError: nothing can be probed, in one sentence.
    """
    resolve(request.target)
    done: list[DraftProbe] = []
    notes: list[str] = []
    passages: list[Passage] | None = None
    first_error: OutriderError | None = None
    is_stopped = False
    try:
        for draft in dict.fromkeys(request.drafts):
            run = RunRequest(
                target=request.target,
                draft=draft,
                prompt="probe",
                sampling=request.sampling,
                device=request.device,
                dtype=request.dtype,
            )
            try:
                loaded = yield from session.load(run, controls)
                assert loaded.draft is not None, "the request names one"
                if passages is None:
                    passages = yield from _passages(loaded.target, request, controls, notes)
                found = yield from _probe_draft(draft, loaded.target, loaded.draft, passages, request, controls)
            except PromptError:
                raise
            except OutriderError as error:
                first_error = first_error or error
                found = DraftProbe(draft, problem=str(error))
            except (torch.OutOfMemoryError, MemoryError):
                _log.debug("no room for the probe of %s", draft, exc_info=True)
                first_error = first_error or OutOfMemoryError(_NO_ROOM)
                found = DraftProbe(draft, problem=_NO_ROOM)
            done.append(found)
            yield found
    except Cancelled:
        is_stopped = True
    if first_error is not None and all(found.problem for found in done):
        raise first_error

    def rank(found: DraftProbe) -> tuple[bool, float, float]:
        # Of drafts that don't pay, the one that comes closest.
        return bool(found.problem), -found.best_speedup, -max(found.speedup.values[1:], default=0.0)

    yield ProbeDone(tuple(sorted(done, key=rank)), is_stopped, tuple(notes))


def _probe_draft(
    draft_ref: str,
    target: LanguageModel,
    draft: LanguageModel,
    passages: Sequence[Passage],
    request: ProbeRequest,
    controls: RunControls,
) -> Generator[StageChanged, None, DraftProbe]:
    check_cancelled, sampling = controls.check_cancelled, request.sampling
    yield StageChanged(f"Comparing {draft_ref} with the target…")
    began = time.perf_counter()
    fitting = [passage.cut(draft.context_length) for passage in passages if passage.first < draft.context_length]
    if not fitting:
        return DraftProbe(draft_ref, problem=f"The texts are longer than the context of {draft_ref}.")
    compared = [compare_over(target, draft, item.ids, item.first, sampling, check_cancelled) for item in fitting]
    is_own_text = all(passage.is_own for passage in fitting)
    found = agreement(compared, is_own_text=is_own_text)
    yield StageChanged(f"Timing {draft_ref} and the target…")
    costs = measure(target, draft, fitting[0].ids, sampling, check_cancelled)
    verify, expected = speedup(found.tokens, costs)
    trees: tuple[Shape, ...] = ()
    if costs.level_ms is not None:
        paths = paths_of(compared, is_own_text=is_own_text)
        trees = best_shapes(paths, costs.level_ms / costs.target_step_ms, verify.values)
    return DraftProbe(draft_ref, "", found, costs, verify, expected, time.perf_counter() - began, trees)


def _passages(
    target: LanguageModel, request: ProbeRequest, controls: RunControls, notes: list[str]
) -> Generator[StageChanged, None, list[Passage]]:
    """The texts as ids, continued by the target on request, cut to the requested positions."""
    found: list[Passage] = []
    left = request.max_positions
    for index, text in enumerate(request.texts):
        if left <= 0:
            notes.append(f"Only the first {request.max_positions:,} positions are compared.")
            break
        passage = _passage(target, text, request)
        if request.generate and not (text.continuation or text.continuation_ids):
            yield StageChanged(f"The target writes text {index + 1} of {len(request.texts)}…")
            passage = _continued(target, passage.ids, request, controls)
        if len(passage.ids) <= passage.first:
            continue
        if (surplus := len(passage.ids) - passage.first - left) > 0:
            notes.append(f"The last {surplus:,} positions of {text.name} are left out.")
            passage = passage.cut(passage.first + left)
        left -= len(passage.ids) - passage.first
        if passage.first == 1:
            # A text of any length is read in windows, each but the first from the last token of the one before.
            ids, size = passage.ids, min(target.context_length, _WINDOW)
            windows = (ids[start : start + size] for start in range(0, max(1, len(ids) - 1), size - 1))
            found += [passage._replace(ids=window) for window in windows if len(window) > 1]
        else:
            found.append(passage.cut(target.context_length))
    if not found:
        raise PromptError("The text is too short to probe: at least two tokens are needed.")
    return found


def _passage(target: LanguageModel, text: ProbeText, request: ProbeRequest) -> Passage:
    def raw_ids(text: str) -> list[int]:
        return list(target.tokenizer(text.encode("utf-8", "replace").decode("utf-8"))["input_ids"])

    before = list(text.prompt_ids)
    if text.prompt and not before:
        prompt = text.prompt
        before = raw_ids(prompt) if text.is_raw else encode_prompt(target, prompt, request.chat, request.system).ids
    if not (text.continuation or text.continuation_ids):
        return Passage(before, 1, False)
    after = list(text.continuation_ids) or raw_ids(text.continuation)
    return Passage([*before, *after], max(1, len(before)), text.is_own)


def _continued(target: LanguageModel, ids: list[int], request: ProbeRequest, controls: RunControls) -> Passage:
    own = controls.sharing_stop(request.sampling, 0)
    events = autoregressive(target, ids, controls=own, max_new_tokens=request.generate, seed=request.seed)
    written = [token for event in events if isinstance(event, Step) for token in event.emitted]
    controls.check_cancelled()
    return Passage([*ids, *written], len(ids), True)
