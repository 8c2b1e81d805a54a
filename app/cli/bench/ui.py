"""`outrider bench --ui`: what the window costs a run, and how long its thread is ever busy."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from app.cli.bench.progress import open_progress
from app.cli.errors import Exit, UsageError, say, writing_output
from app.cli.terminal import open_console
from core.bench.statistics import median_interval
from core.bench.types import BenchSettings
from core.files import write_atomically
from core.prompt_suites import default_prompts, read_prompts
from core.types import RunRequest, SamplingParams

if TYPE_CHECKING:
    from app.heartbeat import Stalls
    from app.ui_bench import LiveFigures
    from app.ui_long import LongFigures
    from core.bench.statistics import Spread

WANTED_RATIO = 0.97
WANTED_STALL_MS = 50.0


def check_arguments(args: argparse.Namespace) -> None:
    """Raises:
    UsageError: a flag that means nothing to the window.
    """
    for flag, value in {"--draft-layers": args.draft_layers, "--only": args.only, "--memory": args.memory}.items():
        if value:
            raise UsageError(f"{flag} compares engines, and --ui the window with none; leave one of the two out.")


def execute_ui(settings: BenchSettings, args: argparse.Namespace) -> int:
    """Measure, print, and return the exit code.

    Raises:
        OutriderError: bad input, or a run that fails.
    """
    check_arguments(args)
    requests = build_requests(settings, args.prompts)
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    if settings.threads is not None:
        # What a session takes for the user's own choice, and leaves alone.
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    try:
        from app.ui_visits import bench_visits
    except ImportError as error:
        say(f"PySide6, which draws the window, can't be loaded ({error}); install Outrider again.")
        return Exit.FAILED
    with open_progress() as progress:
        live, long = bench_visits(requests, settings.rounds, progress.advance)
    if args.out is not None:
        document = {
            "schema": "outrider.bench/1",
            "config": asdict(settings) | {"temperatures": [settings.temperatures[-1]]},
            "environment": live.environment,
            "window": {"runs": _without_environment(live), "long_transcript": asdict(long)},
        }
        write_atomically(args.out, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    write_figures(settings, live, long)
    return Exit.DONE


def _without_environment(live: LiveFigures) -> dict[str, Any]:
    return {name: value for name, value in asdict(live).items() if name != "environment"}


def build_requests(settings: BenchSettings, prompts_file: str | None) -> list[RunRequest]:
    """A run for each prompt; of several temperatures the last counts."""
    prompts = default_prompts(is_chat=False) if prompts_file is None else read_prompts(Path(prompts_file))
    return [
        RunRequest(
            target=settings.target,
            draft=settings.draft,
            prompt=prompt.text,
            method="draft-model" if settings.draft is not None else "prompt-lookup",
            num_draft_tokens=settings.num_draft_tokens,
            sampling=SamplingParams(temperature=settings.temperatures[-1]),
            seed=settings.seed,
            max_new_tokens=settings.max_new_tokens,
            device=settings.device,
            dtype=settings.dtype,
        )
        for prompt in prompts
    ]


def write_figures(settings: BenchSettings, live: LiveFigures, long: LongFigures) -> None:
    """Print what was measured, each figure with what it means.

    Raises:
        OutputClosed, OutputError: standard output can't be written.
    """
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for name, value, meaning in _rows(settings, live, long):
        table.add_row(name, value, meaning)
    with writing_output():
        console = open_console(pipe_width=120)
        if console is None:
            return
        place = live.environment
        draft = settings.draft or "prompt lookup"
        console.print(Text(f"{settings.target}, drafted by {draft}, K = {settings.num_draft_tokens}"))
        torch, threads = place.get("torch"), place.get("threads")
        console.print(Text(f"{place.get('device_name')}, torch {torch}, number of threads {threads}"))
        console.print(table)
        sys.stdout.flush()


def _rows(settings: BenchSettings, live: LiveFigures, long: LongFigures) -> list[tuple[str, str, str]]:
    slowest = max(long.opened, key=lambda title: long.opened[title].longest_ms)
    text = f"{long.num_tokens:,} tokens in {long.num_steps:,} steps"
    return [
        ("in the window", f"{live.window.median:.1f} tokens/s", "median"),
        (
            "in the terminal",
            f"{live.terminal.median:.1f} tokens/s",
            "the same runs of outrider run in a process of their own, in turn: with text, evidence and log",
        ),
        ("window / terminal", f"{live.terminal_ratio.median:.3f}", ratio_text(live.terminal_ratio)),
        (
            "by the wall clock",
            f"{live.terminal_wall_ratio.median:.3f}",
            "to the last token, with what goes on between steps: writing the log, and waiting while the window draws",
        ),
        ("engine alone", f"{live.headless.median:.1f} tokens/s", "the same runs, of which nothing is shown or kept"),
        (
            "window / alone",
            f"{live.ratio.median:.3f}",
            f"by the wall clock {live.wall_ratio.median:.3f}",
        ),
        (
            "stall, start",
            _ms(live.started),
            f"first picture, the engine's import, a first run; {_stall_text(live.started)}",
        ),
        ("stall in a run", _ms(live.stalls), _stall_text(live.stalls)),
        ("memory growth", f"{live.memory_growth_mb:.1f} MB", "after the last run in the window, against the first"),
        ("stall, long text", _ms(long.shown), f"{text}, as they come; {_stall_text(long.shown)}"),
        (
            "memory, long text",
            f"{long.memory_mb:.0f} MB",
            f"{1e3 * long.memory_mb / long.num_tokens:.1f} kB a token of that text, with evidence and baseline",
        ),
        ("stall, scrolled", _ms(long.scrolled), f"from its end to its start; {_stall_text(long.scrolled)}"),
        ("stall, redrawn", _ms(long.redrawn), f"all at once, with rejected drafts; {_stall_text(long.redrawn)}"),
        ("stall, new look", _ms(long.dressed), f"theme, size of the text, and back; {_stall_text(long.dressed)}"),
        (
            "stall, opened",
            _ms(long.opened[slowest]),
            f"{len(long.opened)} pages and windows, each for the first time; slowest: {slowest}; "
            f"{_stall_text(long.opened[slowest])}",
        ),
        (
            "stall, all new",
            _ms(long.all_dressed),
            f"theme and size of the text, with all these windows open; {_stall_text(long.all_dressed)}",
        ),
        ("stall, kept run", _ms(long.kept), f"the same run, opened from its log; {_stall_text(long.kept)}"),
        ("stall, inspected", _ms(long.inspected), f"one token after the other; {_stall_text(long.inspected)}"),
        ("stall, scrubbed", _ms(long.scrubbed), f"back to any step; {_stall_text(long.scrubbed)}"),
    ]


def ratio_text(ratio: Spread) -> str:
    """How sure a ratio to the terminal is, and whether it is the one that is wanted."""
    low, high = median_interval(ratio.values)
    sure = f"{low:.3f}–{high:.3f} with 95 % confidence, {len(ratio.values)} rounds in several processes"
    if ratio.median < WANTED_RATIO <= high:
        return f"{sure}; too unsure to tell it from what is wanted, at least {WANTED_RATIO}"
    return f"{sure}; {_judged(ratio.median >= WANTED_RATIO)}, at least {WANTED_RATIO}"


def _ms(stalls: Stalls) -> str:
    return f"{stalls.longest_ms:.0f} ms"


def _stall_text(stalls: Stalls) -> str:
    judged = f"{_judged(stalls.longest_ms <= WANTED_STALL_MS)}, at most {WANTED_STALL_MS:.0f} ms"
    halted = ""
    if round(stalls.with_halts_ms) > round(stalls.longest_ms):
        halted = f"; {stalls.with_halts_ms:.0f} ms with a halt of the machine itself"
    return f"longest; 99th percentile {stalls.p99_ms:.1f} ms; {judged}{halted}"


def _judged(is_met: bool) -> str:
    return "as wanted" if is_met else "not as wanted"
