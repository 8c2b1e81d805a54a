"""Prove the engine on this machine's accelerator: `python -m tests.device_check --out FILE.md`, in at most 8 minutes.

It needs no network: the embedded pair and tiny random models run on CUDA or MPS. A check that fails is reported and the
others go on; one for which no time is left is skipped. `--device cpu` tries the command without an accelerator.
"""

import argparse
import contextlib
import functools
import io
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from app.cli.bench import write_results
from core.analysis.near_ties import lead, moved_margin, replay_margin
from core.controls import RunControls
from core.decode import autoregressive, speculative
from core.distill.pipeline import DistillSettings, Kind, distill
from core.distill.self_play import PlaySettings
from core.drafters.base import DrafterSetup
from core.drafters.registry import build_drafter
from core.errors import GenerationError, OutriderError, sentence_of
from core.experiments.bench import Bench
from core.experiments.bench_plan import BenchSettings, num_equal
from core.experiments.check import MOST_ROUNDING, check
from core.experiments.check_plan import CheckRequest, Verdict
from core.experiments.check_report import p_text, report_text
from core.experiments.contenders import build_all, load_pair
from core.experiments.prompt_suites import default_prompts, encoded
from core.files import write_atomically
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET
from core.models.devices import device_name, release_memory, resolve_device
from core.models.loading import load, prepare
from core.runners.base import prefill
from core.runners.graphed import CudaCapture, GraphPool, captures_graphs
from core.runners.threads import num_processors
from core.sampling import gumbel_noise
from core.session import Loaded, Session
from core.settings import Coupling, Device, RunRequest, SamplingParams
from core.training.train import TrainSettings
from core.types import Finished, PrefillDone, Step
from core.verify.on_device import verify_on_device
from tests.exactness import SIGNIFICANCE, joint_p_value, verify_step
from tests.fakes import Played, is_sentence, play, shared_tokenizer, tiny_module

NO_DEVICE = "This machine offers torch neither CUDA nor MPS, so nothing was checked; --device cpu tries the command."
CPU, F32, BF16 = torch.device("cpu"), torch.float32, torch.bfloat16
GREEDY = SamplingParams(0.0)
METHODS = ("draft-model", "prompt-lookup")
KS, ONE_KERNEL = (1, 4, 7, 16), 7
"""With CUDA graphs, plain decoding and blocks of up to the latter K run the same kernels, with the same rounding."""
LENGTHS = (20, 232, 247, 248, 256, 257, 600)
"""Of prompts. A graph reads 256 positions of the cache while 8 more rows fit into them, then 512. The longest prompt is
read in two chunks."""
NUM_TOKENS, NUM_BLOCKS = 24, 2_000
LEARNED = 0.1
"""Share of the target's tokens that a draft must know after a short training. An untrained one knows hardly any."""
CONTENDERS = ("generate", "assisted", "plain", "draft-model", "prompt-lookup", "auto")


class SkippedError(Exception):
    """A check does not apply here, or no time is left for it."""


Row = namedtuple("Row", ("check", "result", "figures", "seconds"))
"""A line of the page. result: passed, failed or skipped."""


@dataclass
class Machine:
    """The device, when the time is up, and the table that the bench leaves."""

    device: torch.device
    ends_at: float = float("inf")
    bench_table: str = ""

    @property
    def setting(self) -> Device:
        """The device as settings name it."""
        return Device(str(self.device))

    def look_at_the_clock(self, *_: object) -> None:
        if time.monotonic() > self.ends_at:
            raise SkippedError("the time was up")

    def in_time(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            self.look_at_the_clock()
            yield event

    def decode(self, loaded: Loaded, method: str, ids: Sequence[int], k: int = 4, **settings: Any) -> Iterator[Any]:
        """The events of a run; of plain decoding where no method is named."""
        settings = {"max_new_tokens": NUM_TOKENS, "sampling": GREEDY, **settings}
        if not method:
            return self.in_time(autoregressive(loaded.target, ids, **settings))
        capacity = len(ids) + NUM_TOKENS
        drafter = build_drafter(method, DrafterSetup(loaded.target, loaded.draft, capacity))
        return self.in_time(speculative(loaded.target, drafter, ids, num_draft_tokens=k, **settings))


@functools.cache
def tiny_pair(device: torch.device, dtype: torch.dtype) -> Loaded:
    """A random target, and a draft that often agrees with it."""
    modules = [tiny_module("llama", max_position_embeddings=640) for _ in range(2)]
    generator = torch.Generator().manual_seed(99)
    for parameter in modules[1].parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std(), alpha=0.15)
    models = [prepare("tiny", each.to(device, dtype), shared_tokenizer(), device, dtype) for each in modules]
    models[0].eos_ids = frozenset()
    return Loaded(*models, None)


