"""Medusa heads that are distilled: made, trained on the target's states, measured on held-out texts, and exported.

A head's logits are compared with the target's own a few positions on, over a random part of the vocabulary in each
step: equal there for every part means equal everywhere, at a fraction of the cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from core.distill.texts import QUICK_LOOK, Part, Texts, id_counts
from core.models.medusa_heads import HeadsConfig, MedusaHeads, norm_fingerprint, save_heads
from core.training.data import items_of_step
from core.training.model import replaced_folder
from core.training.train import Progress, Step, TrainSettings, train

_PART = 2048
"""Ids of a step's part of the vocabulary: the most frequent ones, those of its texts, and random others."""
_FREQUENT = 1024

_TEMPERATURE = 0.7
"""Of the target's distribution that heads learn: the few most likely tokens, which a tree holds, then count more."""

TOPS = (1, 2, 4, 8)
"""Numbers of candidates whose accuracy is measured."""


def new_heads(target: Any, target_ref: str, num_heads: int, num_blocks: int, vocabulary: list[int]) -> MedusaHeads:
    """New heads, whose first blocks read the tokens between a state and its prediction."""
    hidden_size = int(target.get_input_embeddings().weight.shape[1])
    config = HeadsConfig(target_ref, norm_fingerprint(target), vocabulary)
    heads = MedusaHeads(hidden_size, [[head + 1] + [0] * (num_blocks - 1) for head in range(num_heads)], config)
    for name, parameter in heads.named_parameters():
        nn.init.normal_(parameter, std=0.02) if name.endswith("weight") else nn.init.zeros_(parameter)
    return heads.to(target.device)


@dataclass(frozen=True, slots=True)
class Tables:
    """The target's tables, as training reads them.

    Attributes:
        embedding: (V, H), scaled to the size of the states, so that both are learned at the same rate.
        head: (V, H) of the target's output.
        scale: of the embedding.
    """

    embedding: Tensor
    head: Tensor
    scale: float

    @classmethod
    def of(cls, target: Any, part: Part) -> Tables:
        embedding = target.get_input_embeddings().weight.detach().float()
        ids, end = part.texts.ids[0], int(part.texts.end[0])
        states = torch.from_numpy(part.states[0, :end].astype(np.float32))
        size = embedding[torch.from_numpy(ids[:end].astype(np.int64))].square().mean().sqrt().cpu()
        scale = float(states.square().mean().sqrt() / size)
        return cls(embedding * scale, target.get_output_embeddings().weight.detach().float(), scale)


def export_heads(heads: MedusaHeads, scale: float, folder: Path) -> None:
    """Write the heads for embeddings as the target has them, without the scale of `Tables`."""
    unscaled = copy.deepcopy(heads)
    with torch.no_grad():
        for head in unscaled.blocks:
            for block in head:
                block.linear.weight[:, heads.hidden_size :] *= scale
    with replaced_folder(folder) as fresh:
        save_heads(unscaled, fresh)


def inputs_of(
    part: Part, row: int, num_heads: int, tables: Tables, begin: int
) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """For each head, what it reads in a text from position `begin` on.

    Yields:
        States (n, H), embeddings (n, head + 1, H), and the positions whose states predict the same tokens.
    """
    end = int(part.texts.end[row])
    ids = torch.from_numpy(part.texts.ids[row, :end].astype(np.int64)).to(tables.embedding.device)
    states = _states_of(part, row, tables)[:end]
    embedded = functional.embedding(ids, tables.embedding)
    for head in range(num_heads):
        # The state at t chooses the token at t + 1; this head predicts the one at t + head + 2.
        number = max(0, end - begin - head - 2)
        tokens = torch.stack([embedded[begin + 1 + i : begin + 1 + i + number] for i in range(head + 1)], 1)
        ahead = slice(begin + head + 1, begin + head + 1 + number)
        yield states[begin : begin + number], tokens, ahead


def _states_of(part: Part, row: int, tables: Tables) -> Tensor:
    """The target's states (length, H) on a text, in float32 on the device of the tables."""
    return torch.tensor(part.states[row]).to(tables.head.device).float()


