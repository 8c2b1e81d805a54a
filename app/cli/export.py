"""`outrider export`: a run or a sweep as CSV, clean JSON Lines or HTML, or a configuration for another engine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.cli.errors import Exit, UsageError, say, write_output
from app.cli.parsing import (
    SAMPLING,
    add_command,
    add_settings,
    choose_models,
    flag_of,
    method_options,
    option,
    positive_whole_number,
    refuse_to_replace,
    sampling_of,
    switch,
)
from core.runlog.reading import RunLog, read_run_log
from core.settings import RunRequest


def add_parser(commands: Any) -> None:
    """Register `export` with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "export",
        execute,
        help="turn a run log into CSV, HTML, clean JSONL, or a configuration for vLLM and others",
        description="Read a run log or a sweep's file, complete or truncated, and convert it. The new file "
        "is written completely or not at all.",
        examples=(
            "outrider export run.jsonl --html report.html",
            "outrider export run.jsonl --config vllm",
            "outrider export --config all --target TARGET --draft DRAFT -k 4",
            "outrider export run.jsonl --config vllm --serve served --gpus 2",
        ),
    )
    text = "a run log that `outrider run --log` or the window wrote, or a sweep's file; several run logs make one "
    option(parser, "LOG", f"{text}report that compares them", nargs="*")
    form = parser.add_mutually_exclusive_group(required=True)
    option(form, "--csv FILE", "one row per step, or per run of a sweep; lists joined by spaces")
    option(form, "--jsonl FILE", "the log without damaged lines")
    option(form, "--html FILE", "a report in one file, with the coloured text and the plots")
    names = "vllm, transformers, sglang, llama.cpp, mlx, or all"
    option(form, "--config NAME", f"print how to serve this pair and K elsewhere: {names}")
    option(parser, "--serve FOLDER", "with --config vllm or sglang: also write a script and a compose file")
    option(parser, "--gpus N", "for --serve: GPUs of each machine (1)", positive_whole_number)
    option(parser, "--machines N", "for --serve: machines that serve together (1)", positive_whole_number)
    switch(parser, "--force", "replace an existing file")
    group = parser.add_argument_group("settings for --config; with a run log, only -k")
    option(group, "--target REF", "the model to sample from")
    option(group, "--draft REF", "the model that drafts")
    option(group, "--method NAME", "draft-model or prompt-lookup (default: as in outrider run)")
    option(group, "-k --k N", "tokens to draft (default: the log's, else 4)", positive_whole_number)
    add_settings(group, *SAMPLING, **dict.fromkeys(SAMPLING))


def execute(args: argparse.Namespace) -> int:
    """Export, and return the exit code."""
    if args.config is not None:
        _print_configurations(args, _read(_only(args.log, "--config")) if args.log else None)
        return Exit.DONE
    if given := _given(args, "k", "serve", "gpus", "machines"):
        raise UsageError(f"{given} only works with --config.")
    from core.experiments.sweep_file import read_sweep
    from core.export import files
    from core.runlog.replay import damage_note

    form, target = next((form, path) for form in ("csv", "jsonl", "html") if (path := getattr(args, form)) is not None)
    if target == "-":
        raise UsageError(f"An export is a file: name one for --{form} in place of -.")
    if form != "jsonl":
        refuse_to_replace(f"--{form}", target, args.log)
    if form != "html":
        _only(args.log, f"--{form}")
    if not args.log:
        raise UsageError("Name the run log to export; see outrider export --help.")
    how = {"in_place": True} if _is_own(target, args.log, force=args.force) else {}
    with files.replacing(target):
        is_sweep = len(args.log) == 1 and files.is_sweep(args.log[0])
        logs = [_read(path, read_sweep if is_sweep else read_run_log) for path in args.log]
        if how and logs[0].has_more:
            raise UsageError(f"{target!r} would lose what follows; name another file to write.")
        if form == "csv" and not is_sweep and (note := damage_note(logs[0])):
            say(note)  # A report says it itself.
        getattr(files, f"export_{'sweep_' if is_sweep else ''}{form}")(target, *logs, **how)
    return Exit.DONE


def _given(args: argparse.Namespace, *more: str) -> str:
    """The first given flag that describes a pair; empty if there is none."""
    names = ("target", "draft", "method", *SAMPLING, *more)
    return next((flag_of(name) for name in names if getattr(args, name) is not None), "")


def _print_configurations(args: argparse.Namespace, log: RunLog | None) -> None:
    from core.export.configurations import PROJECTS, configuration, get_project
    from core.export.serving import serving_files, write_serving_files

    if args.serve is None and (args.gpus or args.machines):
        raise UsageError("--gpus and --machines describe what --serve writes; add --serve FOLDER.")
    if args.serve is not None and args.config == "all":
        raise UsageError("--serve writes the files of one engine: use --config vllm or --config sglang.")
    projects = list(PROJECTS.values()) if args.config == "all" else [get_project(args.config)]
    choice = _choice(args, log)
    found = [configuration(choice, project) for project in projects]
    if len(found) == 1 and found[0].problem:
        raise UsageError(found[0].problem)
    if choice.verdict:
        say(f"{choice.verdict} {choice.measured}")
    if args.serve is not None:
        files = serving_files(choice, projects[0], gpus=args.gpus or 1, machines=args.machines or 1)
        write_serving_files(Path(args.serve), files, force=args.force)
        say(
            f"Wrote {' and '.join(files)} to {args.serve}. Start with: sh {os.path.join(args.serve, next(iter(files)))}"
        )
    write_output("\n".join(one.text for one in found))


def _choice(args: argparse.Namespace, log: RunLog | None) -> Any:
    from core.export.choice import MOVED, choice_from_log, choice_from_request

    if log is None:
        method, target, draft = choose_models(args.method, args.target, args.draft)
        k = 4 if args.k is None else args.k
        sampling = sampling_of(args)
        options = method_options(method, args)
        return choice_from_request(
            RunRequest(target, draft, "none", method.name, options, num_draft_tokens=k, sampling=sampling)
        )
    if flag := _given(args):
        raise UsageError(f"The run log sets {flag}; leave out the log, or the flag.")
    choice = choice_from_log(log, may_be_plain=args.k is not None)
    if args.k is None or args.k == choice.k:
        return choice
    request = replace(choice.request, num_draft_tokens=args.k)
    note = f"K differs from the run's. {''.join(choice.k_note.partition(MOVED)[1:])}".strip()
    return replace(choice, request=request, k_note=note, measured_speedup=None)


def _only(logs: list[str], flag: str) -> str:
    if len(logs) > 1:
        raise UsageError(f"{flag} takes one run log, not {len(logs)}; --html takes several.")
    return logs[0] if logs else ""


def _read(path: str, read: Callable[[str], Any] = read_run_log) -> Any:
    log = read(path)
    for problem in log.problems:
        say(problem)
    return log


def _is_own(target: str, logs: list[str], *, force: bool) -> bool:
    """Whether a log replaces itself, as only clean JSON Lines may.

    Raises:
        UsageError: an existing file would be replaced, and not by --force.
    """
    if not os.path.isfile(target):  # Writing to a device or pipe overwrites nothing.
        return False
    is_log = any(os.path.exists(path) and os.path.samefile(path, target) for path in logs)
    if not is_log and not force:
        raise UsageError(f"{target!r} already exists; add --force to replace it, or choose another name.")
    return is_log
