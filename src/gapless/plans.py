"""Plans: how a training loop moves its work, as plain data.

A plan says how many streams there are, when the host waits and what with, when losses are
read, and how far transfers run ahead. The loop reads these fields and nothing else: no code
branches on a plan's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from gapless.errors import PlanError


WaitWith = Literal["stream", "event", "nothing"]
Graphs = Literal["never", "always", "auto"]

MAX_STREAMS = 8

# No loader needs more processes, and a system may not bear the attempt.
MAX_WORKERS = 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Describe how a loop moves its work between the host and the device.

    Attributes:
        name: what reports call it.
        summary: one line for `gapless train --help` and the documentation.
        streams: number of streams, 1 to 8; `gapless.pipeline.streams` says what each carries.
        wait_with: what the host waits with every `sync_interval` batches: the whole compute
            `stream`, a recorded `event`, or `nothing` (the host never waits inside an epoch).
        sync_interval: batches between two host waits, at least 1.
        loss_interval: batches between two reads of the losses, at least 1. With `stream` a
            read is a wait of its own, as `loss.item()` is. With `event` the copy of the losses
            is queued before the event, so the one wait covers both. With `nothing` the losses
            are picked up when their copy is found complete.
        prefetch: batches that are read and transferred ahead of the one in use, at least 0: the
            next batch is read when its step is due. More changes results if the loader and the
            step share anything, such as a random generator; the host runs ahead of the device
            anyway where it does not wait.
        workers: processes that make the trainer's batches, 0 to 1024 (0: the training process
            itself, ahead of the device). To gather a batch of token ids takes less time than to
            take it over from another process.
        pin_memory: stage batches in page-locked memory, so that transfers do not block.
        run_ahead: most batches the host may be ahead of the device, at least 1.
        graphs: `always` launches the whole step as one graph for each kind of batch; `auto`
            measures the first steps, names the bottleneck, and captures steps where that is
            faster; `never` runs steps eagerly. Without effect on a CPU, which has nothing to
            launch.
    """

    name: str
    summary: str = ""
    streams: int = 2
    wait_with: WaitWith = "stream"
    sync_interval: int = 1
    loss_interval: int = 1
    prefetch: int = 0
    workers: int = 2
    pin_memory: bool = True
    run_ahead: int = 128
    graphs: Graphs = "never"

    def __post_init__(self) -> None:
        """Check every knob.

        Raises:
            PlanError: a knob is out of its range; the message names it and the range.
        """
        if not 1 <= self.streams <= MAX_STREAMS:
            raise PlanError(f"`streams` must be 1 to {MAX_STREAMS}, but is {self.streams}")
        if self.workers > MAX_WORKERS:
            raise PlanError(f"`workers` must be at most {MAX_WORKERS}, but is {self.workers}")
        for name, choices in (("wait_with", WaitWith), ("graphs", Graphs)):
            if getattr(self, name) not in get_args(choices):
                known = ", ".join(get_args(choices))
                raise PlanError(f"`{name}` must be one of {known}, but is {getattr(self, name)!r}")
        for knob, least in _LEAST.items():
            value = getattr(self, knob)
            if value < least:
                raise PlanError(f"`{knob}` must be at least {least}, but is {value}")

    def with_knobs(self, **knobs: Any) -> Plan:
        """Return this plan with the given knobs changed; `None` leaves a knob as it is.

        Raises:
            PlanError: a knob is out of its range.
        """
        return replace(self, **{k: v for k, v in knobs.items() if v is not None})


_LEAST = {"sync_interval": 1, "loss_interval": 1, "prefetch": 0, "workers": 0, "run_ahead": 1}

_ALL = (
    Plan(
        name="blocking",
        summary="the loop as most write it: wait for the device and read the loss every batch",
    ),
    Plan(
        name="deferred-loss",
        summary="wait every batch, read the losses in bulk every 10",
        loss_interval=10,
    ),
    Plan(
        name="events",
        summary="wait every batch for a recorded event instead of the whole stream",
        wait_with="event",
        loss_interval=10,
    ),
    Plan(
        name="interval",
        summary="wait for the stream only every 10 batches",
        sync_interval=10,
        loss_interval=10,
    ),
    Plan(
        name="events-interval",
        summary="one wait on an event every 10 batches, which also brings the losses",
        wait_with="event",
        sync_interval=10,
        loss_interval=10,
    ),
    Plan(
        name="four-stream",
        summary="transfer, forward, backward and next transfer on streams chained by events",
        streams=4,
        wait_with="event",
        sync_interval=10,
        loss_interval=10,
        prefetch=2,
    ),
    Plan(
        name="full",
        summary="four streams, events, interval and more loader processes",
        streams=4,
        wait_with="event",
        sync_interval=10,
        loss_interval=10,
        prefetch=2,
        workers=4,
    ),
    Plan(
        name="gapless",
        summary="transfer, compute and readback streams; no host wait before the epoch's end",
        streams=3,
        wait_with="nothing",
        loss_interval=10,
        workers=0,
    ),
    Plan(
        name="captured",
        summary="gapless, with the whole step launched as one CUDA graph for each shape of batch",
        streams=3,
        wait_with="nothing",
        loss_interval=10,
        workers=0,
        graphs="always",
    ),
    Plan(
        name="auto",
        summary="gapless, measured: names the bottleneck, captures steps where that is faster",
        streams=3,
        wait_with="nothing",
        loss_interval=10,
        workers=0,
        graphs="auto",
    ),
)

PLANS: dict[str, Plan] = {plan.name: plan for plan in _ALL}


def get_plan(plan: str | Plan) -> Plan:
    """Return the plan of that name, or the plan itself.

    Raises:
        PlanError: no plan has this name; the message lists those that exist.
    """
    if isinstance(plan, Plan):
        return plan
    if plan not in PLANS:
        raise PlanError(f"unknown plan {plan!r}; the plans are {', '.join(PLANS)}")
    return PLANS[plan]
