"""The bench: turns that favour nobody, ratios by round, notes on what differs, memory, the JSON; and contenders."""

import json
from dataclasses import replace

import pytest
import torch

from core.drafters.prompt_lookup import PromptLookupDrafter
from core.drafters.registry import METHODS
from core.errors import OutriderError, PromptError, SettingsError
from core.experiments.bench import Bench, Observations, counted, to_json
from core.experiments.bench_plan import (
    ASSISTED,
    AUTO,
    FLASHSPEC,
    FLASHSPEC_AUTO,
    GENERATE,
    PLAIN,
    NotApplicableError,
    Pair,
    Timed,
    default_names,
    known_names,
    num_equal,
    ratios,
    split_name,
    spread,
    turn_order,
)
from core.experiments.contenders import Generate, Outrider, build, build_all, truncated_draft
from core.settings import VerificationRule
from tests.exactness import global_generator_untouched
from tests.fakes import failing, greedy_reference, is_sentence, language_model, refusal, tiny_model, tiny_module
from tests.fakes_bench import PROMPTS, REAL, SETTINGS, Fake, K, N, observations, right, small_pair
from tests.fakes_cli import step


@pytest.fixture(scope="module")
def pair():
    return small_pair()


# --- Figures ----------------------------------------------------------------------------------------------------


def test_a_spread_is_median_quartiles_and_extremes_and_ratios_are_taken_round_by_round():
    found = spread([4.0, 1.0, 3.0, 2.0, 10.0])
    assert (found.median, found.quartiles, found.extremes) == (3.0, (2.0, 4.0), (1.0, 10.0))
    assert spread([2.0]).quartiles == (2.0, 2.0)
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
    "temperatures": ((-1.0,),),
    "seed": (-1,),
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
    assert bench.failed == {(ASSISTED, 0.0): "It failed: No kernel."}
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
    assert document["absent"] == [{"name": "flashspec", "reason": "No.", "temperatures": [0.0]}]


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


@pytest.mark.parametrize("count", [4, 40], ids=["short runs", "long runs"])
def test_equal_steps_that_take_unequal_times_mean_a_busy_machine(pair, count):
    def was_busy(slowdown):
        def run(turn):
            times = [10 * (1 + at / count) * (slowdown if (turn + at) % 4 == 0 else 1) for at in range(count)]
            steps = (replace(step("a"), position=at, total_ms=time) for at, time in enumerate(times))
            return Timed((), 1.0, steps=tuple(steps))

        seen = Observations(Fake(PLAIN), [run(0)] * 2, [[run(turn)] * 2 for turn in range(5)])
        return Bench(pair, PROMPTS, SETTINGS).document([row_of(pair, seen)])["was_busy"]

    assert was_busy(3.0)
    assert not was_busy(1.0), "steps grow slower with the text, evenly"


def test_ratios_need_the_contender_they_refer_to_and_forwards_are_those_of_the_rounds_if_counted(pair):
    seen = observations("x", seconds=[1.0, 2.0], num_forwards=3)
    (counted,) = seen.warm_ups
    seen.warm_ups[:] = [replace(counted, num_forwards=1)]
    row = row_of(pair, seen, None, observations(GENERATE, seconds=[2.0, 8.0]))
    assert row["ratio_to_generate"].values == (2.0, 4.0)
    assert row["ratio_to_assisted"] is None
    assert row["tokens_per_forward"] == 3.0
    peer = observations("x", seconds=[1])
    peer.warm_ups[:] = [counted]
    assert row_of(pair, peer)["tokens_per_forward"] == 3.0
    assert row_of(pair, observations("x", seconds=[1]))["tokens_per_forward"] is None


# --- Contenders ----------------------------------------------------------------------------------------------------


