"""Steps that train in other ways than forward, backward and update: the plain loop's values."""

from __future__ import annotations

import copy

import pytest
import torch

import gapless
from gapless.loop.train_loop import TrainLoop
from gapless.testing.simulated.simulated_device import SimulatedDevice


DATA = [torch.randn(4, 3, generator=torch.Generator().manual_seed(n)) for n in range(12)]


class Training:
    """A weight, its optimizer and a loop around a step, captured or not."""

    def __init__(self, device, **settings):
        torch.manual_seed(0)
        start = device.device_buffer(12).view(torch.float32).view(3, 1)
        self.weight = torch.nn.Parameter(start.copy_(torch.randn(3, 1)))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.01, **settings)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)
        self.number = 0

    def add_gradients(self, batch):
        loss = (batch @ self.weight).square().mean()
        loss.backward()
        return loss.detach()

    def update(self, batch):
        self.optimizer.zero_grad()
        loss = self.add_gradients(batch)
        self.optimizer.step()
        return loss

    def after(self):
        """Do nothing between two steps."""


class UpdateOutside(Training):
    step = Training.add_gradients

    def after(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class UpdateOutsideAfterTwo(UpdateOutside):
    def after(self):
        if self.number % 2 == 0:
            super().after()


class Scheduled(Training):
    def step(self, batch):
        loss = self.update(batch)
        self.schedule.step()
        return loss


class Reloaded(Training):
    step = Training.update

    def after(self):
        if self.number == 4:
            self.kept = copy.deepcopy(self.optimizer.state_dict())
        if self.number == 8:
            self.optimizer.load_state_dict(self.kept)


class Moved(Training):
    step = Training.update

    def after(self):
        if self.number == 8:
            self.weight.data = self.weight.data * 0.5


def train(kind, *, captured, **settings):
    """Return losses, the weight and the report of one loop."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        training = kind(device, **settings)
        step = gapless.capture(training.step, device=device) if captured else training.step
        losses = []
        for batch in gapless.prefetch(DATA, device):
            losses.append(step(batch).item())
            training.number += 1
            training.after()
        return losses, training.weight.tolist(), step.report if captured else None


CASES = {
    # Kind: graphs, replays, and why there are no more.
    UpdateOutside: (1, 10, None),
    UpdateOutsideAfterTwo: (4, 4, "too_many_changes"),
    Scheduled: (0, 0, "scheduler"),
    Reloaded: (2, 10, None),
    Moved: (2, 10, None),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_captured_step_trains_as_it_is_written(kind):
    """Losses and weights are the plain loop's, and what is not captured is told."""
    losses, weight, _ = train(kind, captured=False, momentum=0.9)

    found, found_weight, report = train(kind, captured=True, momentum=0.9)

    num_graphs, num_replays, refusal = CASES[kind]
    assert losses == found
    assert weight == found_weight
    assert (num_graphs, num_replays) == (report.num_graphs, report.num_replays)
    assert refusal == (report.refusal and report.refusal.kind)


def test_an_optimizer_that_counts_on_the_host_is_not_captured():
    """Its count would stand still in a graph."""

    class Counting(torch.optim.SGD):
        def step(self):
            for weight in self.param_groups[0]["params"]:
                state = self.state[weight]
                state["step"] = state.get("step", 10**6) + 1
                with torch.no_grad():
                    weight.sub_(weight.grad, alpha=1e5 / state["step"])

    class Own(Training):
        def __init__(self, device):
            super().__init__(device)
            self.optimizer = Counting([self.weight], lr=0.1)

        step = Training.update

    losses, weight, _ = train(Own, captured=False)

    found, found_weight, report = train(Own, captured=True)

    assert (losses, weight) == (found, found_weight)
    assert report.num_graphs == 0
    assert "replaces its state, or counts on the host" in report.refusal.text


def test_a_batch_with_a_tensor_on_the_host_runs_as_written():
    """A graph would keep the first length; the tensor is named."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        step = gapless.capture(lambda batch: batch[0][: int(batch[1])].sum(), device=device)
        found = [
            step((batch, torch.tensor(1 + number % 4))).item()
            for number, batch in enumerate(gapless.prefetch(DATA, device))
        ]

        assert found == [batch[: 1 + n % 4].sum().item() for n, batch in enumerate(DATA)]
        assert (step.report.num_graphs, step.report.num_eager) == (0, 12)
        assert step.report.refusal.text.startswith(
            "a batch holds a tensor on cpu (torch.int64, shape ()"
        )


def test_the_last_run_before_a_capture_takes_a_batch_of_its_own():
    """Compiled code tells views from own tensors, and cannot be made in a capture."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        is_view = []

        def note(batch):
            is_view.append(batch._is_view())
            return batch.sum()

        step = gapless.capture(note, device=device)
        for batch in gapless.prefetch(DATA, device):
            step(batch)

        assert is_view == [True, False, False]


def test_under_auto_the_last_run_before_a_capture_takes_a_batch_of_its_own():
    """Its first steps run as written too, and one of them counts as that run."""
    with SimulatedDevice(scheduler="asap") as device, device.allow_waits():
        is_view = []

        def note(batch):
            is_view.append(batch._is_view())
            return batch.sum()

        with TrainLoop(plan="auto", device=device) as loop:
            loop.run_epoch(DATA * 4, note)

        assert loop.capture_report.num_graphs == 1
        assert is_view[:3] == [True, False, True]
