"""Runs a probe: both models read a text, their distributions are compared, a few forwards are timed."""

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
from torch import Tensor

from core.analysis.diagnosis import KS, Array, verify_over_k
from core.analysis.expectation import Curve, Estimate
from core.analysis.probe import Agreement, Costs, DraftProbe, ProbeDone, ProbeRequest, ProbeText, Shape
from core.analysis.theory import INTERVAL, SEED, resampled
from core.analysis.tree_forecast import NUM_RANKS, PathAcceptance, best_shapes, compare_siblings, over_draft_ids
from core.controls import Cancelled, RunControls
from core.decode import autoregressive
from core.drafters.base import DrafterSetup
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.draft_tree import DraftTreeDrafter
from core.drafters.registry import DraftTreeOptions, TreeRule
from core.errors import GenerationError, OutOfMemoryError, OutriderError, PromptError, SettingsError
from core.models.catalogue import resolve
from core.models.language_model import LanguageModel
from core.models.prompting import encode_prompt
from core.runners.base import Runner, prefill, tree_rows
from core.runners.timing import Stopwatch
from core.sampling import probabilities
from core.settings import LONGEST_CHAIN, RunRequest, SamplingParams
from core.types import DraftContext, StageChanged, Step, TokenKind, Verification, depths_of

if TYPE_CHECKING:
    from core.session import Session

_log = logging.getLogger(__name__)

_MOST_LOGITS = 4_194_304
"""Logits of one model held at once: 16 MB of float32."""
_MOST_ROWS = 256
_WINDOW = 1024
"""Most tokens read in one forward."""


