"""What a verification or a comparison is asked to do. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gapless.errors import UserError
from gapless.plans import get_plan


if TYPE_CHECKING:
    from gapless.device.base import Device


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Where and how every run of a workload takes place.

    Attributes:
        device: where the workload runs.
        seed: of torch, random and numpy, set before the workload is built; 0 or more.
        precision: of float32 matrix products; see `gapless.device.numerics.set_numerics`.
        tolerance: largest relative difference that counts as none; None compares bits.

    Raises:
        UserError: seed or tolerance are out of range.
    """

    device: Device
    seed: int = 1
    precision: str = "fp32"
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the device."""
        if not 0 <= self.seed < 2**63:
            raise UserError(f"`seed` must be 0 to {2**63 - 1}, but is {self.seed}")
        if self.tolerance is not None and not 0.0 <= self.tolerance < math.inf:
            raise UserError(
                f"`tolerance` must be a finite number of 0 or more, but is {self.tolerance}; "
                "leave it out to compare bits"
            )

    def set_numerics(self, *, compares: bool) -> None:
        """Set precision and determinism of the process.

        Args:
            compares: whether losses and tensors are compared; if so, and bit by bit, algorithms have
                to be deterministic.

        Raises:
            DeviceError: the precision is unknown, or the device does not offer it.
        """
        # Imported here: the command line reads these classes before it needs torch.
        from gapless.device.numerics import set_numerics

        deterministic = compares and self.tolerance is None
        set_numerics(self.device, self.precision, deterministic=deterministic)


@dataclass(frozen=True, kw_only=True)
class VerifySettings:
    """What is verified, and how.

    Attributes:
        run: shared by all runs.
        plans: names of the plans in question.
        against: name of a plan that the others are compared with, beside the plain loop that all
            are compared with; None: no plan.
        steps: number of steps of every run, at least 1.

    Raises:
        UserError: a plan is unknown, or steps are out of range.
    """

    run: RunSettings
    plans: tuple[str, ...] = ("gapless",)
    against: str | None = "blocking"
    steps: int = 50

    def __post_init__(self) -> None:
        """Check what can be checked without the workload."""
        for plan in self.plans:
            get_plan(plan)
        if self.against is not None:
            get_plan(self.against)
        _check_at_least(1, steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How many steps are compared and timed.

    Attributes:
        steps: steps of a round, at least 1.
        rounds: timed rounds of each plan, at least 1.
        warmup_rounds: rounds of each plan before those, at least 1.
        verify_steps: steps in which bits are compared; 0 compares none.

    Raises:
        UserError: one of them is out of range.
    """

    steps: int
    rounds: int
    warmup_rounds: int
    verify_steps: int

    def __post_init__(self) -> None:
        """Check the range of every number."""
        _check_at_least(1, steps=self.steps, rounds=self.rounds, warmup_rounds=self.warmup_rounds)
        _check_at_least(0, verify_steps=self.verify_steps)

    @classmethod
    def for_gpu(cls) -> Rounds:
        """Return what is enough for steady figures."""
        return cls(steps=50, rounds=5, warmup_rounds=3, verify_steps=48)

    @classmethod
    def for_cpu(cls) -> Rounds:
        """Return what takes two cores well below two minutes."""
        return cls(steps=12, rounds=3, warmup_rounds=1, verify_steps=6)

    @classmethod
    def on(cls, device: Device, **changed: int | None) -> Rounds:
        """Return the defaults for a device, with every number that is not None changed."""
        default = cls.for_gpu() if device.is_accelerator else cls.for_cpu()
        return replace(default, **{name: n for name, n in changed.items() if n is not None})


@dataclass(frozen=True, kw_only=True)
class CompareSettings:
    """What is compared, and how.

    Attributes:
        run: shared by all runs.
        rounds: how many steps are compared and timed.
        plans: names of the plans, in the order of the report.
        seconds: after which no further round begins; one round always runs. None: no limit.
        timelines: whether a few more steps of each plan are recorded for a timeline, after the rounds.

    Raises:
        UserError: a plan is unknown or named twice, or there is none.
    """

    run: RunSettings
    rounds: Rounds
    plans: tuple[str, ...]
    seconds: float | None = None
    timelines: bool = False

    def __post_init__(self) -> None:
        """Check what can be checked without the workload."""
        if not self.plans:
            raise UserError("`plans` must name at least one plan, but is empty")
        for plan in self.plans:
            get_plan(plan)
        twice = sorted({plan for plan in self.plans if self.plans.count(plan) > 1})
        if twice:
            raise UserError(f"`plans` names {', '.join(twice)} more than once; once is enough")


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise UserError(f"`{name}` must be at least {least}, but is {value}")
