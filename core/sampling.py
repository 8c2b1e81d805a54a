"""Turns logits into probabilities and draws tokens. Draft, target and the plain baseline share these functions."""

from __future__ import annotations

import torch
from torch import Tensor

from core.runners.timing import is_asynchronous, sent
from core.settings import SamplingParams

_LEAST_TEMPERATURE = 1e-30
"""The smallest divisor: anything colder is bit-for-bit greedy."""

_WORD_BITS, _HALF_BITS, _SHARE_BITS = 48, 24, 37
"""Bits of a draw, of its halves, and of a weight, for integer draws: 37 + 24 stay below 63."""

_HOST = torch.device("cpu")

_COLD = 1e-6
"""Dividing a logit by a temperature above this can't overflow."""


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution that tokens are drawn from.

    Filters apply in the order of transformers' sampler: temperature, top-k, top-p, min-p. As there, tokens that tie
    with the k-th stay, and the most probable token always does. At temperature 0 the result is a one-hot of the
    argmax (the lowest id where several tie), whatever the filters.

    Args:
        logits: (..., V), any floating dtype; -inf marks ids that can't be drawn.
        params: temperature and filters.

    Returns:
        (..., V) float32, each row summing to 1. A row whose logits hold NaN, or nothing finite, comes out as NaN.
    """
    logits = logits.float()
    if is_plain(params) or params.is_greedy:
        return unfiltered_probabilities(logits, params.temperature)
    scaled = logits
    if params.temperature < _COLD:
        # Subtract the maximum first, so that the quotient can't overflow.
        scaled = (logits - logits.amax(-1, keepdim=True)) / max(params.temperature, _LEAST_TEMPERATURE)
    elif params.temperature != 1.0:
        scaled = logits / params.temperature
    vocab_size = scaled.shape[-1]
    if 0 < params.top_k < vocab_size:
        kth = torch.topk(scaled, params.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    if params.top_p < 1.0:
        scaled = _keep_nucleus(scaled, params)
    probs = torch.softmax(scaled, dim=-1)
    if params.min_p > 0.0:
        floor = params.min_p * probs.amax(-1, keepdim=True)
        probs = probs.masked_fill(probs < floor, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def is_plain(params: SamplingParams) -> bool:
    """Whether `unfiltered_probabilities` returns the same as `probabilities`."""
    return params.is_unfiltered and (params.is_greedy or params.temperature >= _COLD)


def unfiltered_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """`probabilities` without filters, in the subset of Python that TorchScript compiles.

    Args:
        logits: (..., V) float32.
        temperature: 0, or high enough that the quotient can't overflow.
    """
    if temperature == 0.0:
        return one_hot(logits, logits.argmax(-1, keepdim=True))
    if temperature != 1.0:
        logits = logits / temperature
    return torch.softmax(logits, -1)


def one_hot(logits: Tensor, best: Tensor) -> Tensor:
    """The greedy distribution (..., V) of logits whose argmax is best (..., 1). TorchScript compiles it."""
    # argmax finds a NaN first, and 0 times a non-finite value is NaN, which makes the whole row NaN.
    zero = logits.gather(-1, best).mul_(0.0)
    return zero.expand(logits.shape).clone().scatter_(-1, best, zero + 1.0)


def _keep_nucleus(scaled: Tensor, params: SamplingParams) -> Tensor:
    """Mask all but the smallest set of most probable tokens that holds at least `top_p` of the mass."""
    vocab_size = scaled.shape[-1]
    # Among tied tokens at the edge the lowest ids stay, so a row's result does not depend on other rows.
    if 0 < params.top_k < vocab_size and not is_asynchronous(scaled.device):
        # After top-k only those entries, and ties with the k-th, can be in the nucleus. Their number is read here.
        width = int(torch.isfinite(scaled).sum(-1).max().clamp(1, vocab_size))
        ids = torch.topk(scaled, width, dim=-1).indices.sort(-1).values
        ordered, order = scaled.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(-1, order)
    else:
        ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    mass = torch.softmax(ordered, dim=-1)
    before = mass.cumsum(-1) - mass
    outside = before >= params.top_p
    outside[..., :1] = False  # A single element is written by a copy, for which a GPU's host waits.
    ordered = ordered.masked_fill(outside, -torch.inf)
    return torch.full_like(scaled, -torch.inf).scatter_(-1, ids, ordered)


def draw_uniforms(count: int, generator: torch.Generator) -> Tensor:
    """(count,) float64 draws in [0, 1), on the CPU."""
    dtype = torch.float32 if generator.device.type == "mps" else torch.float64
    return torch.rand(count, generator=generator, dtype=dtype, device=generator.device).cpu().double()


def has_double(device: torch.device) -> bool:
    """Whether a device supports float64; Apple's GPUs don't."""
    return device.type != "mps"


def for_device(uniforms: Tensor, device: torch.device) -> Tensor:
    """Draws in [0, 1) as float64, or int64 multiples of 2^-48 for a device without it; they stay where they are."""
    if not uniforms.is_floating_point():
        return uniforms
    uniforms = uniforms.double()
    return uniforms if has_double(device) else (uniforms * 2.0**_WORD_BITS).long()


def fractions(uniforms: Tensor) -> Tensor:
    """What `for_device` returns, as numbers in [0, 1); from int64 the top 24 bits, which float32 holds exactly."""
    return uniforms if uniforms.is_floating_point() else (uniforms >> _HALF_BITS).float() * 2.0**-_HALF_BITS


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-CDF draw from one distribution, without reading any value on the host.

    Args:
        probs: (V,) non-negative weights with a positive sum; they need not be normalised.
        uniform: () in [0, 1), or what `for_device` returns; on any device.

    Returns:
        () int64 on the device of `probs`, an id whose weight is positive.
    """
    uniform = for_device(uniform, probs.device).to(probs.device)
    return draw_in_double(probs, uniform) if uniform.is_floating_point() else draw_in_integers(probs, uniform)


