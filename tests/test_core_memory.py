"""The memory forecast: its parts are those of the models as they are loaded."""

import pytest
import torch

from core.errors import DeviceError, SettingsError
from core.models import fit as memory
from core.models.catalogue import resolve
from core.models.details import read_details
from core.models.fit import MemoryForecast, forecast, pair_verdict
from tests.fakes import edit_json, save_model, tiny_module


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("models") / "good")


def details(path):
    return read_details(resolve(str(path)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
def test_weights_are_those_of_the_module(tmp_path, family, dtype):
    found = forecast([details(save_model(tmp_path, family=family))], device="cpu", dtype=dtype)
    held = tiny_module(family).to(getattr(torch, dtype))
    expected = sum(parameter.nbytes for parameter in held.parameters())
    assert expected <= found.weights_bytes <= expected * 1.02 + 1024  # Buffers come on top.


def test_an_estimate_leaves_the_process_as_it_was(saved):
    memory._estimate.cache_clear()
    forecast([details(saved)], device="cpu", dtype="bfloat16")
    assert torch.get_default_dtype() is torch.float32
    assert torch.nn.Linear(1, 1).weight.device.type == "cpu"


def test_the_cache_grows_with_the_context_up_to_the_models_own(saved):
    found = [forecast([details(saved)], device="cpu", dtype="float32", context=n).cache_bytes for n in (10, 128, 999)]
    assert found == [2 * 2 * 2 * 8 * n * 4 for n in (10, 128, 128)]


def test_an_architecture_that_is_not_known_is_counted_by_its_header(tmp_path):
    folder = save_model(tmp_path)
    edit_json(folder / "config.json", model_type="outlandish")
    found = details(folder)
    assert forecast([found], device="cpu", dtype="float16").weights_bytes == 2 * found.num_parameters


def test_two_models_take_both_their_weights_and_caches_and_one_twice_only_its_cache(saved, tmp_path):
    one, other = details(saved), details(save_model(tmp_path / "other", num_hidden_layers=1))
    alone = [forecast([model], device="cpu", context=64) for model in (one, other)]
    both = forecast([one, other], device="cpu", context=64)
    assert both.weights_bytes == sum(part.weights_bytes for part in alone)
    assert both.cache_bytes == sum(part.cache_bytes for part in alone)
    twice = forecast([one, one], device="cpu", context=64)
    assert (twice.weights_bytes, twice.cache_bytes) == (alone[0].weights_bytes, 2 * alone[0].cache_bytes)


def test_what_is_free_decides_whether_it_fits():
    assert MemoryForecast(1, 2, 3, 6).fits is True
    assert MemoryForecast(1, 2, 3, 5).fits is False
    assert MemoryForecast(1, 2, 3, None).fits is None


def test_the_processor_tells_its_free_memory(saved):
    available = forecast([details(saved)], device="cpu").available_bytes
    assert available is not None
    assert available > 1 << 20


def test_what_loaded_models_would_make_room_with_counts_as_free(saved, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda _: 1_000)
    assert forecast([details(saved)], device="cpu", held_bytes=500).available_bytes == 1_500
    needed = forecast([details(saved)], device="cpu").total_bytes
    assert pair_verdict(str(saved), str(saved), device="cpu", held_bytes=2 * needed).memory.fits is True
    assert pair_verdict(str(saved), str(saved), device="cpu").memory.fits is False
    monkeypatch.setattr(memory, "available_bytes", lambda _: None)
    assert forecast([details(saved)], device="cpu", held_bytes=500).fits is None


def test_devices_and_precisions_that_are_not_there(saved):
    with pytest.raises(SettingsError):
        forecast([details(saved)], device="cpu", dtype="float7")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError):
            forecast([details(saved)], device="cuda")
