"""Finds what followed the last few tokens of a text at their previous occurrence. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from core.drafters.registry import PromptLookupOptions


class Ngrams:
    """An index of a text's n-grams, which grows with it."""

    def __init__(self, options: PromptLookupOptions | None = None) -> None:
        options = options or PromptLookupOptions()
        self._sizes = range(options.max_ngram, options.min_ngram - 1, -1)
        self._continuations: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def look_up(self, ids: Sequence[int], num_draft_tokens: int) -> Sequence[int]:
        """The proposed ids after a text that continues the last call's text, or is shorter; none if nothing matches."""
        if len(ids) <= self._num_indexed:
            self._continuations, self._num_indexed = {}, 0
        self._index(ids)
        for size in self._sizes:
            begin = self._continuations.get(tuple(ids[-size:])) if len(ids) >= size else None
            if begin is not None:
                return ids[begin : begin + num_draft_tokens]
        return ()

    def _index(self, ids: Sequence[int]) -> None:
        """Index where each n-gram continues, for all that end before the last token."""
        for end in range(self._num_indexed, len(ids) - 1):
            for size in self._sizes:
                if end + 1 >= size:
                    self._continuations[tuple(ids[end + 1 - size : end + 1])] = end + 1
        self._num_indexed = max(0, len(ids) - 1)
