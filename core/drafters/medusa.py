"""Drafting with Medusa heads (Cai et al., 2401.10774): a tree grown from the last state of the target itself."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from core.drafters.base import DrafterSetup, check_branches, empty_draft
from core.drafters.registry import MedusaOptions
from core.errors import OutOfMemoryError, SettingsError
from core.models.devices import is_out_of_memory
from core.models.medusa_heads import find_heads, load_heads
from core.runners.llama_forward import apply_product
from core.runners.matmul import MOST_QUANTISED, in_full, product_of, quantised
from core.types import Draft, DraftContext, TargetFeature, Verification

_GREEDY_TEMPERATURE = 0.8
"""At temperature 0 the heads are read at this one; on held-out texts .6 to 1 differ little."""


class MedusaDrafter:
    """Proposes the tree of the most probable paths, grown level by level from the heads' probabilities.

    The tree depends on nothing that is drawn, so each candidate counts as a one-hot at every temperature, and a path
    may be left out because it is improbable.
    """

    needs: frozenset[TargetFeature] = frozenset({TargetFeature.HIDDEN_STATES})
    proposes_trees = True

    def __init__(self, setup: DrafterSetup, options: MedusaOptions | None = None) -> None:
        """Raises:
        SettingsError: there are no heads at the options' path, or, without a path, none ship for this target; or it
            can't read trees.
        ModelUnreadableError, PairMismatchError: they are damaged, or belong to another target.
        OutOfMemoryError: they don't fit in memory.
        """
        options = options or MedusaOptions()
        target = setup.target
        check_branches(target)
        path = Path(options.heads).expanduser() if options.heads else find_heads(target)
        if path is None:
            raise SettingsError(
                f"Outrider includes no Medusa heads for {target.ref}. Name a folder of them (medusa:heads=FOLDER), or "
                "train some with `outrider distill TARGET --kind medusa --out FOLDER`."
            )
        try:
            self._heads = load_heads(path, target, setup.check_cancelled)
            ids, shared = self._heads.config.vocabulary, target.head.weight.detach()
            self._ids = None if ids is None else torch.tensor(ids, device=target.device)
            # Without outputs of their own, the heads share the target's for the ids that are proposed.
            outputs = self._heads.outputs or [shared if self._ids is None else shared[self._ids]]
            # Each head is packed and measured before the next one, which saves memory.
            products = (product_of([output]) for output in outputs)
            self._products = [quantised(each) if options.int8 else each for each in products]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemoryError(f"The Medusa heads do not fit on {target.device}. Choose another method.") from error
        self._embedding = target.embedding

    def start(self, prompt: Tensor) -> None:
        """Nothing is kept from text to text."""

    @torch.inference_mode()
    def propose(self, context: DraftContext) -> Draft:
        """A tree of at most `context.num_draft_tokens` nodes, in order of falling probability."""
        states = context.features.get(TargetFeature.HIDDEN_STATES)
        most, depth = context.num_draft_tokens, min(context.max_depth, len(self._heads))
        if states is None or not len(states) or most <= 0:
            return empty_draft()
        temperature = max(context.sampling.temperature, _GREEDY_TEMPERATURE)
        # Of each path, which begins with the last committed token, its log-probability; the likeliest first.
        paths: dict[tuple[int, ...], float] = {}
        level: list[tuple[int, ...]] = [(context.ids[-1],)]
        for head in range(depth):
            context.check_cancelled()
            log_probs = self._log_probs(head, states[-1:], level, temperature)
            log_probs = log_probs + log_probs.new_tensor([[paths.get(path, 0.0)] for path in level])
            limit = log_probs.shape[1] if self._ids is not None else min(context.vocab_size, log_probs.shape[1])
            best = log_probs[:, :limit].flatten().topk(min(most, len(level) * limit))
            tokens = best.indices % limit if self._ids is None else self._ids[best.indices % limit]
            found = zip(best.values.tolist(), (best.indices // limit).tolist(), tokens.tolist(), strict=True)
            children = [((*level[index], token), value) for value, index, token in found]
            # A stable sort: a child is never likelier than its parent, and so stays behind it.
            paths = dict(sorted([*paths.items(), *children], key=lambda item: -item[1])[:most])
            level = [path for path in paths if len(path) == head + 2]
            if not level:
                break
        index_of = {path: index for index, path in enumerate(paths)}
        parents = [index_of[path[:-1]] if len(path) > 2 else -1 for path in paths]
        return Draft(torch.tensor([path[-1] for path in paths]), torch.tensor(parents), None)

    def observe(self, outcome: Verification) -> None:
        """The next proposal begins from the target's new state, whatever the verdict."""

    def _log_probs(self, head: int, state: Tensor, paths: list[tuple[int, ...]], temperature: float) -> Tensor:
        """Log-probabilities (n, R) of what follows each path, which begins with the last committed token."""
        if not self._heads.reads_tokens:
            paths = paths[:1]  # What follows is the same for all.
        tokens = self._embedding(torch.tensor(paths, device=state.device))
        x = self._heads(head, state.expand(len(paths), -1), tokens)
        product = self._products[min(head, len(self._products) - 1)]
        logits = apply_product(x, product if len(x) <= MOST_QUANTISED else in_full(product), 0)
        return (logits.float() / temperature).log_softmax(-1)
