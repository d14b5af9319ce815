"""When the host waits and reads losses, by plan: one policy for each value of `Plan.wait_with`."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol


if TYPE_CHECKING:
    from gapless.device.base import Event
    from gapless.loop.engine import Engine


class PlanWaits(Protocol):
    """What the host does after each step, and at the end of an epoch."""

    def after_step(self, num_steps: int) -> None:
        """Wait and read losses as the plan says, after so many steps of the epoch.

        Sync: As the class says.
        """

    def at_end(self) -> None:
        """Wait until every loss of the epoch is read.

        Can be called again when it was interrupted.

        Sync: Blocks the host ("epoch_end").
        """

    def clear(self) -> None:
        """Forget what is in flight; nothing of the epoch is left on the device.

        Sync: Does not block the host.
        """


def waits_of(engine: Engine) -> PlanWaits:
    """Return the policy of an engine's plan."""
    match engine.plan.wait_with:
        case "stream":
            return StreamWaits(engine)
        case "event":
            return EventWaits(engine)
        case "nothing":
            return BoundedRunAhead(engine)


class StreamWaits:
    """Wait for the whole compute stream; each read of losses is a further wait.

    Sync: Blocks the host every `sync_interval` steps ("batch", "interval"), and every `loss_interval`
        steps ("loss_read").
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def after_step(self, num_steps: int) -> None:
        """Wait and read losses where an interval of the plan ends."""
        engine, plan = self._engine, self._engine.plan
        if num_steps % plan.sync_interval == 0:
            engine.host_waits.wait_stream(engine.streams.compute, reason=_reason(engine))
        if num_steps % plan.loss_interval == 0:
            engine.losses.drain(reason="loss_read")
        engine.losses.poll()

    def at_end(self) -> None:
        """Wait until every loss of the epoch is read."""
        self._engine.losses.drain(reason="epoch_end")

    def clear(self) -> None:
        """Nothing is in flight: the host has waited for it."""


class EventWaits:
    """Wait for a recorded event; the copy of the losses is queued before it, so one wait does.

    Sync: Blocks the host every `sync_interval` steps ("batch", "interval").
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def after_step(self, num_steps: int) -> None:
        """Wait and read losses where an interval of the plan ends."""
        engine, plan = self._engine, self._engine.plan
        if num_steps % plan.loss_interval == 0:
            engine.losses.flush()
        if num_steps % plan.sync_interval == 0:
            _wait_for_losses(engine, reason=_reason(engine))
        engine.losses.poll()

    def at_end(self) -> None:
        """Wait until every loss of the epoch is read."""
        self._engine.losses.drain(reason="epoch_end")

    def clear(self) -> None:
        """Nothing is in flight: the host has waited for it."""


class BoundedRunAhead:
    """Never wait inside an epoch, unless the host is `run_ahead` steps ahead of the device.

    Sync: Blocks the host only then ("run_ahead").
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._in_flight: deque[Event] = deque()

    def after_step(self, num_steps: int) -> None:
        """Queue the copy of the losses where an interval ends; limit how far the host runs ahead."""
        engine = self._engine
        if num_steps % engine.plan.loss_interval == 0:
            engine.losses.flush()
        self._limit_run_ahead()
        engine.losses.poll()

    def _limit_run_ahead(self) -> None:
        engine, in_flight = self._engine, self._in_flight
        in_flight.append(engine.events.record(engine.streams.compute))
        while in_flight and engine.device.query_event(in_flight[0]):
            engine.events.give_back(in_flight.popleft())
        if len(in_flight) >= engine.plan.run_ahead:
            oldest = in_flight.popleft()
            engine.host_waits.wait_event(oldest, reason="run_ahead")
            engine.events.give_back(oldest)

    def at_end(self) -> None:
        """Wait until every loss of the epoch is read."""
        losses = self._engine.losses
        losses.flush()
        _wait_for_losses(self._engine, reason="epoch_end")
        losses.poll()
        losses.drain(reason="epoch_end")

    def clear(self) -> None:
        """Forget what was in flight: the host has waited for it."""
        self._in_flight.clear()


def _reason(engine: Engine) -> str:
    return "batch" if engine.plan.sync_interval == 1 else "interval"


def _wait_for_losses(engine: Engine, *, reason: str) -> None:
    """Wait for one event behind all steps and all copies of losses that are queued."""
    streams = engine.streams
    if streams.readback is not streams.compute:
        engine.chain(streams.readback, streams.compute)
    event = engine.events.record(streams.compute)
    engine.host_waits.wait_event(event, reason=reason)
    engine.events.give_back(event)
