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

    If int8 products are not faster, as with very small models, the plain ones are used.

    Raises:
        SettingsError: int8 products are not available for this target here.
    """

    def __init__(self, setup: DrafterSetup, _options: NoOptions | None = None) -> None:
        target = setup.target
        if target.device.type != "cpu" or target.dtype is not torch.float32:
            raise SettingsError(
                f"Self-draft runs in int8 with a float32 target on the CPU, but {target.ref} is on {target.device} in "
                f"{str(target.dtype).removeprefix('torch.')}. Choose the CPU and float32, or another method."
            )
        super().__init__(replace(setup, draft=target), DraftModelOptions(int8=True))
