"""Verify that two plans compute the same, bit by bit or within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gapless.compare.difference import (
    Elements,
    LossDifference,
    TensorDifference,
    element_difference,
    first_loss_difference,
    first_tensor_difference,
    relative_difference,
    relative_tensor_difference,
)
from gapless.compare.plan_run import RunRecord, RunSettings, run_plan
from gapless.errors import UserError
from gapless.plans import get_plan


if TYPE_CHECKING:
    import torch

    from gapless.compare.workload import Workload
    from gapless.device.base import Device


OnRunStep: TypeAlias = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first step at which two runs differ, bit by bit.

    Attributes:
        step: counted from 1; 0 is before the first step.
        loss: the first loss that differs, at this step or later; None if none does.
        tensor: the first tensor that differs, at this step or later; None if none does.
        elements: how that tensor differed at its step when both ran once more; None if it did
            not.
        is_repeated: whether they differed, anywhere, when both ran once more.
    """

    step: int
    loss: LossDifference | None
    tensor: TensorDifference | None
    elements: Elements | None
    is_repeated: bool


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """How far two runs are apart, relative to the size of their numbers.

    Attributes:
        tolerance: what is allowed.
        first_loss: the first loss beyond it.
        largest_loss: largest relative difference of two losses.
        largest_tensor: that of a tensor after the last step, and the tensor's name.
        num_tensors_beyond: tensors beyond the tolerance after the last step.
        num_tensors: tensors that were compared after the last step.
    """

    tolerance: float
    first_loss: LossDifference | None
    largest_loss: float
    largest_tensor: tuple[float, str]
    num_tensors_beyond: int
    num_tensors: int

    @property
    def is_within(self) -> bool:
        """Whether all losses and tensors are within the tolerance."""
        return self.first_loss is None and not self.num_tensors_beyond


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs of one workload, compared.

    Attributes:
        ours: the first run.
        theirs: the second, which is the reference.
        is_identical: whether all bits agree.
        difference: where they do not; None if they do, or if a tolerance was given.
        closeness: how far they are apart; None without a tolerance.
    """

    ours: RunRecord
    theirs: RunRecord
    is_identical: bool
    difference: Difference | None
    closeness: Closeness | None

    @property
    def agrees(self) -> bool:
        """Whether the runs agree as far as was asked for, whatever that shows."""
        return self.is_identical or (self.closeness is not None and self.closeness.is_within)

    @property
    def first_not_finite(self) -> int | None:
        """The first step whose loss is NaN or infinite in the reference; None if none is.

        A NaN spreads to every weight, and NaNs are equal whatever was computed before them.
        """
        losses = enumerate(self.theirs.losses, start=1)
        return next((step for step, loss in losses if not math.isfinite(loss)), None)

    @property
    def holds(self) -> bool:
        """Whether the runs agree as far as was asked for, in numbers that can show it."""
        return self.agrees and self.first_not_finite is None

    @property
    def num_tensors(self) -> int:
        """Number of tensors that were compared after the last step."""
        return len({entry.name for entry in self.ours.entries[-1]} | set(self.ours.kept))


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """What is verified, and how.

    Attributes:
        plan: the plan in question.
        against: the plan that it is compared with.
        steps: taken in every run, at least 1.
        seed: of every run, 0 or more.
        device: where they run.
        precision: of float32 matrix products.
        tolerance: largest relative difference that counts as none; None: not one bit.

    Raises:
        UserError: one of them is out of range or unknown.
    """

    plan: str = "gapless"
    against: str = "blocking"
    steps: int = 50
    seed: int = 1
    device: Device
    precision: str = "fp32"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the workload."""
        get_plan(self.plan)
        get_plan(self.against)
        if self.steps < 1:
            raise UserError(f"steps must be at least 1, but is {self.steps}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed must be 0 to {2**63 - 1}, but is {self.seed}")
        if self.tolerance is not None and not 0.0 <= self.tolerance < math.inf:
            raise UserError(
                f"tolerance must be a finite number of 0 or more, but is {self.tolerance}; "
                "leave it out to compare bits"
            )

    def run_settings(self) -> RunSettings:
        """Return what all runs share; a tolerance allows algorithms that are not deterministic."""
        return RunSettings(
            device=self.device,
            precision=self.precision,
            deterministic=self.tolerance is None,
            seed=self.seed,
        )


