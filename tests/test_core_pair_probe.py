"""A pair probed without drafting: distributions compared place by place, expected blocks, times, ranks."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from core.analysis import run_probe
from core.analysis.agreement import agreement, compare, compare_over, paths_of
from core.analysis.expectation import Curve
from core.analysis.probe import Costs, DraftProbe, ProbeDone, ProbeRequest, ProbeText, verdict
from core.analysis.run_probe import probe, speedup
from core.analysis.tree_forecast import PathAcceptance, compare_siblings
from core.controls import RunControls
from core.drafters.registry import TreeRule
from core.errors import OutriderError, PairMismatchError, PromptError, SettingsError
from core.sampling import probabilities
from core.settings import SamplingParams
from tests.fakes import fixed_rows, language_model, random_rows, table_model, tiny_model, tiny_module

V = 6
WARM = SamplingParams(temperature=0.8)
COLD = SamplingParams(temperature=0.0)
FILTERED = SamplingParams(temperature=1.2, top_k=4, top_p=0.9)


def a_pair(vocab_size=V, scale=1.5):
    tables = random_rows(vocab_size, 1, scale=scale), random_rows(vocab_size, 2, scale=scale)
    return tuple(table_model(logits_of, vocab_size) for logits_of in tables)


def a_text(count=40, vocab_size=V, seed=0):
    return torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


# --- Places -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [WARM, FILTERED, COLD], ids=["warm", "filtered", "cold"])
@pytest.mark.parametrize("rows", [1, 7, 256])
def test_each_position_equals_a_full_computation(sampling, rows, monkeypatch):
    monkeypatch.setattr("core.analysis.agreement._MOST_ROWS", rows)
    target, draft = a_pair()
    ids = a_text()
    found = compare_over(target, draft, ids, 5, sampling)
    assert len(found.siblings) == len(ids) - 5
    for at, token in enumerate(ids[5:]):
        p, q = (probabilities(model.logits_of(ids[: at + 5]), sampling).double() for model in (target, draft))
        assert found.siblings[at, 0] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-6)
        kept = min(1.0, float(q[token] / p[token])) if p[token] > 0 else 0.0
        assert found.siblings_kept[at, 0] == pytest.approx(kept, abs=1e-5)
        divergence = float(torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum())
        assert found.kl_target_draft[at] == pytest.approx(divergence, abs=1e-5)
        assert found.same_top[at] == (int(p.argmax()) == int(q.argmax()))
        entropy = float(torch.where(q > 0, -q * q.log(), 0.0).sum())
        assert found.draft_entropy[at] == pytest.approx(entropy, abs=1e-5)


def test_at_a_low_temperature_divergences_are_finite_though_probabilities_round_to_0():
    target, draft = a_pair(scale=9.0)
    ids, sampling = a_text(), SamplingParams(temperature=0.05)
    found = compare_over(target, draft, ids, 1, sampling)
    rows = [tuple(model.logits_of(ids[:at]).double() / 0.05 for model in (target, draft)) for at in range(1, len(ids))]
    p, q = (torch.stack(logits).log_softmax(-1) for logits in zip(*rows, strict=True))
    assert (q.exp().float() == 0).any()
    np.testing.assert_allclose(found.kl_target_draft, (p.exp() * (p - q)).sum(-1), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found.kl_draft_target, (q.exp() * (q - p)).sum(-1), rtol=1e-4, atol=1e-3)


def test_a_draft_that_proposes_few_ids_is_compared_over_these():
    target = torch.softmax(torch.randn(4, V), -1)
    few = torch.tensor([4, 1, 3])
    draft = torch.softmax(torch.randn(4, 3), -1)
    tokens = torch.tensor([0, 1, 4, 3])
    whole = torch.zeros(4, V).index_copy_(1, few, draft)
    ours, padded = compare(target, draft, few), compare(target, whole)
    found = [
        compare_siblings(target, probs, tokens, ids, TreeRule.WITHOUT, torch.Generator())
        for probs, ids in ((draft, few), (whole, None))
    ]
    for own, other in zip(*found, strict=True):
        np.testing.assert_allclose(own[:, 0], other[:, 0], atol=1e-6)
    assert (ours.same_top == padded.same_top).all()
    assert np.isinf(ours.kl_target_draft).all()
    assert np.isinf(padded.kl_target_draft).all()


@pytest.mark.parametrize("rows", [1, 4, 256])
def test_a_token_that_the_draft_can_not_read_ends_its_proposals(rows, monkeypatch):
    monkeypatch.setattr("core.analysis.agreement._MOST_ROWS", rows)
    target, draft = table_model(fixed_rows([0.0] * V), V), table_model(fixed_rows([0.0] * 4), 4)
    found = compare_over(target, draft, [0, 1, 2, 5, 1, 2], 1, WARM)
    assert found.siblings[:, 0].tolist() == pytest.approx([4 / 6, 4 / 6, 4 / 6, 0, 0])
    assert compare_over(target, draft, [0, 5, 2, 5, 1, 2], 3, WARM).siblings.sum() == 0


# --- Blocks -----------------------------------------------------------------------------------------------------


def test_over_the_targets_own_texts_the_estimate_is_exactly_the_chance_of_every_row():
    target, draft = a_pair(3)
    prompt, length = [0, 1, 2], 3
    mean, exact = np.zeros(length), np.zeros(length)
    for tokens in itertools.product(range(3), repeat=length):
        ids, chance, both = [*prompt, *tokens], 1.0, 1.0
        for at in range(length):
            p, q = (float(probabilities(model.logits_of(ids[: 3 + at]), WARM)[tokens[at]]) for model in (target, draft))
            chance *= p
            both *= min(p, q)
            # Each row of at + 1 tokens is met once for each way to go on.
            exact[at] += both / 3 ** (length - 1 - at)
        places = compare_over(target, draft, ids, 3, WARM)
        paths = paths_of([places], is_own_text=True)
        mean += chance * np.array([paths.reached((0,) * (at + 1))[0] for at in range(length)])
    np.testing.assert_allclose(mean, exact, atol=1e-6)


def test_the_chain_estimate_is_the_product_along_the_text():
    sums = np.array([[0.9], [0.5], [0.8], [1.0]])
    paths = PathAcceptance([(sums, 0.1 * np.ones((4, 1)))], is_own_text=False)
    table = np.array([paths.reached((0,) * length) for length in range(1, 17)])
    assert table[:4, 0].tolist() == pytest.approx([0.9, 0.45, 0.36, 0.36])
    assert table[:2, 2].tolist() == pytest.approx([0.8, 0.8])
    assert np.isnan(table[2, 2])
    assert np.isnan(table[4:]).all()


def test_a_draft_equal_to_its_target_keeps_every_block_and_a_stranger_at_temperature_0_hardly_any():
    target, _ = a_pair()
    same = agreement([compare_over(target, target, a_text(60), 1, WARM)], is_own_text=False)
    assert same.acceptance.value == pytest.approx(1.0)
    assert same.tokens.values == pytest.approx(range(1, 18))
    assert same.top_1 == 1.0
    assert same.kl_target_draft == pytest.approx(0.0, abs=1e-6)
    other = table_model(fixed_rows([0.0, 9.0]), 2)
    parting = compare_over(table_model(fixed_rows([9.0, 0.0]), 2), other, [0, 1] * 20, 1, COLD)
    never = agreement([parting], is_own_text=False)
    assert never.tokens.values == (1.0,) * 17
    assert never.num_infinite == 39
    assert never.kl_target_draft is None


def test_the_speedup_is_tau_over_what_it_costs():
    target, draft = a_pair()
    found = agreement([compare_over(target, draft, a_text(60), 1, WARM)], is_own_text=False)
    costs = Costs(10.0, 1.0, ((2, 11.0), (3, 12.0), (5, 14.0), (9, 18.0), (17, 26.0)))
    verify, expected = speedup(found.tokens, costs)
    assert costs.cost == pytest.approx(0.1)
    for k in range(17):
        assert verify.values[k] == pytest.approx(1 + 0.1 * k)
        assert expected.values[k] == pytest.approx(found.tokens.values[k] / (1 + 0.2 * k))


# --- The whole probe --------------------------------------------------------------------------------------------


class Loader:
    """Hands out pairs by the draft's name; an exception is raised."""

    def __init__(self, target, **drafts):
        self.target, self.drafts = target, drafts
        self.requests = []

    def load(self, request, controls):
        self.requests.append(request)
        controls.check_cancelled()
        yield from ()
        draft = self.drafts[request.draft]
        if isinstance(draft, Exception):
            raise draft
        return SimpleNamespace(target=self.target, draft=draft)


