"""The bench: who runs when and on what, what falls out, and the document that holds every figure."""

import json
from dataclasses import replace

import pytest
import torch

from core.errors import OutriderError, PromptError
from core.experiments import benching as record
from core.experiments.bench import ASSISTED, GENERATE, PLAIN
from core.experiments.benching import Speculative, check_lengths, line_up, measure, rows, threads, time_bare
from tests.fakes import greedy_reference, is_sentence, play
from tests.fakes_bench import PROMPTS, REAL, SETTINGS, Fake, K, N, right, small_pair


@pytest.fixture(scope="module")
def pair():
    return small_pair()


def test_bare_forwards_leave_the_draft_where_it_can_go_on(pair):
    contender = Speculative(pair, N, K, "draft-model")
    contender.run(PROMPTS[0].ids, temperature=0.0, seed=0)
    runner = contender.drafter._runner
    bare = time_bare(pair.target, runner, K, 6, 5 + N)
    assert bare.step_ms > 0
    assert bare.cost_coefficient is not None
    assert bare.cost_coefficient > 0
    alone = time_bare(pair.target, None, 0, 400, 5 + N)
    assert alone.step_ms > 0
    assert alone.cost_coefficient is None
    assert runner.length <= 6 + K


@pytest.mark.parametrize(
    "changes",
    [
        {"num_draft_tokens": 0},
        {"num_draft_tokens": 17},
        {"rounds": 0},
        {"max_new_tokens": 0},
        {"temperatures": ()},
        {"temperatures": (-1.0,)},
        {"seed": -1},
        {"threads": 0},
        {"draft_layers": 2},
        {"only": ("nobody",)},
        {"only": ("plain:x=1",)},
        {"only": ("prompt-lookup:max-ngram=99",)},
        {"only": ("prompt-lookup:max-ngram=many",)},
        {"only": ("prompt-lookup:depth=1",)},
    ],
)
def test_bad_settings_are_sentences(changes):
    with pytest.raises(OutriderError) as caught:
        replace(SETTINGS, **changes)
    assert is_sentence(str(caught.value))


def test_all_run_on_the_same_prompts_and_seeds_and_the_first_round_does_not_count(pair):
    fakes = [Fake(name, right(pair)) for name in (GENERATE, "other", "third")]
    [comparison] = measure(pair, fakes, PROMPTS, SETTINGS)
    assert sorted(fakes[0].calls) == sorted(fakes[1].calls) == sorted(fakes[2].calls)
    assert len({seed for _, _, seed in fakes[0].calls}) == 6  # Two prompts, in the warm-up and in two rounds.
    for seen in comparison.observations.values():
        assert seen.seconds == [2.0, 2.0]
        assert seen.speeds == [N, N]


def test_contenders_take_turns(pair):
    happened = []

    def note(name):
        play = right(pair)
        return lambda ids, seed: (happened.append(name), play(ids, seed))[1]

    measure(pair, [Fake(name, note(name)) for name in "abc"], PROMPTS[:1], replace(SETTINGS, rounds=6))
    turns = ["".join(happened[start : start + 3]) for start in range(0, len(happened), 3)]
    assert turns == ["abc", "abc", "cba", "bca", "acb", "cab", "bac"]


def test_progress_counts_every_run(pair):
    seen = []
    measure(pair, [Fake("a", right(pair))], PROMPTS, SETTINGS, lambda what, done, total: seen.append((done, total)))
    assert seen[-1] == (5, 6)
    assert {total for _, total in seen} == {6}


def test_a_rival_that_fails_falls_out_and_the_others_go_on(pair):
    def fail(ids, seed):
        raise RuntimeError("no kernel\nsecond line")

    [comparison] = measure(pair, [Fake(ASSISTED, fail), Fake(GENERATE, right(pair))], PROMPTS, SETTINGS)
    assert list(comparison.observations) == [GENERATE]
    assert [item.reason for item in comparison.failed] == ["It failed: no kernel."]


def test_our_own_failure_is_not_hidden(pair):
    def fail(ids, seed):
        raise OutriderError("It broke.")

    with pytest.raises(OutriderError, match="broke"):
        measure(pair, [Fake("draft-model", fail)], PROMPTS, SETTINGS)


def test_prompts_that_leave_no_room_are_refused(pair):
    with pytest.raises(PromptError, match="128"):
        check_lengths(pair, PROMPTS, replace(SETTINGS, max_new_tokens=125))


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_the_real_ones_together(pair):
    contenders, _ = line_up(pair, replace(SETTINGS, only=tuple(REAL)))
    [comparison] = measure(pair, contenders, PROMPTS, SETTINGS)
    table = {row.name: row for row in rows(comparison, PROMPTS, SETTINGS)}
    assert list(table) == REAL
    assert not any(row.notes for row in table.values())
    assert table[GENERATE].tokens_per_forward == table[PLAIN].tokens_per_forward == 1.0
    assert table[GENERATE].ratio_to_generate.values == (1.0, 1.0)
    assert table["draft-model"].overhead is not None
    assert table[GENERATE].overhead is None
    assert table["draft-model"].cost_coefficient is not None
    assert table[PLAIN].cost_coefficient is None
    assert table[PLAIN].step_tokens_per_second.median >= table[PLAIN].tokens_per_second.median


def test_the_document_has_a_schema_and_every_figure(pair):
    contenders, absent = line_up(pair, replace(SETTINGS, only=(GENERATE, PLAIN)))
    [comparison] = measure(pair, contenders, PROMPTS, SETTINGS)
    report = record.Report(
        record.now(),
        record.config_of(SETTINGS, pair, PROMPTS),
        record.environment_of(pair, SETTINGS),
        rows(comparison, PROMPTS, SETTINGS),
        absent,
    )
    document = json.loads(record.to_json(report))
    assert document["schema"] == "outrider.bench/1"
    assert [item["name"] for item in document["results"]] == [GENERATE, PLAIN]
    assert len(document["results"][0]["tokens_per_second"]["values"]) == SETTINGS.rounds
    assert document["config"]["prompts"][0] == {"name": "one", "text": "def f", "num_tokens": 5}
    assert {"torch", "transformers", "device_name", "threads"} <= set(document["environment"])


def test_play_is_what_plain_decoding_says(pair):
    """The reference that rivals are held against is the engine's own, and transformers agrees with it."""
    from core.decode import autoregressive
    from core.types import SamplingParams

    events = autoregressive(pair.target, PROMPTS[0].ids, sampling=SamplingParams(temperature=0.0), max_new_tokens=N)
    assert play(events).ids == greedy_reference(pair.target, PROMPTS[0].ids, N)
