"""Prompts and settings of a small bench, and contenders with known results."""

from dataclasses import replace

from core.drafters.registry import METHODS
from core.experiments.bench import Observations
from core.experiments.bench_plan import ASSISTED, AUTO, GENERATE, PLAIN, BenchSettings, Pair, Timed
from core.experiments.prompt_suites import Prompt
from tests.fakes import greedy_reference, tiny_model

N, K = 9, 3
PROMPTS = [Prompt("one", "def f", (1, 2, 3, 4, 5)), Prompt("two", "x", (7, 8, 9))]
SETTINGS = BenchSettings("t", "d", num_draft_tokens=K, temperatures=(0.0,), max_new_tokens=N, rounds=2)
REAL = [GENERATE, ASSISTED, PLAIN, *(method for method in METHODS if method != "medusa"), AUTO]


class Fake:
    """A contender whose result is a function of (prompt ids, seed)."""

    def __init__(self, name, play=None, num_draft_tokens=0):
        self.name = self.title = name
        self.num_draft_tokens, self._play = num_draft_tokens, play
        self.calls = []

    def run(self, prompt_ids, *, temperature, seed):
        self.calls.append((tuple(prompt_ids), temperature, seed))
        return self._play(tuple(prompt_ids), seed)


def observations(name, *, seconds, texts=(range(N),), k=0, num_forwards=None, longest_draft=0):
    """Rounds of these seconds each, in which every prompt gets its text."""
    runs = [Timed(tuple(ids), 1.0, num_forwards, longest_draft) for ids in texts]
    rounds = [[replace(run, seconds=each / len(runs)) for run in runs] for each in seconds]
    return Observations(Fake(name, num_draft_tokens=k), runs, rounds)


def right(pair):
    """Plays the target's own greedy text."""
    return lambda ids, _seed: Timed(tuple(greedy_reference(pair.target, ids, N)), 1.0)


def small_pair() -> Pair:
    """A target that never ends a text, and a draft."""
    return Pair(replace(tiny_model(seed=1), eos_ids=frozenset()), tiny_model(seed=2))
