"""Pairs of tables for tests of decoding."""

import torch

from core.decode import autoregressive
from tests.fakes import TableModel, play, random_rows, table_model

PROMPT = [10, 20, 30, 40, 10, 20]


def tables(vocab_size: int = 8, **changes):
    """A target and a draft of different distributions."""
    target = table_model(random_rows(vocab_size, 1, scale=2), vocab_size, **changes)
    return target, table_model(random_rows(vocab_size, 2, scale=2), vocab_size)


def plain_ids(target, prompt=(0,), count=40, **changes) -> list[int]:
    return play(autoregressive(target, list(prompt), max_new_tokens=count, **changes)).ids


def countdown(tokens) -> TableModel:
    """A model that says exactly these tokens after a prompt of one."""
    rows = torch.nn.functional.one_hot(torch.tensor(tokens), 8) * 20.0
    return table_model(lambda ids: rows[min(len(ids) - 1, len(rows) - 1)], 8)
