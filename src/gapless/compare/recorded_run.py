"""Run a workload under one plan, or in a plain loop, and keep what is compared afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gapless.compare.plain_loop import take_plain_steps
from gapless.compare.state_recorder import StateRecorder
from gapless.compare.take_steps import take_round
from gapless.device.numerics import seed_generators
from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.loaders import end_kept_workers
from gapless.records.verification import PLAIN_LOOP, RunSummary
from gapless.records.wait_stats import WaitStats


if TYPE_CHECKING:
    import torch

    from gapless.compare.settings import RunSettings
    from gapless.compare.training_state import TensorInfo
    from gapless.compare.workload import WorkloadFunction
    from gapless.plans import Plan


OnStep: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """What one run gave: its record, and what only a comparison with another run needs.

    Attributes:
        summary: losses, waits and counts of the run.
        tensors: the tensors that the checksums of each step are of; item 0 before the first step.
        checksums: of the tensors on the device, after every step; item 0 before the first step.
        kept: copies on the host of the tensors that are not on the device, after the last step;
            of all tensors, and of one after an earlier step, if they were asked for.
    """

    summary: RunSummary
    tensors: list[tuple[TensorInfo, ...]]
    checksums: list[list[int]]
    kept: dict[str, torch.Tensor]

    @property
    def num_tensors(self) -> int:
        """Number of tensors that are known after the last step."""
        return len({tensor.name for tensor in self.tensors[-1]} | set(self.kept))


def run_plan(
    make: WorkloadFunction,
    *,
    plan: str | Plan,
    settings: RunSettings,
    steps: int,
    copy_of: tuple[int, str] | None = None,
    on_step: OnStep | None = None,
) -> RecordedRun:
    """Build a workload anew and take steps of it under a plan.

    If the batches end before the steps do, they are passed over again, as a further epoch.

    Args:
        make: builds the workload; called in the loop's compute context, after seeding.
        plan: a plan or its name.
        settings: shared by all runs; with a tolerance, the values of the last state are kept,
            because checksums show only whether tensors are equal.
        steps: number of steps, at least 1.
        copy_of: number of a step, 0 for the start, and name of a tensor to keep as it was then.
        on_step: called with the number of steps queued so far.

    Raises:
        UserError: there are no batches, or a batch, loss or tensor cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plan says, and once at the end ("verify").
    """
    _start(settings)
    device = settings.device
    with TrainLoop(plan=plan, device=device) as loop:
        with loop.on_compute_stream():
            workload = make(device.torch_device)
            recorder = StateRecorder(workload, device=device, copy_of=copy_of)
        try:
            done = take_round(
                loop,
                workload.batches,
                recorder.step,
                steps=steps,
                after_step=_recording(recorder, on_step),
            )
        finally:
            end_kept_workers(workload.batches)
        summary = RunSummary(
            plan=loop.plan.name,
            losses=loop.losses.history,
            waits=done.total.waits,
            passes=done.passes,
            num_replays=0 if loop.capture_report is None else loop.capture_report.num_replays,
            not_captured=_why_not_captured(loop),
        )
        with loop.on_compute_stream(), loop.host_waits.blocking("verify"):
            return _found(recorder, settings, summary)


def _why_not_captured(loop: TrainLoop) -> tuple[str, ...] | None:
    if loop.plan.graphs != "always":
        return None
    report = loop.capture_report
    if report is None:
        return ("a CPU runs its work itself, there is nothing to launch",)
    found = [refusal.text for refusal in report.refusals]
    return tuple(found) if report.note is None else (*found, report.note)


def run_plain_loop(
    make: WorkloadFunction,
    *,
    settings: RunSettings,
    steps: int,
    copy_of: tuple[int, str] | None = None,
    on_step: OnStep | None = None,
) -> RecordedRun:
    """Build a workload anew and take steps of it in a loop as people write it.

    No prefetch, no ring and no stream of a plan takes part in it.

    Args:
        make: as for `run_plan`; called with the current stream as it is.
        settings: as for `run_plan`.
        steps: as for `run_plan`.
        copy_of: as for `run_plan`.
        on_step: as for `run_plan`.

    Raises:
        UserError: there are no batches, or a loss or tensor cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host in every step, and once at the end.
    """
    _start(settings)
    device = settings.device
    workload = make(device.torch_device)
    recorder = StateRecorder(workload, device=device, copy_of=copy_of)
    try:
        losses, passes = take_plain_steps(
            workload.batches,
            recorder.step,
            device=device,
            steps=steps,
            after_step=_recording(recorder, on_step),
        )
    finally:
        end_kept_workers(workload.batches)
    summary = RunSummary(plan=PLAIN_LOOP, losses=losses, waits=WaitStats(), passes=passes)
    with device.allow_waits():
        return _found(recorder, settings, summary)


def _start(settings: RunSettings) -> None:
    settings.set_numerics(compares=True)
    seed_generators(settings.seed)


def _recording(recorder: StateRecorder, on_step: OnStep | None) -> OnStep:
    def after_step(done: int) -> None:
        recorder.step_done()
        if on_step is not None:
            on_step(done)

    return after_step


def _found(recorder: StateRecorder, settings: RunSettings, summary: RunSummary) -> RecordedRun:
    return RecordedRun(
        summary=summary,
        tensors=recorder.tensors,
        checksums=recorder.read_checksums(),
        kept=recorder.read_tensors(keep_all=settings.tolerance is not None),
    )
