"""Host time that is lost without a wait for the device: batches that come late, garbage collection."""

from __future__ import annotations

import gc
import sys
import time
from typing import TYPE_CHECKING, Any

from torch.utils.data import dataloader


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from gapless.doctor.batch_shapes import BatchShapes
    from gapless.doctor.patched_attributes import Patches
    from gapless.doctor.wait_notes import WaitNotes


# A pause that is shorter is nothing to mend.
_MIN_PAUSE_NS = 100_000


def watch_loaders(notes: WaitNotes, patches: Patches, shapes: BatchShapes) -> None:
    """Note each `next()` of the iterators of `DataLoader`, and the shapes of what it gives."""
    iterator: Any = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    def __next__(self: Any) -> Any:  # noqa: N807  # it stands for the method
        start_ns = time.perf_counter_ns()
        batch = original(self)
        detail = f"{self._num_workers} workers, {'' if self._pin_memory else 'not '}pinned"
        notes.cost(
            "loader",
            "DataLoader.__next__",
            start_ns=start_ns,
            frame=sys._getframe(1),
            detail=detail,
        )
        shapes.add(batch)
        return batch

    __next__.__qualname__ = original.__qualname__
    patches.put(iterator, "__next__", __next__)


class CollectorPauses:
    """Notes each pause of the garbage collector that is long enough to matter."""

    def __init__(self, notes: WaitNotes) -> None:
        self._notes = notes
        self._start_ns = 0
        self._callback: Callable[[str, dict[str, int]], None] | None = None

    def start(self) -> None:
        """Begin to note."""
        self._callback = self._called
        gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """End."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._start_ns = time.perf_counter_ns()
        elif time.perf_counter_ns() - self._start_ns >= _MIN_PAUSE_NS:
            # None where it collects in a thread that runs no Python, such as one of autograd's.
            frame: FrameType | None = sys._getframe().f_back
            self._notes.cost(
                "gc",
                f"collection of generation {info['generation']}",
                start_ns=self._start_ns,
                frame=frame,
            )
