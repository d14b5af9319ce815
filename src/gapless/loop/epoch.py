"""One epoch, for those who need no more than one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.loop.train_loop import TrainLoop


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from gapless.device.base import Device
    from gapless.pipeline.step import SplitStep, WholeStep
    from gapless.plans import Plan
    from gapless.records.epoch import EpochResult, Progress


def run_epoch(
    batches: Iterable[Any],
    step: SplitStep | WholeStep,
    *,
    device: str | torch.device | Device = "auto",
    plan: str | Plan = "gapless",
    on_batch: Callable[[Progress], None] | None = None,
) -> EpochResult:
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
