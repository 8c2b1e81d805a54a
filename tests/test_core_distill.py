"""Distilling a draft: the target's own texts, its word on them, and a draft that serves it exactly."""

import copy
import shutil

import numpy as np
import pytest
import torch

from core.controls import Cancelled
from core.decode import speculative
from core.distill.pipeline import DistillSettings, distill, in_parts, read_texts, split
from core.distill.script import Script, script_of
from core.distill.self_play import PlaySettings, write_texts
from core.distill.student import check_target, export_student, new_student
from core.distill.teacher import frequent_ids, target_log_probs, write_part
from core.distill.texts import Part, Texts, parts_in, read_part
from core.distill.train import (
    StudentSettings,
    held_out_acceptance,
    load_student,
    make_batch,
    save_student,
    train_student,
)
from core.errors import ModelUnreadableError, OutOfMemoryError, PairMismatchError, SettingsError
from core.models import load
from core.models.catalogue import resolve
from core.models.compatibility import pair_problem
from core.models.shared_draft import BORROWED, load_shared_draft
from core.training.optim import Budget, Optimizers, Progress, Schedule
from core.types import SamplingParams
from tests.fakes import (
    byte_tokenizer,
    edit_json,
    greedy_reference,
    is_sentence,
    play,
    save_model,
    tiny_model,
    tiny_module,
)

TEMPLATE = "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
END = 256
GREEDY = SamplingParams(temperature=0.0)


def chat_tokenizer():
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def quiet(line: str) -> None:
    pass


def student_settings(**changes) -> StudentSettings:
    values = {"budget": Budget(tokens=1000), "rows_per_step": 2, "compile": False, "schedule": Schedule(2)}
    return StudentSettings(**{**values, **changes})


def settings(**changes) -> DistillSettings:
    values = {
        "num_texts": 12,
        "num_layers": 1,
        "vocabulary_size": 80,
        "student": student_settings(),
        "play": PlaySettings(rows=8, length=48, longest_prompt=10),
    }
    return DistillSettings(**{**values, **changes})


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("distill") / "target", tokenizer=chat_tokenizer(), eos_token_id=END)


@pytest.fixture(scope="module")
def target(target_folder):
    return load(str(target_folder), "cpu", "float32")


# --- The script -------------------------------------------------------------------------------------------------


def test_the_fixed_parts_come_from_the_chat_template():
    tokenizer = chat_tokenizer()
    script = script_of(tokenizer, frozenset({END}))
    assert tokenizer.decode(list(script.opening)) == "<u>"
    assert tokenizer.decode(list(script.bridge)) == "</u><a>"


def test_the_words_that_a_user_may_begin_with_are_the_tokenizers():
    tokenizer = chat_tokenizer()
    script = script_of(tokenizer, frozenset({END}))
    assert "What is" in [tokenizer.decode(list(words)) for words in script.first_words]
    assert {tokenizer.decode([token]) for token in script.sentence_ends} >= {".", "?", "!"}
    assert not any(tokenizer.decode([token]).endswith("a") for token in script.sentence_ends)


def test_a_base_model_just_writes():
    script = script_of(byte_tokenizer(), frozenset({END}))
    assert (script.opening, script.bridge) == ((END,), ())


def test_a_template_that_drops_what_the_user_says_is_refused():
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = "hello"
    with pytest.raises(ModelUnreadableError, match="chat template"):
        script_of(tokenizer, frozenset({END}))


# --- The texts --------------------------------------------------------------------------------------------------


def play_part(script: Script, seed: int = 0, **changes) -> Part:
    rows = PlaySettings(**{"rows": 12, "length": 40, "longest_prompt": 9, "temperatures": (1.0, 0.0), **changes})
    return write_texts(tiny_module("llama"), script, rows, torch.Generator().manual_seed(seed), dtype=torch.float32)


def play_texts(script: Script, seed: int = 0, **changes) -> Texts:
    return play_part(script, seed, **changes).texts


def test_every_text_keeps_to_the_script():
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
    assert all(start != 2 for start in texts.answer_start)
    assert not [row for row in play_texts(script, begun_share=0.0).ids.tolist() if row[2:5] == [50, 51, 52]]


