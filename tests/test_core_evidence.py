"""Evidence of a place: exact over the whole vocabulary, small, the same from a log, left out where that is damaged."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from core.decode import speculative
from core.evidence import MAX_LISTED, PackedEvidence, evidence_from_record, packed
from core.runlog.log import STEP_FIELDS, RunLogWriter, to_line, to_record
from core.runlog.reading import read_run_log
from core.runlog.replay import step_from_record
from core.runlog.store import read_head
from core.sampling import draw, probabilities
from core.settings import Coupling, SamplingParams
from core.types import Inspected, Step, TokenKind, Verification
from core.verify import verify
from core.verify.backlog import LEAST_LISTED, capture
from tests.fakes import play, random_rows, table_model
from tests.fakes_log import STARTED


def names(ids):
    return tuple(f"#{token}" for token in ids)


def capture_chain(tokens, probs, target, outcome):
    return capture(tokens, range(-1, len(tokens) - 1), probs, target, outcome, names)


def random_probs(count: int, vocab_size: int, seed: int, scale: float = 2.0, zeros: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocab_size, generator=generator) * scale
    logits = logits.masked_fill(torch.rand(count, vocab_size, generator=generator) < zeros, -torch.inf)
    logits[:, 0] = logits[:, 0].clamp_min(0.0)
    return torch.softmax(logits, -1)


def a_block(num_drafted: int, vocab_size: int, seed: int, *, has_probs: bool = True, **changes):
    """Tokens, their distributions, the target's, and the verdict."""
    target = random_probs(num_drafted + 1, vocab_size, seed, **changes)
    draft = random_probs(num_drafted, vocab_size, seed + 1, **changes) if num_drafted else torch.empty(0, vocab_size)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.multinomial(draft, 1, generator=generator).squeeze(1) if num_drafted else torch.empty(0).long()
    probs = draft if has_probs and num_drafted else None
    return tokens, probs, target, verify(tokens, probs, target, generator=generator)


def by_hand(row: torch.Tensor) -> tuple[list[float], float]:
    """A distribution as doubles, and its entropy."""
    distribution = row.double().tolist()
    return distribution, -math.fsum(p * math.log(p) for p in distribution if p > 0)


def check_listed(listed, tail: float, ids, distribution: list[float], exact: float = 1e-7):
    for token, prob in zip(ids, listed, strict=True):
        assert prob == pytest.approx(distribution[token], rel=1e-6, abs=1e-12)
    rest = math.fsum(prob for token, prob in enumerate(distribution) if token not in set(ids))
    assert tail == pytest.approx(rest, rel=1e-4, abs=exact * 1e-2)
    assert math.fsum(listed) + tail == pytest.approx(1.0, abs=1e-5)


def check_place(place, tokens, probs, target, outcome, slot: int):
    target_row, target_entropy = by_hand(target[slot])
    assert len(set(place.ids)) == len(place.ids) == len(place.texts) <= MAX_LISTED
    assert place.texts == names(place.ids)
    check_listed(place.target_probs, place.target_tail, place.ids, target_row)
    assert place.target_entropy == pytest.approx(target_entropy, rel=1e-5, abs=1e-6)
    if slot == len(tokens):
        assert place.draft_probs is place.draft_tail is place.draft_entropy is place.residual_mass is None
        assert place.residual_probs is None
        return
    one_hot = torch.nn.functional.one_hot(tokens[slot], target.shape[1])
    draft_row, draft_entropy = by_hand(one_hot if probs is None else probs[slot])
    check_listed(place.draft_probs, place.draft_tail, place.ids, draft_row)
    assert place.draft_entropy == pytest.approx(draft_entropy, rel=1e-5, abs=1e-6)
    excess = [max(0.0, p - q) for p, q in zip(target_row, draft_row, strict=True)]
    assert place.residual_mass == pytest.approx(math.fsum(excess), rel=1e-5, abs=1e-7)
    assert int(tokens[slot]) in place.ids
    if slot == outcome.num_accepted:
        distribution = [value / math.fsum(excess) for value in excess]
        check_listed(place.residual_probs, place.residual_tail, place.ids, distribution, exact=1e-4)
    else:
        assert place.residual_probs is place.residual_tail is None


