"""The target writes prompts and answers, many side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.distill.script import Script
from core.training.rollout import BatchDecoder, sample

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Texts:
    """Conversations of one length, filled up behind their end.

    Attributes:
        ids: (rows, length).
        answer_start: (rows,) index of the answer's first token; `length` where a row never got there.
        end: (rows,) index behind the last token that counts.
        temperature: (rows,) at which the answer was sampled.
    """

    ids: Ids
    answer_start: Ids
    end: Ids
    temperature: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice) -> Texts:
        return Texts(self.ids[rows], self.answer_start[rows], self.end[rows], self.temperature[rows])


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """`temperatures` are those of the answers, in turn; the prompts are always written at 1."""

    rows: int = 192
    length: int = 400
    longest_prompt: int = 120
    temperatures: tuple[float, ...] = (1.0, 1.0, 0.0)


@torch.no_grad()
def write_texts(
    target: Any,
    script: Script,
    settings: PlaySettings,
    generator: torch.Generator,
    check_cancelled: Callable[[], None] = lambda: None,
    dtype: torch.dtype = torch.bfloat16,
) -> Texts:
    """Let the target write `settings.rows` texts, of at most `settings.length` tokens each.

    Args:
        target: transformers' Llama.
        script: the fixed parts of its conversations.
        settings: how many and how long.
        generator: of the sampling.
        check_cancelled: raises to end it before the next token.
        dtype: of the arithmetic.
    """
    rows, length = settings.rows, settings.length
    decoder = BatchDecoder(target, rows, length, dtype)
    ids = torch.zeros(rows, length, dtype=torch.long)
    ids[:, : len(script.opening)] = torch.tensor(script.opening)
    answer_temperature = torch.tensor([settings.temperatures[i % len(settings.temperatures)] for i in range(rows)])
    course = _Course(script, settings, rows)
    logits = decoder(ids[:, : len(script.opening)])
    for position in range(len(script.opening), length):
        check_cancelled()
        temperature = torch.where(course.is_answering, answer_temperature, torch.ones(rows))
        ids[:, position] = course.follow(position, sample(logits, temperature, generator))
        if bool(course.is_done.all()) or position + 1 == length:
            break
        logits = decoder(ids[:, position : position + 1])
    return Texts(
        ids.numpy().astype(np.int32),
        course.answer_start.numpy().astype(np.int32),
        course.end.numpy().astype(np.int32),
        answer_temperature.numpy(),
    )


class _Course:
    """Where each row stands: in its prompt, on the bridge, in its answer, or done."""

    def __init__(self, script: Script, settings: PlaySettings, rows: int) -> None:
        self._bridge = torch.tensor(script.bridge)
        self._ends = torch.tensor(sorted(script.end_ids) or [-1])
        self._last_prompt = len(script.opening) + settings.longest_prompt
        self._on_bridge = torch.zeros(rows, dtype=torch.long)  # tokens of the bridge that are written
        self.answer_start = torch.full((rows,), settings.length if script.bridge else len(script.opening))
        self.end = torch.full((rows,), settings.length)
        self.is_answering = torch.full((rows,), not script.bridge)
        self.is_done = torch.zeros(rows, dtype=torch.bool)

    def follow(self, position: int, drawn: Tensor) -> Tensor:
        """The tokens (rows,) at a position: those drawn, unless the script fixes them."""
        tokens = torch.where(self.is_done, self._ends[0].clamp_min(0), drawn)
        is_end = torch.isin(tokens, self._ends)
        ended = self.is_answering & ~self.is_done & is_end
        self.end[ended] = position + 1
        self.is_done |= ended
        return self._cross(position, tokens, is_end) if len(self._bridge) else tokens

    def _cross(self, position: int, tokens: Tensor, is_end: Tensor) -> Tensor:
        in_prompt = ~self.is_answering & (self._on_bridge == 0)
        # A turn ends by the model's will, by any end of text, or because it has become long.
        starts = in_prompt & ((tokens == self._bridge[0]) | is_end | (position >= self._last_prompt))
        crossing = starts | (~self.is_answering & (self._on_bridge > 0))
        tokens = torch.where(crossing, self._bridge[self._on_bridge.clamp_max(len(self._bridge) - 1)], tokens)
        self._on_bridge += crossing
        arrived = crossing & (self._on_bridge == len(self._bridge))
        self.answer_start[arrived] = position + 1
        self.is_answering |= arrived
        return tokens
