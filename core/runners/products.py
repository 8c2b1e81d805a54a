"""Matrix products of a few rows on the CPU, by the kernel that is fastest for each shape: chosen by measurement.

A product of a few rows costs as much as reading its weights. From two to four rows on, common libraries read them
several times or repack them each time; a batched product over blocks of the weights does neither. int8 weights have a
quarter of the bytes, but the rows must be quantised too, which isn't worthwhile for small products.
"""

# No postponed annotations here: TorchScript can't resolve those of a NamedTuple from another module.
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import takewhile
from typing import Any, List, NamedTuple, Optional, Union  # noqa: UP035 - TorchScript accepts no other form

import torch
from torch import Tensor
from torch.nn import functional

from core.runners.threads import num_processors

_log = logging.getLogger(__name__)

try:
    PackedWeight: Any = torch.classes.quantized.LinearPackedParamsBase
except (RuntimeError, AttributeError):  # This torch lacks the kernels: nothing is ever packed.
    PackedWeight = Any

_NO_KERNEL = (RuntimeError, AttributeError, NotImplementedError)

MOST_BLOCKED = 16
"""With more rows no product is computed in blocks."""

_ROWS = 5
_FEWEST_BLOCKED = 4
_FEWER_BLOCKED = (2, 1)
"""Row counts for which blocks pay only on some processors: measured in this order, up to the first failure."""
_BLOCKS = (64, 32)
_REPEATS, _FEWEST_REPEATS, _ENOUGH_S = 9, 4, 0.2
_CACHE_BYTES, _MOST_COPIES = 32 << 20, 8
_GAIN = 0.9
"""A replacement must take at most this share of the plain kernel's time, so that noise doesn't decide."""


class Blocks(NamedTuple):
    """How a weight's products are computed in blocks: outputs per block (0: none), and the least number of rows."""

    size: int
    fewest: int


NO_BLOCKS = Blocks(0, 0)
_blocks: dict[tuple[int, int, torch.dtype], Blocks] = {}


class Product(NamedTuple):
    """The weights of the layers' products of one kind, for TorchScript.

    Attributes:
        weights: (out, in), one per layer; empty if the packed ones replace them.
        int8: copies of them, for `torch.ops.quantized.linear_dynamic`; empty if unused.
        packed: the weights in oneDNN's layout; empty if unused.
        blocks: how products are computed in blocks.
    """

    weights: list[Tensor]
    int8: list[PackedWeight]
    packed: list[Tensor]
    blocks: Blocks


def blocks_of(weight: Tensor) -> Blocks:
    """The fastest blocks for products of a weight (out, in)."""
    if weight.device.type != "cpu" or not weight.is_contiguous():
        return NO_BLOCKS
    key = (*weight.shape, weight.dtype)
    if key not in _blocks:
        _blocks[key] = _best_blocks(weight)
    return _blocks[key]


