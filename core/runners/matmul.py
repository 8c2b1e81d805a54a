"""Matrix products of a few rows on the CPU, by the kernel that is fastest for each shape: chosen by measurement.

A product of a few rows costs as much as reading its weights. Common libraries read large weights in an unfavourable
order, and several times from two to four rows on; weights that oneDNN has packed are read once, in order. int8 weights
have a quarter of the bytes, but the rows must be quantised too, which isn't worthwhile for small products.
"""

# No postponed annotations here: TorchScript can't resolve those of a NamedTuple from another module.
import contextlib
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Union  # noqa: UP035 - TorchScript accepts no other form

import platformdirs
import torch
from torch import Tensor
from torch.nn import functional

from core.analysis.steadiness import OtherPrograms
from core.errors import OutriderError
from core.files import write_atomically
from core.models.devices import device_name
from core.runners.threads import num_processors, threads

_log = logging.getLogger(__name__)

try:
    PackedWeight: Any = torch.classes.quantized.LinearPackedParamsBase
except (RuntimeError, AttributeError):  # This torch lacks the kernels: nothing is ever quantised.
    PackedWeight = Any

_NO_KERNEL = (RuntimeError, AttributeError, NotImplementedError)

MOST_QUANTISED = 16
"""With more rows no product is in int8: they share one scale."""

_ROWS = (5, 4, 2, 1)
"""Row counts for which packed weights are timed, in this order, up to the first for which they are not faster."""
_REPEATS, _FEWEST_REPEATS, _ENOUGH_S = 9, 4, 0.2
_MEASURED_BYTES = 256 << 20
"""At most this many bytes of a model's layers are timed. A few copies would stay in a large cache, unlike in a run."""
_GAIN = 0.9
"""A replacement must take at most this share of the plain kernel's time, so that noise doesn't decide."""


class Product(NamedTuple):
    """The weights of the layers' products of one kind, for TorchScript.

    Attributes:
        weights: (out, in), one per layer.
        int8: copies of them, for `torch.ops.quantized.linear_dynamic`; empty if unused.
        packed: copies of them in oneDNN's layout; empty if unused.
        fewest: the least number of rows for which the packed ones are used.
    """

    weights: list[Tensor]
    int8: list[PackedWeight]
    packed: list[Tensor]
    fewest: int


def product_of(weights: list[Tensor], *, may_pack: bool = True) -> Product:
    """The fastest product of these weights, all of one shape (out, in).

    Args:
        weights: one per layer; kept, since a head's rows and int8 copies are made of them.
        may_pack: whether there is memory for a second copy.
    """
    fewest = _fewest_packed(weights) if may_pack else 0
    return Product(weights, [], [pack(weight) for weight in weights] if fewest else [], fewest)


def _fewest_packed(weights: list[Tensor]) -> int:
    """The smallest number of rows for which packed products of these weights are faster; 0 if never."""
    weight = weights[0]
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return 0
    try:
        return _remembered(f"packed {_shape(weights)}", lambda: _measure_packed(weights))
    except _NO_KERNEL:  # Or no memory to measure in, which is not remembered.
        _log.debug("no packed products here", exc_info=True)
        return 0


def _measure_packed(weights: list[Tensor]) -> int:
    layers = _measured(weights)
    packed = [pack(weight) for weight in layers]

    def is_faster(num_rows: int) -> bool:
        x = torch.ones(num_rows, layers[0].shape[1], dtype=layers[0].dtype)
        return _beats(partial(_each, in_packed, x, packed), partial(_each, functional.linear, x, layers))

    return min(takewhile(is_faster, _ROWS), default=0)


def quantised(product: Product) -> Product:
    """The same with int8 copies, if these are faster for one row.

    Each output has its own scale; the incoming rows are quantised on the fly, all with one scale.
    """
    first = product.weights[0]
    if first.device.type != "cpu" or first.dtype is not torch.float32:
        return product
    try:
        if not _remembered(f"int8 {_shape(product.weights)}", lambda: int(_is_int8_faster(product))):
            return product
        return product._replace(int8=[_to_int8(weight) for weight in product.weights])
    except _NO_KERNEL:
        _log.debug("no int8 products here", exc_info=True)
        return product


def _is_int8_faster(product: Product) -> bool:
    layers, row = _measured(product.weights), torch.ones(1, product.weights[0].shape[1])
    small = partial(_each, in_int8, row, [_to_int8(weight) for weight in layers])
    if product.fewest == 1:
        return _beats(small, partial(_each, in_packed, row, product.packed[: len(layers)]))
    return _beats(small, partial(_each, functional.linear, row, layers))


def in_full(product: Product) -> Product:
    """The same in the weights' own precision."""
    return product._replace(int8=[])


