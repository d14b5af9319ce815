"""Small training steps, and loops that change something between two steps.

`Regression` is a step in two parts. `Training` is a model with its optimizer, a step, and what a loop
does before and after each step; its subclasses change one thing each. `train` runs one of them, with
its step captured or not, on a device or on the host.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

import gapless
from gapless.pipeline.host_waits import HostWaits


class Regression:
    """A linear model with dropout that trains itself, in few operations."""

    changes_no_other_objects = True

    def __init__(self):
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(3, 1))

    def forward(self, batch):
        x, y = batch
        loss = (torch.nn.functional.dropout(x @ self.weight, 0.3) * y).sum()
        return gapless.StepLoss(loss=loss, weight=2.0)

    def backward(self, out):
        out.loss.backward()
        with torch.no_grad():
            self.weight -= 0.1 * self.weight.grad
        self.weight.grad = None


def batches(*lengths):
    """Return batches of these numbers of rows."""
    return [
        torch.randn(length, 3, generator=torch.Generator().manual_seed(number))
        for number, length in enumerate(lengths)
    ]


def on(device, tensor):
    """Return a copy on a device, or on the host if it is None."""
    if device is None:
        return tensor.clone()
    flat = device.device_buffer(tensor.numel() * tensor.element_size()).view(tensor.dtype)
    return flat.view(tensor.shape).copy_(tensor)


def read_back(device, tensor):
    """Return a tensor's values as queued on the current stream now, through pinned memory."""
    pinned = device.host_buffer(tensor.numel() * tensor.element_size(), pinned=True)
    target = pinned.view(tensor.dtype).view(tensor.shape)
    device.copy(target, tensor.detach())
    HostWaits(device).wait_stream(device.current_stream(), reason="test")
    return target.clone()


class Training:
    """A model, its optimizer, and a step that makes gradients and updates."""

    data = batches(*[4] * 12)
    changes_no_other_objects = True

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

    def loss_of(self, batch):
        return (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()

    def add_gradients(self, batch):
        loss = self.loss_of(batch)
        loss.backward()
        return loss.detach()

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.add_gradients(batch)
        self.optimizer.step()
        return loss

    def before(self, number):
        """Change nothing before a step."""

    def take(self, step, batch, number):
        """Return what the step returns."""
        return step(batch)

    def after(self, number):
        """Return tensors that are read after a step."""
        return []


class ChangesNothing(Training):
    """The plain case."""


# --- who updates, and when ---


class UpdatesOutside(Training):
    step = Training.add_gradients

    def after(self, number):
        self.optimizer.step()
        self.optimizer.zero_grad()
        return []


class UpdatesFirst(Training):
    """Each call updates the weights by the gradients of the call before."""

    def step(self, batch):
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.add_gradients(batch)


class HoldsGradients(Training):
    """The loop holds the gradients of each call until after the next."""

    held = ()

    def after(self, number):
        found = [gradient.clone() for gradient in self.held]
        self.held = [weight.grad for weight in self.model.parameters()]
        return found


class UpdatesOutsideAfterTwo(UpdatesOutside):
    """Gradients of two batches add up, and are None before every other step."""

    data = batches(*[4] * 24)

    def after(self, number):
        return super().after(number) if number % 2 else []


class UpdatesOutsideAStepThatBeginsAnew(Training):
    """Batches of another shape come in between."""

    data = batches(*[4, 4, 4, 4, 4, 2] * 4)

    def step(self, batch):
        self.optimizer.zero_grad()
        return self.add_gradients(batch)

    def after(self, number):
        self.optimizer.step()
        return []


class ReadsGradients(Training):
    """What user code reads after a replay are that batch's gradients."""

    def after(self, number):
        return [weight.grad.clone() for weight in self.model.parameters()]


class WantsGradientsOfItsInput(Training):
    def step(self, batch):
        out = self.model(batch.requires_grad_()).square().mean()
        slope = torch.autograd.grad(out, batch, create_graph=True)[0]
        self.optimizer.zero_grad()
        loss = out + slope.square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


# --- what changes once, before the seventh step ---


class ChangesOnce(Training):
    def before(self, number):
        if number == 6:
            self.change()

    def change(self):
        raise NotImplementedError


class HalvesTheRate(ChangesOnce):
    def change(self):
        self.group["lr"] *= 0.5


class Reloads(Training):
    """Goes back to an optimizer's state of four steps before."""

    def before(self, number):
        if number == 4:
            self.kept = copy.deepcopy(self.optimizer.state_dict())
        if number == 8:
            self.optimizer.load_state_dict(self.kept)


class ReplacesMomentum(ChangesOnce):
    def change(self):
        for state in self.optimizer.state.values():
            state["momentum_buffer"] = on(self.device, torch.zeros(state["momentum_buffer"].shape))


class MovesWeights(ChangesOnce):
    def change(self):
        for weight in self.model.parameters():
            weight.data = on(self.device, weight.data * 0.5)


class Freezes(ChangesOnce):
    def change(self):
        self.model[0].requires_grad_(False)


class ChangesDropout(ChangesOnce):
    def change(self):
        self.model[2].p = 1.0


# --- what comes and goes ---


class Validates(Training):
    """Every third batch is evaluated by the same step."""

    data = batches(*[4] * 24)

    def before(self, number):
        self.model.train(number % 3 != 2)

    def step(self, batch):
        return super().step(batch) if self.model.training else self.loss_of(batch).detach()


class GoesToBfloat16(Training):
    """Every second batch is trained under autocast."""

    data = batches(*[4] * 24)

    def take(self, step, batch, number):
        kind = "cpu" if self.device is None else self.device.torch_device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=number % 2 == 1):
            return step(batch)


