"""The bench: turns that favour nobody, ratios by round, notes on what differs, memory, and the JSON."""

import json
from dataclasses import replace

import pytest
import torch

from core.errors import OutriderError, PromptError
from core.experiments.bench import Bench, to_json
from core.experiments.bench_plan import ASSISTED, GENERATE, PLAIN, num_equal, ratios, spread, turn_order
from core.experiments.contenders import build_all
from tests.fakes import failing, greedy_reference, refusal
from tests.fakes_bench import PROMPTS, REAL, SETTINGS, Fake, K, N, observations, right, small_pair


@pytest.fixture(scope="module")
def pair():
    return small_pair()


# --- Figures ----------------------------------------------------------------------------------------------------


def test_a_spread_is_median_quartiles_and_extremes_and_ratios_are_taken_round_by_round():
    found = spread([4.0, 1.0, 3.0, 2.0, 10.0])
    assert (found.median, found.quartiles, found.extremes) == (3.0, (2.0, 4.0), (1.0, 10.0))
    assert spread([2.0]).quartiles == (2.0, 2.0)
    with pytest.raises(ValueError, match="median"):
        spread([])
    # A machine that is slower in one round slows both.
    assert ratios([20.0, 2.0, 40.0], [10.0, 1.0, 20.0]).values == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="longer"):
        ratios([1.0], [1.0, 2.0])
    for one, other, same in (((1, 2), (1, 2), 2), ((1, 3), (1, 2), 1), ((1,), (1, 2), 1)):
        assert num_equal(one, other) == num_equal(other, one) == same


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_every_contender_runs_in_every_position_equally_often(count):
    turns = [turn_order(count, turn) for turn in range(2 * count)]
    assert all(sorted(turn) == list(range(count)) for turn in turns)
    for place in range(count):
        assert sorted(turn[place] for turn in turns) == sorted(2 * list(range(count)))
    assert turn_order(0, 3) == []


BAD = {
    "num_draft_tokens": (0, 65),
    "rounds": (0,),
    "max_new_tokens": (0,),
    "temperatures": ((), (-1.0,)),
    "seed": (-1,),
    "threads": (0,),
    "draft_layers": (2,),
    "only": (
        *(("nobody",), ("plain:x=1",), ("prompt-lookup:max-ngram=99",), ("prompt-lookup:max-ngram=many",)),
        ("prompt-lookup:depth=1",),
    ),
}


@pytest.mark.parametrize("changes", [{name: value} for name, values in BAD.items() for value in values], ids=str)
def test_bad_settings_are_sentences(changes):
    refusal(OutriderError, replace, SETTINGS, **changes)


# --- Rounds -----------------------------------------------------------------------------------------------------


def test_all_run_on_the_same_prompts_and_seeds_and_the_first_round_does_not_count(pair):
    fakes = [Fake(name, right(pair)) for name in (GENERATE, "other", "third")]
    progress = []
    results = Bench(pair, PROMPTS, SETTINGS, lambda what, done, total: progress.append((done, total))).results(fakes)
    assert sorted(fakes[0].calls) == sorted(fakes[1].calls) == sorted(fakes[2].calls)
    assert len({seed for _, _, seed in fakes[0].calls}) == 6  # Two prompts, in the warm-up and in two rounds.
    assert all(row["tokens_per_second"].values == (N, N) for row in results)
    assert progress[0] == (0, 20), "the references are counted, too"
    assert progress[-1] == (19, 20)


def test_a_peer_that_fails_is_reported_and_our_own_failure_is_raised(pair):
    fail = failing(OutriderError("No kernel.\nsecond line"))
    bench = Bench(pair, PROMPTS, SETTINGS)
    [row] = bench.results([Fake(ASSISTED, fail), Fake(GENERATE, right(pair))])
    assert row["name"] == GENERATE
    assert bench.absent == {ASSISTED: "It failed: No kernel."}
    calls = iter(range(99))

    def fail_later(ids, seed):
        return fail(ids, seed) if next(calls) > len(PROMPTS) else right(pair)(ids, seed)

    rows = Bench(pair, PROMPTS, SETTINGS).results([Fake(GENERATE, right(pair)), Fake(ASSISTED, fail_later)])
    assert [row["name"] for row in rows] == [GENERATE], "what was measured of the others is kept"
    with pytest.raises(OutriderError, match="kernel"):
        bench.results([Fake("draft-model", fail)])