def test_the_states_kept_in_writing_are_the_targets_own():
    part = play_part(Script((7, 8), (3,), frozenset()))
    module = tiny_module("llama")
    with torch.inference_mode():
        output = module(torch.from_numpy(part.texts.ids).long(), output_hidden_states=True)
    counted = slice(1, 39)  # what training reads: from the opening's last position to the one before the end
    assert np.allclose(part.states[:, counted], output.hidden_states[-1][:, counted], atol=4e-3)
    assert np.allclose(part.log_norms[:, counted], output.logits.logsumexp(-1)[:, counted], atol=1e-3)


def test_greedy_answers_are_the_targets_own_and_a_seed_gives_the_same_texts():
    script = Script((7, 8), (3,), frozenset())
    texts = play_texts(script)
    row, start = texts.ids[1].tolist(), int(texts.answer_start[1])
    assert row[start:] == greedy_reference(tiny_model(), row[:start], 40 - start)
    assert play_texts(script).ids.tolist() == texts.ids.tolist()
    assert play_texts(script, seed=1).ids.tolist() != texts.ids.tolist()


def test_a_base_models_texts_are_answers_throughout():
    texts = play_texts(Script((5,), (), frozenset()))
    assert set(texts.answer_start.tolist()) == {1}
    assert set(texts.end.tolist()) == {40}


def test_texts_written_earlier_are_read(tmp_path):
    ids = np.array([[1, 2, 3, 9, 0], [1, 2, 3, 4, 5]], dtype=np.uint16)
    file = tmp_path / "texts.npz"
    np.savez(file, ids=ids, answer_start=np.array([2, 2]), answer_temperature=np.array([0.01, 1.0], dtype=np.float16))
    texts = read_texts(file, Script((1,), (2,), frozenset({9})))
    assert texts.end.tolist() == [4, 5]
    assert texts.temperature.tolist() == [0.0, 1.0]
    for damaged in (file.read_bytes()[:-30], b"no archive", b""):
        file.write_bytes(damaged)
        with pytest.raises(ModelUnreadableError, match=r"texts\.npz"):
            read_texts(file, Script((1,), (2,), frozenset({9})))


def test_the_last_texts_come_first_and_are_held_out():
    rows = 1000
    column = np.arange(rows, dtype=np.int32)
    texts = Texts(column[:, None], column, column, np.ones(rows, dtype=np.float32))
    parts = in_parts(texts, 192)
    assert sorted(i for part in parts for i in part.ids[:, 0].tolist()) == list(range(rows))
    train, held_out = split([Part(part, np.zeros((len(part), 1, 1)), np.zeros((len(part), 1))) for part in parts])
    assert held_out.texts.ids[:, 0].tolist() == list(range(800, 1000))
    assert not set(held_out.texts.end.tolist()) & {i for part in train for i in part.texts.end.tolist()}


# --- The teacher ------------------------------------------------------------------------------------------------


def test_what_is_kept_gives_the_targets_probabilities(target, tmp_path):
    texts = Texts(np.arange(5 * 24, dtype=np.int32).reshape(5, 24) % 250, *(np.full(5, 24) for _ in range(3)))
    write_part(target.model, texts, tmp_path / "part-0000", rows_per_pass=2, compiled=False)
    part = read_part(tmp_path / "part-0000")
    wanted = torch.tensor([3, 200, 17])
    logits = target.model(torch.from_numpy(texts.ids).long()).logits
    head = target.model.lm_head.weight[wanted]
    ours = target_log_probs(torch.from_numpy(np.array(part.states)).float(), torch.from_numpy(part.log_norms), head)
    # The states are computed in bfloat16.
    assert float((ours - logits.log_softmax(-1)[..., wanted]).abs().mean()) < 0.05
    assert parts_in(tmp_path) == [tmp_path / "part-0000"]


def test_a_stopped_part_leaves_nothing(target, tmp_path):
    def stop() -> None:
        raise Cancelled

    texts = Texts(np.zeros((4, 8), dtype=np.int32), *(np.full(4, 8) for _ in range(3)))
    with pytest.raises(Cancelled):
        write_part(target.model, texts, tmp_path / "part-0000", compiled=False, check_cancelled=stop)
    assert list(tmp_path.iterdir()) == []


def test_frequent_ids_leave_out_what_stands_behind_the_end():
    texts = Texts(np.array([[5, 5, 6, 7, 7, 7]]), np.array([0]), np.array([3]), np.ones(1, dtype=np.float32))
    assert frequent_ids(iter([texts]), 3, 10, frozenset({9})) == [5, 6, 9]


