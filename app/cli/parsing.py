"""Arguments that several commands take, in the same words."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from app.cli.errors import UsageError
from core.draft_shape import DraftLength, parse_draft_length, parse_draft_lengths
from core.errors import SettingsError
from core.types import Device, DType

T = TypeVar("T")

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


def whole_number(flag: str) -> Callable[[str], int]:
    """The same for whole numbers."""

    def parse(text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"{flag} must be a whole number, not {echo(text)}.") from None

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


def draft_length(flag: str) -> Callable[[str], DraftLength]:
    """A type for one K: a whole number, auto or adaptive."""
    return lambda text: _or_usage(parse_draft_length, text, flag)


def draft_lengths(flag: str) -> Callable[[str], tuple[DraftLength, ...]]:
    """A type for several K, such as 1-8,auto,adaptive."""
    return lambda text: _or_usage(parse_draft_lengths, text, flag)


def _or_usage(parse: Callable[[str, str], T], text: str, flag: str) -> T:
    # argparse takes a ValueError, which a SettingsError is, for its own, and hides the sentence.
    try:
        return parse(text, flag)
    except SettingsError as error:
        raise UsageError(str(error)) from None


def echo(text: str) -> str:
    """What the user wrote, quoted, on one line and no longer than a sentence can bear."""
    return repr(text if len(text) <= _LONGEST_ECHO else text[:_LONGEST_ECHO] + "…")


EXIT_CODES = "Exit codes: 0 done, 1 failed while running, 2 bad usage or input, 130 stopped."


def add_place(group: Any) -> None:
    """Where models run, and in which precision."""
    group.add_argument("--device", choices=[*map(str, Device)], default="auto", help="where to run (default: auto)")
    group.add_argument("--dtype", choices=[*map(str, DType)], default="auto", help="precision (default: by device)")


def add_template(group: Any, raw_help: str = "don't (default: apply it if there is one)") -> None:
    """Whether the chat template is applied; None where nothing is said."""
    template = group.add_mutually_exclusive_group()
    template.add_argument("--chat", dest="chat", action="store_true", default=None, help="apply the chat template")
    template.add_argument("--raw", dest="chat", action="store_false", help=raw_help)


def add_count(group: Any, flag: str, default: int | None, text: str) -> None:
    """A whole number above 0; without a default, `text` tells what is done where it is not given."""
    said = text if default is None else f"{text} (default: {default})"
    group.add_argument(flag, metavar="N", type=positive_whole_number(flag), default=default, help=said)
