"""Verify that plans compute the same as a plain loop, bit by bit or within a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from gapless.compare.difference import (
    closeness,
    element_difference,
    first_loss_difference,
    first_tensor_difference,
)
from gapless.compare.recorded_run import RecordedRun, run_plain_loop, run_plan
from gapless.compare.settings import RunSettings, VerifySettings
from gapless.compare.workload import checked_workload_function, require_float32
from gapless.device.find import find_device
from gapless.device.numerics import numerics_restored
from gapless.records.verification import (
    PLAIN_LOOP,
    Difference,
    ElementDifference,
    Verdict,
    Verification,
)


if TYPE_CHECKING:
    import torch

    from gapless.compare.workload import WorkloadFunction
    from gapless.device.base import Device
    from gapless.records.verification import LossDifference, TensorDifference


# Called with the name of the work, how much of it is done, and how much there is.
OnProgress: TypeAlias = Callable[[str, int, int], None]
OnVerdict: TypeAlias = Callable[[Verdict], None]


def verify_plan(
    workload: WorkloadFunction,
    plan: str = "gapless",
    *,
    against: str = "blocking",
    steps: int = 50,
    device: str | torch.device | Device = "auto",
    seed: int = 1,
    precision: str = "fp32",
    tolerance: float | None = None,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Verify that a plan computes the same as a plain loop: the same bits in all losses and tensors.

    The plain loop moves each batch by `to` and reads each loss by `item`, without prefetch. It is
    run twice, then `against` and `plan` are run, each on a workload that is built anew from the
    seed. Compares the losses of all steps and, after every step, the batch, buffers, gradients,
    the optimizer's state and parameters.

    Args:
        workload: a function that takes a `torch.device` and builds a `gapless.Workload` on it.
            It is called for every run, after seeding torch, random and numpy, so it must build
            model, optimizer and batches anew.
        plan: name of the plan in question.
        against: name of a plan that is compared with the plain loop as well, and `plan` with it.
        steps: number of steps of every run, at least 1.
        device: `auto`, a device, or its name.
        seed: of every run, 0 or more.
        precision: of float32 matrix products, `fp32` or `tf32`; steps may use `torch.autocast`.
        tolerance: largest relative difference that counts as none. None compares bits, for which
            deterministic algorithms are switched on while this runs.
        on_progress: called with the name of the work, how many steps are done, and how many there are.

    Returns:
        What came out; `holds` says whether all of them compute the same.
        `gapless.report.verification_text` renders it.

    Raises:
        UserError: a setting is unknown or out of range, or the workload cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plans say, and once at the end of every run.
    """
    require_float32(precision)
    settings = VerifySettings(
        run=RunSettings(
            device=find_device(device), seed=seed, precision=precision, tolerance=tolerance
        ),
        plans=(plan,),
        against=against,
        steps=steps,
    )
    with numerics_restored():
        return run_verification(
            checked_workload_function(workload), settings, on_progress=on_progress
        )


def run_verification(
    make: WorkloadFunction,
    settings: VerifySettings,
    *,
    on_progress: OnProgress | None = None,
    on_verdict: OnVerdict | None = None,
) -> Verification:
    """Compare a plain loop with itself, and then each plan with it.

    Leaves the numerics of the process as the last run needed them.

    Args:
        make: builds the workload on a device.
        settings: what is verified.
        on_progress: called with the name of the work, how many steps are done, and how many there are.
        on_verdict: called with each verdict as soon as it is known.

    Returns:
        All verdicts; only that on the plain loop itself if it does not hold.

    Raises:
        UserError: the workload cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plans say, and once at the end of every run.
    """
    found = []
    for verdict in _Verifier(make, settings, on_progress=on_progress).verdicts():
        found.append(verdict)
        if on_verdict is not None:
            on_verdict(verdict)
    return Verification(itself=found[0], plans=tuple(found[1:]))


class _Verifier:
    """Runs the plain loop and plans, and compares what came out."""

    def __init__(
        self,
        make: WorkloadFunction,
        settings: VerifySettings,
        *,
        on_progress: OnProgress | None,
    ) -> None:
        self._make = make
        self._settings = settings
        self._on_progress = on_progress

    def verdicts(self) -> Iterator[Verdict]:
        plain = self._run(PLAIN_LOOP, f"{PLAIN_LOOP}, first run")
        itself = self._compared(self._run(PLAIN_LOOP, f"{PLAIN_LOOP}, second run"), plain)
        yield itself
        if not itself.holds:
            return
        against, reference = self._settings.against, None
        if against is not None:
            reference = self._run(against, against)
            yield self._compared(reference, plain)
        for plan in self._settings.plans:
            if plan == against:
                continue
            ours = self._run(plan, plan)
            yield self._compared(ours, plain)
            if reference is not None:
                yield self._compared(ours, reference)

    def _run(
        self, plan: str, title: str, *, copy_of: tuple[int, str] | None = None
    ) -> RecordedRun:
        steps, on_progress = self._settings.steps, self._on_progress
        run = run_plain_loop if plan == PLAIN_LOOP else partial(run_plan, plan=plan)
        return run(
            self._make,
            settings=self._settings.run,
            steps=steps,
            copy_of=copy_of,
            on_step=None if on_progress is None else lambda step: on_progress(title, step, steps),
        )

    def _compared(self, ours: RecordedRun, theirs: RecordedRun) -> Verdict:
        loss = first_loss_difference(ours, theirs)
        tensor = first_tensor_difference(ours, theirs)
        is_identical = loss is None and tensor is None
        tolerance = self._settings.run.tolerance
        difference = None
        if tolerance is None and not is_identical:
            difference = self._difference(ours, theirs, loss=loss, tensor=tensor)
        return Verdict(
            ours=ours.summary,
            theirs=theirs.summary,
            num_tensors=ours.num_tensors,
            is_identical=is_identical,
            difference=difference,
            closeness=None if tolerance is None else closeness(ours, theirs, tolerance=tolerance),
        )

    def _difference(
        self,
        ours: RecordedRun,
        theirs: RecordedRun,
        *,
        loss: LossDifference | None,
        tensor: TensorDifference | None,
    ) -> Difference:
        """Run both once more, and look at the values of the first tensor that differs."""
        copy_of = None if tensor is None else (tensor.step, tensor.name)
        theirs, ours = (
            self._run(run.summary.plan, f"{run.summary.plan}, once more", copy_of=copy_of)
            for run in (theirs, ours)
        )
        again = first_loss_difference(ours, theirs), first_tensor_difference(ours, theirs)
        return Difference(
            step=min(item.step for item in (loss, tensor) if item is not None),
            loss=loss,
            tensor=tensor,
            elements=None if tensor is None else _elements(ours, theirs, tensor.name),
            is_repeated=again != (None, None),
        )


def _elements(ours: RecordedRun, theirs: RecordedRun, name: str) -> ElementDifference | None:
    """Return how the kept tensor of that name differs, None if it does not or is not there."""
    mine, other = (run.kept.get(name) for run in (ours, theirs))
    if mine is None or other is None or mine.shape != other.shape or mine.dtype != other.dtype:
        return None
    elements = element_difference(mine, other)
    return elements if elements.num_differing else None
