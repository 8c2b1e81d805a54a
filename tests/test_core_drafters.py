"""Every registered drafting method keeps one contract, whatever it proposes."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import core.drafters.draft_model
from core.controls import RunControls
from core.decode import autoregressive, sample_blocks, speculative
from core.drafters.base import Drafter, DrafterSetup, chain
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.ngrams import Ngrams
from core.drafters.prompt_lookup import PromptLookupDrafter
from core.drafters.registry import METHODS, PromptLookupOptions, build_drafter, get_method
from core.errors import DrafterError, SettingsError
from core.sampling import gumbel_noise, probabilities
from core.settings import Coupling, SamplingParams
from core.types import Draft, DraftContext, TargetFeature, TokenKind, Verification, is_chain
from tests.exactness import SIGNIFICANCE, chi_squared_p_value, global_generator_untouched, mutate
from tests.fakes import StubDrafter, greedy_reference, is_sentence, play, random_rows, refusal, table_model, tiny_model
from tests.fakes_medusa import heads_for

V = 8
SAMPLING = SamplingParams(0.9, top_k=5)
PROMPT = [0, 1, 2, 3, 1, 2]


def build(name: str, **options) -> Drafter:
    if name == "medusa":
        model = tiny_model(vocab_size=V)
        return build_drafter(name, DrafterSetup(model), {"heads": heads_for(model)})
    model = table_model(random_rows(V, 2), V)
    return build_drafter(name, DrafterSetup(model, model, capacity=400), options)


def context(ids, count=4, *, seed=0, sampling=SAMPLING, gumbel=None, check_cancelled=lambda: None) -> DraftContext:
    return DraftContext(
        ids=list(ids), num_draft_tokens=count, sampling=sampling, generator=torch.Generator().manual_seed(seed),
        vocab_size=V, check_cancelled=check_cancelled, gumbel=gumbel,
    )  # fmt: skip


def propose(drafter: Drafter, ids, count=4, **changes) -> list[int]:
    return drafter.propose(context(ids, count, **changes)).tokens.tolist()


def accept(drafter: Drafter, draft: Draft, most: int, following: int) -> list[int]:
    """Let a drafter observe that a path of its draft was accepted; returns the path's tokens."""
    path, end = [], -1
    for node, parent in enumerate(draft.parents.tolist()):
        if parent == end and len(path) < most:
            path.append(node)
            end = node
    is_leaf = end not in draft.parents.tolist()
    kind = TokenKind.BONUS if is_leaf else TokenKind.CORRECTION
    drafter.observe(Verification(len(path), following, kind, tuple(path)))
    return draft.tokens[path].tolist()


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


def test_methods_describe_themselves(name):
    method = get_method(name)
    assert (method.name, bool(method.title)) == (name, True)
    assert is_sentence(method.summary)
    for option in fields(method.options):
        assert option.metadata.keys() >= {"label", "help"}
        if isinstance(option.default, bool | str):
            continue
        assert option.metadata.keys() >= {"min", "max", "step"}
        assert option.metadata["min"] <= option.default <= option.metadata["max"]
    drafter = build(name)
    assert isinstance(drafter, Drafter)
    assert drafter.needs <= set(TargetFeature)


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_a_draft_is_a_chain_of_at_most_k_tokens_drawn_from_its_own_distribution(name, count):
    drafter = build(name)
    ids = list(PROMPT)
    drafter.start(torch.tensor(ids))
    generator = torch.Generator().manual_seed(0)
    with global_generator_untouched():
        for round_ in range(25):
            draft = drafter.propose(context(ids, count, seed=round_))
            size = len(draft)
            assert 0 <= size <= count
            assert draft.tokens.dtype is torch.int64
            parents = draft.parents.tolist()
            assert all(-1 <= parent < node for node, parent in enumerate(parents))
            assert is_chain(parents) or drafter.proposes_trees
            assert all(0 <= token < V for token in draft.tokens.tolist())
            if draft.probs is not None:
                assert draft.probs.shape == (size, V)
                assert torch.allclose(draft.probs.sum(-1), torch.ones(size), atol=1e-5)
                assert bool((draft.probs[torch.arange(size), draft.tokens] > 0).all())
            accepted = int(torch.randint(size + 1, (1,), generator=generator))
            following = int(torch.randint(V, (1,), generator=generator))
            ids += [*accept(drafter, draft, accepted, following), following]


