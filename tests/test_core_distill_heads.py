"""Distilling Medusa heads: they learn what follows the states, read the right tokens, and resume where they stopped."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import core.distill.heads as training
from core.decode import autoregressive, speculative
from core.distill.heads import Tables, export_heads, held_out_accuracy, inputs_of, new_heads, train_heads
from core.distill.pipeline import Kind, distill
from core.distill.self_play import Script
from core.distill.texts import QUICK_LOOK
from core.drafters.base import DrafterSetup
from core.drafters.registry import build_drafter
from core.errors import SettingsError
from core.models.medusa_heads import load_heads
from core.settings import SamplingParams
from tests.fakes import play, tiny_model
from tests.fakes_distill import play_part, quiet, settings, texts_file, training_settings

SCRIPT = Script((7, 8), (3, 4, 5), frozenset({9, 11, 13, 17}))
PLAN = replace(settings(vocabulary_size=120, num_layers=2), kind=Kind.MEDUSA, training=training_settings(tokens=600))


def test_each_head_is_given_the_tokens_between_its_state_and_what_it_predicts():
    part, model = play_part(SCRIPT), tiny_model("llama").model
    tables = Tables.of(model, part)
    row = int((part.texts.end - part.texts.answer_start).argmax())
    begin, ids = int(part.texts.answer_start[row]) - 1, torch.from_numpy(part.texts.ids[row]).long()
    states, end = torch.from_numpy(part.states[row]).float(), int(part.texts.end[row])
    assert end - begin > 6
    for head, (own, tokens, ahead) in enumerate(inputs_of(part, row, 3, tables, begin)):
        assert torch.equal(own, states[begin : begin + len(own)])
        for between in range(head + 1):
            expected = tables.embedding[ids[begin + 1 + between :][: len(own)]]
            assert torch.equal(tokens[:, between], expected)
        # The states to learn from have read all of those tokens; the last of them chose the text's last token.
        assert (ahead.start, ahead.stop) == (begin + head + 1, end - 1)


def test_heads_learn_what_follows_in_their_texts(target, tmp_path):
    part = play_part(SCRIPT)
    heads, tables = new_heads(target.model, "tiny", 2, 2, list(range(120))), Tables.of(target.model, part)
    before = held_out_accuracy(heads, tables, part)
    plan, checkpoint = training_settings(tokens=10_000, learning_rate=1e-2), tmp_path / "heads.pt"
    train_heads(heads, tables, [part], part, len(SCRIPT.opening), plan, checkpoint, quiet)
    for old, new in zip(before, held_out_accuracy(heads, tables, part), strict=True):
        assert new[0] > old[0] + 0.2
        assert new == sorted(new), "of a larger number of candidates, more are right"


def test_distilled_heads_draft_for_their_target_exactly(target, tmp_path):
    figures = distill(target, PLAN, tmp_path / "work", tmp_path / "heads", quiet)
    assert list(figures) == [f"head {head}, top {top}" for head in range(3) for top in (1, 2, 4, 8)]
    assert all(0 <= share <= 1 for share in figures.values())
    greedy = {"sampling": SamplingParams(0.0), "max_new_tokens": 24}
    drafter = build_drafter("medusa", DrafterSetup(target), {"heads": str(tmp_path / "heads")})
    drafted = play(speculative(target, drafter, [60, 117, 62], **greedy))
    assert drafted.ids == play(autoregressive(target, [60, 117, 62], **greedy)).ids
    assert drafted.summary.num_draft_tokens > 0


def test_exported_heads_read_the_targets_embedding_as_it_is_and_keep_their_card(target, tmp_path):
    part = play_part(SCRIPT)
    heads = new_heads(target.model, "tiny", 2, 2, list(range(80)))
    tables = Tables.of(target.model, part)
    assert abs(tables.scale - 1) > 0.1, "or this test shows nothing"
    folder = tmp_path / "heads"
    folder.mkdir()
    (folder / "README.md").write_text("A card.")
    export_heads(heads, tables.scale, folder)
    assert (folder / "README.md").read_text() == "A card."
    loaded = load_heads(folder, target)
    ids, states = torch.tensor([[5, 6], [70, 8]]), torch.randn(2, heads.hidden_size)
    ours = heads(1, states, tables.embedding[ids])
    theirs = loaded(1, states, target.model.get_input_embeddings()(ids))
    assert torch.allclose(ours, theirs, atol=0.05)
    assert held_out_accuracy(heads, tables, part) != held_out_accuracy(loaded, tables, part), "which reads them scaled"


@pytest.mark.parametrize("kind", Kind)
def test_texts_of_any_temperature_judge_what_learned_from_them(target, tmp_path, kind):
    ids = np.random.default_rng(0).integers(1, 200, (16, 48))
    file = texts_file(tmp_path / "texts.npz", ids, 12, 0.7)
    often = training_settings(tokens=600, evaluate_seconds=0.0)
    plan, lines = replace(PLAN, kind=kind, start_from=file, num_texts=8, training=often), []
    figures = distill(target, plan, tmp_path / "work", tmp_path / "out", lines.append)
    assert all(0 <= share <= 1 for share in figures.values())
    progress = [line for line in lines if line.startswith("held out")]
    assert progress
    assert all("at temperature 0.7" in line and "nan" not in line for line in progress)


def test_a_quick_look_takes_its_rows_from_those_whose_answers_are_long_enough():
    part = play_part(SCRIPT)
    whole = int((part.texts.end - part.texts.answer_start).argmax())
    rows = [whole] * 34
    start = np.full(34, part.texts.ids.shape[1] - 1, dtype=np.int32)
    start[-1] = part.texts.answer_start[whole]
    texts = replace(part[rows].texts, answer_start=start, temperature=np.zeros(34, dtype=np.float32))
    held_out = replace(part[rows], texts=texts)
    model = tiny_model("llama").model
    heads, tables = new_heads(model, "tiny", 3, 2, list(range(120))), Tables.of(model, part)
    quick = held_out_accuracy(heads, tables, held_out, max_rows=QUICK_LOOK)
    assert quick == held_out_accuracy(heads, tables, held_out[[-1]])
    assert all(0 <= share <= 1 for shares in quick for share in shares)


def test_answers_too_short_for_the_last_head_are_refused_before_the_training(target, tmp_path, monkeypatch):
    file = texts_file(tmp_path / "texts.npz", np.full((16, 48), 5), 45, 0.0)
    monkeypatch.setattr("core.distill.pipeline.train_heads", lambda *_arguments: pytest.fail("They were trained."))
    with pytest.raises(SettingsError, match=r"more than 3 tokens to judge the heads by\. Use fewer --heads, or start"):
        distill(target, replace(PLAN, start_from=file, num_texts=8), tmp_path / "work", tmp_path / "out", quiet)


def test_a_step_compares_over_the_frequent_ids_those_of_its_texts_and_random_others():
    vocabulary, frequent = torch.arange(10, 5010), torch.arange(1024)
    texts = torch.tensor([5, 4000, 4001, 6000])
    parts = [training._part_of(vocabulary, frequent, texts, torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    for part in parts:
        assert len(part.unique()) == len(part) == 2048
        assert set(range(10, 1034)) | {4000, 4001} <= set(part.tolist()) <= set(range(10, 5010))
    assert not torch.equal(*parts)
