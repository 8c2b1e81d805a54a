"""Which forward a loaded model may use."""

import pytest
import torch

from core.models.loading import check_cache, find_fused_weights
from tests.fakes import language_model, tiny_module


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def model(request):
    return language_model(tiny_module("llama").to(request.param))


@pytest.mark.parametrize(("spread", "is_used"), [(0.0, True), (1.0, False)])
def test_the_lean_forward_is_used_where_its_logits_are_the_modules(model, spread, is_used):
    expected = check_cache(model)
    others = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)) * expected.std()
    assert (find_fused_weights(model, expected + spread * others) is not None) is is_used


def test_a_few_logits_that_rounding_moves_far_rule_it_out_in_float32_alone(model):
    expected = check_cache(model).clone()
    expected[::3, ::50] += 2 * expected.std()
    assert (find_fused_weights(model, expected) is not None) is (model.dtype is torch.bfloat16)
