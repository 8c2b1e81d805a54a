"""`outrider export`: a run or a sweep as CSV, clean JSONL or HTML, or what serves a run's pair elsewhere."""

from __future__ import annotations

import argparse
import os
from typing import Any

from app.cli.configurations import add_settings, print_configurations, refuse_settings
from app.cli.errors import Exit, UsageError, say
from core.trace import RunLog, export_csv, export_jsonl, read_run_log


def add_parser(commands: Any) -> None:
    """Register `export` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "export",
        help="turn a run log into CSV, HTML, clean JSONL, or a configuration for vLLM and others",
        description="Read a run log or a sweep's file, cut off or whole, and write it in another form; the file is "
        "whole or not there.",
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
    form.add_argument("--csv", metavar="FILE", help="one row a step, or a run of a sweep; lists are joined by spaces")
    form.add_argument("--jsonl", metavar="FILE", help="the log's whole lines")
    form.add_argument("--html", metavar="FILE", help="a report in one file, with the coloured text and the plots")
    form.add_argument(
        "--config",
        metavar="NAME",
        help="print what serves this pair and K elsewhere: vllm, transformers, sglang, llama.cpp, mlx, or all",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is there already")
    add_settings(parser)


def execute(args: argparse.Namespace) -> int:
    """Export, and return the exit code.

    Raises:
        OutriderError: a log can't be read, the file can't be written or is there already, or the arguments don't fit.
    """
    if args.config is not None:
        print_configurations(args, _read(_only(args.logs, "--config")) if args.logs else None)
        return Exit.DONE
    refuse_settings(args)
    target = next(path for path in (args.csv, args.jsonl, args.html) if path is not None)
    if args.html is None:
        _only(args.logs, "--csv" if args.csv is not None else "--jsonl")
    if not args.logs:
        raise UsageError("Name the run log to export; see outrider export --help.")
    _check_place(target, args.logs, is_mending=args.jsonl is not None, force=args.force)
    if len(args.logs) == 1 and _is_sweep(args.logs[0]):
        _export_sweep(args, target)
        return Exit.DONE
    logs = [_read(path) for path in args.logs]
    if args.csv is not None:
        export_csv(target, logs[0])
    elif args.jsonl is not None:
        export_jsonl(target, logs[0])
    else:
        from core.report.writing import export_html

        export_html(target, *logs)
    return Exit.DONE


def _is_sweep(path: str) -> bool:
    from core.report.sources import is_sweep

    return is_sweep(path)


def _export_sweep(args: argparse.Namespace, target: str) -> None:
    from core.report.sweep_files import export_sweep_csv, export_sweep_html, export_sweep_jsonl
    from core.sweep.log import read_sweep

    sweep = read_sweep(args.logs[0])
    for problem in sweep.problems:
        say(problem)
    write = export_sweep_html if args.html is not None else export_sweep_csv
    (export_sweep_jsonl if args.jsonl is not None else write)(target, sweep)


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
    """Refuse to write over what is there. A log is mended in place, but no other form takes the place of its log."""
    if not os.path.isfile(target):  # A device or a pipe is no file that could be lost.
        return
    is_log = any(os.path.exists(path) and os.path.samefile(path, target) for path in logs)
    if is_log and not is_mending:
        raise UsageError(f"{target!r} is the run log itself; choose another name.")
    if not is_log and not force:
        raise UsageError(f"{target!r} is there already; add --force to replace it, or choose another name.")
