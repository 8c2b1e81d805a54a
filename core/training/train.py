"""The training loop that pre-training and distillation share: optimisers, learning rate, budget and checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer
from transformers import LlamaForCausalLM

from core.errors import SettingsError
from core.files import explain_write_error, explaining_full_disks
from core.text import duration_text
from core.training.data import BLOCK, Tokens, block_count, items_of_step, read_blocks
from core.training.model import ARITHMETIC, arithmetic, next_token_loss, rope_for

CLIP = 1.0
"""Largest norm of a step's gradient."""


@dataclass(frozen=True)
class TrainSettings:
    """How a model is trained.

    Attributes:
        tokens, seconds: the budget; training ends at the first limit, seconds counting over all resumed runs, but for
            the first step of each, which compiles.
        warmup_steps, decay_from: the learning rate rises over these steps, is constant until this share of the budget,
            and then falls linearly to zero.
        per_step: blocks or texts that a step reads.
    """

    tokens: int | None = None
    seconds: float | None = None
    warmup_steps: int = 100
    decay_from: float = 0.45
    learning_rate: float = 3e-3
    per_step: int = 8
    seed: int = 0
    compile: bool = True
    log_every: int = 20
    checkpoint_seconds: float = 120.0
    evaluate_seconds: float = 400.0

    def used(self, tokens: int, seconds: float) -> float:
        """Share of the budget that is used, 0 to 1."""
        shares = [used / limit for used, limit in ((tokens, self.tokens), (seconds, self.seconds)) if limit]
        if not shares:
            raise ValueError("a budget needs tokens, seconds or both")
        return min(1.0, max(shares))

    def rate(self, step: int, used: float) -> float:
        """The learning rate of a step."""
        warm, left = min(1.0, (step + 1) / self.warmup_steps), min(1.0, (1.0 - used) / (1.0 - self.decay_from))
        return self.learning_rate * (warm * left)


def make_optimizers(model: LlamaForCausalLM, rate: float) -> list[Optimizer]:
    """Muon for the layers' matrices, with the update size of AdamW (Liu et al. 2025, 2502.16982); AdamW for the rest.

    The rest are the embedding, which is also the head, and the norms. torch's Muon multiplies in bfloat16; where it is
    emulated, this would take most of a step's time, and so AdamW is for the matrices, too.
    """
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and ".layers." in name else others).append(parameter)
    adam = partial(AdamW, lr=rate, betas=(0.9, 0.95))
    if arithmetic(others[0].device) is torch.float32:
        return [adam(matrices, weight_decay=0.05), adam(others, weight_decay=0.0)]
    muon = Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    return [muon, adam(others, weight_decay=0.0)]


@dataclass
class Progress:
    """The progress of a training run."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def _trained(model: torch.nn.Module) -> dict[str, Tensor]:
    """A model's parameters by name, without those that training leaves as they are."""
    return {name: tensor for name, tensor in model.named_parameters(remove_duplicate=False) if tensor.requires_grad}


