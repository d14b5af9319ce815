"""What sums buckets of gradients beside the backward pass: NCCL's kernels, or the GPUs' copy engines."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from gapless.ranks.lost_peers import named_as_lost
from gapless.ranks.peer_memory import PeerMemory, PeerSum


if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.ranks.flat_memory import FlatMemory


class Carrier(Protocol):
    """Sums buckets of all ranks, which send the same ones in the same order."""

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for a bucket, in the shape and dtype of a tensor.

        Sync: Blocks the host on a GPU, which allocates memory.
        """

    @property
    def keeps_last_apart(self) -> bool:
        """Whether the last bucket is sent when all others are summed."""

    def send(self, bucket: FlatMemory, *, is_last: bool) -> None:
        """Begin to sum what a bucket has taken, behind all work of the current stream."""

    def wait(self) -> None:
        """Let the current stream wait for the sums of all that was sent."""


class AllReduces:
    """Sums by all-reduces.

    Args:
        group: of the ranks, on the device.
        last_group: for the last bucket; may be the same.
    """

    zeros_like = staticmethod(torch.zeros_like)

    def __init__(self, group: dist.ProcessGroup, last_group: dist.ProcessGroup) -> None:
        self._group = group
        self._last_group = last_group
        self._sent: list[Any] = []

    @property
    def keeps_last_apart(self) -> bool:
        """Whether it has a group of its own: kernels of two groups could wait for each other."""
        return self._last_group is not self._group

    def send(self, bucket: FlatMemory, *, is_last: bool) -> None:
        """Begin to sum what a bucket has taken, behind all work of the current stream."""
        group = self._last_group if is_last else self._group
        with named_as_lost("gradients"):
            self._sent.append(dist.all_reduce(bucket.sent, group=group, async_op=True))

    def wait(self) -> None:
        """Let the current stream wait for the sums of all that was sent."""
        sent, self._sent = self._sent, []
        with named_as_lost("gradients"):
            for work in sent:
                work.wait()


class PeerCopies:
    """Sums what copy engines bring from the other GPUs of the host.

    Nothing runs beside the last bucket, so that kernels may take part in it.

    Args:
        group: of the ranks, on the device.
        like: a tensor on the device of this rank.

    Raises:
        UserError: the GPUs cannot read each other's memory.

    Sync: Blocks the host until all ranks are here.
    """

    keeps_last_apart = False

    def __init__(self, group: dist.ProcessGroup, like: torch.Tensor) -> None:
        self._group = group
        self._stream = SideStream(like.device)
        self._end = PeerMemory(like.new_empty(1), group)
        self._sums: dict[int, PeerSum] = {}

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for a bucket that all ranks can read.

        Sync: Blocks the host until all ranks are here.
        """
        memory = PeerMemory(tensor, self._group)
        self._sums[id(memory.own)] = PeerSum(memory, rank=self._group.rank())
        return memory.own

    def send(self, bucket: FlatMemory, *, is_last: bool) -> None:
        """Begin to sum what a bucket has taken, behind all work of the current stream."""
        with self._stream.behind_current():
            self._sums[id(bucket.sent)].add_up(is_alone=is_last)

    def wait(self) -> None:
        """Let the current stream wait for the sums, and until all ranks have read what was sent."""
        with self._stream.behind_current():
            self._end.meet()
        self._stream.wait()


class SideStream:
    """A stream of high priority beside the current one.

    Args:
        device: of both.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.Stream(device, priority=-1)

    @contextmanager
    def behind_current(self) -> Iterator[None]:
        """Queue the work of the body on it, behind all that is queued on the current stream."""
        self._stream.wait_stream(torch.accelerator.current_stream(self._stream.device))
        with self._stream:
            yield

    def wait(self) -> None:
        """Let the current stream wait for all that is queued on it.

        Sync: Does not block the host.
        """
        torch.accelerator.current_stream(self._stream.device).wait_stream(self._stream)
