"""Drafting with the target itself, in int8: needs no second model.

The quantised copy has a quarter of the bytes, and is so similar that most of its proposals are accepted.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from core.drafters.base import DrafterSetup
from core.drafters.draft_model import DraftModelDrafter
from core.drafters.registry import DraftModelOptions, NoOptions
from core.errors import SettingsError


class SelfDraftDrafter(DraftModelDrafter):
    """Samples K tokens in a row from the target's int8 copy, which has its own cache.

    Raises:
        SettingsError: int8 products are not available for this target here, or not faster.
    """

    def __init__(self, setup: DrafterSetup, _options: NoOptions | None = None) -> None:
        target = setup.target
        if target.device.type != "cpu" or target.dtype is not torch.float32:
            raise SettingsError(
                f"Self-draft runs in int8 with a float32 target on the CPU, but {target.ref} is on {target.device} in "
                f"{str(target.dtype).removeprefix('torch.')}. Choose these, or another method."
            )
        super().__init__(replace(setup, draft=target), DraftModelOptions(int8=True))
        if not target.drafts_in_int8:
            raise SettingsError(
                f"For {target.ref} on this processor, int8 is not faster than float32, so self-draft would only slow "
                "decoding down. Choose another method."
            )
