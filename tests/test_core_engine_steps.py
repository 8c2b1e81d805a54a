"""Which of a server's steps came in which piece of its stream, and which of its text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.controls import RunControls
from core.engines import session
from core.engines.address import Address
from core.engines.metrics import difference, parse_metrics
from core.engines.server import Product, Server, Speculation, identify
from core.engines.session import ServerSession, advice
from core.engines.steps import Chunk, StepMaker, Token, align, split_text
from core.experiments.servers.answers import Answer, ask_all
from core.export.run_data import mean_acceptance_length, run_data
from core.export.run_report import run_page
from core.runlog.log import RunLogWriter, to_record
from core.runlog.reading import read_run_log
from core.runlog.replay import steps
from core.settings import RunRequest
from core.types import Finished, FinishReason, Step, Summary
from tests.fake_servers import Answer as Page
from tests.fake_servers import FakeServer, Fault, a_request, as_stream, llama_server, recorded, sglang, vllm


@pytest.mark.parametrize(
    ("sizes", "per_step", "expected"),
    [
        ([1, 3, 1, 5], [(4, 2), (4, 0), (4, 4)], ([(0, 0)], [(4, 2)], [(4, 0)], [(4, 4)])),
        ([1, 1, 3, 1], [(4, 2)], ([(0, 0)], [(0, 0)], [(4, 2)], [(0, 0)])),
        # A rejected draft among steps without one can be any of them.
        ([1, 1, 1, 3, 1], [(4, 0), (4, 2)], ([(0, 0)], None, None, [(4, 2)], [(0, 0)])),
        # The last step was cut by the text's end.
        ([1, 2, 2], [(4, 1), (4, 3)], ([(0, 0)], [(4, 1)], [(4, 3)])),
        # Several steps share a chunk, also the prefill's.
        ([1, 6, 1], [(4, 1), (4, 0), (4, 2), (4, 0)], ([(0, 0)], [(4, 1), (4, 0), (4, 2)], [(4, 0)])),
        ([4, 2], [(4, 2), (3, 3)], ([(0, 0), (4, 2)], [(3, 3)])),
        # They may, in several ways: then no token counts as accepted that can't be.
        ([1, 3, 3], [(4, 1), (4, 1)], ([(0, 0)], None, None)),
        ([1, 3, 1], [(4, 0)], ([(0, 0)], [(0, 0)] * 3, None)),
        ([1, 3], [(4, 4), (4, 1)], ()),
        ([1, 1], [(4, 1), (4, 0)], ()),
        ([0, 1], [(4, 0)], ()),
        ([1, 2], [], ()),
        ([], [(4, 1)], ()),
    ],
)
def test_counts_are_given_only_to_steps_that_they_must_belong_to(
    sizes: list[int], per_step: list[tuple[int, int]], expected: tuple[object, ...]
) -> None:
    assert [steps and list(steps) for steps in align(sizes, per_step)] == list(expected)


def test_a_text_is_never_changed_by_splitting_it() -> None:
    assert split_text("a b", ["a", " b", "<|end|>"]) == ["a", " b", ""]
    assert split_text(" sky is day", ["sky", "is", "day"]) == [" sky", " is", " day"]
    assert "".join(split_text("é!", ["\ufffd", "\ufffd", "!"])) == "é!"


def run(answers: dict[str, Any], **more: Any) -> tuple[list[Step], Summary]:
    """The steps and the summary of a run on a fake server."""
    with FakeServer(answers) as fake:
        server = identify(fake.url)
        wanted = a_request(target=server.model(""), engine=server.address.url, **more)
        *found, end = ServerSession(server).run(wanted)
    assert isinstance(end, Finished)
    return [event for event in found if isinstance(event, Step)], end.summary


def vllm_with_stop(words: Sequence[Sequence[str]], stop: str) -> Callable[[Any], Page]:
    """A step for each list of words, the last of which ends the text; as vLLM, it holds back what may begin `stop`."""

    def answer(body: Any) -> Page:
        has_stop = body.get("include_stop_str_in_output", False)
        held = 0 if has_stop or not body["stop"] else len(stop) - 1
        events, text, sent = [], "", 0
        for place, step in enumerate(words):
            text += "".join(step)
            is_last = place == len(words) - 1
            end = text.index(stop) + len(stop) * has_stop if is_last else max(sent, len(text) - held)
            content = [{"token": word, "logprob": -0.1, "top_logprobs": []} for word in step]
            choice = {"delta": {"content": text[sent:end]}, "token_ids": [len(word) for word in step]}
            ends = {"finish_reason": "stop", "stop_reason": stop} if is_last else {}
            events.append({"choices": [{**choice, "logprobs": {"content": content}, **ends}]})
            sent = end
        return as_stream(events)

    return answer


def test_a_stop_text_leaves_each_token_its_own_text_and_is_cut_from_the_end() -> None:
    words = [["The"], [" sky", " is"], [" blue", "."], [" </"], ["ans", "wer>"]]
    found, summary = run(vllm(chat=vllm_with_stop(words, "</answer>")), stop=("</answer>",))
    # As on this machine, what was shown before the stop text was complete stays in its step.
    assert [list(step.emitted_texts) for step in found] == [*words[:-1], ["", ""]]
    assert summary.text == "The sky is blue. "
    assert summary.finish_reason is FinishReason.STOP
    assert summary.num_tokens == sum(map(len, words))
    (only,), summary = run(vllm(chat=vllm_with_stop([["One", " two", "\n\n", "x"]], "\n")), stop=("\n",))
    assert ("".join(only.emitted_texts), summary.text) == ("One two", "One two")


def test_a_server_that_keeps_the_stop_text_to_itself_loses_nothing_else() -> None:
    ends = {"finish_reason": "stop", "matched_stop": "\n"}
    events = [{"choices": [{"delta": {"content": text}, "token_ids": [1]}]} for text in ("a", " b")]
    _, summary = run(vllm(chat=as_stream([*events, {"choices": [{"delta": {"content": ""}, **ends}]}])), stop=("\n",))
    assert (summary.text, summary.finish_reason) == ("a b", FinishReason.STOP)


def llama_with_steps(steps: Sequence[tuple[int, int, dict[int, bytes]]], end: str = "limit") -> Page:
    """Drafted, accepted and the tokens of each step; as llama-server, nothing is sent within a character."""
    events: list[dict[str, Any]] = []
    text, num_tokens, drafted, accepted = b"", 0, 0, 0
    for num_drafted, num_accepted, tokens in steps:
        drafted, accepted = drafted + num_drafted, accepted + num_accepted
        for token, part in tokens.items():
            text, num_tokens = text + part, num_tokens + 1
            timings = {"predicted_n": num_tokens} | (
                {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
            )
            try:
                events.append({"content": text.decode(), "tokens": [token], "timings": timings})
                text = b""
            except UnicodeDecodeError:
                continue
    return as_stream([*events, {"content": "", "stop": True, "stop_type": end, "timings": timings}])


FACE = "🙂".encode()
LLAMA = {"engine": {"product": "llama-server"}}
SPANNED = [
    (0, 0, {10: b"Hi"}),
    (4, 0, {11: FACE[:1]}),
    (4, 2, {12: FACE[1:2], 13: FACE[2:3], 14: FACE[3:]}),
    (4, 1, {15: b" ok", 16: b"."}),
    (4, 0, {17: b" End"}),
]


def test_a_llama_server_whose_count_is_ahead_by_a_step_has_no_hidden_tokens() -> None:
    events: list[dict[str, Any]] = []
    for total, (drafted, accepted), text in ((1, (0, 0), "a"), (5, (4, 3), "bcde"), (7, (8, 4), "fg")):
        timings = {"predicted_n": total, "draft_n": drafted, "draft_n_accepted": accepted}
        events += [{"content": letter, "tokens": [ord(letter)], "timings": timings} for letter in text]
    end = {"content": "", "stop": True, "stop_type": "limit", "timings": timings}
    found, summary = run(llama_server(raw=as_stream([*events, end])), chat=False)
    assert [(step.emitted_text, step.num_draft_tokens) for step in found] == [("a", 0), ("bcde", 4), ("fg", 4)]
    assert (summary.num_tokens, summary.source) == (7, "server")


def test_what_a_stop_text_cuts_off_is_not_in_the_summary_either() -> None:
    cut = llama_with_steps([(0, 0, {1: b"a"}), (6, 5, {2: b"b", 3: b"c"})], end="word")
    _, summary = run(llama_server(raw=cut), chat=False, stop=("x",))
    assert summary.num_accepted_tokens == sum(summary.num_accepted_tokens_per_pos) == 2


def test_where_a_character_spans_steps_of_llama_server_only_the_text_is_known() -> None:
    found, summary = run(llama_server(raw=llama_with_steps(SPANNED)), chat=False)
    known = [(step.num_draft_tokens, step.num_accepted, step.emitted) for step in found if step.source == "server"]
    assert known == [(0, 0, (10,)), (4, 1, (15, 16)), (4, 0, (17,))]
    (hidden,) = (step for step in found if step.source == "text")
    assert (hidden.emitted[-1], hidden.emitted_text, len(hidden.emitted)) == (14, "🙂", 4)
    assert (summary.num_tokens, summary.num_draft_tokens, summary.num_accepted_tokens) == (8, 16, 3)
    # What is hidden follows from the server's sums: four steps with a draft of 4 behind the prompt's.
    assert (summary.source, summary.num_steps, summary.block_efficiency) == ("server", 5, 8 / 5)
    assert (summary.num_drafts, summary.num_accepted_tokens_per_pos) == (4, ())
    assert "a character spans" in advice(LLAMA, summary, {step.source for step in found})


def test_hidden_steps_whose_drafts_differ_in_length_are_not_counted_as_drafts() -> None:
    first, plain, (_, _, tokens), *others = SPANNED
    _, summary = run(llama_server(raw=llama_with_steps([first, plain, (3, 2, tokens), *others])), chat=False)
    assert (summary.num_drafts, summary.num_draft_tokens, summary.num_accepted_tokens) == (0, 15, 3)
    assert (summary.source, summary.block_efficiency) == ("server", 8 / 5)


@pytest.mark.parametrize(("hidden", "length"), [(4, 1.75), (3, None)])
def test_a_log_of_such_a_run_gives_no_wrong_acceptance_length(
    hidden: int, length: float | None, tmp_path: Path
) -> None:
    first, plain, (_, _, tokens), *others = SPANNED
    answer = llama_with_steps([first, plain, (hidden, 2, tokens), *others])
    found, summary = run(llama_server(raw=answer), chat=False)
    records = [{"type": "run", "schema": "outrider.run/1", "config": LLAMA}]
    records += map(to_record, [*found, Finished(summary)])
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    data = run_data(read_run_log(path))
    assert mean_acceptance_length(data) == length
    assert data.alpha is None
    assert data.figure("block_efficiency") == 8 / 5
    assert any("counts of some steps" in problem for problem in data.problems)


def test_a_log_whose_last_draft_the_texts_end_cut_shows_the_alpha_of_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with FakeServer(vllm()) as fake, RunLogWriter(path) as writer:
        for event in ServerSession(identify(fake.url)).run(a_request(engine=fake.url)):
            writer.write(event)
    data = run_data(read_run_log(path))
    assert data.summary.num_draft_tokens == data.counts.sums.drafted + 1
    assert data.alpha == 1.0


def test_where_rejected_drafts_are_not_shown_no_figure_is_of_the_accepted_ones_alone(tmp_path: Path) -> None:
    path, chat = tmp_path / "run.jsonl", recorded("vllm-ngram", "run-chat-greedy")
    chat = replace(chat, chunks=[str(chunk).replace('"metrics":', '"other":') for chunk in chat.chunks])
    with FakeServer(vllm("vllm-ngram", chat=chat)) as fake, RunLogWriter(path) as writer:
        for event in ServerSession(identify(fake.url)).run(a_request(engine=fake.url)):
            writer.write(event)
    log = read_run_log(path)
    assert log.summary is not None
    assert log.summary["num_accepted_tokens"] > 0
    assert not {"num_drafts", "num_draft_tokens", "draft_acceptance_rate"} & set(log.summary)
    page = run_page(log)
    assert "drafts aren’t known are left out" in page
    assert "Acceptance by draft position" not in page
    # As of a run whose log was cut off.
    for data in (run_data(log), run_data(replace(log, summary=None))):
        assert data.counts.sums.drafted > 0
        assert (data.alpha, mean_acceptance_length(data), data.figure("draft_acceptance_rate")) == (None, None, None)
        assert not data.counts.sums.positions_of(data.summary)


def test_a_text_with_such_a_step_that_breaks_off_is_not_called_a_text_without_counts() -> None:
    answer = llama_with_steps(SPANNED)
    found, summary = run(llama_server(raw=answer.cut(len(answer.chunks) - 2, Fault.DIES)), chat=False)
    assert (summary.finish_reason, summary.source) == (FinishReason.ERROR, "chunks")
    assert (summary.num_drafts, summary.num_draft_tokens, summary.block_efficiency) == (0, 0, None)
    assert "newer" not in advice(LLAMA, summary, {step.source for step in found})


def test_such_a_step_may_go_on_behind_the_character() -> None:
    steps = [(0, 0, {10: b"Hi"}), (4, 3, {11: FACE[:2], 12: FACE[2:], 13: b" a", 14: b" b"}), (4, 0, {15: b" c"})]
    found, _ = run(llama_server(raw=llama_with_steps(steps)), chat=False)
    assert [(step.source, len(step.emitted), step.num_draft_tokens) for step in found] == [
        ("server", 1, 0),
        ("text", 4, 0),
        ("server", 1, 4),
    ]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # Within a known step, and at its end, the counts are certain.
        ([(4, 3, {11: b" a", 12: FACE[:2], 13: FACE[2:], 14: b" b"})], [(4, 3, 4)]),
        ([(4, 1, {11: b" a", 12: FACE[:2]}), (4, 1, {13: FACE[2:], 14: b" b"})], [(4, 1, 2), (4, 1, 2)]),
        # The text ends within the character.
        ([(4, 2, {11: b" a", 12: FACE[:1], 13: FACE[1:2]})], [(4, 2, 3)]),
        ([(0, 0, {11: FACE[:1]}), (0, 0, {12: FACE[1:2]})], [(0, 0, 1), (0, 0, 1)]),
        ([(4, 0, {11: FACE[:1]}), (4, 0, {12: FACE[1:2]})], [(0, 0, 2)]),
    ],
)
def test_tokens_without_a_piece_of_their_own_are_counted(
    steps: list[tuple[int, int, dict[int, bytes]]], expected: list[tuple[int, int, int]]
) -> None:
    answers = llama_server(raw=llama_with_steps([(0, 0, {10: b"Hi"}), *steps]))
    found, summary = run(answers, chat=False)
    assert [(step.num_draft_tokens, step.num_accepted, len(step.emitted)) for step in found[1:]] == expected
    assert summary.num_tokens == 1 + sum(len(tokens) for _, _, tokens in steps)


@pytest.mark.parametrize(("repeats_text", "repeats_ids"), [(True, True), (True, False), (False, False)])
def test_a_text_of_sglang_is_read_whether_or_not_each_piece_repeats_it(repeats_text: bool, repeats_ids: bool) -> None:
    words = ["ha", "ha", "!", " ha", " ha", "ha"]
    rows = [[-0.5, 100 + place, word] for place, word in enumerate(words)]
    events = []
    for count in range(1, len(words) + 1):
        first = 0 if repeats_ids else count - 1
        finish = {"type": "length"} if count == len(words) else None
        meta = {"completion_tokens": count, "output_token_logprobs": rows[first:count], "finish_reason": finish}
        text = "".join(words[0 if repeats_text else count - 1 : count])
        events.append({"text": text, "output_ids": list(range(100 + first, 100 + count)), "meta_info": meta})
    events[-1]["more"] = "x" * 2_000_000  # A long text's last piece is that large.
    found, summary = run(sglang() | {"/generate": as_stream(events)}, chat=False)
    assert [step.emitted_texts for step in found] == [(word,) for word in words]
    assert [token for step in found for token in step.emitted] == list(range(100, 106))
    assert (summary.text, summary.finish_reason) == ("".join(words), FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("pieces", "rows"),
    [
        ([" ha", " ha", "!"], [["ha"], ["ha"], ["!"]]),  # The text of a token alone lacks its space.
        ([" ", " a", " b"], [[" "], [" a"], [" b"]]),
        (["x", "y", "xy🙂", "z"], [["x"], ["y"], ["x", "y", "\ufffd", "\ufffd"], ["z"]]),
    ],
)
@pytest.mark.parametrize("repeats_text", [True, False])
def test_a_text_of_sglang_is_whole_where_the_texts_of_its_tokens_alone_differ_from_it(
    pieces: list[str], rows: list[list[str]], repeats_text: bool
) -> None:
    events: list[dict[str, Any]] = []
    for place, words in enumerate(rows):
        meta = {
            "completion_tokens": sum(map(len, rows[: place + 1])),
            "output_token_logprobs": [[-0.5, 7, word] for word in words],
            "finish_reason": {"type": "length"} if place == len(rows) - 1 else None,
        }
        text = "".join(pieces[0 if repeats_text else place : place + 1])
        events.append({"text": text, "output_ids": [7] * len(words), "meta_info": meta})
    found, summary = run(sglang() | {"/generate": as_stream(events)}, chat=False)
    assert [step.emitted_text for step in found] == pieces
    assert summary.text == "".join(pieces)


def test_a_check_leaves_out_the_drafts_that_it_cannot_place() -> None:
    with FakeServer(llama_server(raw=llama_with_steps(SPANNED))) as fake:
        server = identify(fake.url)
        (answer,) = ask_all(server, [a_request(chat=False)], 1, RunControls()).answers
    assert len(answer.tokens) == 8
    assert answer.tested(server, 0.7) == {5: True, 6: False, 7: False}


@pytest.mark.parametrize(
    ("counts", "accepted"),
    [
        ([[[0, 0]], [[4, 1], [4, 0]]], [0, 1, 0]),
        ([[0, 0], [4, 2]], [0, 2]),  # As older logs have it: a pair for each step.
        ([None, [[4, 3], [4, 0]]], [0, 2]),  # More than the step holds: it stays as it was inferred.
        ([[[0, 0]], [[1, 4]], "x"], [0, 2]),
        ([[[0, 0]], []], [0, 2]),
    ],
)
def test_counts_in_a_log_are_used_where_they_can_be_true(counts: object, accepted: list[int], tmp_path: Path) -> None:
    maker = StepMaker(Speculation(True, None, 4, True), 0.7)
    live = [maker.step(Chunk(0.0, (Token(1, "a"),) * size), 0) for size in (1, 3)]
    records = [{"type": "run", "schema": "outrider.run/1", "config": {"engine": {"product": "vllm"}}}]
    records += [*map(to_record, live), {"type": "steps_counted", "counts": counts}]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    found = list(steps(read_run_log(path)))
    assert [step.num_accepted for step in found] == accepted
    assert [step.index for step in found] == list(range(len(accepted)))
    assert sum(len(step.emitted) for step in found) == 4


@pytest.mark.parametrize(
    ("arrivals", "speed"),
    [
        ((0.0, 0.1, 0.2, 0.3), 10.0),
        ((0.0, 0.1, 0.2), None),  # Two waits are too few.
        ((0.0, 0.002), None),
        ((0.0, 0.01, 0.02, 0.03), None),  # A busy machine needs as long to read a text that is here already.
        (tuple(place / 5_000 for place in range(1_000)), None),  # A proxy kept the text until its end.
    ],
)
def test_a_speed_needs_steps_that_arrive_one_after_another(
    arrivals: tuple[float, ...], speed: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [Chunk(at, (Token(1, "a"),)) for at in arrivals] + [Chunk(arrivals[-1], finish=FinishReason.LENGTH)]
    monkeypatch.setattr(session, "stream_chunks", lambda *_: (chunk for chunk in chunks))
    server = Server(Address.parse("box"), Product.VLLM, "1", ("tiny",), None, Speculation(False))
    request = RunRequest(target="tiny", draft=None, prompt="Go", num_draft_tokens=None, max_new_tokens=1_000)
    *_, end = ServerSession(server).run(request)
    assert isinstance(end, Finished)
    assert end.summary.tokens_per_second == (speed if speed is None else pytest.approx(speed))
    per_token = Answer(tuple(chunks)).ms_per_token
    assert per_token == (None if speed is None else pytest.approx(1e3 / speed))


def test_one_reading_of_each_product() -> None:
    (text,) = recorded("vllm-ngram", "metrics-after").chunks
    ngram = parse_metrics(str(text))
    assert ngram is not None
    assert ngram.draft_tokens
    assert ngram.num_draft_tokens == 4
    assert ngram.waiting == 0
    assert sum(ngram.accepted_per_position) == ngram.accepted_tokens
    (text,) = recorded("llama-draft", "metrics-after").chunks
    llama = parse_metrics(str(text))
    assert llama is not None
    assert llama.requests is None
    assert sum(llama.accepted_per_position) == llama.accepted_tokens
    (text,) = sglang()["/metrics"].chunks  # type: ignore[union-attr]
    eagle = parse_metrics(str(text))
    assert eagle is not None
    assert (eagle.drafts, eagle.accepted_tokens, eagle.running, eagle.waiting) == (40, 60, 1, 2)
    assert eagle.draft_tokens is None
    assert parse_metrics("other_total 3\n") is None


def test_a_restart_shows_in_counters_that_jump_back() -> None:
    first, second = (
        parse_metrics(str(recorded("vllm-ngram", name).chunks[0])) for name in ("metrics-before", "metrics-after")
    )
    assert first is not None
    assert second is not None
    grown = difference(first, second)
    assert grown is not None
    assert grown.draft_tokens == second.draft_tokens - first.draft_tokens
    assert difference(second, first) is None