def train_heads(
    heads: MedusaHeads,
    tables: Tables,
    parts: list[Part],
    held_out: Part,
    first: int,
    settings: TrainSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
) -> Progress:
    """Train in place until the budget is used, resuming from `checkpoint` if it exists; see `core.training.train`.

    Deeper heads matter less, since a path must reach them: each learns from half of the positions of the one before.
    """
    vocabulary = torch.tensor(heads.config.vocabulary)
    order = [(part, row) for part in parts for row in range(len(part.texts))]
    per_step = min(settings.per_step, len(order))
    counts = torch.from_numpy(id_counts((part.texts for part in parts), len(tables.head)))[vocabulary]
    frequent = counts.topk(min(_FREQUENT, len(vocabulary))).indices

    def compute(step: int, share: float) -> Step:
        generator = torch.Generator().manual_seed(settings.seed + 7919 * step)
        chosen = [order[i] for i in items_of_step(len(order), per_step, step, settings.seed)]
        texts = torch.cat([torch.from_numpy(part.texts.ids[row].astype(np.int64)) for part, row in chosen])
        output = tables.head[_part_of(vocabulary, frequent, texts, generator)]
        rows = [list(inputs_of(part, row, len(heads), tables, first - 1)) for part, row in chosen]
        states = [_states_of(part, row, tables) for part, row in chosen]
        losses = []
        for index in range(len(heads)):
            x, tokens = torch.cat([row[index][0] for row in rows]), torch.cat([row[index][1] for row in rows])
            ahead = torch.cat([own[row[index][2]] for own, row in zip(states, rows, strict=True)])
            kept = torch.randperm(len(x), generator=generator)[: max(1, len(x) >> index)]
            logits = functional.linear(heads(index, x[kept], tokens[kept]), output)
            with torch.no_grad():
                wanted = (functional.linear(ahead[kept], output) / _TEMPERATURE).log_softmax(-1)
            losses.append(functional.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True))
        return torch.stack(losses).sum(), losses[0].detach(), sum(len(row[0][0]) for row in rows)

    def evaluate() -> str:
        figures = held_out_accuracy(heads, tables, held_out, max_rows=QUICK_LOOK)
        at = judged_temperature(held_out.texts, len(heads))
        return f"held out, at temperature {at:g}, top 1 / 4: " + ", ".join(
            f"{row[0]:.3f} / {row[2]:.3f}" for row in figures
        )

    optimizer = AdamW(heads.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    return train(
        heads, compute, settings, checkpoint, log,
        reports="divergence of head 0", evaluate=evaluate, optimizers=[optimizer], must_save=False,
    )  # fmt: skip


def _part_of(vocabulary: Tensor, frequent: Tensor, texts: Tensor, generator: torch.Generator) -> Tensor:
    """A step's ids: the frequent ones, those of its texts, and random others."""
    is_chosen = torch.isin(vocabulary, texts)
    is_chosen[frequent] = True
    others = (~is_chosen).nonzero().flatten()
    number = max(0, _PART - int(is_chosen.sum()))
    is_chosen[others[torch.randperm(len(others), generator=generator)[:number]]] = True
    return vocabulary[is_chosen]


def judged_temperature(texts: Texts, num_heads: int) -> float:
    """The lowest temperature of an answer that is long enough for the last head; NaN if there is none."""
    return min(texts.temperature[_is_long(texts, num_heads)].tolist(), default=math.nan)


def _is_long(texts: Texts, num_heads: int) -> npt.NDArray[np.bool_]:
    """Whether each text's answer is long enough for the last head."""
    return np.asarray(texts.end - texts.answer_start > num_heads)


@torch.no_grad()
def held_out_accuracy(
    heads: MedusaHeads, tables: Tables, part: Part, *, max_rows: int | None = None
) -> list[list[float]]:
    """For each head, how often the target's most likely token is among its top 1, 2, 4 and 8.

    Over the answers that were written at temperature 0 and are long enough for the last head, given the tokens in
    between; without such answers, at the lowest temperature there is, see `judged_temperature`.
    """
    vocabulary = torch.tensor(heads.config.vocabulary)
    output = tables.head[vocabulary]
    hits, number = torch.zeros(len(heads), len(TOPS)), torch.zeros(len(heads), 1)
    at = judged_temperature(part.texts, len(heads))
    for row in np.flatnonzero(_is_long(part.texts, len(heads)) & (part.texts.temperature == at))[:max_rows]:
        begin = int(part.texts.answer_start[row]) - 1
        best = functional.linear(_states_of(part, int(row), tables), tables.head).argmax(-1).cpu()
        for index, (states, tokens, ahead) in enumerate(inputs_of(part, int(row), len(heads), tables, begin)):
            if not len(states):
                continue
            logits = functional.linear(heads(index, states, tokens), output)
            candidates = vocabulary[logits.topk(min(TOPS[-1], len(vocabulary))).indices.cpu()]
            is_hit = candidates == best[ahead, None]
            hits[index] += torch.tensor([float(is_hit[:, :top].sum()) for top in TOPS])
            number[index] += len(states)
    return (hits / number).tolist()