@settings(max_examples=60)
@given(
    num_drafted=st.integers(0, 6),
    vocab_size=st.sampled_from([2, 7, 63, 64, 65, 130, 700]),
    seed=st.integers(0, 10_000),
    has_probs=st.booleans(),
    scale=st.sampled_from([0.1, 2.0, 8.0]),
    zeros=st.sampled_from([0.0, 0.7]),
)
def test_every_figure_is_that_of_the_whole_vocabulary(num_drafted, vocab_size, seed, has_probs, scale, zeros):
    block = a_block(num_drafted, vocab_size, seed, has_probs=has_probs, scale=scale, zeros=zeros)
    outcome = block[-1]
    places = capture_chain(*block)
    is_bonus = outcome.next_kind is TokenKind.BONUS
    assert len(places) == num_drafted + is_bonus
    for slot, place in enumerate(places):
        check_place(place, *block, slot)
    assert outcome.next_token in places[outcome.num_accepted].ids


@pytest.mark.parametrize("vocab_size", [65, 3000])
def test_the_listed_tokens_are_the_likeliest_and_no_more_than_the_limit(vocab_size):
    tokens, probs, target, outcome = a_block(3, vocab_size, 4, scale=0.5)
    for slot, place in enumerate(capture_chain(tokens, probs, target, outcome)):
        larger = target[slot] if slot == 3 else torch.maximum(target[slot], probs[slot])
        happened = {int(tokens[slot])} if slot < 3 else set()
        happened |= {outcome.next_token} if slot == outcome.num_accepted else set()
        assert len(place) == MAX_LISTED
        shown = [float(larger[token]) for token in place.ids]
        assert shown == sorted(shown, reverse=True)
        if slot != outcome.num_accepted:
            assert set(larger.topk(MAX_LISTED - len(happened)).indices.tolist()) <= set(place.ids)
        assert not any(isinstance(getattr(place, name), torch.Tensor) for name in type(place).__slots__)


def test_unlikely_tokens_are_listed_only_where_they_were_drafted_or_drawn():
    target = torch.tensor([[0.5, 0.5 - 3e-8, 1e-8, 1e-8, 1e-8], [0.5, 0.5 - 3e-8, 1e-8, 1e-8, 1e-8]])
    draft = torch.tensor([[0.5 - 1e-8, 0.5, 1e-8, 0.0, 0.0]])
    outcome = Verification(1, 4, TokenKind.BONUS, (0,), (1.0,), (0.1,), 0.9999999999)
    place, bonus = capture_chain(torch.tensor([2]), draft, target, outcome)
    assert LEAST_LISTED > 1e-8
    assert sorted(place.ids) == [0, 1, 2]
    assert sorted(bonus.ids) == [0, 1, 4]
    assert place.target_tail == pytest.approx(2e-8, rel=1e-5)


def test_a_draft_equal_to_the_target_leaves_no_residual():
    rows, tokens = random_probs(3, 50, 1), torch.tensor([1, 2])
    outcome = verify(tokens, rows[:2], rows, generator=torch.Generator().manual_seed(0))
    for place in capture_chain(tokens, rows[:2], rows, outcome)[:2]:
        assert place.residual_mass == 0.0


VOCAB = 40


def pair():
    return tuple(table_model(random_rows(VOCAB, seed, scale=2), VOCAB) for seed in (1, 2))


def a_run(*, inspect: bool, count: int = 60, **changes):
    return play(speculative(*pair(), [0, 1], max_new_tokens=count, inspect=inspect, seed=5, **changes))


