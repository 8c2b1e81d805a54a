"""How the engine's threads wait. To be settled before torch is imported, because OpenMP reads it once."""

from __future__ import annotations

import os
import sys

_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_passively() -> bool:
    """Ask OpenMP's threads to sleep, rather than spin, while they wait for each other.

    Spinning is faster on a quiet machine, but with one other busy thread, such as the window's, every forward then
    waits for a thread that is itself spinning, and decoding falls by an order of magnitude. A choice that the user
    made in the environment stays.

    Returns:
        Whether the setting was made; False where the user has chosen, or where torch is already here.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _CHOICES):
        return False
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return True
