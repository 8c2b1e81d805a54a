"""`outrider bench`: how fast this engine is, beside the others, on this machine."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.cli.arguments import EXIT_CODES
from app.cli.bench.arguments import add_arguments, build_settings, check_out
from app.cli.bench.progress import open_progress
from app.cli.engine import quiet_libraries
from app.cli.errors import Exit
from core.files import write_atomically
from core.threads import limit_spinning, num_processors

if TYPE_CHECKING:
    from core.bench.record import Report
    from core.bench.types import BenchSettings


def add_parser(commands: Any) -> None:
    """Register `bench` with the subparsers of `outrider`."""
    parser = commands.add_parser(
        "bench",
        help="compare this engine's speed with others'",
        description=(
            "Run this engine, transformers and, where it is installed, flashspec in turn on the same prompts, seeds, "
            "precision, K and number of tokens, and print medians and ratios with their spread. With no flags, on "
            "the embedded pair."
        ),
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.set_defaults(execute=execute)
    add_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Measure, print, and return the exit code.

    Raises:
        OutriderError: bad input, or our own engine can't run it.
    """
    settings = build_settings(args)
    if args.out is not None:
        check_out(args.out)
    limit_spinning()
    quiet_libraries()
    if args.ui:
        from app.cli.bench.ui import execute_ui

        return int(execute_ui(settings, args))
    from app.cli.bench.table import write_report
    from core.bench.record import to_json

    report = run_bench(settings, prompts_file=args.prompts, measures_memory=args.memory)
    if args.out is not None:
        write_atomically(args.out, to_json(report))
    write_report(report)
    return Exit.DONE


def run_bench(settings: BenchSettings, *, prompts_file: str | None, measures_memory: bool) -> Report:
    """Load, measure, and put the figures together.

    Raises:
        OutriderError: as `execute`.
    """
    from pathlib import Path

    from core.bench.lineup import line_up
    from core.bench.loading import encode_prompts, load_pair
    from core.bench.margins import margin_of
    from core.bench.measure import measure
    from core.bench.memory import Memory, memory_of
    from core.bench.record import Report, config_of, environment_of, now
    from core.bench.results import rows, with_memory
    from core.prompt_suites import default_prompts, read_prompts

    started_at = now()
    asked = None if prompts_file is None else read_prompts(Path(prompts_file))
    with open_progress() as progress:
        pair = load_pair(settings, progress.stage)
        settings = with_threads(settings)
        is_chat = bool(getattr(pair.target.tokenizer, "chat_template", None))
        prompts = encode_prompts(pair.target, asked or default_prompts(is_chat=is_chat))
        contenders, absent = line_up(pair, settings)
        table = []
        for comparison in measure(pair, contenders, prompts, settings, progress.advance):
            margin = margin_of(pair, prompts, comparison.reference) if comparison.reference else None
            table += rows(comparison, prompts, settings, margin)
            absent += [absence for absence in comparison.failed if absence not in absent]
        if measures_memory:
            taken: dict[str, Memory | None] = {}
            for name in dict.fromkeys(row.name for row in table):
                progress.stage(f"Measuring the memory of {name}")
                taken[name] = memory_of(name, settings, prompts[0].ids)
            table = [with_memory(row, taken[row.name]) for row in table]
    return Report(started_at, config_of(settings, pair, prompts), environment_of(pair, settings), table, absent)


def with_threads(settings: BenchSettings) -> BenchSettings:
    """The number of threads that everyone gets: the one asked for, else the environment's, else one a core."""
    import torch

    if settings.threads is not None:
        return settings
    return replace(settings, threads=torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else num_processors())
