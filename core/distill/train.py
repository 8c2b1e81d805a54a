"""Trains the student's layers for overlap with the target: forward KL first, total variation in the end.

DistillSpec (Zhou et al. 2023, 2310.08461) compares the losses. Both are taken against the target's exact probabilities
of the student's ids; the student's own are 0 elsewhere, so the overlap over its ids is the whole overlap.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from core.distill.student import stored
from core.distill.teacher import target_log_probs
from core.distill.texts import Part
from core.errors import SettingsError
from core.models.shared_draft import BORROWED
from core.training.distill import overlap, tv_weight
from core.training.forward import hidden_states, rope_for
from core.training.optim import Budget, Optimizers, Progress, Schedule, Stopwatch

_QUICK_LOOK = 32
"""Held-out rows that are looked at while training goes on."""


@dataclass(frozen=True, slots=True)
class StudentSettings:
    """`tv_ramp`: shares of the budget between which the loss goes from KL to total variation."""

    budget: Budget
    schedule: Schedule = field(default_factory=lambda: Schedule(warmup_steps=30, decay_from=0.5))
    learning_rate: float = 2e-3
    tv_ramp: tuple[float, float] = (0.4, 0.8)
    rows_per_step: int = 8
    seed: int = 0
    compile: bool = True
    log_every: int = 20
    checkpoint_seconds: float = 120.0
    evaluate_seconds: float = 400.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of texts with the target's word on them; `counts` (rows, length) is 1 where a position is learned from."""

    ids: Tensor
    states: Tensor
    log_norms: Tensor
    counts: Tensor


def make_batch(part: Part, rows: list[int], first: int) -> Batch:
    """Positions count from `first`, the end of the opening, to the one before a text's end."""
    texts = part.texts
    columns = np.arange(texts.ids.shape[1])
    counts = (columns >= first - 1) & (columns < texts.end[rows][:, None] - 1)
    return Batch(
        torch.from_numpy(texts.ids[rows].astype(np.int64)),
        torch.from_numpy(part.states[rows]).bfloat16(),
        torch.from_numpy(part.log_norms[rows]),
        torch.from_numpy(counts).float(),
    )


