"""What a run does when a loss is NaN or infinite: it stops, or it skips that update."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from gapless.errors import NonFiniteLossError


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.device.base import Device
    from gapless.ranks import Ranks


class SkippedUpdates:
    """Decides on the device which updates to skip, and counts them there.

    A fused optimizer leaves weights and state as they are where its `found_inf` is 1.

    Args:
        device: of the losses.

    Attributes:
        found: 1 once a loss or a gradient of the update under way was not finite, before that 0; on
            the device, always at the same address.
        count: updates skipped so far, on the device.
    """

    def __init__(self, device: Device) -> None:
        self._numbers = device.device_buffer(8).view(torch.float32).zero_()
        self.found, self.count = self._numbers.unbind()

    @torch.no_grad()
    def look_at(self, number: torch.Tensor) -> None:
        """Take in a loss or the length of a gradient.

        Sync: Does not block the host.
        """
        self.found.add_(number.detach().isfinite().logical_not()).clamp_(max=1.0)

    @torch.no_grad()
    def of_all(self, ranks: Ranks) -> None:
        """Take in what other ranks found: all skip the same updates.

        Sync: Does not block the host.
        """
        if ranks.world > 1:
            self.found.copy_(ranks.gather_rows(self.found.view(1)).amax())

    def end_update(self) -> None:
        """Count the update if it was skipped, and begin the next.

        Sync: Does not block the host.
        """
        self.count.add_(self.found)
        self.found.zero_()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Forget what the body skips: a trial, whose updates are undone.

        Sync: Does not block the host.
        """
        kept = self._numbers.clone()
        try:
            yield
        finally:
            self._numbers.copy_(kept)


class LossWatch:
    """Looks at losses for those that are not finite.

    Args:
        first_batch: number of the next batch, counted from 0 over the whole run.
        first_update: number of the update that begins with it, counted from 1.
        update_of: tells to which update a batch belongs, both counted from 0 and from `first_batch`.
        on_skipped: called with the number of each update that is skipped, and the first loss at
            fault; None: the run stops instead.

    Attributes:
        error: for which the run has to stop; None: there is none so far.
    """

    def __init__(
        self,
        *,
        first_batch: int,
        first_update: int,
        update_of: Callable[[int], int],
        on_skipped: Callable[[int, float], None] | None,
    ) -> None:
        self._first_batch = first_batch
        self._first_update = first_update
        self._update_of = update_of
        self._on_skipped = on_skipped
        self._last_skipped = 0
        self.error: NonFiniteLossError | None = None

    def look_at(self, batch: int, loss: float) -> None:
        """Look at the loss of a batch, counted from 0 over the whole run; each comes once, in order."""
        if math.isfinite(loss):
            return
        update = self._first_update + self._update_of(batch - self._first_batch)
        if self._on_skipped is None:
            if self.error is None:
                place = f"update {update} (batch {batch})"
                self.error = NonFiniteLossError(batch, loss, place=place)
        elif update != self._last_skipped:
            self._last_skipped = update
            self._on_skipped(update, loss)

    def check(self) -> None:
        """Stop the run if it has to.

        Raises:
            NonFiniteLossError: a loss is NaN or infinite, and the run does not skip such updates.
        """
        if self.error is not None:
            raise self.error
