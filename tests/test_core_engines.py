"""Servers as engines: what each product's stream becomes, and that nothing is claimed that it doesn't report."""

from __future__ import annotations

import json
import math
import re
import threading
from dataclasses import replace
from typing import Any

import pytest

from core.controls import RunControls
from core.engines.adapters import stream_chunks
from core.engines.server import identify
from core.engines.session import ServerSession, advice
from core.export.files import export_csv, export_html, export_jsonl
from core.runlog.log import RunLogWriter
from core.runlog.reading import read_run_log
from core.runlog.replay import events, request_from_config
from core.runlog.tally import Tally
from core.types import (
    UNKNOWN_ID,
    Event,
    Finished,
    FinishReason,
    PrefillDone,
    RunStarted,
    Step,
    StepsCounted,
    StepSource,
    Summary,
    TokenKind,
)
from tests.fake_servers import (
    Answer,
    FakeServer,
    Fault,
    a_request,
    as_stream,
    in_pairs,
    llama_server,
    recorded,
    sglang,
    vllm,
)

pytestmark = pytest.mark.usefixtures("keys")


def run(answers: dict[str, Any], controls: RunControls | None = None, **more: Any) -> list[Event]:
    """The events of a run on a fake server."""
    with FakeServer(answers) as fake:
        server = identify(fake.url)
        wanted = a_request(target=server.models[0], engine=server.address.url, **more)
        return list(ServerSession(server).run(wanted, controls))


def of_kind(found: list[Event], kind: type) -> list[Any]:
    return [event for event in found if isinstance(event, kind)]


def summary_of(found: list[Event]) -> Summary:
    assert isinstance(found[-1], Finished)
    return found[-1].summary


def final_steps(found: list[Event]) -> list[Step]:
    """The steps, with the counts that came at the end."""
    steps = of_kind(found, Step)
    for event in of_kind(found, StepsCounted):
        steps = list(event.applied(steps))
    return steps


# --- What answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "product", "version", "context", "method", "k"),
    [
        (vllm("vllm-draft"), "vllm", "0.32.0", 1024, None, 4),
        (llama_server(), "llama-server", "b0-unknown", 1024, "draft-simple", 4),
        (sglang(is_new=True), "sglang", "0.5.15", 2048, "EAGLE3", 3),
        (sglang(is_new=False), "sglang", "0.5.15", 2048, "EAGLE3", 3),
    ],
)
def test_a_server_is_known_by_what_it_answers(
    answers: dict[str, Any], product: str, version: str, context: int, method: str | None, k: int
) -> None:
    with FakeServer(answers) as fake:
        server = identify(f"{fake.url}/v1")
    assert (server.product, server.version, server.context_length) == (product, version, context)
    assert (server.speculation.is_on, server.speculation.method, server.speculation.num_draft_tokens) == (
        True,
        method,
        k,
    )


def test_a_renamed_owner_does_not_hide_the_product() -> None:
    answers = vllm()
    answers["/v1/models"] = Answer([json.dumps({"data": [{"id": "mine", "owned_by": "acme"}]})])
    with FakeServer(answers) as fake:
        assert identify(fake.url).product == "vllm"


# --- vLLM ---------------------------------------------------------------------------------------------------------


def reported(folder: str, name: str) -> dict[str, Any]:
    """What the recorded stream says at its end about its steps."""
    last = recorded(folder, name).chunks[-2]
    assert isinstance(last, str)
    return json.loads(last.removeprefix("data: "))["metrics"]["speculative_decoding"]