@functools.cache
def embedded_pair(device: torch.device, dtype: torch.dtype | None) -> Loaded:
    """The pair that comes with Outrider; None is the device's own precision."""
    name = str(dtype).removeprefix("torch.") if dtype else "auto"
    return Loaded(*(load(ref, str(device), name) for ref in (DEFAULT_TARGET, DEFAULT_DRAFT)), None)


def prompt_of(loaded: Loaded, length: int) -> list[int]:
    """Ids that repeat, so that prompt lookup finds something."""
    ids = torch.randint(256, (37,), generator=torch.Generator().manual_seed(1)).tolist()
    if loaded.target.ref != "tiny":
        ids = [token for prompt in encoded(default_prompts(is_chat=False), loaded.target) for token in prompt.ids]
    return (ids * length)[:length]


def require(problems: Sequence[str]) -> None:
    """Fail with the first few problems, if there are any."""
    assert not problems, "; ".join([*problems[:3], *([f"and {len(problems) - 3} more"] if problems[3:] else [])])


# --- Checks: each returns its figures, or raises ----------------------------------------------------------------


def verification(machine: Machine) -> str:
    """All tokens of a block together, of known distributions, verified on the device; its Gumbel noise is the CPU's."""

    def on_device(tokens: torch.Tensor, parents: Sequence[int], *rest: torch.Tensor) -> Any:
        *rows, uniforms = rest
        here = (each.to(machine.device) for each in rows)
        return verify_on_device(tokens.to(machine.device), parents, *here, uniforms)[0]

    noise = (gumbel_noise(7, 1_000, 50_000, device).cpu() for device in (machine.device, CPU))
    assert torch.allclose(*noise, rtol=1e-6, atol=1e-6), "the Gumbel noise is not the CPU's"
    p_value = joint_p_value(verify_step(on_device), samples=2 * NUM_BLOCKS)
    figures = f"joint p = {p_text(p_value)} of {2 * NUM_BLOCKS:,} blocks"
    assert p_value >= SIGNIFICANCE, figures
    return figures


def distribution(machine: Machine, **settings: Any) -> str:
    """`outrider check` with the embedded pair, in the device's own precision."""
    run = RunRequest(DEFAULT_TARGET, DEFAULT_DRAFT, "-", device=machine.setting, **settings)
    prompts = tuple(default_prompts(is_chat=False))
    request = CheckRequest(run, prompts, num_samples=NUM_BLOCKS, num_tokens=NUM_TOKENS)
    with contextlib.closing(Session()) as session:
        *_, finished = machine.in_time(check(session, request, RunControls.from_request(run)))
    report = finished.report
    assert report.verdict is not Verdict.NOT_EXACT, report_text(report)
    found = report.distribution
    lowest = min((test.p_value for test in found.tests if test.p_value is not None), default=None)
    figures = f"lowest p of {len(found.tests)} tests {p_text(lowest)}, rounding {found.rounding:.2g} in total variation"
    return f"{report.verdict}, {report.dtype}, {found.num_blocks:,} blocks, {figures}"


