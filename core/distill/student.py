"""The draft that is distilled: made from the target's layers, trained, measured on held-out texts, and exported.

The draft proposes only some ids and gives the others probability 0, so its overlap with the target over its own ids is
the whole overlap.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from core.distill.texts import QUICK_LOOK, Part, target_log_probs
from core.errors import ModelUnreadableError, OutriderError
from core.models.catalogue import SHARES, resolve
from core.models.folder.vocabulary import parse_tokenizer, read_tokens
from core.models.shared_draft import BORROWED, tokens_sha256
from core.training.data import items_of_step
from core.training.model import arithmetic, hidden_states, replaced_folder, rope_for
from core.training.train import Progress, Step, TrainSettings, kl_tv_loss, overlap, train, tv_weight


def check_target(target: Any) -> None:
    """Raises ModelUnreadableError if the training forward doesn't support the target."""
    config = target.config
    plain = config.model_type == "llama" and not config.attention_bias and not config.mlp_bias
    if not plain or config.hidden_act != "silu" or config.rope_parameters["rope_type"] != "default":
        named = config.model_type != "llama"
        what = (
            f"is {config.model_type!r}"
            if named
            else "has biases, scaled rotary embeddings or an activation other than SiLU"
        )
        raise ModelUnreadableError(
            f"Only plain Llama models can be distilled from, and this one {what}. Choose another target."
        )


def new_student(target: Any, num_layers: int) -> LlamaForCausalLM:
    """A student whose layers start as copies of the target's, evenly spaced from the first to the last."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = num_layers
    with target.device:
        student = LlamaForCausalLM(config)
    last = target.config.num_hidden_layers - 1
    for index, layer in enumerate(student.model.layers):
        layer.load_state_dict(target.model.layers[round(index * last / max(1, num_layers - 1))].state_dict())
    student.model.norm.load_state_dict(target.model.norm.state_dict())
    student.set_input_embeddings(target.get_input_embeddings())
    student.set_output_embeddings(target.get_output_embeddings())
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(name not in BORROWED)
    return student.float()


def export_student(
    student: LlamaForCausalLM, tokenizer: Any, target_ref: str, vocabulary: list[int], folder: Path
) -> None:
    """Write the layers in bfloat16, with what `core.models.shared_draft` needs to combine them with their target."""
    # As a run compares them: of the file, to which the loaded tokenizer may have added some.
    tokens = None
    with contextlib.suppress(OutriderError):
        tokens = read_tokens(resolve(target_ref))
    if tokens is None:
        tokens = parse_tokenizer(json.loads(tokenizer.backend_tokenizer.to_str())).tokens
    config = copy.deepcopy(student.config)
    config.dtype = torch.bfloat16
    config.tie_word_embeddings = True
    config.draft_vocabulary = vocabulary
    setattr(config, SHARES, {"model": target_ref, "tokens_sha256": tokens_sha256(tokens)})
    own = {name: tensor for name, tensor in student.state_dict().items() if name not in BORROWED}
    with replaced_folder(folder) as fresh:
        config.save_pretrained(fresh)
        weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in own.items()}
        save_file(weights, fresh / "model.safetensors", metadata={"format": "pt"})


def make_batch(part: Part, rows: list[int], first: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of texts: ids, the target's states and log norms, and counts (rows, length): 1 where to learn from.

    Those are the positions from `first`, the end of the opening, to the one before a text's end.
    """
    texts = part.texts
    columns = np.arange(texts.ids.shape[1])
    counts = (columns >= first - 1) & (columns < texts.end[rows][:, None] - 1)
    return (
        torch.from_numpy(texts.ids[rows].astype(np.int64)),
        torch.from_numpy(part.states[rows]),
        torch.from_numpy(part.log_norms[rows]),
        torch.from_numpy(counts).float(),
    )


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

    At temperature 0: the share of positions where both models' most likely tokens agree.
    """
    whole = student.get_output_embeddings().weight.float()
    head = whole[vocabulary]
    cos, sin = rope_for(student, part.texts.ids.shape[1])
    total = number = 0.0
    has_answer = part.texts.answer_start < part.texts.end
    for row in np.flatnonzero(has_answer & (part.texts.temperature == temperature))[:max_rows]:
        start, end = int(part.texts.answer_start[row]), int(part.texts.end[row])
        ids, states, *_ = make_batch(part, [int(row)], first)
        hidden = hidden_states(student, ids.to(cos.device), cos, sin, dtype=torch.float32)[0, start - 1 : end - 1]
        states = states.to(cos.device).float()[0, start - 1 : end - 1]
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
    vocabulary: Tensor,
    parts: list[Part],
    held_out: Part,
    first: int,
    settings: TrainSettings,
    checkpoint: Path,
    log: Callable[[str], None] = print,
) -> Progress:
    """Train in place until the budget is used, resuming from `checkpoint` if it exists; see `core.training.train`."""
    whole = student.get_output_embeddings().weight.detach()
    dtype = arithmetic(whole.device)
    head = whole[vocabulary].to(dtype)
    cos, sin = rope_for(student, parts[0].texts.ids.shape[1])
    order = [(part, row) for part in parts for row in range(len(part.texts))]
    per_step = min(settings.per_step, len(order))

    def loss(ids: Tensor, states: Tensor, log_norms: Tensor, counts: Tensor, tv: Tensor) -> tuple[Tensor, Tensor]:
        log_q = functional.linear(hidden_states(student, ids, cos, sin, dtype), head).float().log_softmax(-1)
        return kl_tv_loss(target_log_probs(states, log_norms, head), log_q, tv, counts)

    loss_fn = torch.compile(loss, dynamic=False) if settings.compile else loss

    def compute(step: int, share: float) -> Step:
        chosen = [order[i] for i in items_of_step(len(order), per_step, step, settings.seed)]
        rows = [make_batch(part, [row], first) for part, row in chosen]
        ids, states, log_norms, counts = (torch.cat(each).to(head.device) for each in zip(*rows, strict=True))
        tv = tv_weight((0.4, 0.8), share).to(head.device)
        return *loss_fn(ids, states.to(dtype), log_norms, counts, tv), int(counts.sum())

    known = held_out.texts.temperature.tolist()
    at = 1.0 if 1.0 in known else min(known)

    def evaluate() -> str:
        figure = held_out_acceptance(student, held_out, vocabulary, first, temperature=at, max_rows=QUICK_LOOK)
        return f"held out, at temperature {at:g}: acceptance {figure:.3f}"

    return train(student, compute, settings, checkpoint, log, reports="acceptance", evaluate=evaluate, must_save=False)
