"""Trains the embedded pair: corpus, tokenizer, target, distilled draft, evaluation.

Run `python -m core.training --help`; resources/models/README.md has the commands that made the shipped pair.
"""
