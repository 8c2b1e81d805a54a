"""A run that needs no model: a session that plays a long text as fast as it is told to."""

from __future__ import annotations

import time
from collections.abc import Iterator

from core.controls import RunControls
from core.tally import Tally
from core.types import (
    Event,
    Finished,
    FinishReason,
    PrefillDone,
    RunRequest,
    RunStarted,
    Step,
    TokenKind,
)

K = 4
TOKENS_PER_STEP = 4
_WORDS = ("The", " outrider", " rides", " ahead", " to", " see", " that", " the", " road", " is", " clear", ".\n")
_BURST_S = 0.01


class ScriptedRun:
    """A session for one kind of run: each step keeps three of four drafted tokens and resamples one."""

    def __init__(self, num_steps: int, steps_per_second: float) -> None:
        self._num_steps = num_steps
        self._per_burst = max(1, round(steps_per_second * _BURST_S))

    def run(self, request: RunRequest, controls: RunControls) -> Iterator[Event]:
        """Play it."""
        config = {
            "target": request.target,
            "draft": request.draft,
            "method": request.method,
            "prompt": request.prompt,
            "seed": request.seed,
            "device": "cpu",
            "dtype": "float32",
            "chat": False,
        }
        yield RunStarted("scripted", "2000-01-01T00:00:00+00:00", "", config, {"device_name": "script"})
        yield PrefillDone(num_prompt_tokens=8, prefill_ms=1.0, target_step_ms=1.0)
        tally = Tally()
        for index in range(self._num_steps):
            if controls.is_cancelled:
                break
            if index and index % self._per_burst == 0:
                time.sleep(_BURST_S)
            step = _step(index)
            tally.add(step)
            yield step
        reason = FinishReason.CANCELLED if controls.is_cancelled else FinishReason.LENGTH
        yield Finished(tally.summary(reason, "", prefill_ms=1.0, target_step_ms=1.0, peak_memory_mb=None))

    def held_bytes(self, _device: str) -> int:
        """No model, no memory."""
        return 0

    def close(self) -> None:
        """Nothing to give back."""


def _step(index: int) -> Step:
    position = 8 + TOKENS_PER_STEP * index
    words = tuple(_WORDS[(position + offset) % len(_WORDS)] for offset in range(K))
    ids = tuple(range(position, position + K))
    accepted = TOKENS_PER_STEP - 1
    swing = (index * 7 % 11) / 100
    return Step(
        index=index,
        position=position,
        num_draft_tokens=K,
        temperature=1.0,
        drafted=ids,
        drafted_texts=words,
        draft_probs=(0.5 + swing,) * K,
        target_probs=(0.4 + swing,) * K,
        acceptance_probs=(0.8,) * K,
        expected_acceptance=(0.75 + swing,) * K,
        uniforms=(0.5,) * K,
        num_accepted=accepted,
        emitted=ids,
        emitted_kinds=(*[TokenKind.ACCEPTED] * accepted, TokenKind.CORRECTION),
        emitted_texts=words,
        draft_ms=2.0 + swing,
        verify_ms=4.0 + swing,
        sample_ms=0.2,
        total_ms=6.2 + 2 * swing,
    )
