"""Arguments that several commands take, in the same words."""

from __future__ import annotations

from typing import Any

from app.cli.parsing import positive_whole_number
from core.types import Device, DType

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
