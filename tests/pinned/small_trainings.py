"""Small models trained in every plan: losses, final tensors and host waits, by public names alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import gapless
from gapless.testing import SimulatedDevice


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


# (kind of value, its label, the value): values are equal if their texts are.
Value = tuple[str, str, str]

_NUM_EPOCHS = 2
_NUM_BATCHES = 12

Schedules = Sequence[tuple[str, int]]


def put(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """Return a copy of a tensor in the device's own memory."""
    (moved,) = gapless.prefetch([tensor.detach().clone()], device)
    return moved.clone()


class SmallModel:
    """A network with dropout and Adam, which takes batches of any number of rows."""

    def __init__(self, device: Any) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        for weight in self.net.parameters():
            weight.data = put(weight.data, device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01, fused=True)
        # Made here, on the device: a captured step does not count on the host when it is
        # launched again.
        for weight in self.net.parameters():
            self.optimizer.state[weight] = {
                "step": put(torch.zeros(()), device),
                "exp_avg": put(torch.zeros_like(weight.data), device),
                "exp_avg_sq": put(torch.zeros_like(weight.data), device),
            }

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the mean squared error of a batch."""
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def update(self, loss: torch.Tensor) -> None:
        """Follow the gradient of a loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return weights and the state of the optimizer by name."""
        found = {name: weight.detach() for name, weight in self.net.named_parameters()}
        for name, weight in self.net.named_parameters():
            for key, value in self.optimizer.state[weight].items():
                found[f"{name}: {key}"] = value.detach()
        return found


class InTwoParts(SmallModel):
    """The model as a step whose forward and backward may run on two streams."""

    def forward(self, batch: Any) -> Any:
        """Compute the loss of a batch."""
        return gapless.StepLoss(loss=self.loss(batch), weight=float(len(batch[0])))

    def backward(self, out: Any) -> None:
        """Compute gradients and update the weights."""
        self.update(out.loss)


class InOnePart(SmallModel):
    """The model as a step that is one function."""

    def __call__(self, batch: Any) -> torch.Tensor:
        """Train on a batch and return its loss."""
        loss = self.loss(batch)
        self.update(loss)
        return loss


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of four, three and two rows, in turns."""
    draw = torch.Generator().manual_seed(1)
    sizes = [4 - number % 3 for number in range(_NUM_BATCHES)]
    return [
        (torch.randn(size, 3, generator=draw), torch.randn(size, 1, generator=draw))
        for size in sizes
    ]


def train_in_two_parts(plan: str, device: Any) -> tuple[SmallModel, list[Value]]:
    """Train two epochs in one loop; return the model, and losses and waits."""
    model, found = InTwoParts(device), list[Value]()
    with gapless.TrainLoop(plan=plan, device=device) as loop:
        for epoch in range(_NUM_EPOCHS):
            result = loop.run_epoch(make_batches(), model)
            found += _values_of(result, f"epoch {epoch}")
    return model, found


def train_in_one_part(plan: str, device: Any) -> tuple[SmallModel, list[Value]]:
    """Train two epochs, each in a loop of its own; return the model, and losses and waits."""
    model, found = InOnePart(device), list[Value]()
    for epoch in range(_NUM_EPOCHS):
        result = gapless.run_epoch(make_batches(), model, plan=plan, device=device)
        found += _values_of(result, f"epoch {epoch}")
    return model, found


def train_in_own_loop(device: Any) -> tuple[SmallModel, list[Value]]:
    """Train in a loop of prefetched batches and a captured step; return the model and losses."""
    model = InOnePart(device)
    step = gapless.capture(model, device=device)
    losses = gapless.DeferredLoss(device)
    for _ in range(_NUM_EPOCHS):
        for batch in gapless.prefetch(make_batches(), device):
            losses.add(step(batch))
    losses.mean()
    return model, _losses(losses.history, "both epochs")


def _values_of(result: Any, label: str) -> list[Value]:
    by_reason = result.waits.by_reason
    waits = [
        ("waits", f"{label}, {reason}", str(by_reason[reason].count))
        for reason in sorted(by_reason)
    ]
    return [*_losses(result.losses, label), *waits]


def _losses(losses: list[float], label: str) -> list[Value]:
    return [("losses", f"{label}, batch {n}", loss.hex()) for n, loss in enumerate(losses)]


def wait_until_idle(model: SmallModel, device: Any) -> None:
    """Wait for everything queued so far, by reading a number that is computed after it."""
    last = gapless.DeferredLoss(device)
    last.add(sum(tensor.sum() for tensor in model.tensors().values()))
    last.mean()


def digest(tensor: torch.Tensor) -> str:
    """Return dtype, shape and the hash of a tensor's bytes; the device must be idle."""
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(data).hexdigest()}"


def run_on(
    device: Any, train: Callable[[Any], tuple[SmallModel, list[Value]]], label: str
) -> list[Value]:
    """Train on a device; return losses, waits, final tensors and the number of races."""
    inside: AbstractContextManager[Any] = nullcontext() if device == "cpu" else device
    with inside:
        model, found = train(device)
        tensors = model.tensors()
        wait_until_idle(model, device)
    found += [("tensors", name, digest(tensor)) for name, tensor in tensors.items()]
    if device != "cpu":
        found.append(("races", "found by the checker", str(len(device.report.races))))
    return [(kind, f"{label}: {name}", value) for kind, name, value in found]


def _devices(schedules: Schedules) -> Iterator[tuple[str, Any]]:
    if not schedules:
        yield "cpu", "cpu"
    for scheduler, seed in schedules:
        yield f"{scheduler} {seed}", SimulatedDevice(scheduler=scheduler, seed=seed)


def run_plan(plan: str, schedules: Schedules) -> list[Value]:
    """Train in a plan under each schedule of the simulated device; with none, on a CPU."""
    ways = {"two parts": train_in_two_parts, "one part": train_in_one_part}
    return [
        value
        for way, train in ways.items()
        for label, device in _devices(schedules)
        for value in run_on(device, partial(train, plan), f"{label}, {way}")
    ]


def run_own_loop(schedules: Schedules) -> list[Value]:
    """Train in a loop of one's own under each schedule; with none, on a CPU."""
    return [
        value
        for label, device in _devices(schedules)
        for value in run_on(device, train_in_own_loop, label)
    ]


def cases(schedules: Schedules) -> dict[str, Callable[[], list[Value]]]:
    """Return everything that this process can run, by name.

    Args:
        schedules: kind and seed of each scheduler of the simulated device.
    """
    found: dict[str, Callable[[], list[Value]]] = {}
    for kind, chosen in (("cpu", ()), ("simulated", schedules)):
        for plan in gapless.PLANS:
            found[f"plan {plan}, {kind}"] = partial(run_plan, plan, chosen)
        found[f"prefetch and capture, {kind}"] = partial(run_own_loop, chosen)
    return found
