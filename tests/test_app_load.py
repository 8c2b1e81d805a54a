"""`outrider sweep --engine`: the gain over the load of a server, where the lines cross, and servers that fail."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from app.__main__ import main
from core.engines.server import identify
from core.experiments.prompt_suites import Prompt
from core.experiments.servers import load
from core.experiments.servers.load import CellMeasured, LoadCell, LoadPlan, LoadResults, crossings
from core.settings import RunRequest
from tests.fake_servers import FakeServer, Fault, as_json, as_stream, llama_server, recorded, vllm
from tests.fakes import is_sentence
from tests.fakes_cli import BrokenStream, refused

pytestmark = pytest.mark.usefixtures("clean_environment", "keys")

NO_DRAFTS = {"/slots": as_json([{"id": 0, "speculative": False}])}


SWEEP = ["sweep", "--num-prompts", "2", "--max-new-tokens", "24", "--raw"]


def sweep(*arguments: str) -> int:
    return main([*SWEEP, *arguments])


def results(speeds: dict[int, tuple[list[float], list[float]]], *, with_baseline: bool = True) -> LoadResults:
    """Results in which a load has these tokens/s, repeat by repeat, with speculation and without."""
    with FakeServer(llama_server()) as fake, FakeServer({**llama_server(), **NO_DRAFTS}) as plain:
        servers = identify(fake.url), identify(plain.url) if with_baseline else None
    request = RunRequest(target="smol", draft=None, prompt="any", num_draft_tokens=None)
    found = LoadResults(LoadPlan(*servers, request, "", (Prompt("one", "Go"),), tuple(speeds), repeats=3))
    for count, both in speeds.items():
        for is_plain, values in enumerate(both):
            for repeat, value in enumerate(values):
                found.cells.append(LoadCell(count, not is_plain, repeat, count, tokens_per_second=value))
    return found


# --- What follows from the figures --------------------------------------------------------------------------------


def test_lines_cross_where_the_logarithm_of_the_speedup_passes_zero():
    assert crossings([(1, 2.0), (4, 1.25), (16, 0.8)]) == [(pytest.approx(8.0), False)]
    assert crossings([(1, 0.5), (2, 2.0), (4, 0.5)]) == [
        (pytest.approx(2**0.5), True),
        (pytest.approx(2**1.5), False),
    ]
    assert crossings([(1, 2.0), (16, 1.1)]) == []


def test_the_crossing_has_the_interval_of_the_repeats():
    # Each repeat crosses elsewhere: at 8, at 4, and never.
    found = results({4: ([12.5, 10.0, 20.0], [10.0, 10.0, 10.0]), 16: ([16.0, 10.0, 30.0], [20.0, 20.0, 20.0])})
    assert found.speedup(4).median == pytest.approx(1.25)
    assert found.speedup(4).extremes == pytest.approx((1.0, 2.0))
    assert found.sentence == (
        "The lines cross: speculation pays up to about 8.0 concurrent requests (8.0 to 8.0 in 1 of 3 repeats)."
    )
    # Where the lines cross several times, each crossing has its own interval; one repeat crosses only once.
    speeds = {count: ([value] * 3, [1.0] * 3) for count, value in ((1, 2.0), (4, 0.5), (16, 2.0), (64, 0.5))}
    speeds[16][0][2] = 0.5
    first, second, third = results(speeds).sentence.split("(")[1:]
    assert first.startswith("2.0 to 2.0 in 3 of 3")
    assert second.startswith("8.0 to 8.0 in 2 of 3")
    assert third.startswith("32.0 to 32.0 in 2 of 3")


def test_a_gain_is_claimed_only_as_far_as_the_repeats_show_it():
    always = results({1: ([20.0] * 3, [10.0] * 3), 4: ([12.0] * 3, [10.0] * 3)})
    assert always.sentence == "With speculation the server is faster from 1 to 4 concurrent requests."
    mostly = results({1: ([20.0, 20.0, 9.0], [10.0] * 3)})
    assert mostly.sentence == "With speculation the server is faster at 1 concurrent request, by the medians."
    alone = results({1: ([20.0] * 3, [])}, with_baseline=False)
    assert alone.speedup(1) is None
    assert "--baseline-engine" in alone.sentence


# --- In the terminal ----------------------------------------------------------------------------------------------


def test_both_lines_and_the_gain_over_the_load(capsys, tmp_path):
    out = tmp_path / "load.jsonl"
    with FakeServer(llama_server()) as fake, FakeServer({**llama_server(), **NO_DRAFTS}) as plain:
        arguments = ["--engine", fake.url, "--baseline-engine", plain.url, "--concurrency", "1,3", "--repeats", "2"]
        assert sweep(*arguments, "--out", str(out)) == 0
        bodies = fake.bodies("/completion")
        # A warm-up; then, twice, two prompts in turn, and ten for three places, so that a short text doesn't end the
        # measurement. The other server gets the same ones.
        assert len(bodies) == 1 + 2 * (2 + 10)
        assert sorted(map(json.dumps, bodies)) == sorted(map(json.dumps, plain.bodies("/completion")))
        assert len({body["seed"] for body in bodies[1:]}) == 2 * 10
    shown = capsys.readouterr().out
    assert "tokens/s plain" in shown
    header, *cells, last = map(json.loads, out.read_text("utf-8").splitlines())
    assert (header["engine"]["speculates"], header["baseline"]["speculates"]) == (True, False)
    assert [(cell["concurrency"], cell["speculates"]) for cell in cells[:4]] == [
        (1, True), (1, False), (3, True), (3, False)
    ]  # fmt: skip
    one = json.loads(recorded("llama-draft", "run-raw-greedy").chunks[-1].removeprefix("data: "))["timings"]
    assert cells[0]["num_tokens"] == 2 * one["predicted_n"]
    assert cells[0]["draft_acceptance_rate"] == pytest.approx(one["draft_n_accepted"] / one["draft_n"])
    assert all(cell["tokens_per_second"] > 0 for cell in cells)
    assert last["sentence"] in shown


def test_the_baseline_may_have_another_name_for_its_only_model(tmp_path):
    out, named = tmp_path / "load.jsonl", {"/v1/models": as_json({"data": [{"id": "same-model"}]})}
    with FakeServer(llama_server()) as fake, FakeServer({**llama_server(), **NO_DRAFTS, **named}) as plain:
        (name,) = identify(fake.url).models
        urls = ["--engine", fake.url, "--baseline-engine", plain.url]
        assert sweep(*urls, "--target", name, "--concurrency", "1", "--repeats", "1", "--out", str(out)) == 0
    header = json.loads(out.read_text("utf-8").splitlines()[0])
    assert (header["engine"]["model"], header["baseline"]["model"]) == (name, "same-model")


def test_a_text_without_drafts_counts_in_the_acceptance_of_a_load(tmp_path):
    def text(**drafts: int) -> Any:
        end = {"content": "", "stop": True, "stop_type": "limit", "timings": {"predicted_n": 1, **drafts}}
        return as_stream([{"content": "a", "tokens": [1], "timings": {"predicted_n": 1, **drafts}}, end])

    out, drafting = tmp_path / "load.jsonl", text(draft_n=4, draft_n_accepted=1)
    # llama-server leaves out the counts of a text for which it drafted nothing.
    with FakeServer(llama_server(raw=[drafting, drafting, text()], metrics=as_json({}, 501))) as fake:
        assert sweep("--engine", fake.url, "--concurrency", "1", "--repeats", "1", "--out", str(out)) == 0
    assert json.loads(out.read_text("utf-8").splitlines()[1])["draft_acceptance_rate"] == 0.25


def test_a_reader_that_goes_away_loses_no_measurement(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdout", BrokenStream())
    out = tmp_path / "load.jsonl"
    with FakeServer(llama_server()) as fake:
        assert sweep("--engine", fake.url, "--concurrency", "1", "--repeats", "1", "--out", str(out)) == 130
    assert '"concurrency": 1' in out.read_text("utf-8")


def test_ctrl_c_pressed_twice_loses_no_measurement(capsys, monkeypatch, tmp_path):
    def interrupted(*arguments: Any) -> Any:
        for event in measure_load(*arguments):
            yield event
            if isinstance(event, CellMeasured) and event.done == 2:
                raise KeyboardInterrupt

    measure_load = load.measure_load
    monkeypatch.setattr(load, "measure_load", interrupted)
    out = tmp_path / "load.jsonl"
    with FakeServer(llama_server()) as fake:
        assert sweep("--engine", fake.url, "--concurrency", "1,2,3", "--repeats", "1", "--out", str(out)) == 130
    assert [json.loads(line)["type"] for line in out.read_text("utf-8").splitlines()] == [
        "load",
        *["cell"] * 2,
        "summary",
    ]
    assert "tokens/s" in capsys.readouterr().out


def test_earlier_measurements_are_replaced_only_by_a_restart(capsys, tmp_path):
    out = tmp_path / "load.jsonl"
    with FakeServer(llama_server()) as fake:
        again = ["--engine", fake.url, "--concurrency", "1", "--repeats", "1", "--out", str(out)]
        assert sweep(*again) == 0
        before = out.read_text("utf-8")
        capsys.readouterr()
        assert "add --restart to replace them" in refused(capsys, *SWEEP, *again)
        assert out.read_text("utf-8") == before
        assert sweep(*again, "--restart") == 0
    assert out.read_text("utf-8") != before


def test_bench_measures_a_server_one_request_at_a_time(capsys):
    with FakeServer(llama_server()) as fake, FakeServer({**llama_server(), **NO_DRAFTS}) as plain:
        flags = ["--engine", fake.url, "--baseline-engine", plain.url, "--rounds", "2", "--max-new-tokens", "24"]
        assert main(["bench", *flags]) == 0
        shown = capsys.readouterr().out
        assert "at 1 concurrent request" in shown
        assert len(fake.bodies("/completion")) == len(plain.bodies("/completion")) == 1 + 2 * 3
        for more in (["-k", "3"], ["--threads", "2"], ["--temperature", "0,1"]):
            assert "sweep" not in refused(capsys, "bench", *flags, *more)
    assert main(["bench", "--baseline-engine", plain.url]) == 2


def test_a_server_that_dies_ends_the_sweep_and_keeps_what_was_measured(capsys, tmp_path):
    out, whole = tmp_path / "load.jsonl", recorded("vllm-draft", "run-raw-sampled")
    answers: dict[str, Any] = vllm(raw=[whole, whole, whole, whole.cut(3, Fault.DIES)])
    with FakeServer(answers) as fake:
        assert sweep("--engine", fake.url, "--concurrency", "1,2", "--repeats", "1", "--out", str(out)) == 1
    captured = capsys.readouterr()
    assert "closed the connection in the middle" in captured.err
    assert "--baseline-engine" in captured.out
    _, measured, failed, last = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert last["sentence"] in " ".join(captured.out.split())
    assert "1 of 2 measurements failed or were not made" in last["sentence"]
    assert measured["tokens_per_second"] > 0
    assert failed["tokens_per_second"] is None
    assert is_sentence(failed["error"])


def test_a_load_that_the_server_refuses_is_left_out(capsys):
    whole, busy = recorded("vllm-draft", "run-raw-sampled"), as_json({"error": {"message": "full"}}, 429)
    soon = replace(busy, headers={**busy.headers, "Retry-After": "0"})  # The warm-up, as a check, asks again.
    with FakeServer(vllm(raw=[soon, whole, busy, whole])) as fake:
        assert sweep("--engine", fake.url, "--concurrency", "1,2", "--repeats", "1") == 1
    captured = capsys.readouterr()
    assert "1 concurrent request: " in captured.err
    assert "–" in captured.out


BAD = (
    ["--draft", "D"],
    ["--method", "prompt-lookup"],
    ["-k", "3"],
    ["--depth", "2"],
    ["--device", "cpu"],
    ["--csv", "x.csv"],
    ["--logs", "x"],
    ["--temperature", "0,1"],
    ["--coupling", "gumbel"],
    ["--verification", "block"],
    ["--target", "another"],
    ["--concurrency", "0"],
    ["--concurrency", "999"],
    ["--prompts", "missing.jsonl"],
)


@pytest.mark.parametrize("arguments", BAD, ids=" ".join)
def test_what_a_server_has_no_use_for_is_refused_in_a_sentence(arguments, capsys):
    with FakeServer(llama_server()) as fake:
        assert is_sentence(refused(capsys, *SWEEP, "--engine", fake.url, *arguments))
        assert not fake.bodies("/completion")


def test_baselines_and_servers_that_fit_nothing_are_refused(capsys):
    with FakeServer(llama_server()) as fake, FakeServer({**llama_server(), **NO_DRAFTS}) as plain:
        for arguments in (
            ["--engine", fake.url, "--baseline-engine", fake.url],
            ["--engine", plain.url],
            ["--out", "x", "--baseline-engine", plain.url],
            ["--out", "x", "--concurrency", "2"],
        ):
            assert is_sentence(refused(capsys, *SWEEP, *arguments))