@pytest.mark.parametrize("sampling", [SAMPLING, SamplingParams(1.0), SamplingParams(0.0)])
def test_asked_whether_to_continue_it_drafts_the_same_and_keeps_the_token_it_stops_at(name, sampling):
    whole = propose_from_the_prompt(name, sampling, None)
    asked: list[float] = []
    for most in (1, 3, 9):
        asked.clear()
        drafted = propose_from_the_prompt(name, sampling, lambda p, most=most: asked.append(p) or len(asked) < most)
        assert torch.equal(drafted.tokens, whole.tokens[: len(drafted)])
        assert len(asked) in {0, len(drafted)}, "asked after each token, or never"
        assert len(drafted) == (min(most, len(whole)) if asked else len(whole))
        assert all(0.0 < p <= 1.0 for p in asked)
        if asked:
            assert torch.equal(drafted.probs, whole.probs[: len(drafted)])
            if not sampling.is_greedy:
                assert asked == drafted.probs.gather(1, drafted.tokens.unsqueeze(1)).squeeze(1).tolist()


def propose_from_the_prompt(name, sampling, keep_drafting):
    drafter = build(name)
    drafter.start(torch.tensor(PROMPT))
    return drafter.propose(replace(context(PROMPT, 5, sampling=sampling), keep_drafting=keep_drafting))


@pytest.mark.parametrize("num_accepted", range(5))
def test_after_any_verdict_it_proposes_what_a_fresh_drafter_would(name, num_accepted):
    # The shape of a tree that is drawn depends on earlier verdicts.
    options = {"rule": "best"} if name == "draft-tree" else {}
    drafter, fresh = build(name, **options), build(name, **options)
    drafter.start(torch.tensor(PROMPT))
    ids = list(PROMPT)
    for round_ in range(6):
        draft = drafter.propose(context(ids, seed=round_))
        fresh.start(torch.tensor(ids))
        assert draft.tokens.tolist() == propose(fresh, ids, seed=round_)
        following = (sum(ids) + round_) % V
        ids += [*accept(drafter, draft, num_accepted, following), following]


def test_a_start_forgets_the_text_before(name):
    drafter, fresh = build(name), build(name)
    for ids in ([7, 6, 5, 4, 3, 2, 1, 0] * 4, [3], PROMPT):
        drafter.start(torch.tensor(ids))
        drafted = propose(drafter, ids)
    fresh.start(torch.tensor(PROMPT))
    assert drafted == propose(fresh, PROMPT)


@pytest.mark.parametrize("sampling", [SAMPLING, SamplingParams(0.0), SamplingParams(1.5, top_p=0.6, min_p=0.1)])
@pytest.mark.parametrize("is_gumbel", [False, True])
def test_the_reported_distribution_is_the_one_that_was_drawn_from(sampling, is_gumbel):
    model = table_model(random_rows(V, 2), V)
    drafter = DraftModelDrafter(DrafterSetup(model, model))
    counts, total = torch.zeros(V), 800
    for seed in range(total):
        drafter.start(torch.tensor(PROMPT))
        noise = (lambda at, seed=seed: gumbel_noise(seed, at, V)) if is_gumbel else None
        draft = drafter.propose(context(PROMPT, 2, seed=seed, sampling=sampling, gumbel=noise))
        counts[draft.tokens[0]] += 1
        for index in range(2):
            before = [*PROMPT, *draft.tokens[:index].tolist()]
            assert torch.allclose(draft.probs[index], probabilities(model.logits_of(before), sampling))
    probs = probabilities(model.logits_of(PROMPT), sampling)
    assert counts[probs == 0].sum() == 0
    # Six standard deviations.
    assert bool(((counts / total - probs).abs() <= 6 * (probs * (1 - probs) / total).sqrt() + 1e-6).all())


def test_one_forward_a_drafted_token_and_none_for_what_was_read_before():
    model = table_model(random_rows(V, 2), V)
    forwards = []
    model.on_forward = lambda runner, ids: forwards.append(len(ids))
    drafter = DraftModelDrafter(DrafterSetup(model, model))
    drafter.start(torch.tensor(PROMPT))
    assert forwards == [len(PROMPT) - 1]
    forwards.clear()
    first = propose(drafter, PROMPT, 3)
    assert forwards == [1, 1, 1]
    # After a full block two tokens are new: its last, which was not read, and the bonus.
    drafter.observe(Verification(3, 4, TokenKind.BONUS))
    forwards.clear()
    second = propose(drafter, [*PROMPT, *first, 4], 3)
    assert forwards == [2, 1, 1]
    drafter.observe(Verification(1, 5, TokenKind.CORRECTION))
    forwards.clear()
    propose(drafter, [*PROMPT, *first, 4, second[0], 5], 3)
    assert forwards == [1, 1, 1]


def test_a_stop_is_looked_for_before_each_forward():
    model = table_model(random_rows(V, 2), V)
    drafter = DraftModelDrafter(DrafterSetup(model, model))
    drafter.start(torch.tensor(PROMPT))
    looks = []
    drafter.propose(context(PROMPT, 3, check_cancelled=lambda: looks.append(model.last_runner.length)))
    assert looks == [5, 6, 7]


