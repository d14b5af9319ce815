"""What a loop changes between two steps, and what a graph would keep as it was."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

import gapless
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice


def batches(*lengths):
    """Return batches of so many rows."""
    return [
        torch.randn(length, 3, generator=torch.Generator().manual_seed(number))
        for number, length in enumerate(lengths)
    ]


def on(device, tensor):
    """Return a copy on the device."""
    flat = device.device_buffer(tensor.numel() * tensor.element_size()).view(tensor.dtype)
    return flat.view(tensor.shape).copy_(tensor)


class Training:
    """A model, its optimizer, and a step that makes gradients and updates."""

    data = batches(*[4] * 12)

    def __init__(self, device):
        torch.manual_seed(0)
        self.device = device
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(0.0), torch.nn.Linear(4, 1)
        )
        for weight in self.model.parameters():
            weight.data = on(device, weight.data)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    @property
    def group(self):
        return self.optimizer.param_groups[0]

    def add_gradients(self, batch):
        loss = (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss.detach()

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.add_gradients(batch)
        self.optimizer.step()
        return loss

    def before(self, number):
        """Change nothing."""

    def after(self):
        """Return what is seen after a step."""


class UpdateAfterAStepThatBeginsAnew(Training):
    """Batches of another shape come in between."""

    data = batches(*[4, 4, 4, 4, 4, 2] * 4)

    def step(self, batch):
        self.optimizer.zero_grad()
        return self.add_gradients(batch)

    def after(self):
        self.optimizer.step()


class HasAHeadForEachShape(Training):
    """Weights become known with the shape that trains them."""

    data = batches(*[4, 4, 4, 2, 2, 2, 3, 3, 3, 1, 1, 1, 5, 5, 5] * 2)

    def __init__(self, device):
        super().__init__(device)
        heads = [torch.nn.Parameter(on(device, torch.ones(1))) for _ in range(5)]
        self.heads = torch.nn.ParameterList(heads)
        self.optimizer = torch.optim.SGD([*self.model.parameters(), *heads], lr=0.01)

    def step(self, batch):
        loss = (self.model(batch) * self.heads[len(batch) - 1]).square().mean()
        loss.backward()
        return loss.detach()

    def after(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class GradientsAreRead(Training):
    def after(self):
        return [weight.grad.norm().item() for weight in self.model.parameters()]


class AtSix(Training):
    """Something changes before the seventh step."""

    def before(self, number):
        if number == 6:
            self.change()


class Freezes(AtSix):
    def change(self):
        self.model[0].requires_grad_(False)


class Unfreezes(AtSix):
    def __init__(self, device):
        super().__init__(device)
        self.model[0].requires_grad_(False)

    def change(self):
        self.model[0].requires_grad_(True)


class MovesWeightsUpdatedOutside(AtSix):
    step = Training.add_gradients

    def after(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def change(self):
        for weight in self.model.parameters():
            weight.data = on(self.device, weight.data * 0.5)


class ReplacesMomentum(AtSix):
    def change(self):
        for state in self.optimizer.state.values():
            state["momentum_buffer"] = on(self.device, torch.zeros(state["momentum_buffer"].shape))


class HasNoMomentumAnyMore(AtSix):
    def change(self):
        for state in self.optimizer.state.values():
            state["momentum_buffer"] = None


class Descent(torch.optim.SGD):
    """Takes a rate on the device without reading it."""

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad * self.param_groups[0]["lr"])


class ReplacesRateOnTheDevice(AtSix):
    def __init__(self, device):
        super().__init__(device)
        self.optimizer = Descent(self.model.parameters(), lr=on(device, torch.tensor(0.05)))

    def change(self):
        self.group["lr"] = on(self.device, torch.tensor(0.001))


class HasARateOfNumpy(AtSix):
    def __init__(self, device):
        super().__init__(device)
        self.group["lr"] = np.float32(0.05)

    def change(self):
        self.group["lr"] = np.float32(0.001)


class ChangesDropout(AtSix):
    def change(self):
        self.model[2].p = 1.0


class StopsDropout(AtSix):
    def __init__(self, device):
        super().__init__(device)
        self.model[2].p = 1.0

    def change(self):
        self.model.eval()


class Validates(Training):
    """Every third batch is evaluated by the same step."""

    data = batches(*[4] * 24)

    def before(self, number):
        self.model.train(number % 3 != 2)

    def step(self, batch):
        if self.model.training:
            return super().step(batch)
        return (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()


class Scales(Training):
    """What a scaler reads cannot be captured, and its gradients are divided once."""

    def __init__(self, device):
        super().__init__(device)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


class WantsGradientsOfItsInput(Training):
    def step(self, batch):
        out = self.model(batch.requires_grad_()).square().mean()
        slope = torch.autograd.grad(out, batch, create_graph=True)[0]
        self.optimizer.zero_grad()
        loss = out + slope.square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def run(kind, *, captured):
    """Return all that is seen of one loop, and its report."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        training = kind(device)
        step = gapless.capture(training.step, device=device) if captured else training.step
        seen = []
        for number, batch in enumerate(gapless.prefetch(training.data, device)):
            training.before(number)
            seen += [step(batch).item(), training.after()]
        weights = [weight.tolist() for weight in training.model.parameters()]
        return seen, weights, step.report if captured else None