def test_prompts_that_leave_no_room_are_refused(pair):
    with pytest.raises(PromptError, match="128"):
        Bench(pair, PROMPTS, replace(SETTINGS, max_new_tokens=125))


def test_the_real_contenders_together_and_the_document_of_all_results(pair):
    contenders, absent = build_all(pair, replace(SETTINGS, only=tuple(REAL)))
    bench = Bench(pair, PROMPTS, SETTINGS)
    bench.absent = {**absent, "flashspec": "No."}
    document = json.loads(to_json(bench.document(bench.results(contenders))))
    table = {row["name"]: row for row in document["results"]}
    assert list(table) == REAL
    assert not any(row["notes"] for row in table.values())
    generate, plain, drafted = (table[name] for name in (GENERATE, PLAIN, "draft-model"))
    assert generate["tokens_per_forward"] == plain["tokens_per_forward"] == 1.0
    assert generate["ratio_to_generate"]["values"] == [1.0, 1.0]
    assert None not in (drafted["overhead"], drafted["cost_coefficient"])
    tree = table["draft-tree"]
    assert tree["cost_coefficient"] is not None
    assert tree["overhead"] is None  # A step's forwards are as many as its levels.
    assert generate["overhead"] is plain["cost_coefficient"] is None
    assert plain["step_tokens_per_second"]["median"] >= plain["tokens_per_second"]["median"]
    assert len(plain["tokens_per_second"]["values"]) == SETTINGS.rounds
    assert document["schema"] == "outrider.bench/1"
    assert document["config"]["prompts"][0] == {"name": "one", "text": "def f", "num_tokens": 5}
    assert {"torch", "transformers", "device_name", "threads"} <= set(document["environment"])
    assert document["absent"] == [{"name": "flashspec", "reason": "No."}]


# --- Records and notes ------------------------------------------------------------------------------------------


def row_of(pair, seen, reference=None, *others):
    return Bench(pair, PROMPTS, SETTINGS).records([seen, *others], 0.0, reference)[0]


def test_another_greedy_text_is_noted_with_its_position_and_margin(pair):
    reference = [tuple(greedy_reference(pair.target, prompt.ids, N)) for prompt in PROMPTS]
    at = 4
    logits = pair.target.model(torch.tensor([[*PROMPTS[1].ids, *reference[1][:at]]])).logits[0, -1]
    other = int(logits.topk(2).indices[1])
    texts = [reference[0], [*reference[1][:at], other, *reference[1][at + 1 :]]]
    [note] = row_of(pair, observations("peer", seconds=[1], texts=texts), reference)["notes"]
    assert note.startswith(f"a different greedy text after 'two', from token {at + 1} of {N}")
    assert float(note.split(" by ")[1].split()[0]) == pytest.approx(float(logits.max() - logits[other]), rel=0.1)
    # Above temperature 0 another text is expected.
    assert row_of(pair, observations("peer", seconds=[1], texts=texts))["notes"] == []


@pytest.mark.parametrize(
    ("name", "changes", "note"),
    [
        ("peer", {"texts": [range(N - 2)]}, f"writes {N - 2} tokens instead of {N}"),
        ("assisted", {"k": K, "longest_draft": 7}, f"drafts up to 7 tokens per step although K is {K}"),
        ("flashspec-auto", {"k": None, "longest_draft": 6}, "chooses its own K, here up to 6"),
    ],
)
def test_another_length_and_other_drafts_are_noted(pair, name, changes, note):
    reference = [tuple(range(N))] if "texts" in changes else None
    assert row_of(pair, observations(name, seconds=[1], **changes), reference)["notes"] == [note]


def test_ratios_need_the_contender_they_refer_to_and_forwards_are_those_of_the_warm_up(pair):
    seen = observations("x", seconds=[1.0, 2.0], num_forwards=3)
    row = row_of(pair, seen, None, observations(GENERATE, seconds=[2.0, 8.0]))
    assert row["ratio_to_generate"].values == (2.0, 4.0)
    assert row["ratio_to_assisted"] is None
    assert row["tokens_per_forward"] == 3.0
    assert row_of(pair, observations("x", seconds=[1]))["tokens_per_forward"] is None