def _best_blocks(weight: Tensor) -> Blocks:
    outputs, inputs = weight.shape
    # Several copies, so that they are read from memory, like a model's layers, and not from a cache.
    number = max(1, min(_MOST_COPIES, _CACHE_BYTES // max(1, weight.nbytes)))
    copies = [weight.clone() for _ in range(number)] if number > 1 else [weight]

    def candidates(num_rows: int, sizes: Sequence[int]) -> list[Callable[[], None]]:
        x = torch.ones(num_rows, inputs, dtype=weight.dtype)
        products = [functional.linear, *(partial(in_blocks, size=size) for size in sizes)]
        return [partial(_each, product, x, copies) for product in products]

    def is_faster(num_rows: int, size: int) -> bool:
        plain, blocked = fastest_times(candidates(num_rows, [size]), num_threads=num_processors())
        return blocked < _GAIN * plain

    sizes = [size for size in _BLOCKS if outputs % size == 0]
    if not sizes:
        return NO_BLOCKS
    plain, *blocked = fastest_times(candidates(_ROWS, sizes))
    best = min(blocked)
    size = sizes[blocked.index(best)]
    if best >= _GAIN * plain and not is_faster(_ROWS, size):
        return NO_BLOCKS
    fewer = takewhile(lambda num_rows: is_faster(num_rows, size), _FEWER_BLOCKED)
    return Blocks(size, min(fewer, default=_FEWEST_BLOCKED))


def _each(product: Any, x: Tensor, weights: list[Tensor]) -> None:
    for weight in weights:
        product(x, weight)


def in_blocks(x: Tensor, weight: Tensor, size: int) -> Tensor:
    """x (n, in) times a weight (out, in), with one product per block of `size` outputs: (n, out)."""
    outputs, inputs = weight.shape
    blocks = weight.view(outputs // size, size, inputs).transpose(1, 2)
    mixed = torch.bmm(x.unsqueeze(0).expand(outputs // size, x.size(0), inputs), blocks)
    return mixed.transpose(0, 1).reshape(x.size(0), outputs)


def head_product(weight: Tensor) -> Product:
    """An output head's product with its weight (V, in), which is kept because some of its rows may be needed."""
    is_packed = is_faster_packed(weight)
    return Product([weight], [], [pack(weight)] if is_packed else [], NO_BLOCKS if is_packed else blocks_of(weight))


def quantised(product: Product) -> Product:
    """The same with int8 copies, if these are faster for one row.

    Each output has its own scale; the incoming rows are quantised on the fly, all with one scale.
    """
    first = product.weights[0] if product.weights else None
    if first is None or first.device.type != "cpu" or first.dtype is not torch.float32:
        return product
    try:
        trial = _to_int8(first)
        row = torch.ones(1, first.shape[1])
        plain, small = fastest_times(
            [lambda: functional.linear(row, first), lambda: torch.ops.quantized.linear_dynamic(row, trial, False)]
        )
        if small >= _GAIN * plain:
            return product
        return product._replace(int8=[_to_int8(weight) for weight in product.weights])
    except _NO_KERNEL:
        _log.debug("no int8 products here", exc_info=True)
        return product


def in_full(product: Product) -> Product:
    """The same in the weights' own precision, without blocks."""
    return product._replace(int8=[], blocks=NO_BLOCKS)


def is_faster_packed(weight: Tensor) -> bool:
    """Whether a bfloat16 weight's product of one row is faster in oneDNN's layout for matrix units."""
    if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16:
        return False
    try:
        trial = pack(weight)
        row = torch.ones(1, weight.shape[1], dtype=weight.dtype)
        plain, packed = fastest_times([lambda: functional.linear(row, weight), lambda: in_packed(row, trial)])
    except _NO_KERNEL:
        _log.debug("no packed products here", exc_info=True)
        return False
    return packed < _GAIN * plain


def pack(weight: Tensor) -> Tensor:
    """A weight (out, in) in oneDNN's layout, for `in_packed`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), MOST_BLOCKED)


def in_packed(x: Tensor, weight: Tensor) -> Tensor:
    """x (n, in) times a packed weight: (n, out)."""
    none = torch.jit.annotate(List[Optional[Union[int, float, complex]]], [])  # noqa: UP006, UP007, UP045
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", none, "")


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


@torch.inference_mode()
def fastest_times(candidates: Sequence[Callable[[], object]], *, num_threads: int = 1) -> list[float]:
    """The shortest time of each in seconds over alternating rounds, so that other load affects all equally."""
    times: list[list[float]] = [[] for _ in candidates]
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for candidate in candidates:
            candidate()
        begin = time.perf_counter()
        for repeat in range(_REPEATS):
            if repeat >= _FEWEST_REPEATS and time.perf_counter() - begin > _ENOUGH_S:
                break
            for candidate, taken in zip(candidates, times, strict=True):
                if num_threads > 1:
                    candidate()  # Wakes the threads, which would cost more than the difference to measure.
                start = time.perf_counter()
                candidate()
                taken.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return [min(taken) for taken in times]