@pytest.fixture
def loader(monkeypatch):
    monkeypatch.setattr(run_probe, "resolve", lambda ref: ref)
    monkeypatch.setattr("core.analysis.run_probe._ROUNDS", 3)
    target = tiny_model(seed=1, is_fused=True)
    near = tiny_module("llama", seed=1)
    for parameter in near.parameters():
        if parameter.ndim > 1:
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)), alpha=0.02)
    return Loader(
        target,
        near=language_model(near, is_fused=True),
        far=tiny_model(seed=2, is_fused=True),
        odd=PairMismatchError("The tokenizers differ."),
    )


TEXT = ProbeText("a text", prompt="The quick brown fox jumps over the lazy dog, and then once more.", is_raw=True)


def asked(*drafts, text=TEXT, **changes):
    return ProbeRequest("target", drafts, (text,), sampling=WARM, **changes)


def played(loader, request, controls=None):
    events = list(probe(loader, request, controls or RunControls()))
    assert isinstance(events[-1], ProbeDone)
    return events[-1], [event for event in events if isinstance(event, DraftProbe)]


def test_drafts_are_ranked_and_one_that_does_not_fit_comes_last_with_its_reason(loader):
    done, probed = played(loader, asked("odd", "far", "near"))
    assert [found.draft for found in probed] == ["odd", "far", "near"]
    assert (done.probes[-1].draft, done.probes[-1].problem) == ("odd", "The tokenizers differ.")
    near, far = (next(found for found in probed if found.draft == name) for name in ("near", "far"))
    assert near.agreement.acceptance.value > far.agreement.acceptance.value
    assert near.agreement.num_places == len(TEXT.prompt) - 1
    assert done.probes[0].best_speedup >= done.probes[1].best_speedup
    # Of a text that the target writes first, only its own tokens count.
    done, _ = played(loader, asked("near", generate=20))
    assert done.probes[0].agreement.num_places == 20
    assert done.probes[0].agreement.is_own_text


