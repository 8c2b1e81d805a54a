"""A check of a server that doesn't report all token ids: what wasn't compared is never called exact."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.controls import RunControls
from core.engines.server import identify
from core.engines.steps import Chunk, Token
from core.errors import ServerRefusedError
from core.experiments.check_plan import Verdict
from core.experiments.check_report import identity_text
from core.experiments.servers.answers import Answer as Found
from core.experiments.servers.check import ServerCheckRequest, check_server
from core.experiments.servers.report import ServerReport, report_json, report_sentence
from core.settings import RunRequest, SamplingParams
from tests.fake_servers import Answer, FakeServer, as_json, as_stream, llama_server, recorded, sglang, vllm
from tests.fakes import LetterTokenizer, refusal, table_model
from tests.fakes_check import TableSession
from tests.test_core_server_check import PROMPTS, TARGET, V, draft, draw, speculating
from tests.test_core_server_check import completion as vllm_completion

pytestmark = pytest.mark.usefixtures("clean_environment", "keys")

HALF = 5
"""A token that ends within a character."""


class Halving(LetterTokenizer):
    def decode(self, ids: Sequence[int], **_: object) -> str:
        return "\ufffd" if list(ids) == [HALF] else super().decode(ids)


def chat(word: str, body: dict[str, Any]) -> Answer:
    """SGLang's answer with its chat template: logprobs, but no ids."""
    scored = {"token": word, "logprob": -0.1, "top_logprobs": []}
    events: list[Any] = [
        {"choices": [{"delta": {"content": word}, "logprobs": {"content": [scored]}}]}
        for _ in range(body["max_tokens"])
    ]
    return as_stream([*events, {"choices": [{"delta": {}, "finish_reason": "length"}]}])


def completion(body: dict[str, Any], ids: Sequence[int] = (), last: int = 99) -> Answer:
    """llama-server's answer, exactly the target's or these ids; HALF has no chunk of its own up to that place."""
    sampling, generator = SamplingParams(body["temperature"]), torch.Generator().manual_seed(body["seed"])
    prompt, count = [ord(letter) - 97 for letter in body["prompt"]], body["n_predict"]
    drawn = list(ids)
    while len(drawn) < count:
        drawn.append(draw(TARGET, [*prompt, *drawn], sampling, generator))

    def events() -> Iterator[Any]:
        shared = {"tokens_evaluated": len(prompt)}
        is_half = False
        for place, token in enumerate(drawn, 1):
            timings = {"predicted_n": place, "draft_n": 0, "draft_n_accepted": 0}
            is_hidden = token == HALF and place <= last
            if not is_hidden:
                text = "é" if is_half else chr(97 + token)
                yield {**shared, "content": text, "tokens": [token], "stop": False, "timings": timings}
            is_half = is_hidden
        timings = {"predicted_n": count, "draft_n": 0, "draft_n_accepted": 0}
        yield {**shared, "content": "", "tokens": [], "stop": True, "stop_type": "limit", "timings": timings}

    return as_stream(list(events()))


def checked(
    answers: dict[str, Any],
    *,
    temperature: float,
    baseline: dict[str, Any] | None = None,
    is_raw: bool = False,
    has_draft: bool = False,
) -> ServerReport:
    with FakeServer(answers) as fake, FakeServer(baseline or answers) as other:
        chat = None if "/v1/chat/completions" in answers and not is_raw else False
        shared: dict[str, Any] = {"prompt": "any", "sampling": SamplingParams(temperature), "chat": chat}
        server = identify(fake.url)
        request = ServerCheckRequest(
            server,
            None if baseline else RunRequest(target="target", draft="draft" if has_draft else None, **shared),
            identify(other.url) if baseline else None,
            RunRequest(target=server.models[0], draft=None, num_draft_tokens=None, engine=fake.url, **shared),
            PROMPTS,
            num_samples=200,
            num_tokens=8,
        )
        target = table_model(TARGET, V, ref="target")
        target.tokenizer = Halving(V)
        session = TableSession(target, table_model(draft, V, ref="draft") if has_draft else None)
        *_, last = check_server(lambda: session, request, RunControls())
    return last.report


def sglang_with(answer: Callable[[Any], Answer], *, drafts: bool = True) -> dict[str, Any]:
    info = {} if drafts else {"/server_info": as_json({"model_path": "/models/tiny", "speculative_algorithm": None})}
    return {**sglang(), **info, "/v1/chat/completions": answer}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("is_here", [True, False])
def test_a_server_that_reports_no_ids_is_refused_with_what_to_do(is_here: bool, temperature: float) -> None:
    wrong = sglang_with(lambda body: chat(" pig", body))
    right = None if is_here else sglang_with(lambda body: chat(" sky", body), drafts=False)
    refusal(ServerRefusedError, checked, wrong, temperature=temperature, baseline=right, match="--raw")


