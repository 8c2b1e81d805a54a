"""Memory for distributions that wait to be looked at, taken once and used round and round."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

_ALIGNED = 16
"""Numbers in a line of the caches: each copy begins with a line of its own."""


class DistributionRing:
    """Copies of tensors in one piece of memory, given back in the order in which they were made.

    Each copy in memory of its own would have the system hand out pages at every step, ten of them with the embedded
    pair, and leave the heap in pieces behind the run: 20 MB more after a window's runs, against 5. So all of it is
    taken, and written to, before the first step. Steps take the same time either way.
    """

    def __init__(self, num_bytes: int) -> None:
        """
        Args:
            num_bytes: how much there is to be; where the system doesn't give that, there is none, and each copy is made
                in new memory.
        """
        try:
            self._memory = torch.empty(num_bytes // torch.float32.itemsize)
            self._memory.zero_()
        except RuntimeError:
            self._memory = torch.empty(0)
        self._first = 0  # The oldest copy's place; where there is none, the next one's.
        self._next = 0
        self._spans: deque[tuple[int, int] | None] = deque()
        self._held = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy: in the ring if it has room, which it has for float32 of the CPU alone; else in new memory."""
        start = self._place_for(tensor)
        if start is None:
            self._spans.append(None)
            return tensor.clone()
        self._next = start + _lines(tensor.numel())
        self._spans.append((start, self._next))
        self._held += 1
        return self._memory[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)

    def give_back(self) -> None:
        """Have the oldest copy's memory used again; nobody may look at that copy any more.

        Raises:
            IndexError: there is none.
        """
        span = self._spans.popleft()
        if span is None:
            return
        self._held -= 1
        self._first = span[1]
        if self._held == 0:
            self._first = self._next = 0

    def _place_for(self, tensor: Tensor) -> int | None:
        if tensor.device.type != "cpu" or tensor.dtype is not torch.float32 or not tensor.numel():
            return None
        size, end = _lines(tensor.numel()), self._memory.numel()
        if self._held and self._next <= self._first:
            # It has come round: what is free lies between the newest and the oldest.
            return self._next if self._next + size <= self._first else None
        if self._next + size <= end:
            return self._next
        return 0 if self._held and size <= self._first else None


def _lines(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED
