"""`outrider export`: a run or a sweep as CSV, clean JSON Lines or HTML, or a configuration for another engine."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import Any

from app.cli.errors import Exit, UsageError, say, writing_output
from app.cli.parsing import number, whole_number
from core.runlog.log import RunLog, read_run_log

SETTINGS = {
    "target": "--target",
    "draft": "--draft",
    "method": "--method",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
}


def add_parser(commands: Any) -> None:
    """Register `export` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "export",
        help="turn a run log into CSV, HTML, clean JSONL, or a configuration for vLLM and others",
        description="Read a run log or a sweep's file, complete or cut off, and write it in another form. The new file "
        "is written completely or not at all.",
        epilog="outrider export RUN.jsonl --html report.html; outrider export RUN.jsonl --config vllm; "
        "outrider export --config all --target REF --draft REF -k 4",
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="*",
        help="a run log that `outrider run --log` or the window wrote, or a sweep's file; several run logs make one "
        "report that compares them",
    )
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--csv", metavar="FILE", help="one row per step, or per run of a sweep; lists joined by spaces")
    form.add_argument("--jsonl", metavar="FILE", help="the log without damaged lines")
    form.add_argument("--html", metavar="FILE", help="a report in one file, with the coloured text and the plots")
    form.add_argument(
        "--config",
        metavar="NAME",
        help="print what serves this pair and K elsewhere: vllm, transformers, sglang, llama.cpp, mlx, or all",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    group = parser.add_argument_group("settings of --config without a run log")
    group.add_argument("--target", metavar="REF", help="the model to sample from")
    group.add_argument("--draft", metavar="REF", help="the model that drafts")
    group.add_argument("--method", metavar="NAME", help="draft-model or prompt-lookup (default: as in outrider run)")
    k_help = "tokens to draft (default: the log's, else 4)"
    group.add_argument("-k", "--k", metavar="N", type=whole_number, help=k_help)
    group.add_argument("--temperature", metavar="T", type=number, help="default: 1")
    group.add_argument("--top-k", metavar="N", type=whole_number, help="default: 0, off")
    group.add_argument("--top-p", metavar="P", type=number, help="default: 1, off")
    group.add_argument("--min-p", metavar="P", type=number, help="default: 0, off")


def execute(args: argparse.Namespace) -> int:
    """Export, and return the exit code.

    Raises:
        OutriderError: a log can't be read, the file can't be written or already exists, or the arguments don't fit.
    """
    if args.config is not None:
        _print_configurations(args, _read(_only(args.logs, "--config")) if args.logs else None)
        return Exit.DONE
    if given := _given(args, ("k", "-k")):
        raise UsageError(f"{given} only goes with --config; a run log has its own settings.")
    from core.experiments.sweep_file import read_sweep
    from core.export import files

    form, target = next((form, path) for form in ("csv", "jsonl", "html") if (path := getattr(args, form)) is not None)
    if form != "html":
        _only(args.logs, f"--{form}")
    if not args.logs:
        raise UsageError("Name the run log to export; see outrider export --help.")
    _check_place(target, args.logs, is_mending=form == "jsonl", force=args.force)
    if len(args.logs) == 1 and files.is_sweep(args.logs[0]):
        sweep = read_sweep(args.logs[0])
        for problem in sweep.problems:
            say(problem)
        getattr(files, f"export_sweep_{form}")(target, sweep)
    else:
        getattr(files, f"export_{form}")(target, *map(_read, args.logs))
    return Exit.DONE


def _given(args: argparse.Namespace, *more: tuple[str, str]) -> str:
    """The first given flag that describes a pair; empty if there is none."""
    return next((flag for name, flag in (*SETTINGS.items(), *more) if getattr(args, name) is not None), "")


def _print_configurations(args: argparse.Namespace, log: RunLog | None) -> None:
    from core.export.configurations import PROJECTS, configuration, get_project

    projects = list(PROJECTS.values()) if args.config == "all" else [get_project(args.config)]
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
    from app.cli.parsing import choose_models
    from core.export.choice import choice_from_log, choice_from_request
    from core.settings import RunRequest, SamplingParams

    if log is None:
        method, target, draft = choose_models(args.method, args.target, args.draft)
        given = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        sampling = SamplingParams(**{name: value for name, value in given.items() if value is not None})
        k = 4 if args.k is None else args.k
        request = RunRequest(target, draft, "none", method.name, num_draft_tokens=k, sampling=sampling)
        return choice_from_request(request)
    if flag := _given(args):
        raise UsageError(f"The run log sets {flag}; leave out the log, or the flag.")
    choice = choice_from_log(log)
    if args.k is None or args.k == choice.k:
        return choice
    request = replace(choice.request, num_draft_tokens=args.k)
    return replace(choice, request=request, k_note="K is not the run's.", measured_speedup=None)


def _only(logs: list[str], flag: str) -> str:
    if len(logs) > 1:
        raise UsageError(f"{flag} takes one run log, not {len(logs)}; --html takes several.")
    return logs[0] if logs else ""


def _read(path: str) -> RunLog:
    log = read_run_log(path)
    for problem in log.problems:
        say(problem)
    return log


def _check_place(target: str, logs: list[str], *, is_mending: bool, force: bool) -> None:
    """Refuse to overwrite a file without --force. Only clean JSON Lines may replace their own log."""
    if not os.path.isfile(target):  # Writing to a device or pipe overwrites nothing.
        return
    is_log = any(os.path.exists(path) and os.path.samefile(path, target) for path in logs)
    if is_log and not is_mending:
        raise UsageError(f"{target!r} is the run log itself; choose another name.")
    if not is_log and not force:
        raise UsageError(f"{target!r} already exists; add --force to replace it, or choose another name.")
