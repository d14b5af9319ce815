"""The public test kit: for gapless's own engine, and for anybody's prefetcher or training loop.

    simulate          run a check on a simulated device under many schedules, race checker on
    SimulatedDevice   streams that run late, on any machine
    check_prefetcher  are the batches right, with one side held up?
    check_readback    are the losses right, with a slow device?
    count_waits       how often does the host wait, and where?
    forbid_waits      fail if it does
    poisoned          a device whose fresh memory shows when it is read too early

`allow_waits`, `count_waits` and `forbid_waits` are those of `gapless` itself. The rest of the package
imports nothing from here.
"""

from __future__ import annotations

from gapless.device.find import find_device as find_device
from gapless.device.waits import (
    WaitCount as WaitCount,
    allow_waits as allow_waits,
    count_waits as count_waits,
    forbid_waits as forbid_waits,
)
from gapless.testing.checks import (
    LossReader as LossReader,
    check_prefetcher as check_prefetcher,
    check_readback as check_readback,
)
from gapless.testing.poison import poisoned as poisoned
from gapless.testing.simulate import (
    SimulationFailure as SimulationFailure,
    SimulationResult as SimulationResult,
    simulate as simulate,
)
from gapless.testing.simulated.simulated_device import SimulatedDevice as SimulatedDevice


__all__ = [
    "LossReader",
    "SimulatedDevice",
    "SimulationFailure",
    "SimulationResult",
    "WaitCount",
    "allow_waits",
    "check_prefetcher",
    "check_readback",
    "count_waits",
    "find_device",
    "forbid_waits",
    "poisoned",
    "simulate",
]
