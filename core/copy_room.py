"""Memory for distributions that wait to be looked at, taken once for a run."""

from __future__ import annotations

import torch
from torch import Tensor


class CopyRoom:
    """Copies of tensors in one piece of memory, which is used from its front again when all are given back.

    Each copy in memory of its own would have the system hand out pages at every step, ten of them with the embedded
    pair, and leave 15 MB more of the heap behind a window's runs. Steps take the same time either way.
    """

    def __init__(self, num_bytes: int) -> None:
        """
        Args:
            num_bytes: how much there is to be; where the system doesn't give that, there is none, and each copy is made
                in new memory.
        """
        try:
            self._memory = torch.empty(num_bytes // torch.float32.itemsize)
            self._memory.zero_()  # Its pages are handed out now.
        except RuntimeError:
            self._memory = torch.empty(0)
        self._next = 0
        self._held = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy: in this memory if it has room, which it has for float32 of the CPU alone; else in new memory."""
        self._held += 1
        start, end = self._next, self._next + tensor.numel()
        if tensor.device.type != "cpu" or tensor.dtype is not torch.float32 or end > self._memory.numel():
            return tensor.clone()
        self._next = end
        return self._memory[start:end].view(tensor.shape).copy_(tensor)

    def give_back(self) -> None:
        """A copy, any of them, is not looked at any more."""
        self._held -= 1
        if self._held == 0:
            self._next = 0
