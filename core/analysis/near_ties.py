"""Near-ties: places of a text where rounding alone may decide which token comes next.

Scoring one position and scoring K + 1 at once are the same sums in another order. In float32 their logits differ by
about 1e-5, in bfloat16 by up to tenths. Where the two best tokens are closer than that, plain and speculative decoding
may part at temperature 0, and neither is wrong: each follows the logits that it was given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.errors import GenerationError, PromptError, SettingsError
from core.rounds import prefill
from core.runners.base import Runner

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class NearTie:
    """One place where the choice of the likeliest token hangs on how many positions are scored at once.

    Attributes:
        position: absolute position of the token that is chosen there, prompt included.
        token: the likeliest one where a single position is scored, as plain decoding does.
        other: the one that may be chosen instead.
        margin: by how much the logit of `token` is above that of `other`, a single position being scored.
        difference: the most that this margin was seen to change where K + 1 positions are scored.
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
    scores: Callable[[int, Tensor], Tensor] = lambda position, logits: logits,
) -> tuple[NearTie, ...]:
    """Measure where a text hangs by a hair.

    The text is read twice, once a position at a time, and once in blocks of K + 1 of which only the first position is
    kept, so that every place is scored as each row of a block: two forwards a token. Wherever two scorings of this
    kind prefer different tokens, the margin is not above the difference, so the place is among those returned.

    Args:
        target: the model whose text it is.
        ids: prompt and text.
        num_draft_tokens: K; with 0 both ways are one.
        num_prompt_tokens: how many of the ids were given, at least 1; they are read at once, as a run reads them.
        check_cancelled: raises to give up; called before each forward.
        scores: from a position and logits (..., V) there to what the token is the argmax of, where it isn't the logits
            themselves: in Gumbel-coupled sampling noise is added to them.

    Returns:
        The near-ties among the tokens behind the prompt, in their order.

    Raises:
        PromptError: the ids don't fit into the target's context, or are none.
        SettingsError: a negative K, or a prompt that is no part of the ids.
        GenerationError: logits that hold NaN.
    """
    if not 1 <= len(ids) <= target.context_length:
        raise PromptError(f"A text must have 1 to {target.context_length} tokens to be looked at, not {len(ids)}.")
    if not 1 <= num_prompt_tokens <= len(ids):
        raise SettingsError(f"The prompt of {len(ids)} tokens can't be the first {num_prompt_tokens} of them.")
    if num_draft_tokens < 0:
        raise SettingsError(f"K must be 0 or more, not {num_draft_tokens}.")
    if num_draft_tokens == 0:
        return ()
    # A block takes its full length at the text's end too; what stands behind a position does not sway it.
    padded = [*ids, *[ids[-1]] * min(num_draft_tokens, target.context_length - len(ids))]
    single, block = target.runner(len(padded)), target.runner(len(padded))
    for runner in (single, block):
        prefill(runner, ids[: num_prompt_tokens - 1], check_cancelled)
    found = []
    # The rows of earlier blocks for the places ahead, the nearest place first.
    ahead: deque[list[Tensor]] = deque([] for _ in range(num_draft_tokens + 1))
    for last in range(num_prompt_tokens - 1, len(ids) - 1):
        check_cancelled()
        alone = _score(target, single, ids[last : last + 1])[0]
        check_cancelled()
        for rows, row in zip(ahead, _score(target, block, padded[last : last + num_draft_tokens + 1]), strict=False):
            rows.append(row)
        block.rewind(last + 1)
        tie = _near_tie(last + 1, scores(last + 1, alone), scores(last + 1, torch.stack(ahead.popleft())))
        ahead.append([])
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
    scores: Callable[[int, Tensor], Tensor] = lambda position, logits: logits,
) -> float:
    """By how much one token led another at a place of a run, its blocks scored again in a cache of their own.

    In half precision the rounding at a place hangs on how every position before it was scored; this repeats all of it,
    but none of what a run may get wrong between its blocks.

    Args:
        target: the model whose text it is.
        prompt_ids: what the run began with.
        blocks: of each step up to the place, what was drafted and what was emitted.
        index: place of the token in the text behind the prompt.
        tokens: the one whose lead is asked for, and the other.
        check_cancelled, scores: see `find_near_ties`.

    Raises:
        GenerationError: logits that hold NaN.
    """
    longest = max(len(drafted) for drafted, _ in blocks)
    runner = target.runner(len(prompt_ids) + index + longest + 2)
    prefill(runner, prompt_ids[:-1], check_cancelled)
    last, position = prompt_ids[-1], 0
    for drafted, emitted in blocks:
        check_cancelled()
        rows = _score(target, runner, (last, *drafted))
        if position + len(emitted) > index:
            row = scores(len(prompt_ids) + index, rows[index - position])
            return float(row[tokens[0]] - row[tokens[1]])
        position += len(emitted)
        last = emitted[-1]
        runner.rewind(len(prompt_ids) + position - 1)
    raise ValueError(f"The blocks end before token {index}.")


def _score(target: LanguageModel, runner: Runner, ids: Sequence[int]) -> Tensor:
    """(n, V) float32: the logits that follow each of the ids, of tokens that may be emitted."""
    logits = runner.forward(torch.tensor(ids), num_logits=len(ids)).logits[:, : target.vocab_size].float()
    if bool(logits.isnan().any()):
        raise GenerationError("The target's logits hold NaN. Choose float32, or another target model.")
    return logits


def _near_tie(position: int, alone: Tensor, in_blocks: Tensor) -> NearTie | None:
    """The closest call at one place, from its logits (V,) scored alone and (n, V) scored as part of n blocks."""
    token = int(alone.argmax())
    contenders = {*in_blocks.argmax(-1).tolist(), *alone.topk(min(2, len(alone))).indices.tolist()} - {token}
    ties = []
    for other in sorted(contenders):
        margin = float(alone[token] - alone[other])
        moved = float((in_blocks[:, token] - in_blocks[:, other] - margin).abs().max())
        if 0.0 < moved >= margin:
            ties.append(NearTie(position, token, other, margin, moved))
    return max(ties, key=lambda tie: tie.difference - tie.margin, default=None)