@pytest.mark.parametrize("coupling", Coupling)
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.0), SamplingParams(0.7, top_k=5)])
def test_a_run_is_the_same_whether_it_is_inspected_or_not(coupling, sampling):
    plain, seen = (a_run(inspect=inspect, coupling=coupling, sampling=sampling) for inspect in (False, True))
    assert plain.ids == seen.ids
    assert plain.summary.text == seen.summary.text
    assert not any(step.evidence for step in plain.steps)
    for step in seen.steps:
        assert len(step.evidence) == step.num_draft_tokens + (step.emitted_kinds[-1] is TokenKind.BONUS)


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.7, top_k=3)])
def test_a_steps_evidence_agrees_with_its_own_figures_and_is_that_after_the_filters(sampling):
    target, steps = pair()[0], a_run(inspect=True, sampling=sampling).steps
    for step in steps:
        for slot, token in enumerate(step.drafted):
            place = step.evidence[slot]
            at = list(place.ids).index(token)
            assert place.target_probs[at] == pytest.approx(step.target_probs[slot])
            assert place.draft_probs[at] == pytest.approx(step.draft_probs[slot])
            assert 1 - place.residual_mass == pytest.approx(step.expected_acceptance[slot], abs=1e-6)
    expected = probabilities(target.logits_of([0, 1]), sampling)
    first = steps[0].evidence[0]
    shown = dict(zip(first.ids, first.target_probs, strict=True))
    for token in expected.nonzero().flatten().tolist():
        assert shown[token] == pytest.approx(float(expected[token]))


def test_the_draw_from_the_residual_can_be_done_again_from_what_is_shown():
    corrected = [step for step in a_run(inspect=True).steps if step.emitted_kinds[-1] is TokenKind.CORRECTION]
    assert len(corrected) > 5
    for step in corrected:
        place = step.evidence[step.num_accepted]
        residual = torch.zeros(VOCAB)
        residual[torch.tensor(list(place.ids))] = torch.tensor(list(place.residual_probs))
        assert int(draw(residual, torch.tensor(step.next_uniform))) == step.emitted[-1]


def test_under_shared_noise_nothing_is_drawn_from_a_residual():
    steps = a_run(inspect=True, coupling=Coupling.GUMBEL).steps
    assert all(step.next_uniform is None and step.uniforms == () for step in steps)
    assert all(place.residual_probs is None for step in steps for place in step.evidence)
    assert any(place.residual_mass > 0.1 for step in steps for place in step.evidence if place.residual_mass)


def test_what_lies_behind_an_end_leaves_no_evidence():
    rows = torch.nn.functional.one_hot(torch.tensor([1, 2, 3, 7, 1, 2, 3]), 8) * 20.0
    target = table_model(lambda ids: rows[min(len(ids) - 1, 6)], 8, eos_ids=[7])
    settings = {"num_draft_tokens": 6, "sampling": SamplingParams(0.0), "max_new_tokens": 30}
    (step,) = play(speculative(target, target, [0], inspect=True, **settings)).steps
    assert len(step.evidence) == len(step.drafted) == 4
    assert step.next_uniform is None


def lines(steps):
    return [json.loads(to_line(to_record(step))) for step in steps]


def test_a_saved_run_shows_the_same_evidence():
    steps = a_run(inspect=True).steps
    for step, record in zip(steps, lines(steps), strict=True):
        assert list(record)[1 : 1 + len(STEP_FIELDS)] == list(STEP_FIELDS)
        assert record["next_uniform"] == step.next_uniform
        for place, read in zip(step.evidence, step_from_record(record).evidence, strict=True):
            assert (list(read.ids), read.texts) == (list(place.ids), place.texts)
            for name in {*type(place).__slots__} - {"ids", "texts"}:
                kept, found = getattr(place, name), getattr(read, name)
                if kept is None:
                    assert found is None
                else:
                    numbers = [list(value) if hasattr(value, "__len__") else value for value in (found, kept)]
                    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5), name


def test_a_run_that_was_not_inspected_logs_no_evidence():
    for record in lines(a_run(inspect=False).steps):
        assert "evidence" not in record
        assert evidence_from_record(record) == ()


