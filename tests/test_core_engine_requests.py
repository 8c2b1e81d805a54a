"""What a server is asked, in which words, and what it must not be asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from core.controls import RunControls
from core.engines import client
from core.engines.client import Client
from core.engines.metrics import read_metrics
from core.engines.server import identify
from core.engines.session import ServerSession
from core.errors import ServerRefusedError, SettingsError
from core.settings import Coupling, SamplingParams
from core.types import Finished, FinishReason, PrefillDone, RunStarted
from tests.fake_servers import (
    Answer,
    FakeServer,
    Fault,
    a_request,
    as_json,
    as_stream,
    llama_server,
    recorded,
    sglang,
    vllm,
)
from tests.test_core_engine_steps import run

pytestmark = pytest.mark.usefixtures("keys")

LOADED, UNLOADED = "org/Loaded-GGUF:Q4 K", "a first one"
LOOK = "?model=org%2FLoaded-GGUF%3AQ4%20K&autoload=false"
"""A page of the loaded model, in a request that loads none."""


def test_every_setting_of_the_sampler_is_sent() -> None:
    sampling = SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1)
    with FakeServer(vllm()) as fake:
        server = identify(fake.url)
        wanted = a_request(sampling=sampling, seed=3, stop=("x",), chat=False, engine=fake.url)
        list(ServerSession(server).run(wanted))
        (body,) = fake.bodies("/v1/completions")
    expected = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "seed": 3, "stop": ["x"], "max_tokens": 24}
    assert {name: body[name] for name in expected} == expected
    assert (body["prompt"], body["repetition_penalty"], body["model"]) == ("Go", 1.0, "smol")


def test_settings_that_a_server_cannot_take_are_refused() -> None:
    with FakeServer(vllm()) as fake:
        session = ServerSession(identify(fake.url))
        for more in ({"coupling": Coupling.GUMBEL}, {"baseline": True}, {"inspect": True}, {"forced": (1,)}):
            with pytest.raises(SettingsError, match="server can't"):
                next(session.run(a_request(**more)))
        assert not fake.bodies("/v1/chat/completions")


def router(*, shows_slots: bool = True) -> dict[str, Any]:
    """What a llama-server with several models answers: as one for each, but all must be told which."""
    missing = as_json({"error": {"code": 400, "message": "model name is missing from the request"}}, 400)
    one = llama_server()

    def needs_model(answer: Answer) -> Any:
        return lambda body: answer if body.get("model") in {LOADED, UNLOADED} else missing

    models = [
        {"id": name, "owned_by": "llamacpp", "status": {"value": status}}
        for name, status in ((UNLOADED, "unloaded"), (LOADED, "loaded"))
    ]
    return {
        "/v1/models": as_json({"data": models}),
        "/props": as_json({"role": "router", "build_info": "b7400", "default_generation_settings": {"n_ctx": 0}}),
        "/slots": missing,
        "/metrics": missing,
        **{f"{path}{LOOK}": one[path] for path in ("/props", "/slots", "/metrics") if shows_slots or path != "/slots"},
        **{path: needs_model(one[path]) for path in ("/apply-template", "/completion")},
    }


@pytest.mark.parametrize("target", [LOADED, UNLOADED])
def test_a_router_is_told_the_model_and_a_look_at_it_loads_none(target: str) -> None:
    with FakeServer(router()) as fake:
        server = identify(fake.url)
        assert (server.models, server.model("")) == ((LOADED, UNLOADED), LOADED)
        assert (server.context_length, server.speculation.method) == (1024, "draft-simple")
        with server.client() as client:
            assert read_metrics(client, server.query("")) == server.metrics is not None
        *found, end = ServerSession(server).run(a_request(target=target, engine=fake.url))
        bodies = [body for _, _, body in fake.requests if body is not None]
        pages = [path for path, _, body in fake.requests if body is None and "?" in path]
    assert isinstance(end, Finished)
    assert end.summary.finish_reason is FinishReason.LENGTH
    assert [body["model"] for body in bodies] == [target] * 2
    assert all("autoload=false" in path for path in pages)
    # What one model does says nothing about another.
    (config,) = (event.config for event in found if isinstance(event, RunStarted))
    assert ("num_draft_tokens" in config, "method" in config["engine"]) == (target == LOADED, target == LOADED)
    other = server.for_model(target)
    assert (other.model(""), other.context_length) == (target, 1024 if target == LOADED else None)
    with pytest.raises(ServerRefusedError, match="no model"):
        server.query("another")


def test_a_router_that_shows_no_slots_is_identified() -> None:
    for status in (400, 500):
        with FakeServer(router(shows_slots=False) | {f"/slots{LOOK}": as_json({}, status)}) as fake:
            assert identify(fake.url).metrics is not None
    with FakeServer({**router(), f"/props{LOOK}": as_json({}, 400)}) as fake:
        assert identify(fake.url).version == "b7400"


def test_a_model_of_a_router_that_sleeps_comes_before_unloaded_ones_and_is_not_woken() -> None:
    models = [
        {"id": name, "owned_by": "llamacpp", "status": {"value": status}}
        for name, status in ((UNLOADED, "unloaded"), (LOADED, "sleeping"))
    ]
    with FakeServer(router() | {"/v1/models": as_json({"data": models})}) as fake:
        server = identify(fake.url)
        asked = {path.partition("?")[0] for path, _, _ in fake.requests}
    assert (server.models, server.metrics, server.speculation.is_on) == ((LOADED, UNLOADED), None, None)
    assert f"{LOADED} doesn't report whether it drafts" in server.text
    assert asked == {"/v1/models", "/props"}


def test_a_server_with_one_model_is_asked_for_its_pages_without_a_name() -> None:
    with FakeServer(llama_server()) as fake:
        server = identify(fake.url)
        list(ServerSession(server).run(a_request(engine=fake.url)))
        (body,) = fake.bodies("/completion")
        assert not [path for path, _, _ in fake.requests if "?" in path]
    assert (server.query(""), body["model"]) == ("", server.models[0])
    assert body["prompt"] == json.loads(str(recorded("llama-draft", "apply-template").chunks[0]))["prompt"]


def test_a_model_without_a_chat_template_gets_the_bare_prompt_from_llama_server() -> None:
    """For which llama-server itself would write ChatML; it does where a template is asked for."""
    stand_in = "{%- for message in messages -%}\n  {{- '<|im_start|>' + message.role + '\n' -}}\n{%- endfor -%}"
    with FakeServer({**llama_server(), "/props": as_json({"chat_template": stand_in})}) as fake:
        server = identify(fake.url)
        for changes in ({}, {"chat": True}, {"system": "Be brief."}):
            list(ServerSession(server).run(a_request(engine=fake.url, **changes)))
        prompts = [body["prompt"] for body in fake.bodies("/completion")]
    assert prompts[0] == "Go"
    assert all("<|im_start|>" in prompt for prompt in prompts[1:])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("page", "num_before", "reason"),
    [
        ("/metrics", 1, FinishReason.CANCELLED),
        ("/apply-template", 0, FinishReason.CANCELLED),
        ("/metrics", 2, FinishReason.LENGTH),  # The text is complete; only its counters are missing.
    ],
)
def test_a_stop_ends_each_wait_for_a_page(
    page: str, num_before: int, reason: FinishReason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READ_S", 3_600.0)
    controls = RunControls()

    def waits(_: object) -> Answer:
        controls.cancel()
        return Answer([Fault.WAITS])

    answers: dict[str, Any] = llama_server(
        raw=as_stream([{"content": "a"}, {"content": "", "stop": True, "stop_type": "limit"}])
    )
    answers[page] = [answers[page]] * num_before + [waits]
    with FakeServer(answers) as fake:
        server = identify(fake.url)
        *_, end = ServerSession(server).run(a_request(engine=fake.url), controls)
        assert fake.hung_up.wait(10)
    assert isinstance(end, Finished)
    assert end.summary.finish_reason is reason


@pytest.mark.timeout(60)
@pytest.mark.parametrize("chat", [None, False], ids=["page", "text"])
def test_a_stop_while_a_connection_is_made_ends_it_as_soon_as_it_is_there(
    chat: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, hang_up = socket.create_connection, Client._hang_up
    controls, hung_up = RunControls(), threading.Event()

    def late(*given: Any, **more: Any) -> socket.socket:
        controls.cancel()
        hung_up.wait(10)
        return connect(*given, **more)

    def hangs_up(self: Client) -> None:
        hang_up(self)
        hung_up.set()

    answers = {**llama_server(), "/apply-template": Answer([Fault.WAITS]), "/completion": Answer([Fault.WAITS])}
    with FakeServer(answers | {"/metrics": as_json({}, 501)}) as fake:
        server = identify(fake.url)
        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_connection", late)
            patch.setattr(Client, "_hang_up", hangs_up)
            *_, end = ServerSession(server).run(a_request(chat=chat, engine=fake.url), controls)
    assert isinstance(end, Finished)
    assert end.summary.finish_reason is FinishReason.CANCELLED
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("outrider-")]


def test_half_a_character_in_a_prompt_is_replaced_as_it_is_here() -> None:
    with FakeServer(vllm()) as fake:
        *_, end = ServerSession(identify(fake.url)).run(a_request(prompt="Hi \ud83d there", engine=fake.url))
        (body,) = fake.bodies("/v1/chat/completions")
    assert isinstance(end, Finished)
    assert end.summary.finish_reason is FinishReason.LENGTH
    assert body["messages"][-1]["content"] == "Hi ? there"


@pytest.mark.parametrize("make", [vllm, llama_server])
def test_a_gateway_may_answer_with_a_web_page_where_a_server_has_none(make: Callable) -> None:
    page = Answer(["<!doctype html><title>Portal</title>"], 200, {"content-type": "text/html"})
    pages = ("/version", "/metrics", "/props", "/slots", "/server_info")
    with FakeServer({**make(), **dict.fromkeys(pages, page)}) as fake:
        server = identify(fake.url)
        assert (server.version, server.metrics, server.speculation.is_on) == ("unknown", None, None)
        *_, end = ServerSession(server).run(a_request(engine=fake.url))
    assert isinstance(end, Finished)
    assert end.summary.finish_reason is FinishReason.LENGTH
    assert end.summary.text


def sglang_chat(body: dict[str, Any]) -> Answer:
    """SGLang's answer with its chat template and a reasoning parser: a step of 3 tokens each of thought and answer."""
    words = [" a", " b", " c"]
    events: list[Any] = []
    for is_thought in (True, False):
        is_apart = is_thought and body.get("separate_reasoning", True)
        scored = [{"token": word, "logprob": -0.5} for word in words]
        delta = {"reasoning_content" if is_apart else "content": "".join(words)}
        events.append({"choices": [{"delta": delta, "logprobs": None if is_apart else {"content": scored}}]})
    return as_stream([*events, {"choices": [{"delta": {}, "finish_reason": "stop"}]}])