def test_a_missing_draft_or_a_wrong_option_is_a_sentence():
    wrong = [
        ("draft-model", {}, None),
        ("crystal-ball", {}, None),
        ("prompt-lookup", {"size": 3}, None),
        ("draft-model", {"max_ngram": 3}, table_model(random_rows(V, 2), V)),
        ("prompt-lookup", {"max_ngram": 0}, None),
        ("prompt-lookup", {"max_ngram": 11}, None),
        ("prompt-lookup", {"max_ngram": float("nan")}, None),
        ("prompt-lookup", {"max_ngram": "3"}, None),
        ("prompt-lookup", {"max_ngram": 2, "min_ngram": 3}, None),
    ]
    for method, options, draft in wrong:
        setup = DrafterSetup(table_model(random_rows(V, 1), V), draft)
        refusal(SettingsError, build_drafter, method, setup, options)


def lookup(ids, count=4, **options) -> list[int]:
    drafter = PromptLookupDrafter(options=PromptLookupOptions(**options))
    drafter.start(torch.tensor(ids))
    draft = drafter.propose(context(ids, count))
    assert draft.probs is None
    return draft.tokens.tolist()


@pytest.mark.parametrize(
    ("ids", "proposal"),
    [
        ([1, 2, 3, 4, 1, 2], [3, 4, 1, 2]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2]),  # the latest occurrence
        ([7, 2, 3, 5, 2, 6, 1, 7, 2], [3, 5, 2, 6]),  # the longest match goes before the latest
        ([1, 2, 3, 4], []),
        ([5], []),
        ([5, 5], [5]),
        ([5, 5, 5, 5], [5]),
        ([0, 1, 0, 1, 0, 1], [0, 1]),
    ],
)
def test_lookup_proposes_what_followed_the_longest_latest_match(ids, proposal):
    assert lookup(ids) == proposal


def test_lookup_keeps_to_its_sizes():
    ids = [7, 2, 3, 5, 2, 6, 1, 7, 2]
    assert lookup(ids, max_ngram=1) == [6, 1, 7, 2]
    assert lookup(ids, min_ngram=2) == [3, 5, 2, 6]
    assert lookup(ids, min_ngram=3) == []
    assert lookup(ids, 2) == [3, 5]


def test_lookup_forgets_what_a_shorter_text_no_longer_holds():
    """`check` looks at what would be proposed after several short texts."""
    ngrams = Ngrams()
    assert ngrams.look_up([1, 2, 3, 4, 5, 1], 1) == [2]
    assert list(ngrams.look_up([1, 2, 3], 1)) == []
    assert ngrams.look_up([1, 2, 3, 6, 4, 7, 4], 1) == [7]


GREEDY, IDS = SamplingParams(0.0), [10, 20, 30, 40, 10, 20]


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "module"])
def test_a_draft_with_a_trimmed_head_proposes_from_its_list_alone_and_stays_exact(is_fused):
    target, draft = tiny_model(is_fused=is_fused), tiny_model(seed=1, is_fused=is_fused)
    kept = torch.randperm(257, generator=torch.Generator().manual_seed(3))[:40]
    draft = replace(draft, draft_ids=kept)
    run = play(speculative(target, draft, IDS, num_draft_tokens=4, max_new_tokens=40, sampling=GREEDY))
    assert run.ids == greedy_reference(target, IDS, 40)
    # Its distribution is the whole head's, given that the id is in the list.
    run = play(speculative(target, draft, IDS, num_draft_tokens=4, max_new_tokens=40, seed=2))
    drafted = [token for step in run.steps for token in step.drafted]
    assert drafted
    assert set(drafted) <= set(kept.tolist())
    first = run.steps[0]
    full = draft.runner(64).forward(torch.tensor(IDS), num_logits=1).logits[0]
    distribution = torch.full_like(full, -torch.inf).index_copy_(0, kept, full[kept]).softmax(-1)
    assert first.draft_probs[0] == pytest.approx(float(distribution[first.drafted[0]]), rel=1e-4)
    coupled = {"max_new_tokens": 24, "seed": 4, "coupling": Coupling.GUMBEL}
    assert play(speculative(target, draft, IDS, **coupled)).ids == play(autoregressive(target, IDS, **coupled)).ids