def test_positions_count_from_the_opening_to_the_end():
    texts = Texts(np.zeros((2, 6), dtype=np.int32), np.array([3, 3]), np.array([6, 4]), np.ones(2, dtype=np.float32))
    batch = make_batch(Part(texts, np.zeros((2, 6, 4), dtype=np.float16), np.zeros((2, 6))), [1, 0], first=2)
    assert batch.counts.tolist() == [[0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0]]


# --- The student ------------------------------------------------------------------------------------------------


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
    plan = settings(student=student_settings(budget=Budget(tokens=12000)))
    lines: list[str] = []
    figures = distill(target, plan, tmp_path / "work", tmp_path / "draft", lines.append)
    assert any("texts" in line for line in lines)
    parts = [read_part(path) for path in parts_in(tmp_path / "work")]
    train, held_out = split(parts)
    first = len(script_of(target.tokenizer, target.eos_ids).opening)
    draft = load(str(tmp_path / "draft"), target=target)
    assert draft.draft_ids is not None
    untrained = held_out_acceptance(new_student(target.model, 1), held_out, draft.draft_ids, first)
    assert figures["acceptance at 1"] > untrained + 0.02
    assert 0 <= figures["acceptance at 0"] <= 1

    assert draft.draft_ids.tolist() == frequent_ids((p.texts for p in train), 80, target.vocab_size, target.eos_ids)
    assert draft.model.get_input_embeddings().weight is target.model.get_input_embeddings().weight
    assert draft.lean_weights is not None
    prompt = list(b"once upon a time")
    run = play(speculative(target, draft, prompt, num_draft_tokens=3, max_new_tokens=30, sampling=GREEDY))
    assert run.ids == greedy_reference(target, prompt, 30)[: len(run.ids)]
    assert pair_problem(str(tmp_path / "draft"), str(target_folder)) is None


def test_a_stopped_training_goes_on_where_it_was(target, tmp_path):
    whole = distill(target, settings(), tmp_path / "a", tmp_path / "a-out", quiet)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "student.pt").unlink()
    count = 0

    def stop_at_the_third() -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        distill(target, settings(), tmp_path / "b", tmp_path / "b-out", quiet, stop_at_the_third)
    assert not (tmp_path / "b-out").exists()
    assert (tmp_path / "b" / "student.pt").is_file()
    again = distill(target, settings(), tmp_path / "b", tmp_path / "b-out", quiet)
    assert again == pytest.approx(whole)


def test_too_few_texts_are_told(target, tmp_path):
    plan = settings(num_texts=1, play=PlaySettings(rows=1, length=24, longest_prompt=4))
    with pytest.raises(SettingsError, match="too few texts"):
        distill(target, plan, tmp_path / "work", tmp_path / "draft", quiet)


def test_work_of_another_kind_is_not_gone_on_with(target, tmp_path):
    work, out = tmp_path / "work", tmp_path / "draft"

    def told(**changes) -> str:
        model = changes.pop("target", target)
        with pytest.raises(SettingsError) as caught:
            distill(model, settings(**changes), work, out, quiet)
        assert is_sentence(str(caught.value))
        return str(caught.value)

    distill(target, settings(), work, out, quiet)
    assert "another draft" in told(num_layers=2)
    other = load(str(save_model(tmp_path / "other", tokenizer=chat_tokenizer(), eos_token_id=END)), "cpu")
    torch.nn.init.constant_(other.model.model.norm.weight, 2.0)
    assert "another target" in told(target=other)
    file = tmp_path / "texts.npz"
    ids = np.full((9, 20), 5)
    np.savez(file, ids=ids, answer_start=np.ones(9), answer_temperature=np.ones(9))
    assert "another length" in told(start_from=file)
    np.savez(file, ids=ids + 9_999, answer_start=np.ones(9), answer_temperature=np.ones(9))
    assert "does not know" in told(start_from=file)
    (work / "part-0000" / "ids.npy").write_bytes(b"")
    with pytest.raises(ModelUnreadableError, match="part-0000"):
        distill(target, settings(), work, out, quiet)


def test_texts_that_are_written_are_as_long_as_those_that_were_given(target, tmp_path):
    file = tmp_path / "texts.npz"
    np.savez(file, ids=np.full((9, 30), 5), answer_start=np.full(9, 4), answer_temperature=np.ones(9))
    distill(target, settings(start_from=file, num_texts=12), tmp_path / "work", tmp_path / "draft", quiet)
    assert [read_part(path).texts.ids.shape for path in parts_in(tmp_path / "work")] == [(9, 30), (8, 30)]


