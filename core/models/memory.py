"""How much memory models will need, told before any of it is taken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """What one or two models need on a device, in bytes.

    Attributes:
        weights_bytes: the models' weights.
        cache_bytes: their key-value caches, filled to the context.
        working_bytes: activations of the widest forward, masks, logits and probabilities.
        available_bytes: what the device has left; None if it does not say.
    """

    weights_bytes: int
    cache_bytes: int
    working_bytes: int
    available_bytes: int | None

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.working_bytes

    @property
    def fits(self) -> bool | None:
        """Whether all of it fits; None if the device does not say what it has."""
        return None if self.available_bytes is None else self.total_bytes <= self.available_bytes
