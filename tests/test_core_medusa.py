"""Medusa heads: they load from any file that holds some, refuse other targets, and propose the most probable tree."""

import itertools
import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import log_softmax, silu

import core.models.medusa_heads as medusa_heads
from core.drafters.base import DrafterSetup
from core.drafters.medusa import MedusaDrafter
from core.drafters.registry import MedusaOptions, build_drafter
from core.errors import ModelUnreadableError, PairMismatchError, SettingsError
from core.models.medusa_heads import CONFIG, PICKLE, WEIGHTS, find_heads, load_heads
from core.settings import SamplingParams
from core.types import DraftContext, TargetFeature
from tests.fakes import refusal, tiny_model
from tests.fakes_medusa import published, size_of, write_heads

VOCABULARY = list(range(40, 60))
IDS = [65, 66, 67]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(medusa_heads.platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "cache")


@pytest.fixture
def target():
    return tiny_model("llama")


def drafter_of(path, target, *, int8=False) -> MedusaDrafter:
    return build_drafter("medusa", DrafterSetup(target), {"heads": str(path), "int8": int8})


def propose(drafter, states, *, count=8, depth=64, temperature=1.0, ids=IDS):
    features = {TargetFeature.HIDDEN_STATES: states}
    context = DraftContext(
        ids, count, SamplingParams(temperature), None, 257, lambda: None, features=features, max_depth=depth
    )
    return drafter.propose(context)


def paths_of(draft) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        assert -1 <= parent < len(paths)
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths


def some_states(target, number=3, seed=1):
    return torch.randn(number, size_of(target), generator=torch.Generator().manual_seed(seed))


# --- The tree ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "depth"), [(1, 64), (5, 64), (12, 2), (30, 64), (7, 1)])
def test_it_proposes_the_most_probable_paths(tmp_path, target, count, depth):
    """Against every path there is, by the heads' own logits."""
    folder = write_heads(tmp_path / "heads", target, VOCABULARY)
    heads, states = load_heads(folder, target), some_states(target)
    embedding, output = target.model.get_input_embeddings(), target.model.lm_head.weight[VOCABULARY]
    probability = {(): 0.0}
    for head, parent in itertools.chain.from_iterable(
        [(head, path) for path in itertools.product(VOCABULARY, repeat=head)] for head in range(min(3, depth))
    ):
        tokens = embedding(torch.tensor([[IDS[-1], *parent]]))
        row = log_softmax(heads(head, states[-1:], tokens) @ output.T, -1)[0].tolist()
        probability |= {
            (*parent, token): probability[parent] + value for token, value in zip(VOCABULARY, row, strict=True)
        }
    expected = sorted((path for path in probability if path), key=lambda path: -probability[path])[:count]
    draft = propose(drafter_of(folder, target), states, count=count, depth=depth)
    assert paths_of(draft) == expected
    assert draft.probs is None
    assert (draft.tokens.dtype, draft.parents.dtype) == (torch.int64, torch.int64)


def test_the_tree_depends_on_the_last_state_alone_and_is_the_same_every_time(tmp_path, target):
    drafter = drafter_of(write_heads(tmp_path / "heads", target, VOCABULARY), target)
    states = some_states(target, 4)
    drafter.start(torch.tensor(IDS))
    first = paths_of(propose(drafter, states))
    assert first == paths_of(propose(drafter, states[-1:]))
    assert first != paths_of(propose(drafter, states[:1]))
    assert first != paths_of(propose(drafter, states, ids=[*IDS[:-1], 70])), "the heads read the last token"
    # At temperature 0 the probabilities are those at a low temperature, which makes longer paths.
    greedy, warm = (paths_of(propose(drafter, states, temperature=at)) for at in (0.0, 2.0))
    assert sum(map(len, greedy)) > sum(map(len, warm))


def test_without_a_state_or_a_budget_it_proposes_nothing(tmp_path, target):
    drafter, states = drafter_of(write_heads(tmp_path / "heads", target, VOCABULARY), target), some_states(target)
    context = DraftContext(IDS, 4, SamplingParams(1.0), None, 257, lambda: None)
    drafts = drafter.propose(context), propose(drafter, states, count=0), propose(drafter, states, depth=0)
    assert [len(draft) for draft in drafts] == [0, 0, 0]


def test_in_int8_it_proposes_nearly_the_same(tmp_path, target):
    folder, states = write_heads(tmp_path / "heads", target, VOCABULARY), some_states(target)
    plain, small = (
        set(paths_of(propose(drafter_of(folder, target, int8=on), states, count=20))) for on in (False, True)
    )
    assert len(plain & small) >= 15