def test_sglang_is_asked_to_send_reasoning_as_text_as_it_sends_no_logprobs_with_it() -> None:
    with FakeServer({**sglang(), "/v1/chat/completions": sglang_chat}) as fake:
        *_, end = ServerSession(identify(fake.url)).run(a_request(target="tiny", engine=fake.url))
    assert isinstance(end, Finished)
    assert (end.summary.num_tokens, end.summary.text) == (6, " a b c a b c")


@pytest.mark.parametrize(
    ("steps", "width", "nodes", "k"),
    [(1, 1, 16, 15), (3, 1, 4, 3), (1, 1, 2, 1), (3, 4, 16, 3), (None, None, 6, 5), (5, [], 6, 5)],
)
def test_the_k_of_sglang_is_the_length_of_what_it_drafts(steps: Any, width: Any, nodes: int, k: int) -> None:
    """Of a block that is drafted in one step, of a chain, and of a tree."""
    found = {"steps": steps, "draft_tokens": nodes}
    sizes = {f"speculative_num_{name}": value for name, value in found.items()}
    info = {"model_path": "m", "speculative_algorithm": "DFLASH", "speculative_eagle_topk": width, **sizes}
    with FakeServer({**sglang(), "/server_info": as_json(info)}) as fake:
        found = identify(fake.url).speculation
    assert found.num_draft_tokens == k
    assert found.text.endswith(f"up to {k} tokens per step" if k > 1 else "up to 1 token per step")


