"""Hundreds of runs in one process, with random settings, stops and failures: nothing piles up, nothing is changed."""

import gc
import json
import random
import threading
from pathlib import Path

import psutil
import pytest
import torch

from core.controls import RunControls
from core.drafters.registry import METHODS, get_method
from core.session import Session
from core.settings import Coupling, LengthPolicy, RunRequest, SamplingParams
from core.types import Event, FinishReason, Step
from tests.children import run_code
from tests.fakes import save_model
from tests.faults import strike

pytestmark = pytest.mark.slow

NUM_RUNS, SETTLED = 500, 80
"""How many, and after how many every cache of Python, of torch and of transformers has what it wants."""

MOST_NEW_BYTES, MOST_NEW_OBJECTS = 2 << 20, (NUM_RUNS - SETTLED) // 20
"""What an allocator keeps for itself, and less than an object every twentieth run."""

LETTERS = "abcde (x):\n"


def texts_of(session: Session, models: Path) -> list[str]:
    """What four fixed requests emit: the same in this process at any time, and in any other."""
    shared = {"device": "cpu", "dtype": "float32", "max_new_tokens": 20, "prompt": "def f(x):"}
    fused, module = str(models / "fused"), str(models / "module")
    requests = [
        RunRequest(fused, module, sampling=SamplingParams(0.0), **shared),
        RunRequest(module, fused, sampling=SamplingParams(0.8), coupling=Coupling.GUMBEL, seed=3, **shared),
        RunRequest(fused, module, sampling=SamplingParams(0.9, 40, 0.9, 0.01), seed=4, num_draft_tokens=2, **shared),
        RunRequest(fused, None, method="prompt-lookup", sampling=SamplingParams(0.7), seed=5, **shared),
    ]
    texts = []
    for request in requests:
        events = list(session.run(request))
        steps = [[*event.emitted, event.num_accepted] for event in events if isinstance(event, Step)]
        texts.append(json.dumps([events[-1].summary.text, steps]))
    return texts


def any_request(chance: random.Random, models: Path) -> RunRequest:
    """Settings as a person might choose them, and some that no one would."""
    method, choose = chance.choice([name for name in METHODS if name != "medusa"]), chance.choice
    target, draft = chance.sample(["fused", "module"], 2) if chance.random() < 0.7 else ["fused", "fused"]
    return RunRequest(
        str(models / target), str(models / draft) if get_method(method).needs_draft_model else None,
        prompt="".join(chance.choices(LETTERS, k=chance.randint(1, 60))), method=method,
        num_draft_tokens=choose([None, 1, 2, 4, 8, 16]),
        sampling=SamplingParams(choose([0.0, 0.3, 1.0, 2.0]), choose([0, 1, 20]), choose([1.0, 0.8, 0.05]),
                                choose([0.0, 0.1, 1.0])),
        seed=chance.randrange(2**63), coupling=choose(list(Coupling)), max_new_tokens=chance.randint(1, 12),
        stop=tuple(chance.choices(LETTERS, k=choose([0, 0, 1, 2]))), device="cpu", dtype="float32",
        baseline=chance.random() < 0.1,
    )  # fmt: skip


MISHAPS = {"none": 50, "stop": 12, "stop in a forward": 8, "closed": 8, "failure": 14, "no memory": 1, "moved": 8}
"""What befalls a run, and how often of about a hundred runs."""


def suffer(session: Session, request: RunRequest, chance: random.Random) -> None:
    """Carry out a request that something befalls, and check that it ends as it should."""
    controls = RunControls.from_request(request)
    mishap, at = chance.choices(list(MISHAPS), list(MISHAPS.values()))[0], chance.randint(0, 24)

    def strike_in_forward() -> None:
        if mishap == "stop in a forward":
            controls.cancel()
        else:
            raise {"failure": RuntimeError, "no memory": torch.OutOfMemoryError}[mishap]("it failed")

    with pytest.MonkeyPatch.context() as patch:
        if mishap in {"stop in a forward", "failure", "no memory"}:
            strike(patch, at, strike_in_forward)
        seen: list[Event] = []
        events = session.run(request, controls)
        for number, event in enumerate(events):
            seen.append(event)
            if number != at // 2:
                continue
            if mishap == "stop":
                controls.cancel()
            elif mishap == "moved":
                controls.set_num_draft_tokens(chance.choice([LengthPolicy.AUTO, 0, 1, 9]))
                controls.set_temperature(chance.choice([0.0, 1.5]))
            elif mishap == "closed":
                events.close()
                return
    summary = seen[-1].summary
    emitted = sum(len(event.emitted) for event in seen if isinstance(event, Step))
    assert emitted == summary.num_tokens <= request.max_new_tokens
    reasons = {FinishReason.LENGTH, FinishReason.STOP, FinishReason.EOS}
    reasons |= {FinishReason.CANCELLED} if mishap.startswith("stop") else set()
    reasons |= {FinishReason.ERROR} if mishap in {"failure", "no memory"} else set()
    assert summary.finish_reason in reasons
    assert (summary.finish_reason is FinishReason.ERROR) <= bool(summary.error)


def held() -> tuple[int, int, int, int]:
    """What this process holds: tensors, open files, objects, bytes."""
    gc.collect()
    things = gc.get_objects()
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in things)
    process = psutil.Process()
    files = 0 if psutil.WINDOWS else process.num_fds()
    return tensors, files, len(things), process.memory_info().rss


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
    save_model(folder / "module", family="gpt2", seed=1, eos_token_id=None, n_layer=1)
    return folder


@pytest.mark.timeout(900)
def test_hundreds_of_runs_leave_nothing_behind_and_change_nothing(models, monkeypatch, nothing_older):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # The number of threads is measured anew in each run otherwise.
    threads = set(threading.enumerate())
    expected = texts_of(Session(), models)
    session, chance = Session(), random.Random(0)
    for number in range(1, NUM_RUNS + 1):
        suffer(session, any_request(chance, models), chance)
        if number % 80 == 0:
            assert texts_of(session, models) == expected, f"after {number} runs"
        if number == SETTLED:
            settled = held()
    tensors, files, objects, size = (now - before for now, before in zip(held(), settled, strict=True))
    assert max(tensors, files) <= 0
    assert objects < MOST_NEW_OBJECTS
    assert size < MOST_NEW_BYTES
    assert set(threading.enumerate()) == threads
    session.close()
    assert texts_of(Session(), models) == expected
    code = (
        "import sys; from pathlib import Path; from core.session import Session; from tests.test_core_soak import *\n"
        "print(json.dumps(texts_of(Session(), Path(sys.argv[1]))))"
    )
    done = run_code(code, models)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected
