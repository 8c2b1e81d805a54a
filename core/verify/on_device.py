"""Verification on a device that runs asynchronously: all that a step needs comes back in one copy.

Verification waits for the device once, here. Until then it reads no value, and copies nothing to the device in a way
that would wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from core.errors import DrafterError
from core.runners.timing import sent
from core.sampling import draw, for_device, fractions, has_double
from core.settings import VerificationRule
from core.types import Verification, depths_of, is_chain
from core.verify.checks import IMPOSSIBLE_DRAFT, check_finite
from core.verify.other_rules import block_outcome, decide_block, longest_path, passes_typically, verify_gumbel
from core.verify.rejection import drafted_rows, outcome_of, residuals, tested_rows


class NodeProbs(NamedTuple):
    """What a step reports of each node: its id, and the probabilities of the same names in `core.types.Step`."""

    tokens: tuple[int, ...]
    draft_probs: tuple[float, ...]
    target_probs: tuple[float, ...]
    acceptance_probs: tuple[float, ...]
    expected_acceptance: tuple[float, ...]

    def of(self, nodes: Sequence[int]) -> NodeProbs:
        """Those of some nodes."""
        tokens, *others = (tuple(values[node] for node in nodes) for values in self)
        return NodeProbs(tuple(map(int, tokens)), *others)

    def within(self, ends: Container[int], parents: Sequence[int]) -> NodeProbs:
        """The same with 0 as the expected acceptance of nodes behind a token that ends the text."""
        if not any(token in ends for token in self.tokens[:-1]):
            return self
        is_behind: list[bool] = []
        for parent in parents:
            is_behind.append(parent >= 0 and (is_behind[parent] or self.tokens[parent] in ends))
        expected = zip(self.expected_acceptance, is_behind, strict=True)
        return self._replace(expected_acceptance=tuple(0.0 if behind else value for value, behind in expected))


Fetch = Callable[[Tensor], list[float]]
"""Reads a tensor (n,) from the device: the wait."""


def verify_on_device(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    uniforms: Tensor,
    *,
    draws: Tensor | None = None,
    rule: VerificationRule = VerificationRule.TOKEN,
    fetch: Fetch = Tensor.tolist,
) -> tuple[Verification, NodeProbs]:
    """Test a block by a rule; tensors as in `core.verify.verify_block`, all but the uniforms on the device.

    `draws` are the uniforms as `core.sampling.for_device` makes them, if they are on the device already.

    Raises:
        GenerationError: a model's logits held NaN.
        DrafterError: a drafted token has draft probability 0.
    """
    count, on_host = len(parents), for_device(uniforms, target_probs.device)
    draws = sent(on_host, target_probs.device) if draws is None else draws
    is_typical = count > 0 and rule is VerificationRule.TYPICAL
    is_block = count > 0 and rule is VerificationRule.BLOCK and is_chain(parents)
    rows, table = _table(draft_tokens, parents, draft_probs, target_probs, is_drawn=not is_typical)
    if is_typical:
        # The next token after every node, since only the host will know the path.
        next_tokens = torch.stack([draw(row, draws[count]) for row in target_probs])
        decided = torch.cat((passes_typically(draft_tokens, parents, target_probs).long(), next_tokens))
    elif is_block:
        decided = decide_block(draft_tokens, draft_probs, target_probs, draws)
    else:
        decided = _decide(draft_tokens, parents, draft_probs, target_probs, rows, table, draws)
    found, values = _read(table, decided, draft_probs, target_probs, fetch)
    if not is_typical and 0.0 in found[1]:
        raise DrafterError(IMPOSSIBLE_DRAFT)
    u = [*fractions(on_host[:count]).tolist(), *uniforms[count:].tolist()]
    if is_block:
        outcome = block_outcome(values, u)
    elif is_typical:
        path = longest_path(values[:count], parents)
        outcome = outcome_of(path, parents, int(values[count + (path[-1] + 1 if path else 0)]), u[-1:])
    else:
        path = tuple(int(node) - 1 for node in values[:-1] if node > 0)
        outcome = outcome_of(path, parents, int(values[-1]), u)
    return outcome, _figures(found, outcome, is_typical=is_typical)


def verify_gumbel_on_device(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    target_tokens: Tensor,
    *,
    fetch: Fetch = Tensor.tolist,
) -> tuple[Verification, NodeProbs]:
    """`core.verify.other_rules.verify_gumbel`, whose tensors are on the device.

    Raises:
        GenerationError: a model's logits held NaN.
    """
    _, table = _table(draft_tokens, parents, draft_probs, target_probs, is_drawn=False)
    found, values = _read(table, target_tokens, draft_probs, target_probs, fetch)
    outcome = verify_gumbel(torch.tensor(found[0]).long(), parents, torch.tensor(values).long())
    return outcome, _figures(found, outcome, is_typical=False)


@torch.inference_mode()
def figures_of(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    outcome: Verification,
    *,
    is_typical: bool = False,
) -> NodeProbs:
    """The figures of a verified block whose tensors are on the host."""
    if not parents:
        return NodeProbs((), (), (), (), ())
    _, table = _table(draft_tokens, parents, draft_probs, target_probs, is_drawn=bool(outcome.uniforms))
    return _figures(table.tolist(), outcome, is_typical=is_typical)


def _table(
    draft_tokens: Tensor, parents: Sequence[int], draft_probs: Tensor | None, target_probs: Tensor, *, is_drawn: bool
) -> tuple[Tensor, Tensor]:
    """The rows (N, V) that the nodes are tested against, and (5, N): each node's id, its q and p, the sum of
    min(p, q), and the p to show, which is the target's own where no draw decides."""
    rows = tested_rows(draft_tokens, parents, draft_probs, target_probs)
    dtype = torch.float64 if has_double(rows.device) else torch.float32  # Which is exact for ids up to 2^24.
    if not parents:
        return rows, rows.new_zeros(5, 0, dtype=dtype)
    at = draft_tokens.unsqueeze(1)
    p = rows.gather(1, at).squeeze(1)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(1, at).squeeze(1)
    overlap = p if draft_probs is None else torch.minimum(rows, draft_probs).sum(-1)
    shown = p
    if not is_drawn and not is_chain(parents):
        shown = target_probs[sent(torch.tensor(parents) + 1, rows.device), draft_tokens]
    figures = torch.stack((q, p, overlap.clamp(max=1.0), shown))
    return rows, torch.cat((draft_tokens.to(dtype).unsqueeze(0), figures.to(dtype)))


