"""Keeps transformers from writing past what a person is shown."""

from __future__ import annotations


def quiet_transformers() -> None:
    """Switch off its progress bars and its advice; its errors are caught and told in a sentence instead."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