SOME = [GENERATE, ASSISTED, PLAIN, "draft-model"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", REAL)
def test_every_contender_writes_the_requested_number_of_tokens(pair, name, temperature):
    contender = build(name, pair, SETTINGS)
    with global_generator_untouched():
        timed = contender.run(PROMPTS[0].ids, temperature=temperature, seed=3)
    assert len(timed.ids) == N
    assert timed.seconds > 0
    if temperature == 0.0:
        assert list(timed.ids) == greedy_reference(pair.target, PROMPTS[0].ids, N)


@pytest.mark.parametrize("name", SOME)
def test_an_end_of_text_stops_no_contender(name):
    """Every id ends a text here, in the models' own configurations too."""
    target = language_model(tiny_module("llama", seed=1, eos_token_id=list(range(257))))
    assert target.eos_ids
    contender = build(name, Pair(replace(target, eos_ids=frozenset()), target), SETTINGS)
    assert len(contender.run((1, 2, 3), temperature=0.0, seed=0).ids) == N


@pytest.mark.parametrize("name", SOME)
def test_the_same_seed_gives_the_same_text(pair, name):
    contender = build(name, pair, SETTINGS)
    texts = [contender.run(PROMPTS[0].ids, temperature=1.0, seed=seed).ids for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_transformers_leaves_the_models_as_they_were(pair):
    modules = [pair.target.model, pair.draft.model]
    before = [(module.generation_config, module.generation_config.to_dict()) for module in modules]
    contender = Generate(pair, N, K)
    for temperature in (0.0, 1.0):
        contender.run(PROMPTS[0].ids, temperature=temperature, seed=0)
    with pytest.raises(IndexError):  # An id that no table holds.
        contender.run((10**9,), temperature=0.0, seed=0)
    for module, (config, values) in zip(modules, before, strict=True):
        assert module.generation_config is config
        assert config.to_dict() == values


def test_assisted_generation_drafts_k_tokens_in_every_step(pair):
    """By itself it would draft more after a block that was accepted whole, and stop where it is in doubt."""
    twin = Pair(pair.target, language_model(tiny_module("llama", seed=1)))
    with counted(pair.target.model) as widths:
        Generate(twin, 41, 3).run((1, 2, 3), temperature=0.0, seed=0)
    # The prompt and a block, then a block behind the last token each time, and what is left.
    assert widths == [3 + 3, *[1 + 3] * 9, 1]


def test_generation_samples_from_the_whole_distribution():
    """transformers would keep 50 ids where top-k is not named; half of these texts have another first token."""
    target = tiny_model(seed=5)
    contender = Generate(Pair(target, None), 1)
    logits = target.model(torch.tensor([[1, 2, 3]])).logits[0, -1] / 8.0
    top = set(logits.topk(50).indices.tolist())
    drawn = [contender.run((1, 2, 3), temperature=8.0, seed=seed).ids[0] for seed in range(40)]
    assert any(token not in top for token in drawn)


def test_forwards_are_counted_by_a_hook_that_is_removed_or_are_our_steps(pair):
    with counted(pair.target.model) as widths:
        Generate(pair, N).run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert widths == [len(PROMPTS[0].ids), *[1] * (N - 1)]
    pair.target.model(torch.tensor([[1]]))
    assert len(widths) == N
    # Our own forwards are our steps.
    timed = Outrider(pair, N).run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert (timed.num_forwards, timed.longest_draft) == (N, 0)
    timed = Outrider(Pair(pair.target, pair.target), N, K, "draft-model").run((1, 2), temperature=0.0, seed=0)
    assert (timed.num_forwards, timed.longest_draft) == (3, K)


@pytest.mark.parametrize("name", [FLASHSPEC, FLASHSPEC_AUTO])
def test_flashspec_runs_where_it_is_installed(pair, name):
    pytest.importorskip("flashspec")
    with counted(pair.target.model) as widths:
        timed = build(name, pair, SETTINGS).run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert list(timed.ids) == greedy_reference(pair.target, PROMPTS[0].ids, N)
    assert timed.num_forwards == len(widths) - 1  # Without the prompt's.
    assert name == FLASHSPEC_AUTO or timed.longest_draft == K


def test_contenders_that_do_not_apply_are_absent_with_a_reason_or_an_error_where_they_were_named(pair):
    other = language_model(tiny_module("llama", vocab_size=300))
    with pytest.raises(NotApplicableError, match="257"):
        Generate(Pair(pair.target, other), N, K)
    alone = Pair(pair.target, None)
    present, absent = build_all(alone, SETTINGS)
    assert {GENERATE, PLAIN, "prompt-lookup", AUTO} <= {contender.name for contender in present}
    assert {ASSISTED, "draft-model"} <= absent.keys()
    assert all(map(is_sentence, absent.values()))
    with pytest.raises(SettingsError, match="assisted can't take part"):
        build_all(alone, replace(SETTINGS, only=(PLAIN, ASSISTED)))


def test_options_follow_a_method_and_named_contenders_run_in_the_given_order(pair, monkeypatch):
    assert split_name("prompt-lookup:max-ngram=5:min-ngram=2") == ("prompt-lookup", {"max_ngram": 5, "min_ngram": 2})
    assert set(known_names()) <= set(default_names())
    for name in default_names():
        split_name(name)
    contender = build("prompt-lookup:max-ngram=5", pair, SETTINGS)
    assert (contender.name, contender.title) == ("prompt-lookup:max-ngram=5", "prompt lookup, max-ngram=5")
    theirs = replace(METHODS["prompt-lookup"], name="m:New", factory=PromptLookupDrafter)
    monkeypatch.setitem(METHODS._methods, "m:New", theirs)
    assert build("m:New", pair, SETTINGS).title == "m:New"
    present, absent = build_all(pair, replace(SETTINGS, only=(AUTO, GENERATE)))
    assert ([contender.name for contender in present], absent) == ([AUTO, GENERATE], {})


# --- A draft made of its target's first layers ------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gemma3_text", "qwen3"])
def test_a_truncated_draft_has_the_first_layers_and_shares_the_tables(family):
    target = tiny_model(family)
    most = target.model.config.num_hidden_layers
    draft = truncated_draft(target, 1)
    assert (draft.model.config.num_hidden_layers, target.model.config.num_hidden_layers) == (1, most)
    assert draft.model.get_input_embeddings() is target.model.get_input_embeddings()
    assert draft.model.get_output_embeddings() is target.model.get_output_embeddings()
    assert sum(1 for _ in draft.model.parameters()) < sum(1 for _ in target.model.parameters())
    timed = Generate(Pair(target, draft), N, K).run((1, 2, 3), temperature=0.0, seed=0)
    assert list(timed.ids) == greedy_reference(target, (1, 2, 3), N)


def test_with_all_layers_a_truncated_draft_is_the_target_with_layers_and_hooks_of_its_own(pair):
    draft = truncated_draft(pair.target, 2)
    ids = torch.tensor([[1, 2, 3]])
    with counted(pair.target.model) as widths:
        logits = draft.model(ids).logits
    assert widths == []
    assert torch.allclose(logits, pair.target.model(ids).logits, atol=1e-5)
    own = {id(parameter) for layer in draft.model.model.layers for parameter in layer.parameters()}
    assert not own & {id(parameter) for parameter in pair.target.model.parameters()}
    for count in (0, 3):
        with pytest.raises(SettingsError, match="from 1 to 2"):
            truncated_draft(pair.target, count)


def test_the_rule_of_verification_is_that_of_every_method_that_it_suits(pair):
    settings = replace(SETTINGS, verification=VerificationRule.BLOCK)
    own = build("draft-model", pair, settings)
    assert own.title.endswith(", block")
    timed = own.run(PROMPTS[0].ids, temperature=1.0, seed=3)
    assert any(step.block for step in timed.steps)
    assert build(PLAIN, pair, settings).title == "plain decoding"
    with pytest.raises(NotApplicableError, match="for chains"):
        build("draft-tree", pair, settings)
    lossy = build(AUTO, pair, replace(SETTINGS, verification=VerificationRule.TYPICAL))
    assert lossy.title.endswith(", typical (lossy)")
