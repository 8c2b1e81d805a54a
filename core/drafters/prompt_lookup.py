"""Drafting without a model: proposes what followed the last few tokens at their previous occurrence.

Prompt lookup decoding (Saxena, 2023), also called n-gram speculation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.drafters.base import DrafterSetup, chain, empty_draft
from core.drafters.ngrams import Ngrams
from core.drafters.registry import PromptLookupOptions
from core.types import Draft, DraftContext, TargetFeature, Verification


class PromptLookupDrafter:
    """Proposes the continuation of the latest earlier occurrence of the longest matching n-gram.

    The proposal is deterministic and has no distribution, so the target accepts each token with its own probability of
    that token.
    """

    needs: frozenset[TargetFeature] = frozenset()

    def __init__(self, _setup: DrafterSetup | None = None, options: PromptLookupOptions | None = None) -> None:
        self._options = options
        self._ngrams = Ngrams(options)

    def start(self, prompt: Tensor) -> None:
        self._ngrams = Ngrams(self._options)

    def propose(self, context: DraftContext) -> Draft:
        found = self._ngrams.look_up(context.ids, context.num_draft_tokens)
        return chain(torch.tensor(found, dtype=torch.int64), None) if found else empty_draft()

    def observe(self, outcome: Verification) -> None:
        """Nothing to rewind: only committed tokens are indexed."""


def merged(draft: Draft, continuation: Sequence[int], most: int, vocab_size: int) -> Draft:
    """A tree plus a continuation found in the text, as a branch of at most this many certain nodes.

    It follows drafted nodes as long as they agree, then branches off as a last sibling. So each of its nodes depends
    on nothing but the text, its ancestors and its earlier siblings, and the text stays exactly the target's.
    """
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    places = [*zip(parents, tokens, strict=True)]
    at, first = -1, len(tokens)
    for token in continuation:
        if at < first and (at, token) in places:
            at = places.index((at, token))
            continue
        if len(tokens) == first + most:
            break
        tokens.append(token)
        parents.append(at)
        at = len(tokens) - 1
    new = torch.tensor(tokens[first:], dtype=torch.int64)
    probs = draft.probs
    if probs is not None:
        certain = probs.new_zeros(len(new), vocab_size).scatter_(1, new.unsqueeze(1).to(probs.device), 1.0)
        probs = torch.cat((probs, certain))
    return Draft(torch.tensor(tokens, dtype=torch.int64), torch.tensor(parents, dtype=torch.int64), probs)
