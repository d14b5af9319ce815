"""Steps that are launched as one piece."""

from __future__ import annotations

import torch

from gapless.pipeline.loop import TrainLoop
from gapless.pipeline.snapshot import Snapshot
from simulation.registry import FEW, scenario
from simulation.workloads import Regression, counts, read_back, regression_data


def mixed_shapes():
    """Return batches of four, three and two rows, in turns."""
    data = regression_data() * 2
    return [tuple(part[: 4 - number % 3] for part in batch) for number, batch in enumerate(data)]


def train_plainly(batches):
    model = Regression()
    losses = []
    for batch in batches:
        out = model.forward(batch)
        model.backward(out)
        losses.append(out.loss.item())
    return losses, model.weight.detach().clone()


@scenario()
def a_graph_for_each_shape(device):
    """Graphs that share memory and are launched in turns give the sequential result."""
    losses, weight = train_plainly(mixed_shapes())
    model = Regression()
    with TrainLoop(plan="captured", device=device) as loop:
        result = loop.run_epoch(mixed_shapes(), model)
        copied = read_back(device, model.weight)
    report = loop.capture
    assert losses == result.losses
    assert torch.equal(weight, copied)
    assert counts(result) == {"capture": 3, "epoch_end": 1}
    assert (report.num_graphs, report.num_eager, report.num_replays) == (3, 6, 16)


@scenario(num_seeds=FEW)
def a_step_that_cannot_be_captured(device):
    """It runs on as it did, and the line that forbids a capture is named."""

    class Curious(Regression):
        def backward(self, out):
            out.loss.item()
            super().backward(out)

    losses, weight = train_plainly(regression_data()[:6])
    model = Curious()
    with device.allow_syncs(), TrainLoop(plan="captured", device=device) as loop:
        result = loop.run_epoch(regression_data()[:6], model)
        copied = read_back(device, model.weight)
    assert losses == result.losses
    assert torch.equal(weight, copied)
    assert loop.capture.num_eager == 6
    assert loop.capture.refusal.startswith("capturing.py:")
    assert "inside a capture" in loop.capture.refusal


@scenario()
def shapes_captured_ahead_of_the_run(device):
    """Warm-up trains nothing: losses, weights and random numbers are those of a run without it."""
    losses, weight = train_plainly(mixed_shapes())
    model = Regression()
    start = device.device_buffer(12).view(torch.float32).view(3, 1)
    start.copy_(model.weight.detach(), non_blocking=True)
    module = torch.nn.Module()
    module.weight = model.weight = torch.nn.Parameter(start)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    done = []
    with TrainLoop(plan="captured", device=device) as loop:
        snapshot = Snapshot(module, optimizer)
        loop.warm_up(mixed_shapes()[:3], model, snapshot=snapshot, on_batch=done.append)
        result = loop.run_epoch(mixed_shapes(), model)
        copied = read_back(device, model.weight)
    assert losses == result.losses
    assert torch.equal(weight, copied)
    assert done == [1, 2, 3]
    assert counts(result) == {"epoch_end": 1}
    assert (loop.capture.num_graphs, loop.capture.num_eager) == (3, 0)


class Accumulating(Regression):
    """Updates after every second batch, which says so."""

    def forward(self, batch):
        self.ends_update = batch[2]
        return super().forward(batch[:2])

    def backward(self, out):
        out.loss.backward()
        if self.ends_update:
            with torch.no_grad():
                self.weight -= 0.1 * self.weight.grad
            self.weight.grad.zero_()


@scenario()
def gradients_that_graphs_add_to(device):
    """Gradients kept between batches are found by every graph, also after a warm-up."""
    data = [(*batch, number % 2 == 1) for number, batch in enumerate(regression_data()[:10])]
    plain = Accumulating()
    losses = []
    for batch in data:
        out = plain.forward(batch)
        plain.backward(out)
        losses.append(out.loss.item())
    model = Accumulating()
    start = device.device_buffer(12).view(torch.float32).view(3, 1)
    start.copy_(model.weight.detach(), non_blocking=True)
    module = torch.nn.Module()
    module.weight = model.weight = torch.nn.Parameter(start)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    with TrainLoop(plan="captured", device=device) as loop:
        loop.warm_up(data[:2], model, snapshot=Snapshot(module, optimizer))
        kept = []
        result = loop.run_epoch(
            data, model, on_batch=lambda _: kept.append(torch.full_like(start, float("nan")))
        )
        copied = read_back(device, model.weight)
    assert losses == result.losses
    assert torch.equal(plain.weight.detach(), copied)
    assert loop.capture.num_graphs == 2
