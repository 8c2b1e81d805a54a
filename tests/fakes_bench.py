"""Prompts and settings of a small bench, and contenders whose results are told beforehand."""

from dataclasses import replace

from core.drafters.registry import METHODS
from core.experiments.bench import ASSISTED, AUTO, GENERATE, PLAIN, BenchSettings, Pair, Prompt, Timed
from core.experiments.benching import Observations
from tests.fakes import greedy_reference, tiny_model

N, K = 9, 3
PROMPTS = [Prompt("one", "def f", (1, 2, 3, 4, 5)), Prompt("two", "x", (7, 8, 9))]
SETTINGS = BenchSettings("t", "d", num_draft_tokens=K, temperatures=(0.0,), max_new_tokens=N, rounds=2)


class Fake:
    """A contender whose ids and seconds come from a function of (prompt ids, seed)."""

    num_draft_tokens = 0

    def __init__(self, name, play, title=None):
        self.name, self.title, self._play = name, title or name, play
        self.calls = []

    def run(self, prompt_ids, *, temperature, seed):
        self.calls.append((tuple(prompt_ids), temperature, seed))
        return self._play(tuple(prompt_ids), seed)


def observations(name, *, seconds, tokens=None, texts=None, **changes):
    contender = Fake(name, None)
    contender.num_draft_tokens = changes.pop("k", 0)
    seen = Observations(contender, list(seconds), tokens or [N] * len(seconds), **changes)
    for index, ids in (texts or {}).items():
        seen.texts[index].append(tuple(ids))
    return seen


REAL = [GENERATE, ASSISTED, PLAIN, *METHODS, AUTO]


def right(pair):
    """Plays the target's own greedy text."""
    return lambda ids, _seed: Timed(tuple(greedy_reference(pair.target, ids, N)), 1.0)


def small_pair() -> Pair:
    """A target that never ends a text, and a draft."""
    return Pair(replace(tiny_model(seed=1), eos_ids=frozenset()), tiny_model(seed=2))
