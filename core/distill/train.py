"""Trains the student's layers for overlap with the target: forward KL first, total variation in the end.

DistillSpec (Zhou et al. 2023, 2310.08461) compares the losses. Both are taken against the target's exact probabilities
of the student's ids; the student's own are 0 elsewhere, so the overlap over its ids is the whole overlap.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from core.errors import ModelUnreadableError, SettingsError
from core.models.details import parse_tokenizer
from core.models.shared_draft import BORROWED, SHARES, tokens_sha256
from core.training.distill import overlap, tv_weight
from core.training.model import hidden_states, logits_of, rope_for
from core.training.train import Budget, Optimizers, Progress, Schedule, Stopwatch

Ids = npt.NDArray[np.int32]

_TEXT_ARRAYS = ("ids", "answer_start", "end", "temperature")


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
class Part:
    """Texts with what the target says of them.

    Attributes:
        texts: rows of ids.
        states: (rows, length, hidden) float16, the target's final normed states.
        log_norms: (rows, length) float32, log of the sum of exp(logits).
    """

    texts: Texts
    states: npt.NDArray[np.float16]
    log_norms: npt.NDArray[np.float32]


def save_part(part: Part, path: Path) -> None:
    """Keep a part as a folder at `path`, whole or not at all."""
    scratch = path.with_name(f".{path.name}")
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        np.save(scratch / "states.npy", part.states)
        np.save(scratch / "log_norms.npy", part.log_norms)
        for name in _TEXT_ARRAYS:
            np.save(scratch / f"{name}.npy", getattr(part.texts, name))
        os.replace(scratch, path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def read_part(path: Path) -> Part:
    """A folder of `save_part`; the states stay on disk until they are read.

    Raises:
        ModelUnreadableError: it is damaged.
    """
    try:
        texts = Texts(*(np.load(path / f"{name}.npy") for name in _TEXT_ARRAYS))
        log_norms = np.load(path / "log_norms.npy")
        states = np.load(path / "states.npy", mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ModelUnreadableError(f"The texts in {str(path)!r} are damaged. Delete that folder.") from error
    return Part(texts, states, log_norms)


def parts_in(folder: Path) -> list[Path]:
    """The parts written so far, oldest first."""
    return sorted(folder.glob("part-*"))


@torch.no_grad()
def write_part(
    target: Any,
    texts: Texts,
    path: Path,
    *,
    rows_per_pass: int = 8,
    compiled: bool = True,
    check_cancelled: Callable[[], None] = lambda: None,
) -> None:
    """Run the target over texts, and keep both as a folder at `path`, whole or not at all."""
    forward, normalise = hidden_states, log_normaliser
    if compiled:
        forward, normalise = torch.compile(forward, dynamic=False), torch.compile(normalise, dynamic=False)
    rows, length = texts.ids.shape
    states = np.zeros((rows, length, target.config.hidden_size), dtype=np.float16)
    log_norms = np.zeros((rows, length), dtype=np.float32)
    cos, sin = rope_for(target, length)
    for start in range(0, rows, rows_per_pass):
        check_cancelled()
        # The last rows are read twice rather than a shorter batch compiled.
        at = slice(max(0, min(start, rows - rows_per_pass)), start + rows_per_pass)
        ids = torch.from_numpy(texts.ids[at].astype(np.int64))
        hidden = forward(target, ids, cos, sin)
        states[at] = hidden.half().numpy()
        for row, wanted in zip(range(rows)[at], hidden, strict=True):
            log_norms[row] = normalise(target, wanted).numpy()
    save_part(Part(texts, states, log_norms), path)


def log_normaliser(target: Any, states: torch.Tensor) -> torch.Tensor:
    """(n,) log of the softmax's denominator over the target's whole vocabulary, for final states (n, hidden)."""
    return logits_of(target, states).float().logsumexp(-1)


def target_log_probs(states: torch.Tensor, log_norms: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """(..., R) log-probabilities of the ids whose rows of the head (R, hidden) are given."""
    return functional.linear(states, head).float() - log_norms[..., None]


def frequent_ids(parts: Iterator[Texts], size: int, vocab_size: int, always: frozenset[int]) -> list[int]:
    """The `size` ids that come up most often in the texts, those of `always` among them, in ascending order."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for texts in parts:
        columns = np.arange(texts.ids.shape[1])
        counts += np.bincount(texts.ids[columns < texts.end[:, None]], minlength=vocab_size)[:vocab_size]
    counts[sorted(always)] = np.iinfo(np.int64).max
    return sorted(int(token) for token in np.argsort(-counts, kind="stable")[:size])


def check_target(target: Any) -> None:
    """Raises:
    ModelUnreadableError: if this is no Llama that the training forward computes.
    """
    config = target.config
    plain = config.model_type == "llama" and not config.attention_bias and not config.mlp_bias
    rope = config.rope_parameters["rope_type"] if plain else "none"
    if rope != "default":
        raise ModelUnreadableError(
            f"A draft can be distilled from plain Llama models, and this is {config.model_type!r} or has biases or "
            "stretched rotary embeddings. Choose another target."
        )


def new_student(target: Any, num_layers: int) -> LlamaForCausalLM:
    """A student whose layers begin as copies of the target's, from the first to the last, evenly spaced."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = num_layers
    with torch.device("cpu"):
        student = LlamaForCausalLM(config)
    last = target.config.num_hidden_layers - 1
    with torch.no_grad():
        for index, layer in enumerate(student.model.layers):
            source = target.model.layers[round(index * last / max(1, num_layers - 1))]
            layer.load_state_dict(source.state_dict())
        student.model.norm.load_state_dict(target.model.norm.state_dict())
    student.set_input_embeddings(target.get_input_embeddings())
    student.set_output_embeddings(target.get_output_embeddings())
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(name not in BORROWED)
    return student.float()


def stored(student: LlamaForCausalLM) -> dict[str, Tensor]:
    """The parameters that are the student's own."""
    return {name: tensor for name, tensor in student.state_dict().items() if name not in BORROWED}


def export_student(
    student: LlamaForCausalLM, tokenizer: Any, target_ref: str, vocabulary: list[int], folder: Path
) -> None:
    """Write the layers in bfloat16, with what `core.models.shared_draft` needs to put them beside their target."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    config = copy.deepcopy(student.config)
    config.dtype = torch.bfloat16
    config.tie_word_embeddings = True
    config.draft_vocabulary = vocabulary
    setattr(config, SHARES, {"model": target_ref, "tokens_sha256": tokens_sha256(parse_tokenizer(backend).tokens)})
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        config.save_pretrained(fresh)
        weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in stored(student).items()}
        save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})
        (fresh / "model.safetensors").chmod(0o644)
        if folder.exists():
            for kept in folder.glob("*.md"):
                kept.replace(fresh / kept.name)
            folder.rename(Path(scratch) / "old")
        fresh.rename(folder)


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
