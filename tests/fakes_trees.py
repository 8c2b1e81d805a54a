"""Steps that draft trees, without an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from core.types import Drafted, Step, TokenKind
from tests.fakes_app import make_step


def tree_step(
    index: int,
    position: int,
    parents: Sequence[int],
    path: Sequence[int],
    *,
    texts: Sequence[str] = (),
    added: str = " end",
    ms: float = 10.0,
) -> Step:
    """A step that drafted a tree and accepted a path of it; its nodes are n0, n1, n2…"""
    count = len(parents)
    texts = texts or [f" n{node}" for node in range(count)]
    is_leaf = (path[-1] if path else -1) not in parents
    kinds = (*(TokenKind.ACCEPTED for _ in path), TokenKind.BONUS if is_leaf else TokenKind.CORRECTION)
    return replace(
        make_step(index, position, num_draft_tokens=count, num_accepted=0, ms=ms),
        drafted=tuple(range(100, 100 + count)),
        drafted_texts=tuple(texts),
        num_accepted=len(path),
        emitted=(*(100 + node for node in path), 7),
        emitted_kinds=kinds,
        emitted_texts=(*(texts[node] for node in path), added),
        parents=tuple(parents),
        accepted_path=tuple(path),
    )


def random_tree(source: random.Random, count: int) -> tuple[list[int], list[int]]:
    """Parents of a tree, and a path from its root that may end anywhere."""
    parents = [source.randrange(-1, node) for node in range(count)]
    path: list[int] = []
    while children := [node for node, parent in enumerate(parents) if parent == (path[-1] if path else -1)]:
        if source.random() < 0.3:
            break
        path.append(source.choice(children))
    return parents, path


def drafted(step: Step) -> Drafted:
    """The same block, before its verdict."""
    return Drafted(step.index, step.position, step.drafted, step.drafted_texts, step.parents)
