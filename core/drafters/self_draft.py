"""Drafting with the target itself, in int8: any target is sped up with no second model.

Its quantised copy is a quarter of the bytes, and so nearly the same model that most of what it proposes is accepted.
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
    """Samples K tokens in a row from the target's int8 copy, which has a cache of its own.

    Where int8 products are not faster, as with very small models, the plain ones are used.

    Raises:
        SettingsError: there are no int8 products for this target here.
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
                f"Self-draft runs in int8 beside float32 on the CPU, and {target.ref} is on {target.device} in "
                f"{str(target.dtype).removeprefix('torch.')}. Choose these, or another method."
            )
        super().__init__(target, DraftModelOptions(int8=True), capacity=capacity, check_cancelled=check_cancelled)
