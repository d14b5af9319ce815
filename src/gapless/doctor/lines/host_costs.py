"""Host time that is lost without a wait for the device: batches that come late, garbage collection."""

from __future__ import annotations

import gc
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from gapless.device.script_tensors import shapes_of
from gapless.device.torch_gpu import is_gpu_in_use
from gapless.device.torch_private import LoaderIterator, is_pinning, num_workers_of
from gapless.python_private import getframe
from gapless.unnoticed import unseen


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import FrameType

    from gapless.doctor.lines.wait_notes import WaitNotes
    from gapless.unnoticed import Patches


# A pause that is shorter is nothing to mend.
_MIN_PAUSE_NS = 100_000


def watch_loaders(notes: WaitNotes, patches: Patches, shapes: BatchShapes) -> None:
    """Note each `next()` of the iterators of `DataLoader`, and the shapes of what it gives."""
    if LoaderIterator is not None:
        patches.put_method(LoaderIterator, "__next__", partial(_fetching, notes, shapes))


def _fetching(
    notes: WaitNotes, shapes: BatchShapes, original: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    def __next__(self: Any) -> Any:  # noqa: N807  # it stands for the method
        with unseen:
            start_ns = time.perf_counter_ns()
            batch = original(self)
            num_workers, pinned = num_workers_of(self), ""
            many = "" if num_workers == 1 else "s"
            workers = f"has {num_workers} worker{many}" if num_workers else "no workers"
            if is_gpu_in_use():
                pinned = f", {'' if is_pinning(self) else 'not '}pinned"
            notes.cost(
                "loader",
                "DataLoader.__next__",
                start_ns=start_ns,
                frame=getframe(1),
                detail=f"{workers}{pinned}",
            )
            shapes.add(batch)
            return batch

    return __next__


class BatchShapes:
    """Counts batches, and the shapes that they come in.

    Attributes:
        num_batches: that were seen.
        num_shapes: different ones among them.
    """

    def __init__(self) -> None:
        self.num_batches = 0
        self._seen: set[Hashable] = set()

    @property
    def num_shapes(self) -> int:
        """How many different shapes were seen."""
        return len(self._seen)

    def add(self, batch: Any) -> None:
        """Note a batch. Values are not read."""
        self.num_batches += 1
        self._seen.add(shapes_of(batch))


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
            frame: FrameType | None = getframe().f_back
            self._notes.cost(
                "gc",
                f"collection of generation {info['generation']}",
                start_ns=self._start_ns,
                frame=frame,
            )
