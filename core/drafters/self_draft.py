"""Drafting with the target itself, in int8: needs no second model.

The quantised copy has a quarter of the bytes, and is so similar that most of its proposals are accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from core.drafters.draft_model import DraftModelDrafter
from core.drafters.registry import DraftModelOptions, NoOptions
from core.errors import SettingsError

if TYPE_CHECKING:
    from core.models.language_model import LanguageModel


class SelfDraftDrafter(DraftModelDrafter):
    """Samples K tokens in a row from the target's int8 copy, which has its own cache.

    If int8 products are not faster, as with very small models, the plain ones are used.

    Raises:
        SettingsError: int8 products are not available for this target here.
    """

    def __init__(
        self,
        target: LanguageModel,
        options: NoOptions | None = None,
        *,
        capacity: int | None = None,
        check_cancelled: Callable[[], None] = lambda: None,
    ) -> None:
        if target.device.type != "cpu" or target.dtype is not torch.float32:
            raise SettingsError(
                f"Self-draft runs in int8 with a float32 target on the CPU, but {target.ref} is on {target.device} in "
                f"{str(target.dtype).removeprefix('torch.')}. Choose these, or another method."
            )
        super().__init__(target, DraftModelOptions(int8=True), capacity=capacity, check_cancelled=check_cancelled)