# --- Comparing distributions ------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """Two distributions compared at each position of a text, (m,) each; p is the target's, q the draft's.

    Divergences and entropies are in nats; a divergence is infinite where one distribution excludes what the other
    allows. siblings and siblings_kept: of each candidate of a tree, (m, ranks), see `compare_siblings`; of the first,
    sum(min(p, q)) = 1 - TV, and min(1, q / p) of the token in the text.
    """

    kl_target_draft: Array
    kl_draft_target: Array
    target_entropy: Array
    draft_entropy: Array
    same_top: Array
    siblings: Array = np.empty((0, NUM_RANKS))
    siblings_kept: Array = np.empty((0, NUM_RANKS))


def joined(pieces: Sequence[Comparison]) -> Comparison:
    """Comparisons concatenated."""
    return Comparison(*map(np.concatenate, zip(*pieces, strict=True)))


def compare_over(
    target: LanguageModel,
    draft: LanguageModel,
    ids: Sequence[int],
    first: int,
    sampling: SamplingParams,
    check_cancelled: Callable[[], None] = lambda: None,
    *,
    most_rows: int = _MOST_ROWS,
) -> Comparison:
    """Compare both models' distributions of the tokens `ids[first:]`, each given all the tokens before it.

    There are at least two ids, no more than both contexts hold, and first is 1 or more.
    """
    size = max(1, min(most_rows, _MOST_LOGITS // max(1, target.vocab_size)))
    # The draft's own head and kernels, as when it drafts.
    runners = target.runner(len(ids)), draft.runner(len(ids), drafting=True, quantise=True)
    readable = next((at for at, token in enumerate(ids) if token >= draft.vocab_size), len(ids))
    limit = min(target.vocab_size, draft.vocab_size) if draft.draft_ids is None else len(draft.draft_ids)
    generator = torch.Generator(target.device).manual_seed(0)

    def logits(runner: Runner, start: int, stop: int, num_ids: int) -> Tensor:
        return runner.forward(torch.tensor(ids[start:stop]), num_logits=stop - start).logits[:, :num_ids]

    pieces = []
    with torch.inference_mode():
        for runner in runners:
            prefill(runner, ids[: min(first - 1, readable)], check_cancelled)
        for start in range(first - 1, len(ids) - 1, size):
            check_cancelled()
            stop = min(start + size, len(ids) - 1)
            target_probs = probabilities(logits(runners[0], start, stop, target.vocab_size), sampling)
            if stop > readable:
                # The draft can't continue after an id that is not in its table: nothing is accepted there.
                nothing, never = np.zeros(stop - start), np.full(stop - start, np.inf)
                none = np.zeros((stop - start, NUM_RANKS))
                pieces.append(Comparison(never, never, nothing, nothing, nothing, none, none))
                continue
            tokens, drafted = torch.tensor(ids[start + 1 : stop + 1]), logits(runners[1], start, stop, limit)
            found = compare(target_probs, probabilities(drafted, sampling), draft.draft_ids)
            # At temperature 0 a tree's candidates are the draft's most likely tokens.
            rule, ranking = TreeRule.WITHOUT, sampling
            if sampling.is_greedy:
                rule, ranking = TreeRule.BEST, SamplingParams()
            siblings = compare_siblings(
                target_probs, probabilities(drafted, ranking), tokens, draft.draft_ids, rule, generator
            )
            pieces.append(found._replace(siblings=siblings[0], siblings_kept=siblings[1]))
    return joined(pieces)


def compare(target_probs: Tensor, draft_probs: Tensor, draft_ids: Tensor | None = None) -> Comparison:
    """Compare distributions, without the candidates of trees.

    Args:
        target_probs: (n, V).
        draft_probs: (n, R), of `draft_ids` (R,), or of the first R ids where that is None; all others have
            probability 0.

    Raises:
        GenerationError: distributions that hold NaN.
    """
    if bool(target_probs.isnan().any()) or bool(draft_probs.isnan().any()):
        raise GenerationError("A model returned numbers that can't be compared (NaN). Try float32.")
    shared, draft_probs, ids = over_draft_ids(target_probs, draft_probs, draft_ids)
    outside = target_probs.sum(-1) - shared.sum(-1) > 1e-6
    pairs = (target_probs, target_probs), (draft_probs, draft_probs), (shared, draft_probs), (draft_probs, shared)
    # 0 where a probability is 0, whatever the other one is.
    target_entropy, draft_entropy, cross, reverse = (-torch.xlogy(p, q).sum(-1) for p, q in pairs)
    found = {
        "kl_target_draft": torch.where(outside, torch.inf, cross - target_entropy).clamp(min=0.0),
        "kl_draft_target": (reverse - draft_entropy).clamp(min=0.0),
        "target_entropy": target_entropy,
        "draft_entropy": draft_entropy,
        "same_top": (target_probs.argmax(-1) == ids[draft_probs.argmax(-1)]).float(),
    }
    table = torch.stack(list(found.values())).cpu().double().numpy()
    return Comparison(**dict(zip(found, table, strict=True)))


# --- What blocks would reach ------------------------------------------------------------------------------------

_LONGEST_BLOCK, _SHORTEST_BLOCK = 16, 4
"""Neighbouring positions are alike, so they are resampled together: blocks of this size, 16 of them if possible."""
_LEAST_BLOCKS = 8
"""Fewer blocks would give too narrow an interval."""


def paths_of(texts: Sequence[Comparison], *, is_own_text: bool) -> PathAcceptance:
    """The acceptance of paths along several texts."""
    return PathAcceptance([(text.siblings, text.siblings_kept) for text in texts], is_own_text=is_own_text)


def agreement(texts: Sequence[Comparison], *, is_own_text: bool) -> Agreement:
    """How the models agree over several texts."""
    paths = paths_of(texts, is_own_text=is_own_text)
    # Of a chain, which is the path of first candidates: the chance that its first i tokens are accepted.
    table = np.stack([paths.reached((0,) * length) for length in range(1, LONGEST_CHAIN + 1)], 1)
    whole = joined(texts)
    sums, counts = _blocks([len(found.siblings) for found in texts], table)
    survival = _survival(sums.sum(0, keepdims=True), counts.sum(0, keepdims=True))
    acceptance, tokens = Estimate(float(whole.siblings[:, 0].mean())), Curve(tuple(_tokens(survival)[0].tolist()))
    if len(sums) >= _LEAST_BLOCKS:
        weights = resampled(len(sums), np.random.default_rng(SEED))
        drawn = np.concatenate([_survival(weight @ sums, weight @ counts) for weight in weights])
        acceptance = Estimate(acceptance.value, *np.percentile(drawn[:, 0], INTERVAL).tolist())
        tokens = Curve(tokens.values, *map(tuple, np.percentile(_tokens(drawn), INTERVAL, axis=0).tolist()))

    def finite_mean(values: Array) -> float | None:
        finite = values[np.isfinite(values)]
        return float(finite.mean()) if finite.size else None

    return Agreement(
        num_places=len(whole.same_top),
        acceptance=acceptance,
        survival=tuple(survival[0].tolist()),
        tokens=tokens,
        is_own_text=is_own_text,
        top_1=float(whole.same_top.mean()),
        kl_target_draft=finite_mean(whole.kl_target_draft),
        kl_draft_target=finite_mean(whole.kl_draft_target),
        num_infinite=int(np.isinf(whole.kl_target_draft).sum()),
        target_entropy=float(whole.target_entropy.mean()),
        draft_entropy=float(whole.draft_entropy.mean()),
    )


def _blocks(lengths: Sequence[int], table: Array) -> tuple[Array, Array]:
    """(b, 16) sums over each block of neighbouring starts within a text, and how many starts are in them."""
    block = min(_LONGEST_BLOCK, max(_SHORTEST_BLOCK, len(table) // 16))
    ends = np.cumsum(lengths)
    starts = [start for end, length in zip(ends, lengths, strict=True) for start in range(end - length, end, block)]
    is_known = ~np.isnan(table)
    return np.add.reduceat(np.where(is_known, table, 0.0), starts), np.add.reduceat(is_known.astype(float), starts)


def _survival(sums: Array, counts: Array) -> Array:
    """(n, 16) shares, never rising; beyond the longest text, as if none were accepted."""
    return np.minimum.accumulate(np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0), 1)


def _tokens(survival: Array) -> Array:
    """(n, 17) tau(K) of (n, 16)."""
    return 1.0 + np.concatenate((np.zeros((len(survival), 1)), survival.cumsum(1)), 1)


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


# --- The probe --------------------------------------------------------------------------------------------------

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
        before = raw_ids(text.prompt) if text.is_raw else encode_prompt(target, text.prompt, request.chat).ids
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
