"""The texts that a draft learns from: written by the target to a script, with its own word on every token."""

import numpy as np
import pytest
import torch

from core.controls import Cancelled
from core.distill.self_play import Script, script_of
from core.distill.student import make_batch
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
from core.errors import ModelUnreadableError
from core.models import load
from tests.fakes import byte_tokenizer, greedy_reference, tiny_model, tiny_module
from tests.fakes_distill import END, chat_tokenizer, play_part, play_texts, save_target


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    return save_target(tmp_path_factory.mktemp("distill"))


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
    texts = read_texts(file, frozenset({9}))
    assert texts.end.tolist() == [4, 5]
    assert texts.temperature.tolist() == [0.0, 1.0]
    for damaged in (file.read_bytes()[:-30], b"no archive", b""):
        file.write_bytes(damaged)
        with pytest.raises(ModelUnreadableError, match=r"texts\.npz"):
            read_texts(file, frozenset({9}))


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
