"""A check of a server: one that follows its target is right, and one that draws or accepts wrongly is found."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import app.cli.check
from app.__main__ import main
from core.controls import RunControls
from core.engines.server import identify
from core.engines.steps import Token
from core.errors import ServerError, SettingsError
from core.experiments.check_plan import CheckProgress, Verdict
from core.experiments.distribution_statistics import fit_to_top, homogeneity
from core.experiments.prompt_suites import Prompt
from core.experiments.servers.check import ServerCheckRequest, check_server
from core.experiments.servers.report import Acceptance, ServerReport, report_sentence
from core.sampling import probabilities
from core.settings import RunRequest, SamplingParams
from core.verify import verify
from tests.fake_servers import Answer, FakeServer, Fault, as_json, as_stream, vllm
from tests.fakes import fixed_rows, is_sentence, random_rows, refusal, table_model
from tests.fakes_check import TableSession

pytestmark = pytest.mark.usefixtures("clean_environment", "keys")

V, K = 6, 2
PROMPTS = (Prompt("first", "abc"), Prompt("second", "fed"))
TARGET, NOISE = random_rows(V, 10, memory=2, scale=1.5), random_rows(V, 20, memory=2)
Step = Callable[[list[int], SamplingParams, torch.Generator], tuple[list[int], int, int]]
"""From a text to the tokens of a step, and how many were drafted and accepted."""


def draft(ids: Sequence[int]) -> torch.Tensor:
    """A draft that is often right."""
    return TARGET(ids) + NOISE(ids)


@functools.cache
def probs(rows: Any, context: tuple[int, ...], sampling: SamplingParams) -> torch.Tensor:
    return probabilities(rows(list(context)), sampling)


def draw(rows: Any, ids: list[int], sampling: SamplingParams, generator: torch.Generator) -> int:
    return int(torch.multinomial(probs(rows, tuple(ids[-2:]), sampling), 1, generator=generator))


# --- Servers ------------------------------------------------------------------------------------------------------


def speculating(ids: list[int], sampling: SamplingParams, generator: torch.Generator) -> tuple[list[int], int, int]:
    """A step as it should be."""
    drafted: list[int] = []
    for _ in range(K):
        drafted.append(draw(draft, [*ids, *drafted], sampling, generator))
    texts = [tuple([*ids, *drafted[:count]][-2:]) for count in range(K + 1)]
    target_probs = torch.stack([probs(TARGET, text, sampling) for text in texts])
    draft_probs = torch.stack([probs(draft, text, sampling) for text in texts[:K]])
    found = verify(torch.tensor(drafted), draft_probs, target_probs, generator=generator)
    return [*drafted[: found.num_accepted], found.next_token], K, found.num_accepted


def never_testing(
    ids: list[int], sampling: SamplingParams, generator: torch.Generator, rows: Any = draft
) -> tuple[list[int], int, int]:
    """A step that accepts whatever was drafted."""
    emitted: list[int] = []
    for _ in range(K + 1):
        emitted.append(draw(rows, [*ids, *emitted], sampling, generator))
    return emitted, K, K


def wasting(ids: list[int], sampling: SamplingParams, generator: torch.Generator) -> tuple[list[int], int, int]:
    """A step that keeps to the target, and throws most drafts away."""
    if torch.rand((), generator=generator) < 0.2:
        return speculating(ids, sampling, generator)
    return [draw(TARGET, ids, sampling, generator)], K, 0


def plain(ids: list[int], sampling: SamplingParams, generator: torch.Generator) -> tuple[list[int], int, int]:
    return [draw(TARGET, ids, sampling, generator)], 0, 0


def completion(
    step: Step, body: dict[str, Any], *, first: Any = TARGET, heat: float = 1.0, is_behind: bool = False
) -> Answer:
    """vLLM's answer to a request, with its counts; `first` and `heat` are those of the first token.

    `is_behind`: logprobs are those behind the temperature.
    """
    sampling, generator = SamplingParams(body["temperature"]), torch.Generator().manual_seed(body["seed"])
    prompt = [ord(letter) - 97 for letter in body["prompt"]]
    heated = replace(sampling, temperature=sampling.temperature * heat)
    ids, size, counts = [draw(first, prompt, heated, generator)], body["max_tokens"], []
    logprobs = (first(prompt) / ((sampling.temperature or 1.0) if is_behind else 1.0)).log_softmax(-1).tolist()
    parts = [list(ids)]
    while len(ids) < size:
        emitted, drafted, accepted = step([*prompt, *ids], sampling, generator)
        parts.append(emitted[: size - len(ids)])
        ids += parts[-1]
        counts += [(drafted, accepted)] if drafted else []
    events = []
    for place, part in enumerate(parts):
        choice = {
            "text": "".join(chr(97 + token) for token in part),
            "token_ids": part,
            "prompt_token_ids": prompt,
            "finish_reason": "length" if place == len(parts) - 1 else None,
        }
        if place == 0:
            top = {chr(97 + token): logprob for token, logprob in enumerate(logprobs)} if body["logprobs"] else {}
            reported = {"tokens": [chr(97 + ids[0])], "token_logprobs": [logprobs[ids[0]]], "top_logprobs": [top]}
            choice["logprobs"] = reported
        events.append({"choices": [choice]})
    names = ("per_step_drafted", "per_step_accepted")
    reported = dict(zip(names, map(list, zip(*counts, strict=True)), strict=True)) if counts else {}
    events.append({"choices": [], "metrics": {"speculative_decoding": reported} if reported else {}})
    return as_stream(events)


def server(step: Step, first: Any = TARGET, heat: float = 1.0, is_behind: bool = False, **more: Any) -> FakeServer:
    no_template = as_json({"error": {"message": "The model has no chat template."}}, 400)
    answers = vllm(
        chat=no_template, raw=functools.partial(completion, step, first=first, heat=heat, is_behind=is_behind), **more
    )
    return FakeServer(answers)


def checked(
    step: Step,
    *,
    baseline: Step | None = None,
    temperature: float = 0.9,
    samples: int = 300,
    target: Any = TARGET,
    **first: Any,
) -> ServerReport:
    no_drafts = {"metrics": Answer(["# TYPE vllm:x counter\nvllm:x_total 1.0\n"])}
    with server(step, **first) as fake, server(baseline or plain, **no_drafts) as other:
        found = identify(fake.url)
        shared: dict[str, Any] = {"prompt": "any", "sampling": SamplingParams(temperature), "chat": False}
        request = ServerCheckRequest(
            server=found,
            local=None if baseline else RunRequest(target="target", draft="draft", **shared),
            baseline=identify(other.url) if baseline else None,
            request=RunRequest(target=found.models[0], draft=None, num_draft_tokens=None, engine=fake.url, **shared),
            prompts=PROMPTS,
            num_samples=samples,
            num_tokens=40,
        )
        session = TableSession(table_model(target, V, ref="target"), table_model(draft, V, ref="draft"))
        *events, last = check_server(lambda: session, request, RunControls())
    titles = {event.title for event in events if isinstance(event, CheckProgress)}
    assert all("Short" not in title or any(prompt.name in title for prompt in PROMPTS) for title in titles)
    return last.report


def failed(report: ServerReport) -> set[str]:
    assert report.distribution is not None
    return {test.name for test in report.distribution.tests if test.is_failed}


# --- Against the target here --------------------------------------------------------------------------------------


def test_a_server_that_follows_its_target_is_right():
    report = checked(speculating)
    assert report.verdict is Verdict.EXACT
    assert report.is_right
    assert not report.drafts_seldom
    assert "But" not in report_sentence(report)
    assert report.greedy.num_tokens == 2 * 40
    assert report.num_drafted == report.distribution.num_blocks
    assert [test.name for test in report.distribution.tests][:3] == ["own logprobs", "token 1", "token 2"]
    own = report.distribution.tests[0]
    assert own.num_samples == 300
    assert 2 < own.degrees <= 2 * (V - 1)
    greedy, sampled = report.acceptances
    assert greedy.share == pytest.approx(greedy.drawn)
    assert greedy.drawn == greedy.likeliest
    assert abs(sampled.share - sampled.drawn) < 4 * sampled.error
    assert sampled.is_decided
    assert sampled.num_tested > 2 * 40  # One text of each prompt is too few to tell.


def test_drafts_that_nobody_tests_are_found_behind_the_first_token():
    report = checked(never_testing)
    assert report.verdict is Verdict.NOT_EXACT
    assert {"token 2", "bias"} <= failed(report)
    assert "token 1" not in failed(report)
    assert report.distribution.bias > 0.5
    assert not any(divergence.is_near_tie for divergence in report.greedy.divergences)


def test_a_server_that_accepts_far_less_than_its_pair_allows_is_reported():
    report = checked(wasting)
    assert report.verdict is Verdict.EXACT
    assert report.accepts_too_little
    assert not report.is_right
    assert "accepts far fewer drafted tokens" in report_sentence(report)
    assert all(item.share < min(item.drawn, item.likeliest) - 0.1 for item in report.acceptances)
    assert all(item.num_tested <= 2 * 40 for item in report.acceptances)


def test_sampled_texts_with_few_drafts_are_not_called_exact_without_saying_so():
    report = checked(plain)
    assert report.verdict is Verdict.EXACT
    assert report.drafts_seldom
    assert "drafted in only 0 of 300 sampled texts" in report_sentence(report)
    assert not replace(report, speculates=False).drafts_seldom


def test_few_tested_tokens_are_not_enough_to_call_an_acceptance_right():
    few, many = (Acceptance.of(0.7, [(False, 0.6, 0.5), (True, 0.6, 0.5)] * count) for count in (3, 300))
    assert (few.is_far_below, few.is_decided, many.is_far_below, many.is_decided) == (False, False, False, True)
    low = Acceptance.of(0.7, [(False, 0.6, 0.5)] * 20)
    assert low.is_far_below
    assert low.is_decided


@pytest.mark.parametrize(("texts", "verdict"), [("bbbb", Verdict.NEAR_TIES), ("bbcb", Verdict.NOT_EXACT)])
def test_near_ties_are_told_apart_and_what_follows_one_is_judged_as_well(texts, verdict):
    tied = fixed_rows([1.0, 0.99, 0.0, 0.0, 0.0, 0.0])

    def rows(ids: Sequence[int]) -> torch.Tensor:
        return TARGET(ids) if len(ids) == len(PROMPTS[0].text) else tied(ids)

    def scripted(ids: list[int], sampling: SamplingParams, generator: torch.Generator) -> tuple[list[int], int, int]:
        return [ord(texts[len(ids) % len(texts)]) - 97], 0, 0

    report = checked(scripted, temperature=0.0, target=rows)
    assert report.verdict is verdict
    assert report.distribution is None
    worst = report.greedy.divergences[0]
    assert worst.margin == pytest.approx(0.01 if verdict is Verdict.NEAR_TIES else 1.0)


def test_the_fit_to_a_servers_likeliest_tokens_is_calibrated():
    """With many rare tokens, of which some never come, the statistic is as large as its degrees of freedom."""
    generator = torch.Generator().manual_seed(0)
    statistic = degrees = 0.0
    for _ in range(200):
        logits = 2.0 * torch.randn(300, generator=generator, dtype=torch.float64)
        logprobs = logits.log_softmax(0).sort(descending=True).values
        drawn = torch.multinomial(logprobs.exp(), 67, replacement=True, generator=generator).tolist()
        found, count = fit_to_top(logprobs[:20].tolist(), [Token(at, "", float(logprobs[at])) for at in drawn], 1.0)
        assert count >= sum(at < 20 for at in drawn), "a near-tie may make it one token more"
        statistic, degrees = statistic + found.statistic, degrees + found.degrees
    assert 0.8 < statistic / degrees < 1.2


def test_first_tokens_that_follow_the_servers_own_logprobs_tell_other_weights_from_other_sampling():
    assert failed(checked(speculating, first=NOISE)) & {"own logprobs", "token 1"} == {"token 1"}
    assert {"own logprobs", "token 1"} <= failed(checked(speculating, heat=2.0))


@pytest.mark.parametrize("is_behind", [False, True])
def test_logprobs_may_be_reported_before_or_after_the_temperature_and_differ_a_little_each_time(is_behind):
    generator = torch.Generator().manual_seed(1)

    def wobbling(ids: Sequence[int]) -> torch.Tensor:
        return TARGET(ids) + 0.03 * torch.randn(V, generator=generator)

    report = checked(speculating, temperature=0.5, samples=300, first=wobbling, is_behind=is_behind)
    assert report.distribution.tests[0].name == "own logprobs"
    assert "own logprobs" not in failed(report)


# --- Against another server ---------------------------------------------------------------------------------------


def test_without_a_target_here_a_server_without_speculation_stands_for_it():
    assert checked(speculating, baseline=plain, samples=200).verdict is Verdict.EXACT
    report = checked(functools.partial(never_testing, rows=NOISE), baseline=plain, samples=200)
    assert report.verdict is Verdict.NOT_EXACT
    assert "token 2" in failed(report)
    assert "token 1" not in failed(report)


def test_two_samples_of_one_distribution_agree_and_others_do_not():
    rng = random.Random(0)
    same = [Counter(rng.choices(range(4), [5, 3, 1, 1], k=size)) for size in (300, 900)]
    other = Counter(rng.choices(range(4), [1, 3, 5, 1], k=300))
    statistic, degrees = homogeneity(*same)
    assert degrees == 3
    assert statistic < 16
    assert homogeneity(same[1], other)[0] > 50


# --- In the terminal ----------------------------------------------------------------------------------------------


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> TableSession:
    found = TableSession(table_model(TARGET, V, ref="target"), table_model(draft, V, ref="draft"))
    monkeypatch.setattr(app.cli.check, "make_engine", lambda: found)
    return found


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("abc\nfed\n", "utf-8")
    return ["--prompts", str(path), "--samples", "200", "--max-new-tokens", "24"]


@pytest.mark.usefixtures("session")
def test_the_report_and_the_exit_code(prompts, capsys, tmp_path):
    out = tmp_path / "report.json"
    with server(wasting) as fake:
        pair = ["--target", "target", "--draft", "draft", "--json", str(out)]
        assert main(["check", "--engine", fake.url, *pair, *prompts, "--temperature", "0.9"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("Exact as far as tested: no difference in 200 sampled texts")
    assert "far below what the pair allows" in shown
    record = json.loads(out.read_text("utf-8"))
    assert (record["verdict"], record["accepts_too_little"]) == ("exact", True)
    assert fake.url in record["server"]
    with server(speculating) as fake:
        assert main(["check", "--engine", fake.url, "--target", "target", *prompts, "--temperature", "0"]) == 0
    assert "Acceptance" not in capsys.readouterr().out


@pytest.mark.usefixtures("session")
def test_without_a_draft_here_the_report_gives_no_reason_why_its_bias_is_not_measured(prompts, tmp_path):
    out, no_drafts = tmp_path / "report.json", Answer(["# TYPE vllm:x counter\nvllm:x_total 1.0\n"])
    with server(speculating) as fake, server(plain, metrics=no_drafts) as other:
        for reference in (["--target", "target"], ["--baseline-engine", other.url]):
            checks = [*reference, *prompts, "--temperature", "0.9", "--json", str(out)]
            assert main(["check", "--engine", fake.url, *checks]) == 0
            found = json.loads(out.read_text("utf-8"))["distribution"]
            assert (found["bias"], found["bias_error"], found["bias_limit"]) == (None, None, None)


@pytest.mark.usefixtures("session")
def test_of_several_models_the_one_that_was_named_is_checked(prompts, capsys, tmp_path):
    models = as_json({"object": "list", "data": [{"id": name, "owned_by": "vllm"} for name in ("small", "target")]})
    out, no_drafts = tmp_path / "report.json", Answer(["# TYPE vllm:x counter\nvllm:x_total 1.0\n"])
    with server(speculating, models=models) as fake, server(plain, models=models, metrics=no_drafts) as other:
        check = ["check", "--engine", fake.url, *prompts, "--temperature", "0", "--json", str(out)]
        for baseline in ([], ["--baseline-engine", other.url]):
            assert main([*check, "--target", "target", *baseline]) == 0
            assert "\nChecked target against target " in capsys.readouterr().out
            assert json.loads(out.read_text("utf-8"))["model"] == "target"
            assert main([*check, "--target", "draft", *baseline]) == 2
            assert "small, target" in capsys.readouterr().err
        assert {body["model"] for each in (fake, other) for body in each.bodies("/v1/completions")} == {"target"}


@pytest.mark.usefixtures("session")
def test_bad_input_is_one_sentence(prompts, capsys):
    with server(speculating) as fake:
        here = ["--engine", fake.url, "--target", "target"]
        for arguments in (
            ["--engine", fake.url],
            ["--baseline-engine", fake.url],
            [*here, "--baseline-engine", fake.url],
            ["--engine", fake.url, "--baseline-engine", fake.url],
            ["--engine", fake.url, "--baseline-engine", fake.url, "--target", "nix"],
            ["--engine", fake.url, "--baseline-engine", fake.url, "--draft", "draft"],
            [*here, "-k", "3"],
            [*here, "--method", "prompt-lookup"],
            [*here, "--depth", "2"],
            [*here, "--transformers"],
            [*here, "--coupling", "gumbel"],
            [*here, "--samples", "3"],
        ):
            assert main(["check", *prompts, *arguments]) == 2, arguments
            captured = capsys.readouterr()
            assert is_sentence(captured.err.strip().splitlines()[-1])
            assert not captured.out


def test_another_prompt_and_a_server_that_dies_are_errors():
    def other(body: dict[str, Any]) -> Answer:
        return completion(plain, {**body, "prompt": body["prompt"] + "a"})

    for answer, kind in (
        (other, SettingsError),
        (lambda body: completion(plain, body).cut(2, Fault.DIES), ServerError),
    ):
        with FakeServer(vllm(chat=as_json({"error": {"message": "no chat template"}}, 400), raw=answer)) as fake:
            found = identify(fake.url)
            shared: dict[str, Any] = {"prompt": "any", "sampling": SamplingParams(0.0), "chat": False}
            run = RunRequest(target="smol", draft=None, num_draft_tokens=None, engine=fake.url, **shared)
            local = RunRequest(target="target", draft=None, **shared)
            request = ServerCheckRequest(found, local, None, run, PROMPTS, 200, 8)
            refusal(kind, lambda asked=request: list(check_server(TableSession, asked, RunControls())))
