"""What a watched run of a step showed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch

    from gapless.device.base import Device
    from gapless.graphs.reads.batch_reads import BatchRead
    from gapless.graphs.reads.host_run import KeptPath
    from gapless.graphs.reads.touched import TouchWatch


@dataclass(slots=True)
class Watched:
    """What the last run as written of a kind showed.

    Attributes:
        kept: places that keep tensors from call to call.
        host_reads: file:line of every read of a value of the device.
        batch_reads: of values that are computed from the batch, in order.
        other_reads: file:line of the other reads, but for those of updates.
        touched: tensors of the device that the step used and that were there before; None if
            that is not known, as with compiled code.
        touched_eagerly: whether `touched` is of an eager run of code that is compiled.
        known: addresses of gradients and of the batch in that run, which are others in each.
        batch: where each tensor of the batch lay in that run: the addresses of its parts' bytes.
        unused: ids of weights whose gradients were there before that run, which did not use them.
        num_audits: of the graph of that kind, so far.
    """

    kept: list[KeptPath]
    host_reads: list[str]
    batch_reads: list[BatchRead]
    other_reads: list[str]
    touched: TouchWatch | None
    ran_backward: bool
    known: set[int]
    batch: list[list[tuple[int, int]]]
    unused: set[int]
    num_audits: int = 0
    touched_eagerly: bool = False

    def is_seen_in_audit(self) -> bool:
        """Count an audit; return whether it sees what its run as written writes, as the first and every second do.

        That takes as long as the run itself. What a graph writes is compared in each audit; seen is
        whether the step as written has begun to write to memory that it never wrote before.
        """
        self.num_audits += 1
        return self.num_audits % 2 == 1 and not self.touched_eagerly

    @property
    def found(self) -> list[torch.Tensor]:
        """The tensors that it is known to have found, beside its batch and what its code reads."""
        return [] if self.touched is None else [*self.touched.read, *self.touched.written]

    def generators_on(self, device: Device) -> list[torch.Generator]:
        """Return the generators on a device that were drawn from, beside its default."""
        kind = device.torch_device.type
        found = [] if self.touched is None else self.touched.generators
        return [one for one in found if one.device.type == kind and kind != "cpu"]
