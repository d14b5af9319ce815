"""What scenarios are made of: a model, batches, and ways to look at values without waiting."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import torch

from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.host_waits import HostWaits
from gapless.pipeline.prefetch import Prefetcher
from gapless.pipeline.transfer import TransferLane
from toy_steps import Regression, read_back


NUM_BATCHES = 11


class TwoRanks:
    """This rank, and another that does the same, and can do what this one can."""

    world = 2

    def agree(self, value):
        return [value] * 2

    def gather_rows(self, rows):
        return torch.stack((rows, rows))

    def pause(self, reason):
        del reason
        return nullcontext()


@cache
def regression_data():
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 3, generator=draw), torch.randn(4, 1, generator=draw))
        for _ in range(NUM_BATCHES)
    ]


@cache
def expected_training(num_epochs=1, num_batches=NUM_BATCHES):
    """Return losses and weights of a plain sequential loop."""
    model = Regression()
    losses = []
    for batch in regression_data()[:num_batches] * num_epochs:
        out = model.forward(batch)
        model.backward(out)
        losses.append(out.loss.item())
    return losses, model.weight.detach().clone()


def check_training(device, plan, *, num_epochs=1, num_batches=NUM_BATCHES):
    model = Regression()
    means = []
    with TrainLoop(plan=plan, device=device) as loop:
        results = [
            loop.run_epoch(
                regression_data()[:num_batches],
                model,
                on_batch=lambda now: means.append(now.mean_loss),
            )
            for _ in range(num_epochs)
        ]
        # Read on the outer stream, without being told that the epoch used another.
        copied = read_back(device, model.weight)
    losses, weight = expected_training(num_epochs, num_batches)
    assert losses == [loss for result in results for loss in result.losses]
    assert losses == loop.losses.history
    assert [2.0] * len(losses) == loop.losses.weights
    assert torch.equal(weight, copied)
    return loop, results, means


def number(device, value):
    """Return one number on the device."""
    return device.device_buffer(4).view(torch.float32)[0].fill_(value)


def is_idle(device, stream):
    """Whether everything queued on a stream has run."""
    event = device.create_event()
    device.record_event(event, stream)
    return event.mark.is_done


def counts(result):
    return {reason: total.count for reason, total in result.waits.by_reason.items()}


def make_prefetcher(loader, device, *, num_lanes=1, **settings):
    """Return a prefetcher with lanes of its own, and its waits."""
    host_waits = HostWaits(device)
    lanes = [TransferLane(device, device.create_stream()) for _ in range(num_lanes)]
    prefetcher = Prefetcher(loader, device=device, host_waits=host_waits, lanes=lanes, **settings)
    return prefetcher, host_waits.stats


class Lent:
    """The addresses of device memory that copies are made into, while it is entered."""

    def __init__(self, device):
        self._device = device
        self._addresses = set()

    def __enter__(self):
        allocate = self._device.device_like

        def device_like(tensor):
            lent = allocate(tensor)
            self._addresses.add(lent.data_ptr())
            return lent

        self._device.device_like = device_like
        return self

    def __exit__(self, *error):
        del self._device.device_like

    def __len__(self):
        return len(self._addresses)


def numbered(sizes):
    return [torch.full((size,), float(number)) for number, size in enumerate(sizes)]


class Sums:
    """Kernels that read batches, one sum each, to be looked at when all is done."""

    def __init__(self, device, count):
        self._device = device
        self.values = device.device_buffer(8 * count).view(torch.float64)

    def add(self, number, tensor):
        self.values[number].copy_(tensor.mean(dtype=torch.float64))

    def all(self):
        return read_back(self._device, self.values).tolist()
