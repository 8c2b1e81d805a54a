"""Prompt suites: those that come along are whole and varied, and a person's files are read as they are."""

import json

import pytest

from core.errors import PromptError
from core.experiments.prompt_suites import FOLDER, SUITES, find_prompts, first_of_each, read_prompts
from tests.fakes import is_sentence


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_has_prompts_of_its_own(suite):
    prompts = find_prompts([suite])
    assert 8 <= len(prompts) <= 12
    assert len({prompt.name for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    assert {prompt.suite for prompt in prompts} == {suite}


def test_there_are_long_texts_to_summarise_and_the_suites_are_all_there_are():
    assert max(len(prompt.text.split()) for prompt in find_prompts(["summarising"])) > 300
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == {*SUITES, "presets"}


def test_suites_and_files_are_joined_in_order_and_each_once(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("one\n", "utf-8")
    prompts = find_prompts(["prose", str(path), "prose"])
    assert [prompt.suite for prompt in (prompts[0], prompts[-1])] == ["prose", "own"]
    assert len(prompts) == len(find_prompts(["prose"])) + 1


def test_prompts_come_from_lines_of_text_or_of_json(tmp_path):
    plain = tmp_path / "p.txt"
    plain.write_text("one\n\n  two\n", "utf-8")
    assert [(item.name, item.text) for item in read_prompts(plain)] == [("line 1", "one"), ("line 3", "  two")]
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a"}\n{"text": "b\\u2028c", "name": "n", "category": "x"}\n', "utf-8")
    found = [(prompt.name, prompt.text, prompt.suite) for prompt in read_prompts(path)]
    assert found == [("line 1", "a", "own"), ("n", "b\u2028c", "own")]


def test_spec_bench_is_read_as_it_is(tmp_path):
    path = tmp_path / "question.jsonl"
    questions = [
        {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]},
        {"question_id": 82, "category": "writing", "turns": ["Draft a mail."], "reference": ["x"]},
        {"question_id": 161, "category": "translation", "turns": ["Translate this."]},
    ]
    path.write_text("".join(json.dumps(question) + "\n" for question in questions), "utf-8")
    prompts = find_prompts([str(path)])
    assert [prompt.text for prompt in prompts] == ["Compose a post.", "Draft a mail.", "Translate this."]
    assert [prompt.suite for prompt in prompts] == ["writing", "writing", "translation"]
    assert prompts[0].name == "question 81"
    assert [prompt.name for prompt in first_of_each(prompts, 1)] == ["question 81", "question 161"]


@pytest.mark.parametrize("line", ['{"turns": []}', '{"turns": "text"}', '{"text": 3}', '{"prompt": ""}', "null"])
def test_a_line_without_a_prompt_is_a_sentence(tmp_path, line):
    path = tmp_path / "own.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}\n', "utf-8")
    with pytest.raises(PromptError, match="Line 2") as caught:
        read_prompts(path)
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize("name", ["cod", "missing.jsonl", "\0"])
def test_what_is_neither_a_suite_nor_a_file_is_a_sentence(name):
    with pytest.raises(PromptError) as caught:
        find_prompts([name])
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", b""), ("a.txt", b"\n \n"), ("a.txt", b"\xff\xfe"), ("a.jsonl", b"{}"), ("a.jsonl", b"[1"), ("b", None)],
)
def test_bad_prompt_files_are_sentences(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PromptError) as caught:
        read_prompts(path)
    assert is_sentence(str(caught.value))
