"""Gradients that ranks sum within captured steps."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

import torch

from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.step import StepLoss
from gapless.ranks import carriers
from gapless.ranks.gradient_sum import summing
from gapless.ranks.way_to_sum import WayToSum
from simulation.registry import scenario
from simulation.workloads import TwoRanks, counts, read_back, regression_data


SIZES = (3, 200, 3)


class Layers:
    """A step of three layers, which is summed."""

    def __init__(self, gradients=None, *, keeps_gradients=False):
        draw = torch.Generator().manual_seed(2)
        self.weights = [
            torch.nn.Parameter(torch.randn(one, other, generator=draw))
            for one, other in zip(SIZES, (*SIZES[1:], 1), strict=True)
        ]
        self._gradients = gradients
        self._optimizer = torch.optim.SGD(self.weights, lr=1e-4)
        self._keeps_gradients = keeps_gradients

    def sum_gradients(self, way):
        group, agree = Group(), TwoRanks().agree
        last = group if way.last == way else Group()
        self._gradients = summing(self.weights, way, group=group, last_group=last, agree=agree)

    def forward(self, batch):
        x, y = batch
        for weight in self.weights:
            x = x @ weight
        return StepLoss(loss=(x - y).square().mean(), weight=2.0)

    def backward(self, out):
        self._gradients.start()
        out.loss.backward()
        self._gradients.finish()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=not self._keeps_gradients)


class Doubled:
    """Gradients that are summed with equal ones."""

    def __init__(self, layers, *, is_rounded):
        self._weights = layers.weights
        self._is_rounded = is_rounded

    def start(self):
        pass

    def finish(self):
        for weight in self._weights:
            sent = weight.grad.bfloat16() if self._is_rounded else weight.grad
            weight.grad.copy_(sent * 2)


def train_plainly(batches, *, is_rounded):
    step = Layers()
    step._gradients = Doubled(step, is_rounded=is_rounded)
    losses = []
    for batch in batches:
        out = step.forward(batch)
        step.backward(out)
        losses.append(out.loss.item())
    return losses, [weight.detach().clone() for weight in step.weights]


class Sent:
    """A sum under way on the stream of the group."""

    def __init__(self, device, event):
        self._device = device
        self._event = event

    def wait(self):
        self._device.wait_event(self._device.current_stream(), self._event)


def collectives_on(device):
    """Return what takes the place of `all_reduce`: the other rank sends the same.

    Each group has a stream of its own.
    """
    streams = {}

    def all_reduce(memory, *, group, async_op=False):
        if group not in streams:
            streams[group] = device.create_stream()
        stream = streams[group]
        if not async_op:
            memory.mul_(2)
            return None
        device.wait_stream(stream, device.current_stream())
        with device.use_stream(stream):
            memory.mul_(2)
        event = device.create_event()
        device.record_event(event, stream)
        return Sent(device, event)

    return all_reduce


class Group:
    """Of two ranks; this one is the first."""

    def rank(self):
        return 0


def peer_memory_on(device):
    """Return what takes the place of `PeerMemory`: the other rank sends the same, and sums as well."""

    class Twins:
        def __init__(self, like, group):
            self.own, self._twin, self._has_sent = [
                device.device_buffer(4 * size).view(torch.float32).zero_()
                for size in (like.numel(), like.numel(), 1)
            ]
            self.of_ranks = [self.own, self._twin]

        def meet(self):
            received = torch.where(self._has_sent > 0, self._twin * 2, self.own)
            self._twin.copy_(received)
            self._has_sent.neg_().add_(1)

    return Twins


def side_stream_on(device):
    """Return what takes the place of `SideStream`."""

    class Side:
        def __init__(self, torch_device):
            self._stream = device.create_stream()

        @contextmanager
        def behind_current(self):
            device.wait_stream(self._stream, device.current_stream())
            with device.use_stream(self._stream):
                yield

        def wait(self):
            device.wait_stream(device.current_stream(), self._stream)

    return Side


def _sum_scenario(name, way, *, keeps_gradients=False):
    @scenario(name, num_seeds=1)
    def check(device):
        batches = regression_data()[:6]
        losses, weights = train_plainly(batches, is_rounded=way.sends_bf16)
        step = Layers(keeps_gradients=keeps_gradients)
        with (
            patch("torch.distributed.all_reduce", collectives_on(device)),
            patch.object(carriers, "PeerMemory", peer_memory_on(device)),
            patch.object(carriers, "SideStream", side_stream_on(device)),
            TrainLoop(plan="captured", device=device, ranks=TwoRanks()) as loop,
        ):
            with loop.on_compute_stream():
                step.sum_gradients(way)
            result = loop.run_epoch(batches, step)
            copied = [read_back(device, weight) for weight in step.weights]
        report = loop.capture_report
        assert (report.num_graphs, report.refusal) == (1, None)
        assert report.num_replays > 0
        assert losses == result.losses
        assert all(map(torch.equal, weights, copied))
        assert counts(result)["capture"] == 2


_sum_scenario("ranks_that_sum_at_once", WayToSum())
_sum_scenario("ranks_that_sum_in_buckets", WayToSum(bucket_bytes=700), keeps_gradients=True)
_sum_scenario("ranks_that_sum_the_last_bucket_apart", WayToSum(bucket_bytes=700, most_channels=4))
_sum_scenario("ranks_that_copy_from_each_other", WayToSum(bucket_bytes=700, copies=True))
_sum_scenario("ranks_that_send_bf16", WayToSum(bucket_bytes=700, sends_bf16=True))
