"""Our own engine as a contender: plain decoding, and each drafting method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from core.bench.names import AUTO, PLAIN
from core.bench.types import Pair, Timed
from core.decode import autoregressive, speculative
from core.drafters.methods import get_method
from core.timing import Stopwatch
from core.types import SamplingParams, Step


class Plain:
    """One token a forward."""

    name = PLAIN
    title = "plain decoding"
    num_draft_tokens: int | None = 0

    def __init__(self, pair: Pair, max_new_tokens: int) -> None:
        self._pair = pair
        self._max_new_tokens = max_new_tokens

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        def decode() -> Iterator[Any]:
            sampling = SamplingParams(temperature=temperature)
            return autoregressive(
                self._pair.target, prompt_ids, sampling=sampling, max_new_tokens=self._max_new_tokens, seed=seed
            )

        return _timed(self._pair, decode)


class Speculative:
    """A drafting method, with its options at their defaults unless some are named."""

    def __init__(
        self,
        pair: Pair,
        max_new_tokens: int,
        num_draft_tokens: int | None,
        method: str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            pair: with a draft, where the method needs one.
            max_new_tokens: to be written.
            num_draft_tokens: K; None lets the engine choose it before each step.
            method: of the registry.
            options: of the method.
        """
        self._options = dict(options or {})
        words = [f"{name.replace('_', '-')}={_word(value)}" for name, value in self._options.items()]
        title = ", ".join([get_method(method).title.lower(), *words])
        self.name = ":".join([method, *words]) if num_draft_tokens is not None else AUTO
        self.title = title if num_draft_tokens is not None else f"{title}, K auto"
        self.num_draft_tokens = num_draft_tokens
        self.method = method
        self._pair = pair
        self._max_new_tokens = max_new_tokens
        self.drafter = self._build(1)  # What does not apply says so here.

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        drafter = self.drafter = self._build(len(prompt_ids))

        def decode() -> Iterator[Any]:
            return speculative(
                self._pair.target,
                drafter,
                prompt_ids,
                num_draft_tokens=self.num_draft_tokens,
                sampling=SamplingParams(temperature=temperature),
                max_new_tokens=self._max_new_tokens,
                seed=seed,
            )

        return _timed(self._pair, decode)

    def _build(self, num_prompt_tokens: int) -> Any:
        from core.drafters.registry import build_drafter

        capacity = num_prompt_tokens + self._max_new_tokens
        return build_drafter(
            self.method, draft=self._pair.draft, target=self._pair.target, options=self._options, capacity=capacity
        )


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _timed(pair: Pair, decode: Callable[[], Iterator[Any]]) -> Timed:
    watch = Stopwatch(pair.target.device)
    steps = tuple(event for event in decode() if isinstance(event, Step))
    seconds = watch.lap() / 1e3
    return Timed(
        tuple(token for step in steps for token in step.emitted),
        seconds,
        num_forwards=len(steps),
        longest_draft=max((step.num_draft_tokens for step in steps), default=0),
        steps=steps,
    )
