"""Near-ties: positions of a text where rounding alone may decide which token comes next.

Scoring one position and scoring K + 1 at once are the same sums in another order. Their logits differ by about 1e-5 in
float32 and by up to tenths in bfloat16. Where the two best tokens are closer than that, plain and speculative decoding
may diverge at temperature 0, and neither is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.errors import GenerationError, PromptError, SettingsError
from core.runners.base import Runner, prefill

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

Scores = Callable[[int, Tensor], Tensor]
"""From a position and logits (..., V) to what the token is the argmax of; Gumbel coupling adds noise."""


@dataclass(frozen=True, slots=True)
class NearTie:
    """A position, prompt included, whose likeliest token depends on how many positions are scored at once.

    margin is the lead of `token` over `other` where a single position is scored, difference its largest change seen
    where K + 1 positions are scored.
    """

    position: int
    token: int
    other: int
    margin: float
    difference: float


@torch.inference_mode()
def find_near_ties(
    target: LanguageModel,
    ids: Sequence[int],
    num_draft_tokens: int,
    *,
    num_prompt_tokens: int = 1,
    check_cancelled: Callable[[], None] = lambda: None,
    scores: Scores = lambda position, logits: logits,
) -> tuple[NearTie, ...]:
    """The near-ties of a text behind its prompt, in order; two forwards a token.

    The text is read one position at a time, and in overlapping blocks of K + 1, so that every position is scored as
    each row of a block. check_cancelled is called before each forward and raises to cancel.

    Raises:
        PromptError: no ids, or more than the target's context holds.
        SettingsError: a negative K, or a prompt that is not part of the ids.
        GenerationError: logits that hold NaN.
    """
    if not 1 <= len(ids) <= target.context_length:
        raise PromptError(f"The text must have 1 to {target.context_length} tokens, not {len(ids)}.")
    if not 1 <= num_prompt_tokens <= len(ids):
        raise SettingsError(f"The prompt can't be the first {num_prompt_tokens} of {len(ids)} ids.")
    if num_draft_tokens < 0:
        raise SettingsError(f"K must be 0 or more, not {num_draft_tokens}.")
    if num_draft_tokens == 0:
        return ()
    # A block keeps its full length at the end of the text; later positions don't affect earlier ones.
    padded = [*ids, *[ids[-1]] * min(num_draft_tokens, target.context_length - len(ids))]
    single, block = target.runner(len(padded)), target.runner(len(padded))
    for runner in (single, block):
        prefill(runner, ids[: num_prompt_tokens - 1], check_cancelled)
    found = []
    in_blocks: defaultdict[int, list[Tensor]] = defaultdict(list)
    for position in range(num_prompt_tokens, len(ids)):
        check_cancelled()
        alone = _score(target, single, ids[position - 1 : position])[0]
        check_cancelled()
        rows = _score(target, block, padded[position - 1 : position + num_draft_tokens])
        block.rewind(position)
        for offset, row in enumerate(rows):
            in_blocks[position + offset].append(row)
        stacked = torch.stack(in_blocks.pop(position))
        tie = _near_tie(position, scores(position, alone), scores(position, stacked))
        if tie is not None:
            found.append(tie)
    return tuple(found)


@torch.inference_mode()
def replay_margin(
    target: LanguageModel,
    prompt_ids: Sequence[int],
    blocks: Sequence[tuple[Sequence[int], Sequence[int]]],
    index: int,
    tokens: tuple[int, int],
    *,
    check_cancelled: Callable[[], None] = lambda: None,
    scores: Scores = lambda position, logits: logits,
) -> float:
    """How far the first of two tokens led the other at one index of a run, its blocks scored again in a fresh cache.

    This repeats the run's rounding, which depends on how every earlier position was scored, but none of its mistakes.
    blocks are (drafted, emitted) of each step up to the index in the text behind the prompt.

    Raises:
        GenerationError: logits that hold NaN.
    """
    longest = max(len(drafted) for drafted, _ in blocks)
    runner = target.runner(len(prompt_ids) + index + longest + 2)
    prefill(runner, prompt_ids[:-1], check_cancelled)
    last, num_emitted = prompt_ids[-1], 0
    for drafted, emitted in blocks:
        check_cancelled()
        rows = _score(target, runner, (last, *drafted))
        if num_emitted + len(emitted) > index:
            row = scores(len(prompt_ids) + index, rows[index - num_emitted])
            return float(row[tokens[0]] - row[tokens[1]])
        num_emitted += len(emitted)
        last = emitted[-1]
        runner.rewind(len(prompt_ids) + num_emitted - 1)
    raise ValueError(f"The blocks end before token {index}.")


def _score(target: LanguageModel, runner: Runner, ids: Sequence[int]) -> Tensor:
    """(n, V) float32 logits that follow each of the ids, of tokens that may be emitted."""
    logits = runner.forward(torch.tensor(ids), num_logits=len(ids)).logits[:, : target.vocab_size].float()
    if bool(logits.isnan().any()):
        raise GenerationError("The target's logits hold NaN. Choose float32, or another target model.")
    return logits


def _near_tie(position: int, alone: Tensor, in_blocks: Tensor) -> NearTie | None:
    """The closest call at one position, from its logits (V,) scored alone and (n, V) scored in n blocks."""
    token = int(alone.argmax())
    rivals = {*in_blocks.argmax(-1).tolist(), *alone.topk(min(2, len(alone))).indices.tolist()} - {token}
    ties = []
    for other in sorted(rivals):
        margin = float(alone[token] - alone[other])
        moved = float((in_blocks[:, token] - in_blocks[:, other] - margin).abs().max())
        if 0.0 < moved >= margin:
            ties.append(NearTie(position, token, other, margin, moved))
    return max(ties, key=lambda tie: tie.difference - tie.margin, default=None)
