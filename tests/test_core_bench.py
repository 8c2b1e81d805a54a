"""The bench: who runs when, what is compared with what, and that a rival that does something else is told of."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from core.bench import lineup, memory_child, record
from core.bench.forwards import counted
from core.bench.lineup import line_up
from core.bench.margins import margin_of
from core.bench.measure import Comparison, Observations, check_lengths, measure, threads
from core.bench.names import (
    ASSISTED,
    AUTO,
    FLASHSPEC,
    FLASHSPEC_AUTO,
    GENERATE,
    PLAIN,
    default_names,
    known_names,
    split_name,
)
from core.bench.ours import Plain, Speculative
from core.bench.overhead import overhead, time_bare, usual_steps
from core.bench.resident import mappings_in
from core.bench.results import rows
from core.bench.rival_transformers import Assisted, Generate
from core.bench.statistics import first_difference, order, ratios, spread
from core.bench.truncated import truncated_draft
from core.bench.types import BenchSettings, NotApplicableError, Pair, Prompt, Timed
from core.drafters.methods import METHODS
from core.errors import OutriderError, PromptError, SettingsError
from core.models.room import bytes_per_position
from core.prompt_suites import PRESETS, default_prompts, read_prompts
from tests.cli_fakes import step
from tests.exactness import global_generator_untouched
from tests.fakes import greedy_reference, is_sentence, language_model, play, save_model, tiny_model, tiny_module

N, K = 9, 3
PROMPTS = [Prompt("one", "def f", (1, 2, 3, 4, 5)), Prompt("two", "x", (7, 8, 9))]
SETTINGS = BenchSettings("t", "d", num_draft_tokens=K, temperatures=(0.0,), max_new_tokens=N, rounds=2)


@pytest.fixture(scope="module")
def pair():
    return Pair(replace(tiny_model(seed=1), eos_ids=frozenset()), tiny_model(seed=2))


class Fake:
    """A contender whose ids and seconds come from a function of (prompt ids, seed)."""

    num_draft_tokens = 0

    def __init__(self, name, play, title=None):
        self.name, self.title, self._play = name, title or name, play
        self.calls = []

    def run(self, prompt_ids, *, temperature, seed):
        self.calls.append((tuple(prompt_ids), temperature, seed))
        return self._play(tuple(prompt_ids), seed)


def observations(name, *, seconds, tokens=None, texts=None, **changes):
    contender = Fake(name, None)
    contender.num_draft_tokens = changes.pop("k", 0)
    seen = Observations(contender, list(seconds), tokens or [N] * len(seconds), **changes)
    for index, ids in (texts or {}).items():
        seen.texts[index].append(tuple(ids))
    return seen


# --- Statistics -------------------------------------------------------------------------------------------------


def test_a_spread_is_median_quartiles_and_extremes():
    found = spread([4.0, 1.0, 3.0, 2.0, 10.0])
    assert (found.median, found.quartiles, found.extremes) == (3.0, (2.0, 4.0), (1.0, 10.0))
    assert spread([2.0]).quartiles == (2.0, 2.0)
    with pytest.raises(ValueError, match="median"):
        spread([])


def test_ratios_are_taken_round_by_round():
    """A machine that is slower in one round slows both: the ratio stays, as that of the medians would not."""
    found = ratios([20.0, 2.0, 40.0], [10.0, 1.0, 20.0])
    assert found.values == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="longer"):
        ratios([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("ids", "reference", "at"),
    [((1, 2), (1, 2), None), ((1, 3), (1, 2), 1), ((1,), (1, 2), 1), ((1, 2, 3), (1, 2), 2), ((), (), None)],
)
def test_the_first_difference(ids, reference, at):
    assert first_difference(ids, reference) == at


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_everyone_stands_at_every_place_equally_often(count):
    turns = [order(count, turn) for turn in range(2 * count)]
    assert all(sorted(turn) == list(range(count)) for turn in turns)
    for place in range(count):
        assert sorted(turn[place] for turn in turns) == sorted(2 * list(range(count)))
    assert order(0, 3) == []


def test_neighbours_change_sides():
    pairs = {pair for turn in range(10) for pair in zip(order(5, turn), order(5, turn)[1:], strict=False)}
    assert all((right, left) in pairs for left, right in pairs)


# --- Overhead ---------------------------------------------------------------------------------------------------


def test_overhead_is_a_median_step_over_the_bare_forwards():
    assert overhead([10.5, 11.0, 99.0], 10.0) == pytest.approx(0.1)
    assert overhead([9.0], 10.0) == pytest.approx(-0.1)
    for steps, bare in (([], 1.0), ([1.0], 0.0)):
        with pytest.raises(ValueError, match="overhead"):
            overhead(steps, bare)


def test_the_usual_steps_are_those_of_the_commonest_draft():
    def of(*lengths):
        return [replace(step("a"), index=index, num_draft_tokens=k) for index, k in enumerate(lengths)]

    assert [item.index for item in usual_steps(of(4, 2, 4, 0, 0, 0, 4))] == [0, 2]
    assert [item.num_draft_tokens for item in usual_steps(of(0, 0, 0))] == [0, 0]
    assert usual_steps(of(4)) == []


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


# --- Contenders -------------------------------------------------------------------------------------------------

REAL = [GENERATE, ASSISTED, PLAIN, *METHODS, AUTO]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", REAL)
def test_every_contender_writes_the_number_of_tokens_asked_for(pair, name, temperature):
    contender = lineup.build(name, pair, SETTINGS)
    with global_generator_untouched():
        timed = contender.run(PROMPTS[0].ids, temperature=temperature, seed=3)
    assert len(timed.ids) == N
    assert timed.seconds > 0
    if temperature == 0.0:
        assert list(timed.ids) == greedy_reference(pair.target, PROMPTS[0].ids, N)


@pytest.mark.parametrize("name", [GENERATE, ASSISTED, PLAIN, "draft-model"])
def test_an_end_of_text_ends_nobody(name):
    """Every id ends a text here, in the models' own configurations too."""
    module = tiny_module("llama", seed=1, eos_token_id=list(range(257)))
    target = language_model(module)
    assert target.eos_ids
    free = Pair(replace(target, eos_ids=frozenset()), target)
    contender = lineup.build(name, free, SETTINGS)
    assert len(contender.run((1, 2, 3), temperature=0.0, seed=0).ids) == N


