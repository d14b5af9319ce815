"""The public test kit, for gapless itself and for your own prefetcher or training loop.

    simulate          runs a check on a simulated device under many schedules, with a race checker
    SimulatedDevice   a device whose streams run late, on any machine
    check_prefetcher  are the batches right if the copies, or the consumer, are slow?
    check_readback    are the losses right if the device is slow?
    poisoned          a device whose fresh memory is full of NaN, so that early reads show
    plan_timeline     what a plan's timeline looks like for given durations

Also here, because tests need them: `find_device`, `count_waits`, `forbid_waits` and `allow_waits`,
which are public names of `gapless`. The rest of the package does not import this one.
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
from gapless.testing.timelines import PlanTimeline as PlanTimeline, plan_timeline as plan_timeline


__all__ = [
    "LossReader",
    "PlanTimeline",
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
    "plan_timeline",
    "poisoned",
    "simulate",
]
