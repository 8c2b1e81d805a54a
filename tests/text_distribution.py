"""Whether texts follow the target's distribution, with real models and any drafter: the probability integral transform.

A token drawn from a known distribution becomes a uniform number: the mass of the tokens before it, in an order fixed
beforehand, and a random share of its own (Rosenblatt, 1952). The order puts first what the drafter likes more than the
target, so that an engine that leans towards its draft shows at once.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import norm

from core.drafters.base import Drafter
from core.models.language_model import LanguageModel
from core.settings import SamplingParams
from core.types import DraftContext, TargetFeature, TokenKind, Verification
from tests.exactness import SIGNIFICANCE, chi_squared_p_value
from tests.fakes import language_model, play, tiny_module

V = 8
"""So few that a drafter's leaning shows in a few hundred tokens."""

FILTERS = {
    "none": SamplingParams(1.0),
    "temperature": SamplingParams(0.7),
    "top-k": SamplingParams(1.2, top_k=3),
    "top-p": SamplingParams(1.0, top_p=0.8),
    "min-p": SamplingParams(1.3, min_p=0.15),
    "all": SamplingParams(0.9, top_k=5, top_p=0.9, min_p=0.03),
}

_EDGE = 1e-4


def reference_probabilities(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """(V,) float64 from (V,) logits: temperature, top-k, top-p, min-p, as their definitions read."""
    logits = logits.astype(np.float64)
    if sampling.temperature == 0.0:
        return np.eye(len(logits))[int(logits.argmax())]
    scores = (logits - logits.max()) / sampling.temperature
    if 0 < sampling.top_k < len(scores):
        scores[scores < np.sort(scores)[-sampling.top_k]] = -np.inf
    probs = np.exp(scores)
    probs /= probs.sum()
    if sampling.top_p < 1.0:
        order = np.argsort(-probs, kind="stable")
        before = np.concatenate(([0.0], probs[order].cumsum()[:-1]))
        outside = before >= sampling.top_p
        outside[0] = False
        probs[order[outside]] = 0.0
        probs /= probs.sum()
    if sampling.min_p > 0.0:
        probs[probs < sampling.min_p * probs.max()] = 0.0
        probs /= probs.sum()
    return probs


def is_near_an_edge(logits: np.ndarray, sampling: SamplingParams) -> bool:
    """Whether rounding alone may decide which tokens the filters keep."""
    if (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.0):
        return False
    scores = np.sort(logits.astype(np.float64))[::-1]
    k = sampling.top_k
    if 0 < k < len(scores) and np.isfinite(scores[k]) and scores[k - 1] - scores[k] < _EDGE:
        return True
    supports = set()
    for way in (-_EDGE, _EDGE):
        top_p = sampling.top_p if sampling.top_p == 1.0 else min(1.0, sampling.top_p + way)
        moved = SamplingParams(sampling.temperature, sampling.top_k, top_p, min(1.0, sampling.min_p * (1 + way)))
        supports.add(tuple(np.flatnonzero(reference_probabilities(logits, moved))))
    return len(supports) > 1


@functools.cache
def undecided_models(is_fused: bool) -> tuple[LanguageModel, LanguageModel]:
    """A target, and a draft that agrees with it now and then; both far from certain."""
    target, draft = (tiny_module("llama", vocab_size=V, max_position_embeddings=256) for _ in range(2))
    generator = torch.Generator().manual_seed(99)
    for parameter in draft.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std(), alpha=0.25)
    for module in (target, draft):
        module.lm_head.weight.mul_(0.5)
    return language_model(target, is_fused=is_fused), language_model(draft, is_fused=is_fused)


@dataclass(frozen=True)
class Written:
    """A text, and how it came about."""

    prompt: list[int]
    ids: list[int]
    sampling: SamplingParams


def write(
    speculative: Callable,
    target: LanguageModel,
    make_drafter: Callable[[], Drafter],
    *,
    filters: Sequence[SamplingParams] = tuple(FILTERS.values()),
    rounds: int = 1,
    length: int = 90,
) -> Iterator[Written]:
    """Texts through every filter, with all kinds of K. Coupled by shared noise, a text is exactly the plain one."""
    for round_ in range(rounds):
        for number, sampling in enumerate(filters):
            seed = 100 * round_ + number
            prompt = torch.randint(target.vocab_size, (6,), generator=torch.Generator().manual_seed(seed)).tolist()
            run = play(
                speculative(
                    target, make_drafter(), prompt, num_draft_tokens=(4, 1, 2, 3)[(number + round_) % 4],
                    sampling=sampling, max_new_tokens=length, seed=seed,
                )
            )  # fmt: skip
            yield Written(prompt, run.ids, sampling)


