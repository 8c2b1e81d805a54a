"""The check of an accelerator: what it says without one, and that a failing part doesn't hide the others."""

import pytest
import torch

import core.models.language_model
from core.settings import RunRequest
from tests import device_check
from tests.device_check import CPU, NO_DEVICE, Machine, SkippedError, main
from tests.errors import failing
from tests.fakes_device import DEVICE, SimulatedDevice
from tests.test_core_graphed import Captures


def test_without_a_device_it_says_so_and_does_nothing_and_a_named_one_is_bad_usage(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(device_check, "CHECKS", {"never": lambda machine: pytest.fail("a check ran")})
    assert main(["--out", str(tmp_path / "page.md")]) == 0
    assert capsys.readouterr().out == NO_DEVICE + "\n"
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["--device", "cuda"])
    assert ended.value.code == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "words"), [("cuda:1", "no CUDA device"), ("gpu", "no device 'gpu'")])
def test_a_second_gpu_can_be_named_and_what_is_no_device_is_bad_usage(name, words, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(["--device", name])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert RunRequest("target", "draft", "-", device=Machine(torch.device("cuda:1")).setting).device == "cuda:1"


def test_a_graph_that_is_not_captured_anew_for_a_longer_text_is_a_failure(monkeypatch):
    captures, most, pair = Captures(), 999, device_check.tiny_pair.__wrapped__(CPU, torch.float32)

    def capture(function):
        if captures.number == most:
            raise RuntimeError("no more graphs")
        return captures(function)

    monkeypatch.setattr(device_check, "METHODS", ("draft-model",))
    monkeypatch.setattr(device_check, "embedded_pair", lambda *_: pair)
    for module in (device_check, core.models.language_model):
        monkeypatch.setattr(module, "captures_graphs", lambda _: True)
    monkeypatch.setattr(device_check, "CudaCapture", lambda _: capture)
    assert "none captured in steps" in device_check.graphs(Machine(CPU))
    captures.number, most = 0, 12  # The target's, and the draft's for the first text.
    with pytest.raises(AssertionError, match="draft-model, temperature 0, run 3: 0 graphs captured late, 1 not"):
        device_check.graphs(Machine(CPU))


def benches(machine):
    machine.bench_table = "tokens/s  7\n"
    return "see below"


def test_a_check_that_fails_is_reported_and_the_others_run(monkeypatch, capsys, tmp_path):
    checks = {
        "a": failing(AssertionError("2 | 3 tokens")),
        "b": failing(RuntimeError("the kernel\nis missing")),
        "c": failing(SkippedError("only there")),
        "d": lambda machine: "3 MB",
        "e": benches,
    }
    monkeypatch.setattr(device_check, "CHECKS", checks)
    path = tmp_path / "page.md"
    assert main(["--device", "cpu", "--out", str(path)]) == 1
    page = path.read_text("utf-8")
    assert capsys.readouterr().out.strip() == page.strip()
    for row in (
        r"| a | failed | 2 \| 3 tokens |",
        "| b | failed | It ended with an error: RuntimeError: the kernel. |",
        "| c | skipped | only there |",
        "| d | passed | 3 MB |",
    ):
        assert row in page
    assert page.endswith("```text\ntokens/s  7\n```\n")


@pytest.mark.parametrize("is_inference", [False, True])
def test_waits_are_counted_between_events(is_inference):
    with torch.inference_mode(is_inference), SimulatedDevice(), device_check.counted_waits(DEVICE) as count:
        here = torch.ones(3).to(DEVICE, non_blocking=True)
        assert count() == 0
        assert float(here[0]) == 1.0
        here.cpu()
        assert count() == 2


def test_checks_without_time_left_are_skipped_and_do_not_fail(monkeypatch, capsys):
    monkeypatch.setattr(device_check, "CHECKS", {"a": lambda machine: "ran", "b": lambda machine: "ran"})
    assert main(["--device", "cpu", "--minutes", "0"]) == 0
    assert capsys.readouterr().out.count("| skipped | the time was up |") == 2
