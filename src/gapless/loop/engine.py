"""What a run owns for all its epochs: streams, events, transfer lanes, losses and the meter."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from gapless.device.find import find_device
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.losses.deferred_loss import DeferredLoss
from gapless.pipeline.meter import GapMeter
from gapless.pipeline.prefetch import Prefetcher
from gapless.pipeline.streams import EventPool, PlanStreams
from gapless.pipeline.transfer import TransferLane
from gapless.ranks import SingleRank


if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    import torch

    from gapless.device.base import Device, Stream
    from gapless.plans import Plan
    from gapless.ranks import Ranks
    from gapless.records.bottleneck import Launch


BatchT = TypeVar("BatchT")


class Engine:
    """Streams, events, transfer lanes, losses and meter of one run.

    Args:
        plan: says how many streams there are, and how far transfers run ahead.
        device: a device or its name.
        ranks: that run the same steps; None: this process trains alone.

    Attributes:
        plan: as given.
        device: the device itself.
        ranks: that run the same steps.
        streams: by the work that they carry.
        host_waits: the one door for waits.
        losses: of all batches of the run.
        meter: of the time between steps.
        events: that the host asks for, or that streams wait for.

    Raises:
        DeviceError: the device is unknown or absent.
    """

    def __init__(
        self, plan: Plan, device: str | torch.device | Device, *, ranks: Ranks | None = None
    ) -> None:
        self.plan = plan
        self.ranks = SingleRank() if ranks is None else ranks
        self.device = find_device(device)
        self.streams = PlanStreams(self.device, plan.streams)
        self.host_waits = HostWaits(self.device)
        self.losses = DeferredLoss(
            self.device,
            warn_nonfinite=False,
            readback_stream=self.streams.readback,
            wait_stats=self.host_waits.stats,
            ranks=self.ranks,
        )
        self.meter: GapMeter[Launch] = GapMeter(self.device)
        self.events = EventPool(self.device)
        self._lanes = [TransferLane(self.device, stream) for stream in self.streams.transfer]

    def on_compute_stream(self) -> AbstractContextManager[object]:
        """Send the work of a `with` body to the compute stream.

        Sync: Does not block the host.
        """
        return self.device.use_stream(self.streams.compute)

    def prefetch(self, batches: Iterable[BatchT]) -> Prefetcher[BatchT]:
        """Return the batches, moved to the device, as far ahead as the plan says.

        Sync: Does not block the host on the device.
        """
        return Prefetcher(
            batches,
            device=self.device,
            host_waits=self.host_waits,
            lanes=self._lanes,
            depth=self.plan.prefetch,
            pin_memory=self.plan.pin_memory,
            max_in_flight=self.plan.run_ahead,
        )

    def chain(self, before: Stream, after: Stream) -> None:
        """Let stream `after` wait for what was queued on stream `before` so far.

        Sync: Does not block the host.
        """
        event = self.events.record(before)
        self.device.wait_event(after, event)
        self.events.give_back(event)

    def wait_for_all(self, *, reason: str) -> None:
        """Wait for the work of all streams.

        Sync: Blocks the host; one counted wait for each stream.
        """
        for stream in self.streams.all:
            self.host_waits.wait_stream(stream, reason=reason)

    def close(self) -> None:
        """Return to the stream that was current before the run.

        Sync: Does not block the host; queued work still runs.
        """
        self.streams.close()
