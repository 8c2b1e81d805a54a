"""Distilling a draft: the texts follow the script, the draft gains acceptance and stays exact, stopped work resumes."""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from core.decode import speculative
from core.distill import heads, student
from core.distill.pipeline import Kind, distill
from core.distill.self_play import OWN_WORDS, PlaySettings, Script, script_of
from core.distill.student import (
    check_target,
    export_student,
    held_out_acceptance,
    make_batch,
    new_student,
)
from core.distill.texts import (
    Part,
    Texts,
    frequent_ids,
    in_parts,
    parts_in,
    read_part,
    read_texts,
    split,
    target_log_probs,
    write_part,
)
from core.errors import ModelUnreadableError, SettingsError
from core.models import load
from core.models.catalogue import resolve
from core.models.fit import pair_problem
from core.models.shared_draft import BORROWED
from core.settings import SamplingParams
from core.training.train import Progress, load_checkpoint, make_optimizers, save_checkpoint
from tests.fakes import byte_tokenizer, failing, greedy_reference, play, refusal, save_model, tiny_model, tiny_module
from tests.fakes_distill import END, LONG, chat_tokenizer, play_part, quiet, settings, texts_file, training_settings


def play_texts(script, seed=0, **changes):
    return play_part(script, seed, **changes).texts


def texts_of(ids, start, end):
    rows = len(ids)
    return Texts(np.array(ids, dtype=np.int32), np.full(rows, start), np.full(rows, end), np.ones(rows, np.float32))


# --- The texts --------------------------------------------------------------------------------------------------


def test_the_script_comes_from_the_chat_template_and_the_tokenizer():
    tokenizer = chat_tokenizer()
    script = script_of(tokenizer, frozenset({END}))
    assert (tokenizer.decode(list(script.opening)), tokenizer.decode(list(script.bridge))) == ("<u>", "</u><a>")
    assert "What is" in [tokenizer.decode(list(words)) for words in script.first_words]
    assert {tokenizer.decode([token]) for token in script.sentence_ends} >= {".", "?", "!"}
    assert not any(tokenizer.decode([token]).endswith("a") for token in script.sentence_ends)
    base = script_of(byte_tokenizer(), frozenset({END}))
    assert (base.opening, base.bridge) == ((END,), ())
    tokenizer.chat_template = "hello"
    with pytest.raises(ModelUnreadableError, match="chat template"):
        script_of(tokenizer, frozenset({END}))


def test_every_text_follows_the_script():
    script = Script((7, 8), (3, 4, 5), frozenset({9, 11, 13, 17}))
    texts = play_texts(script)
    assert texts.ids[:, :2].tolist() == [[7, 8]] * 12
    assert texts.temperature.tolist() == [1.0, 0.0] * 6
    for ids, start, end in zip(texts.ids.tolist(), texts.answer_start.tolist(), texts.end.tolist(), strict=True):
        assert start <= 2 + 9 + 3
        assert ids[start - 3 : start] == [3, 4, 5]
        assert not script.end_ids & set(ids[2 : start - 3])
        assert not script.end_ids & set(ids[start : end - 1])
        assert end == 40 or ids[end - 1] in script.end_ids
    assert len(set(texts.end.tolist())) > 1
    base = play_texts(Script((5,), (), frozenset()))
    assert (set(base.answer_start.tolist()), set(base.end.tolist())) == ({1 + OWN_WORDS}, {40})
    assert len({tuple(ids) for ids in base.ids[1::2].tolist()}) == 6, "greedy texts differ, too"


def test_a_turn_that_is_begun_for_the_user_ends_with_its_first_sentence():
    words = ((50, 51, 52), (60,))
    script = Script((7, 8), (3, 4), frozenset({9}), words, frozenset(range(0, 256, 5)))
    texts = play_texts(script, rows=40, begun_share=0.5)
    begun = [row for row in range(40) if any(texts.ids[row, 2 : 2 + len(w)].tolist() == list(w) for w in words)]
    assert 8 < len(begun) < 32
    for row in begun:
        turn = texts.ids[row, 2 : texts.answer_start[row] - 2].tolist()
        # The tiny model's sentences have random lengths; one that never ends is cut like any other turn.
        assert not set(turn[3:-1]) & script.sentence_ends
        assert turn[-1] in script.sentence_ends or len(turn) == 9 or turn[:1] == [60]
    assert not [row for row in play_texts(script, begun_share=0.0).ids.tolist() if row[2:5] == [50, 51, 52]]


