"""Drafting a tree with a smaller model: several candidates for a position, drafted level by level.

One draft forward reads all nodes of a level. At temperature 0, and with the rule "best", the tree grows best-first by
cumulative draft probability, as in EAGLE-2 (2406.16858); its nodes are certain proposals. Otherwise its shape is fixed
before anything is drawn, so that no node is left out because of what was drawn for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from core.drafters.base import DrafterSetup, check_branches, empty_draft
from core.drafters.draft_model import DraftModelDrafter, over_vocabulary
from core.drafters.ngrams import Ngrams
from core.drafters.prompt_lookup import merged
from core.drafters.registry import DraftTreeOptions, TreeRule
from core.drafters.tree_shape import SiblingRates, grow
from core.runners.base import keep_path, tree_rows
from core.runners.graphed import GraphedRunner
from core.runners.timing import sent
from core.sampling import draw, draw_uniforms, probabilities
from core.settings import MAX_DRAFT_TOKENS
from core.types import Draft, DraftContext, Verification, depths_of

_LEAST_LOG = -60.0
"""For tokens of probability 0."""


class DraftTreeDrafter(DraftModelDrafter):
    """Drafts a tree of K nodes with a draft model, whose cache keeps the accepted path."""

    proposes_trees = True
    _spare = MAX_DRAFT_TOKENS
    _lookup: Ngrams
    _siblings: SiblingRates
    """The current text's, from `start` on."""

    def __init__(self, setup: DrafterSetup, options: DraftTreeOptions | None = None) -> None:
        """Raises:
        SettingsError: the setup has no draft model, or one of its models can't read trees, whatever K, which may
            change during a run.
        """
        self._shape = options or DraftTreeOptions()
        super().__init__(setup, self._shape)
        if self._shape.branching > 1 or self._shape.lookup:
            check_branches(setup.target)
        if self._shape.depth > 1:
            check_branches(self.model)
        self._parents: list[int] = []
        self._root = 0
        """The place of the last committed token in the draft's cache."""
        self._read: list[int] = []
        """The nodes behind it, in the order in which they were read."""
        self._unread_nodes: list[int] = []
        """Those to read for the next level."""
        ids = self.model.draft_ids
        self._host_ids = None if ids is None else ids.cpu()

    def start(self, prompt: Tensor, *, is_trial: bool = False) -> None:
        super().start(prompt, is_trial=is_trial)
        self._lookup, self._siblings = Ngrams(), SiblingRates()

    def propose(self, context: DraftContext) -> Draft:
        if not self._shape.lookup:
            return self._tree(context)
        found = self._lookup.look_up(context.ids, context.max_depth)
        # Set aside before anything is drawn: how many nodes are drawn must not depend on what they are.
        most = min(len(found), self._shape.lookup, context.num_draft_tokens - 1)
        draft = self._tree(replace(context, num_draft_tokens=context.num_draft_tokens - most))
        return merged(draft, found, most, context.vocab_size)

    def _tree(self, context: DraftContext) -> Draft:
        pending = self._unread(context)
        depth = min(self._shape.depth, context.max_depth, self._room)
        self._parents, self._read = [], []
        if pending is None or min(context.num_draft_tokens, depth) <= 0:
            return empty_draft()
        logits = self._runner.forward(pending, num_logits=1).logits
        self._root = self._runner.length - 1
        if context.sampling.is_greedy or self._shape.rule == TreeRule.BEST:
            return self._best_first(logits, context, depth)
        return self._drawn(logits, context, depth)

    def observe(self, outcome: Verification) -> None:
        if not self._parents:
            super().observe(outcome)
            return
        places = [self._root + 1 + self._read.index(node) for node in outcome.path if node in self._read]
        keep_path(self._runner, self._root, places)
        self._siblings.add(self._parents, outcome.path)

    def _levels(self, logits: Tensor, tokens: list[int], depth: int, context: DraftContext) -> Iterator[Tensor]:
        """Yields each level's logits (n, R): first those given, behind the root, then those of `_unread_nodes`."""
        yield logits
        runner = self._runner
        for _ in range(depth - 1):
            # More nodes are read than kept, and near the end of the text the cache has no room for all.
            del self._unread_nodes[max(0, runner.capacity - runner.length) :]
            if not self._unread_nodes:
                return
            context.check_cancelled()
            self._read += self._unread_nodes
            place = {-1: -1, **{node: index for index, node in enumerate(self._read)}}
            count = len(self._unread_nodes)
            tree = tree_rows([place[self._parents[node]] for node in self._read], self._root, count)
            ids = torch.tensor([tokens[node] for node in self._unread_nodes])
            yield runner.forward(ids, num_logits=count, tree=tree).logits

    def _best_first(self, logits: Tensor, context: DraftContext, depth: int) -> Draft:
        """The nodes with the highest cumulative draft probability. They are certain proposals, so they may be chosen
        by what they are."""
        proposed, limit = self.model.draft_ids, self._num_proposed(context.vocab_size)
        is_greedy = context.sampling.is_greedy
        tokens: list[int] = []
        scores: list[float] = []
        chosen: list[int] = []
        frontier, behind = [-1], list[Tensor]()
        for level in self._levels(logits, tokens, depth, context):
            rows = level[:, :limit]
            probs = torch.softmax(rows.float(), -1) if is_greedy else probabilities(rows, context.sampling)
            best = probs.topk(min(self._shape.branching, probs.shape[-1]))
            ids = best.indices if proposed is None else proposed[best.indices]
            logs = best.values.log().clamp_(min=_LEAST_LOG).tolist()
            first = len(tokens)
            for at, (parent, own, children) in enumerate(zip(frontier, logs, ids.tolist(), strict=True)):
                tokens += children
                behind += [rows[at]] * len(children)
                self._parents += [parent] * len(children)
                scores += [(scores[parent] if parent >= 0 else 0.0) + log for log in own]
            chosen = sorted(range(len(tokens)), key=lambda node: (-scores[node], node))[: context.num_draft_tokens]
            frontier = self._unread_nodes = sorted(node for node in chosen if node >= first)
        # In the order of their probability, so that fewer nodes would be the first of these.
        index = {-1: -1, **{node: at for at, node in enumerate(chosen)}}
        self._read = [index.get(node, -2) for node in self._read]
        self._parents = [index[self._parents[node]] for node in chosen]
        raw = None
        if is_greedy and not isinstance(self._runner, GraphedRunner):
            raw = partial(self._raw_probs, [behind[node] for node in chosen], context.vocab_size)
        return Draft(torch.tensor([tokens[node] for node in chosen]), torch.tensor(self._parents), None, raw)

    def _drawn(self, logits: Tensor, context: DraftContext, depth: int) -> Draft:
        """Nodes drawn from the draft by the rule; under Gumbel coupling those of the highest noisy probability."""
        shape = grow(self._siblings.rates, context.num_draft_tokens, depth, self._shape.branching)
        self._parents = [node.parent for node in shape]
        depths = depths_of(self._parents)
        uniforms = None if context.gumbel else draw_uniforms(len(shape), context.generator)
        proposed, limit = self._host_ids, self._num_proposed(context.vocab_size)
        tokens: list[int] = [-1] * len(shape)
        drawn_from: list[Tensor | None] = [None] * len(shape)
        parents = [-1]
        for at, level in enumerate(self._levels(logits, tokens, depth, context)):
            rows = probabilities(level[:, :limit], context.sampling).cpu()  # One wait a level: every draw reads values.
            for row, parent in zip(rows, parents, strict=True):
                # A parent may have fewer children than planned: the draft's support may be smaller.
                nodes = [node for node in range(len(shape)) if self._parents[node] == parent]
                children: list[tuple[Tensor, Tensor]]
                if uniforms is None:
                    children = self._noisy(row, len(nodes), context, len(context.ids) + at)
                else:
                    children = [*_children(row, uniforms[nodes], self._shape.rule)]
                for node, (token, source) in zip(nodes, children, strict=False):
                    tokens[node] = int(token if proposed is None else proposed[token])
                    drawn_from[node] = source
            drawn = [node for node in range(len(shape)) if depths[node] == at and tokens[node] >= 0]
            parents = self._unread_nodes = [node for node in drawn if node in self._parents]
        kept = [node for node in range(len(shape)) if tokens[node] >= 0]
        index = {-1: -1, **{node: at for at, node in enumerate(kept)}}
        self._read = [index[node] for node in self._read]
        self._parents = [index[self._parents[node]] for node in kept]
        sources = [source for source in (drawn_from[node] for node in kept) if source is not None]
        probs = None
        if sources:
            probs = sent(over_vocabulary(torch.stack(sources), proposed, context.vocab_size), self.model.device)
        return Draft(torch.tensor([tokens[node] for node in kept]), torch.tensor(self._parents), probs)

    def _noisy(self, row: Tensor, count: int, context: DraftContext, position: int) -> list[tuple[Tensor, Tensor]]:
        """Under Gumbel coupling: the tokens that the target is most likely to draw with the noise of a position."""
        scores = row.log() + self._noise(context, position).to(row.device)
        best = scores.topk(min(count, len(row)))
        found, left = [], row
        for token, score in zip(best.indices, best.values, strict=True):
            if not float(score) > -torch.inf:
                break
            # The largest noisy probabilities are a sample without replacement.
            found.append((token, left / left.sum()))
            left = left.index_fill(0, token, 0.0)
        return found


def _children(row: Tensor, uniforms: Tensor, rule: TreeRule) -> Iterator[tuple[Tensor, Tensor]]:
    """Siblings drawn from a row (R,), each with the distribution it was drawn from given its earlier siblings."""
    left = row
    for rank, uniform in enumerate(uniforms):
        if rank and rule == TreeRule.TOP:
            token = left.argmax()
            yield token, torch.zeros_like(left).index_fill_(0, token, 1.0)
        else:
            token = draw(left, uniform)
            yield token, left
        if rule != TreeRule.INDEPENDENT:
            left = left.clone()
            left[token] = 0.0
            total = left.sum()
            if not float(total) > 0.0:
                return
            left = left / total
