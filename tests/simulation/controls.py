"""Loops with a known bug each, which the checker and the kit must catch; and their cures.

Written as people write them, against the device protocol, so that the same code runs on the
simulated device and on a GPU.
"""

from __future__ import annotations

import torch

import gapless
from gapless.pipeline.host_waits import HostWaits


class _Prefetcher:
    """One batch ahead on a stream of its own: the part that all of these have right."""

    def __init__(self, loader, device):
        self.loader = loader
        self.device = device
        self.stream = device.shared_stream("control.transfer")
        self.host_waits = HostWaits(device)

    def __iter__(self):
        ahead = None
        for number, batch in enumerate(self.loader):
            staged = self.stage(number, batch)
            if ahead is not None:
                yield self.hand_out(*ahead)
            ahead, staged = staged, None
        if ahead is not None:
            yield self.hand_out(*ahead)

    def hand_out(self, tensor, ready):
        self.device.wait_event(self.device.current_stream(), ready)
        return tensor

    def copy(self, target, host):
        with self.device.use_stream(self.stream):
            self.device.copy(target, host)
        ready = self.device.create_event()
        self.device.record_event(ready, self.stream)
        return target, ready

    def pinned(self, batch):
        num_bytes = batch.numel() * batch.element_size()
        host = self.device.host_buffer(num_bytes, pinned=True).view(batch.dtype).view(batch.shape)
        host.copy_(batch)
        return host

    def fresh(self, batch):
        num_bytes = batch.numel() * batch.element_size()
        return self.device.device_buffer(num_bytes).view(batch.dtype).view(batch.shape)


class NoReverseGuard(_Prefetcher):
    """Two device buffers in turn; nothing holds a copy back while its buffer is still read."""

    has_guard = False

    def stage(self, number, batch):
        if number < 2:
            self.buffers = [*getattr(self, "buffers", []), self.fresh(batch)]
        if self.has_guard:
            self.device.wait_stream(self.stream, self.device.current_stream())
        return self.copy(self.buffers[number % 2], self.pinned(batch))


class ReverseGuard(NoReverseGuard):
    """The same with the guard."""

    has_guard = True


class NoLifetime(_Prefetcher):
    """Fresh memory of the transfer stream for every batch, let go of with the batch.

    The allocator hands it out again while queued work still reads it: no ring keeps it, and no
    `record_stream` tells.
    """

    tells = False

    def stage(self, number, batch):
        del number
        with self.device.use_stream(self.stream):
            target = self.fresh(batch)
        return self.copy(target, self.pinned(batch))

    def hand_out(self, tensor, ready):
        tensor = super().hand_out(tensor, ready)
        if self.tells:
            self.device.record_stream(tensor, self.device.current_stream())
        return tensor


class Lifetime(NoLifetime):
    """The same with `record_stream`."""

    tells = True


class EarlyRefill(_Prefetcher):
    """One pinned buffer, refilled for the next batch before its copy is done."""

    waits = False

    def stage(self, number, batch):
        if number == 0:
            self.host, self.copied = self.pinned(batch), None
        if self.waits and self.copied is not None:
            self.host_waits.wait_event(self.copied, reason="refill")
        self.host.copy_(batch)
        self.device.wait_stream(self.stream, self.device.current_stream())
        target, self.copied = self.copy(self.fresh(batch), self.host)
        return target, self.copied


class Refill(EarlyRefill):
    """The same, waiting for the copy."""

    waits = True


class EarlyRead:
    """Losses copied to pinned memory and read at once, whether or not the copy is done."""

    waits = False

    def __init__(self, device):
        self.device = device
        self.rows = device.host_buffer(4 * 64, pinned=True).view(torch.float32)
        self.rows.fill_(-1.0)
        self.kept = []

    def add(self, loss):
        self.device.copy(self.rows[len(self.kept)], loss)
        self.kept.append(loss)

    def read(self):
        if self.waits:
            done = self.device.create_event()
            self.device.record_event(done, self.device.current_stream())
            HostWaits(self.device).wait_event(done, reason="read")
        return self.rows[: len(self.kept)].tolist()


class Read(EarlyRead):
    """The same after an event."""

    waits = True


class DeferredLossReader:
    """gapless's own reader behind the interface of the kit."""

    def __init__(self, device):
        self.losses = gapless.DeferredLoss(device)

    def add(self, loss):
        self.losses.add(loss)
        self.losses.flush()
        self.losses.poll()

    def read(self):
        self.losses.drain()
        return self.losses.history


BROKEN_PREFETCHERS = {
    "no reverse guard": NoReverseGuard,
    "no record_stream or ring": NoLifetime,
    "pinned slot refilled early": EarlyRefill,
}
CURED_PREFETCHERS = {"guarded": ReverseGuard, "recorded": Lifetime, "refilled late": Refill}
