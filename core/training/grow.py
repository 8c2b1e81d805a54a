"""Deepens a trained model without changing what it computes, so that training goes on from there.

Behind some of the layers stand copies of them whose output projections are zero: at first each adds nothing to the
residual stream (the block expansion of LLaMA Pro, Wu et al. 2024, 2401.02415).
"""

from __future__ import annotations

import copy

import torch
from transformers import LlamaForCausalLM


def deepened(model: LlamaForCausalLM, num_layers: int) -> LlamaForCausalLM:
    """A model of `num_layers` that computes what `model` computes; the new layers are spread evenly, the last on top.

    Raises:
        ValueError: for fewer layers than there are, or more than twice as many.
    """
    old = len(model.model.layers)
    extra = num_layers - old
    if not 0 <= extra <= old:
        raise ValueError(f"{old} layers can be deepened to {old} to {2 * old}, not {num_layers}")
    repeated = {(index + 1) * old // extra - 1 for index in range(extra)}
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = num_layers
    grown = LlamaForCausalLM(config)
    with torch.no_grad():
        grown.load_state_dict({k: v for k, v in model.state_dict().items() if ".layers." not in k}, strict=False)
        places = iter(grown.model.layers)
        for index, layer in enumerate(model.model.layers):
            next(places).load_state_dict(layer.state_dict())
            if index in repeated:
                added = next(places)
                added.load_state_dict(layer.state_dict())
                added.self_attn.o_proj.weight.zero_()
                added.mlp.down_proj.weight.zero_()
    return grown