def pack(weight: Tensor) -> Tensor:
    """A copy of a weight (out, in) in oneDNN's layout, for `in_packed`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), MOST_QUANTISED)


def in_packed(x: Tensor, weight: Tensor) -> Tensor:
    """x (n, in) times a packed weight: (n, out)."""
    none = torch.jit.annotate(List[Optional[Union[int, float, complex]]], [])  # noqa: UP006, UP007, UP045
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", none, "")


if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    # A torch without oneDNN packs nothing; TorchScript must still compile what names this function.
    in_packed = functional.linear  # type: ignore[assignment]


def in_int8(x: Tensor, weight: PackedWeight) -> Tensor:
    """x (n, in) times an int8 weight: (n, out)."""
    return torch.ops.quantized.linear_dynamic(x, weight, False)


def _to_int8(weight: Tensor) -> Any:
    return _pack_int8(weight, largest_int8())


@cache
def largest_int8() -> int:
    """The largest weight that this processor's int8 products allow: 127, or 63 without VNNI.

    Without VNNI two products of 8 bits are added in 16 bits, which 2 * 255 * 127 overflows.
    """
    ones = torch.ones(64, 64)
    product = torch.ops.quantized.linear_dynamic(ones[:1], _pack_int8(ones, 127), False)
    return 127 if torch.allclose(product, ones @ ones[0], rtol=0.05) else 63


def _pack_int8(weight: Tensor, largest: int) -> Any:
    rows = weight.contiguous()
    # Minimum and maximum, since abs() would copy a whole head.
    scales = torch.maximum(rows.amax(1), -rows.amin(1)).clamp_min(1e-12).double() / largest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The tensors are deprecated; the kernels that read them are not.
        zeros = torch.zeros(len(rows), dtype=torch.long)
        return torch.ops.quantized.linear_prepack(torch.quantize_per_channel(rows, scales, zeros, 0, torch.qint8), None)


# --- Measuring --------------------------------------------------------------------------------------------------


def _measured(weights: list[Tensor]) -> list[Tensor]:
    """The layers to time."""
    return weights[: max(1, _MEASURED_BYTES // max(1, weights[0].nbytes))]


def _each(product: Callable[[Tensor, Any], Tensor], x: Tensor, weights: Sequence[Any]) -> None:
    for weight in weights:
        product(x, weight)


@torch.inference_mode()
def _beats(ours: Callable[[], object], usual: Callable[[], object]) -> bool:
    """Whether our shortest time is clearly below the usual one, on all cores.

    Over alternating rounds, so that load affects both.
    """
    our_times: list[float] = []
    usual_times: list[float] = []
    with threads(num_processors()):
        begin = time.perf_counter()
        for repeat in range(_REPEATS):
            if repeat >= _FEWEST_REPEATS and time.perf_counter() - begin > _ENOUGH_S:
                break
            for candidate, taken in ((ours, our_times), (usual, usual_times)):
                candidate()  # Wakes the threads, which would cost more than the difference to measure.
                start = time.perf_counter()
                candidate()
                taken.append(time.perf_counter() - start)
    return min(our_times) < _GAIN * min(usual_times)


def _shape(weights: list[Tensor]) -> str:
    rows, columns = weights[0].shape
    return f"{len(_measured(weights))} of {rows}x{columns} {str(weights[0].dtype).removeprefix('torch.')}"


_choices: dict[str, int] = {}


def _remembered(key: str, measure: Callable[[], int]) -> int:
    """A choice measured once on this machine: later starts cost nothing, and the same seed gives the same text.

    What is measured while other programs compute holds for this process alone.
    """
    machine = f"{device_name(torch.device('cpu'))}, {num_processors()} cores, torch {torch.__version__}"
    if not _choices:
        _choices.update(_read_choices().get(machine, {}))
    if key not in _choices:
        others = OtherPrograms()
        _choices[key] = measure()
        if others.disturb:
            _log.debug("%s was measured while other programs computed, and is not kept", key)
            return _choices[key]
        with contextlib.suppress(OutriderError, OSError):
            _choices_path().parent.mkdir(parents=True, exist_ok=True)
            # Machines may share a home, and another process may have measured meanwhile.
            kept = _read_choices()
            kept[machine] = kept.get(machine, {}) | {key: _choices[key]}
            write_atomically(_choices_path(), json.dumps(kept, indent=1))
    return _choices[key]


def _read_choices() -> dict[str, dict[str, int]]:
    """By machine."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {
            machine: {key: value for key, value in found.items() if isinstance(value, int)}
            for machine, found in json.loads(_choices_path().read_text("utf-8")).items()
        }
    return {}


def _choices_path() -> Path:
    return platformdirs.user_cache_path("outrider", appauthor=False) / "kernels.json"
