"""The timeline of a plan for given durations, from the simulated device's virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.step import StepLoss
from gapless.plans import get_plan
from gapless.testing.simulated.simulated_device import SimulatedDevice


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gapless.plans import Plan
    from gapless.testing.simulated.virtual_clock import Timeline


# Batches at the start of an epoch that are not counted, because the pipeline fills.
_NUM_FILLING = 10

_NEEDED = ("h2d", "forward", "backward", "host")


@dataclass(frozen=True, kw_only=True)
class PlanTimeline:
    """Figures of one epoch of a plan.

    Attributes:
        plan: its name.
        timeline: all work, with its virtual times.
        step_ms: from the start of one step to the start of the next, once the pipeline is full.
        gap_share: share of that time in which no kernel runs, 0 to 1.
        overlap_share: share of the copies' time in which kernels run too, 0 to 1.
        wait_ms: time that the host waits for the device, for each batch.
    """

    plan: str
    timeline: Timeline
    step_ms: float
    gap_share: float
    overlap_share: float
    wait_ms: float


class _Batches:
    """A loader in the training process that takes the time `host` for each batch."""

    def __init__(self, device: SimulatedDevice, count: int) -> None:
        self._device = device
        self._count = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self._count):
            self._device.spend("host")
            yield torch.ones(64, device="cpu")  # large enough for a transfer stream


class _Step:
    """A step of one forward kernel and one backward kernel."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device

    def forward(self, batch: torch.Tensor) -> StepLoss:
        with self._device.region("forward"):
            return StepLoss(loss=(batch * 2).sum())

    def backward(self, out: StepLoss) -> None:
        with self._device.region("backward"):
            out.loss.add(1)


def plan_timeline(
    plan: str | Plan, *, durations: Mapping[str, float], num_batches: int = 50
) -> PlanTimeline:
    """Run one epoch of a plan on the virtual clock.

    Args:
        plan: a plan or its name.
        durations: milliseconds of `h2d`, `forward`, `backward` and `host` (the loader's time in the
            training process) for each batch; also `d2h` and `launch`, by default 0.
        num_batches: of the epoch, more than 20.

    Raises:
        PlanError: the plan is unknown.
        ValueError: `num_batches` is too small for a steady state, or a duration is missing,
            negative or unknown.

    Sync: Blocks the host while the simulation runs; no accelerator is used.
    """
    if num_batches <= 2 * _NUM_FILLING:
        raise ValueError(f"num_batches must be above {2 * _NUM_FILLING}, but is {num_batches}")
    _check(durations)
    # Capture changes nothing on this clock, whose step has one forward and one backward kernel.
    chosen = get_plan(plan).with_knobs(graphs="never")
    device = SimulatedDevice(scheduler="asap", durations=durations)
    with device, TrainLoop(plan=chosen, device=device) as loop:
        loop.run_epoch(_Batches(device, num_batches), _Step(device))
    return _steady_state(chosen.name, device.timeline)


def _check(durations: Mapping[str, float]) -> None:
    unknown = sorted(set(durations) - {*_NEEDED, "d2h", "launch"})
    missing = [name for name in _NEEDED if name not in durations]
    negative = [name for name, value in durations.items() if not value >= 0.0]
    if unknown or missing or negative:
        raise ValueError(
            f"durations must name {', '.join(_NEEDED)}, may name d2h and launch, and must be 0 or more; "
            f"unknown: {unknown}, missing: {missing}, negative: {negative}"
        )


def _steady_state(name: str, timeline: Timeline) -> PlanTimeline:
    steps = [span.start_ms for span in timeline.spans if span.name == "forward"]
    loads = [span.start_ms for span in timeline.spans if span.name == "host"]
    # Whole intervals of ten batches, so that every plan's waits are counted in proportion.
    first = _NUM_FILLING
    count = (len(steps) - 1 - first) // _NUM_FILLING * _NUM_FILLING
    since, until = steps[first], steps[first + count]
    busy = timeline.busy_ms("compute", since=since, until=until)
    copies = timeline.busy_ms("h2d")
    return PlanTimeline(
        plan=name,
        timeline=timeline,
        step_ms=(until - since) / count,
        gap_share=1.0 - busy / (until - since),
        overlap_share=timeline.overlap_ms("h2d", "compute") / copies if copies else 1.0,
        wait_ms=timeline.waited_ms(since=loads[first], until=loads[first + count]) / count,
    )