def greedy(machine: Machine, pair_of: Callable[..., Loaded], lengths: Sequence[int]) -> str:
    """Speculative texts equal plain ones, which equal the CPU's in float32; rounding excuses nothing in one kernel."""
    cpu, equal, ties, problems = pair_of(CPU, F32), [], [], []

    def compare(name: str, ids: list[int], *pair: tuple[Any, Played], is_strict: bool = False) -> None:
        texts = [run.ids for _, run in pair]
        equal.append(at := num_equal(*texts))
        if texts[0] == texts[1]:
            return
        is_cut, leads = at == min(map(len, texts)), []
        for target, run in () if is_cut else pair:
            leads.append(replay_margin(target, ids, run.steps, at, (texts[0][at], texts[1][at])))
        is_tie = not is_cut and leads[1] <= 0 <= leads[0] <= leads[1] + MOST_ROUNDING[pair[1][0].dtype]
        found = f"{pair[1][0].dtype}, {name}, prompt of {len(ids)}, token {at + 1}: "
        found += "one text ended" if is_cut else f"a lead of {leads[0]:.2g} is {leads[1]:.2g}"
        (ties if is_tie and not is_strict else problems).append(found)

    for dtype, length in product((F32, BF16), lengths):
        pair, ids = pair_of(machine.device, dtype), prompt_of(cpu, length)
        plain, of_cpu = (play(machine.decode(each, "", ids)) for each in (pair, cpu))
        compare("plain against the CPU", ids, (cpu.target, of_cpu), (pair.target, plain))
        trees = [("draft-tree", 8)] if dtype is F32 else []
        for method, k in (*product(METHODS, KS), *trees):
            run = play(machine.decode(pair, method, ids, k))
            is_strict = captures_graphs(machine.device) and method in METHODS and k <= ONE_KERNEL
            compare(f"{method}, K = {k}", ids, (pair.target, plain), (pair.target, run), is_strict=is_strict)
    require(problems)
    return "; ".join([f"{sum(equal):,} tokens equal in {len(equal)} texts, {len(ties)} near-ties", *ties[:4]])


def rows(machine: Machine) -> str:
    """Logits of a row alone and in a block: equal to the last bit with CUDA graphs, elsewhere up to rounding."""
    worst, problems = 0.0, []
    for pair_of, dtype, start, count in product((tiny_pair, embedded_pair), (F32, BF16), (20, 200, 300), (2, 5, 8)):
        machine.look_at_the_clock()
        pair = pair_of(machine.device, dtype)
        ids = torch.tensor(prompt_of(pair, start + count))
        runner = pair.target.runner(len(ids))
        prefill(runner, ids[:start].tolist(), machine.look_at_the_clock)
        block = runner.forward(ids[start:], num_logits=count).logits.clone()
        for at in range(count):
            runner.rewind(start + at)
            alone = runner.forward(ids[start + at : start + at + 1], num_logits=1).logits[0]
            difference = float((alone - block[at]).abs().max())
            worst = max(worst, difference)
            if difference > (0.0 if captures_graphs(machine.device) else MOST_ROUNDING[dtype]):
                problems.append(f"{pair.target.ref}, {dtype}, {count} rows at {start}: {difference:.2g} apart")
    require(problems)
    return f"logits differ by at most {worst:.2g}"


def not_a_number(machine: Machine) -> str:
    """Logits that turn NaN end a run with a sentence, in the step that meets them, and don't touch the next run."""
    pair, problems, count = tiny_pair(machine.device, F32), [], 0
    cases = [(pair.target, method) for method in ("", *METHODS)] + [(pair.draft, "draft-model")]
    for (model, method), temperature, coupling in product(cases, (0.0, 1.0), Coupling):
        settings = {"sampling": SamplingParams(temperature), "coupling": coupling}
        table, num_steps, outcome = model.model.get_input_embeddings().weight, 0, "no error"
        sound = table.clone()
        try:
            for event in machine.decode(pair, method, prompt_of(pair, 30 - count), **settings):
                if isinstance(event, Step):
                    num_steps += 1
                    table.fill_(torch.nan)
        except GenerationError as error:
            outcome = str(error)
        finally:
            table.copy_(sound)
        count += 1
        if num_steps != 1 or "NaN" not in outcome or not is_sentence(outcome):
            name = f"{method or 'plain'}, temperature {temperature:g}, {coupling}"
            problems.append(f"{name}: {num_steps} steps, then {outcome}")
    require(problems)
    return f"{count} runs ended with the sentence, each in the step that met NaN"


def near_ties(machine: Machine) -> str:
    """Margins are those of the CPU: no later forward overwrites the logits that they compare."""
    cpu, pair = tiny_pair(CPU, F32), tiny_pair(machine.device, F32)
    ids, worst = prompt_of(cpu, 40), 0.0
    text = play(machine.decode(cpu, "", ids)).ids
    run = play(machine.decode(pair, "draft-model", ids))
    for at in range(2, NUM_TOKENS, 5):
        tokens = text[at], (text[at] + 1) % 256
        expected = lead(cpu.target, [*ids, *text[:at]], tokens)
        moved = moved_margin(pair.target, ids, text[:at], tokens, 4)
        assert moved is not None, f"token {at + 1}: another token leads than on the CPU"
        margins = moved[0], replay_margin(pair.target, ids, run.steps, at, tokens)
        worst = max(worst, moved[1], *(abs(margin - expected) for margin in margins))
    figures = f"margins differ by at most {worst:.2g} from the CPU's"
    assert worst <= MOST_ROUNDING[F32], figures
    return figures


def memory(machine: Machine) -> str:
    """The second run needs no more than the first, and a closed session leaves nothing."""
    tiny_pair.cache_clear()
    embedded_pair.cache_clear()
    before, held, peaks = held_mb(machine.device, is_idle=True), [], []
    request = RunRequest(DEFAULT_TARGET, DEFAULT_DRAFT, "def add(a, b):", device=machine.setting)
    with contextlib.closing(Session()) as session:
        for _ in range(2):
            *_, finished = machine.in_time(session.run(request))
            assert isinstance(finished, Finished)
            assert not finished.summary.error, finished.summary.error
            peaks.append(finished.summary.peak_memory_mb or 0.0)
            held.append(held_mb(machine.device) - before)
    left, bare = (held_mb(machine.device, is_idle=is_idle) - before for is_idle in (False, True))
    figures = f"{held[0]:,.0f} MB held after a run, {held[1] - held[0]:,.1f} MB more after another; peaks "
    figures += f"{peaks[0]:,.0f} and {peaks[1]:,.0f} MB; left {left:,.1f} MB, without cuBLAS workspaces {bare:,.1f} MB"
    # A process is measured less exactly than what a device allocated.
    slack = 64.0 if machine.device.type == "cpu" else 8.0
    assert max(4 * (held[1] - held[0]), bare) <= slack, figures
    return figures


def held_mb(device: torch.device, *, is_idle: bool = False) -> float:
    """Allocated memory; without the workspaces of cuBLAS if `is_idle`, when no graph is alive that uses them."""
    release_memory()
    if device.type == "cuda":
        if is_idle:
            torch._C._cuda_clearCublasWorkspaces()
        return torch.cuda.memory_allocated(device) / 1e6
    is_mps = device.type == "mps"
    return (torch.mps.current_allocated_memory() if is_mps else psutil.Process().memory_info().rss) / 1e6


def counting(capture: Callable[..., Any], counts: Counter[str]) -> Callable[..., Any]:
    """A capture that counts the attempts, the graphs, and their launches."""

    def counted(function: Callable[[], Any]) -> Any:
        counts["tried"] += 1
        outputs, replay = capture(function)
        counts["captured"] += 1
        return outputs, lambda: (counts.update(["launched"]), replay())

    return counted


def graphs(machine: Machine) -> str:
    """The fused forward runs from graphs, captured before the first step, used again by the next run, and captured anew
    for a longer text."""
    if not captures_graphs(machine.device):
        raise SkippedError("only CUDA has graphs")
    problems, figures = [], []
    for dtype in (F32, None):
        pair, counts = embedded_pair(machine.device, dtype), Counter()
        for model in (pair.target, pair.draft):
            model._graphs = GraphPool(counting(CudaCapture(machine.device), counts))
            if model.fused_weights is None:
                problems.append(f"{model.ref}, {model.dtype}: transformers' module runs, not the fused forward")
        turns = enumerate((230, 230, 600), start=1)
        for method, temperature, (turn, length) in product(("", *METHODS), (0.0, 1.0), turns):
            first, num_steps = counts.copy(), 0
            for event in machine.decode(pair, method, prompt_of(pair, length), sampling=SamplingParams(temperature)):
                if isinstance(event, PrefillDone):
                    ready = counts.copy()
                num_steps += isinstance(event, Step)
            late = counts["captured"] - (first if turn == 2 else ready)["captured"]
            failed = counts["tried"] - first["tried"] - (counts["captured"] - first["captured"])
            launched = counts["launched"] - ready["launched"]
            if late or failed or launched < num_steps:
                name = f"{pair.target.dtype}, {method or 'plain'}, temperature {temperature:g}, run {turn}"
                found = f"{late} graphs captured late, {failed} not captured, {launched} launched in {num_steps} steps"
                problems.append(f"{name}: {found}")
        figures.append(f"{pair.target.dtype}: {counts['captured']} captured, launched {counts['launched']:,} times")
    require(problems)
    return f"fused forward; {'; '.join(figures)}; none captured in steps or second runs"


