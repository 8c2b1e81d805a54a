"""How two models agree along texts: their distributions compared at each position, and what blocks would reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.analysis.diagnosis import Array
from core.analysis.expectation import Curve, Estimate
from core.analysis.probe import Agreement
from core.analysis.theory import INTERVAL, SEED, resampled
from core.analysis.tree_forecast import NUM_RANKS, PathAcceptance, compare_siblings, over_draft_ids
from core.drafters.registry import TreeRule
from core.errors import GenerationError
from core.models.language_model import LanguageModel
from core.runners.base import Runner, prefill
from core.sampling import is_plain, probabilities
from core.settings import LONGEST_CHAIN, SamplingParams

_MOST_LOGITS = 4_194_304
"""Logits of one model held at once: 16 MB of float32."""
_MOST_ROWS = 256


# --- Comparing distributions ------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """Two distributions compared at each position of a text, (m,) each; p is the target's, q the draft's.

    Divergences and entropies are in nats; a divergence is infinite where one distribution excludes what the other
    allows, by a filter, its vocabulary or temperature 0. siblings and siblings_kept: of each candidate of a tree,
    (m, ranks), see `compare_siblings`; of the first, sum(min(p, q)) = 1 - TV, and min(1, q / p) of the token in the
    text.
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
) -> Comparison:
    """Compare both models' distributions of the tokens `ids[first:]`, each given all the tokens before it.

    There are at least two ids, no more than both contexts hold, and first is 1 or more.
    """
    size = max(1, min(_MOST_ROWS, _MOST_LOGITS // max(1, target.vocab_size)))
    # The draft's own head and kernels, as when it drafts.
    runners = target.runner(len(ids)), draft.runner(len(ids), drafting=True, quantise=True)
    # The draft can't continue after an id that is not in its table: nothing is accepted there.
    readable = next((at for at, token in enumerate(ids) if token >= draft.vocab_size), len(ids))
    begin, end = first - 1, min(readable, len(ids) - 1)
    limit = min(target.vocab_size, draft.vocab_size) if draft.draft_ids is None else len(draft.draft_ids)
    generator = torch.Generator(target.device).manual_seed(0)

    def logits(runner: Runner, start: int, stop: int, num_ids: int) -> Tensor:
        return runner.forward(torch.tensor(ids[start:stop]), num_logits=stop - start).logits[:, :num_ids]

    pieces = []
    with torch.inference_mode():
        for runner in runners:
            prefill(runner, ids[: min(begin, end)], check_cancelled)
        for start in range(begin, end, size):
            check_cancelled()
            stop = min(start + size, end)
            scored = logits(runners[0], start, stop, target.vocab_size)
            target_probs = probabilities(scored, sampling)
            tokens, drafted = torch.tensor(ids[start + 1 : stop + 1]), logits(runners[1], start, stop, limit)
            draft_probs, logs = probabilities(drafted, sampling), None
            if is_plain(sampling) and not sampling.is_greedy:
                logs = _logs(scored, sampling), _logs(drafted, sampling)
            found = compare(target_probs, draft_probs, draft.draft_ids, logs)
            # At temperature 0 a tree's candidates are the draft's most likely tokens.
            rule, ranking = TreeRule.WITHOUT, sampling
            if sampling.is_greedy:
                rule, ranking = TreeRule.BEST, SamplingParams()
            siblings = compare_siblings(
                target_probs, probabilities(drafted, ranking), tokens, draft.draft_ids, rule, generator
            )
            pieces.append(found._replace(siblings=siblings[0], siblings_kept=siblings[1]))
    if unread := len(ids) - 1 - max(begin, end):
        nothing, never, none = np.zeros(unread), np.full(unread, np.inf), np.zeros((unread, NUM_RANKS))
        pieces.append(Comparison(never, never, nothing, nothing, nothing, none, none))
    return joined(pieces)


def _logs(logits: Tensor, sampling: SamplingParams) -> Tensor:
    return (logits.float() / sampling.temperature).log_softmax(-1)


def compare(
    target_probs: Tensor,
    draft_probs: Tensor,
    draft_ids: Tensor | None = None,
    logs: tuple[Tensor, Tensor] | None = None,
) -> Comparison:
    """Compare distributions, without the candidates of trees.

    Args:
        target_probs: (n, V).
        draft_probs: (n, R), of `draft_ids` (R,), or of the first R ids where that is None; all others have
            probability 0.
        logs: the logarithms of both, finite also where a probability is too small for float32; None where 0 means
            that a token is excluded.

    Raises:
        GenerationError: distributions that hold NaN.
    """
    if bool(target_probs.isnan().any()) or bool(draft_probs.isnan().any()):
        raise GenerationError("A model returned numbers that can't be compared (NaN). Try float32.")
    shared, draft_probs, ids = over_draft_ids(target_probs, draft_probs, draft_ids)
    outside = target_probs.sum(-1) - shared.sum(-1) > 1e-6
    target_logs, draft_logs = logs or (target_probs.log(), draft_probs.log())
    shared_logs, draft_logs, _ = over_draft_ids(target_logs, draft_logs, draft_ids)
    pairs = (target_probs, target_logs), (draft_probs, draft_logs), (shared, draft_logs), (draft_probs, shared_logs)
    # 0 where a probability is 0, whatever the other one is.
    target_entropy, draft_entropy, cross, reverse = (-torch.where(p > 0, p * log, 0.0).sum(-1) for p, log in pairs)
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
