"""`outrider bench`: compare the speed of this engine with others on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.cli.console import (
    NONE,
    Progress,
    check_out,
    figure_table,
    figure_text,
    prepare_libraries,
    printing,
    spread_text,
)
from app.cli.errors import Exit, UsageError, stop_on_interrupt
from app.cli.parsing import (
    Listing,
    add_command,
    add_engine,
    add_models,
    add_settings,
    common_fields,
    default_draft,
    names,
    numbers,
    option,
    positive_whole_number,
    refuse_without_engine,
    switch,
    whole_number,
)
from app.cli.server_load import measure
from core.experiments.bench_plan import LLAMA_CPP, PLAIN, BenchSettings, default_names, known_names, takes_draft
from core.files import write_atomically
from core.models.catalogue import DEFAULT_TARGET
from core.runners.threads import num_processors
from core.settings import LOSSY, Coupling, SamplingParams, is_lossy
from core.text import count_text

DEFAULT_K = 4
Row = dict[str, Any]
"""A record of `core.experiments.bench`."""

_LEGEND = (
    "Medians over the rounds, quartiles in brackets; ratios are taken within each round. tokens/s: all new tokens / "
    "wall clock time, prefill included. tokens/forward: per forward of the target. overhead: a step / (K draft "
    "forwards + one scoring forward, timed alone) − 1; none for trees. bare c: a forward of the draft / one of the "
    "target, timed alone."
)
_MEMORY = (
    "peak memory: of a separate process, without Python and the libraries. needed: both models' weights, int8 copies "
    "included, and both caches."
)
_LLAMA_CPP = (
    "llama.cpp: the same weights, converted by its own script; its cache has its default precision, and it never "
    "emits an end-of-text token."
)
_BUSY = "The machine was busy: steps with the same work varied widely in time. Repeat the bench when it is idle."
_OTHERS = {"flashspec": "flashspec", "llama.cpp": "llama_cpp"}
_RANDOM = (
    "Above temperature 0 each engine has its own random stream: the texts differ, but their distributions should not."
)


def add_parser(commands: Any) -> None:
    """Register `bench` with the subparsers of `outrider`."""
    parser = add_command(
        commands,
        "bench",
        execute,
        help="compare this engine's speed with others",
        description="Run this engine, transformers, flashspec if installed, and llama.cpp if named, alternately on the "
        "same prompts, with the same seeds, precision, K and number of tokens, and print medians and ratios with their "
        "spread. Without flags the embedded pair runs.",
        examples=(
            "outrider bench --out bench.json",
            "outrider bench --target TARGET --draft DRAFT -k 4 --temperature 0,1 --rounds 7",
            "outrider bench --engine localhost:8000 --baseline-engine localhost:8001",
        ),
    )
    models = add_models(parser, method=False)
    add_engine(models, "measure this server one request at a time; outrider sweep measures it under load")
    option(models, "--baseline-engine URL", "the same model on a server that doesn't draft, to compare it with")
    text = "use the target's first N layers as the draft: realistic cost, poor acceptance"
    option(models, "--draft-layers N", text, positive_whole_number)
    contest = parser.add_argument_group("comparison")
    option(contest, "-k --k N", f"tokens to draft (default: {DEFAULT_K})", whole_number)
    option(
        contest,
        "--temperature T,…",
        "one or more temperatures, compared separately (default: 0,1; for a server: 0)",
        numbers,
        (),
        action=Listing,
    )
    text = "length of every run, even if the text would end earlier; a server's texts may end earlier"
    option(contest, "--max-new-tokens N", text, positive_whole_number, 64)
    option(contest, "--rounds N", "measured rounds, after a warm-up", positive_whole_number, 5)
    option(contest, "--seed N", "random seed", whole_number, 0)
    add_settings(contest, "verification")
    text = "processor threads for every engine (default: one per core)"
    option(contest, "--threads N", text, positive_whole_number)
    text = "one prompt per line, or JSON Lines with a text each (default: three of the presets)"
    option(contest, "--prompts FILE", text)
    known = ", ".join(known_names())
    text = f"contenders: {known}, or module:Class, with a method's options after a colon (default: all that can run)"
    option(contest, "--only --methods NAME,…", text, names, (), dest="only", action=Listing)
    text = "also run llama.cpp, on the same weights: the folder of a build, or its llama-server"
    option(contest, "--llama-cpp PATH", text)
    output = parser.add_argument_group("output")
    text = "also measure the peak memory of each, in a separate process"
    switch(output, "--memory", text)
    option(output, "--out FILE.json", "write all figures here")


def build_settings(args: argparse.Namespace) -> BenchSettings:
    """The benchmark that the arguments describe."""
    if args.draft is not None and args.draft_layers is not None:
        raise UsageError("--draft names a draft and --draft-layers makes one; leave out one of the two.")
    draft = args.draft
    if draft is None and args.draft_layers is None and any(map(takes_draft, args.only or default_names())):
        draft = default_draft(args.target)
    return BenchSettings(
        target=args.target or DEFAULT_TARGET,
        draft=draft,
        num_draft_tokens=DEFAULT_K if args.k is None else args.k,
        temperatures=args.temperature or (0.0, 1.0),
        **common_fields(args, "draft_layers", "max_new_tokens", "rounds", "threads", "only", "llama_cpp"),
    )


@stop_on_interrupt()
def execute(args: argparse.Namespace) -> int:
    """Measure, print, and return the exit code."""
    if args.engine is not None:
        return measure(_one_at_a_time(args), 3, ("draft_layers", "threads", "only", "llama_cpp", "memory"))
    refuse_without_engine(args)
    settings = build_settings(args)
    prepare_libraries()
    from core.experiments.bench import SCHEMA, to_json
    from core.experiments.llama_cpp import find_build

    check_out(args.out, SCHEMA)
    if settings.llama_cpp is not None:
        find_build(settings.llama_cpp)  # Before models are loaded.
    document = run_bench(settings, prompts_file=args.prompts, measures_memory=args.memory)
    if args.out is not None:
        write_atomically(args.out, to_json(document))
    write_results(document)
    return Exit.DONE


def _one_at_a_time(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments of a sweep over the load that has one load only."""
    run = {**dict.fromkeys(("num_prompts", "chat")), "coupling": Coupling.REJECTION, **asdict(SamplingParams())}
    load = {"concurrency": (1,), "repeats": args.rounds, "temperature": args.temperature or (0.0,), "restart": True}
    return argparse.Namespace(**{**run, **vars(args), **load, "prompts": args.prompts and [args.prompts]})