def test_the_prefill_is_timed_from_the_request_that_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def takes(seconds: float, answer: Any) -> Callable[[Any], Any]:
        def answered(_body: Any) -> Any:
            nonlocal now
            now += seconds
            return answer

        return answered

    refused = takes(100.0, as_json({"error": {"message": "The model has no chat template."}}, 400))
    with FakeServer(vllm(chat=refused, raw=takes(1.0, recorded("vllm-draft", "run-raw-sampled")))) as fake:
        server = identify(fake.url)
        with monkeypatch.context() as patch:
            patch.setattr(client.time, "perf_counter", lambda: now)
            events = list(ServerSession(server).run(a_request(engine=fake.url)))
    assert [event.prefill_ms for event in events if isinstance(event, PrefillDone)] == [1000.0]


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ([["Sky"], [" blue", "</"], ["ans", "wer>", " x"]], ["Sky", "Sky blue</", "Sky blue</"]),
        ([["Sky"], ["<"], ["blue", "</answer>"]], ["Sky", "Sky<", "Sky< blue"]),
    ],
)
def test_sglang_streams_the_beginning_of_a_stop_text_which_is_cut_from_the_end(
    words: list[list[str]], texts: list[str]
) -> None:
    events, rows = [], []
    for step, text in zip(words, texts, strict=True):
        rows += [[-0.5, 100, word] for word in step]
        finish = {"type": "stop", "matched": "</answer>"} if step is words[-1] else None
        meta = {"completion_tokens": len(rows), "output_token_logprobs": list(rows), "finish_reason": finish}
        events.append({"text": text, "meta_info": meta})
    _, summary = run({**sglang(), "/generate": as_stream(events)}, chat=False, stop=("</answer>",))
    assert summary.text == texts[-1].removesuffix("</")
    assert (summary.finish_reason, summary.num_tokens) == (FinishReason.STOP, len(rows))
