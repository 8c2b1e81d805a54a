"""`outrider models`: what is here, getting more, what a model is, removing one, and whether two can work together."""

from __future__ import annotations

from typing import Any

from app.cli.models import checking, getting, listing, removing, showing

_ACTIONS = (listing, getting, showing, removing, checking)


def add_parser(commands: Any) -> None:
    """Register `models` and its actions with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "models",
        help="list, get, describe, remove and compare models",
        description="Models: what is here, getting more, and whether two can work together.",
        epilog="With HF_HUB_OFFLINE=1 in the environment nothing touches the network; only `get` ever does.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for action in _ACTIONS:
        action.add_parser(actions)
