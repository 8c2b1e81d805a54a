"""A run that needs no model: a session that plays a long text as fast as it is told to."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from core.collector import only_new_objects
from core.controls import RunControls
from core.evidence import MAX_LISTED, PositionEvidence
from core.tally import Tally
from core.types import (
    BaselineStep,
    Event,
    Finished,
    FinishReason,
    Inspected,
    PrefillDone,
    RunRequest,
    RunStarted,
    Step,
    TokenKind,
)

E = TypeVar("E", bound=Event)

K = 4
TOKENS_PER_STEP = 4
_WORDS = ("The", " outrider", " rides", " ahead", " to", " see", " that", " the", " road", " is", " clear", ".\n")
_BURST_S = 0.01


def _place(*, is_rejected: bool) -> PositionEvidence:
    listed = [1 / (2 + rank * rank) for rank in range(MAX_LISTED)]
    law = [prob / sum(listed) for prob in listed]
    return PositionEvidence(
        ids=array("i", range(MAX_LISTED)),
        texts=tuple(f" word {rank}" for rank in range(MAX_LISTED)),
        target_probs=array("f", law),
        target_tail=0.0,
        target_entropy=2.0,
        draft_probs=array("f", reversed(law)),
        draft_tail=0.0,
        draft_entropy=2.0,
        residual_mass=0.8,
        residual_probs=array("f", law) if is_rejected else None,
        residual_tail=0.0 if is_rejected else None,
    )


_EVIDENCE = tuple(_place(is_rejected=place == K - 1) for place in range(K))
"""As large as that of any step of K drafted tokens whose last one is rejected."""


class ScriptedRun:
    """A session for one kind of run: each step keeps three of four drafted tokens and resamples one.

    As from the engine, the steps' evidence comes behind them, if it is asked for, and then the baseline.
    """

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
        # As a session does it, with what it costs at the end.
        with only_new_objects():
            for step in self._paced(map(_step, range(self._num_steps)), controls):
                tally.add(step)
                yield step
            if request.inspect:
                yield from self._paced((Inspected(index, _EVIDENCE) for index in range(tally.num_steps)), controls)
            if request.baseline:
                plain = map(_plain_step, range(tally.num_tokens))
                yield from self._paced(plain, controls, faster=TOKENS_PER_STEP)
        reason = FinishReason.CANCELLED if controls.is_cancelled else FinishReason.LENGTH
        yield Finished(tally.summary(reason, "", prefill_ms=1.0, target_step_ms=1.0, peak_memory_mb=None))

    def _paced(self, events: Iterable[E], controls: RunControls, *, faster: int = 1) -> Iterator[E]:
        for index, event in enumerate(events):
            if controls.is_cancelled:
                return
            if index and index % (faster * self._per_burst) == 0:
                time.sleep(_BURST_S)
            yield event

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


def _plain_step(index: int) -> BaselineStep:
    position = 8 + index
    return BaselineStep(
        replace(
            _step(index),
            position=position,
            num_draft_tokens=0,
            drafted=(),
            drafted_texts=(),
            draft_probs=(),
            target_probs=(),
            acceptance_probs=(),
            expected_acceptance=(),
            uniforms=(),
            num_accepted=0,
            emitted=(position,),
            emitted_kinds=(TokenKind.BONUS,),
            emitted_texts=(_WORDS[position % len(_WORDS)],),
            draft_ms=0.0,
            total_ms=4.4,
        )
    )
