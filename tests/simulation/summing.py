"""Gradients that ranks sum within captured steps."""

from __future__ import annotations

from unittest.mock import patch

import torch

from gapless.loop.train_loop import TrainLoop
from gapless.pipeline.step import StepLoss
from gapless.ranks.gradient_sum import FlatSum
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

    def sum_gradients(self):
        self._gradients = FlatSum(self.weights, group=None, agree=TwoRanks().agree)

    def forward(self, batch):
        x, y = batch
        for weight in self.weights:
            x = x @ weight
        return StepLoss(loss=(x - y).square().mean(), weight=2.0)

    def backward(self, out):
        out.loss.backward()
        self._gradients.finish()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=not self._keeps_gradients)


class Doubled:
    """Gradients that are summed with equal ones."""

    def __init__(self, layers):
        self._weights = layers.weights

    def finish(self):
        for weight in self._weights:
            weight.grad.mul_(2)


def train_plainly(batches):
    step = Layers()
    step._gradients = Doubled(step)
    losses = []
    for batch in batches:
        out = step.forward(batch)
        step.backward(out)
        losses.append(out.loss.item())
    return losses, [weight.detach().clone() for weight in step.weights]


def doubled(memory, *, group):
    """Stand in for `all_reduce`: the other rank sends the same."""
    memory.mul_(2)


def _sum_scenario(name, *, keeps_gradients):
    @scenario(name, num_seeds=1)
    def check(device):
        batches = regression_data()[:6]
        losses, weights = train_plainly(batches)
        step = Layers(keeps_gradients=keeps_gradients)
        with (
            patch("torch.distributed.all_reduce", doubled),
            TrainLoop(plan="captured", device=device, ranks=TwoRanks()) as loop,
        ):
            with loop.on_compute_stream():
                step.sum_gradients()
            result = loop.run_epoch(batches, step)
            copied = [read_back(device, weight) for weight in step.weights]
        report = loop.capture_report
        assert (report.num_graphs, report.refusal) == (1, None)
        assert report.num_replays > 0
        assert losses == result.losses
        assert all(map(torch.equal, weights, copied))
        assert counts(result)["capture"] == 2


_sum_scenario("ranks_that_sum", keeps_gradients=False)
_sum_scenario("ranks_that_sum_in_place", keeps_gradients=True)
