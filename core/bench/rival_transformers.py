"""transformers' own `generate`, plain and with an assistant model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from core.bench.names import ASSISTED, GENERATE
from core.bench.types import NotApplicableError, Pair, Timed
from core.timing import Stopwatch

if TYPE_CHECKING:
    from transformers import GenerationConfig


class Generate:
    """`generate` as a user calls it, held to this temperature and length and to nothing else."""

    name = GENERATE
    title = "transformers generate"
    num_draft_tokens: int | None = 0

    def __init__(self, pair: Pair, max_new_tokens: int) -> None:
        self._target = pair.target
        self._max_new_tokens = max_new_tokens
        self._options: dict[str, Any] = {}

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        device = self._target.device
        inputs = torch.tensor([list(prompt_ids)], device=device)
        mask = torch.ones_like(inputs)
        with _own_configs(self._configs(temperature)), _seeded(device, seed):
            watch = Stopwatch(device)
            output = self._target.model.generate(inputs, attention_mask=mask, **self._options)
            seconds = watch.lap() / 1e3
        return Timed(tuple(output[0, len(prompt_ids) :].tolist()), seconds)

    def _configs(self, temperature: float) -> list[tuple[Any, GenerationConfig]]:
        return [(self._target.model, self._config(temperature))]

    def _config(self, temperature: float) -> GenerationConfig:
        from transformers import GenerationConfig

        # A filter that is left out takes a default of transformers' own: top-k is 50 then.
        law: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            law = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        # No end is named: asking for a shortest length instead would forbid it, which is another law.
        return GenerationConfig(max_new_tokens=self._max_new_tokens, use_cache=True, **law)


class Assisted(Generate):
    """`generate` with an assistant that drafts K tokens each time, neither more nor fewer for any reason."""

    name = ASSISTED
    title = "transformers assisted"

    def __init__(self, pair: Pair, max_new_tokens: int, num_draft_tokens: int) -> None:
        super().__init__(pair, max_new_tokens)
        if pair.draft is None:
            raise NotApplicableError("There is no draft model; name one with --draft, or use --draft-layers.")
        self._draft = pair.draft
        sizes = [model.model.config.get_text_config().vocab_size for model in (pair.target, pair.draft)]
        if sizes[0] != sizes[1]:
            raise NotApplicableError(
                f"transformers takes only an assistant whose table is as long as the target's, {sizes[0]:,} rows; "
                f"this draft's has {sizes[1]:,}."
            )
        self.num_draft_tokens = num_draft_tokens
        self._options = {"assistant_model": self._draft.model}

    def _configs(self, temperature: float) -> list[tuple[Any, GenerationConfig]]:
        drafting = self._config(temperature)
        drafting.num_assistant_tokens = self.num_draft_tokens
        drafting.num_assistant_tokens_schedule = "constant"
        drafting.assistant_confidence_threshold = 0.0
        return [*super()._configs(temperature), (self._draft.model, drafting)]


@contextlib.contextmanager
def _own_configs(configs: Sequence[tuple[Any, GenerationConfig]]) -> Iterator[None]:
    """Give each module a configuration for one call, and its own one back, whatever the call wrote into it."""
    before = [(module, module.generation_config) for module, _ in configs]
    try:
        for module, config in configs:
            module.generation_config = config
        yield
    finally:
        for module, config in before:
            module.generation_config = config


@contextlib.contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the global generator, which is the only one that `generate` draws from, and put it back."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
