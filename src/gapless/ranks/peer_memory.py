"""Memory of a GPU that the other GPUs of its host read, and sums of what lies there.

Copy engines copy from one such memory to another, so that kernels keep all multiprocessors. A barrier
on the device says when memory may be read, and when it may be written again: one small block of
threads, which waits for those of the other GPUs.

Source: `torch.distributed._symmetric_memory`, which torch calls alpha.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from gapless.errors import UserError
from gapless.ranks.flat_memory import ALIGNMENT_BYTES
from gapless.ranks.lost_peers import first_line


if TYPE_CHECKING:
    import torch.distributed as dist


class PeerMemory:
    """A tensor that each rank has on its GPU, and which all of them can read.

    Args:
        like: shape, dtype and device of the tensor, the same on all ranks but for the device's index.
        group: of the ranks, on the device.

    Attributes:
        of_ranks: the tensors of all ranks, in their order.
        own: the one of this rank, filled with zeros.

    Raises:
        UserError: the GPUs cannot read each other's memory.

    Sync: Blocks the host until all ranks are here.
    """

    def __init__(self, like: torch.Tensor, group: dist.ProcessGroup) -> None:
        # Loads Triton, where there is one: only who wants it waits for that.
        from torch.distributed import _symmetric_memory

        try:
            self.own: torch.Tensor = _symmetric_memory.empty(
                like.shape, dtype=like.dtype, device=like.device
            )
            self.own.zero_()
            self._handle = _symmetric_memory.rendezvous(self.own, group)
        except RuntimeError as error:
            raise UserError(
                f"the GPUs of the ranks cannot read each other's memory ({first_line(error)}), which "
                'sum="copies" needs, expected GPUs that NVLink connects; sum in another way'
            ) from error
        self.of_ranks: list[torch.Tensor] = [
            self.own
            if rank == group.rank()
            else self._handle.get_buffer(rank, like.shape, like.dtype)
            for rank in range(group.size())
        ]

    def meet(self) -> None:
        """Let the current stream wait until those of all ranks are here.

        Sync: Does not block the host.
        """
        self._handle.barrier()


class PeerSum:
    """Sums the tensors that ranks have in memory of each other, where they lie.

    Each rank sums one part of all tensors, and then copies the other parts from those who summed
    them. A part is summed in the order of ranks, so that two of them give a + b.

    Args:
        memory: tensors of one dimension.
        rank: of this process.
    """

    def __init__(self, memory: PeerMemory, *, rank: int) -> None:
        self._memory = memory
        of_ranks = [_parts(tensor, len(memory.of_ranks)) for tensor in memory.of_ranks]
        self._own = of_ranks[rank][rank]
        self._terms = [parts[rank] for parts in of_ranks]
        self._copies = [
            term if number == rank else torch.empty_like(term)
            for number, term in enumerate(self._terms)
        ]
        # Of the first two terms at least one is a copy, which is read when the first sum is written.
        others = (copy for copy in self._copies if copy is not self._own)
        self._partial = next(others, self._own)
        self._summed = [
            (of_ranks[rank][number], parts[number])
            for number, parts in enumerate(of_ranks)
            if number != rank
        ]

    @torch.no_grad()
    def add_up(self, *, is_alone: bool) -> None:
        """Put the sum into the tensors of all ranks, which may be written again when all have met.

        Args:
            is_alone: whether nothing runs beside it, so that kernels may read from other GPUs.

        Sync: Does not block the host; the current stream waits until all ranks are here.
        """
        self._memory.meet()
        terms = self._terms
        if not is_alone:
            terms = self._copies
            for copy, term in zip(terms, self._terms, strict=True):
                if copy is not term:
                    copy.copy_(term)
        total, *others = terms
        for number, term in enumerate(others, start=1):
            is_last = number == len(others)
            total = torch.add(total, term, out=self._own if is_last else self._partial)
        self._memory.meet()
        for own, summed in self._summed:
            own.copy_(summed)


def _parts(tensor: torch.Tensor, num: int) -> list[torch.Tensor]:
    """Return a tensor cut into parts of about equal size."""
    unit = ALIGNMENT_BYTES // tensor.element_size()
    units = -(-tensor.numel() // unit)
    ends = [min(tensor.numel(), unit * (units * number // num)) for number in range(num + 1)]
    ends[-1] = tensor.numel()
    return [tensor[start:end] for start, end in pairwise(ends)]