@pytest.mark.parametrize("name", ["run-chat-greedy", "run-chat-sampled"])
def test_steps_of_vllm_are_those_that_it_reports_at_the_end(name: str) -> None:
    found = run(vllm(chat=recorded("vllm-draft", name)))
    said, summary, steps = reported("vllm-draft", name), summary_of(found), final_steps(found)
    drafted = [step for step in steps if step.num_draft_tokens]
    *accepted, last = said["per_step_accepted"]
    assert [step.num_accepted for step in drafted] == [*accepted, min(last, len(drafted[-1].emitted))]
    assert {step.source for step in drafted} == {StepSource.SERVER}
    assert (summary.source, summary.num_draft_tokens) == (StepSource.SERVER, said["num_draft_tokens"])
    assert summary.draft_acceptance_rate == pytest.approx(said["draft_acceptance_rate"])
    assert summary.num_tokens == 24 == sum(len(step.emitted) for step in steps)
    assert UNKNOWN_ID not in [token for step in steps for token in step.emitted]
    for step in drafted[:-1]:
        rejected = step.num_accepted < step.num_draft_tokens
        assert step.emitted_kinds[-1] is (TokenKind.CORRECTION if rejected else TokenKind.BONUS)


@pytest.mark.parametrize("name", ["run-chat-greedy", "run-chat-sampled"])
def test_with_n_grams_only_the_steps_that_are_certain_are_reported(name: str) -> None:
    found = run(vllm("vllm-ngram", chat=recorded("vllm-ngram", name)))
    said, summary, steps = reported("vllm-ngram", name), summary_of(found), final_steps(found)
    certain = [(step.num_draft_tokens, step.num_accepted) for step in steps if step.source is StepSource.SERVER]
    listed = list(zip(said["per_step_drafted"], said["per_step_accepted"], strict=True))
    assert [pair for pair in certain if pair[1]][:-1] == [pair for pair in listed if pair[1]][: len(certain)][:-1]
    assert (summary.num_drafts, summary.num_draft_tokens) == (said["num_spec_steps"], said["num_draft_tokens"])
    assert {step.num_accepted for step in steps if step.source is StepSource.CHUNKS} <= {0}
    tally = Tally(steps)
    shown, drafts = tally.positions_of(summary), said["num_spec_steps"]
    assert sum(shown.accepted) == said["num_accepted_draft_tokens"] >= tally.accepted
    assert shown.drafted == [drafts] * 4
    assert shown.tested == [drafts, *shown.accepted[:-1]]
    for lie in ({"num_accepted_tokens_per_pos": (0, 0, 0, drafts)}, {"num_draft_tokens": 1}, {"source": None}):
        assert not tally.positions_of(replace(summary, **lie))


def test_until_then_the_steps_are_inferred_and_what_was_sent_is_not_changed() -> None:
    found = run(vllm(chat=recorded("vllm-draft", "run-chat-sampled")))
    live = of_kind(found, Step)
    assert live[0].num_draft_tokens == 0
    assert math.isnan(live[0].total_ms)
    assert {step.source for step in live} == {StepSource.CHUNKS}
    assert all(step.num_accepted == len(step.emitted) - 1 for step in live)
    assert summary_of(found).text == "".join(step.emitted_text for step in live)


def without_details(answer: Answer) -> Answer:
    """The same stream from a server without --per-request-spec-decode-metrics."""
    kept = [chunk.replace('"metrics":', '"other":') for chunk in answer.chunks if isinstance(chunk, str)]
    return replace(answer, chunks=kept)


