"""On a device that runs behind the host a step waits for it once, if its drafter reads no value; its text is the one of
the processor."""

import itertools
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import core.models.language_model
from core.decode import autoregressive, speculative
from core.drafters.base import DrafterSetup
from core.drafters.registry import build_drafter
from core.rounds import Rounds
from core.runners import llama
from core.runners.timing import sent, synchronize
from core.settings import Coupling, SamplingParams, VerificationRule
from core.types import Draft, Inspected, PrefillDone, Step, TargetFeature
from tests.fakes import StubDrafter, play, tiny_model
from tests.fakes_device import DEVICE, SimulatedDevice, moved

PROMPT = [5, 6, 7, 8, 5, 6] * 3
FILTERED = SamplingParams(0.8, 20, 0.9, 0.01)
RULES = [{"coupling": Coupling.GUMBEL}, *({"rule": rule} for rule in VerificationRule)]
CASES = [
    *itertools.product(["draft-model", "prompt-lookup", "tree"], RULES),
    *(("", settings) for settings in RULES[:2]),
]


class Tree(StubDrafter):
    """Proposes one tree of the last ids, and wants the target's states."""

    needs = frozenset({TargetFeature.HIDDEN_STATES})
    proposes_trees = True

    def __init__(self) -> None:
        self.num_states = 0

    def propose(self, context) -> Draft:
        self.num_states += len(context.features[TargetFeature.HIDDEN_STATES])
        assert self.num_states == len(context.ids) - 1
        parents = [-1, -1, 1, 0][: context.num_draft_tokens if context.max_depth > 1 else 2]
        return Draft(torch.tensor(list(context.ids[-len(parents) :])), torch.tensor(parents), None)


def events(method, *, on_device: bool, **settings):
    models = [tiny_model(seed=seed, is_fused=True) for seed in (0, 1)]
    target, draft = map(moved, models) if on_device else models
    settings = {"sampling": FILTERED, "max_new_tokens": 8, "seed": 3, **settings}
    if not method:
        return autoregressive(target, PROMPT, **{name: settings[name] for name in settings if name != "rule"})
    options = {"int8": False} if method == "draft-model" else {}
    drafter = Tree() if method == "tree" else build_drafter(method, DrafterSetup(target, draft, 80), options)
    return speculative(target, drafter, PROMPT, num_draft_tokens=4, **settings)


def waits(method: str, **settings) -> tuple[list[int], list[list[str]]]:
    """The text on the simulated device, and what each step waited for."""
    text, waited = [], []
    with torch.inference_mode(), SimulatedDevice() as device:
        for event in events(method, on_device=True, **settings):
            if isinstance(event, Step):
                text += event.emitted
            if isinstance(event, Step | Inspected):
                waited.append(list(device.waits))
            device.waits.clear()
    return text, waited


@pytest.fixture(autouse=True)
def _without_scripts(monkeypatch):
    monkeypatch.setattr(llama, "scripted", lambda function: function)


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_a_step_waits_once_whatever_the_rule(method, settings):
    text, waited = waits(method, **settings)
    assert waited == [["tolist"]] * len(waited)
    assert len(waited) > 2
    assert text == play(events(method, on_device=False, **settings)).ids


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_the_first_step_runs_no_kernel_of_verification_that_was_not_loaded_before(method, settings, monkeypatch):
    """The decision's operations were all run before the first step, once a model."""
    ran: list[set[str]] = []
    decide = Rounds._decide

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ran[-1].add(str(func))
            return func(*args, **(kwargs or {}))

    def watched(*args):
        ran.append(set())
        with Names():
            return decide(*args)

    monkeypatch.setattr(Rounds, "_decide", watched)
    with torch.inference_mode(), SimulatedDevice():
        run = events(method, on_device=True, **settings)
        assert isinstance(next(run), PrefillDone)
        loaded = set().union(*ran)
        assert loaded
        next(run)
    assert ran[-1] <= loaded


def test_the_kernels_of_verification_are_loaded_once_a_model():
    with torch.inference_mode(), SimulatedDevice() as device:
        model = moved(tiny_model(is_fused=True))
        next(autoregressive(model, PROMPT, max_new_tokens=4))
        assert device.waits
        device.waits.clear()
        next(autoregressive(model, PROMPT, max_new_tokens=4))
    assert not device.waits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["", "draft-model", "tree"])
def test_with_graphs_too(method, temperature, monkeypatch):
    def capture(function):
        outputs = function()
        return outputs, lambda: [kept.copy_(fresh) for kept, fresh in zip(outputs, function(), strict=True)]

    monkeypatch.setattr(core.models.language_model, "captures_graphs", lambda device: device == DEVICE)
    monkeypatch.setattr(core.models.language_model, "CudaCapture", lambda _: capture)
    sampling = SamplingParams(temperature)
    text, waited = waits(method, sampling=sampling)
    assert waited == [["tolist"]] * len(waited)
    assert text == play(events(method, on_device=False, sampling=sampling)).ids


@pytest.mark.parametrize(("method", "settings"), [case for case in CASES if case[0] != "prompt-lookup"])
def test_without_float64_too(method, settings, monkeypatch):
    for user in ("core.sampling", "core.verify.on_device"):
        monkeypatch.setattr(f"{user}.has_double", lambda device: device != DEVICE)
    text, waited = waits(method, **settings)
    assert waited == [["tolist"]] * len(waited)
    assert text == play(events(method, on_device=False, **settings)).ids


def test_what_goes_to_apples_gpu_is_kept_until_that_has_been_waited_for(monkeypatch):
    class Source:
        device = torch.device("cpu")

        def to(self, *_, **__):
            return None

    source = Source()
    is_kept = weakref.ref(source)
    sent(source, torch.device("mps"))
    del source
    assert is_kept()
    monkeypatch.setattr(torch.mps, "synchronize", lambda: None)
    synchronize(torch.device("mps"))
    assert not is_kept()


def test_evidence_is_read_once_a_step_and_not_within_it():
    _, waited = waits("draft-model", inspect=True)
    assert waited == [["tolist"]] * len(waited)


def test_the_simulation_counts_waits_and_refuses_what_a_device_would():
    with torch.inference_mode(), SimulatedDevice() as device:
        here = torch.ones(3).to(DEVICE, non_blocking=True) + torch.full((3,), 2.0, device=DEVICE)
        assert not device.waits
        assert float(here[0]) == 3.0
        assert bool((here > 0).all())
        here[torch.full((), 1, device=DEVICE, dtype=torch.long)]  # Reads the index.
        here.cpu()
        torch.ones(3).to(DEVICE)
        assert len(device.waits) == 5
        for waiting in (lambda: here[[0, 1]], lambda: here + torch.tensor([1.0, 2.0, 3.0], device=DEVICE)):
            with pytest.raises(AssertionError, match="Python's values"):
                waiting()
        with pytest.raises(AssertionError, match="mixes"):
            here + torch.ones(3)
