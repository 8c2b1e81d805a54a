"""A thousand runs in one process, with random settings, stops and failures: nothing piles up, nothing is changed."""

import gc
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from core.controls import RunControls
from core.drafters.registry import METHODS, get_method
from core.session import Session
from core.settings import Coupling, RunRequest, SamplingParams
from core.types import Event, Finished, FinishReason, Step
from tests.fakes import save_model
from tests.faults import strike

pytestmark = pytest.mark.slow

NUM_RUNS = 1_000
SETTLED = 200
"""Runs after which every cache of Python, of torch and of transformers has what it wants."""

CHECKED_EVERY = 100
MOST_NEW_BYTES, MOST_NEW_OBJECTS = 12 << 20, 400
"""Less than an object every second run."""

LETTERS = "abcde (x):\n"


# --- Requests ---------------------------------------------------------------------------------------------------


def fixed_requests(models: Path) -> list[RunRequest]:
    """Runs whose texts are known: the same in this process at any time, and in any other."""
    shared = {"device": "cpu", "dtype": "float32", "max_new_tokens": 20, "prompt": "def f(x):"}
    fused, module = str(models / "fused"), str(models / "module")
    return [
        RunRequest(fused, module, sampling=SamplingParams(0.0), **shared),
        RunRequest(module, fused, sampling=SamplingParams(0.8), coupling=Coupling.GUMBEL, seed=3, **shared),
        RunRequest(fused, module, sampling=SamplingParams(0.9, 40, 0.9, 0.01), seed=4, num_draft_tokens=2, **shared),
        RunRequest(fused, None, method="prompt-lookup", sampling=SamplingParams(0.7), seed=5, **shared),
    ]


def texts_of(session: Session, models: Path) -> list[str]:
    """What the fixed requests come to, with all that is emitted."""
    return [_described(list(session.run(request))) for request in fixed_requests(models)]


def _described(events: list[Event]) -> str:
    steps = [[*event.emitted, event.num_accepted] for event in events if isinstance(event, Step)]
    return json.dumps([events[-1].summary.text, steps])


def any_request(chance: random.Random, models: Path) -> RunRequest:
    """Settings as a person might choose them, and some that no one would."""
    method = chance.choice(list(METHODS))
    target, draft = chance.sample(["fused", "module"], 2) if chance.random() < 0.7 else ["fused", "fused"]
    return RunRequest(
        str(models / target),
        str(models / draft) if get_method(method).needs_draft_model else None,
        prompt="".join(chance.choices(LETTERS, k=chance.randint(1, 60))),
        method=method,
        num_draft_tokens=chance.choice([None, 1, 2, 4, 8, 16]),
        sampling=SamplingParams(
            chance.choice([0.0, 0.3, 1.0, 2.0]),
            chance.choice([0, 1, 20]),
            chance.choice([1.0, 0.8, 0.05]),
            chance.choice([0.0, 0.1, 1.0]),
        ),
        seed=chance.randrange(2**63),
        coupling=chance.choice(list(Coupling)),
        max_new_tokens=chance.randint(1, 12),
        stop=tuple(chance.choices(LETTERS, k=chance.choice([0, 0, 1, 2]))),
        device="cpu",
        dtype="float32",
        baseline=chance.random() < 0.1,
    )


# --- What happens to them ---------------------------------------------------------------------------------------


@dataclass
class Mishap:
    """What befalls one run."""

    kind: str
    at: int

    @classmethod
    def any(cls, chance: random.Random) -> "Mishap":
        kinds = {"none": 50, "stop": 12, "stop in a forward": 8, "closed": 8, "failure": 14, "no memory": 1, "moved": 8}
        return cls(chance.choices(list(kinds), list(kinds.values()))[0], chance.randint(0, 24))


def suffer(session: Session, request: RunRequest, mishap: Mishap, chance: random.Random) -> None:
    """Carry out a request that something befalls, and check that it ends as it should."""
    controls = RunControls.from_request(request)
    with pytest.MonkeyPatch.context() as patch:
        if mishap.kind in FORWARD_MISHAPS:
            strike(patch, mishap.at, lambda: FORWARD_MISHAPS[mishap.kind](controls))
        seen: list[Event] = []
        events = session.run(request, controls)
        for number, event in enumerate(events):
            seen.append(event)
            if number != mishap.at // 2:
                continue
            if mishap.kind == "stop":
                controls.cancel()
            elif mishap.kind == "moved":
                controls.set_num_draft_tokens(chance.choice([None, 0, 1, 9]))
                controls.set_temperature(chance.choice([0.0, 1.5]))
            elif mishap.kind == "closed":
                events.close()
                return
    last = seen[-1]
    assert isinstance(last, Finished)
    emitted = sum(len(event.emitted) for event in seen if isinstance(event, Step))
    assert emitted == last.summary.num_tokens <= request.max_new_tokens
    reasons = {FinishReason.LENGTH, FinishReason.STOP, FinishReason.EOS}
    if mishap.kind.startswith("stop"):
        reasons |= {FinishReason.CANCELLED}
    if mishap.kind in {"failure", "no memory"}:
        reasons |= {FinishReason.ERROR}
    assert last.summary.finish_reason in reasons
    assert (last.summary.finish_reason is FinishReason.ERROR) <= bool(last.summary.error)


def _fail(_: RunControls) -> None:
    raise RuntimeError("a kernel failed")


def _run_out(_: RunControls) -> None:
    raise torch.OutOfMemoryError("out of memory")


FORWARD_MISHAPS = {"stop in a forward": RunControls.cancel, "failure": _fail, "no memory": _run_out}


# --- What is left -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    num_bytes: int
    num_objects: int
    num_tensors: int

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        things = gc.get_objects()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in things)
        return cls(psutil.Process().memory_info().rss, len(things), tensors)


@pytest.fixture
def nothing_older():
    """Only what is made from here on is collected and counted: the libraries' own objects take long to walk."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "fused", eos_token_id=None)
    save_model(folder / "module", family="gpt2", seed=1, eos_token_id=None)
    return folder


@pytest.mark.timeout(900)
def test_a_thousand_runs_leave_nothing_behind_and_change_nothing(models, monkeypatch, nothing_older):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # The number of threads is measured anew in each run otherwise.
    threads = set(threading.enumerate())
    expected = texts_of(Session(), models)
    session, chance = Session(), random.Random(0)
    settled = None
    for number in range(1, NUM_RUNS + 1):
        suffer(session, any_request(chance, models), Mishap.any(chance), chance)
        if number % CHECKED_EVERY == 0:
            assert texts_of(session, models) == expected, f"after {number} runs"
        if number == SETTLED:
            settled = Held.now()
    held = Held.now()
    assert held.num_tensors <= settled.num_tensors
    assert held.num_objects - settled.num_objects < MOST_NEW_OBJECTS
    assert held.num_bytes - settled.num_bytes < MOST_NEW_BYTES
    assert set(threading.enumerate()) == threads
    session.close()
    assert texts_of(Session(), models) == expected
    assert list(_in_a_fresh_process(models)) == expected


def _in_a_fresh_process(models: Path) -> Iterator[str]:
    code = (
        "import sys; from pathlib import Path; from core.session import Session; from tests.test_core_soak import *\n"
        "print(json.dumps(texts_of(Session(), Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(models)], cwd=Path(__file__).parent.parent, env=os.environ, text=True,
        capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    yield from json.loads(done.stdout.splitlines()[-1])
