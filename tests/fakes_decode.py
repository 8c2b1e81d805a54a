"""Pairs of tables for tests of decoding, and what holds after every run of them."""

import itertools

import torch

from core.decode import autoregressive, speculative
from core.settings import SamplingParams
from core.types import TokenKind
from tests.fakes import TableModel, play, random_law, table_model

GREEDY = SamplingParams(0.0)
PROMPT = [10, 20, 30, 40, 10, 20]


def tables(vocab_size: int = 8, **changes):
    """A target and a draft of different distributions."""
    target = table_model(random_law(vocab_size, 1, scale=2), vocab_size, **changes)
    return target, table_model(random_law(vocab_size, 2, scale=2), vocab_size)


def plain_ids(target, prompt=(0,), count=40, **changes) -> list[int]:
    return play(autoregressive(target, list(prompt), max_new_tokens=count, **changes)).ids


def countdown(tokens) -> TableModel:
    """A model that says exactly these tokens after a prompt of one."""
    rows = torch.nn.functional.one_hot(torch.tensor(tokens), 8) * 20.0
    return table_model(lambda ids: rows[min(len(ids) - 1, len(rows) - 1)], 8)


def check_counts(run, target) -> None:
    """The summary is the sum of the steps, and the cache holds one position fewer than the text."""
    summary, steps = run.summary, run.steps
    assert summary.num_tokens == sum(len(step.emitted) for step in steps)
    assert summary.num_accepted_tokens == run.kinds.count(TokenKind.ACCEPTED) == sum(s.num_accepted for s in steps)
    assert sum(summary.num_accepted_tokens_per_pos) == summary.num_accepted_tokens
    assert all(len(step.emitted) == len(step.emitted_kinds) == len(step.emitted_texts) for step in steps)
    assert all(kind is TokenKind.ACCEPTED for step in steps for kind in step.emitted_kinds[: step.num_accepted])
    assert target.last_runner.length == steps[-1].position + len(steps[-1].emitted) - 1


def check_the_next_run(target, draft) -> None:
    """Whatever happened before, runs with these models are what they are with new ones."""
    fresh, fresh_draft = table_model(target.law, 8), table_model(draft.law, 8)
    assert plain_ids(target, sampling=GREEDY) == plain_ids(fresh, sampling=GREEDY)
    after, expected = (
        play(speculative(*pair, [0], max_new_tokens=40, seed=9)) for pair in ((target, draft), (fresh, fresh_draft))
    )
    assert after.ids == expected.ids
    assert after.summary.num_accepted_tokens == expected.summary.num_accepted_tokens


class Trouble:
    """Does something before the n-th forward of a model."""

    def __init__(self, model, at: int, action) -> None:
        self._countdown, self._action = itertools.count(at, -1), action
        self.model = model
        self.forwards_after = 0
        self.has_struck = False
        model.on_forward = self._before

    def _before(self, runner, ids) -> None:
        if self.has_struck:
            self.forwards_after += 1
        elif next(self._countdown) == 0:
            self.has_struck = True
            self._action()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.model.on_forward = lambda runner, ids: None
        assert self.has_struck