CASES = {
    # Kind: graphs, replays.
    UpdateAfterAStepThatBeginsAnew: (2, 20),
    HasAHeadForEachShape: (5, 20),
    GradientsAreRead: (1, 10),
    # Once more, as gradients or momentum are gone or new after the first step of that kind.
    Freezes: (3, 10),
    Unfreezes: (3, 10),
    HasNoMomentumAnyMore: (3, 10),
    MovesWeightsUpdatedOutside: (2, 10),
    ReplacesMomentum: (2, 10),
    ReplacesRateOnTheDevice: (2, 10),
    HasARateOfNumpy: (2, 10),
    ChangesDropout: (2, 8),
    StopsDropout: (2, 8),
    Validates: (2, 20),
    Scales: (0, 0),
    WantsGradientsOfItsInput: (1, 10),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_captured_step_sees_what_the_plain_one_sees(kind):
    """Losses, weights, and what is read between the steps."""
    seen, weights, _ = run(kind, captured=False)

    found, found_weights, report = run(kind, captured=True)

    assert seen == found
    assert weights == found_weights
    assert CASES[kind] == (report.num_graphs, report.num_replays), str(report)


def test_a_step_that_reads_is_named_and_not_tried():
    """An attempt would have done half of the step on the host."""
    _, _, report = run(Scales, captured=True)

    assert report.refusal.text.endswith("makes the host wait for the device")
    assert report.seconds == 0.0


def test_batches_that_require_gradients_run_as_written_and_are_let_go():
    """A graph would not bring them their gradients."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        training, kept, grads = Training(device), [], []
        step = gapless.capture(training.step, device=device)
        for batch in gapless.prefetch(training.data, device):
            own = batch.clone().requires_grad_()
            step(own)
            grads.append(own.grad)
            kept.append(weakref.ref(own))
        del own, batch

    assert all(grad is not None for grad in grads)
    assert [reference() for reference in kept] == [None] * 12
    assert (step.report.num_graphs, step.report.num_eager) == (0, 12)
    assert "requires gradients" in step.report.refusal.text


def test_a_batch_of_an_unknown_kind_runs_as_written():
    """Nothing has to be moved, and the report says what the batch holds."""

    class Graph:
        def __init__(self, nodes):
            self.nodes = nodes

    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        training = Training(device)
        step = gapless.capture(lambda graph: training.step(graph.nodes), device=device)
        found = [step(Graph(batch)).item() for batch in gapless.prefetch(training.data, device)]

    assert found == run(Training, captured=False)[0][::2]
    assert (step.report.num_graphs, step.report.num_eager) == (0, 12)
    assert "Graph" in step.report.refusal.text


@dataclass
class Weighted:
    """A batch with an attribute that is no field."""

    rows: torch.Tensor


class Named(dict):
    """A batch with an attribute that is no item."""


@pytest.mark.parametrize("kind", [Weighted, lambda rows: Named(rows=rows)])
def test_plain_attributes_beside_the_parts_of_a_batch_count(kind):
    """Two batches that differ in one are not of one shape."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():

        def scaled(batch):
            rows = batch["rows"] if isinstance(batch, dict) else batch.rows
            return rows.sum() * batch.factor

        step, found, expected = gapless.capture(scaled, device=device), [], []
        for number, rows in enumerate(gapless.prefetch(batches(*[4] * 12), device)):
            batch = kind(rows)
            batch.factor = number % 2 + 1.0
            found.append(step(batch).item())
            expected.append(scaled(batch).item())

    assert found == expected
    assert (step.report.num_graphs, step.report.num_replays) == (2, 8)


def test_a_method_keeps_its_graphs_from_epoch_to_epoch():
    """Each time it is named it is another object, and the same step."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        training = Training(device)
        with TrainLoop(plan="captured", device=device) as loop:
            for _ in range(3):
                loop.run_epoch(training.data, training.step)

        assert (loop.capture_report.num_eager, loop.capture_report.num_replays) == (2, 34)


@pytest.mark.parametrize("way", ["lambda", "partial", "object", "global"])
def test_modules_are_found_behind_whatever_a_step_is(way):
    """Also behind a function that the step calls by name."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        training = Training(device)

        class Step:
            def __init__(self):
                self.parts = {"model": training.model}

            def __call__(self, batch):
                return self.parts["model"](batch).sum()

        def summed(model, batch):
            return model(batch).sum()

        HERE["model"] = training.model
        step = {
            "lambda": lambda batch: training.model(batch).sum(),
            "partial": partial(summed, training.model),
            "object": Step(),
            "global": lambda batch: calls_the_model(batch).sum(),
        }[way]
        step = gapless.capture(step, device=device)
        for number, batch in enumerate(gapless.prefetch(training.data, device)):
            training.model.train(number < 6)
            step(batch)
    HERE.clear()

    assert (step.report.num_graphs, step.report.num_replays) == (2, 8)


HERE = {}


def calls_the_model(batch):
    return HERE["model"](batch)