DAMAGE = {
    "no list": lambda place: 3,
    "a place that is none": lambda place: [None],
    "a text for an id": lambda place: [{**place, "ids": ["x", *place["ids"][1:]]}],
    "a broken number": lambda place: [{**place, "ids": [0.5, *place["ids"][1:]]}],
    "an id beyond every vocabulary": lambda place: [{**place, "ids": [2**40, *place["ids"][1:]]}],
    "a negative id": lambda place: [{**place, "ids": [-1, *place["ids"][1:]]}],
    "a missing probability": lambda place: [{**place, "target_probs": place["target_probs"][1:]}],
    "a probability above 1": lambda place: [{**place, "draft_probs": [7.0, *place["draft_probs"][1:]]}],
    "null for a number": lambda place: [{**place, "target_entropy": None}],
    "true for a number": lambda place: [{**place, "target_tail": True}],
    "a text that is none": lambda place: [{**place, "texts": [5, *place["texts"][1:]]}],
    "no texts": lambda place: [{key: value for key, value in place.items() if key != "texts"}],
    "far too many tokens": lambda place: [
        {**place, "ids": [1] * 999, "texts": ["a"] * 999, "target_probs": [0.0] * 999, "draft_probs": None}
    ],
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_evidence_is_left_out(what):
    (record, *_) = lines(a_run(inspect=True, count=3).steps)
    good = record["evidence"][0]
    assert evidence_from_record({"evidence": [good]})
    assert evidence_from_record({"evidence": DAMAGE[what](good)}) == ()


def write_run(path, *, drop=lambda event: False):
    """Log an inspected run as it comes, without its summary; its steps with their evidence."""
    events = list(speculative(*pair(), [0, 1], max_new_tokens=30, inspect=True, seed=5))
    with RunLogWriter(path) as log:
        log.write(STARTED)
        for event in events:
            if isinstance(event, Step | Inspected) and not drop(event):
                log.write(event)
    return play(events).steps


def test_evidence_that_came_behind_its_steps_is_read_back_with_them(tmp_path):
    path = tmp_path / "run.jsonl"
    steps = write_run(path)
    assert read_run_log(path).steps == lines(steps)
    read = [step_from_record(record) for record in read_run_log(path, packs_evidence=True).steps]
    assert any(isinstance(step.evidence, PackedEvidence) for step in read)
    assert read == [step_from_record(record) for record in read_run_log(path).steps]
    with path.open("ab") as file:
        file.truncate(path.stat().st_size - 9)
    assert read_head(path).num_steps == len(steps)


def test_steps_that_are_missing_do_not_move_the_evidence_of_others(tmp_path):
    path = tmp_path / "run.jsonl"
    steps = write_run(path, drop=lambda event: isinstance(event, Step) and event.index == 2)
    log = read_run_log(path)
    assert log.steps == lines([step for step in steps if step.index != 2])
    assert sum("evidence of an unknown step" in problem for problem in log.problems) == 1


def test_evidence_that_was_lost_or_damaged_leaves_its_step_whole(tmp_path):
    path = tmp_path / "run.jsonl"
    steps = write_run(path, drop=lambda event: isinstance(event, Inspected) and event.index > 3)
    written = path.read_bytes().split(b"\n")
    at = next(number for number, line in enumerate(written) if b'"evidence"' in line)
    written[at] = to_line({**json.loads(written[at]), "evidence": [None]}).rstrip()
    path.write_bytes(b"\n".join(written))
    log = read_run_log(path, packs_evidence=True)
    found = [bool(step_from_record(record).evidence) for record in log.steps]
    assert found == [0 < index < 4 for index in range(len(steps))]
    assert log.problems == ["The log has no summary: the run was cut off, or is still running."]


def test_packed_evidence_is_the_same_to_the_last_bit():
    for step in a_run(inspect=True, count=3).steps:
        places, kept = step.evidence, packed(step.evidence)
        assert kept == places
        assert packed(kept) is kept
        assert (list(kept), len(kept), kept[-1], kept[:2]) == (list(places), len(places), places[-1], places[:2])
        assert to_record(Inspected(step.index, kept)) == to_record(Inspected(step.index, places))
    assert packed(()) == ()
