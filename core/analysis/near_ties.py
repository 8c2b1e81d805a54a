"""Near-ties: positions where rounding alone may decide which of two tokens comes next.

Scoring one position and scoring K + 1 at once are the same sums in another order. Their logits differ by about 1e-5 in
float32 and by up to tenths in bfloat16. Where two tokens are closer than that, plain and speculative decoding may
diverge at temperature 0, and neither is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.errors import GenerationError
from core.runners.base import Runner, TreeRows, keep_path, prefill, tree_rows
from core.settings import MAX_DRAFT_TOKENS
from core.types import Step

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel

# Each function takes the `capacity` of the run, its longest text in positions: some models' rotary frequencies depend
# on it, see `core.runners.rotary`.

Scores = Callable[[Tensor], Tensor]
"""From logits (..., V) after the text to what the next token is the argmax of; Gumbel coupling adds noise."""


@torch.inference_mode()
def moved_margin(
    target: LanguageModel,
    prompt_ids: Sequence[int],
    text: Sequence[int],
    tokens: tuple[int, int],
    num_draft_tokens: int,
    *,
    capacity: int | None = None,
    check_cancelled: Callable[[], None] = lambda: None,
    scores: Scores = lambda logits: logits,
) -> tuple[float, float] | None:
    """The lead of one token over the other after a text, and how far blocks of K + 1 move it; two forwards a token.

    The text is read one position at a time, and in overlapping blocks, so that the position after it is scored as each
    row of a block. None where a third token leads. check_cancelled raises to cancel.

    Raises:
        GenerationError: logits that hold NaN.
    """
    ids, end = [*prompt_ids, *text], len(prompt_ids) + len(text)
    # Later positions don't affect earlier ones: the last blocks are filled up.
    padded = [*ids, *[ids[-1]] * min(num_draft_tokens, (capacity or target.context_length) - len(ids))]
    single, block = target.runner(capacity or len(padded)), target.runner(capacity or len(padded))
    for runner in (single, block):
        prefill(runner, prompt_ids[:-1], check_cancelled)
    in_blocks: list[Tensor] = []
    for position in range(len(prompt_ids), end + 1):
        check_cancelled()
        alone = _score(target, single, ids[position - 1 : position])[0]
        check_cancelled()
        rows = _score(target, block, padded[position - 1 : position + num_draft_tokens])
        block.rewind(position)
        in_blocks += rows[end - position : end - position + 1]
    alone, stacked = scores(alone), scores(torch.stack(in_blocks))
    first, other = sorted(tokens, key=lambda token: -float(alone[token]))
    if int(alone.argmax()) != first:
        return None
    margin = float(alone[first] - alone[other])
    return margin, float((stacked[:, first] - stacked[:, other] - margin).abs().max())


@torch.inference_mode()
def replay_margin(
    target: LanguageModel,
    prompt_ids: Sequence[int],
    steps: Sequence[Step],
    index: int,
    tokens: tuple[int, int],
    *,
    capacity: int | None = None,
    check_cancelled: Callable[[], None] = lambda: None,
    scores: Scores = lambda logits: logits,
) -> float:
    """How far the first of two tokens led the other at one index of a run, its blocks scored again in a fresh cache.

    This repeats the run's rounding, which depends on how every earlier position was scored, but none of its mistakes.
    steps are the run's, at least up to the index in the text after the prompt.

    Raises:
        GenerationError: logits that hold NaN.
    """
    longest = max(step.num_draft_tokens for step in steps)
    spare = MAX_DRAFT_TOKENS if any(step.parents for step in steps) else 0
    runner = target.runner(capacity or len(prompt_ids) + index + longest + 2, spare=spare)
    prefill(runner, prompt_ids[:-1], check_cancelled)
    last, num_emitted = prompt_ids[-1], 0
    for step in steps:
        check_cancelled()
        root, ids = runner.length, (last, *step.drafted)
        tree = tree_rows(step.parents, root, len(ids)) if step.parents else None
        rows = _score(target, runner, ids, tree=tree)
        if num_emitted + len(step.emitted) > index:
            node = (-1, *step.path)[index - num_emitted]
            row = scores(rows[node + 1])
            return float(row[tokens[0]] - row[tokens[1]])
        num_emitted += len(step.emitted)
        last = step.emitted[-1]
        keep_path(runner, root, [root + 1 + node for node in step.path])
    raise ValueError(f"The steps end before token {index}.")


@torch.inference_mode()
def lead(target: LanguageModel, ids: Sequence[int], tokens: tuple[int, int], *, capacity: int | None = None) -> float:
    """How far the first of two tokens leads the other after a text, in logits."""
    row = _score(target, target.runner(capacity or len(ids)), ids, 1)[0]
    return float(row[tokens[0]] - row[tokens[1]])


def _score(
    target: LanguageModel, runner: Runner, ids: Sequence[int], num_logits: int = 0, tree: TreeRows | None = None
) -> Tensor:
    """(n, V) float32 logits that follow each of the ids, or the last ones, of tokens that may be emitted."""
    output = runner.forward(torch.tensor(ids), num_logits=num_logits or len(ids), tree=tree)
    # Copied, since the next forward may overwrite a graph's output.
    logits = output.logits[:, : target.vocab_size].to(torch.float32, copy=True)
    if bool(logits.isnan().any()):
        raise GenerationError(
            "The target's logits hold NaN. In half precision, try float32; otherwise choose another target model."
        )
    return logits
