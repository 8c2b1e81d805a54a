"""llama.cpp in the bench, with a server and a script that only say what they were asked for."""

from dataclasses import replace

import psutil
import pytest
import torch

from core.errors import SettingsError
from core.experiments.bench import Bench
from core.experiments.bench_plan import LLAMA_CPP, LLAMA_CPP_DRAFT, PLAIN, Pair
from core.experiments.contenders import build, build_all, truncated_draft
from core.experiments.llama_cpp import find_build
from core.models.loading import load
from tests.fakes import failing, is_sentence, save_model
from tests.fakes_bench import PROMPTS, SETTINGS, Fake, K, N
from tests.fakes_llama_cpp import conversions, make_build, requests, starts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "target", max_position_embeddings=128)


@pytest.fixture(scope="module")
def pair(folder):
    target = replace(load(str(folder), "cpu"), eos_ids=frozenset())
    return Pair(target, truncated_draft(target, 1))


@pytest.fixture
def settings(folder, tmp_path):
    build = make_build(tmp_path / "build")
    return replace(SETTINGS, target=str(folder), draft=None, draft_layers=1, threads=1, llama_cpp=str(build))


@pytest.fixture
def kept(user_folders):
    return user_folders / "xdg_cache_home" / "outrider" / "llama.cpp"


def test_it_gets_the_same_prompts_seeds_and_lengths_and_its_servers_end_with_the_bench(pair, settings, tmp_path):
    settings = replace(settings, temperatures=(1.0,), rounds=1, only=(LLAMA_CPP, LLAMA_CPP_DRAFT))
    contenders, absent = build_all(pair, settings)
    bench = Bench(pair, PROMPTS, settings)
    plain, drafted = bench.results(contenders)
    assert (absent, bench.absent) == ({}, {})
    assert (plain["tokens_per_forward"], drafted["tokens_per_forward"]) == (1.0, N / (N - 4))
    assert not plain["is_ours"]
    assert plain["notes"] == drafted["notes"] == []
    build = tmp_path / "build"
    asked = requests(build)
    assert len(asked) == 2 * 2 * len(PROMPTS)
    assert {tuple(one["prompt"]) for one in asked} == {prompt.ids for prompt in PROMPTS}
    assert all(
        (one["n_predict"], one["temperature"], one["samplers"], one["ignore_eos"], one["cache_prompt"])
        == (N, 1.0, ["temperature"], True, False)
        for one in asked
    )
    assert sorted(one["seed"] for one in asked) == sorted(2 * [0, 1, 2, 3])
    first, second = starts(build)
    assert not psutil.pid_exists(first["pid"])
    assert not psutil.pid_exists(second["pid"])
    assert first["arguments"][first["arguments"].index("--threads") + 1] == "1"
    assert "--spec-draft-model" not in first["arguments"]
    assert second["arguments"][second["arguments"].index("--spec-draft-n-max") + 1] == str(K)
    document = bench.document([plain, drafted])
    assert document["environment"]["llama_cpp"] == "1.2 (fake)"
    assert str(tmp_path) not in str(document)


def test_the_server_ends_when_the_bench_is_interrupted(pair, settings, tmp_path):
    bench = Bench(pair, PROMPTS, replace(settings, temperatures=(1.0,)))
    with pytest.raises(KeyboardInterrupt):
        bench.results([build(LLAMA_CPP, pair, settings), Fake(PLAIN, failing(KeyboardInterrupt()))])
    [started] = starts(tmp_path / "build")
    assert not psutil.pid_exists(started["pid"])


@pytest.mark.parametrize(("problem", "reason"), [("broken", "no such model"), ("refuses", "too long")])
def test_a_server_that_fails_is_absent_with_its_last_words(pair, settings, tmp_path, problem, reason):
    (tmp_path / "build" / "bin" / problem).touch()
    bench = Bench(pair, PROMPTS, settings)
    assert bench.results([build(LLAMA_CPP, pair, settings)]) == []
    for temperature in settings.temperatures:
        assert reason in bench.failed[LLAMA_CPP, temperature]
        assert is_sentence(bench.failed[LLAMA_CPP, temperature])


def test_weights_are_converted_once_for_each_content_and_precision_and_kept(pair, settings, tmp_path, kept):
    for _ in range(2):
        build(LLAMA_CPP_DRAFT, pair, settings)
    done = conversions(tmp_path / "build")
    assert [item["kind"] for item in done] == ["f32", "f32"]
    # The draft made of the target's layers is written out, with the target's tokenizer.
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(done[1]["files"])
    halved = replace(pair, target=replace(pair.target, dtype=torch.bfloat16))
    build(LLAMA_CPP, halved, settings)
    assert conversions(tmp_path / "build")[2]["kind"] == "bf16"
    assert len(list(kept.glob("*.gguf"))) == 3
    assert all(file.suffix == ".gguf" for file in kept.iterdir())


def test_a_gguf_file_is_used_as_it_is(pair, settings, tmp_path):
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF")
    contender = build(LLAMA_CPP, pair, replace(settings, target=str(file)))
    assert str(file) in contender._command
    assert conversions(tmp_path / "build") == []


def test_without_a_build_script_draft_or_conversion_it_is_absent_and_a_path_without_a_server_is_refused(
    pair, settings, tmp_path, kept
):
    alone = make_build(tmp_path / "alone", script=False)
    (tmp_path / "build" / "unknown").touch()
    cases = [
        (replace(settings, llama_cpp=None), pair, "--llama-cpp"),
        (replace(settings, llama_cpp=str(alone)), pair, "convert_hf_to_gguf.py was not found"),
        (settings, Pair(pair.target, None), "no draft model"),
        (settings, pair, "BPE pre-tokenizer was not recognized"),
    ]
    for changed, models, reason in cases:
        _, absent = build_all(models, changed)
        assert reason in absent[LLAMA_CPP_DRAFT]
        assert is_sentence(absent[LLAMA_CPP_DRAFT])
    assert list(kept.iterdir()) == []
    for path in (kept, tmp_path / "none", alone / "none"):
        with pytest.raises(SettingsError, match="no llama-server"):
            find_build(str(path))


def test_a_build_is_found_by_folder_or_file_and_its_script_by_the_sources_that_it_was_made_from(tmp_path):
    sources = make_build(tmp_path / "sources")
    made = make_build(tmp_path / "elsewhere", script=False)
    (made / "CMakeCache.txt").write_text(f"# x\nCMAKE_HOME_DIRECTORY:INTERNAL={sources}\n")
    for path in (made, made / "bin", made / "bin" / "llama-server"):
        found = find_build(str(path))
        assert found.server == made / "bin" / "llama-server"
        assert found.script == sources / "convert_hf_to_gguf.py"
