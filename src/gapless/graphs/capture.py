"""Capture the step of anybody's loop.

step = gapless.capture(step)
for batch in gapless.prefetch(loader, device):
    losses.add(step(batch))
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from gapless.device.find import find_device
from gapless.errors import BatchError, UserError
from gapless.graphs.captured_step import CapturedStep
from gapless.graphs.refusal import Refusal
from gapless.graphs.snapshot import Snapshot
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.prefetch import prefetch
from gapless.pipeline.step import call_host_part, do_work
from gapless.pipeline.tree import flatten


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport
    from gapless.pipeline.step import SplitStep
    from gapless.records.wait_stats import WaitStats


_PartT = TypeVar("_PartT")


class StandaloneStep:
    """A captured step for a loop that is not ours; made by `capture`."""

    def __init__(self, captured: CapturedStep, *, device: Device) -> None:
        self._captured = captured
        self._device = device
        # Nothing can be captured on the default stream, and autograd binds gradients to the
        # stream they first saw: the step runs on this one from its first call on.
        self._stream = device.shared_stream("gapless.capture")
        if not device.is_accelerator:
            captured.report.refusal = Refusal(
                "cpu", "a CPU runs its work itself, there is nothing to launch"
            )

    @property
    def report(self) -> CaptureReport:
        """What is captured, what is not and why; as a text it is one line."""
        return self._captured.report

    def __call__(self, batch: Any) -> Any:
        """Train on a batch, which is on the device; return what the step returns.

        Tensors come without their graph of gradients, and are the caller's own: the next call
        does not overwrite them.

        Raises:
            UserError: the step returned something else than tensors, plain values, tuples,
                lists, mappings and dataclasses of them.
            Exception: whatever the step raises.

        Sync: Does not block the host, but where a shape is captured ("capture"), and where the
            step does so itself.
        """
        if not self._device.is_accelerator:
            self.report.num_eager += 1
            call_host_part(self._captured.step, batch)
            return _own(do_work(self._captured.step, batch))
        with self._on_own_stream():
            call_host_part(self._captured.step, batch)
            return _own(self._run(batch))

    def _run(self, batch: Any) -> Any:
        try:
            tree = flatten(batch)
        except BatchError as error:
            return self._captured.run_unknown(batch, str(error))
        return self._captured.run(tree).out

    @contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """Send the work of the body to the step's stream, in order with the caller's work."""
        outer = self._device.current_stream()
        self._device.wait_stream(self._stream, outer)
        try:
            with self._device.use_stream(self._stream):
                yield
        finally:
            self._device.wait_stream(outer, self._stream)

    def capture_ahead(self, batches: Iterable[Any], snapshot: Callable[[], Snapshot]) -> None:
        """Capture the shapes of these batches, and from here on no others.

        Args:
            batches: one of each shape.
            snapshot: takes one of what the step changes, on the stream of the step.

        Sync: Blocks the host ("capture"); on a CPU nothing is done.
        """
        if not self._device.is_accelerator:
            return
        with self._on_own_stream():
            taken = snapshot()
            trees = prefetch(batches, self._device).trees()
            self._captured.capture_ahead(trees, snapshot=taken)
        self._captured.only_ahead = taken.refusal is None


def capture(
    step: Callable[[Any], Any] | SplitStep,
    *,
    buckets: Iterable[Any] | None = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    device: str | torch.device | Device = "auto",
    memory_budget_bytes: int | None = None,
    wait_stats: WaitStats | None = None,
) -> StandaloneStep:
    """Return a step that is launched as one CUDA graph for each shape of batch.

    Each shape runs as written twice and is then captured; a shape that is not captured goes on
    as written, and is counted. What the step does on the host (printing, counting, Python's random
    numbers) is not done again by a graph, but for a method `on_host(batch)` of the step. Numbers of
    torch's optimizers are watched; make a rate that changes every step a tensor on the device, fill
    it in place, and call schedules outside. Modules in training and in evaluation have graphs of
    their own; another optimizer needs a new `capture`. A CPU changes nothing.

    Args:
        step: takes a batch on the device, trains on it and returns its loss, or any structure of
            tensors. Adam and AdamW need `capturable=True`.
        buckets: example batches, one of each padded shape: captured now in this order, as far as
            the memory budget goes, without training on them, and no others later. Needs `model`
            and `optimizer` (not NAdam and others whose state does not begin at zero: shapes are
            then captured as they come).
        model: whose weights and buffers are put back.
        optimizer: whose state is put back.
        scaler: of gradients, put back as well.
        device: a device or its name.
        memory_budget_bytes: of the process, above which no further shape is captured; None: four
            fifths of the device's.
        wait_stats: where the waits that captures are ("capture") are counted.

    Raises:
        UserError: buckets without a model and an optimizer.
        DeviceError: the device is unknown or absent.
        BatchError: a bucket holds something that cannot be moved.

    Example:
        step = gapless.capture(train_step)
        losses = gapless.DeferredLoss(device)
        for batch in gapless.prefetch(loader, device):
            losses.add(step(batch))
        print(losses.mean(), step.report)

    Sync: Blocks the host if there are buckets ("capture"); otherwise does not.
    """
    found = find_device(device)
    host_waits = HostWaits(found, wait_stats=wait_stats)
    captured = CapturedStep(
        step, device=found, host_waits=host_waits, memory_budget_bytes=memory_budget_bytes
    )
    made = StandaloneStep(captured, device=found)
    if buckets is not None:
        parts = _needed(model, "model"), _needed(optimizer, "optimizer")
        made.capture_ahead(buckets, lambda: Snapshot(*parts, scaler=scaler))
    return made


def _needed(part: _PartT | None, name: str) -> _PartT:
    if part is None:
        raise UserError(
            f"capture with buckets got no {name}, expected the model and the optimizer that the "
            "step trains, to put them back after the captures; give both, or no buckets"
        )
    return part


def _own(out: Any) -> Any:
    """Return copies of what a step returned, which no replay overwrites."""
    try:
        return flatten(out).map(lambda tensor: tensor.detach().clone()).value
    except BatchError as error:
        raise UserError(
            f"the captured step returned an object of type {type(out).__name__}, expected "
            "tensors, plain values, or tuples, lists, mappings and dataclasses of them"
        ) from error