def draw_in_integers(probs: Tensor, uniform: Tensor) -> Tensor:
    """`draw` on a device without float64, whose float32 would lose the unlikely ids of a large vocabulary.

    Weights are multiples of 2^-37 of their sum, so that they add up without rounding; less than half of one is never
    drawn. uniform: () int64, in units of 2^-48.
    """
    # Normalised first, since a residual's sum may be tiny.
    cdf = (probs / probs.sum() * 2.0**_SHARE_BITS).round().long().cumsum(-1)
    total, high, low = cdf[-1], uniform >> _HALF_BITS, uniform & ((1 << _HALF_BITS) - 1)
    # total * uniform / 2^48 in halves, since the product exceeds 64 bits.
    point = (total * high + ((total * low) >> _HALF_BITS)) >> _HALF_BITS
    # The first entry above the point: an id of weight 0 can't be found. The clamp is for NaN.
    return (cdf <= point).sum().clamp_(max=probs.size(-1) - 1)


def draw_in_double(probs: Tensor, uniform: Tensor) -> Tensor:
    """`draw` on a device that has float64; uniform: () float64 there. TorchScript compiles it."""
    cdf = probs.cumsum(-1, dtype=torch.float64)
    total = cdf[-1]
    # right=True finds the first entry above the point, so an id of weight 0 can't be found; rounding must not lift the
    # point to the total. The clamp is for NaN, which is reported later.
    point = torch.minimum(uniform * total, total * (1.0 - 2.0**-52))
    return torch.searchsorted(cdf, point, right=True).clamp_(max=probs.size(-1) - 1)


def gumbel_noise(seed: int, position: int, vocab_size: int, device: torch.device = _HOST) -> Tensor:
    """Standard Gumbel noise for one position: an integer hash of (seed, position, id), the same on every device.

    Args:
        seed: the run's seed.
        position: absolute position in the text of the token to be drawn.
        vocab_size: V.
        device: of the result.

    Returns:
        (V,) float32.
    """
    place = device if has_double(device) else _HOST
    key = _signed(mixed(mixed(seed) + position))
    bits = torch.arange(vocab_size, device=place).mul_(_signed(_STRIDE)).add_(key)
    for shift, factor in _ROUNDS:
        bits = bits.bitwise_xor_(_shifted(bits, shift)).mul_(_signed(factor))
    bits = bits.bitwise_xor_(_shifted(bits, _LAST_SHIFT))
    # The top 52 bits and a half, so that neither 0 nor 1 occurs, whose noise would be infinite.
    uniforms = _shifted(bits, 12).double().add_(0.5).mul_(2.0**-52)
    return sent(uniforms.log_().neg_().log_().neg_().float(), device)


_STRIDE, _ROUNDS, _LAST_SHIFT = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)), 31
"""The constants of SplitMix64 (Steele, Lea and Flood, 2014)."""


def mixed(value: int) -> int:
    """A 64-bit hash of an integer, by SplitMix64; neighbouring integers get unrelated hashes."""
    bits = (value + _STRIDE) % 2**64
    for shift, factor in _ROUNDS:
        bits = (bits ^ bits >> shift) * factor % 2**64
    return bits ^ bits >> _LAST_SHIFT


def _shifted(bits: Tensor, count: int) -> Tensor:
    """int64 shifted right without its sign."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)


def _signed(bits: int) -> int:
    """64 bits as the int64 that torch has them in."""
    return bits - 2**64 if bits >= 2**63 else bits


def seeded_generator(seed: int) -> torch.Generator:
    """A generator on the CPU. It takes 32 bits, so longer seeds are hashed, or those of equal low bits would agree."""
    return torch.Generator().manual_seed(seed if 0 <= seed < 2**32 else mixed(seed) >> 32)


def draw_gumbel(probs: Tensor, noise: Tensor) -> Tensor:
    """Gumbel-max draw: argmax of log-probability plus noise is distributed as `probs` (Gumbel, 1954).

    Args:
        probs: (V,).
        noise: (V,) standard Gumbel noise.

    Returns:
        () int64; an id of probability 0 is never drawn.
    """
    return (probs.log() + noise.to(probs.device)).argmax(-1)
