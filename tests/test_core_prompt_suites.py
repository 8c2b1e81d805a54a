"""Prompt suites: those that come along are whole and varied, and a person's files are read as they are."""

import json

import pytest

from core.errors import PromptError
from core.experiments.prompt_suites import (
    FOLDER,
    PRESETS,
    SUITES,
    Prompt,
    default_prompts,
    find_prompts,
    first_of_each,
    joined,
    read_prompts,
)
from tests.fakes import refusal


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_has_prompts_of_its_own_and_there_are_no_others(suite):
    assert {path.stem for path in FOLDER.glob("*.jsonl")} == {*SUITES, "presets"}
    prompts = find_prompts([suite])
    assert 8 <= len(prompts) <= 12
    assert len({prompt.name for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    assert {prompt.suite for prompt in prompts} == {suite}
    assert suite != "summarising" or max(len(prompt.text.split()) for prompt in prompts) > 300


def test_every_preset_for_the_embedded_pair_names_the_temperature_at_which_it_was_tried():
    presets = [json.loads(line) for line in PRESETS.read_text("utf-8").splitlines()]
    assert all(preset.get("temperature") for preset in presets if preset["category"] != "For chat models")
    names = {preset["name"] for preset in presets}
    assert {prompt.name for is_chat in (False, True) for prompt in default_prompts(is_chat=is_chat)} <= names


def test_suites_and_files_are_joined_in_order_and_each_once(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("one\n", "utf-8")
    prompts = find_prompts(["prose", str(path), "prose"])
    assert [prompt.suite for prompt in (prompts[0], prompts[-1])] == ["prose", "own"]
    assert len(prompts) == len(find_prompts(["prose"])) + 1


def test_files_of_the_same_name_and_a_suites_file_are_suites_of_their_own(tmp_path):
    names = ["prose", *(str(tmp_path / folder / file) for file in ("own.txt", "prose.txt") for folder in "ab")]
    for name in names[1:]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\nmore\n", "utf-8")
    prompts = first_of_each(find_prompts(names), 1)
    assert [prompt.text for prompt in prompts[1:]] == names[1:]
    assert [prompt.suite for prompt in prompts] == ["prose", "own", "own (2)", "prose (2)", "prose (3)"]


def test_no_suite_of_a_later_source_has_the_name_of_an_earlier_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    questions = [{"category": suite, "turns": [suite]} for suite in ("translation", "writing", "writing")]
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.txt").write_text(folder)
        (tmp_path / folder / "question.jsonl").write_text("".join(json.dumps(item) + "\n" for item in questions))
    (tmp_path / "own (2).txt").write_text("c")

    def suites(*names):
        return list(dict.fromkeys(prompt.suite for prompt in find_prompts(names)))

    assert suites("translation", "a/question.jsonl") == ["translation", "translation (2)", "writing"]
    both = suites("a/question.jsonl", "b/question.jsonl")
    assert both == ["translation", "writing", "translation (2)", "writing (2)"]
    assert suites("a/own.txt", "b/own.txt", "own (2).txt") == ["own", "own (2)", "own (2) (2)"]
    assert suites("a/own.txt", "own (2).txt", "b/own.txt") == ["own", "own (2)", "own (3)"]
    assert len(find_prompts(["a/own.txt", "./a/own.txt", str(tmp_path / "a" / "own.txt")])) == 1
    mixed = [Prompt("", "", suite=suite) for suite in ("own", "own (2)")]
    assert [prompt.suite for prompt in joined([mixed[:1], mixed])] == ["own", "own (3)", "own (2)"]


@pytest.mark.parametrize("name", ["own.jsonl", "own.json"])
def test_prompts_come_from_lines_of_text_or_of_json(tmp_path, name):
    plain = tmp_path / "p.txt"
    plain.write_bytes(b"one\r\n\n  two\n")
    assert [(item.name, item.text) for item in read_prompts(plain)] == [("line 1", "one"), ("line 3", "  two")]
    path = tmp_path / name
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
    refusal(PromptError, read_prompts, path, match="Line 2 .* is not a JSON object with")


def test_a_line_of_millions_of_values_is_a_sentence(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a", "n": [' + "0," * 8_000_000 + "0]}\n", "utf-8")
    refusal(PromptError, read_prompts, path, match="Line 1 .* is not a JSON object with")


@pytest.mark.parametrize("name", ["cod", "missing.jsonl", "\0", "a.txt", "blank.txt", "odd.txt", "a.jsonl", "b.jsonl"])
def test_what_is_neither_a_suite_nor_a_prompt_file_is_a_sentence(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    files = {"a.txt": b"", "blank.txt": b"\n \n", "odd.txt": b"\xff\xfe", "a.jsonl": b"{}", "b.jsonl": b"[1"}
    for each, content in files.items():
        (tmp_path / each).write_bytes(content)
    refusal(PromptError, find_prompts, [name])
