"""A device that runs behind the host, simulated on the CPU: it counts the waits, and refuses what a real one would."""

from copy import copy
from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from core.models.language_model import LanguageModel
from core.runners.matmul import Product

DEVICE = torch.device("meta")
"""Passes for the device, since torch knows this type on every machine."""

_ATEN = torch.ops.aten
_READS = {_ATEN._local_scalar_dense.default, _ATEN.nonzero.default, _ATEN.equal.default}
_COPIES = {_ATEN._to_copy.default, _ATEN.copy_.default}


class OnDevice(torch.Tensor):
    """A tensor on the simulated device; `host` is the tensor that stands for it."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> "OnDevice":
        layout = {"strides": host.stride(), "storage_offset": host.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, host.size(), dtype=host.dtype, device=DEVICE, **layout)
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} ran outside the simulation")

    def tolist(self) -> list:
        SimulatedDevice.current.waits.append("tolist")
        return self.host.tolist()


class SimulatedDevice(TorchDispatchMode):
    """Within it, tensors live on `DEVICE`. `waits` names each operation for which the host waits, in order."""

    current: "SimulatedDevice"

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._number: torch.Tensor | None = None
        SimulatedDevice.current = self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts  # In inference mode an operation made of others comes here whole.
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        ours = [each for each in tensors if isinstance(each, OnDevice)]
        for each in tensors:
            made_of_values = each.device == DEVICE and not isinstance(each, OnDevice)
            assert not made_of_values, f"{func}: a tensor was made of Python's values on the device, which waits"
        if func in _READS and ours:
            self.waits.append(func.__name__)
        if func in _COPIES:
            return self._copy(func, args, kwargs)
        strangers = [each for each in tensors if not isinstance(each, OnDevice) and each.ndim]
        assert not (ours and strangers), f"{func} mixes tensors of the host and of the device"
        is_here = bool(ours) or kwargs.get("device") == DEVICE
        if kwargs.get("device") == DEVICE:
            kwargs["device"] = torch.device("cpu")
        found = func(*tree_map(_host, args), **tree_map(_host, kwargs))
        if args and found is _host(args[0]):
            return args[0]  # In place.
        found = tree_map(lambda each: OnDevice(each) if is_here and isinstance(each, torch.Tensor) else each, found)
        if func is _ATEN.scalar_tensor.default:
            self._number = found
        return found

    def _copy(self, func, args, kwargs):
        """Between host and device a copy waits unless it is told not to."""
        source = args[1] if func is _ATEN.copy_.default else args[0]
        goal = args[0].device if func is _ATEN.copy_.default else kwargs.get("device") or source.device
        is_asked = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        if goal != source.device and not (is_asked and goal == DEVICE):
            self.waits.append(f"a copy from {source.device.type} to {goal.type}")
        if func is _ATEN.copy_.default and source is self._number and not args[0].ndim:
            # CUDA fills a slice with a number, but copies it to a single element.
            self.waits.append("a number written to one element")
        if goal == DEVICE and "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        found = func(*tree_map(_host, args), **kwargs)
        if func is _ATEN.copy_.default:
            return args[0]
        return OnDevice(found) if goal == DEVICE else found


def _host(value):
    return value.host if isinstance(value, OnDevice) else value


def moved(model: LanguageModel) -> LanguageModel:
    """A copy of a fused model, on the simulated device."""
    assert model.fused_weights is not None
    weights, tables = copy(model.fused_weights), model.fused_weights.rotary_table
    weights.rotary_table = lambda *lengths: tuple(map(OnDevice, tables(*lengths)))
    weights.embedding, weights.final_norm = OnDevice(weights.embedding), OnDevice(weights.final_norm)
    weights.norms = tuple([OnDevice(each) for each in kind] for kind in weights.norms)
    weights.qkv_bias = [OnDevice(each) for each in weights.qkv_bias]
    weights.head, *products = (
        Product([OnDevice(each) for each in product.weights], [], [], 0)
        for product in (weights.head, *weights.products)
    )
    weights.products, weights._small, weights._draft_heads = tuple(products), None, {}
    return replace(model, device=DEVICE, fused_weights=weights)
