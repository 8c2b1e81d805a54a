"""Configurations for other engines: what is pasted runs, quotes what it must, and never invents a flag."""

from __future__ import annotations

import ast
import json
import shlex
import sys
from dataclasses import replace

import pytest

from core.drafters.registry import METHODS
from core.errors import RunLogError, SettingsError
from core.export.choice import Choice, choice_from_log, choice_from_request
from core.export.configurations import PROJECTS, configuration, get_project
from core.export.serving import serving_files
from core.models.catalogue import DEFAULT_DRAFT, DEFAULT_TARGET, EMBEDDED, SMOLLM2_DRAFTER
from core.runlog.log import to_record
from core.runlog.reading import RunLog
from core.settings import Coupling, DType, RunRequest, SamplingParams, VerificationRule
from tests.test_core_analysis import make_step

NASTY = 'it\'s a "path" $(rm -rf ~) `x` \\ & ; \n# new'


def text_of(name, choice):
    return configuration(choice, get_project(name)).text


def notes_of(name, choice):
    """Its text with comments on one line each."""
    return text_of(name, choice).replace("\n#  ", "")


def words_of(name, choice) -> list[str]:
    """The words that a shell makes of a configuration."""
    return shlex.split(text_of(name, choice), comments=True)


def value(words, flag):
    return words[words.index(flag) + 1]


def choose(target, draft=None, method="draft-model", *, run_id="", measured_speedup=None, **changes):
    request = RunRequest(target, draft, "any", method, **changes)
    return Choice(request, run_id=run_id, measured_speedup=measured_speedup)


def hub(**changes):
    return choose("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", **{"num_draft_tokens": 5, **changes})


