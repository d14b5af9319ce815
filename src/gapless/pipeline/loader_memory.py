"""Memory of the loader that moves of small tensors may still be reading."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    import torch

    from gapless.device.base import Device
    from gapless.pipeline.host_waits import HostWaits


class LoaderMemory:
    """Tensors of the loader that queued moves read, and the mark of their end.

    Args:
        device: that reads them.
        host_waits: the door for waits.

    Attributes:
        tensors: of the batch that was staged last.
        were_read: marks the end of the moves, where it was recorded last.
        clones_pinned: whether the host had to wait for small tensors in page-locked memory. From then
            on they are cloned into pageable memory, from which `to` reads them at once.
    """

    def __init__(self, device: Device, *, host_waits: HostWaits) -> None:
        self._device = device
        self._host_waits = host_waits
        self.tensors: list[torch.Tensor] = []
        self.were_read = device.create_event()
        self.clones_pinned = False

    def leave(self) -> None:
        """Return when the moves have read all tensors.

        Sync: Blocks the host only for page-locked tensors that are still being read
            ("loader_memory").
        """
        tensors, self.tensors = self.tensors, []
        for tensor in tensors:
            # To ask the event again takes less time than to ask the next tensor.
            if self._device.query_event(self.were_read):
                break
            if may_be_pinned(tensor):
                self._host_waits.wait_event(self.were_read, reason="loader_memory")
                self.clones_pinned = True
                break


def may_be_pinned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor may lie in page-locked memory, which a queued move reads later."""
    try:
        return tensor.is_cpu and tensor.is_pinned()
    except (RuntimeError, NotImplementedError):  # not every kind of tensor can tell
        return True