def test_states_and_greedy_answers_are_the_targets_own_and_a_seed_repeats_the_texts():
    script = Script((7, 8), (3,), frozenset())
    part = play_part(script)
    with torch.inference_mode():
        output = tiny_module("llama")(torch.from_numpy(part.texts.ids).long(), output_hidden_states=True)
    counted = slice(1, 39)  # what training reads: from the opening's last position to the one before the end
    assert np.allclose(part.states[:, counted], output.hidden_states[-1][:, counted], atol=4e-3)
    assert np.allclose(part.log_norms[:, counted], output.logits.logsumexp(-1)[:, counted], atol=1e-3)
    row, start = part.texts.ids[1].tolist(), int(part.texts.answer_start[1])
    assert row[start:] == greedy_reference(tiny_model(), row[:start], 40 - start)
    assert play_texts(script).ids.tolist() == part.texts.ids.tolist()
    assert play_texts(script, seed=1).ids.tolist() != part.texts.ids.tolist()


def test_existing_texts_are_read(tmp_path, monkeypatch):
    ids = np.array([[1, 2, 3, 9, 0], [1, 2, 3, 4, 5]], dtype=np.uint16)
    file = tmp_path / "texts.npz"
    np.savez(file, ids=ids, answer_start=np.array([2, 2]), answer_temperature=np.array([0.01, 1.0], dtype=np.float16))
    texts = read_texts(file, frozenset({9}))
    assert texts.end.tolist() == [4, 5]
    assert texts.temperature.tolist() == [0.0, 1.0]
    whole = file.read_bytes()
    array = io.BytesIO()
    np.save(array, ids)
    for damaged in (whole[:-30], whole.replace(b"(2, 5)", b"(2, 9)"), array.getvalue(), b"no archive", b""):
        file.write_bytes(damaged)
        refusal(ModelUnreadableError, read_texts, file, frozenset({9}), match=r"texts\.npz")
    file.write_bytes(whole)
    monkeypatch.setattr("core.distill.texts._MOST_BYTES", 400)
    refusal(ModelUnreadableError, read_texts, file, frozenset({9}))


def test_the_last_texts_come_first_and_are_held_out():
    column = np.arange(1000, dtype=np.int32)
    texts = Texts(column[:, None], column, column, np.ones(1000, dtype=np.float32))
    parts = in_parts(texts, 192)
    assert sorted(i for part in parts for i in part.ids[:, 0].tolist()) == list(range(1000))
    train, held_out = split([Part(part, np.zeros((len(part), 1, 1)), np.zeros((len(part), 1))) for part in parts])
    assert held_out.texts.ids[:, 0].tolist() == list(range(800, 1000))
    assert not set(held_out.texts.end.tolist()) & {i for part in train for i in part.texts.end.tolist()}


def test_a_part_gives_the_targets_probabilities(target, tmp_path):
    texts = texts_of(np.arange(5 * 24).reshape(5, 24) % 250, 24, 24)
    write_part(target.model, texts, tmp_path / "part-0000", rows_per_pass=2, compiled=False, vocab_size=201)
    part = read_part(tmp_path / "part-0000")
    wanted = torch.tensor([3, 200, 17])
    logits = target.model(torch.from_numpy(texts.ids).long()).logits[..., :201]
    head = target.model.lm_head.weight[wanted]
    ours = target_log_probs(torch.from_numpy(np.array(part.states)).float(), torch.from_numpy(part.log_norms), head)
    # The states are computed in bfloat16.
    assert float((ours - logits.log_softmax(-1)[..., wanted]).abs().mean()) < 0.05
    assert parts_in(tmp_path) == [tmp_path / "part-0000"]


