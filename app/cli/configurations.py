"""The part of `outrider export` that prints configurations for other engines."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from app.cli.errors import UsageError, say, writing_output
from app.cli.parsing import number, whole_number
from core.trace import RunLog

ALL = "all"
_SETTINGS = {
    "target": "--target",
    "draft": "--draft",
    "method": "--method",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
}


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The flags that stand in for a run log, named as those of `outrider run`."""
    group = parser.add_argument_group("settings of --config, where no run log is named")
    group.add_argument("--target", metavar="REF", help="the model to sample from")
    group.add_argument("--draft", metavar="REF", help="the model that drafts")
    group.add_argument("--method", metavar="NAME", help="draft-model or prompt-lookup (default: as in outrider run)")
    group.add_argument(
        "-k",
        "--k",
        metavar="N",
        type=whole_number("-k"),
        help="tokens to draft (default: the log's, else 4)",
    )
    group.add_argument("--temperature", metavar="T", type=number("--temperature"), help="default: 1")
    group.add_argument("--top-k", metavar="N", type=whole_number("--top-k"), help="default: 0, off")
    group.add_argument("--top-p", metavar="P", type=number("--top-p"), help="default: 1, off")
    group.add_argument("--min-p", metavar="P", type=number("--min-p"), help="default: 0, off")


def refuse_settings(args: argparse.Namespace) -> None:
    """Raises:
    UsageError: a setting was given, and nothing would be made of it.
    """
    given = [flag for name, flag in _SETTINGS.items() if getattr(args, name) is not None]
    given += [] if args.k is None else ["-k"]
    if given:
        raise UsageError(f"{given[0]} goes with --config only; a run log has its own settings.")


def print_configurations(args: argparse.Namespace, log: RunLog | None) -> None:
    """Print one project's configuration, or all.

    Raises:
        SettingsError: there is no such project or method, or a value is out of range.
        UsageError: the project can't do it, or the arguments don't go together.
    """
    from core.production import PROJECTS, configuration, get_project

    projects = list(PROJECTS.values()) if args.config == ALL else [get_project(args.config)]
    choice = _choice(args, log)
    found = [configuration(choice, project) for project in projects]
    if len(found) == 1 and found[0].problem:
        raise UsageError(found[0].problem)
    if choice.verdict:
        say(choice.verdict)
    with writing_output():
        sys.stdout.write("\n".join(one.text for one in found))
        sys.stdout.flush()


def _choice(args: argparse.Namespace, log: RunLog | None) -> Any:
    from app.cli.run_arguments import choose_models
    from core.production import choice_from_log, choice_from_request
    from core.types import RunRequest, SamplingParams

    if log is None:
        method, target, draft = choose_models(args.method, args.target, args.draft)
        given = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        sampling = SamplingParams(**{name: value for name, value in given.items() if value is not None})
        k = 4 if args.k is None else args.k
        request = RunRequest(target, draft, "none", method.name, num_draft_tokens=k, sampling=sampling)
        return choice_from_request(request)
    given_flags = [flag for name, flag in _SETTINGS.items() if getattr(args, name) is not None]
    if given_flags:
        raise UsageError(f"{given_flags[0]} is the run log's to say; leave the log out, or the flag.")
    choice = choice_from_log(log)
    if args.k is None or args.k == choice.num_draft_tokens:
        return choice
    # What was measured was measured with another K.
    RunRequest(choice.target, choice.draft, "none", num_draft_tokens=args.k)  # Refuses what is out of range.
    return replace(choice, num_draft_tokens=args.k, k_note="K is not the run's.", measured_speedup=None)
