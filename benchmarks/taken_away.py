"""Take one thing away that makes a step cheaper, to see what it is worth.

For the process of one row, which patches and is gone: what is taken away has no setting, since
nobody would train without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gapless.nmt.model import attention
from gapless.nmt.model.loss import LabelSmoothing


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def chunked_loss() -> None:
    """Make logits of all tokens at once, and torch's own loss of them, in float32."""

    def of_all_logits(
        self: LabelSmoothing, hidden: torch.Tensor, output_layer: nn.Linear, targets: torch.Tensor
    ) -> torch.Tensor:
        loss: torch.Tensor = self(output_layer(hidden), targets)
        return loss

    LabelSmoothing.of_hidden = of_all_logits  # type: ignore[method-assign]


def fused_optimizer() -> None:
    """Step with torch's default: a kernel for each operation of the formula."""
    fused = torch.optim.AdamW

    def default(*arguments: Any, **settings: Any) -> torch.optim.AdamW:
        return fused(*arguments, **{**settings, "fused": None})

    torch.optim.AdamW = default  # type: ignore[assignment, misc]


def packed_attention() -> None:
    """Attend in a padded row for each sentence, under a mask."""
    attention._is_for_kernel = lambda *about: False


TAKE_AWAY: dict[str, Callable[[], None]] = {
    "chunked loss": chunked_loss,
    "fused optimizer": fused_optimizer,
    "packed attention": packed_attention,
}