class Waits(TorchDispatchMode):
    """Counts what the host waits for: values that it reads, and copies between it and the device. CUDA names others."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {each.device.type for each in args if isinstance(each, torch.Tensor)}
        with self:  # In inference mode an operation made of others comes here whole.
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        found = func(*args, **(kwargs or {}))
        is_copy = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if func is torch.ops.aten._local_scalar_dense.default:
            self.number += before != {"cpu"}
        elif is_copy and len(before | {found.device.type}) > 1:
            self.number += not (kwargs or {}).get("non_blocking", len(args) > 2 and args[2])
        return found


@contextlib.contextmanager
def counted_waits(device: torch.device) -> Iterator[Callable[[], int]]:
    """How often the host has waited within the block, by both counts."""
    with warnings.catch_warnings(record=True) as seen, Waits() as waits:
        warnings.simplefilter("always")
        is_cuda = device.type == "cuda"
        if is_cuda:
            torch.cuda.set_sync_debug_mode("warn")
            seen.clear()  # It warns of itself.
        try:
            yield lambda: max(waits.number, sum("synchronizing" in str(each.message) for each in seen))
        finally:
            if is_cuda:
                torch.cuda.set_sync_debug_mode("default")


def waits(machine: Machine) -> str:
    """A step of plain decoding, a draft model with a fixed K or prompt lookup waits for the device once, whatever the
    filters and the coupling."""
    if machine.device == CPU:
        raise SkippedError("the host doesn't wait for a CPU")
    pair, problems, num_steps = embedded_pair(machine.device, None), [], 0
    for method, sampling, coupling in product(("", *METHODS), (GREEDY, SamplingParams(0.8, 40, 0.9, 0.02)), Coupling):
        ids, counts, before = prompt_of(pair, 60), [], 0
        with contextlib.ExitStack() as counting_waits:
            for event in machine.decode(pair, method, ids, sampling=sampling, coupling=coupling):
                if isinstance(event, PrefillDone):  # Whose causal attention works under no dispatch mode.
                    count = counting_waits.enter_context(counted_waits(machine.device))
                if isinstance(event, Step):
                    counts.append(count() - before)
                    before = count()
        num_steps += len(counts)
        if set(counts) != {1}:
            name = f"{method or 'plain'}, temperature {sampling.temperature:g}, {coupling}"
            problems.append(f"{name}: {min(counts)} to {max(counts)} waits a step")
    require(problems)
    return f"one wait in each of {num_steps:,} steps"


def distillation(machine: Machine) -> str:
    """A draft and Medusa heads learn on the device, and a run with the draft writes the text of plain decoding."""
    target, figures = load(DEFAULT_TARGET, str(machine.device), "float32"), {}
    training = TrainSettings(tokens=60_000, warmup_steps=10, learning_rate=2e-3, compile=False)
    settings = DistillSettings(64, 1, 512, training, PlaySettings(rows=64, length=120))
    with tempfile.TemporaryDirectory() as folder:
        for kind in Kind:
            out, task = Path(folder) / kind, replace(settings, kind=kind)
            figures |= distill(target, task, Path(folder) / "work", out, machine.look_at_the_clock)
        draft = load(str(Path(folder) / Kind.DRAFT), target=target)
    pair = Loaded(target, draft, None)
    ids = prompt_of(pair, 60)
    plain, run = play(machine.decode(pair, "", ids)), play(machine.decode(pair, "draft-model", ids))
    agree, top, kept = figures["acceptance at 0"], figures["head 0, top 1"], run.summary.num_accepted_tokens
    found = f"draft agrees at {agree:.0%} of the positions, first head at {top:.0%}; {kept} tokens accepted"
    assert min(agree, top) > LEARNED, found
    assert kept, found
    assert run.ids == plain.ids, f"the text differs at token {num_equal(run.ids, plain.ids) + 1}"
    return found


def bench(machine: Machine) -> str:
    """`outrider bench` on the embedded pair."""
    settings = BenchSettings(
        DEFAULT_TARGET, DEFAULT_DRAFT, rounds=2, device=machine.setting, threads=num_processors(), only=CONTENDERS
    )
    pair = load_pair(settings)
    contest = Bench(pair, encoded(default_prompts(is_chat=False), pair.target), settings, machine.look_at_the_clock)
    document = contest.document(contest.results(build_all(pair, settings)[0]))
    with contextlib.redirect_stdout(io.StringIO()) as table:
        write_results(document)
    machine.bench_table = table.getvalue()
    return "see below"


CHECKS: dict[str, Callable[[Machine], str]] = {
    "verification": verification,
    "distribution, rejection": distribution,
    "distribution, filtered": functools.partial(distribution, sampling=SamplingParams(0.8, 40, 0.9)),
    "distribution, Gumbel": functools.partial(distribution, coupling=Coupling.GUMBEL),
    "CUDA graphs": graphs,
    "waits of a step": waits,
    "greedy text, tiny models": functools.partial(greedy, pair_of=tiny_pair, lengths=LENGTHS),
    "greedy text, embedded pair": functools.partial(greedy, pair_of=embedded_pair, lengths=LENGTHS[::3]),
    "one row and a block": rows,
    "NaN": not_a_number,
    "margins of near-ties": near_ties,
    "memory": memory,
    "distillation": distillation,
    "bench": bench,
}


def run_checks(machine: Machine) -> Iterator[Row]:
    """Run every check in order; one that fails or raises doesn't keep the others from running."""
    for name, run in CHECKS.items():
        began, result = time.monotonic(), "failed"
        try:
            machine.look_at_the_clock()
            figures, result = run(machine), "passed"
        except SkippedError as reason:
            figures, result = str(reason), "skipped"
        except AssertionError as error:
            figures = str(error)
        except Exception as error:
            traceback.print_exc()
            figures = sentence_of(error, "It ended with an error")
        yield Row(name, result, figures, time.monotonic() - began)