# --- Files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_published_heads_load_as_a_file_or_a_folder(tmp_path, target, prefix):
    tensors = published(target)
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, tmp_path / WEIGHTS)
    (tmp_path / CONFIG).write_text(json.dumps({"medusa_num_heads": 5, "medusa_num_layers": 1}))
    state = some_states(target)[-1]
    first, second = (
        (state + silu(tensors[f"{head}.0.linear.weight"] @ state + tensors[f"{head}.0.linear.bias"]))
        @ tensors[f"{head}.1.weight"].T
        for head in (0, 1)
    )
    scores = {(a, b): first.log_softmax(-1)[a] + second.log_softmax(-1)[b] for a in range(257) for b in range(257)}
    for path in (tmp_path, tmp_path / WEIGHTS):
        heads = load_heads(path, target)
        assert (len(heads), len(heads.outputs), heads.reads_tokens) == (2, 2, False)
        draft = propose(drafter_of(path, target), state[None], count=60, temperature=0.0)
        paths = paths_of(draft)
        assert paths[0] == (int(first.argmax()),)
        deep = [path for path in paths if len(path) == 2]
        assert deep
        assert deep[0] == max(scores, key=scores.get)


def test_a_pickle_is_converted_once_and_only_its_tensors_are_read(tmp_path, target, monkeypatch):
    tensors = published(target)
    torch.save(tensors, tmp_path / PICKLE)
    heads = load_heads(tmp_path, target)
    assert torch.equal(heads.blocks[1][0].linear.weight, tensors["1.0.linear.weight"])
    with monkeypatch.context() as patch:
        patch.setattr(medusa_heads, "supervise", None)
        load_heads(tmp_path, target)

    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "written"), "w")

    (tmp_path / PICKLE).write_bytes(pickle.dumps({"0.0.linear.weight": Evil()}))
    refusal(ModelUnreadableError, load_heads, tmp_path, target)
    assert not (tmp_path / "written").exists()
    assert len(list((tmp_path / "cache" / "heads").iterdir())) == 1, "the failed conversion left nothing"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"0.0.linear.weight": (30, 30), "0.0.linear.bias": (30,)}, PairMismatchError, "another target"),
        ({"0.1.weight": (300, "H")}, PairMismatchError, "another target"),
        ({"1.1.weight": None}, ModelUnreadableError, "some have none"),
        ({"0.0.linear.bias": None}, ModelUnreadableError, "one weight and one bias"),
        ({"0.0.linear.bias": None, "0.0.linear.weight": None}, ModelUnreadableError, "not numbered"),
        ({"3.0.linear.weight": ("H", "H")}, ModelUnreadableError, "not numbered"),
        ({"model.layers.0.weight": (2, 2)}, ModelUnreadableError, "not part of a Medusa head"),
    ],
)
def test_heads_of_another_target_and_damaged_ones_are_refused(tmp_path, target, change, error, words):
    tensors = published(target)
    for name, shape in change.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = torch.zeros([size_of(target) if side == "H" else side for side in shape])
    save_file(tensors, tmp_path / WEIGHTS)
    assert words in refusal(error, load_heads, tmp_path, target)


@pytest.mark.parametrize("vocabulary", [[], [1, 257], [-1, 2], [3, 3], ["a"], [True], 7])
def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path, target, vocabulary):
    folder = write_heads(tmp_path / "heads", target, VOCABULARY)
    values = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**values, "vocabulary": vocabulary}))
    refusal((ModelUnreadableError, PairMismatchError), load_heads, folder, target)


def test_files_that_are_no_heads_are_refused(tmp_path, target):
    folder = write_heads(tmp_path / "heads", target, VOCABULARY)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:200])
    (tmp_path / "empty").mkdir()
    for path, error in (
        (folder, ModelUnreadableError),
        (tmp_path / "empty", SettingsError),
        (tmp_path / "no", SettingsError),
        (tmp_path / ("a" * 300), SettingsError),
        (Path("nul\0"), SettingsError),
    ):
        refusal(error, load_heads, path, target)
    nan = {name: tensor.fill_(float("nan")) for name, tensor in published(target).items()}
    save_file(nan, tmp_path / WEIGHTS)
    with pytest.raises(ModelUnreadableError, match="NaN"):
        load_heads(tmp_path, target)


def test_without_a_path_the_heads_that_ship_for_the_target_are_used(tmp_path, target, monkeypatch):
    monkeypatch.setattr(medusa_heads, "EMBEDDED", tmp_path)
    write_heads(tmp_path / "heads", target, VOCABULARY)
    assert find_heads(target) == tmp_path / "heads"
    assert len(propose(MedusaDrafter(DrafterSetup(target), MedusaOptions()), some_states(target))) == 8
    other = tiny_model("llama", seed=1)
    assert find_heads(other) is None
    said = refusal(SettingsError, MedusaDrafter, DrafterSetup(other), MedusaOptions())
    assert "includes no Medusa heads" in said


def test_saved_heads_hold_no_more_than_their_blocks_in_half_precision(tmp_path, target):
    tensors = load_file(write_heads(tmp_path / "heads", target, VOCABULARY) / WEIGHTS)
    assert sorted(tensors) == sorted(
        f"{h}.{b}.linear.{n}" for h in range(3) for b in range(2) for n in ("weight", "bias")
    )
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert [tensors[f"{head}.0.linear.weight"].shape[1] // size_of(target) for head in range(3)] == [2, 3, 4]