def uniforms_of(
    written: Written, target: LanguageModel, drafter: Drafter, randomness: np.random.Generator
) -> np.ndarray:
    """(n, 2) numbers, two a token, uniform and independent if the text follows the target's distribution.

    For the first, tokens are in the order of how much more the drafter likes them than the target does; for the
    second, of how much it likes them. A token that is impossible makes the whole text -1.
    """
    ids = [*written.prompt, *written.ids]
    with torch.inference_mode():
        output = target.model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    rows, states = output.logits[0, :, : target.vocab_size], output.hidden_states[-1][0]
    numbers = []
    liking = preferences(drafter, ids, states, len(written.prompt), written.sampling, target.vocab_size)
    for at, liked in enumerate(liking):
        logits = rows[len(written.prompt) + at - 1].double().numpy()
        if is_near_an_edge(logits, written.sampling):
            numbers.append(randomness.random(2))
            continue
        probs = reference_probabilities(logits, written.sampling)
        token = written.ids[at]
        if probs[token] == 0.0:
            return np.full((len(written.ids), 2), -1.0)
        share = randomness.random() * probs[token]
        numbers.append([_mass_before(token, probs, key) + share for key in (liked / np.maximum(probs, 1e-30), liked)])
    return np.array(numbers)


def _mass_before(token: int, probs: np.ndarray, key: np.ndarray) -> float:
    """Of the tokens with a larger key, or with the same and a lower id."""
    is_before = (key > key[token]) | ((key == key[token]) & (np.arange(len(key)) < token))
    return float(probs[is_before].sum())


def preferences(
    drafter: Drafter,
    ids: Sequence[int],
    states: torch.Tensor,
    first: int,
    sampling: SamplingParams,
    vocab_size: int,
) -> Iterator[np.ndarray]:
    """What the drafter would propose for each token from the `first` on, as (V,) weights: a function of the text.

    `states` (n, H) are the target's at each of the ids.
    """
    drafter.start(torch.tensor(ids[:first]))
    for at in range(first, len(ids)):
        unread = states[0 if at == first else at - 2 : at - 1]
        context = DraftContext(
            ids=list(ids[:at]),
            num_draft_tokens=1,
            sampling=sampling,
            generator=torch.Generator().manual_seed(at),
            vocab_size=vocab_size,
            check_cancelled=lambda: None,
            features={TargetFeature.HIDDEN_STATES: unread},
        )
        draft = drafter.propose(context)
        liked = np.zeros(vocab_size)
        if len(draft):
            if draft.probs is None:
                liked[int(draft.tokens[0])] = 1.0
            else:
                liked = draft.probs[0].double().numpy()
            is_kept = int(draft.tokens[0]) == ids[at]
            drafter.observe(Verification(0, ids[at], TokenKind.BONUS if is_kept else TokenKind.CORRECTION))
        yield liked


def text_p_value(texts: Iterable[Written], target: LanguageModel, drafter: Drafter) -> float:
    """Of three tokens of a row together, and of all tokens alike; 0 where a token can't have been drawn at all."""
    randomness = np.random.default_rng(0)
    return _p_value(np.concatenate([uniforms_of(written, target, drafter, randomness) for written in texts]))


def is_found(speculative: Callable, target: LanguageModel, make_drafter: Callable, drafter: Drafter) -> bool:
    """Whether texts of an engine that is wrong show it, at temperature 1. Reads on until they do."""
    randomness, numbers = np.random.default_rng(0), np.empty((0, 2))
    texts = write(speculative, target, make_drafter, filters=[FILTERS["none"]], rounds=90, length=60)
    for written in texts:
        numbers = np.concatenate((numbers, uniforms_of(written, target, drafter, randomness)))
        if _p_value(numbers) < SIGNIFICANCE:
            return True
    return False


def _p_value(numbers: np.ndarray) -> float:
    if (numbers < 0).any():
        return 0.0
    triples = np.minimum((numbers[: len(numbers) // 3 * 3, 0] * 3).astype(int), 2).reshape(-1, 3)
    counts = np.bincount(triples @ [9, 3, 1], minlength=27)
    joint = chi_squared_p_value(counts, np.full(27, len(triples) / 27))
    # A lean towards the draft, or away from it, is one of all tokens alike, so their mean shows it sooner.
    leans = 2 * norm.sf(np.abs(numbers.mean(0) - 0.5) * np.sqrt(12 * len(numbers)))
    return min(1.0, 3 * min(joint, *leans))