def test_rows_that_only_pad_the_targets_table_are_never_written(tmp_path):
    tokenizer = chat_tokenizer()
    folder = save_model(tmp_path / "padded", tokenizer=tokenizer, vocab_size=2 * len(tokenizer), eos_token_id=END)
    target = load(str(folder), "cpu", "float32")
    distill(target, settings(play=LONG), tmp_path / "work", tmp_path / "out", quiet)
    written = [read_part(path).texts.ids for path in parts_in(tmp_path / "work")]
    assert max(int(ids.max()) for ids in written) < target.vocab_size == len(tokenizer)


def test_a_stopped_part_leaves_nothing(target, tmp_path, monkeypatch):
    monkeypatch.setattr("core.distill.texts.np.save", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        write_part(target.model, texts_of(np.zeros((4, 8)), 8, 8), tmp_path / "part-0000", compiled=False)
    assert list(tmp_path.iterdir()) == []


def test_only_positions_from_the_opening_to_the_end_count():
    assert frequent_ids([texts_of([[5, 5, 6, 7, 7, 7]], 0, 3)], 3, 10, frozenset({9})) == [5, 6, 9]
    texts = Texts(np.zeros((2, 6), dtype=np.int32), np.array([3, 3]), np.array([6, 4]), np.ones(2, dtype=np.float32))
    batch = make_batch(Part(texts, np.zeros((2, 6, 4), dtype=np.float16), np.zeros((2, 6))), [1, 0], first=2)
    assert batch[3].tolist() == [[0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0]]


# --- The draft --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_only_plain_llamas_can_be_teachers(family):
    with pytest.raises(ModelUnreadableError, match="plain Llama"):
        check_target(tiny_module(family))


def test_a_student_borrows_the_tables_and_begins_with_the_targets_layers(target):
    student = new_student(target.model, 1)
    assert student.get_input_embeddings() is target.model.get_input_embeddings()
    assert {name for name, parameter in student.named_parameters() if not parameter.requires_grad} == BORROWED
    layers = (model.model.layers[0].parameters() for model in (student, target.model))
    for ours, theirs in zip(*layers, strict=True):
        assert torch.equal(ours, theirs)
        assert ours is not theirs


def test_a_distilled_draft_gains_acceptance_and_serves_its_target_exactly(target, target_folder, tmp_path):
    plan = settings(num_texts=48, training=training_settings(tokens=24000))
    lines = []
    figures = distill(target, plan, tmp_path / "work", tmp_path / "draft", lines.append)
    assert any("texts" in line for line in lines)
    assert any("of the budget, about " in line and " left, " in line for line in lines)
    train, held_out = split([read_part(path) for path in parts_in(tmp_path / "work")])
    first = len(script_of(target.tokenizer, target.eos_ids).opening)
    draft = load(str(tmp_path / "draft"), target=target)
    untrained = held_out_acceptance(new_student(target.model, 1), held_out, draft.draft_ids, first)
    assert figures["acceptance at 1"] > untrained + 0.02
    assert 0 <= figures["acceptance at 0"] <= 1
    assert draft.draft_ids.tolist() == frequent_ids((p.texts for p in train), 80, target.vocab_size, target.eos_ids)
    assert draft.model.get_input_embeddings().weight is target.model.get_input_embeddings().weight
    prompt = list(b"once upon a time")
    greedy = SamplingParams(temperature=0.0)
    run = play(speculative(target, draft, prompt, num_draft_tokens=3, max_new_tokens=30, sampling=greedy))
    assert run.ids == greedy_reference(target, prompt, 30)[: len(run.ids)]
    assert pair_problem(str(tmp_path / "draft"), str(target_folder)) is None


@pytest.mark.parametrize(("kind", "trained"), [(Kind.DRAFT, student), (Kind.MEDUSA, heads)])
def test_a_stopped_training_resumes_where_it_was(target, tmp_path, monkeypatch, kind, trained):
    plan = settings(kind=kind, vocabulary_size=120, training=training_settings(tokens=1500))
    whole = distill(target, plan, tmp_path / "a", tmp_path / "a-out", quiet)
    steps, items = [], trained.items_of_step

    def stop_at_the_third(total, per_step, step, seed):
        steps.append(step)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return items(total, per_step, step, seed)

    with monkeypatch.context() as context:
        context.setattr(trained, "items_of_step", stop_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            distill(target, plan, tmp_path / "b", tmp_path / "b-out", quiet)
    assert not (tmp_path / "b-out").exists()

    def go_on(total, per_step, step, seed):
        steps.append(step)
        return items(total, per_step, step, seed)

    with monkeypatch.context() as context:
        context.setattr(trained, "items_of_step", go_on)
        assert distill(target, plan, tmp_path / "b", tmp_path / "b-out", quiet) == whole
    assert steps[:4] == [0, 1, 2, 2]
    for path in (tmp_path / "a-out").iterdir():
        assert (tmp_path / "b-out" / path.name).read_bytes() == path.read_bytes()


def test_work_of_another_kind_is_refused(target, tmp_path):
    work, out = tmp_path / "work", tmp_path / "draft"

    def refused(model=target, **changes):
        return refusal((SettingsError, ModelUnreadableError), distill, model, settings(**changes), work, out, quiet)

    distill(target, settings(), work, out, quiet)
    assert "another model" in refused(num_layers=2)
    other = load(str(save_model(tmp_path / "other", tokenizer=chat_tokenizer(), eos_token_id=END)), "cpu")
    assert "another model" in refused(other, num_layers=2), "a copy of the target may go on"
    mark = (work / "target.sha256").read_text()
    torch.nn.init.constant_(other.model.model.layers[0].self_attn.q_proj.weight, 0.1)
    assert "another target" in refused(other), "also where the last norm is the same, as in a merged fine-tune"
    (work / "target.sha256").write_text(mark.split()[0])
    assert "another model" in refused(num_layers=2), "earlier versions noted the last norm alone"
    assert (work / "target.sha256").read_text() == mark
    for token, words in ((5, "different length"), (9_999, "outside the target's vocabulary")):
        assert words in refused(start_from=texts_file(tmp_path / "texts.npz", np.full((9, 20), token)))
    (work / "part-0000" / "ids.npy").write_bytes(b"")
    assert "part-0000" in refused()
    shutil.rmtree(work / "part-0000")  # As it says to.
    distill(target, settings(), work, out, quiet)
    assert len(read_part(work / "part-0000").texts)


def test_texts_that_are_written_are_as_long_as_those_that_were_given(target, tmp_path):
    file = texts_file(tmp_path / "texts.npz", np.full((9, 30), 5))
    distill(target, settings(start_from=file, num_texts=12), tmp_path / "work", tmp_path / "draft", quiet)
    assert [read_part(path).texts.ids.shape for path in parts_in(tmp_path / "work")] == [(9, 30), (8, 30)]


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_half_written(target, tmp_path, monkeypatch):
    student, path = new_student(target.model, 1), tmp_path / "student.pt"
    optimizers = make_optimizers(student, 2e-3)
    save_checkpoint(path, student, optimizers, Progress(step=3))

    def fill_up(_state, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_up)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(path, student, optimizers, Progress(step=4))
    assert list(tmp_path.iterdir()) == [path]
    assert load_checkpoint(path, student, optimizers).step == 3


@pytest.mark.parametrize(("kind", "words"), [(Kind.DRAFT, "not a distilled draft"), (Kind.MEDUSA, "not Medusa heads")])
def test_a_folder_of_something_else_is_not_replaced(target, tmp_path, kind, words):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("kept")
    with pytest.raises(SettingsError, match=f"letters.*{words}"):
        distill(target, settings(kind=kind), tmp_path / "work", tmp_path / "letters", quiet)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "kept"
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("work", [".", "work"])
def test_texts_are_never_in_the_folder_that_the_result_replaces(target, tmp_path, work):
    out = tmp_path / "draft"
    text = refusal(SettingsError, distill, target, settings(), out / work, out, quiet)
    assert "Choose a --work folder outside --out" in text
    assert not out.exists()


@pytest.mark.parametrize("kind", Kind)
def test_only_folders_of_outriders_own_files_are_replaced(target, tmp_path, kind):
    work, out, plan = tmp_path / "work", tmp_path / "out", settings(kind=kind, play=LONG)
    distill(target, plan, work, out, quiet)
    (out / "README.md").write_text("card")
    distill(target, plan, work, out, quiet)
    assert (out / "README.md").read_text() == "card"
    (out / "notes.txt").write_text("mine")
    assert "also holds 'notes.txt'" in refusal(SettingsError, distill, target, plan, work, out, quiet)
    (out / "notes.txt").unlink()
    (out / "config.json").write_text('{"model_type": "llama"}')
    assert "already exists and is not" in refusal(SettingsError, distill, target, plan, work, out, quiet)


def test_the_current_folder_is_no_destination(target, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for work in (tmp_path / "work", Path(".-work")):  # The latter is the command's default.
        assert "is the current folder" in refusal(SettingsError, distill, target, settings(), work, Path(), quiet)
        assert not work.exists()


def test_an_exported_draft_holds_the_layers_alone_and_keeps_its_card(target, tmp_path):
    student, folder = new_student(target.model, 1), tmp_path / "draft"
    export_student(student, target.tokenizer, "owner/target", [1, 2, 3], folder)
    names = set(load_file(folder / "model.safetensors"))
    assert names
    assert not names & BORROWED
    (folder / "README.md").write_text("card")
    export_student(student, target.tokenizer, "owner/target", [1, 2, 3], folder)
    assert (folder / "README.md").read_text() == "card"
    assert resolve(str(folder)).serves == "owner/target"


# --- Too few texts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("few", [{"num_texts": 3}, {"play": PlaySettings(rows=1, length=24, longest_prompt=4)}])
def test_too_few_texts_are_refused_before_anything_is_written_or_trained(target, tmp_path, few):
    with pytest.raises(SettingsError, match="too few texts: at least 4"):
        distill(target, settings(**few), tmp_path / "work", tmp_path / "draft", quiet)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("length", [2, 9_999])
def test_texts_that_do_not_fit_the_target_are_refused_before_anything_is_written(target, tmp_path, length):
    asked, folders = settings(play=PlaySettings(rows=8, length=length)), (tmp_path / "work", tmp_path / "o")
    assert "Choose a length from" in refusal(SettingsError, distill, target, asked, *folders, quiet)
    assert not list((tmp_path / "work").glob("part-*"))


def test_a_checkpoint_of_another_optimiser_is_refused(target, tmp_path, monkeypatch):
    student = new_student(target.model, 1)
    made = []
    for arithmetic in (torch.float32, torch.bfloat16):
        monkeypatch.setattr("core.training.model.ARITHMETIC", arithmetic)
        made.append(make_optimizers(student, 2e-3))
    save_checkpoint(tmp_path / "c.pt", student, made[0], Progress())
    with pytest.raises(SettingsError, match=r"another model, version.*the --device that it was trained on"):
        load_checkpoint(tmp_path / "c.pt", student, made[1])


def test_held_out_texts_without_an_answer_are_refused_before_the_training(target, tmp_path, monkeypatch):
    # The prompts take the whole text, so that there is nothing to judge a draft by.
    part = play_part(script_of(target.tokenizer, target.eos_ids))
    without = replace(part, texts=replace(part.texts, answer_start=part.texts.end))
    monkeypatch.setattr("core.distill.pipeline.write_texts", lambda *_arguments, **_named: without)
    monkeypatch.setattr("core.distill.pipeline.train_student", lambda *_arguments: pytest.fail("It was trained."))
    with pytest.raises(SettingsError, match="held-out texts has an answer at temperature 0"):
        distill(target, settings(), tmp_path / "work", tmp_path / "draft", quiet)
