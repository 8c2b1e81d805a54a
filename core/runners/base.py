"""The interface between engine and model: score a few tokens, and rewind the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from core.types import depths_of

PREFILL_CHUNK = 512
"""Positions in one forward of the prefill, within which a stop takes effect."""

FINAL = -1
"""Stands for the final states in a list of layers."""


class ForwardOutput(NamedTuple):
    """Result of one forward over n tokens.

    Attributes:
        logits: (num_logits, V) in the model's dtype, for the last `num_logits` of the n tokens.
        states: (n, H) of each of the requested layers.
    """

    logits: Tensor
    states: tuple[Tensor, ...] = ()


class TreeRows(NamedTuple):
    """Where the tokens of a forward stand in a tree; without it they follow each other.

    The cache's last m places hold the tree, the n new tokens included; all places before them are visible.

    Attributes:
        positions: (m,) int64, the position in the text of each of these places.
        visible: (n, m) bool, which of them each new token sees.
    """

    positions: Tensor
    visible: Tensor

    @property
    def new_positions(self) -> Tensor:
        """(n,) positions of the new tokens."""
        return self.positions[-self.visible.shape[0] :]


def tree_rows(parents: Sequence[int], start: int, num_new: int) -> TreeRows:
    """The rows of a tree whose root is at position `start` of the text and the cache.

    Args:
        parents: of each node: -1 for a child of the root, or the index of an earlier node.
        start: the root's position.
        num_new: how many tokens at the end of (root, node 0, node 1…) the forward reads; the others are in the cache.
    """
    positions = start + torch.tensor([0, *(depth + 1 for depth in depths_of(parents))])
    visible = torch.eye(len(positions), dtype=torch.bool)
    for place, parent in enumerate(parents, start=1):
        visible[place] |= visible[parent + 1]
    return TreeRows(positions, visible[-num_new:])


class Runner(Protocol):
    """A model with its own key-value cache, for one text at a time."""

    @property
    def length(self) -> int:
        """Positions in the cache."""
        ...

    @property
    def capacity(self) -> int:
        """Positions that the cache has room for, within the model's context."""
        ...

    def forward(
        self, ids: Tensor, *, num_logits: int, layers: Sequence[int] = (), tree: TreeRows | None = None
    ) -> ForwardOutput:
        """Append `ids` (n,), n >= 1, and return the logits that follow the last `num_logits` of them.

        layers: whose entering states to return, too, by number from 0, ascending; FINAL first, for the final states.

        Raises:
            SettingsError: `tree` is given, and the model can't read trees.
        """
        ...

    def rewind(self, length: int) -> None:
        """Keep the first `length` positions, 0 <= length <= self.length, at no cost.

        Raises:
            ValueError: there are fewer.
        """
        ...

    def keep(self, places: Sequence[int]) -> None:
        """Rewind to the first of these ascending places, and keep only these of what follows, as if read in a row."""
        ...


def keep_path(runner: Runner, root: int, places: Sequence[int]) -> None:
    """Keep a runner's cache up to place `root`, and these ascending places behind it, as if read in a row."""
    if places and places[-1] != root + len(places):
        runner.keep([root, *places])
    else:
        runner.rewind(root + len(places) + 1)


def check_rewind(length: int, current: int) -> None:
    """Raise ValueError if a cache of `current` positions can't be cut to `length`."""
    if not 0 <= length <= current:
        raise ValueError(f"Can't rewind a cache of {current} positions to {length}.")


def check_room(end: int, capacity: int) -> None:
    """Raise ValueError if a cache of `capacity` positions can't be filled up to `end`."""
    if end > capacity:
        raise ValueError(f"The cache has room for {capacity} positions, not {end}.")


def prefill(
    runner: Runner,
    ids: Sequence[int],
    check_cancelled: Callable[[], None],
    on_output: Callable[[ForwardOutput], object] | None = None,
    layers: Sequence[int] = (),
) -> None:
    """Extend a runner's cache to `ids`, whose first `runner.length` it already holds.

    on_output receives each chunk's states, those of `layers`.
    """
    while runner.length < len(ids):
        check_cancelled()
        chunk = ids[runner.length : runner.length + PREFILL_CHUNK]
        output = runner.forward(torch.tensor(chunk), num_logits=0, layers=layers)
        if on_output is not None:
            on_output(output)
    runner.rewind(runner.length)  # All of it stays, so a recurrent state is copied at its end, not at its beginning.
