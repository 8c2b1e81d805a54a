"""Bad input about trees, end to end and with the real fault: one sentence, and nothing of the session is lost."""

import shutil
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.drafters.registry import METHODS, Method, NoOptions
from core.errors import OutriderError
from core.models.catalogue import resolve
from core.models.fit import forecast, heads_parameters, nodes_of
from core.models.folder.details import read_details
from core.models.loading import load
from core.runlog.log import RunLogWriter
from core.runlog.reading import read_run_log
from core.session import Session
from core.settings import DType
from core.types import Draft, FinishReason, Step
from tests.children import run_code
from tests.fakes import StubDrafter, is_sentence, refusal, save_model
from tests.fakes_medusa import write_heads
from tests.fakes_session import requests_of, save_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def request_for(folder):
    return requests_of(folder)


@pytest.fixture
def session(request_for):
    """A session whose plain run is the same before and after."""
    session = Session()
    expected = list(session.run(request_for()))[-1].summary.text
    yield session
    assert list(session.run(request_for()))[-1].summary.text == expected


@pytest.fixture(scope="module")
def heads(folder, tmp_path_factory):
    return write_heads(tmp_path_factory.mktemp("heads") / "heads", load(str(folder / "target"), "cpu"), [3, 5, 200])


def with_heads(path) -> dict:
    return {"method": "medusa", "draft": None, "method_options": {"heads": str(path)}}


# --- Heads ------------------------------------------------------------------------------------------------------


def test_heads_of_another_target_of_the_same_sizes_are_refused_and_precision_is_no_other_target(
    session, request_for, folder, heads, tmp_path
):
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        events = list(session.run(request_for(dtype=dtype, **with_heads(heads))))
        assert events[-1].summary.finish_reason is FinishReason.LENGTH
    other = shutil.copytree(folder / "target", tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] *= 1.5
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    said = refusal(OutriderError, lambda: list(session.run(request_for(target=str(other), **with_heads(heads)))))
    assert "belong to another target: they were trained for tiny" in said


# --- Parents ----------------------------------------------------------------------------------------------------


class OneBadTree(StubDrafter):
    """Proposes a chain, and then parents that are no tree."""

    proposes_trees = True

    def __init__(self, setup, options=None):
        self.num_proposed = 0

    def propose(self, context):
        self.num_proposed += 1
        parents = [-1, -1] if self.num_proposed < 3 else [1, -1]
        return Draft(torch.tensor([3, 5]), torch.tensor(parents), None)


def test_parents_that_are_no_tree_end_the_run_with_what_it_has_written(session, request_for, tmp_path, monkeypatch):
    bad = Method("bad", "Bad", "Bad.", False, NoOptions, OneBadTree, proposes_trees=True)
    monkeypatch.setattr(METHODS, "_methods", {**METHODS, "bad": bad})
    request, log = request_for(method="bad", draft=None, num_draft_tokens=2), tmp_path / "run.jsonl"
    with RunLogWriter(log) as writer:
        events = [*session.run(request)]
        for event in events:
            writer.write(event)
    summary, steps = events[-1].summary, [event for event in events if isinstance(event, Step)]
    assert (summary.finish_reason, len(steps)) == (FinishReason.ERROR, 2)
    assert "OneBadTree proposed parents that don't form a tree" in summary.error
    assert is_sentence(summary.error)
    kept = read_run_log(log)
    assert not kept.problems
    assert kept.summary["text"] == summary.text == "".join(step.emitted_text for step in steps) != ""


# --- Memory -----------------------------------------------------------------------------------------------------


CHILD = """
    import resource, sys
    import psutil, torch
    from core.runners import matmul
    from core.session import Session
    from core.settings import RunRequest
    from core.types import Finished

    torch.set_num_threads(1)
    # As `kernels`: to time this head takes long.
    matmul._measure_packed = lambda weights: int(weights[0].numel() >= 2**16)
    matmul._is_int8_faster = lambda product: product.weights[0].numel() >= 2**16
    target, draft = sys.argv[1:]
    asked = dict(target=target, draft=draft, prompt="def f(x):", max_new_tokens=6, device="cpu", dtype="float32")
    session = Session()

    def run(k):
        *_, last = session.run(RunRequest(**asked, method="draft-tree", num_draft_tokens=k))
        print(last.summary.error or last.summary.finish_reason)

    run(2)
    limit = psutil.Process().memory_info().vms + 180 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    run(64)
    run(2)
"""
"""64 nodes are 65 rows of a head of 1,200,000 rows, 312 MB: more than the process may take. 2 nodes are 14 MB."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only there is a limit on memory enforced")
def test_nodes_that_memory_does_not_allow_end_the_run_and_fewer_run_on(tmp_path):
    wide = save_model(tmp_path / "wide", vocab_size=1_200_000, hidden_size=16, num_attention_heads=2,
                      num_key_value_heads=1, head_dim=8, eos_token_id=None, tie_word_embeddings=True)  # fmt: skip
    draft = save_model(tmp_path / "draft", eos_token_id=None, seed=1)
    # A new thread would take an arena of its own under the limit.
    done = run_code(textwrap.dedent(CHILD), wide, draft, OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="1")
    first, error, last = done.stdout.splitlines() or ["", done.stderr, ""]
    assert (first, last) == ("length", "length"), done.stderr
    assert is_sentence(error)
    assert "ran out of memory" in error
    assert "trees of up to 64 nodes" in error
    assert "Draft smaller trees" in error


def test_a_forecast_knows_the_rows_of_a_tree_and_the_heads(folder, heads):
    entry = resolve(str(folder / "target"))
    model = read_details(entry)
    chain, tree = (forecast([model], device="cpu", dtype="float32", context=8, num_nodes=n) for n in (0, 64))
    assert tree.cache_bytes == chain.cache_bytes * (8 + 64) // 8
    assert tree.working_bytes > chain.working_bytes
    assert [nodes_of(name, 9) for name in ("draft-model", "draft-tree", "medusa", "unknown")] == [0, 9, 9, 0]
    assert nodes_of("draft-tree", None) == 64
    tensors = (heads / "medusa_lm_head.safetensors").stat().st_size // 2
    found = heads_parameters(str(heads), entry)
    assert found == tensors + 3 * model.hidden_size
    with_heads = forecast([model], device="cpu", dtype="float32", context=8, num_head_parameters=found)
    assert with_heads.weights_bytes == chain.weights_bytes + 4 * found
    assert heads_parameters("missing", entry) == heads_parameters("", entry) == 0