def run_bench(settings: BenchSettings, *, prompts_file: str | None, measures_memory: bool) -> Row:
    """Load the models, measure every contender, and return the document of all figures."""
    import torch

    from core.experiments.bench import Bench
    from core.experiments.bench_memory import memory_of
    from core.experiments.contenders import build_all, load_pair
    from core.experiments.prompt_suites import default_prompts, encoded, is_chat_model, read_prompts

    own_prompts = None if prompts_file is None else read_prompts(Path(prompts_file))
    if settings.threads is None:
        threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else num_processors()
        settings = replace(settings, threads=threads)
    with Progress() as progress:
        pair = load_pair(settings, progress.show)
        prompts = encoded(own_prompts or default_prompts(is_chat=is_chat_model(pair.target)), pair.target)
        bench = Bench(pair, prompts, settings, progress.show_left)
        contenders, bench.absent = build_all(pair, settings, progress.show)
        results = bench.results(contenders)
        for name in dict.fromkeys(row["name"] for row in results) if measures_memory else ():
            progress.show(f"Measuring the memory of {name}")
            memory = memory_of(name, settings, prompts[0].ids)
            for row in results:
                if row["name"] == name:
                    row.update(memory)
    return bench.document(results)


def write_results(document: Row) -> None:
    """Print a table for each temperature, what the figures mean, and any differences between the contenders."""
    config, place, results = document["config"], document["environment"], document["results"]
    prompts = ", ".join(f"{item['name']} ({item['num_tokens']} tokens)" for item in config["prompts"])
    others = "".join(f", {name} {place[key]}" for name, key in _OTHERS.items() if place[key])
    with printing() as show:
        draft = f"drafted by {config['draft']}" if config["draft"] else "without a draft model"
        show(f"{config['target']}, {draft}, K = {config['num_draft_tokens']}")
        show(
            f"{place['device_name']} ({config['device']}), {config['dtype']}, {count_text(place['threads'], 'thread')}"
        )
        show(f"Python {place['python']}, torch {place['torch']}, transformers {place['transformers']}{others}")
        lengths = f"{count_text(config['max_new_tokens'], 'new token')}, {count_text(config['rounds'], 'round')}"
        show(f"{lengths} after a warm-up round; {prompts}")
        for temperature in config["temperatures"]:
            rows = [row for row in results if row["temperature"] == temperature]
            if rows:
                show()
                show(f"Temperature {temperature:g}", "bold")
                kept = [column for column in _COLUMNS if any(column[1](row) != NONE for row in rows)]
                show(figure_table(rows, kept, lambda row: "" if row["is_ours"] else "dim"))
        show()
        show(_LEGEND)
        if document["was_busy"]:
            show(_BUSY, "bold")
        if any(row["peak_memory_mb"] is not None for row in results):
            show(_MEMORY)
        if is_lossy(config) and any(row["is_ours"] and row["name"] != PLAIN for row in results):
            show(LOSSY)
        elif any(temperature > 0 for temperature in config["temperatures"]):
            show(_RANDOM)
        if any(row["name"].startswith(LLAMA_CPP) for row in results):
            show(_LLAMA_CPP)
        for row in results:
            for note in row["notes"]:
                show(f"{row['title']}, temperature {row['temperature']:g}: {note}.")
        for absent in document["absent"]:
            is_partly = len(absent["temperatures"]) < len(config["temperatures"])
            at = f" at temperature {', '.join(f'{at:g}' for at in absent['temperatures'])}" if is_partly else ""
            show(f"Not run{at}: {absent['name']}. {absent['reason']}")


def _memory_ratio(row: Row) -> float | None:
    taken, needed = row["peak_memory_mb"], row["needed_memory_mb"]
    return taken / needed if taken is not None and needed else None


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("contender", lambda row: row["title"]),
    ("tokens/s", lambda row: spread_text(row["tokens_per_second"], ".1f")),
    ("× generate", lambda row: spread_text(row["ratio_to_generate"], ".2f")),
    ("× assisted", lambda row: spread_text(row["ratio_to_assisted"], ".2f")),
    ("tokens/forward", lambda row: figure_text(row["tokens_per_forward"], ".2f")),
    ("overhead", lambda row: spread_text(row["overhead"], ".1%")),
    ("bare c", lambda row: spread_text(row["cost_coefficient"], ".3f")),
    ("peak memory", lambda row: figure_text(row["peak_memory_mb"], ",.0f", " MB")),
    ("× needed", lambda row: figure_text(_memory_ratio(row), ".2f")),
)