def distillation_loss(
    student: LlamaForCausalLM, batch: Batch, head: Tensor, tv: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean over the counted positions of (1 - tv) KL + tv 2 TV, and of the overlap.

    head (R, hidden) holds the rows of the student's ids, tv is a scalar.
    """
    log_p = target_log_probs(batch.states, batch.log_norms, head)
    hidden = hidden_states(student, batch.ids, cos, sin)
    log_q = functional.linear(hidden, head).float().log_softmax(-1)
    p = log_p.exp()
    number = batch.counts.sum()
    divergence = ((p * (log_p - log_q)).sum(-1) * batch.counts).sum() / number
    acceptance = (overlap(p, log_q.exp()) * batch.counts).sum() / number
    return (1 - tv) * divergence + tv * 2 * (1 - acceptance), acceptance.detach()


@torch.no_grad()
def held_out_acceptance(
    student: LlamaForCausalLM,
    part: Part,
    vocabulary: Tensor,
    first: int,
    *,
    temperature: float = 1.0,
    max_rows: int | None = None,
) -> float:
    """Mean sum(min(p, q)) over the answers of the rows that were sampled at this temperature, in float32.

    At temperature 0, the share of positions where both would write the same token. Both models' states are taken to
    float32; those of the target were kept in float16.
    """
    whole = student.get_output_embeddings().weight.float()
    head = whole[vocabulary]
    cos, sin = rope_for(student, part.texts.ids.shape[1])
    total = number = 0.0
    for row in np.flatnonzero(part.texts.temperature == temperature)[:max_rows]:
        start, end = int(part.texts.answer_start[row]), int(part.texts.end[row])
        if start >= end:
            continue
        batch = make_batch(part, [int(row)], first)
        hidden = hidden_states(student, batch.ids, cos, sin, dtype=torch.float32)[0, start - 1 : end - 1]
        states = batch.states.float()[0, start - 1 : end - 1]
        if temperature == 0:
            best = functional.linear(states, whole).argmax(-1)
            accepted = (vocabulary[functional.linear(hidden, head).argmax(-1)] == best).float()
        else:
            q = (functional.linear(hidden, head) / temperature).softmax(-1)
            p = (functional.linear(states, whole) / temperature).softmax(-1)[:, vocabulary]
            accepted = overlap(p, q)
        total, number = total + float(accepted.sum()), number + len(accepted)
    return total / number if number else float("nan")


def train_student(
    student: LlamaForCausalLM,
    parts: list[Part],
    held_out: Part,
    vocabulary: Tensor,
    first: int,
    settings: StudentSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
    check_cancelled: Callable[[], None] = lambda: None,
) -> Progress:
    """Train in place until the budget is used, going on from `checkpoint` if it exists.

    What a step reads is a function of the seed and the step alone, so that a resumed run goes on as it would have.
    check_cancelled may raise at any step; the checkpoint is written before.
    """
    optimizers = Optimizers(student, settings.learning_rate, settings.learning_rate)
    progress = load_student(checkpoint, student, optimizers) if checkpoint.exists() else Progress()
    loss_fn = torch.compile(distillation_loss, dynamic=False) if settings.compile else distillation_loss
    head = student.get_output_embeddings().weight.detach()[vocabulary].bfloat16()
    cos, sin = rope_for(student, parts[0].texts.ids.shape[1])
    order = [(index, row) for index, part in enumerate(parts) for row in range(len(part.texts))]
    clock, since_save, since_evaluation, recent = Stopwatch(), 0.0, 0.0, []
    try:
        while (share := settings.budget.progress(progress.tokens, progress.seconds)) < 1.0:
            check_cancelled()
            batch = _batch_of_step(parts, order, first, settings, progress.step)
            tv = torch.tensor(tv_weight(settings.tv_ramp, share))
            loss, acceptance = loss_fn(student, batch, head, tv, cos, sin)
            loss.backward()
            optimizers.step(settings.schedule.scale(progress.step, share))
            recent.append(float(acceptance))
            elapsed = clock.lap()
            progress.step += 1
            progress.tokens += int(batch.counts.sum())
            progress.seconds += elapsed
            since_save, since_evaluation = since_save + elapsed, since_evaluation + elapsed
            if progress.step % settings.log_every == 0:
                rate = float(batch.counts.sum()) / elapsed
                log(
                    f"step {progress.step}, {progress.tokens / 1e6:.2f} M tokens, {share:.0%} of the budget, "
                    f"{rate:,.0f} tokens/s: acceptance {np.mean(recent):.3f}"
                )
                recent = []
            if since_evaluation > settings.evaluate_seconds:
                acceptance_then = held_out_acceptance(student, held_out, vocabulary, first, max_rows=_QUICK_LOOK)
                log(f"held out: acceptance {acceptance_then:.3f}")
                since_evaluation = 0.0
                clock.lap()
            if since_save > settings.checkpoint_seconds:
                save_student(checkpoint, student, optimizers, progress)
                since_save = 0.0
    finally:
        save_student(checkpoint, student, optimizers, progress)
    return progress


def _batch_of_step(
    parts: list[Part], order: list[tuple[int, int]], first: int, settings: StudentSettings, step: int
) -> Batch:
    steps_per_epoch = max(1, len(order) // settings.rows_per_step)
    epoch, index = divmod(step, steps_per_epoch)
    drawn = np.random.default_rng([settings.seed, epoch]).permutation(len(order))
    chosen = [order[i] for i in drawn[index * settings.rows_per_step :][: settings.rows_per_step]]
    batches = [make_batch(parts[index], [row], first) for index, row in chosen]
    return Batch(
        *(torch.cat([getattr(batch, name) for batch in batches]) for name in ("ids", "states", "log_norms", "counts"))
    )


def save_student(path: Path, student: LlamaForCausalLM, optimizers: Optimizers, progress: Progress) -> None:
    """Written beside, then renamed: a checkpoint is whole or not there."""
    part = path.with_suffix(".part")
    state = {"model": stored(student), "optimizers": optimizers.state_dict(), "progress": vars(progress)}
    try:
        torch.save(state, part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load_student(path: Path, student: LlamaForCausalLM, optimizers: Optimizers) -> Progress:
    """Put a checkpoint's layers into a student of the same shape.

    Raises:
        SettingsError: it is that of a student of another shape, or damaged.
    """
    try:
        state = torch.load(path, weights_only=True)
        left = student.load_state_dict(state["model"], strict=False)
        if left.unexpected_keys or set(left.missing_keys) - BORROWED:
            raise ValueError("it has other layers")
        optimizers.load_state_dict(state["optimizers"])
        return Progress(**state["progress"])
    except Exception as error:
        raise SettingsError(
            f"The checkpoint {str(path)!r} is that of another draft, or damaged. Choose another folder for the work, "
            "or delete that file."
        ) from error
