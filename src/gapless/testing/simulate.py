"""Run a check on the simulated device under many schedules."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.testing.simulated.simulated_device import SimulatedDevice


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gapless.testing.simulated.queues import Scheduler


@dataclass(frozen=True)
class SimulationFailure:
    """A schedule under which the check failed.

    Attributes:
        scheduler: `asap`, `lazy` or `random`.
        seed: of the random scheduler.
        races: the report of the race checker; None without races.
        error: the traceback of what the check raised; None if it returned.
    """

    scheduler: Scheduler
    seed: int
    races: str | None
    error: str | None

    def __str__(self) -> str:
        found = "\n".join(text for text in (self.races, self.error) if text)
        return f"with SimulatedDevice(scheduler={self.scheduler!r}, seed={self.seed}):\n{found}"


@dataclass
class SimulationResult:
    """The outcome of all schedules.

    Attributes:
        num_runs: number of schedules.
        num_accesses: memory accesses recorded, over all schedules.
        failures: the schedules that failed, in order.
    """

    num_runs: int = 0
    num_accesses: int = 0
    failures: list[SimulationFailure] = field(default_factory=list)

    def __str__(self) -> str:
        counted = (
            f"{len(self.failures)} of {self.num_runs} schedules failed, "
            f"{self.num_accesses:,} accesses recorded"
        )
        return "\n\n".join([counted, *map(str, self.failures[:3])])


def simulate(
    check: Callable[[SimulatedDevice], object],
    *,
    seeds: int | Iterable[int] = 20,
    durations: Mapping[str, float] | None = None,
    forbid_waits: bool = False,
) -> SimulationResult:
    """Run a check on the simulated device under every scheduler, with the race checker on.

    Args:
        check: takes the device and uses it; raises if a value is wrong.
        seeds: of the random scheduler: their number, or the seeds. `asap` and `lazy` always run.
        durations: milliseconds by name of the work, for the virtual clock.
        forbid_waits: a host wait that is not declared raises in the check. Waits through
            `gapless.allow_waits`, and those that gapless itself makes, are declared.

    Returns:
        The schedules that failed: by a race, by an exception, or because the check never used device
        memory. No failure means that there was no unordered pair among the recorded accesses; it
        does not prove that there are no races.

    Example:
        result = gapless.testing.simulate(check_my_loader)
        assert not result.failures, result

    Sync: Blocks the host while the simulations run; no accelerator is used.
    """
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    result = SimulationResult()
    schedules: list[tuple[Scheduler, int]] = [("asap", 0), ("lazy", 0)]
    for scheduler, seed in [*schedules, *(("random", seed) for seed in chosen)]:
        device = SimulatedDevice(scheduler=scheduler, seed=seed, durations=durations)
        error = _run(check, device, forbid_waits=forbid_waits)
        result.num_runs += 1
        result.num_accesses += device.report.num_accesses
        if error is None and not device.report.num_accesses:
            error = (
                "the check used no device memory; move tensors with .to(device.torch_device), or "
                "make them there"
            )
        races = str(device.report) if device.report.races else None
        if races or error:
            result.failures.append(SimulationFailure(scheduler, seed, races, error))
    return result


def _run(
    check: Callable[[SimulatedDevice], object], device: SimulatedDevice, *, forbid_waits: bool
) -> str | None:
    try:
        with device, device.forbid_waits() if forbid_waits else device.allow_waits():
            check(device)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException:  # also pytest.fail, which is no Exception
        return traceback.format_exc()
    return None
