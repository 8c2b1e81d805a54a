"""What can go wrong with a server: one clear sentence each, the text so far kept, and no key in any of it."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from core.controls import RunControls
from core.engines import client, session
from core.engines.address import Address, keep_key, key_for
from core.engines.client import Client
from core.engines.server import identify
from core.engines.session import ServerSession
from core.errors import ServerBusyError, ServerError, ServerRefusedError
from core.experiments.servers.answers import ask_all
from core.runlog.log import to_record
from core.types import Event, Finished, FinishReason, RunStarted, StageChanged, Step, StepSource, Summary
from tests.errors import failing
from tests.fake_servers import Answer, FakeServer, Fault, a_request, as_json, as_stream, llama_server, recorded, vllm
from tests.fakes import is_sentence, refusal

pytestmark = pytest.mark.usefixtures("keys")

KEY = "sk-very-secret-1234"


def a_sentence(problem: BaseException | str) -> str:
    """The text of an error, which must be a sentence without a secret."""
    text = str(problem)
    assert is_sentence(text)
    assert KEY not in text
    return text


def a_refusal(error: type[Exception], words: str, call: Callable, *given: object) -> str:
    return a_sentence(refusal(error, call, *given, match=words))


def run(fake: FakeServer, controls: RunControls | None = None, **more: Any) -> tuple[list[Event], Summary]:
    found = list(ServerSession(identify(fake.url)).run(a_request(**more), controls))
    assert isinstance(found[-1], Finished)
    return found, found[-1].summary


def text_of(found: list[Event]) -> str:
    return "".join(event.emitted_text for event in found if isinstance(event, Step))


# --- Before an answer ---------------------------------------------------------------------------------------------


def test_no_server_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        a_refusal(ServerError, "No server answers at", identify, f"http://127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.parametrize(
    "text",
    ["", "ftp://host", "http://", "http://host:port", "http://[::1:8000", "two words", "http://a\x1bb"],
)
def test_what_is_no_address(text: str) -> None:
    a_refusal(ServerRefusedError, "looks like", Address.parse, text)


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (Answer(["{}"], 404), "lists no models"),
        (as_json({"data": []}), "lists no models"),
        (as_json(["x"]), "lists no models"),
        (as_json({"data": [{"id": "gpt", "owned_by": "acme"}]}), "of an unknown kind"),
        (Answer(["<html>hello</html>"], 200, {"content-type": "text/html"}), "answer with JSON"),
        (as_json({"error": "long " * 50 + "x" * 99}, 500), "xxx…"),
    ],
)
def test_something_else_answers(models: Answer, expected: str) -> None:
    with FakeServer({"/v1/models": models}) as fake:
        a_refusal(ServerError, expected, identify, fake.url)


def test_a_model_that_is_not_there() -> None:
    with FakeServer(vllm()) as fake:
        server = identify(fake.url)
        with pytest.raises(ServerRefusedError, match=r"no model 'smoll'; it has smol\. Did you mean smol"):
            next(ServerSession(server).run(a_request(target="smoll")))
    # It may also be gone by the time of the run.
    gone = vllm(chat=recorded("vllm-draft", "error-unknown-model"))
    with FakeServer(gone) as fake, pytest.raises(ServerRefusedError, match="404"):
        run(fake)


def test_a_certificate_that_does_not_fit() -> None:
    with FakeServer(vllm(), tls=True) as fake:
        a_refusal(ServerRefusedError, "SSL_CERT_FILE", identify, fake.url)
    with FakeServer(vllm()) as fake:
        a_refusal(ServerRefusedError, "write http://", identify, fake.url.replace("http", "https"))


def test_a_redirect_is_not_followed() -> None:
    with FakeServer(vllm()) as other:
        for target in (f"{other.url}/v1/models", "/elsewhere"):
            with FakeServer({"/v1/models": Answer([""], 307, {"location": target})}) as fake:
                a_refusal(ServerRefusedError, "redirects", identify, fake.url, KEY)
        assert not other.requests


def test_neither_a_proxy_nor_netrc_sees_a_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "netrc").write_text("default login me password stolen\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with FakeServer({}) as proxy, FakeServer(vllm()) as fake:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        identify(fake.url)
        assert not proxy.requests
        assert all("authorization" not in headers for _, headers, _ in fake.requests)


# --- Keys ---------------------------------------------------------------------------------------------------------


def test_a_wrong_key_and_a_missing_one() -> None:
    with FakeServer(vllm(), key=KEY) as fake:
        for key, expected in ((f"{KEY}-wrong", "refuses the API key"), (None, "requires an API key")):
            assert "OUTRIDER_API_KEY" in a_refusal(ServerRefusedError, expected, identify, fake.url, key)
        for key in ("key\nx", "kéy"):
            a_refusal(ServerRefusedError, "invalid characters", identify, fake.url, key)


def test_a_key_is_kept_for_its_address_only(keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_API_KEY", "for the address of a command")
    with FakeServer(vllm(), key=KEY) as fake, FakeServer(vllm()) as other:
        keep_key(Address.parse(f"{fake.url}/v1"), KEY)
        assert list(keys.values()) == [KEY]
        assert identify(fake.url).key == KEY
        identify(other.url)
        assert all("authorization" not in headers for _, headers, _ in other.requests)
        keep_key(Address.parse(fake.url), "")
        assert not keys
        assert key_for(Address.parse(fake.url)) is None


def test_without_a_keyring_a_key_is_known_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = failing(RuntimeError("no backend"))
    monkeypatch.setattr("keyring.get_password", fail)
    monkeypatch.setattr("keyring.set_password", fail)
    assert key_for(Address.parse("http://a")) is None
    for key in (KEY, ""):
        keep_key(Address.parse("http://a"), key)
        assert (key_for(Address.parse("http://a")) or "") == key


def test_a_key_is_in_no_text_log_or_repr(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = as_json({"error": {"message": f"your key {KEY} may not do this"}}, 400)
    with FakeServer(vllm(chat=echo), key=KEY) as fake:
        server = identify(fake.url, KEY)
        a_refusal(ServerRefusedError, "may not do this", lambda: list(ServerSession(server).run(a_request())))
    login = Address.parse(f"http://me:{KEY}@127.0.0.1:1/v1")
    shown = [repr(server), server.text, repr(server.address), repr(login), str(login), login.url, caplog.text]
    assert not [text for text in shown if KEY in text]
    with FakeServer(vllm(), key=KEY) as fake:
        found = list(ServerSession(identify(fake.url, KEY)).run(a_request()))
    assert not [event for event in found if KEY in repr(event) or KEY in json.dumps(to_record(event))]


def test_credentials_in_an_address_are_sent_and_not_shown() -> None:
    with FakeServer(vllm()) as fake:
        server = identify(fake.url.replace("//", f"//me:{KEY}@"))
        assert server.address.url == fake.url
        assert all(headers["authorization"].startswith("Basic ") for _, headers, _ in fake.requests)


# --- In the middle of an answer -----------------------------------------------------------------------------------


CHAT = recorded("vllm-draft", "run-chat-sampled")


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([Fault.DIES], "closed the connection in the middle"),
        ([], "without saying why"),
        (["data: {not json}\n\n"], "sent unreadable data"),
        (["data: [1, 2]\n\n"], "sent unreadable data"),
        (["data: {" + "x" * 20_000_000 + "\n\n"], "an event of more than 16 MB"),
        (["x" * 20_000_000], "more than 16 MB"),
        (['data: {"error": {"message": "out of memory\\nsorry"}}\n\n'], "out of memory"),
        ([f'data: {{"error": "bad key {KEY}"}}\n\n'], "bad key"),
        (
            ['data: {"choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [1]}]}\n\n'] * 40,
            "more tokens than",
        ),
    ],
    ids=["dies", "just ends", "garbage", "no object", "long event", "long line", "error", "key", "too many"],
)
def test_a_stream_that_breaks_keeps_its_text(chunks: list[Any], expected: str) -> None:
    with FakeServer(vllm(chat=CHAT.cut(6, *chunks)), key=KEY) as fake:
        found = list(ServerSession(identify(fake.url, KEY)).run(a_request()))
    assert isinstance(found[-1], Finished)
    summary = found[-1].summary
    assert summary.finish_reason is FinishReason.ERROR
    assert expected in a_sentence(summary.error or "")
    assert summary.text == text_of(found) != ""


def test_a_stream_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STALL_S", 0.3)
    with FakeServer(vllm(chat=CHAT.cut(6, Fault.WAITS))) as fake:
        found, summary = run(fake)
    assert summary.finish_reason is FinishReason.ERROR
    assert "stopped sending" in a_sentence(summary.error or "")
    assert summary.text == text_of(found) != ""


@pytest.mark.parametrize("headers_first", [True, False])
def test_a_text_may_begin_later_than_it_may_stall(headers_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STALL_S", 0.0)
    waited = threading.Event()

    def check_cancelled() -> None:
        looks.append(None)
        if len(looks) == 4:
            monkeypatch.setattr(client, "STALL_S", 60.0)
            waited.set()

    def chunks() -> Iterator[str]:
        waited.wait(10)
        yield from CHAT.chunks[:1]

    def late(_: object) -> Answer:
        if not headers_first:
            waited.wait(10)
        return replace(CHAT, chunks=chunks())  # type: ignore[arg-type]

    looks: list[None] = []
    with FakeServer({"/text": late}) as fake, Client(Address.parse(fake.url)) as opened:
        found = list(opened.stream("/text", {}, check_cancelled))
    assert len(found) == 1


def test_a_text_that_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "QUEUE_S", 0.3)
    with FakeServer(vllm(chat=CHAT.cut(0, Fault.WAITS))) as fake:
        a_refusal(ServerError, "hasn't begun an answer", run, fake)
        assert fake.hung_up.wait(10)


def test_a_connection_that_the_server_ends_after_a_stream_takes_no_other_request() -> None:
    with FakeServer(llama_server()) as fake:
        requests = [a_request(chat=False)] * 3
        answers = ask_all(identify(fake.url), requests, 1, RunControls()).answers
    assert len({answer.ids for answer in answers}) == 1
    assert len(answers) == len(requests)


def test_a_byte_order_mark_and_events_without_data_cost_no_text() -> None:
    whole = "".join(map(str, CHAT.chunks))
    odd = "\ufeff" + whole.replace("\n\n", "\n\nevent: ping\ndata:\n\n: alive\n\nid: 1\n\n")
    with FakeServer(vllm(chat=CHAT)) as fake, FakeServer(vllm(chat=replace(CHAT, chunks=[odd]))) as other:
        (found, summary), (expected, _) = run(other), run(fake)
    assert summary.finish_reason is FinishReason.LENGTH
    assert text_of(found) == text_of(expected)
    assert [event.config["prompt_token_ids"] for event in found if isinstance(event, RunStarted)] == [
        event.config["prompt_token_ids"] for event in expected if isinstance(event, RunStarted)
    ]


def test_an_answer_that_is_no_stream() -> None:
    with FakeServer(vllm(chat=as_json({"ok": True}))) as fake:
        a_refusal(ServerError, "not an event stream", run, fake)


@pytest.mark.parametrize(
    "value", [None, "x", {}, True, [{}], {"a": [1]}, 10**400], ids=lambda value: type(value).__name__
)
def test_a_field_of_any_kind_counts_as_not_reported(value: Any) -> None:
    events = [dict.fromkeys(("choices", "usage", "metrics", "prompt_token_ids"), value)]
    events += [{"choices": [{"delta": value, "logprobs": value, "token_ids": value, "finish_reason": None}]}]
    events += [{"choices": [{"delta": {"content": "a"}, "logprobs": {"content": value}, "token_ids": value}]}]
    events += [{"choices": [{"delta": {}, "logprobs": {"content": [{"token": "", "logprob": value}]}}]}]
    events += [{"choices": [{"delta": {}, "finish_reason": "stop"}], "metrics": {"speculative_decoding": value}}]
    with FakeServer(vllm(chat=as_stream(events))) as fake:
        assert run(fake)[1].text == "a"
    events = [{"content": "a", "tokens": value, "timings": value, "tokens_evaluated": value}]
    events += [{"content": "b", "tokens": value, "timings": {"predicted_n": value, "draft_n": value}}]
    with FakeServer(llama_server(raw=as_stream([*events, {"stop": True, "timings": value}]))) as fake:
        found = list(ServerSession(identify(fake.url)).run(a_request()))
    assert text_of(found) == "ab"


def test_counts_that_no_step_has_are_not_kept() -> None:
    many, end = 10**7, {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    reported = {"speculative_decoding": {"per_step_drafted": [many], "per_step_accepted": [1]}}
    events = [{"choices": [{"delta": {"content": text}, "token_ids": [1]}]} for text in "ab"]
    with FakeServer(vllm(chat=as_stream([*events, {**end, "metrics": reported}]))) as fake:
        summary = run(fake)[1]
    assert len(summary.num_accepted_tokens_per_pos) < 10
    events = [{"content": "a", "tokens": [1], "timings": {"predicted_n": 1, "draft_n": many}}]
    with FakeServer(llama_server(raw=as_stream([*events, {"stop": True}]))) as fake:
        found = list(ServerSession(identify(fake.url)).run(a_request()))
    assert text_of(found) == "a"
    assert not any(event.drafted for event in found if isinstance(event, Step))
    assert {event.source for event in found if isinstance(event, Step)} == {StepSource.CHUNKS}


# --- Busy servers and restarts ------------------------------------------------------------------------------------


def busy(status: int, **headers: str) -> Answer:
    return as_json({"error": {"message": "slow down"}}, status, **headers)


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter([busy(status, **{"Retry-After": "0.1"}), busy(status), CHAT])
    monkeypatch.setattr(session, "USUAL_WAIT_S", 0.05)
    with FakeServer(vllm(chat=list(waits))) as fake:
        began = time.monotonic()
        found, summary = run(fake)
        assert len(fake.bodies("/v1/chat/completions")) == 3
    assert time.monotonic() - began >= 0.15
    assert summary.finish_reason is FinishReason.LENGTH
    assert len([event for event in found if isinstance(event, StageChanged) and "busy" in event.text]) == 2


@pytest.mark.parametrize(("seconds", "tries"), [("0", 3), ("3600", 1)])
def test_a_server_that_stays_busy_is_left_alone(seconds: str, tries: int) -> None:
    with FakeServer(vllm(chat=busy(429, **{"Retry-After": seconds}))) as fake:
        with pytest.raises(ServerBusyError, match="slow down") as caught:
            run(fake)
        assert len(fake.bodies("/v1/chat/completions")) == tries
    assert caught.value.retry_after == float(seconds)
    a_sentence(caught.value)


def test_a_stop_ends_the_wait_for_a_busy_server() -> None:
    controls = RunControls()
    with FakeServer(vllm(chat=busy(503, **{"Retry-After": "20"}))) as fake:
        found = []
        for event in ServerSession(identify(fake.url)).run(a_request(), controls):
            found.append(event)
            if isinstance(event, StageChanged) and "busy" in event.text:
                controls.cancel()
    assert isinstance(found[-1], Finished)
    assert found[-1].summary.finish_reason is FinishReason.CANCELLED
    assert not [event for event in found if isinstance(event, RunStarted)]


def test_counters_that_jump_back_tell_nothing_about_a_run() -> None:
    quiet = replace(CHAT, chunks=[str(chunk).replace('"metrics":', '"other":') for chunk in CHAT.chunks])
    late, early = (recorded("vllm-draft", name) for name in ("metrics-after", "metrics-before"))
    with FakeServer(vllm(chat=quiet, metrics=[late, late, early])) as fake:
        found, summary = run(fake)
    inferred = [event for event in found if isinstance(event, Step) and event.num_draft_tokens]
    assert summary.num_drafts == len(inferred)


def test_metrics_that_are_garbage_are_left_out() -> None:
    with FakeServer(vllm(metrics=Answer(["{{{ nonsense 1 2 3\n"]))) as fake:
        server = identify(fake.url)
    assert server.metrics is None


@pytest.mark.parametrize(("most_bytes", "size"), [(1_000, 700), (50_000, 1)])
def test_large_or_many_events_of_a_paused_run_wait_at_the_server_and_none_is_lost(
    most_bytes: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", most_bytes)
    monkeypatch.setattr(client, "_LOOK_S", 0.005)
    events = [{"place": place, "more": "x" * size} for place in range(30)]
    are_all_read = threading.Event()

    def parse(self: Client, data: str) -> Any:
        found = json.loads(data)
        if found == events[-1]:
            are_all_read.set()
        return found

    monkeypatch.setattr(Client, "_parse_event", parse)
    with FakeServer({"/text": as_stream(events)}) as fake, Client(Address.parse(fake.url)) as opened:
        stream = opened.stream("/text", {})
        _, first = next(stream)
        assert not are_all_read.wait(0.3)
        assert [first, *(event for _, event in stream)] == events


def test_a_page_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1_000)
    with FakeServer({"/big": Answer(["x" * 600] * 3)}) as fake, Client(Address.parse(fake.url)) as opened:
        a_refusal(ServerError, "sent more than", opened.get_text, "/big")
