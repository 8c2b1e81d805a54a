"""Exactness on demand: it passes what is exact, and it must fail what is broken on purpose."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

import core.decode
import core.drafters.draft_model
import core.experiments.check
import core.rounds
import core.runners.scoring
import core.verify.rejection
from core.controls import RunControls
from core.drafters.length_policy import BlockPlan, DraftLengthPolicy
from core.errors import SettingsError
from core.experiments.check import check
from core.experiments.check_plan import CheckFinished, CheckProgress, CheckRequest, Comparison, Verdict
from core.experiments.check_report import report_json, report_text
from core.experiments.distribution import at_edge
from core.experiments.distribution_statistics import Bias, DistributionTally, chi_squared_p_value, fit, normal_p_value
from core.experiments.prompt_suites import Prompt
from core.sampling import probabilities
from core.settings import Coupling, LengthPolicy, RunRequest, SamplingParams
from tests.exactness import mutate
from tests.fakes import language_model, table_model, tiny_model, tiny_module
from tests.fakes_check import PROMPTS, VOCAB_SIZE, TableSession, checked, make_check
from tests.test_core_mutants import DRAFTERS, STOPPING_DRAFTERS, VERIFIERS

FILTERED = SamplingParams(0.8, 4, 0.95, 0.02)

HALF_PROMPTS = tuple(Prompt(text, text) for text in ("^Nk<a2E2", "-~*xK]h-", "T{vq!o`K"))
"""Behind these a random Llama in bfloat16 comes to places where rounding decides."""
BONUS_OF_THE_ROW_BEFORE = "left = node, target_probs[node + 1]", "left = node, target_probs[node]"


def by_name(report):
    return {test.name: test for test in report.distribution.tests}


# --- What is exact passes ---


EXACT = {
    "plain": {},
    "filtered": {"sampling": FILTERED, "num_draft_tokens": 4},
    "gumbel": {"coupling": Coupling.GUMBEL},
    "prompt-lookup": {"method": "prompt-lookup", "draft": None},
    "auto": {"num_draft_tokens": None},
    "adaptive": {"num_draft_tokens": None, "length_policy": LengthPolicy.ADAPTIVE},
}


@pytest.mark.parametrize("settings", EXACT.values(), ids=EXACT)
def test_an_exact_engine_passes_with_every_kind_of_setting(settings):
    report = checked(make_check(**settings))
    assert report.verdict is Verdict.EXACT
    expected = [Comparison.GREEDY, *([Comparison.GUMBEL] if settings.get("coupling") is Coupling.GUMBEL else [])]
    assert [item.comparison for item in report.identities] == expected
    assert all(item.num_tokens == 2 * 12 for item in report.identities)
    assert report.distribution.num_impossible == 0
    assert all(test.p_value is None or test.p_value > 1e-3 for test in report.distribution.tests)
    has_short_blocks = settings.get("num_draft_tokens") != 1 and settings.get("method") != "draft-tree"
    assert "change only the speed" in report.notes[0]
    assert any("Half the blocks use K = 1" in note for note in report.notes) is has_short_blocks


def test_at_temperature_0_the_greedy_text_alone_is_checked():
    report = checked(make_check(sampling=SamplingParams(0.0)))
    assert report.distribution is None
    assert report_text(report).startswith("Exact: all texts are equal.\n")
    assert report.verdict is Verdict.EXACT
    assert "only the greedy text is possible" in report_text(report)


def test_a_random_llama_is_exact_and_its_plain_text_is_that_of_transformers():
    session = TableSession(tiny_model("llama", seed=1, is_fused=True), tiny_model("llama", seed=2))
    report = checked(make_check(num_samples=200, with_transformers=True), session)
    assert report.verdict is Verdict.EXACT
    assert report.identities[1].comparison is Comparison.TRANSFORMERS
    assert report.distribution.rounding < 1e-5


# --- What is broken fails ---


BROKEN = {
    **{name: (core.verify.rejection, VERIFIERS[name]) for name in (
        "lenience", "corrects from |p - q|", "takes the likeliest bonus", "one draw for the whole block",
    )},
    "bonus": (core.verify.rejection, BONUS_OF_THE_ROW_BEFORE),
    "draws colder than it says": (core.drafters.draft_model, DRAFTERS["draws colder than it says"]),
}  # fmt: skip

SUBTLE = "lenience", "one draw for the whole block", "draws colder than it says"
"""These need many blocks to show; of the others, 800 give p-values below 1e-40."""


def break_engine(monkeypatch, module, mutation):
    """Have the engine run with a mutant of this module."""
    mutant = mutate(module, *mutation)
    if module is core.verify.rejection:
        monkeypatch.setattr(core.rounds, "verify_block", mutant.verify_block)
    else:
        monkeypatch.setattr(module, "DraftModelDrafter", mutant.DraftModelDrafter)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_verifier_or_drafter_is_not_exact(name, monkeypatch):
    break_engine(monkeypatch, *BROKEN[name])
    report = checked(make_check(num_samples=2_000 if name in SUBTLE else 800))
    assert report.verdict is Verdict.NOT_EXACT
    assert "Not exact" in report_text(report)
    assert "change only the speed" not in report_text(report), "it would read as a denial"
    is_greedy = report.identities[0].is_exact
    assert ("another seed" in report.notes[0], "file a bug" in report.notes[0]) == (is_greedy, True)


class Unsure(DraftLengthPolicy):
    """Blocks grow to 3 tokens as steps are learnt from, and end after one that is unlikely."""

    num_learnt = 0

    def plan(self, length):
        keep = (lambda confidence: confidence > 0.2) if length is LengthPolicy.ADAPTIVE else None
        return BlockPlan(min(self.num_learnt, 3), keep) if isinstance(length, LengthPolicy) else BlockPlan(length)

    def record(self, step):
        self.num_learnt += 1


def test_if_the_engine_chooses_k_the_blocks_are_those_of_a_trained_policy(monkeypatch):
    monkeypatch.setattr(core.decode, "DraftLengthPolicy", Unsure)
    request = make_check(num_draft_tokens=None, length_policy=LengthPolicy.ADAPTIVE, num_samples=1_200)
    report = checked(request)
    assert report.verdict is Verdict.EXACT
    assert {"token 2", "token 3"} <= by_name(report).keys()
    assert len(report.distribution.first_tokens) == len(PROMPTS)
    # A draft that is cut by what was drawn is not exact.
    break_engine(monkeypatch, core.drafters.draft_model, STOPPING_DRAFTERS["drops the token that made it stop"])
    assert checked(request).verdict is Verdict.NOT_EXACT


def test_a_target_whose_filters_are_forgotten_gives_impossible_tokens(monkeypatch):
    monkeypatch.setattr(
        core.rounds, "probabilities", lambda logits, params: probabilities(logits, SamplingParams(params.temperature))
    )
    report = checked(make_check(sampling=SamplingParams(0.8, 2)))
    assert report.verdict is Verdict.NOT_EXACT
    assert report.distribution.num_impossible > 0
    assert "that the target never produces" in report_text(report)
    assert report_text(report).startswith("Not exact: 400 sampled blocks don't follow the target's distribution")


def test_a_cache_that_keeps_what_was_rejected_is_found_in_the_greedy_text(monkeypatch):
    monkeypatch.setattr("core.runners.scoring.keep_path", lambda runner, root, places: None)
    init = core.runners.scoring.TargetScorer.__init__
    monkeypatch.setattr(
        "core.runners.scoring.TargetScorer.__init__",
        lambda self, model, capacity, *rest: init(self, model, capacity + 1_000, *rest),
    )
    report = checked(make_check(sampling=SamplingParams(0.0)))
    assert report.verdict is Verdict.NOT_EXACT
    assert not report.identities[0].divergences[0].is_near_tie
    assert "no near-tie" in report_text(report)
    text = "Not exact: Greedy text against plain decoding: 2 of 2 texts differ by more than rounding."
    assert report_text(report).splitlines()[0] == text
    assert report.notes[0] == "Save the report, and file a bug with it.", "greedy texts don't depend on the seed"


def test_a_bias_towards_the_draft_is_measured(monkeypatch):
    break_engine(monkeypatch, core.verify.rejection, VERIFIERS["accepts all"])
    report = checked(make_check(num_samples=600))
    # The first token is the draft's alone, and all that follow it but for the bonus.
    assert report.distribution.bias > 0.4
    assert by_name(report)["bias"].is_failed
    sentence = report_text(report).splitlines()[0]
    assert "600 sampled blocks don't follow the target's distribution; their bias towards the draft is " in sentence


# --- Near-ties ---


def shifting(shift):
    """A target that prefers the other of two close tokens where a block is scored: rounding, made large."""
    state = {"in_block": False}

    def logits_of(ids):
        row = torch.tensor([1.0, 1.0 + 1e-6, -3.0, -3.0, -3.0, -3.0])
        if state["in_block"]:
            row[0] += shift
        return row

    def on_forward(_runner, new):
        state["in_block"] = len(new) > 1

    model = table_model(logits_of, VOCAB_SIZE, ref="target")
    model.on_forward = on_forward
    return model


@pytest.mark.parametrize(("shift", "verdict"), [(1e-4, Verdict.NEAR_TIES), (0.5, Verdict.NOT_EXACT)])
def test_a_divergence_is_a_near_tie_only_within_the_effect_of_rounding(shift, verdict):
    report = checked(make_check(sampling=SamplingParams(0.0)), TableSession(shifting(shift)))
    assert report.verdict is verdict
    parting = report.identities[0].divergences[0]
    assert parting.margin == pytest.approx(1e-6, abs=2e-7)
    assert parting.difference == pytest.approx(shift, rel=0.01)
    assert parting.is_near_tie is (verdict is Verdict.NEAR_TIES)
    assert f"measured difference {shift:.2g}" in report_text(report)


@pytest.mark.parametrize(("shift", "verdict"), [(1e-4, Verdict.NEAR_TIES), (0.5, Verdict.NOT_EXACT)])
def test_a_token_at_the_edge_of_a_filter_is_a_near_tie_only_within_the_effect_of_rounding(shift, verdict):
    request = make_check(num_samples=200, coupling=Coupling.GUMBEL, sampling=SamplingParams(1.0, top_k=1))
    report = checked(request, TableSession(shifting(shift)))
    assert report.verdict is verdict
    parting = report.identities[1].divergences[0]
    assert (parting.margin, parting.is_near_tie) == (None, verdict is Verdict.NEAR_TIES)
    assert f"at the edge of the filters, measured difference {2 * shift:.2g}" in report_text(report)


def test_a_wider_filter_is_not_taken_for_rounding_at_its_edge(monkeypatch):
    def wider(*pair, controls, **more):
        return core.decode.speculative(*pair, controls=controls.sharing_stop(SamplingParams(0.8, 3), 2), **more)

    monkeypatch.setattr(core.experiments.check, "speculative", wider)
    found = checked(make_check(num_samples=200, coupling=Coupling.GUMBEL, sampling=SamplingParams(0.8, 2))).identities[
        1
    ]
    assert found.divergences
    assert not any(divergence.is_near_tie for divergence in found.divergences)


@pytest.mark.parametrize("coupling", Coupling)
def test_in_half_precision_every_divergence_is_explained(coupling):
    target = language_model(tiny_module("llama").bfloat16(), is_fused=True)
    request = make_check(num_samples=200, num_tokens=40, prompts=HALF_PROMPTS, coupling=coupling, num_draft_tokens=4)
    report = checked(request, TableSession(target, target))
    assert report.verdict is Verdict.NEAR_TIES
    assert "In bfloat16" in report_text(report)


def test_in_half_precision_every_divergence_in_a_tree_is_explained():
    module = tiny_module("llama")
    module.lm_head.weight.mul_(4.0)  # So that another row's logits are beyond what rounding is believed to do.
    target = language_model(module.bfloat16(), is_fused=True)
    prompts = tuple(Prompt(text, text) for text in ("jN[Cugn~", "Wf=qycZ=", "**HG5ViA"))
    run = {"method": "draft-tree", "num_draft_tokens": 6, "sampling": SamplingParams(0.0)}
    report = checked(make_check(num_tokens=40, prompts=prompts, **run), TableSession(target, target))
    assert report.verdict is Verdict.NEAR_TIES


def test_a_target_that_scores_blocks_differently_is_not_exact_in_its_sampled_distribution():
    found = checked(make_check(), TableSession(shifting(0.5))).distribution
    assert found.is_misscored
    assert not found.is_exact


# --- A second look ---


def test_only_a_suspicion_that_is_confirmed_is_a_failure(monkeypatch):
    monkeypatch.setattr("core.experiments.distribution.BEYOND_DOUBT", 0.0)
    with monkeypatch.context() as context:
        context.setattr("core.experiments.distribution.FALSE_ALARM", 3.0)
        report = checked(make_check())
    assert report.distribution.first_p_value is not None
    assert report.distribution.num_blocks == 3 * 400
    assert "fresh blocks" in report_text(report)
    break_engine(monkeypatch, core.verify.rejection, VERIFIERS["accepts all"])
    found = checked(make_check()).distribution
    assert found.first_p_value is not None
    assert not found.is_exact


# --- Statistics ---


def test_the_p_values_are_those_of_scipy():
    from scipy import stats

    for statistic, degrees in ((3.0, 2), (80.0, 40), (0.0, 5), (400.0, 10)):
        assert chi_squared_p_value(statistic, degrees) == pytest.approx(stats.chi2.sf(statistic, degrees), rel=1e-6)
    assert normal_p_value(-2.5) == pytest.approx(2 * stats.norm.sf(2.5))


def test_rare_tokens_share_a_cell_and_impossible_ones_are_counted():
    probs = torch.tensor([0.5, 0.4, 0.04, 0.03, 0.03, 0.0], dtype=torch.float64)
    found = fit({0: 50, 1: 40, 2: 9, 5: 1}, probs, torch.zeros(6, dtype=torch.bool))
    assert (found.degrees, found.num_impossible) == (2, 1)
    assert found.statistic == pytest.approx((9 - 10) ** 2 / 10)


@pytest.mark.parametrize(
    "sampling", [FILTERED, SamplingParams(1.0, 3), SamplingParams(2.0, 0, 0.6), SamplingParams(0.5, 0, 1, 0.1)]
)
def test_the_edge_of_a_filter_is_what_rounding_keeps_or_drops_and_the_rest_follows_one_distribution(sampling):
    rows = torch.randn(300, 12, generator=torch.Generator().manual_seed(0))
    moved = rows + 0.0499 * (torch.rand(rows.shape, generator=torch.Generator().manual_seed(1)).round() * 2 - 1)
    num_edges = num_unlike = 0
    for row, other in zip(rows, moved, strict=True):
        kept, now = (probabilities(logits, sampling) > 0 for logits in (row, other))
        edge = at_edge(row, sampling, 0.1, range(12))
        assert set((kept != now).nonzero().flatten().tolist()) <= set(edge)
        assert at_edge(row, sampling, 0.0, range(12)) == []
        assert at_edge(row, replace(sampling, temperature=1e-5), 0.5, range(12)) is not None, "no overflow"
        num_edges += len(edge)
        num_unlike += int((kept != now).sum())
    assert num_unlike
    assert num_edges < 300 * 12 / 4


def test_an_exact_engine_passes_where_rounding_decides_what_a_filter_keeps_and_a_wider_filter_does_not():
    row, other = torch.tensor([[1.0, 0.5, 1e-4, 0.0, -5.0], [1.0, 0.5, 0.0, 1e-4, -5.0]])
    sampling, rounding = SamplingParams(1.0, 3), 1e-3

    def drawn(logits, filters):
        found = torch.multinomial(
            probabilities(logits, filters), 4_000, True, generator=torch.Generator().manual_seed(0)
        )
        return Counter(found.tolist())

    def judged(counts):
        tally, probs = DistributionTally(), probabilities(row, sampling).double()
        tally.add(1, counts, probs, probs, at_edge(row, sampling, rounding, counts))
        return tally.result(1, 0.0)

    assert drawn(other, sampling)[3] > 500
    exact = judged(drawn(other, sampling))
    assert exact.num_impossible == 0
    assert exact.tests[0].p_value > 1e-3
    assert judged(drawn(row, SamplingParams(1.0, 5))).num_impossible > 0


def test_the_bias_is_the_share_of_the_drafts_distribution():
    target, draft = (torch.tensor(row, dtype=torch.float64) for row in ([0.5, 0.5], [0.9, 0.1]))
    bias = Bias()
    bias.add({0: 600, 1: 400}, target, draft)
    assert bias.share == pytest.approx(0.25)
    assert bias.error == pytest.approx((1000 * 0.25) ** 0.5 / 400)


# --- Around it ---


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (FILTERED, ["Part 1 of 3 · Greedy text", "Part 2 of 3 · Gumbel-coupled text", "Part 3 of 3 · Looking for"]),
        (SamplingParams(0.0), ["Greedy text, prompt 1"]),
    ],
)
def test_a_check_of_several_parts_says_which_of_how_many_it_is_in(sampling, expected):
    request = make_check(num_samples=200, coupling=Coupling.GUMBEL, sampling=sampling)
    events = check(TableSession(), request, RunControls())
    titles = [event.title for event in events if isinstance(event, CheckProgress)]
    begun = [next(title for title in titles if title.startswith(start)) for start in expected]
    assert [titles.index(title) for title in begun] == sorted(titles.index(title) for title in begun)
    assert all(title.startswith("Part ") for title in titles) is (len(expected) > 1)


def test_a_check_that_is_stopped_ends_at_once_without_a_report():
    controls = RunControls()
    for event in check(TableSession(), make_check(num_samples=100_000), controls):
        if getattr(event, "text", "") == "Blocks":
            controls.cancel()
    assert event == CheckFinished(None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_samples": 10}, "from 200"),
        ({"num_tokens": 0}, "from 1"),
        ({"prompts": PROMPTS * 600}, "at most 1,000"),
        ({"run": RunRequest("target", "draft", "any", num_draft_tokens=0)}, "nothing to check. Set K to 1 or more."),
    ],
)
def test_settings_out_of_range_are_refused_in_a_sentence(changes, words):
    with pytest.raises(SettingsError, match=words):
        CheckRequest(**{"run": RunRequest("target", "draft", "any"), **changes})


def test_the_report_is_json_without_the_prompts_texts():
    record = json.loads(report_json(checked()))
    assert (record["schema"], record["verdict"], record["law"]["is_exact"]) == ("outrider.check/1", "exact", True)
    assert {"lean", "lean_error", "num_impossible", "rounding", "tests"} <= record["law"].keys()
    assert record["law"]["tests"][-1]["name"] == "lean"
    assert record["identities"][0]["partings"] == []
    assert record["request"]["prompts"] == ["first", "second"]
    assert "ids" not in json.dumps(record["request"])