@pytest.mark.parametrize("name", [GENERATE, ASSISTED, PLAIN, "draft-model"])
def test_a_seed_is_a_text(pair, name):
    contender = lineup.build(name, pair, SETTINGS)
    texts = [contender.run(PROMPTS[0].ids, temperature=1.0, seed=seed).ids for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_the_rivals_leave_the_models_as_they_were(pair):
    modules = [pair.target.model, pair.draft.model]
    before = [(module.generation_config, module.generation_config.to_dict()) for module in modules]
    contender = Assisted(pair, N, K)
    for temperature in (0.0, 1.0):
        contender.run(PROMPTS[0].ids, temperature=temperature, seed=0)
    with pytest.raises(IndexError):  # An id that no table holds.
        contender.run((10**9,), temperature=0.0, seed=0)
    for module, (config, values) in zip(modules, before, strict=True):
        assert module.generation_config is config
        assert config.to_dict() == values


def test_assisted_generation_drafts_k_tokens_however_well_it_goes(pair):
    """By itself it would draft more after a block that was accepted whole, and stop where it doubts itself."""
    twin = Pair(pair.target, language_model(tiny_module("llama", seed=1)))
    with counted(pair.target.model) as forwards:
        Assisted(twin, 41, 3).run((1, 2, 3), temperature=0.0, seed=0)
    # The prompt and a block, then a block behind the last token each time, and what is left.
    assert forwards.widths == [3 + 3, *[1 + 3] * 9, 1]


def test_generation_samples_from_the_whole_distribution():
    """transformers would keep 50 ids where top-k is not named; half of these texts have another first token."""
    target = tiny_model(seed=5)
    contender = Generate(Pair(target, None), 1)
    logits = target.model(torch.tensor([[1, 2, 3]])).logits[0, -1] / 8.0
    top = set(logits.topk(50).indices.tolist())
    drawn = [contender.run((1, 2, 3), temperature=8.0, seed=seed).ids[0] for seed in range(40)]
    assert any(token not in top for token in drawn)


def test_forwards_are_counted_by_a_hook_that_goes_away(pair):
    module = pair.target.model
    with counted(module) as forwards:
        Generate(pair, N).run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert forwards.widths == [len(PROMPTS[0].ids), *[1] * (N - 1)]
    module(torch.tensor([[1]]))
    assert len(forwards.widths) == N


def test_our_own_forwards_are_our_steps(pair):
    timed = Plain(pair, N).run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert (timed.num_forwards, timed.longest_draft) == (N, 0)
    timed = Speculative(Pair(pair.target, pair.target), N, K, "draft-model").run((1, 2), temperature=0.0, seed=0)
    assert (timed.num_forwards, timed.longest_draft) == (3, K)


@pytest.mark.parametrize("name", [FLASHSPEC, FLASHSPEC_AUTO])
def test_flashspec_runs_where_it_is_installed(pair, name):
    pytest.importorskip("flashspec")
    contender = lineup.build(name, pair, SETTINGS)
    with counted(pair.target.model) as forwards:
        timed = contender.run(PROMPTS[0].ids, temperature=0.0, seed=0)
    assert list(timed.ids) == greedy_reference(pair.target, PROMPTS[0].ids, N)
    assert timed.num_forwards == len(forwards.widths) - 1  # What it says of itself, but for the prompt's.
    assert name == FLASHSPEC_AUTO or timed.longest_draft == K
    texts = [contender.run(PROMPTS[0].ids, temperature=1.0, seed=seed).ids for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]
    assert len(texts[0]) == N


def test_an_assistant_with_another_table_is_turned_away(pair):
    other = language_model(tiny_module("llama", vocab_size=300))
    with pytest.raises(NotApplicableError, match="257"):
        Assisted(Pair(pair.target, other), N, K)


# --- Line-up ----------------------------------------------------------------------------------------------------


def test_without_a_draft_those_that_need_one_are_absent(pair):
    present, absent = line_up(Pair(pair.target, None), SETTINGS)
    names = {contender.name for contender in present}
    assert {GENERATE, PLAIN, "prompt-lookup", AUTO} <= names
    assert {ASSISTED, "draft-model"} <= {item.name for item in absent}
    assert all(is_sentence(item.reason) for item in absent)


def test_who_was_asked_for_and_can_not_come_is_an_error(pair):
    with pytest.raises(SettingsError, match="assisted can't take part"):
        line_up(Pair(pair.target, None), replace(SETTINGS, only=(PLAIN, ASSISTED)))


def test_only_those_that_are_named_run_in_that_order(pair):
    present, absent = line_up(pair, replace(SETTINGS, only=(AUTO, GENERATE)))
    assert [contender.name for contender in present] == [AUTO, GENERATE]
    assert absent == []


def test_options_stand_behind_a_method():
    assert split_name("prompt-lookup:max-ngram=5:min-ngram=2") == ("prompt-lookup", {"max_ngram": 5, "min_ngram": 2})
    assert set(known_names()) <= set(default_names())
    for name in default_names():
        split_name(name)


def test_options_reach_the_contender(pair):
    contender = lineup.build("prompt-lookup:max-ngram=5", pair, SETTINGS)
    assert (contender.name, contender.title) == ("prompt-lookup:max-ngram=5", "prompt lookup, max-ngram=5")


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


# --- Truncated drafts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gemma3_text", "qwen3"])
def test_a_truncated_draft_has_the_first_layers_and_shares_the_tables(family):
    target = tiny_model(family)
    most = target.model.config.num_hidden_layers
    draft = truncated_draft(target, 1)
    assert draft.model.config.num_hidden_layers == 1
    assert target.model.config.num_hidden_layers == most
    assert draft.model.get_input_embeddings() is target.model.get_input_embeddings()
    assert draft.model.get_output_embeddings() is target.model.get_output_embeddings()
    assert sum(1 for _ in draft.model.parameters()) < sum(1 for _ in target.model.parameters())
    timed = Assisted(Pair(target, draft), N, K).run((1, 2, 3), temperature=0.0, seed=0)
    assert list(timed.ids) == greedy_reference(target, (1, 2, 3), N)


def test_with_all_layers_it_is_the_target(pair):
    draft = truncated_draft(pair.target, 2)
    ids = torch.tensor([[1, 2, 3]])
    assert torch.allclose(draft.model(ids).logits, pair.target.model(ids).logits, atol=1e-5)
    own = {id(parameter) for layer in draft.model.model.layers for parameter in layer.parameters()}
    assert not own & {id(parameter) for parameter in pair.target.model.parameters()}


def test_a_hook_on_the_target_does_not_hear_its_truncated_draft(pair):
    draft = truncated_draft(pair.target, 1)
    with counted(pair.target.model) as forwards:
        draft.model(torch.tensor([[1]]))
    assert forwards.widths == []


@pytest.mark.parametrize("count", [0, -1, 3])
def test_more_layers_than_there_are_is_a_sentence(pair, count):
    with pytest.raises(SettingsError, match="from 1 to 2"):
        truncated_draft(pair.target, count)


# --- Prompts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_chat", [False, True])
def test_the_default_prompts_are_presets(is_chat):
    assert len(default_prompts(is_chat=is_chat)) == 3
    assert len(read_prompts(PRESETS)) >= 3


def test_prompts_come_from_lines_or_from_json_lines(tmp_path):
    plain, lines = tmp_path / "p.txt", tmp_path / "p.jsonl"
    plain.write_text("one\n\n  two\n", "utf-8")
    lines.write_text('{"text": "a\\nb", "name": "n"}\n\n{"text": "c"}\n', "utf-8")
    assert [(item.name, item.text) for item in read_prompts(plain)] == [("line 1", "one"), ("line 3", "  two")]
    assert [(item.name, item.text) for item in read_prompts(lines)] == [("n", "a\nb"), ("line 3", "c")]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", b""), ("a.txt", b"\n \n"), ("a.txt", b"\xff\xfe"), ("a.jsonl", b"{}"), ("a.jsonl", b"[1"), ("b", None)],
)
def test_bad_prompt_files_are_sentences(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PromptError) as caught:
        read_prompts(path)
    assert is_sentence(str(caught.value))


# --- Measuring --------------------------------------------------------------------------------------------------


def right(pair):
    """Plays the target's own greedy text."""
    return lambda ids, _seed: Timed(tuple(greedy_reference(pair.target, ids, N)), 1.0)


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


# --- What is told -----------------------------------------------------------------------------------------------


def told(seen, reference, **changes):
    others = changes.pop("others", [])
    comparison = Comparison(0.0, {item.contender.name: item for item in [seen, *others]}, reference)
    return rows(comparison, PROMPTS, replace(SETTINGS, **changes))[0]


def test_another_greedy_text_is_told_with_its_place():
    texts = {0: range(N), 1: [*range(5), 99, *range(6, N)]}
    row = told(observations("rival", seconds=[1, 1], texts=texts), [tuple(range(N))] * 2)
    assert row.notes == (f"another greedy text after 'two', from token 6 of {N}",)


def test_the_same_text_needs_no_note():
    seen = observations("rival", seconds=[1, 1], texts={0: range(N), 1: range(N)})
    assert told(seen, [tuple(range(N))] * 2).notes == ()


def test_above_temperature_0_another_text_is_expected():
    seen = observations("rival", seconds=[1], texts={0: range(N, 2 * N)})
    assert told(seen, None).notes == ()


def test_another_length_is_told():
    seen = observations("rival", seconds=[1], texts={0: range(N - 2)})
    assert told(seen, [tuple(range(N))]).notes == (f"writes {N - 2} tokens where {N} were asked for",)


def test_longer_drafts_are_told():
    seen = observations("assisted", seconds=[1], k=K, longest_draft=7)
    assert told(seen, None).notes == (f"drafts up to 7 tokens a step where K is {K}",)
    seen = observations("flashspec-auto", seconds=[1], k=None, longest_draft=6)
    assert told(seen, None).notes == ("chooses its own K, here up to 6",)


def test_a_difference_says_how_close_it_was(pair):
    reference = [tuple(greedy_reference(pair.target, PROMPTS[0].ids, N))]
    margin = margin_of(pair, PROMPTS, reference)
    at = 4
    logits = pair.target.model(torch.tensor([[*PROMPTS[0].ids, *reference[0][:at]]])).logits[0, -1]
    other = int(logits.topk(2).indices[1])
    assert margin(0, at, reference[0][at], other) == pytest.approx(float(logits.max() - logits[other]), abs=1e-4)
    seen = observations("rival", seconds=[1], texts={0: [*reference[0][:at], other, *reference[0][at + 1 :]]})
    [row] = rows(Comparison(0.0, {"rival": seen}, reference), PROMPTS, SETTINGS, margin)
    assert "prefers its own by" in row.notes[0]


def test_ratios_need_the_contender_they_refer_to():
    seen = observations("x", seconds=[1.0, 2.0])
    row = told(seen, None, others=[observations(GENERATE, seconds=[2.0, 8.0])])
    assert row.ratio_to_generate.values == (2.0, 4.0)
    assert row.ratio_to_assisted is None


def test_tokens_per_forward_are_those_of_the_round_that_does_not_count():
    assert told(observations("x", seconds=[1], forwards=4, forward_tokens=12), None).tokens_per_forward == 3.0
    assert told(observations("x", seconds=[1]), None).tokens_per_forward is None


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


def test_the_memory_of_one_contender_is_that_of_a_process_that_runs_it(tmp_path):
    target = save_model(tmp_path / "target", max_position_embeddings=128)
    settings = {"target": str(target), "draft_layers": 1, "temperatures": [0.0], "only": [], "max_new_tokens": 4}
    memory = memory_child.measured(ASSISTED, settings, [1, 2, 3])
    assert 0 <= memory.peak_mb < 1_000
    assert 0 < memory.needed_mb < 10


def test_what_a_run_needs_are_the_weights_of_both_and_a_cache_for_each():
    target = tiny_model(is_lean=True)
    weights = sum(weight.nbytes for weight in target.model.parameters()) / 1e6
    cache = 100 * bytes_per_position(target) / 1e6
    alone = SimpleNamespace(target=target, draft=None)
    assert memory_child.needed_mb(alone, None, 100) == pytest.approx(weights + cache)
    assert memory_child.needed_mb(alone, target, 100) == pytest.approx(weights + 2 * cache)
    pair = SimpleNamespace(target=target, draft=tiny_model(seed=1))
    assert memory_child.needed_mb(pair, pair.draft, 100) == pytest.approx(2 * (weights + cache))


def test_only_weight_files_count_as_such():
    """An address, then fields in kB: 8 resident and 4 written of the first, and none of the library."""
    smaps = "\n".join(
        [
            "7f00-9f00 rw-p 00000000 fe:00 1    /models/one/model.safetensors",
            *("Size:    8 kB", "Rss:    8 kB", "Pss:    4 kB", "Anonymous:    4 kB", "VmFlags: rd wr"),
            "a000-b000 r-xp 00000000 fe:00 2    /lib/safetensors/_safetensors_rust.abi3.so",
            *("Rss:    4 kB", "Anonymous:    0 kB"),
        ]
    )
    assert mappings_in(smaps) == [(0x7F00, 0x2000, 8192, 4096)]
    assert mappings_in("") == []


def test_play_is_what_plain_decoding_says(pair):
    """The reference that rivals are held against is the engine's own, and transformers agrees with it."""
    from core.decode import autoregressive
    from core.types import SamplingParams

    events = autoregressive(pair.target, PROMPTS[0].ids, sampling=SamplingParams(temperature=0.0), max_new_tokens=N)
    assert play(events).ids == greedy_reference(pair.target, PROMPTS[0].ids, N)
