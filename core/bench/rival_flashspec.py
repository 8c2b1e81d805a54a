"""flashspec, where it is installed: another speculative engine over transformers' modules."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from core.bench.names import FLASHSPEC, FLASHSPEC_AUTO
from core.bench.types import NotApplicableError, Pair, Timed
from core.errors import first_line
from core.timing import Stopwatch

PACKAGE = "flashspec"


class FlashSpec:
    """Its engine with one draft model: held to K tokens a step, or with the policy that it chooses by itself."""

    def __init__(self, pair: Pair, max_new_tokens: int, num_draft_tokens: int | None) -> None:
        """
        Args:
            pair: with a draft.
            max_new_tokens: to be written.
            num_draft_tokens: K; None leaves it to its own policy.
        """
        self._package, engine = _import(PACKAGE), _import(f"{PACKAGE}.engine")
        if pair.draft is None:
            raise NotApplicableError("There is no draft model; name one with --draft, or use --draft-layers.")
        # Every logger of it writes JSON lines to stderr by itself.
        logging.getLogger(PACKAGE).setLevel(logging.ERROR)
        self.num_draft_tokens = num_draft_tokens
        self.name = FLASHSPEC if num_draft_tokens is not None else FLASHSPEC_AUTO
        self.title = "flashspec" if num_draft_tokens is not None else "flashspec, own policy"
        self._max_new_tokens = max_new_tokens
        self._device = pair.target.device
        target, draft = pair.target, pair.draft
        self._target = engine.TargetModel(target.ref, target.device, target.dtype, model=target.model)
        self._drafter = engine.HuggingFaceDrafter(draft.ref, draft.device, draft.dtype, model=draft.model)

    def run(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> Timed:
        engine = self._engine(temperature, seed)
        inputs = torch.tensor([list(prompt_ids)], device=self._device)
        with torch.inference_mode():
            watch = Stopwatch(self._device)
            result = engine.generate(inputs, max_new_tokens=self._max_new_tokens)
            seconds = watch.lap() / 1e3
        return Timed(
            tuple(result.output_ids[0, : result.n_tokens_generated].tolist()),
            seconds,
            num_forwards=len(result.arm_steps),
            longest_draft=max((step.proposed for step in result.arm_steps), default=0),
        )

    def _engine(self, temperature: float, seed: int) -> Any:
        package = self._package
        sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}
        policy: dict[str, Any] = {}
        if self.num_draft_tokens is not None:
            sampling["gamma"] = self.num_draft_tokens
            policy = {"drafter_strategy": "bandit", "bandit": package.BanditConfig(n_arms=1)}
        # The dtype is that of the modules; the field is but a record. No end is named, so the length is full.
        config = package.FlashSpecConfig(
            device=str(self._device), sampling=package.SamplingConfig(**sampling), **policy
        )
        self._drafter.set_temperature(temperature)
        return package.SpeculativeEngine(config, [self._drafter], self._target)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        if error.name == PACKAGE:
            raise NotApplicableError(f"It is not installed; to compare with it, install {PACKAGE}.") from None
        raise NotApplicableError(f"It can't be imported here ({first_line(error)}).") from error
