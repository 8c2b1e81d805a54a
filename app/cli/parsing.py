"""The argument parser: every mistake becomes a `UsageError` with one sentence, never a usage dump."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from app.cli.errors import UsageError

_LONGEST_ECHO = 60


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises instead of printing and exiting.

    Raises:
        UsageError: from `parse_args`, for anything that can't be parsed.
    """

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:].rstrip(".")
        if "expected one argument" in message:
            sentence += " (a value that begins with a dash is written after '=')"
        raise UsageError(f"{sentence}; see {self.prog} --help.")


def number(flag: str) -> Callable[[str], float]:
    """A type for `add_argument` that names its flag when the text is no number."""

    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{flag} must be a number, not {echo(text)}.") from None

    return parse


def whole_number(flag: str, otherwise: str = "") -> Callable[[str], int]:
    """The same for whole numbers; `otherwise` names what else could have been written."""

    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"{flag} must be a whole number{otherwise}, not {echo(text)}.") from None

    return parse


def positive_number(flag: str) -> Callable[[str], float]:
    """A number above 0, and no infinity."""
    parse_number = number(flag)

    def parse(text: str) -> float:
        value = parse_number(text)
        if not 0 < value < float("inf"):
            raise UsageError(f"{flag} must be above 0, not {echo(text)}.")
        return value

    return parse


def positive_whole_number(flag: str) -> Callable[[str], int]:
    """A whole number above 0."""
    parse_number = whole_number(flag)

    def parse(text: str) -> int:
        value = parse_number(text)
        if value < 1:
            raise UsageError(f"{flag} must be 1 or more, not {echo(text)}.")
        return value

    return parse


def whole_number_or_auto(flag: str) -> Callable[[str], int | None]:
    """The same, where "auto" stands for None."""
    parse_number = whole_number(flag, " or auto")
    return lambda text: None if text.strip().lower() == "auto" else parse_number(text)


def echo(text: str) -> str:
    """What the user wrote, quoted, on one line and no longer than a sentence can bear."""
    return repr(text if len(text) <= _LONGEST_ECHO else text[:_LONGEST_ECHO] + "…")
