"""Rules other than rejection: block verification, typical acceptance, and equality under shared Gumbel noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from core.runners.timing import sent
from core.sampling import draw, fractions
from core.settings import TYPICAL_FLOOR, TYPICAL_SHARE
from core.types import BlockTest, Verification
from core.verify.checks import check_finite
from core.verify.rejection import outcome_of, probs_of_tokens


def verify_as_block(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Tensor
) -> Verification:
    """Block verification of a chain (Sun et al., 2403.10444, algorithm 2): prefixes are tested as a whole.

    Arguments and errors as those of `core.verify.verify_block`.
    """
    values = decide_block(draft_tokens, draft_probs, target_probs, uniforms).tolist()
    if any(map(math.isnan, (*values, float(target_probs[-1, 0])))):
        # Something can't have been drawn or computed: this says what.
        probs_of_tokens(draft_tokens, range(-1, len(draft_tokens) - 1), draft_probs, target_probs)
    return block_outcome(values, uniforms.tolist())


def decide_block(draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Block verification without reading any value on the host.

    With w_0 = 1 and w_i = min(1, w_(i-1) p_i / q_i) a prefix of i tokens passes with probability
    h_i = s_i / (s_i + 1 - w_i), where s_i is the sum of max(0, w_i p - q) over the vocabulary; the full chain with w_K.
    The longest prefix that passes is accepted.

    Returns:
        (3 K + 5,): all w, all h, all s and 0, the length of the text that stays, and the next token.
    """
    count, at, tests = draft_tokens.shape[0], draft_tokens.unsqueeze(1), fractions(uniforms)
    p = target_probs[:count].gather(1, at).squeeze(1).to(tests.dtype)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(1, at).squeeze(1).to(tests.dtype)
    # In logarithms, w is how far the sum of log p / q has fallen below its highest point, which is at least 0.
    total = torch.cat((torch.zeros_like(p[:1]), (p / q).log_().cumsum(0)))
    weight = (total - total.cummax(0).values).exp_()
    one_hots = torch.zeros_like(target_probs[:count]).scatter_(1, at, 1.0) if draft_probs is None else draft_probs
    scale = weight[:count].to(target_probs.dtype).unsqueeze(1)
    left = (scale * target_probs[:count] - one_hots).clamp_(min=0.0)
    sums = left.sum(-1).to(tests.dtype)
    rest = sums + 1.0 - weight[:count]
    chances = torch.where(rest > 0.0, sums / rest, torch.ones_like(rest))
    # A text of no tokens needs no test; the full chain has no residual.
    chances = torch.cat((torch.zeros_like(chances[:1]), chances[1:], weight[count:]))
    lengths = torch.arange(1, count + 1, device=tests.device)
    accepted = torch.where(tests[:count] < chances[1:], lengths, 0).amax(0, keepdim=True)
    within = accepted.clamp(max=count - 1)
    is_left = (accepted < count) & (sums.index_select(0, within) > 0.0)
    row = torch.where(is_left.unsqueeze(1), left.index_select(0, within), target_probs.index_select(0, accepted))[0]
    next_token = draw(row, uniforms[count]).view(1)
    ends = (torch.zeros_like(sums[:1]), accepted.to(weight.dtype), next_token.to(weight.dtype))
    return torch.cat((weight, chances, sums, *ends))


def block_outcome(values: Sequence[float], uniforms: Sequence[float]) -> Verification:
    """The outcome that the values of `decide_block` describe; uniforms: the (K + 1) draws."""
    size = len(uniforms)
    tests = tuple(map(BlockTest, values[:size], values[size : 2 * size], values[2 * size : 3 * size]))
    outcome = outcome_of(range(int(values[-2])), range(-1, size - 2), int(values[-1]), uniforms)
    return replace(outcome, block=tests)


def verify_typically(
    draft_tokens: Tensor, parents: Sequence[int], target_probs: Tensor, uniforms: Tensor
) -> Verification:
    """Typical acceptance (Cai et al., 2401.10774, section 2.3.1), which is lossy: a node passes if the target gives it
    more than min(epsilon, delta exp(-entropy)); the longest path of such nodes is accepted."""
    check_finite(None, target_probs)
    path = longest_path(passes_typically(draft_tokens, parents, target_probs).tolist(), parents)
    next_token = int(draw(target_probs[path[-1] + 1 if path else 0], uniforms[-1]))
    # Only the next token is drawn: no draw decides what passes.
    return outcome_of(path, parents, next_token, uniforms.tolist()[-1:])


def passes_typically(draft_tokens: Tensor, parents: Sequence[int], target_probs: Tensor) -> Tensor:
    """(N,) whether each node passes by itself."""
    entropy = torch.special.entr(target_probs).sum(-1)
    floors = (TYPICAL_SHARE * torch.exp(-entropy)).clamp(max=TYPICAL_FLOOR)
    behind = sent(torch.tensor(parents) + 1, target_probs.device)
    return target_probs[behind, draft_tokens] > floors[behind]


def longest_path(passed: Sequence[float], parents: Sequence[int]) -> tuple[int, ...]:
    """The longest path from the root over nodes that passed; the first of several."""
    reached: dict[int, tuple[int, ...]] = {-1: ()}
    for node, parent in enumerate(parents):
        if parent in reached and passed[node]:
            reached[node] = (*reached[parent], node)
    return max(reached.values(), key=len)


def verify_gumbel(draft_tokens: Tensor, parents: Sequence[int], target_tokens: Tensor) -> Verification:
    """Verify a Gumbel-coupled block: drafted tokens are accepted where the target draws the same ones.

    The target draws with the same Gumbel noise as the draft, keyed by position, so the text is identical to that of
    plain sampling. `draft_tokens` is (N,); `target_tokens` (N + 1,) are the target's draws after the last committed
    token and after each node.
    """
    drafted, wanted = draft_tokens.tolist(), target_tokens.tolist()
    path: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (path[-1] if path else -1) and drafted[node] == wanted[parent + 1]:
            path.append(node)
    outcome = outcome_of(path, parents, wanted[path[-1] + 1 if path else 0], (0.0,))
    return replace(outcome, next_uniform=None)