@pytest.mark.parametrize("name", PROJECTS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_configuration_or_a_sentence(name, method):
    draft = "Qwen/Qwen3-0.6B" if METHODS[method].needs_draft_model else None
    found = configuration(choose("Qwen/Qwen3-8B", draft, method), PROJECTS[name])
    assert bool(found.program) != bool(found.problem)
    assert "Checked on 20" in found.text
    if found.problem:
        assert all(line.startswith("#") for line in found.text.splitlines() if line)
        assert found.problem.endswith(".")


def test_vllm_gets_its_settings_as_json():
    words = words_of("vllm", hub())
    assert words[:3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    model = {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5}
    assert json.loads(value(words, "--speculative-config")) == {**model, "draft_sample_method": "probabilistic"}
    greedy = json.loads(value(words_of("vllm", hub(sampling=SamplingParams(0))), "--speculative-config"))
    assert "draft_sample_method" not in greedy


def test_vllm_verifies_blocks_where_outrider_did():
    block = hub(verification=VerificationRule.BLOCK)
    settings = json.loads(value(words_of("vllm", block), "--speculative-config"))
    assert settings["rejection_sample_method"] == "block"
    assert "leave the key out" in notes_of("vllm", block)
    assert "Outrider used block verification, which" not in notes_of("vllm", block)
    lookup = choose("a/b", None, "prompt-lookup", verification=VerificationRule.BLOCK)
    greedy = hub(verification=VerificationRule.BLOCK, sampling=SamplingParams(0))
    for name, choice in (("vllm", lookup), ("vllm", greedy), ("sglang", block)):
        assert "rejection_sample_method" not in "".join(words_of(name, choice))
        assert "Outrider used block verification, which" in notes_of(name, choice)
    assert "rejection_sample_method" not in json.loads(value(words_of("vllm", hub()), "--speculative-config"))


def test_prompt_lookup_keeps_the_lengths_of_its_n_grams():
    choice = choose("a/b", None, "prompt-lookup", num_draft_tokens=6, method_options={"max_ngram": 4, "min_ngram": 2})
    ngram = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    assert json.loads(value(words_of("vllm", choice), "--speculative-config")) == ngram
    words = words_of("llama.cpp", choice)
    assert (value(words, "--spec-ngram-simple-size-n"), value(words, "--spec-ngram-simple-size-m")) == ("4", "6")
    assert "prompt_lookup_num_tokens=6" in text_of("transformers", choice)
    words = words_of("llama.cpp", replace(choice, request=replace(choice.request, num_draft_tokens=3)))
    assert value(words, "--spec-ngram-simple-size-n") == "3", "llama.cpp drops drafts that are shorter"


def test_sglang_verifies_one_token_more_than_is_drafted():
    words = words_of("sglang", hub())
    assert value(words, "--speculative-algorithm") == "STANDALONE"
    assert value(words, "--speculative-num-steps") == "5"
    assert value(words, "--speculative-eagle-topk") == "1"
    assert value(words, "--speculative-num-draft-tokens") == "6"
    tree = replace(hub().request, method="draft-tree", method_options={"depth": 3, "branching": 2})
    words = words_of("sglang", Choice(tree))
    assert value(words, "--speculative-num-steps") == "3"
    assert value(words, "--speculative-eagle-topk") == "2"
    assert value(words, "--speculative-num-draft-tokens") == "6"
    small = Choice(replace(tree, num_draft_tokens=20, method_options={"depth": 2, "branching": 2}))
    assert value(words_of("sglang", small), "--speculative-num-draft-tokens") == "7", (
        "SGLang's tree has 2 + 4 candidates"
    )
    assert "only 6 candidates" in notes_of("sglang", small)
    for name in PROJECTS:
        assert "K = 5 nodes, depth 3" in text_of(name, Choice(tree)).replace("\n#  ", ""), "the shape is named"


def test_llama_cpp_uses_gguf_files_and_converts_others():
    words = words_of("llama.cpp", hub())
    assert words.count("convert_hf_to_gguf.py") == 2
    assert (value(words, "-m"), value(words, "-md")) == ("target.gguf", "draft.gguf")
    words = words_of("llama.cpp", choose("/models/t.gguf", "/models/d.gguf", num_draft_tokens=3))
    assert words[0] == "llama-server"
    assert (value(words, "-m"), value(words, "-md")) == ("/models/t.gguf", "/models/d.gguf")
    assert value(words, "--spec-draft-n-max") == "3"
    assert "--draft-max" not in words


def test_on_windows_llama_cpp_gets_lines_for_its_shells(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    choice = choose("my models\\t.gguf", "d(1)\\d.gguf", sampling=SamplingParams(0.7))
    program = configuration(choice, get_project("llama.cpp")).program
    assert (program.count("\n"), program.count('"'), program.count("'")) == (1, 6, 0)
    for part in ('my models\\t.gguf" -', 'd(1)\\d.gguf" -', ' "temperature;top_k;top_p;min_p" --temp 0.7 '):
        assert part in program
    assert " \\\n" in configuration(hub(), get_project("vllm")).program, "a server on Linux gets its shell's"
    hostile = configuration(choose("it's $(calc) `x`\\t.gguf", "d.gguf"), get_project("llama.cpp")).program
    assert "it''s $(calc) `x`\\t.gguf'" in hostile


@pytest.mark.parametrize("name", PROJECTS)
def test_any_reference_stays_one_word(name, tmp_path):
    folder = tmp_path / 'it\'s a "model" $(x) `y`'
    folder.mkdir()
    choice = choose(str(folder), "owner/draft")
    if name == "transformers":
        constants = [
            node.value for node in ast.walk(ast.parse(text_of(name, choice))) if isinstance(node, ast.Constant)
        ]
        assert str(folder) in constants
    else:
        assert str(folder) in words_of(name, choice)


@pytest.mark.parametrize("name", PROJECTS)
def test_no_reference_breaks_out_of_its_comment_and_what_a_project_cannot_run_is_refused(name):
    for line in text_of(name, choose(NASTY, None, "self-draft", run_id="x\ny")).splitlines():
        assert not line or line.startswith("#")
    assert str(EMBEDDED / DEFAULT_TARGET) in text_of(name, choose(DEFAULT_TARGET, DEFAULT_DRAFT))
    borrowing = choose("HuggingFaceTB/SmolLM2-135M-Instruct", SMOLLM2_DRAFTER)
    assert "borrows the embedding and output head" in configuration(borrowing, PROJECTS[name]).problem
    if name in {"vllm", "sglang", "mlx"}:
        assert "GGUF" in configuration(choose("/models/t.gguf", "/models/d.gguf"), PROJECTS[name]).problem


def test_the_program_for_transformers_is_python_and_sets_k_where_it_is_read():
    text = text_of("transformers", hub(sampling=SamplingParams(0.7, 40, 0.9, 0.05), chat=True))
    ast.parse(text)
    for line in (
        "draft.generation_config.num_assistant_tokens = 5",
        'draft.generation_config.num_assistant_tokens_schedule = "constant"',
        "draft.generation_config.assistant_confidence_threshold = 0.0",
        "    top_k=40,",
        "    min_p=0.05,",
    ):
        assert line in text.splitlines()
    assert "apply_chat_template" in text
    assert "do_sample=False" in text_of("transformers", hub(sampling=SamplingParams(0)))


@pytest.mark.parametrize(("role", "hybrids_are_refused", "words"), [
    ("target", True, "a target that keeps a recurrent state, such as this one (mamba)."),
    ("draft", False, "transformers can't draft with a model of this kind (mamba)."),
])  # fmt: skip
def test_transformers_gets_no_program_for_a_model_that_it_refuses(tmp_path, role, hybrids_are_refused, words):
    assert "keeps a recurrent state" in notes_of("transformers", hub()), "where the type isn't known"
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    kinds = ("mamba", True), ("qwen3_next", hybrids_are_refused), ("llama", False), (["mamba"], False)
    for model_type, is_refused in kinds:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        models = {"target": "o/t", "draft": "o/d", role: str(tmp_path)}
        found = configuration(choose(**models), PROJECTS["transformers"])
        assert (bool(found.problem), bool(found.program)) == (is_refused, not is_refused)
        assert model_type != "mamba" or words in found.problem


def test_mlx_gets_the_system_prompt_as_one_word_and_only_where_it_applied():
    said = '-- Say "it\'s".'
    assert f"--system-prompt={said}" in words_of("mlx", hub(system=said))
    assert "--system-prompt=a b" in words_of("mlx", hub(system="a\nb", chat=True))
    for system, chat, is_changed in ((said, None, False), ("a\nb", True, True), ("a\nb", False, False)):
        assert ("Line ends" in notes_of("mlx", hub(system=system, chat=chat))) == is_changed
    for choice in (hub(), hub(system=said, chat=False)):
        assert "--system-prompt" not in text_of("mlx", choice)


def test_differences_are_reported_where_they_matter():
    filtered = hub(sampling=SamplingParams(0.8, 40, 0.9, 0.1))
    assert "refuses min-p" in notes_of("vllm", filtered)
    assert "min-p (here 0.1) is not applied" in notes_of("sglang", filtered)
    assert "may not be the one measured" in notes_of("mlx", filtered)
    assert "--samplers" in words_of("llama.cpp", filtered)
    assert "shared noise" in notes_of("vllm", hub(coupling=Coupling.GUMBEL))
    assert "refuses min-p" not in notes_of("vllm", hub())
    for draft, is_taken in (("o/Eagle-small", True), ("o/my_DFlash", True), ("o/eagle", False)):
        assert ("whatever the method" in notes_of("vllm", choose("o/t", draft))) == is_taken
    assert "rejected tokens stay in its cache" in notes_of("mlx", hub()), "only recurrent states are refused"
    request = '{"temperature": 0.8, "top_p": 0.9, "top_k": 40'
    assert any(request in line for line in text_of("vllm", filtered).splitlines()), "JSON stays on one line"


def test_a_pair_that_does_not_pay_is_reported_first():
    choice = hub(measured_speedup=0.83, run_id="r1")
    assert "Drafting did not pay" in choice.verdict
    assert "Drafting did not pay" in "".join(text_of("vllm", choice).splitlines(keepends=True)[:5])
    assert "0.83×" in text_of("vllm", choice)
    assert hub(measured_speedup=1.2).verdict == ""


def test_a_speedup_is_given_with_its_interval_and_a_busy_machine_is_reported():
    choice = replace(hub(measured_speedup=1.21, run_id="r1"), interval=(1.02, 1.45), was_busy=True)
    words = " ".join(text_of("vllm", choice).replace("#", "").split())
    assert "1.21× the speed of the target alone (95 % interval 1.02 to 1.45)" in words
    assert "The machine was busy" in words
    assert replace(choice, was_busy=False).verdict == ""
    assert choice.verdict.startswith("The machine was busy during this run. Before serving, measure")
    open_choice = replace(choice, interval=(0.9, 1.45))
    untold = f"his run can't tell whether drafting pays with K = {choice.k}. Before serving, measure"
    assert open_choice.verdict.startswith(f"The machine was busy, and t{untold}")
    assert replace(open_choice, was_busy=False).verdict.startswith(f"T{untold}")
    assert "K =" not in replace(open_choice, k_note="K was changed during the run.").verdict, "a mean"


def test_a_run_log_makes_a_choice_and_k_that_was_left_open_is_the_mean():
    config = {"target": "t/t", "draft": "d/d", "prompt": "x", "seed": 1, "num_draft_tokens": "auto", "chat": True}
    steps = [to_record(make_step(count, 0)) for count in (2, 4, 0, 4, 4)]
    choice = choice_from_log(RunLog({"config": config, "id": "run-1"}, steps, {"measured_speedup": 1.5}))
    assert (choice.k, choice.measured_speedup, choice.request.chat, choice.run_id) == (4, 1.5, True, "run-1")
    assert "3.5 tokens on average" in choice.k_note
    of_no_steps = choice_from_log(RunLog({"config": config}))
    assert (of_no_steps.k, "usual default" in of_no_steps.k_note) == (4, True)


def logged(**config):
    choice = choice_from_log(RunLog({"config": {"prompt": "x", "seed": 1, **config}, "id": "run-1"}))
    return [None if source is None else source.name for source in choice.sources], choice


def test_a_log_read_elsewhere_never_names_a_strangers_repository(tmp_path, monkeypatch):
    local = {"target": "gc/target", "draft": "gc/draft", "target_source": "local", "draft_source": "local"}
    names, choice = logged(**local)
    assert names == ["/path/to/target", "/path/to/draft"]
    text = notes_of("vllm", choice)
    assert "vllm serve /path/to/target" in text
    assert "- /path/to/target: this model was a local folder; put its path here." in text
    assert "vllm serve target" in serving_files(choice, PROJECTS["vllm"])["serve-vllm.sh"], "below MODELS"
    embedded_name = {"target": DEFAULT_TARGET, "target_source": "local"}
    assert logged(**embedded_name)[0][0] == f"/path/to/{DEFAULT_TARGET}", "a shared log shortens paths"
    names, choice = logged(target="gc/target", draft="/models/d")
    assert names == ["/path/to/target", "/models/d"]
    assert "doesn't say whether gc/target was a local folder" in notes_of("mlx", choice)
    names, choice = logged(target="t.gguf", draft="d.gguf", target_source="local")
    assert names == ["/path/to/t.gguf", "/path/to/d.gguf"]
    assert "this model was a local file" in notes_of("llama.cpp", choice)
    (tmp_path / "gc" / "target").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert logged(**local)[0][0] == str(tmp_path / "gc" / "target")


def test_a_log_says_which_models_are_on_the_hub():
    hub_pair = {"target": "t/t", "draft": "d/d", "target_source": "hub", "draft_source": "hub"}
    names, choice = logged(**hub_pair)
    assert names == ["t/t", "d/d"]
    assert "put its" not in text_of("vllm", choice)
    assert logged(target="t/t", revision="0123", draft="Qwen/Qwen3-0.6B")[0] == ["t/t", "Qwen/Qwen3-0.6B"]
    assert logged(target=DEFAULT_TARGET, target_source="embedded")[0] == [str(EMBEDDED / DEFAULT_TARGET), None]


def test_a_damaged_log_and_unknown_names_are_refused_in_a_sentence():
    with pytest.raises(RunLogError, match="lacks target"):
        choice_from_log(RunLog({"config": {}}))
    with pytest.raises(SettingsError, match="no configuration for 'ollama'"):
        get_project("ollama")
    choice = choice_from_request(RunRequest("t", None, "x", method="my_module:Mine"))
    assert (
        "writes no configuration of vLLM for the method my_module" in configuration(choice, get_project("vllm")).problem
    )


def test_a_configuration_says_which_precision_was_measured():
    for speedup in (1.4, 0.8):
        choice = replace(hub(measured_speedup=speedup), dtype="bfloat16")
        assert "in bfloat16." in " ".join(text_of("vllm", choice).replace("#", "").split())
    request = {"target": "Qwen/Qwen3-8B", "draft": "Qwen/Qwen3-0.6B", "prompt": "x", "seed": 0, "dtype": "float16"}
    choice = choice_from_log(RunLog({"id": "r", "config": {**request, "draft_source": "hub"}}))
    assert choice.dtype == "float16"
    for name in ("vllm", "sglang"):
        assert value(words_of(name, choice), "--dtype") == "float16", "also without a baseline"
    assert value(words_of("llama.cpp", choice), "--outtype") == "f16"
    assert text_of("transformers", choice).count(', dtype="float16"') == 2
    assert "Outrider in float16" in notes_of("mlx", choice)


def test_where_no_precision_was_chosen_that_is_said():
    for dtype in ("", "int3; rm"):
        choice = replace(hub(), dtype=dtype)
        for name, project in PROJECTS.items():
            assert f"No run says which precision to use, so {project.title} chooses it." in notes_of(name, choice)
        assert "--dtype" not in words_of("vllm", choice)
        assert "--outtype" not in words_of("llama.cpp", choice)
        assert text_of("transformers", choice).count(', dtype="auto"') == 2
    assert choice_from_request(replace(hub().request, dtype=DType.BFLOAT16)).dtype == "bfloat16"