def verify(
    make: Callable[[torch.device], Workload],
    settings: VerifySettings,
    *,
    plans: Sequence[str] | None = None,
    on_step: OnRunStep | None = None,
) -> Iterator[Comparison]:
    """Compare a plan with itself, and then another plan, or several, with it.

    Every run builds the workload anew from the same seed. Losses of all steps are compared, and
    after every step the batch, buffers, gradients, the optimizer's state and parameters.
    Deterministic algorithms are switched on for the process, unless a tolerance is given.

    Args:
        make: builds the workload on a device.
        settings: what is verified.
        plans: in question, one after the other; `settings.plan` alone if None.
        on_step: called with the name of a run and the number of its steps queued so far.

    Yields:
        One comparison after the other, each as soon as it is known: `against` with itself, and,
        if that holds, `plan` with `against`, unless they are one plan.

    Raises:
        UserError: the workload cannot be used.
        Exception: whatever the workload raises.

    Sync: Blocks the host as the plans say, and once at the end of every run.
    """
    verifier = _Verifier(make, settings, on_step=on_step)
    return verifier.comparisons((settings.plan,) if plans is None else plans)


class _Verifier:
    """Runs plans and compares what came out."""

    def __init__(
        self,
        make: Callable[[torch.device], Workload],
        settings: VerifySettings,
        *,
        on_step: OnRunStep | None,
    ) -> None:
        self._make = make
        self._settings = settings
        self._on_step = on_step

    def comparisons(self, plans: Sequence[str]) -> Iterator[Comparison]:
        against = self._settings.against
        theirs = self._run(against, f"{against}, first run")
        again = self._compare(self._run(against, f"{against}, second run"), theirs)
        yield again
        for plan in plans:
            if again.holds and plan != against:
                yield self._compare(self._run(plan, plan), theirs)

    def _run(self, plan: str, title: str, *, copy_of: tuple[int, str] | None = None) -> RunRecord:
        on_step = self._on_step
        return run_plan(
            self._make,
            plan=plan,
            settings=self._settings.run_settings(),
            steps=self._settings.steps,
            # To say how far two runs are apart takes values; for bits there are checksums.
            keep_all=self._settings.tolerance is not None,
            copy_of=copy_of,
            on_step=None if on_step is None else lambda step: on_step(title, step),
        )

    def _compare(self, ours: RunRecord, theirs: RunRecord) -> Comparison:
        loss = first_loss_difference(ours, theirs)
        tensor = first_tensor_difference(ours, theirs)
        is_identical = loss is None and tensor is None
        difference = closeness = None
        tolerance = self._settings.tolerance
        if tolerance is not None:
            closeness = _closeness(ours, theirs, tolerance=tolerance)
        elif not is_identical:
            difference = self._measure(ours.plan, theirs.plan, loss=loss, tensor=tensor)
        return Comparison(
            ours=ours,
            theirs=theirs,
            is_identical=is_identical,
            difference=difference,
            closeness=closeness,
        )

    def _measure(
        self,
        plan: str,
        against: str,
        *,
        loss: LossDifference | None,
        tensor: TensorDifference | None,
    ) -> Difference:
        """Run both plans once more and look at the values of the first tensor that differs."""
        step = min(item.step for item in (loss, tensor) if item is not None)
        copy_of = None if tensor is None else (tensor.step, tensor.name)
        theirs, ours = (
            self._run(which, f"{which}, once more", copy_of=copy_of) for which in (against, plan)
        )
        again = first_loss_difference(ours, theirs), first_tensor_difference(ours, theirs)
        return Difference(
            step=step,
            loss=loss,
            tensor=tensor,
            elements=None if tensor is None else _elements(ours, theirs, tensor.name),
            is_repeated=again != (None, None),
        )


def _elements(ours: RunRecord, theirs: RunRecord, name: str) -> Elements | None:
    """Return how the kept tensor of that name differs, None if it does not or is not there."""
    mine, other = (run.kept.get(name) for run in (ours, theirs))
    if mine is None or other is None or mine.shape != other.shape or mine.dtype != other.dtype:
        return None
    elements = element_difference(mine, other)
    return elements if elements.num_differing else None


def _closeness(ours: RunRecord, theirs: RunRecord, *, tolerance: float) -> Closeness:
    losses = [
        (relative_difference(mine, other), LossDifference(step=step, ours=mine, theirs=other))
        for step, (mine, other) in enumerate(zip(ours.losses, theirs.losses, strict=True), start=1)
    ]
    tensors = [
        (_relative(ours.kept.get(name), theirs.kept.get(name)), name)
        for name in {**ours.kept, **theirs.kept}
    ]
    return Closeness(
        tolerance=tolerance,
        first_loss=next((loss for size, loss in losses if size > tolerance), None),
        largest_loss=max(size for size, _ in losses),
        largest_tensor=max(tensors, key=lambda item: item[0], default=(0.0, "")),
        num_tensors_beyond=sum(size > tolerance for size, _ in tensors),
        num_tensors=len(tensors),
    )


def _relative(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> float:
    if ours is None or theirs is None:
        return math.inf
    return relative_tensor_difference(ours, theirs)