def test_a_checkpoint_that_cant_be_written_leaves_nothing_half_written(target, tmp_path, monkeypatch):
    student = new_student(target.model, 1)
    optimizers = Optimizers(student)
    save_student(tmp_path / "student.pt", student, optimizers, Progress(step=3))

    def fill_up(_state, path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_up)
    with pytest.raises(OSError, match="No space"):
        save_student(tmp_path / "student.pt", student, optimizers, Progress(step=4))
    assert [path.name for path in tmp_path.iterdir()] == ["student.pt"]
    assert load_student(tmp_path / "student.pt", student, optimizers).step == 3


def test_a_folder_of_somebody_elses_is_not_replaced(target, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("kept")
    with pytest.raises(SettingsError, match="letters"):
        distill(target, settings(), tmp_path / "work", tmp_path / "letters", quiet)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "kept"
    assert not (tmp_path / "work").exists()


def test_checkpoints_and_drafts_hold_the_layers_alone(target, tmp_path):
    student = new_student(target.model, 1)
    export_student(student, target.tokenizer, "owner/target", [1, 2, 3], tmp_path / "draft")
    from safetensors.torch import load_file

    names = set(load_file(tmp_path / "draft" / "model.safetensors"))
    assert names
    assert not names & BORROWED
    (tmp_path / "draft" / "README.md").write_text("card")
    export_student(student, target.tokenizer, "owner/target", [1, 2, 3], tmp_path / "draft")
    assert (tmp_path / "draft" / "README.md").read_text() == "card"
    assert resolve(str(tmp_path / "draft")).serves == "owner/target"


# --- Drafts that borrow ------------------------------------------------------------------------------------------


@pytest.fixture
def drafter(target, tmp_path):
    export_student(new_student(target.model, 1), target.tokenizer, "owner/target", list(range(40)), tmp_path / "draft")
    return tmp_path / "draft"


def test_a_target_of_another_width_is_told_before_and_at_loading(drafter, tmp_path):
    other = save_model(tmp_path / "wide", hidden_size=64, tokenizer=chat_tokenizer())
    assert "64" in pair_problem(str(drafter), str(other))
    with pytest.raises(PairMismatchError, match="owner/target"):
        load_shared_draft(resolve(str(drafter)), load(str(other), "cpu"))


def test_a_target_with_other_tokens_is_told(drafter, target_folder, tmp_path):
    other = shutil.copytree(target_folder, tmp_path / "other")
    tokenizer = (other / "tokenizer.json").read_text("utf-8")
    (other / "tokenizer.json").write_text(tokenizer.replace("<|end|>", "<|stop|>"), "utf-8")
    assert "vocabulary" in pair_problem(str(drafter), str(other))


def test_a_damaged_draft_is_a_sentence(drafter, target):
    weights = drafter / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelUnreadableError, match="damaged"):
        load_shared_draft(resolve(str(drafter)), target)


def test_a_draft_whose_configuration_is_damaged_is_a_sentence(drafter, target):
    edit_json(drafter / "config.json", model_type="outlandish")
    with pytest.raises(ModelUnreadableError, match="distil it again") as caught:
        load_shared_draft(resolve(str(drafter)), target)
    assert is_sentence(str(caught.value))


def test_a_draft_that_finds_no_memory_is_not_called_damaged(drafter, target, monkeypatch):
    def run_out(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("safetensors.torch.load_file", run_out)
    with pytest.raises(OutOfMemoryError) as caught:
        load(str(drafter), "cpu", target=target)
    assert is_sentence(str(caught.value))


def test_a_draft_without_one_of_its_layers_is_a_sentence(drafter, target):
    edit_json(drafter / "config.json", num_hidden_layers=2)
    with pytest.raises(ModelUnreadableError, match="incomplete"):
        load_shared_draft(resolve(str(drafter)), target)


def test_training_reads_the_same_rows_at_the_same_step(target, tmp_path):
    texts = play_texts(Script((7,), (3,), frozenset()))
    write_part(target.model, texts, tmp_path / "part-0000", compiled=False)
    part = read_part(tmp_path / "part-0000")
    students = [new_student(target.model, 1) for _ in range(2)]
    for index, student in enumerate(students):
        arguments = (student, [part], part, torch.arange(50), 1, student_settings(), tmp_path / f"{index}.pt", quiet)
        train_student(*arguments)
    for ours, theirs in zip(*(student.parameters() for student in students), strict=True):
        assert torch.equal(ours, theirs)