def counters(*, drafts: int, draft_tokens: int, accepted: int, generated: int) -> list[Answer]:
    """The counters of a server that always drafted, twice before and once after a text with these counts."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "generation_tokens")
    grown = dict(zip(names, (drafts, draft_tokens, accepted, generated), strict=True))
    finished = 'request_success_total{engine="0",finished_reason="length"'

    def add(line: str) -> str:
        name, _, value = line.partition("{")[0], *line.rpartition(" ")[1:]
        more = next((count for key, count in grown.items() if name.endswith(f"{key}_total")), finished in line)
        return f"{line.rpartition(' ')[0]} {float(value) + more}" if more else line

    before = recorded("vllm-draft", "metrics-after")
    text = "".join(str(chunk) for chunk in before.chunks)
    return [before, before, replace(before, chunks=["\n".join(map(add, text.splitlines())) + "\n"])]


def test_without_the_flag_counters_tell_the_sums_and_advice_names_the_flag() -> None:
    chat = without_details(recorded("vllm-draft", "run-chat-greedy"))
    metrics = counters(drafts=7, draft_tokens=28, accepted=16, generated=24)
    found = run(vllm(chat=chat, metrics=metrics))
    summary = summary_of(found)
    assert (summary.source, summary.num_draft_tokens, summary.num_accepted_tokens) == (StepSource.CHUNKS, 28, 16)
    config = of_kind(found, RunStarted)[0].config
    assert "inferred" in advice(config, summary)
    assert "--per-request-spec-decode-metrics detailed" in advice(config, summary)


@pytest.mark.parametrize("hidden", ["none", "per_step", "metrics"])
def test_a_text_with_fewer_drafts_than_steps_shows_no_rejection_that_is_not_reported(hidden: str) -> None:
    answer = recorded("vllm-ngram", "run-chat-sampled")
    chat = replace(answer, chunks=[str(chunk).replace(f'"{hidden}', '"other') for chunk in answer.chunks])
    found = run(vllm(chat=chat, metrics=counters(drafts=6, draft_tokens=24, accepted=0, generated=24)))
    summary, steps = summary_of(found), final_steps(found)
    assert (summary.num_drafts, summary.num_draft_tokens, summary.num_steps) == (6, 24, 24)
    assert summary.block_efficiency in {None, 1.0}
    assert sum(step.num_draft_tokens for step in of_kind(found, Step)) == 4 * 23
    assert sum(step.num_draft_tokens for step in steps) <= summary.num_draft_tokens


@pytest.mark.parametrize(("generated", "source"), [(24, StepSource.SERVER), (25, StepSource.CHUNKS)])
def test_counters_show_that_a_text_was_written_without_a_draft(generated: int, source: StepSource) -> None:
    chat = without_details(in_pairs(recorded("vllm-ngram", "run-chat-sampled")))
    found = run(vllm(chat=chat, metrics=counters(drafts=0, draft_tokens=0, accepted=0, generated=generated)))
    summary, steps = summary_of(found), final_steps(found)
    assert {summary.source, *(step.source for step in steps)} == {source}
    if source is StepSource.SERVER:
        assert (summary.num_steps, summary.block_efficiency, summary.num_draft_tokens) == (24, 1.0, 0)
        assert not advice(of_kind(found, RunStarted)[0].config, summary)


def test_with_neither_only_the_text_is_claimed() -> None:
    chat = without_details(recorded("vllm-draft", "run-chat-greedy"))
    found = run(vllm(chat=chat, metrics=Answer(["nothing"], 404)))
    summary = summary_of(found)
    assert summary.source is StepSource.TEXT
    assert (summary.draft_acceptance_rate, summary.block_efficiency, summary.num_draft_tokens) == (None, None, 0)
    assert "only the text" in advice(of_kind(found, RunStarted)[0].config, summary)


@pytest.mark.parametrize("name", ["run-chat-greedy", "run-chat-sampled"])
def test_steps_that_came_at_once_are_told_apart_at_the_end(name: str) -> None:
    answer = recorded("vllm-draft", name)
    alone, found = final_steps(run(vllm(chat=answer))), run(vllm(chat=in_pairs(answer)))
    live, together = of_kind(found, Step), final_steps(found)
    assert len(live) < len(alone)
    for field in ("index", "position", "drafted", "num_accepted", "emitted", "emitted_kinds", "emitted_texts"):
        assert [getattr(step, field) for step in together] == [getattr(step, field) for step in alone]
    assert sum(step.total_ms for step in together[2:]) == pytest.approx(sum(step.total_ms for step in live[1:]))
    assert summary_of(found).block_efficiency == pytest.approx(summary_of(run(vllm(chat=answer))).block_efficiency)


def test_logprobs_reach_those_who_check() -> None:
    with FakeServer(vllm(raw=recorded("vllm-ngram", "completion-sampled"))) as fake:
        server = identify(fake.url)
        with server.client() as client:
            chunks = list(stream_chunks(client, server, a_request(chat=False), lambda: None, top_logprobs=2))
    tokens = [token for chunk in chunks for token in chunk.tokens]
    assert len(tokens) == 24
    assert all(token.logprob <= 0 and len(token.top) >= 2 for token in tokens)


# --- SGLang and llama-server --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_new", [True, False])
def test_steps_of_sglang(is_new: bool) -> None:
    found = run(sglang(is_new=is_new), chat=False)
    steps = of_kind(found, Step)
    assert [(step.num_draft_tokens, step.num_accepted) for step in steps] == [(0, 0), (3, 3), (3, 1)]
    assert [step.emitted_text for step in steps] == ["One", " two three four five", " six seven"]
    assert steps[2].drafted == (105, UNKNOWN_ID, UNKNOWN_ID)
    assert summary_of(found).draft_acceptance_rate == pytest.approx(4 / 6)


def test_a_request_that_the_server_aborts_is_a_failure_in_its_words() -> None:
    end = {"type": "abort", "message": "The cache is full.\nTrace"}
    events = [
        {"text": "One", "output_ids": [100], "meta_info": {"completion_tokens": 1, "finish_reason": reason}}
        for reason in (None, end)
    ]
    summary = summary_of(run(sglang() | {"/generate": as_stream(events)}, chat=False))
    assert summary.text == "One"
    assert summary.finish_reason is FinishReason.ERROR
    assert "(The cache is full)" in str(summary.error)


def test_sglang_that_reports_sums_only_at_the_end() -> None:
    found = run(sglang(reports_steps=False), chat=False)
    assert {step.source for step in of_kind(found, Step)} == {StepSource.CHUNKS}
    summary = summary_of(found)
    assert (summary.source, summary.num_drafts, summary.num_draft_tokens) == (StepSource.SERVER, 2, 6)
    assert (summary.num_steps, summary.block_efficiency) == (3, pytest.approx(summary.num_tokens / 3))


def test_tokens_without_ids_and_logprobs_are_no_step_and_a_stop_text_is_known_by_either_name() -> None:
    answer = recorded("vllm-draft", "run-chat-greedy")
    renames = {"token_ids": "a", "logprobs": "b", "stop_reason": "c"}
    ends = ('"finish_reason":"length"', '"matched_stop":"\\n","finish_reason":"stop"')
    chunks = [str(chunk).replace(*ends) for chunk in answer.chunks]
    for old, new in renames.items():
        chunks = [chunk.replace(f'"{old}":', f'"{new}":') for chunk in chunks]
    with FakeServer(vllm(chat=replace(answer, chunks=chunks))) as fake:
        server = identify(fake.url)
        with server.client() as client:
            found = list(stream_chunks(client, server, a_request(), lambda: None))
    assert not any(chunk.is_step for chunk in found if chunk.tokens)
    assert {chunk.finish for chunk in found if chunk.finish} == {FinishReason.STOP}


@pytest.mark.parametrize("name", ["run-raw-greedy", "run-raw-sampled"])
def test_steps_of_llama_server_are_reported_as_they_arrive(name: str) -> None:
    last = recorded("llama-draft", name).chunks[-1]
    assert isinstance(last, str)
    timings = json.loads(last.removeprefix("data: "))["timings"]
    found = run(llama_server(raw=recorded("llama-draft", name)))
    steps, summary = of_kind(found, Step), summary_of(found)
    assert {step.source for step in steps} == {StepSource.SERVER}
    assert not of_kind(found, StepsCounted)
    assert (summary.num_draft_tokens, summary.num_accepted_tokens) == (timings["draft_n"], timings["draft_n_accepted"])
    assert sum(len(step.emitted) for step in steps) == summary.num_tokens == timings["predicted_n"]
    assert summary.block_efficiency == pytest.approx(summary.num_tokens / len(steps))
    assert summary.finish_reason is FinishReason.LENGTH


# --- Logs ---------------------------------------------------------------------------------------------------------


SAMPLED = recorded("vllm-draft", "run-chat-sampled")


@pytest.mark.parametrize(
    ("answers", "shown"),
    [
        (vllm(chat=SAMPLED), "vLLM 0.32.0"),
        (vllm(chat=in_pairs(SAMPLED)), "vLLM 0.32.0"),
        (llama_server(), "llama-server b0-unknown"),
    ],
    ids=["vllm", "in pairs", "llama"],
)
def test_a_log_lacks_what_the_server_did_not_report_and_opens_everywhere(
    answers: dict[str, Any], shown: str, tmp_path: Any
) -> None:
    found = run(answers)
    path = tmp_path / "run.jsonl"
    with RunLogWriter(path) as writer:
        for event in found:
            writer.write(event)
    log = read_run_log(path)
    assert not log.problems
    engine = log.run["config"]["engine"]
    assert set(engine) >= {"product", "version", "address"}
    assert "device" not in log.run["config"]
    for record in log.steps:
        assert not {"draft_probs", "target_probs", "draft_ms", "verify_ms", "sample_ms"} & set(record)
    assert log.summary is not None
    assert not {"cost_coefficient", "peak_memory_mb", "predicted_speedup"} & set(log.summary)
    again = list(events(log))
    assert [step.num_accepted for step in of_kind(again, Step)] == [step.num_accepted for step in final_steps(found)]
    assert [step.source for step in of_kind(again, Step)] == [step.source for step in final_steps(found)]
    assert summary_of(again).draft_acceptance_rate == summary_of(found).draft_acceptance_rate
    assert request_from_config(log.run["config"]).engine == engine["address"]
    for export, name in ((export_csv, "a.csv"), (export_html, "a.html"), (export_jsonl, "a.jsonl")):
        export(tmp_path / name, log)
        text = (tmp_path / name).read_text("utf-8")
        assert not re.search(r"(^|[\s>,:])nan\b", text, re.IGNORECASE)
    page = (tmp_path / "a.html").read_text("utf-8")
    assert f"smol on {shown}" in page
    assert "are damaged" not in page, "steps that the server sent at once are no damage"
    assert not re.search(r"[ .\dLHM]nan", page), "parts of a step that a server doesn't report aren't drawn"
    is_inferred = any(step.source is StepSource.CHUNKS for step in final_steps(found))
    assert ("Steps are inferred" in page) is is_inferred
    assert "outrider sweep --engine" in page
    assert list(read_run_log(tmp_path / "a.jsonl").records())[1:] == list(log.records())[1:]


# --- Stopping -----------------------------------------------------------------------------------------------------


def test_a_stop_ends_the_request_on_the_server_and_keeps_the_text() -> None:
    chat = recorded("vllm-draft", "run-chat-sampled").cut(6, Fault.WAITS)
    controls = RunControls()
    with FakeServer(vllm(chat=chat)) as fake:
        server = identify(fake.url)
        found: list[Event] = []
        for event in ServerSession(server).run(a_request(engine=fake.url), controls):
            found.append(event)
            if len(of_kind(found, Step)) == 3:
                controls.cancel()
        assert fake.hung_up.wait(10)
    summary = summary_of(found)
    assert summary.finish_reason is FinishReason.CANCELLED
    assert summary.text == "".join(step.emitted_text for step in of_kind(found, Step)) != ""


def test_closing_a_run_ends_the_request_even_before_an_answer() -> None:
    with FakeServer(vllm(chat=Answer([Fault.WAITS], 200, {"content-type": "text/event-stream"}))) as fake:
        session = ServerSession(identify(fake.url))
        controls = RunControls()
        threading.Timer(0.2, controls.cancel).start()
        found = list(session.run(a_request(engine=fake.url), controls))
        assert summary_of(found).finish_reason is FinishReason.CANCELLED
        assert fake.hung_up.wait(10)


def test_the_prefill_ends_with_the_first_token() -> None:
    found = run(vllm())
    kinds = [type(event) for event in found if not isinstance(event, Finished)]
    assert kinds.index(PrefillDone) == kinds.index(Step) - 1
    assert of_kind(found, PrefillDone)[0].num_prompt_tokens == 42 == of_kind(found, Step)[0].position
