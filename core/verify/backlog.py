"""Keeps each block's distributions during a run, and computes their evidence: at once, in a pause, or at the end."""

from __future__ import annotations

import functools
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from core.evidence import MAX_LISTED, PARTS, PositionEvidence
from core.runners.timing import sent
from core.text import TokenTexts
from core.types import Draft, Inspected, TokenKind, Verification
from core.verify.rejection import tested_rows

LEAST_LISTED = 1e-6
"""A token below this probability in both distributions is not listed, unless it was drafted or drawn."""

_MAX_BYTES = 256 * 1024 * 1024
"""Most memory for distributions in the backlog; above it the oldest block is processed between two steps."""

_GROUP = 64
"""Size of the groups of neighbouring ids that the search first compares by their maxima."""

Texts = Callable[[Sequence[int]], tuple[str, ...]]


class EvidenceBacklog:
    """Copies each block's distributions, and computes their evidence on request.

    Computing it between steps would slow a small model down noticeably, and evict what the next forward needs from the
    processor's caches; copying is cheap.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Args: tokenizer: for the listed tokens' texts."""
        self._texts = TokenTexts(tokenizer)
        self._num_bytes = 0
        self._blocks: deque[tuple[int, Callable[[], Inspected]]] = deque()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def is_full(self) -> bool:
        """Whether the backlog exceeds its limit."""
        return self._num_bytes > _MAX_BYTES

    def put(
        self,
        step: int,
        draft: Draft,
        parents: Sequence[int],
        target_probs: Tensor,
        outcome: Verification,
        nodes: Sequence[int],
        *,
        has_next: bool,
        raw: Tensor | None = None,
    ) -> None:
        """Keep a round's distributions; `raw` is as in `capture`, and not copied.

        The end of the text may have cut the block to some `nodes`, and the next token, unless it `has_next`.
        """
        # Copied here, outside all timing: a drafter may reuse its buffers.
        tokens, draft_probs = draft.tokens.clone(), None if draft.probs is None else draft.probs.clone()
        raw_draft = draft.raw_probs
        # The row behind the last node is needed only if the next token was drawn from it.
        end = outcome.path[-1] if outcome.path else -1
        kept = target_probs[: max((*parents, end)) + 2].clone()

        def inspected() -> Inspected:
            with torch.inference_mode():
                rows = raw_draft() if raw is not None and raw_draft is not None else None
            if rows is not None and rows.shape != (len(tokens), kept.shape[1]):
                rows = None  # Only for display: another's drafter that errs here stops no run.
            found = capture(tokens, parents, draft_probs, kept, outcome, self._texts, raw, rows)
            has_bonus = has_next and outcome.next_kind is TokenKind.BONUS
            return Inspected(step, (*(found[node] for node in nodes), *found[len(tokens) :][:has_bonus]))

        # The draft's logits are about as large as the target's distributions.
        held = (kept, draft_probs, raw, None if raw_draft is None else kept)
        num_bytes = sum(tensor.nbytes for tensor in held if tensor is not None)
        self._blocks.append((num_bytes, inspected))
        self._num_bytes += num_bytes

    def look(self) -> Inspected:
        """Compute the evidence of the oldest block.

        Raises:
            IndexError: the backlog is empty.
        """
        num_bytes, inspected = self._blocks.popleft()
        self._num_bytes -= num_bytes
        return inspected()


def capture(
    draft_tokens: Tensor,
    parents: Sequence[int],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    outcome: Verification,
    texts: Texts,
    raw: Tensor | None = None,
    raw_draft: Tensor | None = None,
) -> tuple[PositionEvidence, ...]:
    """The evidence of a block, computed for all positions at once and moved to the CPU once.

    Args:
        draft_tokens: (N,) drafted ids.
        parents: of each node, as in `core.verify.verify_tree`.
        draft_probs: (N, V) the distributions they were drawn from; None for a one-hot at each.
        target_probs: (N + 1, V) the target's.
        outcome: the block's verification.
        texts: maps ids to their displayed texts.
        raw: (N + 1, V) at temperature 0, the target's at temperature 1.
        raw_draft: (N, V) likewise the draft's, at each node.

    Returns:
        Of each node, with what its earlier siblings leave of the target's distribution; then of the bonus token, if
        there is one.
    """
    with torch.inference_mode():
        num_drafted, end = draft_tokens.shape[0], outcome.path[-1] if outcome.path else -1
        draft_tokens = sent(draft_tokens, target_probs.device)
        tokens = draft_tokens.unsqueeze(1)
        # The next token stands behind the last child that was tested, or behind a leaf.
        children = [node for node, parent in enumerate(parents) if parent == end]
        at = children[-1] if children else num_drafted
        firsts = [*map(parents.index, parents), num_drafted]
        places = [*(parent + 1 for parent in parents), *([] if children else [end + 1])]
        behind = sent(torch.tensor(places, dtype=torch.int64), target_probs.device)
        rows = target_probs.index_select(0, behind)
        if outcome.uniforms:
            rows[:num_drafted] = tested_rows(draft_tokens, parents, draft_probs, target_probs)
        raw_rows = [] if raw is None else [raw.index_select(0, behind)]
        if raw_draft is not None:
            surplus = len(places) - num_drafted
            raw_rows.append(functional.pad(raw_draft.to(target_probs.device), (0, 0, 0, surplus)))
        one_hots = torch.zeros_like(rows[:num_drafted]).scatter_(1, tokens, 1.0)
        draft = one_hots if draft_probs is None else draft_probs
        drawn_from = _residual_drawn_from(rows, draft, outcome, at)
        likely = functools.reduce(torch.maximum, raw_rows, rows)
        ids, num_listed = _likeliest(tokens, draft, likely, drawn_from, at, outcome.next_token, firsts)
        drafted_ids, surplus = ids[:num_drafted], rows.shape[0] - num_drafted
        residual_mass = (rows[:num_drafted] - draft).clamp_(min=0.0).sum(-1, keepdim=True)
        residual_part = torch.zeros(len(ids), ids.shape[1] + 1, device=ids.device)
        if drawn_from is not None:
            residual_part[at] = _split(drawn_from.unsqueeze(0), ids[at].unsqueeze(0))[0]
        table = torch.cat(
            (
                ids.float(),  # float32 is exact for integers up to 2^24.
                _split(rows, ids),
                functional.pad(_split(draft, drafted_ids), (0, 0, 0, surplus)),
                residual_part,
                *(_split(row, ids) for row in raw_rows),
                _entropy(rows),
                functional.pad(_entropy(draft), (0, 0, 0, surplus)),
                functional.pad(residual_mass, (0, 0, 0, surplus)),
                num_listed,
            ),
            dim=1,
        )
        known = ["target", *([] if raw is None else ["raw"])]
        of_nodes = ["draft", *([] if raw_draft is None else ["raw_draft"])]

        def parts(slot: int) -> list[str]:
            is_residual = drawn_from is not None and slot == at
            return [*known, *(of_nodes if slot < num_drafted else []), *(["residual"] if is_residual else [])]

        return tuple(_position(row, ids.shape[1], parts(slot), texts) for slot, row in enumerate(table.tolist()))


