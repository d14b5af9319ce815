"""Memory that a graph writes, to ask whether a batch lies in it.

A graph reads copies of its batch. As written, what a step writes into a buffer shows at once in a batch
that is a view of that buffer; in a copy it does not.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import torch

from gapless.graphs.reads.touched import joined, span_of
from gapless.pipeline.tree.tensor_layout import has_address


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class WrittenMemory:
    """Where a graph writes outside of its own memory.

    Args:
        tensors: strided, that it writes to. Their memory is not kept alive.

    Attributes:
        bounds: where their storages begin and end, in turns: an odd number of these is below what lies in one.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        tensors = [tensor for tensor in tensors if tensor.numel()]
        self._written = joined(map(bytes_of, tensors))
        storages = joined({_bytes_of_storage(tensor) for tensor in tensors})
        self.bounds = [bound for storage in storages for bound in storage]

    def holds_any(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether a byte of any of these tensors is written.

        Sync: Does not block the host.
        """
        # This runs before every replay, and nearly no batch lies in the storage of anything else.
        bounds = self.bounds
        try:
            for address in map(_address_of, tensors):
                if bisect_right(bounds, address) % 2:
                    return any(map(self._holds, tensors))
        except (RuntimeError, NotImplementedError):  # of sparse tensors
            return any(map(self._holds, tensors))
        return False

    def _holds(self, tensor: torch.Tensor) -> bool:
        if not has_address(tensor):
            return False
        return self.holds(bytes_of(tensor))

    def holds(self, span: tuple[int, int]) -> bool:
        """Return whether a byte between these addresses is written."""
        begin, end = span
        return any(start < end and begin < stop for start, stop in self._written)


_address_of = torch.Tensor.data_ptr


def bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte of a strided tensor, and of the one after its last."""
    start, end = span_of(tensor)
    address = tensor.data_ptr()
    return address, address + end - start


def _bytes_of_storage(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
