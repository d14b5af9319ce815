"""The training loop: epochs of a step over batches, moved as a plan says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from gapless.graphs.callee import Callee
from gapless.graphs.captured_step import CapturedStep
from gapless.graphs.graph_limits import GraphLimits
from gapless.graphs.proof.snapshot import Snapshot
from gapless.graphs.ranks.consent_of_ranks import consent_of
from gapless.loop.auto import AutoSteps
from gapless.loop.engine import Engine
from gapless.loop.epoch import Epoch
from gapless.loop.plan_waits import waits_of
from gapless.loop.runners import EagerSteps, GraphSteps
from gapless.plans import get_plan
from gapless.records.bottleneck import ON_A_CPU


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import torch

    from gapless.device.base import Device
    from gapless.graphs.capture_report import CaptureReport
    from gapless.loop.runners import StepRunner
    from gapless.pipeline.host_waits import HostWaits
    from gapless.pipeline.losses.deferred_loss import DeferredLoss
    from gapless.pipeline.prefetch import Prefetcher
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.plans import Plan
    from gapless.ranks import Ranks
    from gapless.records.bottleneck import Diagnosis
    from gapless.records.epoch_record import EpochRecord, Progress


BatchT = TypeVar("BatchT")


class TrainLoop:
    """Run epochs of a step over batches, moving the work as a plan says.

    Owns the streams, transfer lanes and meter of a run; make one and use it for all epochs.

    Args:
        plan: a plan or its name.
        device: a device or its name.
        memory_budget_bytes: device memory above which no further graph is captured; None: four
            fifths of the device's. See `gapless.graphs.captured_step.CapturedStep`.
        ranks: that run the same steps, with as many batches of the same shapes and plain values in
            the same order, else they wait for each other for ever; None: this process trains alone.

    Raises:
        PlanError: the plan is unknown.
        DeviceError: the device is unknown or absent.
    """

    def __init__(
        self,
        *,
        plan: str | Plan = "gapless",
        device: str | torch.device | Device = "auto",
        memory_budget_bytes: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self._engine = Engine(get_plan(plan), device, ranks=ranks)
        self._waits = waits_of(self._engine)
        self._memory_budget_bytes = memory_budget_bytes
        self._captured: CapturedStep | None = None
        self._graph_runner: GraphSteps | AutoSteps | None = None

    # --- what it is made of ---

    @property
    def plan(self) -> Plan:
        """How the loop moves its work."""
        return self._engine.plan

    @property
    def device(self) -> Device:
        """Where the steps run."""
        return self._engine.device

    @property
    def losses(self) -> DeferredLoss:
        """Every loss of the run; `losses.history` holds those that were read."""
        return self._engine.losses

    @property
    def host_waits(self) -> HostWaits:
        """The door for the loop's waits; `host_waits.stats` counts those of the last epoch."""
        return self._engine.host_waits

    @property
    def captures_ahead(self) -> bool:
        """Whether `capture_ahead` captures anything under this plan on this device."""
        return self.plan.graphs == "always" and self.device.is_accelerator

    @property
    def capture_report(self) -> CaptureReport | None:
        """What is captured of the step that ran last; None if the plan captures nothing here."""
        return None if self._captured is None else self._captured.report

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What plan `auto` found out last; None before, and under other plans."""
        if self.plan.graphs == "auto" and not self.device.is_accelerator:
            return ON_A_CPU
        return None if self._graph_runner is None else self._graph_runner.diagnosis

    # --- what it does ---

    def on_compute_stream(self) -> AbstractContextManager[object]:
        """Send the work of a `with` body to the compute stream; build the model in it.

        Autograd binds each parameter's gradient to the stream on which it was first used.

        Sync: Does not block the host.
        """
        return self._engine.on_compute_stream()

    def prefetch(self, batches: Iterable[BatchT]) -> Prefetcher[BatchT]:
        """Iterate over batches on the device, outside an epoch; for evaluation.

        Sync: Does not block the host on the device.
        """
        return self._engine.prefetch(batches)

    def run_epoch(
        self,
        batches: Iterable[Any],
        step: SplitStep | WholeStep,
        *,
        on_batch: Callable[[Progress], None] | None = None,
    ) -> EpochRecord:
        """Take every batch through the step.

        Args:
            batches: batches on the CPU.
            step: a `SplitStep`, or a function that takes a batch on the device, trains on it and
                returns its loss (a tensor or a `StepLoss`). It must not wait for the device.
            on_batch: called after each batch was queued; may raise to stop the epoch.

        Returns:
            The losses and times of the epoch.

        Raises:
            BatchError: a batch holds something that cannot be moved.
            Exception: whatever the loader, the step or `on_batch` raises; an error in the
                clean-up is a note on it. By then the loss of every step that ended is in
                `losses.history`, the device is idle, the loader's workers are gone, and the next
                epoch can start. A second interrupt, during that clean-up, gets through at once;
                the next `losses.drain()` completes the history then.

        Sync: Blocks the host as the plan says and at the end, until the last loss is read.
        """
        return Epoch(self._engine, self._runner_of(step), self._waits).run(batches, on_batch)

    def capture_ahead(
        self,
        batches: Iterable[Any],
        step: SplitStep | WholeStep,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None = None,
        is_measured_alone: bool = False,
        on_batch: Callable[[int], None] | None = None,
    ) -> CaptureReport | None:
        """Capture the step for the signatures of these batches, before a run; train on none of them.

        Args:
            batches: on the CPU, one of each signature. The first are captured first; what a memory
                budget leaves out are the last.
            step: that `run_epoch` will be given. What it writes on the device is put back, and gradients,
                optimizer and scaler are. If it is to run ahead, it, or the object whose method it is, says
                `changes_no_other_objects = True`; others are captured as batches come.
            model: that the step trains.
            optimizer: that the step calls.
            scaler: of gradients, if there is one.
            is_measured_alone: whether nobody minds what else the step changes in Python: it runs ahead whatever it says.
            on_batch: called with the number of batches done.

        Returns:
            What is captured; None if the plan captures nothing ahead here.

        Sync: Blocks the host.
        """
        if not self.captures_ahead:
            return None
        captured = self._captured_step(step)
        engine = self._engine
        engine.device.wait_stream(engine.streams.compute, engine.device.current_stream())
        with self.on_compute_stream():
            captured.capture_ahead(
                engine.prefetch(batches).trees(),
                snapshot=Snapshot(
                    model, optimizer, scaler=scaler, puts_back_all=not is_measured_alone
                ),
                on_batch=on_batch,
            )
        return captured.report

    def _runner_of(self, step: SplitStep | WholeStep) -> StepRunner:
        if self.plan.graphs == "never" or not self.device.is_accelerator:
            return EagerSteps(step, self._engine, diagnosis=self.diagnosis)
        self._captured_step(step)
        assert self._graph_runner is not None
        return self._graph_runner

    def _captured_step(self, step: SplitStep | WholeStep) -> CapturedStep:
        """Return the step with its graphs, which stay from epoch to epoch."""
        if self._captured is None or self._captured.step != step:
            engine = self._engine
            self._captured = CapturedStep(
                Callee(
                    step,
                    device=engine.device,
                    host_waits=engine.host_waits,
                    consent=consent_of(engine.ranks, engine.host_waits),
                ),
                limits=GraphLimits(engine.device, memory_budget_bytes=self._memory_budget_bytes),
            )
            if self.plan.graphs == "auto":
                self._graph_runner = AutoSteps(
                    self._captured,
                    device=engine.device,
                    meter=engine.meter,
                    host_waits=engine.host_waits,
                    ranks=engine.ranks,
                )
            else:
                self._graph_runner = GraphSteps(self._captured)
        return self._captured

    def close(self) -> None:
        """Give the streams back, and let go of all graphs.

        Ranks cannot leave each other while a graph holds their sums, whoever still holds the loop.

        Sync: Does not block the host.
        """
        if self._captured is not None:
            self._captured.drop_graphs()
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run_epoch(
    batches: Iterable[Any],
    step: SplitStep | WholeStep,
    *,
    device: str | torch.device | Device = "auto",
    plan: str | Plan = "gapless",
    on_batch: Callable[[Progress], None] | None = None,
) -> EpochRecord:
    """Take every batch through the step once, as the plan says.

    For several epochs make one `TrainLoop` and call its `run_epoch`, so that streams and memory
    are made once.

    Args:
        batches: batches on the CPU.
        step: a `SplitStep`, or a function that takes a batch on the device, trains on it and
            returns its loss. It must not wait for the device.
        device: a device or its name.
        plan: a plan or its name.
        on_batch: called after each batch was queued; may raise to stop the epoch.

    Raises:
        PlanError: the plan is unknown.
        DeviceError: the device is unknown or absent.
        Exception: as `TrainLoop.run_epoch`.

    Sync: Blocks the host as the plan says and at the end, until the last loss is read.
    """
    with TrainLoop(plan=plan, device=device) as loop:
        return loop.run_epoch(batches, step, on_batch=on_batch)
