"""Launch a whole training step as one piece: a captured graph for each shape of batch.

The first batches of a shape run as always; then the same work is captured, which does not do it,
and from there on it is launched by one call. So nothing has to be restored: what ran was training.
`warm_up` does the same ahead of a run, on batches that are not trained on, and puts back weights,
optimizer state and random numbers.

A captured step reads its batch from memory that stays where it is. Each batch is copied there on
the device, in order with the step before. What the step returns is copied out of the graph's
memory before the next replay can overwrite it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gapless.device.select import random_state, set_random_state
from gapless.pipeline.readback import write_row
from gapless.pipeline.records import HostPart, SplitStep, StepLoss
from gapless.pipeline.structure import map_tensors, tensors_of


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from gapless.device.base import Device, Graph
    from gapless.pipeline.records import WholeStep
    from gapless.pipeline.snapshot import Snapshot
    from gapless.pipeline.sync import HostSync


# Runs of a shape before it is captured: kernels are loaded and chosen, workspaces are made.
_NUM_WARM_UPS = 2

# More graphs than this are a sign of shapes that hardly come again; each takes memory.
_MAX_GRAPHS = 100

_TORCH = str(Path(torch.__file__).parent)
_ENGINE = str(Path(__file__).parents[1])


@dataclass(kw_only=True)
class CaptureReport:
    """What is captured, and what is not.

    Attributes:
        num_graphs: shapes of batches that were captured.
        num_replays: steps that ran as a graph.
        num_eager: steps that did not.
        seconds: time spent capturing; the device stood still for it.
        refusal: why captures stopped, None if nothing did.
    """

    num_graphs: int = 0
    num_replays: int = 0
    num_eager: int = 0
    seconds: float = 0.0
    refusal: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Captured:
    graph: Graph
    inputs: list[torch.Tensor]
    result: torch.Tensor


class CapturedStep:
    """A step that is captured for each shape of batch and then launched as one piece.

    Everything the step does on the device is captured; what it does on the host is not done
    again, but for a method `on_host(batch)` of the step, which is called before every batch.
    Plain values in a batch count as part of its shape.

    Args:
        step: takes a batch on the device, trains on it and returns its loss.
        device: where it runs.
        sync: the door for the waits that captures are.
        memory_budget_bytes: device memory of the process above which no further shape is
            captured; None: no limit.

    Attributes:
        step: the step itself.
        report: what is captured.
    """

    def __init__(
        self,
        step: SplitStep | WholeStep,
        *,
        device: Device,
        sync: HostSync,
        memory_budget_bytes: int | None = None,
    ) -> None:
        self.step = step
        self.report = CaptureReport()
        self._device = device
        self._sync = sync
        self._budget = memory_budget_bytes
        self._graphs: dict[Hashable, _Captured] = {}
        self._num_seen: Counter[Hashable] = Counter()
        self._newest: Graph | None = None

    def __call__(self, batch: Any) -> StepLoss:
        """Train on a batch and return its loss, valid until the next call.

        Sync: Does not block the host, but where a shape is captured ("capture").
        """
        call_host_part(self.step, batch)
        key = _shape_of(batch)
        self._num_seen[key] += 1
        captured = self._graphs.get(key)
        if captured is None and self._num_seen[key] > _NUM_WARM_UPS and not self.report.refusal:
            captured = self._capture(key, batch)
        if captured is None:
            self.report.num_eager += 1
            return do_work(self.step, batch)
        for target, source in zip(captured.inputs, tensors_of(batch), strict=True):
            target.copy_(source)
        captured.graph.replay()
        self.report.num_replays += 1
        return StepLoss(loss=captured.result[0], weight=captured.result[1])

    def warm_up(
        self,
        batches: Iterable[Any],
        *,
        snapshot: Snapshot,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        """Capture the shapes of these batches, which are on the device, and train on none.

        Args:
            batches: one of each shape.
            snapshot: of what the step changes, which is put back afterwards.
            on_batch: called with the number of shapes done so far.

        Sync: Blocks the host ("capture").
        """
        random = random_state(self._device)
        try:
            for number, batch in enumerate(batches, start=1):
                self._warm_up(batch)
                if on_batch is not None:
                    on_batch(number)
        finally:
            snapshot.restore()
            set_random_state(self._device, random)

    def _warm_up(self, batch: Any) -> None:
        key = _shape_of(batch)
        if key in self._graphs or self.report.refusal:
            return
        for _ in range(_NUM_WARM_UPS):
            do_work(self.step, batch)
        self._num_seen[key] = _NUM_WARM_UPS
        self._capture(key, batch)

    def _capture(self, key: Hashable, batch: Any) -> _Captured | None:
        self.report.refusal = self._limit()
        if self.report.refusal is not None:
            return None
        static = map_tensors(batch, torch.clone)
        result = self._device.device_buffer(16).view(torch.float64)

        def work() -> None:
            out = do_work(self.step, static)
            write_row(result, out.loss if out.report is None else out.report, out.weight)

        start = perf_counter()
        try:
            with self._sync.blocking("capture"):
                graph = self._device.capture(work, like=self._newest)
        except RuntimeError as error:
            self.report.refusal = _refusal(error)
            return None
        finally:
            self.report.seconds += perf_counter() - start
        self._newest = graph
        self.report.num_graphs += 1
        captured = _Captured(graph=graph, inputs=tensors_of(static), result=result)
        self._graphs[key] = captured
        return captured

    def _limit(self) -> str | None:
        """Return why no further shape can be captured, None if one can."""
        if len(self._graphs) >= _MAX_GRAPHS:
            return f"{_MAX_GRAPHS} shapes are captured already; pad batches to fewer shapes"
        if self._budget is not None and self._device.reserved_memory_bytes() > self._budget:
            return f"the process holds more than its budget of {self._budget:,} bytes"
        return None


def call_host_part(step: SplitStep | WholeStep, batch: Any) -> None:
    """Do what a step does on the host for each batch, if it does anything."""
    if isinstance(step, HostPart):
        step.on_host(batch)


def do_work(step: SplitStep | WholeStep, batch: Any) -> StepLoss:
    """Queue both parts of a step, or the whole, on the current stream."""
    if isinstance(step, SplitStep):
        out = step.forward(batch)
        step.backward(out)
        return out
    found = step(batch)
    return found if isinstance(found, StepLoss) else StepLoss(loss=found)


def _shape_of(batch: Any) -> Hashable:
    """Return what two batches share that the same graph can take."""
    shapes: list[Hashable] = []

    def note(tensor: torch.Tensor) -> str:
        shapes.append((tensor.shape, tensor.dtype))
        return "tensor"

    # What is left of the batch without its tensors: containers and plain values.
    return (repr(map_tensors(batch, note)), tuple(shapes))  # type: ignore[arg-type]


def _refusal(error: RuntimeError) -> str:
    """Return the line of the step that forbids a capture, and what it does."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_TORCH, _ENGINE))]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""
    return where + str(error).splitlines()[0]
