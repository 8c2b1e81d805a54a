"""The program that is exported for transformers runs, and configurations of pairs whose files matter."""

from __future__ import annotations

import json

import pytest

from core.export.configurations import PROJECTS, configuration
from core.export.serving import serving_files
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, EMBEDDED
from core.settings import SamplingParams
from tests.fakes import byte_tokenizer, save_model
from tests.test_core_production import choose, hub, text_of, value, words_of


def test_the_program_for_transformers_writes_what_plain_greedy_decoding_writes(capsys):
    choice = choose(DEFAULT_TARGET, DEFAULT_DRAFT, sampling=SamplingParams(0), max_new_tokens=6)
    program = configuration(choice, PROJECTS["transformers"]).program
    written = []
    for source in (program, program.replace("    assistant_model=draft,\n", "")):
        exec(compile(source, "configuration", "exec"), {})
        written.append(capsys.readouterr().out)
    assert written[0] == written[1] != ""


def test_stop_texts_are_in_each_configuration_and_the_program_for_transformers_cuts_there(capsys):
    sampling, stop = SamplingParams(0), ("} and more", 'a "text"\n', "Write")
    choice = choose(DEFAULT_TARGET, DEFAULT_DRAFT, sampling=sampling, max_new_tokens=6, stop=stop)
    for name in sorted(set(PROJECTS) - {"transformers"}):
        assert '"stop": ["} and more", "a \\"text\\"\\n", "Write"]}' in text_of(name, choice)
        assert '"stop"' not in text_of(name, hub())
    program = configuration(choice, PROJECTS["transformers"]).program
    exec(compile(program.replace('output[0, inputs["input_ids"].shape[1] :]', "output[0]"), "program", "exec"), {})
    assert capsys.readouterr().out == "\n", "cut in the prompt"


def padded_pair(folder, temperature=1.0, *, rows=(320, 288)):
    """A choice of target and draft whose tables have as many rows, of which a shared tokenizer names 259."""
    for seed, (name, count) in enumerate(zip(("target", "draft"), rows, strict=True)):
        save_model(folder / name, tokenizer=byte_tokenizer(), vocab_size=count, eos_token_id=256, seed=seed)
    sampling = SamplingParams(temperature)
    return choose(str(folder / "target"), str(folder / "draft"), sampling=sampling, max_new_tokens=12)


@pytest.mark.parametrize("rows", [(320, 288), (288, 320)])
def test_the_program_for_transformers_drafts_where_tables_differ_in_padding(tmp_path, rows):
    for temperature in (0.0, 1.0):
        found, choice = {}, padded_pair(tmp_path, temperature, rows=rows)
        exec(compile(configuration(choice, PROJECTS["transformers"]).program, "configuration", "exec"), found)
        assert 0 < len(found["new"]) <= 12
        if not temperature:
            plain = found["target"].generate(**found["inputs"], max_new_tokens=12, do_sample=False)
            assert found["output"].tolist() == plain.tolist()


def test_vllm_matches_tables_of_different_sizes_by_text(tmp_path):
    choice = padded_pair(tmp_path)
    settings = json.loads(value(words_of("vllm", choice), "--speculative-config"))
    assert settings["use_heterogeneous_vocab"]
    assert "draft_sample_method" not in settings
    assert "use_heterogeneous_vocab" in serving_files(choice, PROJECTS["vllm"])["serve-vllm.sh"].split("exec ")[1]


def copied_target(folder, **config):
    """The embedded target in a folder of its own, with a generation_config.json of its own."""
    folder.mkdir()
    for file in (EMBEDDED / DEFAULT_TARGET).iterdir():
        if file.name != "generation_config.json":
            (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, **config}))
    return str(folder)


def test_the_program_for_transformers_applies_a_chat_template_where_outrider_would(tmp_path):
    target = copied_target(tmp_path / "chatty")
    template = "{% for m in messages %}<{{m.role}}>{{m.content}}{% endfor %}"
    system = 'Say "it\'s"\n\\n'
    for with_template, chat, said in (
        (False, None, "Write"),
        (True, None, "<user>Write"),
        (True, False, "Write"),
        (True, True, f"<system>{system}<user>Write"),
    ):
        if with_template:
            (tmp_path / "chatty" / "chat_template.jinja").write_text(template)
        choice = choose(target, DEFAULT_DRAFT, max_new_tokens=1, chat=chat, system=system if chat else "")
        found = {}
        exec(compile(configuration(choice, PROJECTS["transformers"]).program, "configuration", "exec"), found)
        assert found["tokenizer"].decode(found["inputs"]["input_ids"][0]).startswith(said)


def test_penalties_and_filters_of_the_targets_generation_config_do_not_apply(tmp_path, capsys):
    written = []
    for penalties in ({}, {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1}):
        target = copied_target(tmp_path / f"target{len(written)}", **penalties)
        choice = choose(target, DEFAULT_DRAFT, sampling=SamplingParams(0), max_new_tokens=12)
        program = configuration(choice, PROJECTS["transformers"]).program
        program = program.replace("Write your prompt here.", "def f(a, a, a, a, a, ")
        exec(compile(program, "configuration", "exec"), {})
        written.append(capsys.readouterr().out)
    assert written[0] == written[1] != ""
    assert "    min_p=None," in text_of("transformers", hub()).splitlines()
    assert value(words_of("vllm", hub()), "--generation-config") == "vllm"
    assert value(words_of("llama.cpp", hub()), "--repeat-penalty") == "1.0"
    request = '{"temperature": 0.8, "repetition_penalty": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.1}'
    assert request in text_of("sglang", hub(sampling=SamplingParams(0.8, 0, 1.0, 0.1)))