def _figures(table: Sequence[Sequence[float]], outcome: Verification, *, is_typical: bool) -> NodeProbs:
    """From the values of `_table`."""
    tokens, q, p, expected, shown = map(tuple, table)
    chances = tuple(1.0 if own >= drafted else own / drafted for drafted, own in zip(q, p, strict=True))
    if is_typical:
        chances = expected = (math.nan,) * len(p)
    elif outcome.block:
        chances = tuple(test.weight for test in outcome.block[1:])
        # The sum of min(w p, q) is w less the residual's mass.
        expected = tuple(max(0.0, test.weight - test.residual) for test in outcome.block[:-1])
    return NodeProbs(tuple(map(int, tokens)), q, shown, chances, expected)


def _read(
    table: Tensor, decided: Tensor, draft_probs: Tensor | None, target_probs: Tensor, fetch: Fetch
) -> tuple[list[list[float]], list[float]]:
    """The one copy: the table, and what was decided, once the models' logits are known to hold no NaN."""
    count = table.shape[1]
    # A model's NaN makes its whole row NaN.
    check = target_probs[:, 0].sum().view(1)
    values = fetch(torch.cat((table.flatten(), check.to(table.dtype), decided.to(table.dtype))))
    found = [values[row * count : (row + 1) * count] for row in range(len(table))]
    if any(map(math.isnan, (*found[1], values[len(table) * count]))):
        check_finite(draft_probs, target_probs)
    return found, values[len(table) * count + 1 :]


def _decide(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    rows: Tensor,
    table: Tensor,
    draws: Tensor,
) -> Tensor:
    """The recursion of `core.verify` without reading any value: nodes are tested against `rows` (N, V).

    `table` (5, N) is `_table`'s, `draws` (N + 1,) those of the nodes and of the next token.

    Returns (N + 1,): the accepted path as node + 1, filled up with 0; the next token.
    """
    count, device = len(parents), target_probs.device
    if not count:
        return draw(target_probs[0], draws[0]).view(1)
    q, p = table[1], table[2]
    is_kept = fractions(draws[:count]) * q < p
    numbers = torch.arange(1, count + 1, device=device)
    if is_chain(parents):
        path = torch.where(is_kept, numbers, 0) * is_kept.long().cumprod(0)
        end = path.amax(0, keepdim=True)
        last = end
    else:
        last_of = {parent: node for node, parent in enumerate(parents)}
        last_child = [last_of.get(node, count) for node in range(-1, count)]
        behind, lasts = sent(torch.tensor([[0, *(parent + 1 for parent in parents)], last_child]), device).unbind()
        # The first kept child of each node, as its number; count + 1 where none is kept.
        none = torch.full((count + 1,), count + 1.0, device=device)
        firsts = torch.where(is_kept, numbers, count + 1).to(none.dtype)
        child = none.scatter_reduce_(0, behind[1:], firsts, "amin").long().remainder(count + 1)
        path, end = torch.zeros_like(numbers), torch.zeros_like(numbers[:1])
        for depth in range(max(depths_of(parents)) + 1):
            path[depth : depth + 1] = child.index_select(0, end)
            end = torch.maximum(end, path[depth : depth + 1])
        last = lasts.index_select(0, end)
    # The next token is drawn from what the last child has left; after a leaf, from the target's own row.
    node = last.clamp(max=count - 1)
    tested, tokens = rows.index_select(0, node), draft_tokens.index_select(0, node).unsqueeze(1)
    drafted = None if draft_probs is None else draft_probs.index_select(0, node)
    left = residuals(tested, drafted_rows(tokens, drafted, tested))
    weights = torch.where((last < count).unsqueeze(1), left, target_probs.index_select(0, end))[0]
    return torch.cat((path, draw(weights, draws[count]).view(1)))
