"""Write the losses of a run as they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import NonFiniteLossError


if TYPE_CHECKING:
    from gapless.nmt.run.run_folder import RunFolder
    from gapless.pipeline.readback import DeferredLoss


class LossLog:
    """Writes the losses that have been read, each once, in order.

    Args:
        folder: of the run.
        losses: of all its batches.
        first_batch: number in the run of the next batch.

    Raises:
        NonFiniteLossError: a loss is NaN or infinite; it and those before it are written.
    """

    def __init__(self, folder: RunFolder, losses: DeferredLoss, *, first_batch: int) -> None:
        self._folder = folder
        self._losses = losses
        self._next = losses.num_added
        self._offset = first_batch - losses.num_added

    def write_new(self) -> None:
        """Write the losses that were read since the last call.

        Sync: Does not block the host.
        """
        history, weights = self._losses.history, self._losses.weights
        if self._next == len(history):
            return
        for number in range(self._next, len(history)):
            self._folder.log(
                "train",
                step=number + self._offset,
                loss=history[number],
                tokens=weights[number],
            )
        self._next = len(history)
        self._folder.flush()
        if self._losses.first_nonfinite is not None:
            number, loss = self._losses.first_nonfinite
            raise NonFiniteLossError(number + self._offset, loss)
