"""What a watched run of a step showed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch

    from gapless.device.base import Device
    from gapless.graphs.reads.batch_reads import BatchRead
    from gapless.graphs.reads.beside_compiled import BesideCompiled
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
        beside: what was seen beside compiled code, if any ran; None if none did.
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
    beside: BesideCompiled | None = None

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

    @property
    def written(self) -> list[torch.Tensor]:
        """What it is known to have written."""
        return [] if self._seen is None else self._seen.written

    @property
    def nondeterministic(self) -> list[str]:
        """What may give other bits each time, of operators and compiled kernels."""
        return [] if self._seen is None else self._seen.nondeterministic

    @property
    def generators(self) -> list[torch.Generator]:
        """The generators that it was seen to draw from, beside the defaults."""
        return [] if self._seen is None else self._seen.generators

    @property
    def _seen(self) -> TouchWatch | None:
        return self.beside if self.touched is None else self.touched

    def generators_on(self, device: Device) -> list[torch.Generator]:
        """Return those on a device."""
        kind = device.torch_device.type
        return [one for one in self.generators if one.device.type == kind and kind != "cpu"]