def test_a_long_text_is_read_in_windows_and_cut_to_the_places_that_are_wanted(loader):
    text = ProbeText("a book", prompt="abcdefghij" * 100, is_raw=True)
    for changes, count in ({}, 999), ({"max_positions": 300}, 300):
        done, _ = played(loader, asked("near", text=text, **changes))
        assert done.probes[0].agreement.num_places == count
    assert "last 699 positions of a book are left out" in done.notes[0]


def test_a_text_of_one_token_and_drafts_that_all_fail_are_reported_in_a_sentence(loader):
    with pytest.raises(PromptError, match="too short"):
        played(loader, asked("near", text=ProbeText("x", prompt="x", is_raw=True)))
    with pytest.raises(OutriderError, match="tokenizers differ"):
        played(loader, asked("odd"))


def test_a_probe_that_is_stopped_returns_its_results_so_far(loader):
    controls = RunControls()
    events = probe(loader, asked("near", "far"), controls)
    for event in events:
        if isinstance(event, DraftProbe):
            controls.cancel()
        last = event
    assert last.is_stopped
    assert [found.draft for found in last.probes] == ["near"]


def test_probabilities_that_hold_nan_are_a_problem_of_the_pair(loader):
    loader.drafts["nan"] = table_model(fixed_rows([math.nan] * 257), 257)
    done, _ = played(loader, asked("near", "nan"))
    assert "NaN" in done.probes[-1].problem


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"generate": -1}, "0 or more"),
        ({"max_positions": 0}, "from 1 to"),
    ],
)
def test_settings_out_of_range_are_refused(changes, words):
    with pytest.raises(SettingsError, match=words):
        ProbeRequest(**{"target": "t", "drafts": ("d",), "texts": (TEXT,), **changes})


def test_the_verdict_names_the_draft_and_k_or_says_not_to():
    fast = DraftProbe("a", speedup=Curve((1.0, 1.2, 1.5, 1.4), (1.0, 1.1, 1.3, 1.2), (1.0, 1.3, 1.7, 1.6)))
    slow = DraftProbe("b", speedup=Curve((1.0, 0.9, 0.8)))
    assert verdict((fast, slow)) == "Use a with K = 2: 1.50× is predicted (1.30 to 1.70)."
    unsure = DraftProbe("a", speedup=Curve((1.0, 1.07), (1.0, 0.95), (1.0, 1.18)))
    assert verdict((unsure, slow)) == "Not sure it pays to use a with K = 1: 1.07× is predicted (0.95 to 1.18)."
    still_rising = DraftProbe("d", speedup=Curve(tuple(1.0 + k / 10 for k in range(17))))
    assert verdict((still_rising,)) == "Use d with K = 16, the largest tried: 2.60× is predicted."
    assert verdict((slow,)).startswith("Don't speculate here: b isn't expected")
    assert verdict((DraftProbe("c", problem="No."),)) == "None of these drafts could be probed."