def test_texts_that_all_begin_within_a_character_are_not_called_equal() -> None:
    hidden = llama_server(raw=lambda body: completion(body, [HALF, 0]))
    refusal(ServerRefusedError, checked, hidden, temperature=0.0, match="character of several tokens")


def test_texts_that_break_off_are_compared_as_far_as_their_ids_go_and_the_verdict_says_so() -> None:
    report = checked(llama_server(raw=completion), temperature=0.0)
    assert (report.verdict, report.num_partial) == (Verdict.EXACT, 1)
    assert 8 <= report.greedy.num_tokens < 16
    assert "all texts are equal" not in report_sentence(report)
    assert "1 text could be compared only in part" in report_sentence(report)
    assert json.loads(report_json(report))["num_partial"] == 1
    assert identity_text(replace(report.greedy, num_tokens=1, num_prompts=1)) == "1 token equal in 1 text"


@pytest.mark.parametrize("is_here", [True, False])
def test_tokens_that_hide_within_a_character_are_compared_as_one(is_here: bool) -> None:
    right = llama_server(raw=completion)
    plain = {**right, "/slots": as_json([]), "/metrics": as_json({}, 404)}
    report = checked(right, temperature=0.9, baseline=None if is_here else plain)
    assert report.num_partial > 10
    assert report.verdict is Verdict.EXACT
    assert report.distribution is not None
    tested = [test.name for test in report.distribution.tests if test.num_samples]
    assert tested == ["token 1", "token 2", "token 3", "token 4"]

    def never_half(body: dict[str, Any]) -> Answer:
        seeds = (completion({**body, "seed": body["seed"] + 7 * at}) for at in range(99))
        return next(found for found in seeds if len(found.chunks) > body["n_predict"] + 1 or not body["temperature"])

    wrong = llama_server(raw=never_half)
    assert checked(wrong, temperature=0.9, baseline=None if is_here else plain).verdict is Verdict.NOT_EXACT


# --- Names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
def test_a_texts_end_may_be_in_a_near_tie_with_another_token(is_first: bool) -> None:
    def scored(token: int, text: str, name: str, other: str, finish: str | None) -> Any:
        top = [{"token": name, "logprob": -0.7}, {"token": other, "logprob": -0.7001}]
        content = [{"token": name, "logprob": -0.7, "top_logprobs": top}]
        choice = {"delta": {"content": text}, "token_ids": [token], "logprobs": {"content": content}}
        return {"choices": [{**choice, "finish_reason": finish}]}

    line = scored(7, "\n", "\n", "<|end|>", None)
    end = scored(0, "", "<|end|>", "\n", "stop")
    ways = [as_stream([line, end]), as_stream([end])]
    no_drafts = Answer(["# TYPE vllm:x counter\nvllm:x_total 1.0\n"])
    ours, theirs = (vllm(chat=way, metrics=no_drafts) for way in (ways if is_first else reversed(ways)))
    report = checked(ours, temperature=0.0, baseline=theirs)
    assert report.verdict is Verdict.NEAR_TIES
    assert {report.greedy.divergences[0].expected, report.greedy.divergences[0].found} == {"\n", "<|end|>"}


def test_a_name_that_several_tokens_share_shows_no_lead() -> None:
    top = (("\ufffd", -0.7), (" a", -0.8), ("\ufffd", -0.9), ("b", -1.0), ("b", -1.1))
    found = Found((Chunk(0.0, (Token(9, "", -0.7, top, "\ufffd"),)),))
    assert [found.lead(0, name) for name in (" a", "\ufffd", "b", "c")] == [pytest.approx(0.1), None, None, None]


# --- Steps --------------------------------------------------------------------------------------------------------


def test_a_server_whose_steps_are_only_inferred_is_not_known_to_have_drafted_or_accepted_anything() -> None:
    def silent(body: dict[str, Any]) -> Answer:
        """What a server that speculates answers, without the counts at its end."""
        answer = vllm_completion(speculating, body)
        return as_stream([json.loads(str(chunk).removeprefix("data: ")) for chunk in answer.chunks[:-2]])

    reports = {"raw": functools.partial(vllm_completion, speculating)}, {"raw": silent}
    metrics = recorded("vllm-draft", "metrics-after")
    known, inferred = (
        checked(vllm(metrics=metrics, **raw), temperature=0.9, is_raw=True, has_draft=True) for raw in reports
    )
    assert known.num_drafted == known.distribution.num_blocks  # type: ignore[union-attr]
    assert len(known.acceptances) == 2
    assert inferred.num_drafted == 0
    assert "It may not report its steps" in report_sentence(inferred)
    # A text's end cuts the last step, and several may come in one piece: neither shows what was accepted.
    assert not inferred.acceptances
    assert "--per-request-spec-decode-metrics" in inferred.notes[-1]