def _likeliest(
    tokens: Tensor,
    draft: Tensor,
    target_probs: Tensor,
    drawn_from: Tensor | None,
    at: int,
    next_token: int,
    firsts: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """(N, at most MAX_LISTED) ids, most likely first, and (N, 1) how many of them to list.

    `firsts` are the first siblings of each place: the window shows the whole distributions there.
    """
    num_drafted = draft.shape[0]
    num_positions, vocab_size = target_probs.shape
    score = functional.pad(target_probs, (0, -vocab_size % _GROUP), value=-1.0)
    real = score[:, :vocab_size]
    torch.maximum(real[:num_drafted], draft, out=real[:num_drafted])
    if drawn_from is not None:
        torch.maximum(real[at], drawn_from, out=real[at])
    # Drafted and drawn tokens are listed, however unlikely; siblings as far as there is room, above all others.
    of_firsts = sent(torch.tensor(firsts[:num_drafted], dtype=torch.int64), tokens.device) * score.shape[1]
    score.view(-1).scatter_(0, of_firsts + tokens.squeeze(1), 2.0)
    real[:num_drafted].scatter_(1, tokens, torch.inf)
    for row in (at, firsts[at]):
        real[row, next_token : next_token + 1] = torch.inf  # Not one element: a GPU would have to wait for its copy.
    # A row's n largest lie in the n groups with the largest maxima: less work than sorting the row.
    count = min(MAX_LISTED, vocab_size)
    groups = score.view(num_positions, -1, _GROUP)
    best = groups.amax(-1).topk(min(count, groups.shape[1]), sorted=False).indices
    found = groups.gather(1, best.unsqueeze(-1).expand(-1, -1, _GROUP)).flatten(1).topk(count, sorted=False)
    ids = best.gather(1, found.indices // _GROUP) * _GROUP + found.indices % _GROUP
    larger = target_probs.gather(1, ids)
    larger[:num_drafted] = torch.maximum(larger[:num_drafted], draft.gather(1, ids[:num_drafted]))
    is_listed = found.values >= LEAST_LISTED
    order = larger.masked_fill(~is_listed, -1.0).argsort(1, descending=True)
    return ids.gather(1, order), is_listed.sum(1, keepdim=True).float()


def _split(probs: Tensor, ids: Tensor) -> Tensor:
    """From probs (N, V) and ids (N, L): (N, L + 1), the ids' probabilities and the sum of all others."""
    # Summed directly: as the difference to 1, a small tail would be mostly rounding error.
    rest = probs.scatter(1, ids, 0.0).sum(-1, keepdim=True)
    return torch.cat((probs.gather(1, ids), rest), dim=1)


def _residual_drawn_from(rows: Tensor, draft: Tensor, outcome: Verification, at: int) -> Tensor | None:
    """(V,) the distribution the correction was drawn from; None if there is none."""
    if outcome.next_kind is not TokenKind.CORRECTION or not outcome.uniforms:
        return None
    weight = outcome.block[at].weight if outcome.block else 1.0
    left = (weight * rows[at] - draft[at]).clamp_(min=0.0)
    total = left.sum()
    return torch.where(total > 0.0, left / total, rows[at])


def _entropy(probs: Tensor) -> Tensor:
    """(N, 1) entropies of (N, V) in nats; an impossible token adds 0."""
    return -(probs.clamp_min(torch.finfo(probs.dtype).tiny).log_().mul_(probs)).sum(-1, keepdim=True)


def _position(row: list[float], width: int, parts: Sequence[str], texts: Texts) -> PositionEvidence:
    """The evidence in a row of `capture`'s table, as far as these parts of it are known here."""
    target_entropy, draft_entropy, residual_mass, num_listed = row[-4:]
    count = int(num_listed)
    ids = array("i", map(int, row[:count]))
    found: dict[str, Any] = {}
    for at, part in enumerate(PARTS, start=1):
        if part in parts:
            start = at * (width + 1) - 1
            found[f"{part}_probs"] = array("f", row[start : start + count])
            found[f"{part}_tail"] = sum(row[start + count : start + width + 1])
    if "draft" in parts:
        found |= {"draft_entropy": max(0.0, draft_entropy), "residual_mass": min(1.0, residual_mass)}
    return PositionEvidence(ids=ids, texts=texts(ids), target_entropy=max(0.0, target_entropy), **found)
