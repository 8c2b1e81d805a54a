"""The reproducible mode says what it costs: the acceptance that rejection coupling would have, beside its own."""

import pytest

from core.decode import speculative
from core.runlog.log import SUMMARY_FIELDS, to_record
from core.types import Coupling, Finished, SamplingParams
from tests.fakes import play, random_law, table_model

SAMPLING = SamplingParams(0.9, top_k=12)


def run(coupling: Coupling, seed: int):
    models = [table_model(random_law(16, law, scale=2), 16) for law in (1, 2)]
    return play(speculative(*models, [0], num_draft_tokens=3, sampling=SAMPLING, max_new_tokens=2000, seed=seed,
                            coupling=coupling)).summary  # fmt: skip


def test_what_a_coupled_run_expects_of_rejection_is_what_rejection_does():
    coupled = [run(Coupling.GUMBEL, seed) for seed in range(2)]
    rejecting = [run(Coupling.REJECTION, seed) for seed in range(2)]

    def mean(summaries, name: str) -> float:
        return sum(getattr(summary, name) for summary in summaries) / len(summaries)

    reached = mean(rejecting, "draft_acceptance_rate")
    assert mean(coupled, "expected_acceptance_rate") == pytest.approx(reached, abs=0.03)
    assert mean(rejecting, "expected_acceptance_rate") == pytest.approx(reached, abs=0.03)
    # Coupling by shared noise keeps less, which is the price that is shown.
    assert mean(coupled, "draft_acceptance_rate") < mean(coupled, "expected_acceptance_rate") - 0.01


def test_the_log_holds_the_figure_behind_the_fields_that_were_there_before():
    record = to_record(Finished(run(Coupling.GUMBEL, 5)))
    assert record is not None
    assert list(record)[1 : 1 + len(SUMMARY_FIELDS)] == list(SUMMARY_FIELDS)
    assert 0.0 < record["expected_acceptance_rate"] < 1.0