def page(machine: Machine, done: Sequence[Row]) -> str:
    """The results in Markdown."""
    device, software = machine.device, f"torch {torch.__version__}"
    if device.type == "cuda":
        driver = subprocess.getoutput("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
        software += f", CUDA {torch.version.cuda}, driver {driver.splitlines()[0]}"
    lines = ["# Device check", ""]
    lines += [f"{datetime.now():%Y-%m-%d %H:%M}, {device_name(device)}, {software}, {platform.platform()}", ""]
    lines += ["| check | result | figures | seconds |", "|---|---|---|---|"]
    for row in done:
        figures = " ".join(row.figures.replace("|", "\\|").split())
        lines.append(f"| {row.check} | {row.result} | {figures} | {row.seconds:.1f} |")
    if machine.bench_table:
        lines += ["", "## Bench", "", "```text", machine.bench_table.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.device_check", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1, mps or cpu")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the page here, after every check")
    parser.add_argument("--minutes", type=float, default=8.0, help="what has no time left is skipped")
    given = parser.parse_args(arguments)
    try:
        device = resolve_device(given.device)
    except OutriderError as error:
        parser.error(str(error))
    if given.device == "auto" and device == CPU:
        print(NO_DEVICE)
        return 0
    machine, done = Machine(device, time.monotonic() + 60 * given.minutes), []
    for row in run_checks(machine):
        done.append(row)
        print(f"{row.check}: {row.result}, {row.seconds:.1f} s", file=sys.stderr)
        if given.out is not None:  # After every check, in case that the next one ends the process.
            write_atomically(given.out, page(machine, done))
    print(page(machine, done))
    return int(any(row.result == "failed" for row in done))


if __name__ == "__main__":
    sys.exit(main())