def save_checkpoint(path: Path, model: torch.nn.Module, optimizers: Sequence[Optimizer], progress: Progress) -> None:
    """Write a checkpoint of the trained parameters atomically; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    state = {
        "config": model.config.to_dict(),  # type: ignore[union-attr, operator]
        "model": {name: tensor.detach() for name, tensor in _trained(model).items()},
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": vars(progress),
    }
    try:
        with explaining_full_disks(path):
            torch.save(state, part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load_checkpoint(path: Path, model: torch.nn.Module, optimizers: Sequence[Optimizer]) -> Progress:
    """Load a checkpoint into a model of the same shape.

    Raises:
        SettingsError: the checkpoint is of a model of another shape, or of another optimizer, or is damaged.
    """
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
        left = model.load_state_dict(state["model"], strict=False)
        if left.unexpected_keys or _trained(model).keys() & left.missing_keys:
            raise ValueError("it has other layers")
        for optimizer, own in zip(optimizers, state["optimizers"], strict=True):
            if not optimizer.defaults.keys() <= own["param_groups"][0].keys():
                raise ValueError("it has another optimizer")
            optimizer.load_state_dict(own)
        return Progress(**state["progress"])
    except Exception as error:
        raise SettingsError(
            f"The checkpoint {str(path)!r} belongs to another model, version or kind of processor, or is damaged. "
            "Choose the --device that it was trained on, another working folder, or delete that file to train anew."
        ) from error


Step = tuple[Tensor, Tensor, int]
"""What one step computed: the loss to minimise, the scalar to report, and the number of tokens read."""


def train(
    model: torch.nn.Module,
    compute: Callable[[int, float], Step],
    settings: TrainSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
    *,
    reports: str,
    evaluate: Callable[[], str] | None = None,
    optimizers: Sequence[Optimizer] | None = None,
    must_save: bool = True,
) -> Progress:
    """Train in place until the budget is used, resuming from `checkpoint` if it exists; saves there, also if stopped.

    Args:
        model: to train, but for parameters without a gradient; its `config` is stored with it.
        compute: the loss of a step, from its index and the share of the budget that is used. What it reads must
            depend on these and the seed alone, so that a resumed run continues exactly.
        log: called periodically with a line of progress.
        reports: name of the figure that steps report.
        evaluate: called every `evaluate_seconds`; returns a line for the log.
        optimizers: of the model; those of `make_optimizers` if None.
        must_save: whether a checkpoint that can't be written ends the training; else only the log says so.
    """

    def save() -> None:
        try:
            save_checkpoint(checkpoint, model, steppers, progress)
        except OSError as error:
            if must_save:
                raise
            log(f"the training so far could not be saved: {explain_write_error(error, error.filename or checkpoint)}")

    steppers = optimizers or make_optimizers(model, settings.learning_rate)
    progress = load_checkpoint(checkpoint, model, steppers) if checkpoint.exists() else Progress()
    since_save = since_evaluation = 0.0
    recent: list[float] = []
    first, last = progress.step, time.monotonic()
    try:
        while (share := settings.used(progress.tokens, progress.seconds)) < 1.0:
            loss, reported, tokens = compute(progress.step, share)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for optimizer in steppers:
                for group in optimizer.param_groups:
                    group["lr"] = settings.rate(progress.step, share)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            recent.append(float(reported))
            now = time.monotonic()
            elapsed, last = now - last, now
            progress.seconds += elapsed if progress.step > first else 0.0
            progress.step += 1
            progress.tokens += tokens
            since_save, since_evaluation = since_save + elapsed, since_evaluation + elapsed
            if progress.step % settings.log_every == 0 and progress.seconds:
                left = duration_text(progress.seconds * (1 / settings.used(progress.tokens, progress.seconds) - 1))
                log(
                    f"step {progress.step}, {progress.tokens / 1e6:.2f} M tokens, {share:.0%} of the budget, about "
                    f"{left} left, {tokens / elapsed:,.0f} tokens/s: {reports} {sum(recent) / len(recent):.3f}"
                )
                recent = []
            if evaluate is not None and since_evaluation > settings.evaluate_seconds:
                log(evaluate())
                since_evaluation, last = 0.0, time.monotonic()
            if since_save > settings.checkpoint_seconds:
                save()
                since_save = 0.0
    finally:
        save()
    return progress


# --- Pre-training -----------------------------------------------------------------------------------------------

LENGTHS = ((0.0, 256), (0.5, 512), (0.85, 1024))
"""Pairs of a share of the budget and the sequence length from there on, in rising order."""


@torch.no_grad()
def validation_loss(
    model: LlamaForCausalLM,
    stream: Tokens,
    max_blocks: int | None = None,
    dtype: torch.dtype = ARITHMETIC,
) -> float:
    """Mean nats per token over the stream's whole blocks (the first max_blocks of them), context up to BLOCK."""
    cos, sin = rope_for(model, BLOCK)
    total = min(block_count(stream), max_blocks or block_count(stream))
    blocks = (read_blocks(stream, [index], BLOCK) for index in range(total))
    return sum(float(next_token_loss(model, *block, cos, sin, dtype)) for block in blocks) / total


def pretrain(
    model: LlamaForCausalLM,
    training: Tokens,
    validation: Tokens,
    settings: TrainSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
    *,
    lengths: tuple[tuple[float, int], ...] = LENGTHS,
) -> Progress:
    """Train with next-token cross-entropy: the target, and the draft before its distillation."""
    loss_fn = torch.compile(next_token_loss, dynamic=False) if settings.compile else next_token_loss

    def compute(step: int, share: float) -> Step:
        length = [length for start, length in lengths if start <= share][-1]
        blocks = items_of_step(block_count(training), settings.per_step, step, settings.seed)
        ids, targets = read_blocks(training, blocks, length)
        loss = loss_fn(model, ids, targets, *rope_for(model, length))
        return loss, loss.detach(), ids.numel()

    def evaluate() -> str:
        return f"validation loss {validation_loss(model, validation, 24):.4f}"

    return train(model, compute, settings, checkpoint, log, reports="loss", evaluate=evaluate)


# --- Distillation -----------------------------------------------------------------------------------------------


def overlap(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """sum(min(p, q)) over the last dimension: the probability that a drafted token is accepted."""
    return torch.minimum(target_probs, draft_probs).sum(-1)


def kl_tv_loss(log_p: Tensor, log_q: Tensor, tv: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The loss (1 - tv) KL(p || q) + tv 2 TV(p, q), and the acceptance 1 - TV, both means over the counted positions.

    Acceptance at a position is 1 - TV (Leviathan et al. 2023, theorem 3.5); training starts with KL, whose gradient
    reaches every token, and moves to TV. DistillSpec (Zhou et al. 2023, 2310.08461) compares the two.

    Args:
        log_p, log_q: (..., V) the target's and the draft's log-probabilities.
        tv: scalar tensor, so that changing it recompiles nothing.
        counts: (...) 1 where a position counts, else 0.
    """
    p, number = log_p.exp(), counts.sum()
    divergence = ((p * (log_p - log_q)).sum(-1) * counts).sum() / number
    acceptance = (overlap(p, log_q.exp()) * counts).sum() / number
    return (1 - tv) * divergence + tv * 2 * (1 - acceptance), acceptance.detach()


def tv_weight(ramp: tuple[float, float], share: float) -> Tensor:
    """Weight of TV in the loss: 0 to 1 between two shares of the budget."""
    return torch.tensor(min(1.0, max(0.0, (share - ramp[0]) / (ramp[1] - ramp[0]))))