# --- what cannot be captured ---


class Schedules(Training):
    """Calls a scheduler, which changes the rate in every fifth step."""

    def __init__(self, device):
        super().__init__(device)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)

    def step(self, batch):
        loss = super().step(batch)
        self.schedule.step()
        return loss


class CountsOnTheHost(Training):
    """The optimizer's count would stand still in a graph."""

    def __init__(self, device):
        super().__init__(device)
        self.optimizer = Counting(self.model.parameters(), lr=0.1)


class Counting(torch.optim.SGD):
    def step(self):
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state["step"] = state.get("step", 10**6) + 1
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=1e5 / state["step"])


class UpdatesEverySecondTime(Training):
    """A counter on the host decides when to call the optimizer."""

    count = 0

    def step(self, batch):
        loss = self.add_gradients(batch)
        self.count += 1
        if self.count % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
        return loss


class Scales(Training):
    """What a scaler reads cannot be captured, and its gradients are divided once."""

    def __init__(self, device):
        super().__init__(device)
        kind = "cpu" if device is None else device.torch_device.type
        self.scaler = torch.amp.GradScaler(kind, init_scale=1024.0)

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss_of(batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


class CutsItsBatch(Training):
    """A number that says how much of a batch counts comes as a tensor on the host."""

    def take(self, step, batch, number):
        return step((batch, torch.tensor(1 + number % 4)))

    def step(self, batch):
        rows, count = batch
        return super().step(rows[: int(count)])


class ReadsGradientsOfItsBatch(Training):
    """A graph would not bring the batch its gradients."""

    def take(self, step, batch, number):
        self.batch = batch.clone().requires_grad_()
        return step(self.batch)

    def after(self, number):
        return [self.batch.grad]


class Wrapped:
    """A batch of a kind that cannot be taken apart: it does something when it is gone."""

    def __init__(self, rows):
        self.rows = rows

    def __del__(self):
        self.rows = None


class WrapsItsBatch(Training):
    def take(self, step, batch, number):
        return step(Wrapped(batch))

    def step(self, batch):
        return super().step(batch.rows)


# Graphs and replays of each, and the kind of refusal.
CASES = {
    ChangesNothing: (1, 9, None),
    UpdatesOutside: (1, 9, None),
    UpdatesFirst: (1, 0, "proved_wrong"),
    HoldsGradients: (1, 9, None),
    UpdatesOutsideAfterTwo: (2, 19, None),
    UpdatesOutsideAStepThatBeginsAnew: (2, 18, None),
    ReadsGradients: (1, 9, None),
    WantsGradientsOfItsInput: (1, 9, None),
    HalvesTheRate: (2, 7, None),
    Reloads: (2, 7, None),
    ReplacesMomentum: (2, 7, None),
    MovesWeights: (2, 7, None),
    Freezes: (2, 7, None),
    ChangesDropout: (2, 7, None),
    Validates: (2, 19, None),
    GoesToBfloat16: (1, 9, "inside_autocast"),
    Schedules: (0, 0, "host_write"),
    CountsOnTheHost: (0, 0, "host_write"),
    UpdatesEverySecondTime: (0, 0, "host_write"),
    Scales: (0, 0, "host_read"),
    CutsItsBatch: (0, 0, "batch_on_host"),
    ReadsGradientsOfItsBatch: (0, 0, "batch_requires_grad"),
    WrapsItsBatch: (0, 0, "unknown_batch"),
}


@dataclass(frozen=True)
class Trained:
    """What is seen of one loop.

    Attributes:
        seen: values of losses, and of what is read after the steps.
        weights: values of the weights at the end.
        report: of the captured step, None if it is not captured.
    """

    seen: list[Any]
    weights: list[Any]
    report: Any


def train(kind, device, *, captured, step_ended=lambda: None, **how):
    """Train in a loop of one's own; nothing is read before the end.

    Args:
        kind: a subclass of `Training`.
        device: where; the host if it is None.
        captured: whether the step is.
        step_ended: is called after each step.
        how: it is captured.
    """
    training = kind(device)
    step = gapless.capture(training.step, device=device, **how) if captured else training.step
    data = [batch.clone() for batch in training.data]
    data = data if device is None else gapless.prefetch(data, device)
    seen = []
    for number, batch in enumerate(data):
        training.before(number)
        loss = training.take(step, batch, number)
        # What a step returns is the loop's own only if it is captured.
        seen += [loss.detach().clone(), *training.after(number)]
        step_ended()
    weights = list(training.model.parameters())
    return Trained(
        [_values(device, tensor) for tensor in seen],
        [_values(device, weight) for weight in weights],
        step.report if captured else None,
    )


def _values(device, tensor):
    return (tensor.detach() if device is None else read_back(device, tensor)).tolist()