def first_token_p_value(drafter_type: type, sampling: SamplingParams) -> float:
    """Chi-squared of the first token, from a draft that can't say what the target likes best."""
    target, draft = tiny_model(is_fused=True), tiny_model(seed=1)
    logits = target.runner(8).forward(torch.tensor([10, 20, 30]), num_logits=1).logits[0]
    expected = probabilities(logits, sampling).double().numpy() * 300
    ids = np.argsort(-expected)[1:30]
    trimmed = replace(draft, draft_ids=torch.from_numpy(np.sort(ids)))
    drafter = drafter_type(DrafterSetup(target, trimmed))
    counts = np.zeros(257)
    blocks = sample_blocks(target, drafter, [10, 20, 30], seed=0, controls=RunControls(sampling, 1))
    for step in itertools.islice(blocks, 300):
        counts[step.emitted[0]] += 1
    assert counts[expected == 0].sum() == 0
    is_cell = expected >= 5
    cells = [np.append(values[is_cell], values[~is_cell].sum()) for values in (counts, expected)]
    return chi_squared_p_value(*(values[cells[1] > 0] for values in cells))


@pytest.mark.parametrize("sampling", [SamplingParams(1.0), SamplingParams(1.0, top_k=6)], ids=["whole", "top-k"])
def test_with_a_trimmed_head_the_distribution_is_the_targets(sampling):
    assert first_token_p_value(DraftModelDrafter, sampling) > SIGNIFICANCE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("index_copy_(1, proposed, probs)", "index_copy_(1, proposed.roll(1), probs)"),
        ("else proposed.index_select(", "else proposed.roll(1).index_select("),
    ],
    ids=["its row is spread over the wrong ids", "it proposes another id than it drew"],
)
def test_a_drafter_that_mixes_up_its_ids_is_found(old, new):
    mutant = mutate(core.drafters.draft_model, old, new)
    assert first_token_p_value(mutant.DraftModelDrafter, SamplingParams(1.0)) < SIGNIFICANCE


class Watcher(StubDrafter):
    """Proposes the last ids again, and keeps the states that it is given."""

    needs = frozenset({TargetFeature.HIDDEN_STATES, 0, 1})

    def start(self, prompt) -> None:
        self.seen = {feature: [] for feature in self.needs}

    def propose(self, context):
        for feature, states in context.features.items():
            self.seen[feature].append(states)
        return chain(torch.tensor(list(context.ids[-context.num_draft_tokens :])), None)


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_drafter_gets_the_states_it_needs_of_each_position_once(is_fused):
    target, drafter, prompt = tiny_model(is_fused=is_fused), Watcher(), [5, 6, 7, 8, 5, 6]
    run = play(speculative(target, drafter, prompt, num_draft_tokens=3, max_new_tokens=20))
    ids = torch.tensor([[*prompt, *run.ids]])
    with torch.inference_mode():
        expected = tiny_model().model(input_ids=ids, output_hidden_states=True).hidden_states
        for feature, parts in drafter.seen.items():
            states = torch.cat(parts)
            layer = -1 if feature is TargetFeature.HIDDEN_STATES else feature
            assert torch.allclose(states, expected[layer][0, : len(states)], atol=2e-3, rtol=1e-3)
            assert len(states) > len(prompt) + 10
        logits = target.head(expected[-1])
        assert torch.allclose(logits, target.model(input_ids=ids).logits, atol=1e-3)
        assert torch.equal(target.embedding(ids), expected[0])


@pytest.mark.parametrize("layer", [2, -1, "last"])
def test_a_layer_that_the_target_lacks_is_refused_in_a_sentence(layer):
    drafter = Watcher()
    drafter.needs = frozenset({layer})
    with pytest.raises(DrafterError, match=rf"layer {layer}, but tiny has layers 0 to 1\."):
        play(speculative(tiny_model(), drafter, [1, 2, 3], max_new_tokens=4))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ([1, 2], "returned list, not a Draft"),
        (Draft([1], torch.tensor([-1]), None), "tokens that aren't an int64 tensor"),
        (Draft(torch.tensor([1.5]), torch.tensor([-1]), None), "tokens that aren't an int64 tensor"),
        (Draft(torch.tensor([[1]]), torch.tensor([-1]), None), "tokens that aren't an int64 tensor"),
        (Draft(torch.tensor([1]), [-1], None), "parents that aren't an int64 tensor"),
        (Draft(torch.tensor([1]), torch.tensor([-1]), [[0.0, 1.0, 0.0, 0.0]]), "distributions that aren't a tensor"),
        (Draft(torch.tensor([1]), torch.tensor([-1]), torch.tensor([[0, 1, 0, 0]])), "distributions that aren't"),
    ],
)
def test_a_drafter_of_others_that_returns_another_type_is_named(draft, message):
    drafter = build("prompt-lookup")
    drafter.propose = lambda _: draft
    with pytest.raises(DrafterError, match=rf"^PromptLookupDrafter .*{message}.* Fix its code"):
        play(speculative(table_model(random_rows(V, 2), V), drafter, PROMPT, num_draft_tokens=4, max_new_tokens=8))
