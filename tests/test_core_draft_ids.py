"""Drafts that propose from a list of ids: what they draw, what verification is told of it, and what comes out."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import core.drafters.draft_model
from core.controls import RunControls
from core.decode import autoregressive, sample_blocks, speculative
from core.drafters.draft_model import DraftModelDrafter
from core.sampling import probabilities
from core.settings import Coupling, SamplingParams
from tests.exactness import SIGNIFICANCE, chi_squared_p_value, mutate
from tests.fakes import greedy_reference, play, tiny_model

GREEDY = SamplingParams(0.0)
PROMPT = [10, 20, 30, 40, 10, 20]
NUM_RUNS = 600


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "module"])
def test_a_draft_with_a_trimmed_head_proposes_from_its_list_alone_and_stays_exact(is_fused):
    target, draft = tiny_model(is_fused=is_fused), tiny_model(seed=1, is_fused=is_fused)
    kept = torch.randperm(257, generator=torch.Generator().manual_seed(3))[:40]
    draft = replace(draft, draft_ids=kept)
    run = play(speculative(target, draft, PROMPT, num_draft_tokens=4, max_new_tokens=40, sampling=GREEDY))
    assert run.ids == greedy_reference(target, PROMPT, 40)
    # Its distribution is the whole head's, given that the id is in the list.
    run = play(speculative(target, draft, PROMPT, num_draft_tokens=4, max_new_tokens=40, seed=2))
    drafted = [token for step in run.steps for token in step.drafted]
    assert drafted
    assert set(drafted) <= set(kept.tolist())
    first = run.steps[0]
    full = draft.runner(64).forward(torch.tensor(PROMPT), num_logits=1).logits[0]
    law = torch.full_like(full, -torch.inf).index_copy_(0, kept, full[kept]).softmax(-1)
    assert first.draft_probs[0] == pytest.approx(float(law[first.drafted[0]]), rel=1e-4)
    for coupling in Coupling:
        runs = [
            play(generator).ids
            for generator in (
                speculative(target, draft, PROMPT, max_new_tokens=24, seed=4, coupling=coupling),
                autoregressive(target, PROMPT, max_new_tokens=24, seed=4, coupling=coupling),
            )
        ]
        assert (runs[0] == runs[1]) or coupling is Coupling.REJECTION


def first_token_p_value(drafter_type: type, sampling: SamplingParams) -> float:
    """Chi-squared of the first token, from a draft that can't say what the target likes best."""
    target, draft = tiny_model(), tiny_model(seed=1)
    logits = target.runner(8).forward(torch.tensor(PROMPT[:3]), num_logits=1).logits[0]
    expected = probabilities(logits, sampling).double().numpy() * NUM_RUNS
    ids = np.argsort(-expected)[1:30]
    drafter = drafter_type(replace(draft, draft_ids=torch.from_numpy(np.sort(ids))))
    counts = np.zeros(257)
    blocks = sample_blocks(target, drafter, PROMPT[:3], seed=0, controls=RunControls(sampling, 1))
    for step in itertools.islice(blocks, NUM_RUNS):
        counts[step.emitted[0]] += 1
    assert counts[expected == 0].sum() == 0
    is_cell = expected >= 5
    cells = [np.append(values[is_cell], values[~is_cell].sum()) for values in (counts, expected)]
    return chi_squared_p_value(*(values[cells[1] > 0] for values in cells))


@pytest.mark.parametrize("sampling", [SamplingParams(1.0), SamplingParams(1.0, top_k=6)], ids=["whole", "top-k"])
def test_the_distribution_is_the_targets(sampling):
    assert first_token_p_value(DraftModelDrafter, sampling) > SIGNIFICANCE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("index_copy_(1, proposed, probs)", "index_copy_(1, proposed.roll(1), probs)"),
        ("else proposed[drawn]", "else proposed.roll(1)[drawn]"),
    ],
    ids=["its row is spread over the wrong ids", "it proposes another id than it drew"],
)
def test_a_drafter_that_mixes_up_its_ids_is_found(old, new):
    mutant = mutate(core.drafters.draft_model, old, new)
    assert first_token_p_value(mutant.DraftModelDrafter, SamplingParams(1.0)) < SIGNIFICANCE
