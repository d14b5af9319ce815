"""The losses of a moment inside an epoch, some of which are still on the device."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from gapless.nmt.run.folder import LossLog
    from gapless.nmt.run.position import Position
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.losses.deferred_loss import DeferredLoss
    from gapless.records.epoch_record import EpochRecord


class LateHistory:
    """Position of a run inside an epoch, and what its metrics file holds by then.

    Made right after the update at which the state is saved; it is done when the losses of all its
    batches have been read and logged.

    Args:
        position: where this process's part of the epoch began; a copy that nobody else changes.
        record: times and waits of that part so far.
        losses: of the loop.
        first: number in `losses` of the part's first batch.
        num_batches: done in the part.
        num_updates: done in the part.
        log: writes the losses to the metrics file.
        needs_finite: whether a loss that is NaN or infinite stops the run.
        peak_memory_bytes: most memory in use so far.

    Sync: Does not block the host; new losses are sent to it.
    """

    def __init__(
        self,
        position: Position,
        *,
        record: EpochRecord,
        losses: DeferredLoss,
        first: int,
        num_batches: int,
        num_updates: int,
        log: LossLog,
        needs_finite: bool,
        peak_memory_bytes: int,
    ) -> None:
        self._position = position
        self._record = record
        self._losses = losses
        self._first = first
        self._num_batches = num_batches
        self._num_updates = num_updates
        self._log = log
        self._needs_finite = needs_finite
        self._peak_memory_bytes = peak_memory_bytes
        self._batch = position.batches_before + num_batches
        losses.flush()
        log.mark(self._batch)

    def is_done(self) -> bool:
        """Return whether all losses are read and logged.

        Sync: Does not block the host.
        """
        return self._log.content_at(self._batch) is not None

    def wait(self, host_waits: HostWaits, *, reason: str) -> None:
        """Wait until they are.

        Sync: Blocks the host until the last of them is computed and copied.
        """
        del host_waits  # the losses have an account of their own
        self._losses.wait_for_flushed(reason=reason)
        self._log.write_new()

    def is_spoiled(self) -> bool:
        """Return whether the run stops by one of the losses, so that nobody should resume from here."""
        return self._needs_finite and not all(math.isfinite(loss) for loss, _ in self._read())

    def _read(self) -> list[tuple[float, float]]:
        return self._losses.read_since(self._first)[: self._num_batches]

    def value(self) -> dict[str, Any]:
        """Return the parts of the state that had to be waited for."""
        read = self._read()
        weights = [weight for _, weight in read]
        record = replace(
            self._record,
            num_batches=len(read),
            losses=[loss for loss, _ in read],
            weight=sum(weights),
        )
        self._position.add(
            record,
            updates=self._num_updates,
            weights=weights,
            peak_memory_bytes=self._peak_memory_bytes,
        )
        content = self._log.content_at(self._batch)
        assert content is not None
        return {"position": self._position.state(), "metrics": asdict(content)}
