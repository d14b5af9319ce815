"""Scenarios: small programs whose every value is known beforehand, and how they are run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.testing.simulated.simulated_device import SimulatedDevice


if TYPE_CHECKING:
    from collections.abc import Callable


class RaceError(AssertionError):
    """The checker found accesses that nothing orders."""


@dataclass(frozen=True)
class Scenario:
    """A small program, and where it is run.

    Attributes:
        check: takes the device; raises AssertionError.
        durations: of the virtual clock.
        only: the one scheduler that it is about; None for all.
        num_seeds: most random seeds that are worth the time.
    """

    check: Callable[[SimulatedDevice], None]
    durations: dict[str, float] | None = None
    only: str | None = None
    num_seeds: int = 10_000


SCENARIOS = {}

# Seeds for what is about failing, counting and closing more than about order.
FEW = 50

# For what is long, and shares its orders with a scenario that runs under more.
VERY_FEW = 6


def scenario(name=None, **settings):
    def keep(check):
        SCENARIOS[name or check.__name__] = Scenario(check, **settings)
        return check

    return keep


def schedules(name, seeds):
    """Return the (scheduler, seed) pairs under which a scenario is run."""
    found = [("asap", 0), ("lazy", 0), *(("random", seed) for seed in seeds)]
    return [
        (scheduler, seed)
        for scheduler, seed in found
        if SCENARIOS[name].only in (None, scheduler) and seed < SCENARIOS[name].num_seeds
    ]


def run(name, *, scheduler, seed=0):
    """Run one scenario on a fresh simulated device with the checker on.

    Raises:
        RaceError: nothing orders two accesses, whether or not values suffered.
        AssertionError: a value, a count or a bound is wrong.
    """
    chosen = SCENARIOS[name]
    device = SimulatedDevice(scheduler=scheduler, seed=seed, durations=chosen.durations)
    try:
        with device, device.forbid_waits():
            chosen.check(device)
    finally:
        if device.report.races:
            raise RaceError(str(device.report))
    assert not device.report.serialised, device.report.serialised
    return device.report.num_accesses
